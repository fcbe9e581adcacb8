#!/usr/bin/env bash
# Installs the TransferEngine for programs in C: weft.h, libweft.so, libweft.a and weft.pc.
#
#   hack/install-c.sh [--prefix DIR] [--libraries DIR]
#
# The default prefix is /usr/local. With --libraries it builds nothing and takes the libraries from there. DESTDIR, for those
# who make packages, stands before the prefix of each file and not in weft.pc.
set -euo pipefail

prefix=/usr/local
libraries=
is_built_here=
usage() {
    echo "usage: hack/install-c.sh [--prefix DIR] [--libraries DIR]" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    if [ $# -lt 2 ]; then usage; fi
    case "$1" in
        --prefix) prefix=$(realpath -m "$2") ;;
        --libraries) libraries=$(realpath "$2") ;;
        *) usage ;;
    esac
    shift 2
done

cd "$(dirname "$0")/.."
if [ -z "$libraries" ]; then
    cargo build --release --locked -p weft-transfer-engine-c >&2
    libraries=${CARGO_TARGET_DIR:-target}/release
    is_built_here=yes
fi

to=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
install -D -m 644 transfer-engine/c/include/weft.h "$to/include/weft.h"
install -D -m 755 "$libraries/libweft.so" "$to/lib/libweft.so.0"
ln -sf libweft.so.0 "$to/lib/libweft.so"
install -D -m 644 "$libraries/libweft.a" "$to/lib/libweft.a"
# Most of the shared library, and half of the static one, is for debuggers only.
if [ -n "$is_built_here" ]; then strip --strip-debug "$to/lib/libweft.so.0" "$to/lib/libweft.a"; fi
install -d "$to/lib/pkgconfig"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" transfer-engine/c/weft.pc.in >"$to/lib/pkgconfig/weft.pc"
chmod 644 "$to/lib/pkgconfig/weft.pc"
echo "installed weft.h, libweft.so, libweft.a and weft.pc $version under $to"
