#!/usr/bin/env bash
# Builds the Python module, installs it as `pip install ./python` does, and runs its tests.
#
#   hack/python.sh [ARGUMENTS OF PYTEST]
#
# What the tests need (python/tests/requirements.txt) is fetched once, into a virtual environment in the cache. The module
# goes into another one, in the target directory, so that clones do not meet. It is compiled there as well, in the dev
# profile: what cargo has compiled before is used.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
requirements=python/tests/requirements.txt

say() { printf 'python: %s\n' "$*" >&2; }

# Another version of Python or of the requirements is another environment.
version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
tools=$cache/python-$version-$(sha256sum "$requirements" | cut -c -8)
if [ ! -d "$tools" ]; then
    say "fetching maturin, mypy, numpy and pytest for Python $version (60 MB, once)"
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    "$python" -m venv "$scratch/tools"
    "$scratch/tools/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2
    # A rename leaves all of it or none. Another run may have been faster. Its programs are called by `python -m`, which
    # does not care where the environment was made.
    if [ ! -d "$tools" ]; then mv "$scratch/tools" "$tools"; fi
fi

venv=$target/python
rm -rf "$venv"
"$python" -m venv --without-pip "$venv"
site=$(echo "$venv"/lib/python3.*/site-packages)
echo "$tools"/lib/python3.*/site-packages >"$site/tools.pth"

export CARGO_TARGET_DIR=$target PATH="$venv/bin:$tools/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
# With the maturin of the requirements: `pip install ./python` alone fetches one for each installation.
MATURIN_PEP517_ARGS="--profile dev" "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-build-isolation --no-deps ./python

# Debian's torch, where it is installed, with Debian's numpy: the one of the requirements is too new for it.
torch=/usr/lib/python3/dist-packages
if [ -d "$torch/torch" ] && [ "$(realpath "$(command -v "$python")")" = "$(realpath /usr/bin/python3)" ]; then
    PYTHONPATH=$torch "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider -W default python/tests/test_memory.py -k torch
fi

log=$target/python.log
status=0
"$venv/bin/python" -m pytest -rs -p no:cacheprovider python/tests "$@" 2>&1 | tee "$log" || status=$?
# The last line is pytest's own count: "1 failed, 2 passed, 1 skipped, 1 error in 3.21s".
tail -n 1 "$log" | awk '
    {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) good = $(i - 1)
            if ($i ~ /^(failed|errors?)/) bad += $(i - 1)
        }
        print good + 0 " passed, " bad + 0 " failed"
    }'
exit "$status"
