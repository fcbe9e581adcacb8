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
#   hack/images.sh OUT prometheus=PROGRAM  OUT/prometheus.tar  weft.dev/prometheus:1, for tests
#   hack/images.sh OUT programs=PAUSE    OUT/programs.tar  weft.dev/programs:1: the same, and what this machine's packages of
#                                        UCX, libfabric, OpenMPI, Python, mpi4py and pyverbs hold, for tests
#
# Several may be given at once. An image holds the program, the shared libraries that it asks for,
# and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -lt 2 ]; then
    echo "usage: hack/images.sh OUT tools=PAUSE|agent=PROGRAM|operator=PROGRAM|devices=ENGINE|volumes=PROGRAM|verbs=PAUSE|programs=PAUSE|prometheus=PROGRAM..." >&2
    exit 2
fi
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Nobody, by the number that such images use by custom; a pod need not say runAsUser.
nobody=65532:65532
verbs_programs=(ibv_devices ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong
    ib_write_bw ib_send_bw ib_read_bw ib_write_lat)
# Of Debian. What they load by name at run time, the libraries that programs ask for do not say, but their packages do.
packages=(ibverbs-utils perftest rdmacm-utils ucx-utils libucx0 libfabric-bin openmpi-bin openmpi-common libopenmpi3 libpmix2
    python3-minimal python3.11-minimal libpython3.11-minimal libpython3.11-stdlib python3-mpi4py python3-pyverbs)
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

# install_packages ROOT: their files, and the libraries that these name. rdma-core's tests are among a package's documents.
install_packages() {
    local root=$1 path
    dpkg-query --listfiles "${packages[@]}" | sort -u | while read -r path; do
        case "$path" in
            /usr/share/doc/rdma-core/tests/*) ;;
            /usr/share/doc/* | /usr/share/man/* | /usr/share/lintian/* | /usr/include/*) continue ;;
        esac
        if [ ! -d "$path" ] || [ -L "$path" ]; then printf '%s\n' "$path"; fi
    done >"$scratch/files"
    tar --create --absolute-names --files-from "$scratch/files" | tar --extract --directory "$root" --absolute-names \
        --transform 's,^/,./,'
    # Debian compresses the longer ones.
    gunzip --recursive "$root/usr/share/doc/rdma-core/tests"
    # Debian chooses among several by links that no package has.
    ln -s mpirun.openmpi "$root/usr/bin/mpirun"
    local library
    find "$root" -type f \( -perm -100 -o -name '*.so*' \) -exec ldd {} \; >"$scratch/libraries" 2>&1
    grep -o '/[^ ]* (0x' "$scratch/libraries" | cut -d ' ' -f 1 | sort -u | while read -r library; do
        install -D -m 755 "$library" "$root$library"
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
        programs)
            # As Debian has them: packages name files by either.
            mkdir -p "$root"/usr/{bin,lib,lib64}
            ln -s usr/bin usr/lib usr/lib64 "$root"
            # MPI asks who its user is.
            printf 'user:x:1000:1000::/tmp:/bin/sh\n' | install -D -m 644 /dev/stdin "$root/etc/passwd"
            install_packages "$root"
            ;;&
        tools | verbs | programs)
            install_program "$program" "$root" /pause
            install_program "$(command -v busybox)" "$root" /bin/busybox
            local applet
            for applet in $(busybox --list); do
                if [ ! -e "$root/bin/$applet" ]; then ln -s busybox "$root/bin/$applet"; fi
            done
            ;;&
        verbs | programs)
            local library
            # As every image with glibc has; programs of a newer one name none, and libraries of an older one do.
            for library in libpthread.so.0 libdl.so.2; do
                install -D -m 755 "$(cc -print-file-name="$library")" "$root/lib/$library"
            done
            ;;&
        verbs)
            local verbs
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
        prometheus) install_program "$program" "$root" /prometheus ;;
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
        programs=*) image programs weft.dev/programs:1 "$program" --config.entrypoint /pause \
            --config.env PATH=/usr/bin:/bin ;;
        prometheus=*) image prometheus weft.dev/prometheus:1 "$program" --config.entrypoint /prometheus ;;
        *) echo "images: $given: give tools=, agent=, operator=, devices=, volumes=, verbs=, programs= or prometheus=" >&2; exit 2 ;;
    esac
done
