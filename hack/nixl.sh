#!/usr/bin/env bash
# NIXL as PyPI has it, with its own UCX and libibverbs: what a test writes with from one node to another.
#
#   hack/nixl.sh          fetches it once and prints its directory
#   hack/nixl.sh --where  prints the directory, fetches nothing
#
# It is unpacked and not installed. Its folder `nixl_cu12` in PYTHONPATH is enough, for Python 3.11 as Debian 12 has it.
set -euo pipefail

package=nixl-cu12
version=1.5.1
wheel_sha256=341d0dfa499f941c054614252f1d8047d1380e33f29c87707372ff5ec7d3779a

# Root's programs at a node run as uid 1000, which cannot look into root's home.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
if [ "$(id -u)" = 0 ]; then cache=/var/cache/weft; fi
unpacked=$cache/$package-$version

if [ "${1:-}" = --where ] || [ -d "$unpacked" ]; then
    printf '%s\n' "$unpacked"
    exit 0
fi

say() { printf 'nixl: %s\n' "$*" >&2; }

if command -v pip >/dev/null; then pip=pip; else pip=pip3; fi
say "fetching $package $version (69 MB, once)"
# What is made here everybody may read.
umask 022
mkdir -p "$cache"
scratch=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
"$pip" download --quiet --no-deps --disable-pip-version-check --dest "$scratch" --only-binary :all: \
    --implementation cp --python-version 3.11 --platform manylinux_2_28_x86_64 "$package==$version" >&2
wheel=$(echo "$scratch"/*.whl)
if ! printf '%s  %s\n' "$wheel_sha256" "$wheel" | sha256sum --check --status; then
    say "$(basename "$wheel") is not the file that was expected (sha256 $wheel_sha256)"
    exit 1
fi
python3 -m zipfile -e "$wheel" "$scratch/wheel"
# For torch, and half of all that is in it.
rm -rf "$scratch/wheel/nixl_ep_cu12"
# A rename leaves all of it or none. Another run may have been faster.
if [ ! -d "$unpacked" ]; then mv "$scratch/wheel" "$unpacked"; fi
printf '%s\n' "$unpacked"
