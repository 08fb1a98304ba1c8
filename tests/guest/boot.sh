#!/usr/bin/env bash
# Boots a stock Debian kernel under qemu, runs one script in it as root, and powers off; or, with
# --root, boots a whole system with its own init.
#
#   boot.sh [OPTION]... SCRIPT [FILE]...
#   boot.sh --root IMAGE [OPTION]... SCRIPT [FILE]...
#   boot.sh --fetch [--cache DIR] [--kernel PACKAGE]
#
#   --root IMAGE        image of an ext4 file system with a system, which is /dev/vda and changes
#   --disk IMAGE        one more disk: /dev/vda, or with --root /dev/vdb; may be repeated
#   --kernel PACKAGE    the package of the kernel, or one that depends on it (linux-image-amd64)
#   --modules 'NAME..'  kernel modules that are loaded before SCRIPT starts, with what they depend on
#   --share DIR         a folder of this machine that is the guest's /share, for both to write
#   --cpus N            processors (2)
#   --numa N            NUMA nodes, 20 apart, that the processors are dealt to in turn (no NUMA)
#   --memory N          MiB of memory (512)
#   --words 'WORD..'    more words for the kernel's command line
#   --printed FILE      a file for what the guest prints, from the first line on
#   --seconds N         how long the guest may take (600)
#   --cache DIR         where the kernel is kept (target/guest of this tree)
#   --fetch             fetch the kernel and start nothing
#
# SCRIPT is for busybox's sh. Each FILE lies in the guest's /bin, a program with the shared libraries
# that it has here. The guest finds the loopback of this machine at 10.0.2.2. For example:
#
#   boot.sh --modules 'crc32c_generic ext4 nbd' --share /tmp/data script.sh /usr/sbin/nbd-client
#   boot.sh --kernel linux-image-6.12-amd64 --modules ublk_drv script.sh target/release/evfs
#   boot.sh --modules 'pcbc fcrypt kafs' script.sh
#   boot.sh --root debian.qcow2 --disk data.img --share /tmp/files prepare.sh
#
# With --root, SCRIPT runs before the init of the system and prepares it. It finds the system at /root
# and the share at /root/share, where the system has both, too. The console of the system, /dev/ttyS0,
# is standard input and output; a program of the system that writes to /dev/ttyS1 prints. The system
# has to power itself off, or to restart, which ends the guest as well; then the exit code is 0.
# Images whose names end in .qcow2 have that format, others are raw.
#
# What SCRIPT prints, on either stream, is printed when the guest has ended, and its exit code is the
# exit code. 124: it took too long. 125: something is missing, or the guest died; why, or its last
# words, is on standard error.
#
# No root is needed and nothing is installed: the package is downloaded from the configured archives,
# once, and stays the same until it is deleted from the cache. Processors are emulated, whatever this
# machine has, so a guest shows what a kernel does and never how fast.
set -euo pipefail

# To reach the loopback and the share. What a module does not name in its list of dependencies, as
# ext4 does not name its checksum, is for the caller to name before it.
BASE_MODULES="virtio_pci virtio_net 9pnet_virtio 9p"
# For disks, and to reach a system.
DISK_MODULES="virtio_blk"
ROOT_MODULES="crc32c_generic ext4"

die() { echo "boot.sh: $*" >&2; exit 125; }

usage() { echo "usage: boot.sh [OPTION]... SCRIPT [FILE]..., see its first lines" >&2; exit 125; }

# ---- the kernel ----

# The package that holds the kernel: the one asked for, or the one that it points to.
image_package() {
  local image
  image=$(apt-cache "${apt[@]}" depends "$package" 2> /dev/null |
    sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
  echo "${image:-$package}"
}

# Puts the package into the folder $1.
download() { (cd "$1" && apt-get -qq "${apt[@]}" download "$(image_package)" >&2); }

# Fetches $folder/kernel.deb, whole or not at all. The lists of packages of this machine may be missing
# or too old, and are not ours to change: then fresh ones are read beside the kernel.
fetch() {
  local lists=$new/lists
  echo "boot.sh: fetching $package, once" >&2
  mkdir -p "$lists/partial" "$new/apt/archives/partial"
  apt=(-o APT::Sandbox::User=root -o Acquire::Retries=3)
  if ! download "$new" 2> /dev/null; then
    apt+=(-o "Dir::State::lists=$lists" -o "Dir::Cache=$new/apt")
    # One archive of several that does not answer is no reason to stop.
    apt-get -qq "${apt[@]}" update >&2 || :
    download "$new" || die "the package archives of this machine do not give $package (Debian's do)"
  fi
  rm -rf "$lists" "$new/apt" "$folder"
  mv "$new"/*.deb "$new/kernel.deb"
  mv "$new" "$folder"
}

# Puts the module $1 into $new/modules behind what it depends on; the numbers are the order of loading.
add_module() {
  local name=${1//[-_]/[-_]} file needs need
  file=$(find "$new/x" -name "$name.ko" -o -name "$name.ko.xz" | head -n 1)
  if [ -z "$file" ]; then
    find "$new/x" -name modules.builtin -exec grep -q "/$name\.ko$" {} + ||
      die "$package has no module $1"
    return 0
  fi
  case $file in *.xz) xz -d "$file" && file=${file%.xz} ;; esac
  [ -z "$(find "$new/modules" -name "*-${file##*/}")" ] || return 0
  needs=$(grep -ao 'depends=[A-Za-z0-9_,-]*' "$file" | head -n 1) || :
  needs=${needs#depends=}
  for need in ${needs//,/ }; do add_module "$need"; done
  number=$((number + 1))
  cp "$file" "$new/modules/$(printf %03d "$number")-${file##*/}"
}

# Fills $booted with vmlinuz and the modules, whole or not at all.
unpack() {
  local number=0 name
  mkdir -p "$new/x" "$new/modules"
  dpkg-deb -x "$folder/kernel.deb" "$new/x"
  cp "$new"/x/boot/vmlinuz-* "$new/vmlinuz" || die "$folder/kernel.deb holds no kernel"
  for name in $modules; do add_module "$name"; done
  rm -rf "$new/x"
  mv "$new" "$booted"
}

# ---- the guest ----

# Puts a file into the guest's /bin, and the libraries that it is linked with where they are here.
add() {
  local library
  cp -L "$1" "$tree/bin/"
  { ldd "$1" 2> /dev/null || :; } | sed -n 's|^[^/]*\(/[^ ]*\) (.*|\1|p' | while read -r library; do
    mkdir -p "$tree$(dirname "$library")"
    cp -Ln "$library" "$tree$library"
  done
}

# Busybox puts its commands beside the programs that were added and over none of them. A file /system
# is there if a system is to be started.
write_init() {
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
  share=/share
  if [ -e /system ]; then
    mount -t ext4 /dev/vda /root
    share=/root/share
  fi
  if [ -d /share ]; then
    mkdir -p $share
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none share $share
  fi
  exec sh /script
) < /dev/null > /dev/ttyS1 2>&1
code=$?
if [ -e /system ] && [ $code = 0 ]; then
  for dir in dev proc sys; do mount --move /$dir /root/$dir; done
  exec switch_root /root /sbin/init
fi
echo $code > /dev/ttyS2
poweroff -f
INIT
  chmod 755 "$tree/init"
}

# Says the words that make qemu's machine have `--numa` nodes.
numa_arguments() {
  local node other cpu words
  for ((node = 0; node < numa; node++)); do
    words=node,nodeid=$node,memdev=m$node
    for ((cpu = node; cpu < cpus; cpu += numa)); do words+=,cpus=$cpu; done
    echo -object "memory-backend-ram,id=m$node,size=$((memory / numa))M" -numa "$words"
  done
  for ((node = 0; node < numa; node++)); do
    for ((other = 0; other < numa; other++)); do
      [ "$node" = "$other" ] || echo -numa "dist,src=$node,dst=$other,val=20"
    done
  done
}

# Adds a disk to $more. No flush reaches the disk of this machine: a guest's data has to survive the
# guest, not this machine.
add_disk() {
  local format=raw
  case $1 in *.qcow2) format=qcow2 ;; esac
  more+=(-drive "if=none,id=disk$number,format=$format,cache=unsafe,file=${1//,/,,}")
  more+=(-device "virtio-blk-pci,drive=disk$number")
  number=$((number + 1))
}

# ---- what was typed ----

package=linux-image-amd64 modules='' share='' cpus=2 numa=0 seconds=600 fetch_only=''
root='' disks=() memory=512 words='' printed=''
cache=$(dirname "$0")/../../target/guest
while [ $# -gt 0 ]; do
  case $1 in
    --fetch) fetch_only=1 && shift && continue ;;
    --*) [ $# -ge 2 ] || usage ;;
    *) break ;;
  esac
  case $1 in
    --kernel) package=$2 ;;
    --root) root=$2 ;;
    --disk) disks+=("$2") ;;
    --modules) modules=$2 ;;
    --share) share=$2 ;;
    --cpus) cpus=$2 ;;
    --numa) numa=$2 ;;
    --memory) memory=$2 ;;
    --words) words=$2 ;;
    --printed) printed=$2 ;;
    --seconds) seconds=$2 ;;
    --cache) cache=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[ -n "$fetch_only" ] || [ $# -ge 1 ] || usage
[ -z "$share" ] || [ -d "$share" ] || die "no such folder: $share"
for disk in ${root:+"$root"} "${disks[@]}"; do [ -e "$disk" ] || die "no such image: $disk"; done
[ "$(uname -m)" = x86_64 ] || die "this machine's programs have to run in the guest: x86-64 only"
PATH=$PATH:/usr/sbin:/sbin
for program in qemu-system-x86_64 busybox cpio xz apt-get dpkg-deb setpriv flock; do
  command -v "$program" > /dev/null || die "$program is missing; cargo xtask setup installs it"
done

modules="$BASE_MODULES${root:+ $DISK_MODULES $ROOT_MODULES}${modules:+ $modules}"
[ -n "$root" ] || [ ${#disks[@]} = 0 ] || modules+=" $DISK_MODULES"

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
folder=$cache/$package
booted=$folder/$(echo "$modules" | cksum | cut -d ' ' -f 1)
exec 9> "$cache/lock"
flock 9
# What an attempt that failed has left goes first.
new=$cache/new
rm -rf "$new"
[ -e "$folder/kernel.deb" ] || fetch
[ -z "$fetch_only" ] || exit 0
[ -e "$booted" ] || unpack
exec 9>&-

script=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"/{bin,dev,proc,sys,mnt,tmp,run,var/run,etc}
[ -z "$share" ] || mkdir "$tree/share"
[ -z "$root" ] || { mkdir "$tree/root" && touch "$tree/system"; }
cp -r "$booted/modules" "$tree/modules"
cp "$script" "$tree/script"
for file in "$(command -v busybox)" "$@"; do add "$file"; done
write_init
(cd "$tree" && find . | cpio --quiet -o -H newc -R 0:0) > "$work/initrd"

read -ra more < <(numa_arguments | tr '\n' ' ') || :
# A comma in a name is written twice.
[ -z "$share" ] || more+=(-virtfs "local,path=${share//,/,,},mount_tag=share,security_model=none")
number=0
for disk in ${root:+"$root"} "${disks[@]}"; do add_disk "$disk"; done
: > "${printed:=$work/printed}"

# Emulation under load makes the kernel misjudge clocks: the time stamp counter, by which time would
# run ahead in the guest (tsc=unstable), and the timer, without whose ticks it gives up (no_timer_check).
machine() {
  setpriv --pdeathsig TERM timeout "${attached[@]}" -k 5 "$seconds" qemu-system-x86_64 \
    -accel tcg,thread=multi -cpu Westmere,+rdrand -machine q35 \
    -nodefaults -no-user-config -display none -monitor none -no-reboot \
    -m "$memory" -smp "$cpus,sockets=$cpus,cores=1,threads=1" "${more[@]}" \
    -netdev user,id=n0 -device virtio-net-pci,netdev=n0,romfile= \
    "${console[@]}" -serial "file:${printed//,/,,}" -serial "file:$work/ended" \
    -kernel "$booted/vmlinuz" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=-1 \
      mitigations=off nokaslr audit=0 tsc=unstable no_timer_check random.trust_cpu=on \
      cryptomgr.notests net.ifnames=0 $words"
}

code=0
if [ -n "$root" ]; then
  # A program in the background could not read from a terminal.
  attached=(--foreground)
  console=(-chardev "stdio,id=console,signal=off,logfile=$work/console" -serial chardev:console)
  machine 2> "$work/qemu" || code=$?
else
  attached=()
  console=(-serial "file:$work/console")
  machine < /dev/null > "$work/qemu" 2>&1 || code=$?
fi

cd "$work"
touch console ended
case $printed in "$work"/*) cat "$printed" ;; esac
ended=$(tr -dc 0-9 < ended)
[ -z "$ended" ] || exit "$ended"
[ -z "$root" ] || [ "$code" != 0 ] || exit 0
{ cat qemu && tail -n 30 console; } >&2
[ "$code" != 124 ] || { echo "boot.sh: not done after $seconds s" >&2; exit 124; }
die "the guest ended without a result (qemu: $code)"
