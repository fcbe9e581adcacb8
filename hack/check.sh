#!/usr/bin/env bash
# Everything CI checks, one step after the other: what `make test` and .ci/run do.
#
# Every step runs, whatever became of the one before. The last line sums what ran: each test that
# cargo and the fuzzer counted, and one for each step that counts nothing itself. The exit status
# is 0 only when nothing failed.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

export INSTA_UPDATE=no PROPTEST_DISABLE_FAILURE_PERSISTENCE=true
logs=${CARGO_TARGET_DIR:-$PWD/target}/check
rm -rf "$logs"
mkdir -p "$logs"

passed=0
failed=0
table=$(printf '%-12s %7s %7s %8s' step passed failed seconds)

# Minutes for all steps where nobody watches: who ends the whole run then says nothing of any of them. What
# comes when they are over is not begun, and has failed.
total=84

# step NAME LIMIT COMMAND...: LIMIT is in minutes and holds where nobody watches.
step() {
    local name=$1 limit=$2 log=$logs/$1.log start=$SECONDS status=0
    shift 2
    local left=$((total - SECONDS / 60))
    if [ -n "${CI:-}" ] && [ "$left" -le 0 ]; then
        echo "$name: $total minutes are over"
        failed=$((failed + 1))
        table+=$(printf '\n%-12s %7d %7d %8d' "$name" 0 1 0)
        return
    fi
    if [ "$left" -lt "$limit" ]; then limit=$left; fi
    printf '\n== %s: %s\n' "$name" "$*"
    local bound=()
    if [ -n "${CI:-}" ]; then bound=(timeout --kill-after=30 "${limit}m"); fi
    "${bound[@]}" "$@" 2>&1 | tee "$log" || status=$?
    if [ "$status" = 124 ]; then echo "$name took more than $limit minutes and was ended"; fi

    local good bad
    read -r good bad < <(awk '
        /^test result: / { good += $4; bad += $6 }
        /^[0-9]+ passed, [0-9]+ failed$/ { good += $1; bad += $3 }
        END { print good + 0, bad + 0 }' "$log")
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    if [ "$status" = 0 ] && [ "$good" = 0 ] && [ "$bad" = 0 ]; then good=1; fi
    passed=$((passed + good))
    failed=$((failed + bad))
    table+=$(printf '\n%-12s %7d %7d %8d' "$name" "$good" "$bad" $((SECONDS - start)))
}

# What a run may not leave behind: a network namespace and, where nobody is editing meanwhile, a
# changed work tree.
traces() {
    if [ -n "${CI:-}" ]; then git status --porcelain --untracked-files=all; fi
    ip netns list
}

if ! hack/setup.sh test; then
    echo "0 passed, 1 failed"
    exit 1
fi
traces >"$logs/traces-before"

step format 2 cargo fmt --all --check
step lint 15 cargo run --quiet --locked -p xtask -- lint
step generated 5 cargo run --quiet --locked -p xtask -- generate --check
step clippy 30 cargo clippy --workspace --all-targets --locked -- -D warnings
# Left out of "all": the step e2e runs them.
step clippy-e2e 10 cargo clippy --workspace --test cluster --test e2e --locked -- -D warnings
step docs 15 env RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked
step wasm32 10 cargo build -p weft-core --target wasm32-unknown-unknown --locked
# The tests start the programs, so these are built first and in the same profile.
step programs 30 cargo build --workspace --bins --locked
step shims 5 cargo build -p weft-verbs-shim -p weft-rdmacm-shim --locked
step tests 50 cargo test --workspace --locked --no-fail-fast
# As it must not be: doorbell pages among memory. The test expects the paper's fault.
step figure-5 5 cargo test -p weft-memory --lib --features one-space --locked st2_figure_5
# A machine that has never had a cluster builds Kubernetes first; what is built of it stays.
step kubernetes 45 bash -c 'hack/setup.sh cluster && hack/cluster-binaries.sh'
step e2e 50 hack/e2e.sh
# Half of what the script takes by itself, for the time that the steps before take.
step fuzz 30 env SECONDS_PER_TARGET=30 hack/fuzz.sh
step vopr-fixed 20 cargo run --profile vopr --locked -p weft-sim --bin vopr -- --fixed
step instructions 10 hack/instructions.sh
step vopr-fresh 10 cargo run --profile vopr --locked -p weft-sim --bin vopr -- --seconds 60
traces >"$logs/traces-after"
step traces 1 diff "$logs/traces-before" "$logs/traces-after"

printf '\n%s\n\n' "$table"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
