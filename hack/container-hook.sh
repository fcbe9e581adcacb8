#!/usr/bin/env bash
# Builds weft-container-hook, linked statically: nodes run it, with whatever C library they have. Prints where it is.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(rustc --print host-tuple)
RUSTFLAGS="-C target-feature=+crt-static" cargo build --quiet --release --locked --target "$target" \
    -p weft-device-injection --bin weft-container-hook >&2
printf '%s\n' "${CARGO_TARGET_DIR:-target}/$target/release/weft-container-hook"
