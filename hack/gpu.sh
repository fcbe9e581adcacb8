#!/usr/bin/env bash
# What needs an NVIDIA GPU.
#
#   hack/gpu.sh          runs it, or says that there is no GPU
#   hack/gpu.sh --where  only looks: fails where there is none
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"

if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
    echo "gpu: not run: no GPU"
    if [ "${1:-}" = --where ]; then exit 1; fi
    exit 0
fi
if [ "${1:-}" = --where ]; then exit 0; fi
cargo run --locked -p weft-cuda --example write_and_read
hack/python.sh -k gpu
