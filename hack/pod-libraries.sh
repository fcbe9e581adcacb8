#!/usr/bin/env bash
# Builds the libraries that pods load, for any image with glibc 2.17 (2012) or newer, and prints their folder.
#
# The linker takes the newest version of each symbol that it finds. So it is given a C library that has symbols and no code,
# of the old release: zig (https://ziglang.org) makes one. Nothing else of zig is used.
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.17
version=0.17.1
target=$(rustc --print host-tuple)
case "$target" in
    x86_64-*) wheel_sha256=ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54 platform=manylinux_2_12_x86_64 ;;
    aarch64-*) wheel_sha256=b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e platform=manylinux_2_17_aarch64 ;;
    *) echo "pod-libraries: no wheel of zig is known for $target" >&2; exit 1 ;;
esac
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
old=$cache/glibc-$glibc-zig-$version
built=${CARGO_TARGET_DIR:-target}/$target/release

say() { printf 'pod-libraries: %s\n' "$*" >&2; }

if [ ! -d "$old" ]; then
    if command -v pip >/dev/null; then pip=pip; else pip=pip3; fi
    say "fetching zig $version (100 MB, once)"
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    "$pip" download --quiet --no-deps --disable-pip-version-check --dest "$scratch" --only-binary :all: \
        --platform "$platform" "ziglang==$version" >&2
    wheel=$(echo "$scratch"/*.whl)
    if ! printf '%s  %s\n' "$wheel_sha256" "$wheel" | sha256sum --check --status; then
        say "$(basename "$wheel") is not the file that was expected (sha256 $wheel_sha256)"
        exit 1
    fi
    python3 -m zipfile -e "$wheel" "$scratch/wheel"
    zig=$scratch/wheel/ziglang/zig
    chmod +x "$zig"
    # It makes the C library when it links its first program.
    echo 'int none;' >"$scratch/none.c"
    ZIG_GLOBAL_CACHE_DIR=$scratch/made ZIG_LOCAL_CACHE_DIR=$scratch/made \
        "$zig" cc -target "${target%%-*}-linux-gnu.$glibc" -shared -o "$scratch/none.so" "$scratch/none.c" >&2
    mkdir "$scratch/old"
    cp "$scratch"/made/o/*/{libc.so.6,libpthread.so.0,libdl.so.2,librt.so.1,libm.so.6,libc_nonshared.a} "$scratch/old"
    for library in pthread.so.0 dl.so.2 rt.so.1 m.so.6; do
        ln -s "lib$library" "$scratch/old/lib${library%.so.*}.so"
    done
    echo "GROUP ( libc.so.6 libc_nonshared.a )" >"$scratch/old/libc.so"
    # A rename leaves all of it or none. Another run may have been faster.
    if [ ! -d "$old" ]; then mv "$scratch/old" "$old"; fi
fi

RUSTFLAGS="-L native=$old" cargo build --quiet --release --locked --target "$target" \
    -p weft-verbs-shim -p weft-rdmacm-shim >&2
for library in libweft_ibverbs.so libweft_rdmacm.so; do
    newest=$(objdump --dynamic-syms "$built/$library" | grep -o 'GLIBC_[0-9.]*' | sort --version-sort | tail -n 1)
    if [ "$(printf '%s\n' "$newest" "GLIBC_$glibc" | sort --version-sort | tail -n 1)" != "GLIBC_$glibc" ]; then
        say "$library needs $newest: with it no program of an image with glibc $glibc would start"
        exit 1
    fi
    # What every program with glibc has loaded, or has beside it.
    for needed in $(objdump --private-headers "$built/$library" | sed -n 's/^ *NEEDED *//p'); do
        case "$needed" in
            libc.so.6 | libpthread.so.0 | libdl.so.2 | ld-linux-*) ;;
            *) say "$library needs $needed, which not every image has"; exit 1 ;;
        esac
    done
done
printf '%s\n' "$built"
