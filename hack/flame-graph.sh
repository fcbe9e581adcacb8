#!/usr/bin/env bash
# Draws where the CPU time of the engines' workers goes in a row of the benchmark, the kernel included:
# docs/results/ROW.svg.
#
#   hack/flame-graph.sh ROW
#
# It runs the program that `make bench ARGS=ROW` builds. It needs root, and perf: apt-get install linux-perf. The first time
# it fetches inferno, which draws.
set -euo pipefail
cd "$(dirname "$0")/.."

row=${1:?usage: hack/flame-graph.sh ROW}
bench=${CARGO_TARGET_DIR:-target}/release/bench
inferno_version=0.12.8
tools=${XDG_CACHE_HOME:-$HOME/.cache}/weft/inferno-$inferno_version

fail() { printf 'flame-graph: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "only root may look into the kernel: sudo hack/flame-graph.sh $row"
command -v perf >/dev/null || fail "there is no perf: apt-get install linux-perf"
[ -x "$bench" ] || fail "there is no $bench: make bench ARGS=$row"
if [ ! -x "$tools/bin/inferno-flamegraph" ]; then
    cargo install --quiet --locked --root "$tools" --version "$inferno_version" inferno
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export WEFT_NIXL WEFT_MOONCAKE
WEFT_NIXL=$(hack/nixl.sh --where)
WEFT_MOONCAKE=$(hack/mooncake.sh --where)
perf record --quiet --all-cpus --freq 499 -g --output "$scratch/perf.data" -- "$bench" --rounds 3 --out "$scratch" "$row"
perf script --input "$scratch/perf.data" >"$scratch/samples"
"$tools/bin/inferno-collapse-perf" <"$scratch/samples" >"$scratch/all"
grep '^weft-worker' "$scratch/all" >"$scratch/workers" || fail "no worker ran in the row $row"
"$tools/bin/inferno-flamegraph" --title "$row: both ends' workers" --countname ns --minwidth 0.4 \
    <"$scratch/workers" >"$scratch/graph.svg"
mkdir -p docs/results
mv "$scratch/graph.svg" "docs/results/$row.svg"
