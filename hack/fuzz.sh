#!/usr/bin/env bash
# Fuzzes every target in fuzz/ with libFuzzer, as many at a time as there are cores.
#
#   hack/fuzz.sh                    every target for SECONDS (60), from its committed seeds
#   hack/fuzz.sh TARGET...          these targets only
#   hack/fuzz.sh --repro TARGET FILE   runs one input once
#
# Coverage comes from the compiler's own instrumentation, so the stable toolchain of this repository
# is enough. What a run finds is kept under the target directory and is where the next run starts.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SECONDS_PER_TARGET:-60}
target_dir=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

flags="--cfg fuzzing -Cpasses=sancov-module"
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
    flags="$flags -Cllvm-args=-sanitizer-coverage-$argument"
done

# With --target, build scripts and procedural macros stay free of the instrumentation.
RUSTFLAGS="$flags" cargo build --quiet --locked --release --manifest-path fuzz/Cargo.toml \
    --target "$host" --target-dir "$target_dir" --bins >&2
binaries=$target_dir/$host/release
artifacts=$target_dir/artifacts

if [ "${1:-}" = --repro ]; then
    exec "$binaries/$2" "$3"
fi

if [ $# -gt 0 ]; then
    targets=("$@")
else
    targets=()
    for file in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
mkdir -p "$artifacts"
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

fuzz_one() {
    local name=$1 log=$results/$1.log
    local corpus=$target_dir/corpus/$name seeds=fuzz/seeds/$name
    if [ ! -d "$seeds" ] || [ -z "$(ls -A "$seeds")" ]; then
        echo "fuzz $name: no seeds in $seeds; commit at least one input that it accepts"
        return 1
    fi
    mkdir -p "$corpus"
    if "$binaries/$name" "$corpus" "$seeds" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=2048 -use_value_profile=1 -print_final_stats=1 \
        -artifact_prefix="$artifacts/$name-" >"$log" 2>&1; then
        local runs coverage
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
        echo "fuzz $name: $runs runs in $seconds s, $coverage edges"
    else
        tail -n 60 "$log"
        local input
        input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        echo "fuzz $name: FAILED"
        echo "  again: hack/fuzz.sh --repro $name $input"
        echo "  once it is mended, keep the input: cp $input $seeds/"
        return 1
    fi
}

pids=()
passed=0
failed=0
count() { if wait "$1"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi; }
for name in "${targets[@]}"; do
    if [ ${#pids[@]} -ge "$(nproc)" ]; then
        count "${pids[0]}"
        pids=("${pids[@]:1}")
    fi
    fuzz_one "$name" &
    pids+=($!)
done
for pid in "${pids[@]}"; do count "$pid"; done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
