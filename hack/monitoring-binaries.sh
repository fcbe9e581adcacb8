#!/usr/bin/env bash
# What the tests of monitoring run: prometheus and promtool, of the release in tests/monitoring/third-party/go.mod, with
# discovery by Kubernetes and no other, and `schema`, which checks dashboards (tests/monitoring/schema). Debian's Prometheus has
# no such discovery. From its Go module it comes without pages for a browser.
#
#   hack/monitoring-binaries.sh          builds them once a machine, some minutes, and prints their directory
#   hack/monitoring-binaries.sh --where  prints the directory, builds nothing
set -euo pipefail
cd "$(dirname "$0")/.."

tags=remove_all_sd,enable_kubernetes_sd,netgo
made_from=$(cat tests/monitoring/{third-party,schema}/go.{mod,sum} tests/monitoring/schema/main.go - <<<"$tags" | sha256sum | cut -c1-16)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/weft/monitoring/$made_from

if [ "${1:-}" = --where ] || [ -d "$bin" ]; then
    printf '%s\n' "$bin"
    exit 0
fi

say() { printf 'monitoring-binaries: %s\n' "$*" >&2; }

mkdir -p "${bin%/*}"
# Several tests may want them at once.
exec 9>"${bin%/*}/lock"
flock 9
if [ ! -d "$bin" ]; then
    if ! command -v go >/dev/null; then
        say "they are built with Go: install Go 1.25 or newer from https://go.dev/dl and run again"
        exit 1
    fi
    say "building prometheus, promtool and schema (once a machine, some minutes)"
    scratch=$(mktemp -d "${bin%/*}/build.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    export CGO_ENABLED=0 GOFLAGS=-mod=readonly
    prometheus=github.com/prometheus/prometheus/cmd
    (
        cd tests/monitoring/third-party
        go build -trimpath -tags "$tags" -ldflags "-s -w" -o "$scratch/made/" "$prometheus/prometheus" "$prometheus/promtool"
        cd ../schema
        go build -trimpath -ldflags "-s -w" -o "$scratch/made/schema" .
    ) >&2
    # Nothing has its final name before it is whole.
    mv "$scratch/made" "$bin"
    say "built, after $SECONDS s"
fi
printf '%s\n' "$bin"
