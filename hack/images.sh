#!/usr/bin/env bash
# Makes container images out of programs, with no daemon and no registry: archives that
# `make cluster-load-images` or `ctr images import` takes.
#
#   hack/images.sh OUT tools=PAUSE       OUT/tools.tar     weft.dev/tools:1: busybox, for tests
#   hack/images.sh OUT agent=PROGRAM     OUT/agent.tar     weft.dev/agent:VERSION
#   hack/images.sh OUT operator=PROGRAM  OUT/operator.tar  weft.dev/operator:VERSION, not root
#   hack/images.sh OUT devices=ENGINE    OUT/devices.tar   weft.dev/devices:VERSION: weft-engine, weft-device-plugin from the
#                                        folder where it was built, and what pods load, which is built
#   hack/images.sh OUT volumes=PROGRAM   OUT/volumes.tar   weft.dev/volumes:VERSION: weft-volume-driver
#   hack/images.sh OUT verbs=PAUSE       OUT/verbs.tar     weft.dev/verbs:1: busybox and this machine's programs of
#                                        rdma-core and perftest, for tests
#
# Several may be given at once. An image holds the program, the shared libraries that it asks for,
# and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -lt 2 ]; then
    echo "usage: hack/images.sh OUT tools=PAUSE|agent=PROGRAM|operator=PROGRAM|devices=ENGINE|volumes=PROGRAM|verbs=PAUSE..." >&2
    exit 2
fi
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Nobody, by the number that such images use by custom; a pod need not say runAsUser.
nobody=65532:65532
verbs_programs=(ibv_devices ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong
    ib_write_bw ib_send_bw ib_read_bw ib_write_lat)
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
rootless=()
if [ "$(id -u)" != 0 ]; then rootless=(--rootless); fi

# install_program PROGRAM ROOT PATH: with the libraries and the loader that it names.
install_program() {
    local library
    install -D -m 755 "$1" "$2$3"
    # A static program has none, which ldd says and takes for a failure.
    if ! ldd "$1" >"$scratch/libraries" 2>&1; then return; fi
    for library in $(grep -o '/[^ ]*' "$scratch/libraries"); do
        install -D -m 755 "$library" "$2$library"
    done
}

# image KIND NAME PROGRAM CONFIGURATION...
image() {
    local kind=$1 name=$2 program=$3 layout=$scratch/$1 root=$scratch/$1.bundle/rootfs
    shift 3
    umoci init --layout "$layout"
    umoci new --image "$layout:image"
    umoci unpack "${rootless[@]}" --image "$layout:image" "$scratch/$kind.bundle" >&2
    mkdir -p "$root/tmp"
    chmod 1777 "$root/tmp"
    case "$kind" in
        tools | verbs)
            install_program "$program" "$root" /pause
            install_program "$(command -v busybox)" "$root" /bin/busybox
            local applet
            for applet in $(busybox --list); do
                if [ "$applet" != busybox ]; then ln -s busybox "$root/bin/$applet"; fi
            done
            ;;&
        verbs)
            local verbs library
            # As every image with glibc has; programs of a newer one name none, and libraries of an older one do.
            for library in libpthread.so.0 libdl.so.2; do
                install -D -m 755 "$(cc -print-file-name="$library")" "$root/lib/$library"
            done
            for verbs in "${verbs_programs[@]}"; do
                install_program "$(command -v "$verbs")" "$root" "/usr/bin/$verbs"
            done
            ;;
        devices)
            local built libraries
            built=$(dirname "$program")
            libraries=$(hack/pod-libraries.sh)
            install_program "$program" "$root" /weft-engine
            install_program "$built/weft-device-plugin" "$root" /weft-device-plugin
            install -D -m 755 "$libraries/libweft_ibverbs.so" "$root/usr/lib/weft/libibverbs.so.1"
            install -D -m 755 "$libraries/libweft_rdmacm.so" "$root/usr/lib/weft/librdmacm.so.1"
            # The node runs it, with whatever C library it has.
            install -D -m 755 "$(hack/container-hook.sh)" "$root/usr/lib/weft/weft-container-hook"
            ;;
        agent | operator) install_program "$program" "$root" "/weft-$kind" ;;
        volumes) install_program "$program" "$root" /weft-volume-driver ;;
    esac
    umoci repack --image "$layout:image" "$scratch/$kind.bundle" >&2
    umoci config --image "$layout:image" "$@"
    rm -rf "$scratch/$kind.tar"
    skopeo --insecure-policy copy --quiet "oci:$layout:image" "docker-archive:$scratch/$kind.tar:$name"
    mv "$scratch/$kind.tar" "$out/$kind.tar"
    printf '%s %s\n' "$out/$kind.tar" "$name"
}

for given in "$@"; do
    program=${given#*=}
    if [ ! -x "$program" ]; then
        echo "images: $given: no such program; build it first" >&2
        exit 1
    fi
    case "$given" in
        tools=*) image tools weft.dev/tools:1 "$program" --config.entrypoint /pause \
            --config.env PATH=/bin ;;
        agent=*) image agent "weft.dev/agent:$version" "$program" --config.entrypoint /weft-agent ;;
        operator=*) image operator "weft.dev/operator:$version" "$program" --config.entrypoint /weft-operator \
            --config.user "$nobody" ;;
        devices=*) image devices "weft.dev/devices:$version" "$program" --config.entrypoint /weft-engine ;;
        volumes=*) image volumes "weft.dev/volumes:$version" "$program" --config.entrypoint /weft-volume-driver ;;
        verbs=*) image verbs weft.dev/verbs:1 "$program" --config.entrypoint /pause \
            --config.env PATH=/usr/bin:/bin ;;
        *) echo "images: $given: give tools=, agent=, operator=, devices=, volumes= or verbs=" >&2; exit 2 ;;
    esac
done
