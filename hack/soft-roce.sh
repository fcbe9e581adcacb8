#!/usr/bin/env bash
# What `ib_write_bw` reaches over Soft-RoCE, the kernel's RDMA device in software: this machine's programs in a virtual machine
# with Debian's kernel, for which QEMU emulates two processors. Client and server run in it together.
#
#   hack/soft-roce.sh BYTES...    for each size of a write a line: BYTES, and GB/s (10^9 bytes)
#   hack/soft-roce.sh --fetch     nothing but the kernel, into the cache: the benchmark has no network
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

if [ $# = 0 ]; then
    echo "usage: hack/soft-roce.sh --fetch | BYTES..." >&2
    exit 2
fi
package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p')
kernel=${package#linux-image-}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
image=$cache/$package
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ ! -d "$image" ]; then
    echo "soft-roce: fetching $package (70 MB, once)" >&2
    # As root: apt's own user cannot write to the folder.
    (cd "$scratch" && apt-get -o APT::Sandbox::User=root download -qq "$package") >&2
    dpkg-deb --extract "$scratch"/*.deb "$scratch/image"
    depmod --basedir "$scratch/image" "$kernel"
    mkdir -p "$cache"
    mv "$scratch/image" "$image"
fi
if [ "$1" = --fetch ]; then exit; fi

root=$scratch/root
mkdir -p "$root"/{bin,proc,sys,dev,etc/libibverbs.d,modules}
# install_program PROGRAM: with the libraries that it names.
install_program() {
    local file
    for file in "$1" $(ldd "$1" | grep -o '/[^ ]*'); do install -D -m 755 "$file" "$root$file"; done
}
install -m 755 "$(command -v busybox)" "$root/bin/busybox"
for program in ib_write_bw rdma ip; do install_program "$(command -v "$program")"; done
install_program "$(find /usr/lib/*/libibverbs -name 'librxe-rdmav*.so' | head -n 1)"
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
# modprobe does not name the first, without which no device can be made.
for module in crc32_generic rdma_rxe veth; do
    modprobe --dirname "$image" --set-version "$kernel" --show-depends "$module" | cut -d' ' -f2
done >"$scratch/modules"
while read -r module; do cp "$module" "$root/modules/"; done <"$scratch/modules"
{
    cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
INIT
    while read -r module; do echo "insmod /modules/${module##*/}"; done <"$scratch/modules"
    cat <<INIT
IP=$(command -v ip)
\$IP link set lo up
\$IP link add v0 mtu 9000 type veth peer name v1 mtu 9000
\$IP addr add 10.0.0.1/24 dev v0
\$IP link set v0 up
\$IP link set v1 up
rdma link add rxe0 type rxe netdev v0
for bytes in $*; do
    ib_write_bw -d rxe0 -x 1 -s \$bytes -n 1000 --report_gbits >/dev/null &
    # It listens at its port, 18515.
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do usleep 100000; done
    ib_write_bw -d rxe0 -x 1 -s \$bytes -n 1000 --report_gbits 127.0.0.1 | sed -n "s/^ *\$bytes  */result \$bytes /p"
    wait
done
echo finished
poweroff -f
INIT
} >"$root/init"
chmod 755 "$root/init"
(cd "$root" && find . | cpio --quiet --create --format newc | gzip -1) >"$scratch/initramfs"

status=0
timeout 300 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nographic -no-reboot -nodefaults -serial stdio \
    -kernel "$image/boot/vmlinuz-$kernel" -initrd "$scratch/initramfs" -append "console=ttyS0 quiet panic=-1" \
    </dev/null >"$scratch/said" 2>&1 || status=$?
if ! grep -q '^finished' "$scratch/said"; then
    echo "soft-roce: the virtual machine did not finish (qemu ended with $status). It said:" >&2
    tail -n 20 "$scratch/said" >&2
    exit 1
fi
awk '/result / { sub(/.*result /, ""); print $1, $4 / 8 }' "$scratch/said"
