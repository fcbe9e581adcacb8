#!/usr/bin/env bash
# Prometheus and promtool, of the release that tests/monitoring/prometheus/go.mod names, with discovery by Kubernetes and no
# other. Debian's have none. They come without the pages of a browser, which the Go module has not.
#
#   hack/prometheus.sh          builds them once a machine, some minutes, and prints their directory
#   hack/prometheus.sh --where  prints the directory, builds nothing
set -euo pipefail
cd "$(dirname "$0")/.."

module=tests/monitoring/prometheus
tags=remove_all_sd,enable_kubernetes_sd,netgo
made_from=$(cat "$module/go.mod" "$module/go.sum" - <<<"$tags" | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
bin=$cache/prometheus-$made_from

if [ "${1:-}" = --where ] || [ -x "$bin/promtool" ]; then
    printf '%s\n' "$bin"
    exit 0
fi

say() { printf 'prometheus: %s\n' "$*" >&2; }

mkdir -p "$cache"
# Several tests may want it at once.
exec 9>"$cache/prometheus.lock"
flock 9
if [ ! -x "$bin/promtool" ]; then
    if ! command -v go >/dev/null; then
        say "it is built with Go: install Go 1.25 or newer from https://go.dev/dl and run again"
        exit 1
    fi
    say "building it (once a machine, some minutes)"
    scratch=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    prometheus=github.com/prometheus/prometheus/cmd
    (
        cd "$module"
        CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -tags "$tags" -ldflags "-s -w" -o "$scratch/" \
            "$prometheus/prometheus" "$prometheus/promtool"
    ) >&2
    mkdir -p "$bin"
    mv "$scratch/prometheus" "$bin/"
    # Last: who finds it has both.
    mv "$scratch/promtool" "$bin/"
    say "built, after $SECONDS s"
fi
printf '%s\n' "$bin"
