#!/usr/bin/env bash
# Counts the core's instructions per chunk (both ends, headers, trailers, checks and copies) with
# callgrind and holds them against transport/sim/instructions.txt. Instructions, unlike seconds, do not depend
# on what else the machine does, so they may gate CI. The start-up is subtracted: two lengths are run.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p weft-sim --bin core-pair --locked

run() { # CHUNKS PACKETS -> "instructions chunks"
    valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        "$target/release/core-pair" --chunks "$1" --packets "$2" 2>&1 |
        awk '/Collected :/ { instructions = $4 } /^chunks / { chunks = $2 } END { print instructions, chunks }'
}

passed=0 failed=0
while read -r packets limit; do
    case $packets in ''|'#'*) continue ;; esac
    read -r short short_chunks < <(run 5000 "$packets")
    read -r long long_chunks < <(run 50000 "$packets")
    per_chunk=$(((long - short) / (long_chunks - short_chunks)))
    if [ "$per_chunk" -le "$limit" ]; then
        echo "chunk of $packets packets: $per_chunk instructions, at most $limit: ok"
        passed=$((passed + 1))
    else
        echo "chunk of $packets packets: $per_chunk instructions, at most $limit: TOO MANY"
        failed=$((failed + 1))
    fi
done <transport/sim/instructions.txt
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
