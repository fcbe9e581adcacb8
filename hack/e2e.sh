#!/usr/bin/env bash
# The tests on a real Kubernetes: what `make e2e` does, and a step of `make test`. They bring up clusters
# of their own and take them down. Arguments go to the tests.
#
# Needs root and control groups; where they are missing it fails and says so. The cluster's programs
# are built once a machine, which takes ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/setup.sh e2e
hack/cluster-binaries.sh >/dev/null
# Of the whole workspace, so that nothing is built again with other features than in `make test`. The program
# `cluster` is built with its own test below.
cargo build --quiet --locked --workspace --bin weft-agent --bin weft-operator --bin kubectl-weft --bin weft-engine --bin weft-device-plugin \
    --bin weft-volume-driver
# One after the other: a cluster is work enough for two cores.
exec cargo test --locked --workspace --test cluster --test e2e -- --nocapture --test-threads=1 "$@"
