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

# Minutes for all steps where nobody watches: who ends the whole run then says nothing of any of them. What
# comes when they are over is not begun, and has failed.
total=84

# step NAME LIMIT COMMAND...: LIMIT is in minutes and holds where nobody watches.
step() {
    local name=$1 limit=$2 log=$logs/$1.log start=$SECONDS status=0
    echo "0 1 0" >"$logs/$name.result"
    shift 2
    local left=$((total - SECONDS / 60))
    if [ -n "${CI:-}" ] && [ "$left" -le 0 ]; then
        echo "$name: $total minutes are over"
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
    echo "$good $bad $((SECONDS - start))" >"$logs/$name.result"
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
# Clippy is rustc with more lints. It compiles our own crates for the steps that say so, as `cargo clippy` has it do:
# nothing is compiled a second time to be checked. What it finds fails the build.
clippy=(env RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__)

step lint 15 "${clippy[@]}" cargo run --quiet --locked -p xtask -- lint
step generated 5 "${clippy[@]}" cargo run --quiet --locked -p xtask -- generate --check
# The tests start the programs, so these are built first and in the same profile.
step programs 30 "${clippy[@]}" cargo build --workspace --bins --locked
step shims 5 "${clippy[@]}" cargo build -p weft-verbs-shim -p weft-rdmacm-shim --locked
# Its own programs, by pip and pytest.
step python 10 "${clippy[@]}" hack/python.sh
step tests 50 "${clippy[@]}" cargo test --workspace --locked --no-fail-fast
# Where there is no GPU it says so, and counts as nothing.
if hack/gpu.sh --where; then step gpu 5 "${clippy[@]}" hack/gpu.sh; fi
# As it must not be: doorbell pages among memory. The test expects the paper's fault.
step figure-5 5 "${clippy[@]}" cargo test -p weft-memory --lib --features one-space --locked st2_figure_5
# A machine that has never had a cluster builds Kubernetes first; what is built of it stays.
step kubernetes 45 bash -c 'hack/setup.sh cluster && hack/cluster-binaries.sh'

# A cluster waits more than it computes. What measures no time runs beside its tests, in what they leave of the cores,
# and goes on after them. The kernel shares the cores among sessions first (sched_autogroup): so it has one of its own,
# with the lowest weight. Steps that build into directories of their own come first: the tests wait for no lock of theirs.
beside() {
    if ! echo 19 >/proc/self/autogroup; then echo "these steps share the cores evenly with the tests of the cluster"; fi
    step fuzz 45 env SECONDS_PER_TARGET=30 hack/fuzz.sh
    step vopr-fixed 30 cargo run --profile vopr --locked -p weft-sim --bin vopr -- --fixed
    step vopr-fresh 10 cargo run --profile vopr --locked -p weft-sim --bin vopr -- --seconds 60
    step instructions 20 hack/instructions.sh
    step wasm32 10 cargo build -p weft-core --target wasm32-unknown-unknown --locked
    step docs 30 env RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked
}
export -f step beside
export logs total
setsid --wait chrt --idle 0 bash -euo pipefail -c "SECONDS=$SECONDS; beside" >"$logs/beside.log" 2>&1 &
beside=$!
trap 'kill -- "-$beside"; exit 130' INT TERM
step e2e 50 "${clippy[@]}" hack/e2e.sh
wait "$beside" || echo "what runs beside the tests of the cluster has ended early"
trap - INT TERM
cat "$logs/beside.log"

traces >"$logs/traces-after"
step traces 1 diff "$logs/traces-before" "$logs/traces-after"

passed=0
failed=0
table=$(printf '%-12s %7s %7s %8s' step passed failed seconds)
for name in format lint generated programs shims python tests figure-5 kubernetes e2e fuzz vopr-fixed vopr-fresh instructions \
    wasm32 docs traces; do
    read -r good bad seconds <"$logs/$name.result" || { good=0 bad=1 seconds=0; }
    passed=$((passed + good))
    failed=$((failed + bad))
    table+=$(printf '\n%-12s %7d %7d %8d' "$name" "$good" "$bad" "$seconds")
done
printf '\n%s\n\n' "$table"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
