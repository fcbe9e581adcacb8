#!/usr/bin/env bash
# Prometheus and promtool as Debian has them, unpacked and not installed: an installed one starts a server at every boot.
#
#   hack/prometheus.sh          fetches them once and prints their directory
#   hack/prometheus.sh --where  prints the directory, fetches nothing
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
if [ "$(id -u)" = 0 ]; then cache=/var/cache/weft; fi
unpacked=$cache/prometheus

if [ "${1:-}" = --where ] || [ -x "$unpacked/promtool" ]; then
    printf '%s\n' "$unpacked"
    exit 0
fi

say() { printf 'prometheus: %s\n' "$*" >&2; }

umask 022
mkdir -p "$cache"
# Several tests may want it at once.
exec 9>"$cache/prometheus.lock"
flock 9
if [ ! -x "$unpacked/promtool" ]; then
    say "fetching it from Debian (20 MB, once)"
    scratch=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    chmod 755 "$scratch"
    cd "$scratch"
    apt-get download -qq prometheus >&2 || {
        if [ "$(id -u)" != 0 ]; then
            say "the lists of packages are old: sudo apt-get update"
            exit 1
        fi
        apt-get update -qq >&2
        apt-get download -qq prometheus >&2
    }
    dpkg-deb --extract ./prometheus_*.deb root
    mkdir -p "$unpacked"
    mv root/usr/bin/prometheus "$unpacked/"
    # Last: who finds it has both.
    mv root/usr/bin/promtool "$unpacked/"
fi
printf '%s\n' "$unpacked"
