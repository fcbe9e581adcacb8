#!/usr/bin/env bash
# Packs `kubectl weft` for krew: an archive, and the manifest that names it by its sha256.
#
#   hack/krew.sh OUT [PROGRAM]
#
# Writes OUT/kubectl-weft_OS_ARCH.tar.gz and OUT/weft.yaml for the platform of this machine. PROGRAM is a
# built kubectl-weft; without one it is built for release. The same program makes the same archive.
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: hack/krew.sh OUT [PROGRAM]" >&2
    exit 2
fi
mkdir -p "$1"
out=$(realpath "$1")
program=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."
if [ -z "$program" ]; then
    cargo build --release --locked -p weft-kubectl
    program=${CARGO_TARGET_DIR:-target}/release/kubectl-weft
fi

# krew has the names of Go.
os=$(uname -s | tr '[:upper:]' '[:lower:]')
case "$(uname -m)" in
    x86_64) arch=amd64 ;;
    aarch64 | arm64) arch=arm64 ;;
    *) echo "krew.sh: no build of kubectl weft for $(uname -m); use x86_64 or aarch64" >&2; exit 1 ;;
esac
# "kubectl weft 0.1.0 (commit)"
read -r _ _ release _ <<<"$("$program" --version)"
archive=kubectl-weft_${os}_$arch.tar.gz

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
install -m 755 "$program" "$scratch/kubectl-weft"
install -m 644 LICENSE "$scratch/LICENSE"
tar --create --directory="$scratch" --owner=0 --group=0 --numeric-owner --mtime=@0 kubectl-weft LICENSE |
    gzip -n >"$out/$archive"
read -r sha256 _ <<<"$(sha256sum "$out/$archive")"
sed -e '/^#/d' -e "s|@VERSION@|v$release|" -e "s|@OS@|$os|" -e "s|@ARCH@|$arch|" -e "s|@ARCHIVE@|$archive|" \
    -e "s|@SHA256@|$sha256|" kubectl-weft/krew/weft.yaml.in >"$out/weft.yaml"
printf '%s\n' "$out/weft.yaml" "$out/$archive"
