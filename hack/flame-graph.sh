#!/usr/bin/env bash
# Draws where the CPU time of a row of the benchmark goes, of both cores and with the kernel: docs/results/ROW.svg.
#
#   hack/flame-graph.sh ROW [NAME_OF_THREADS]     weft-worker: the engines' threads (default); bench: the peer's
#
# After `make bench`, whose program it runs. It needs root, Debian's linux-perf, and fetches inferno, which draws.
set -euo pipefail
cd "$(dirname "$0")/.."

row=${1:?usage: hack/flame-graph.sh ROW [NAME_OF_THREADS]}
threads=${2:-weft-worker}
inferno_version=0.12.8
tools=${XDG_CACHE_HOME:-$HOME/.cache}/weft/inferno-$inferno_version

if [ ! -x "$tools/bin/inferno-flamegraph" ]; then
    cargo install --quiet --locked --root "$tools" --version "$inferno_version" inferno
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export WEFT_NIXL WEFT_MOONCAKE
WEFT_NIXL=$(hack/nixl.sh --where)
WEFT_MOONCAKE=$(hack/mooncake.sh --where)
# Samples with the kernel's stack, and the program's as far as frame pointers lead.
perf record --quiet --all-cpus --freq 499 -g --output "$scratch/perf.data" -- \
    "${CARGO_TARGET_DIR:-target}/release/bench" --rounds 3 --out "$scratch" "$row"
perf script --input "$scratch/perf.data" >"$scratch/samples" 2>"$scratch/complaints" || { cat "$scratch/complaints" >&2; exit 1; }
"$tools/bin/inferno-collapse-perf" <"$scratch/samples" >"$scratch/folded"
mkdir -p docs/results
{ grep "^$threads" "$scratch/folded" || { echo "no sample of a thread $threads" >&2; exit 1; }; } |
    "$tools/bin/inferno-flamegraph" --title "$row: $threads" --width 1200 --minwidth 0.4 >"docs/results/$row${2:+-$2}.svg"
