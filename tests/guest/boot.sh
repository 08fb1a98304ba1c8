#!/usr/bin/env bash
# Boots a stock Debian kernel under qemu, runs one script in it as root, and powers off.
#
#   boot.sh CACHE SCRIPT [FILE]...
#
# SCRIPT is for busybox's sh. Each FILE lies in the guest's /bin, programs with the shared libraries
# that they have here. What SCRIPT prints is printed, and its exit code is the exit code; 124: it took
# too long; 125: something is missing, or the guest died, and its last words are on standard error.
#
# The guest has three processors in two NUMA nodes (0 and 2, and 1) at distance 30, the kernel's
# drivers for ext4 and NBD, and finds the loopback of this machine at 10.0.2.2. Nothing is installed
# and no root is needed: the kernel comes from the configured Debian archive, once, into CACHE.
#
# EVFS_GUEST_ACCEL: qemu's accelerator, if it is to be another than emulation.
# EVFS_GUEST_SECONDS: how long the guest may take.
set -euo pipefail

# With what they depend on. What a kernel has built in is not among its modules.
MODULES="virtio_pci virtio_net crc32c_generic ext4 nbd"

die() { echo "boot.sh: $*" >&2; exit 125; }

# What only a fresh list of packages has is found with a list of our own.
apt_lists() {
  lists=(-o "Dir::State::lists=$cache/lists" -o "Dir::Cache=$cache/apt" -o APT::Sandbox::User=root)
  mkdir -p "$cache/lists/partial" "$cache/apt/archives/partial"
  apt-get -qq "${lists[@]}" update >&2 || die "apt-get update failed"
}

# The package of the kernel that Debian's own points to.
kernel_package() {
  apt-cache "${lists[@]}" depends linux-image-amd64 2> /dev/null |
    sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*-amd64\)$/\1/p' | head -n 1
}

download() {
  local package
  package=$(kernel_package)
  [ -n "$package" ] && (cd "$1" && apt-get -qq "${lists[@]}" download "$package" >&2)
}

# Puts a module into $new/modules behind what it depends on; the numbers are the order of loading.
module() {
  local file needs need
  file=$(find "$new/x" -name "${1//[-_]/[-_]}.ko*" | head -n 1)
  case $file in
    '') return ;;
    *.xz) xz -d "$file" && file=${file%.xz} ;;
    *.ko) ;;
    *) die "$file: compressed in a way that this script does not know" ;;
  esac
  [ -z "$(find "$new/modules" -name "*-${file##*/}")" ] || return 0
  needs=$(grep -ao 'depends=[A-Za-z0-9_,-]*' "$file" | head -n 1) || :
  needs=${needs#depends=}
  for need in ${needs//,/ }; do module "$need"; done
  number=$((number + 1))
  cp "$file" "$new/modules/$(printf %02d "$number")-${file##*/}"
}

# Fills $kernel with vmlinuz and numbered modules, whole or not at all.
fetch_kernel() {
  local new=$cache/kernel.new number=0 name
  lists=(-o APT::Sandbox::User=root)
  rm -rf "$new"
  mkdir -p "$new/x" "$new/modules"
  download "$new" || { apt_lists; download "$new"; } ||
    die "the configured package archives have no linux-image-amd64; this needs Debian's"
  dpkg-deb -x "$new"/*.deb "$new/x"
  cp "$new"/x/boot/vmlinuz-* "$new/vmlinuz"
  for name in $MODULES; do module "$name"; done
  for name in virtio_net ext4 nbd; do
    [ -n "$(find "$new/modules" -name "*-$name.ko")" ] || die "the kernel package has no module $name"
  done
  rm -rf "$new/x" "$new"/*.deb "$cache/lists" "$cache/apt" "$kernel"
  mv "$new" "$kernel"
}

# Puts a file into the guest's /bin, and what it is linked with where it is here.
add() {
  local library
  cp -L "$1" "$tree/bin/"
  { ldd "$1" 2> /dev/null || :; } | sed -n 's|^[^/]*\(/[^ ]*\) (.*|\1|p' | while read -r library; do
    mkdir -p "$tree$(dirname "$library")"
    cp -Ln "$library" "$tree$library"
  done
}

[ $# -ge 2 ] || die "usage: boot.sh CACHE SCRIPT [FILE]..."
PATH=$PATH:/usr/sbin:/sbin
for program in qemu-system-x86_64 busybox cpio xz apt-get dpkg-deb setpriv flock; do
  command -v "$program" > /dev/null || die "$program is missing; cargo xtask setup installs it"
done
mkdir -p "$1"
cache=$(cd "$1" && pwd)
script=$2
shift 2
kernel=$cache/kernel-$(echo "$MODULES" | cksum | cut -d ' ' -f 1)

exec 9> "$cache/lock"
flock 9
[ -e "$kernel/vmlinuz" ] || fetch_kernel
exec 9>&-

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"/{bin,dev,proc,sys,mnt,tmp,run,var/run,etc}
cp -r "$kernel/modules" "$tree/modules"
for file in "$(command -v busybox)" "$@"; do add "$file"; done
cp "$script" "$tree/script"
cat > "$tree/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin 2> /dev/null
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
stty -F /dev/ttyS1 raw
(
  set -e
  for module in /modules/*; do insmod "$module"; done
  ip link set lo up
  ip addr add 10.0.2.15/24 dev eth0
  ip link set eth0 up
  ip route add default via 10.0.2.2
  exec sh /script
) < /dev/null > /dev/ttyS1 2>&1
echo "boot.sh: the script ended: $?" > /dev/ttyS1
poweroff -f
INIT
chmod 755 "$tree/init"
# busybox links its commands over nothing: a program that was added stays.
(cd "$tree" && find . | cpio --quiet -o -H newc -R 0:0) > "$work/initrd"

seconds=${EVFS_GUEST_SECONDS:-180}
code=0
# A clock that emulation does not bend: without tsc=unstable time in the guest runs ahead under load.
setpriv --pdeathsig TERM timeout -k 5 "$seconds" qemu-system-x86_64 \
  -accel "${EVFS_GUEST_ACCEL:-tcg,thread=multi}" -cpu Westmere,+rdrand -machine q35,graphics=off \
  -nodefaults -no-user-config -display none -monitor none -no-reboot \
  -m 512 -smp 3,sockets=3,cores=1,threads=1 \
  -object memory-backend-ram,id=m0,size=256M -numa node,nodeid=0,memdev=m0,cpus=0,cpus=2 \
  -object memory-backend-ram,id=m1,size=256M -numa node,nodeid=1,memdev=m1,cpus=1 \
  -numa dist,src=0,dst=1,val=30 -numa dist,src=1,dst=0,val=30 \
  -netdev user,id=n0 -device virtio-net-pci,netdev=n0,romfile= \
  -serial "file:$work/console" -serial "file:$work/printed" \
  -kernel "$kernel/vmlinuz" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=-1 \
    mitigations=off nokaslr audit=0 tsc=unstable random.trust_cpu=on cryptomgr.notests net.ifnames=0" \
  < /dev/null > "$work/qemu" 2>&1 || code=$?

ended=$(sed -n 's/^boot\.sh: the script ended: \([0-9]*\)$/\1/p' "$work/printed" 2> /dev/null || :)
grep -v '^boot\.sh: the script ended: ' "$work/printed" || :
[ -z "$ended" ] || exit "$ended"
{
  cat "$work/qemu"
  tail -n 30 "$work/console" || :
} >&2
[ "$code" != 124 ] || { echo "boot.sh: not done after $seconds s" >&2; exit 124; }
die "the guest ended without a result (qemu: $code)"
