#!/usr/bin/env bash
# fs.sh - the mounted file system beside other encrypting ones, and beside ext4 on our own block export.
#
#   fs.sh run >> rows.tsv            measure; progress on stderr. Rows may be measured in several runs
#   fs.sh report rows.tsv            Markdown: medians of paired ratios with exact intervals
#
# Settings are variables of the environment:
#   TARGETS  clear       evfs mount of a file in the clear
#            evfs        evfs mount of an EVFS volume, AES-256-XTS
#            none, keyed like evfs, formatted with --no-checksums or --integrity; evfs has CRCs
#            ext4        ext4 on the loop device of evfs attach --loop, over a volume like that
#            btrfs, btrfs-xxhash, btrfs-blake2   btrfs on such a device, with that checksum (crc32c)
#            zfs, zfs-sha256   zfs-fuse on such a device, with that checksum (fletcher4)
#            gocryptfs, cryfs, securefs   with the ciphers and caches that they choose themselves
#   ROWS     postmark-small, postmark-large: Debian's postmark, FILES_SMALL files of 500 to 10000 bytes
#            or FILES_LARGE of 10 KB to 1 MB, as many transactions as files, reads and writes of 8 KB
#            mailmix     the same work as postmark-small, by EVFS's own
#            fio-RW-BS   sr, sw, rr, rw: sequential and random reads and writes of BS = 4k or 64k, on a
#                        file of SIZE MiB
#            dd-RW       w, o, r: dd writes, overwrites or reads such a file in 64k; before r, all caches are
#                        dropped. CPU without the start of fio
#            untar, rm   unpack and remove TREE, a tar file
#            million     so many empty files in one directory as FILES_DIR says or fit into DIR_MAX_S
#   BASES    the targets that the report compares with each other one (evfs clear)
#   ROUNDS   number of the last measured round (5), and FIRST that of the first (1), for runs in pieces;
#            one more goes before and is not counted, if WARM is set
#   WORK     folder on the disk under test; DISK MiB of it are used, and given back
#   FILL     if set, images of volumes are not sparse: no row waits for the allocation of blocks below
#   BEFORE   a command that servers and clients are run by, such as "chrt -r 5"
#   MKFS     more options of mkfs.ext4 for the target ext4: -N 1100000 for a million files
#   EVFS, MAILMIX, PAIRED   the programs
#
# How: everything lies on one ext4 on a loop device (direct I/O) over one file, so that a sync counts what was
# measured and nobody else's. All targets are mounted at the same time and idle while another is measured.
# A round takes each row through all targets next to each other, in an order that turns and is mirrored from
# round to round; runs of one row in one round are a pair. Seconds include the sync at the end: of the
# mount, then of the server where it has a verb for it (evfs cache flush), then of what lies
# below. Reads: the kernel has dropped its pages of the file (fio's invalidate), the caches of servers
# are as they are, except for dd.
#
# CPU: seconds of the server and of the client, with what the kernel does on their behalf; kernel threads (the
# loop device, write-back) count only in the column machine_cpu_us_each: all CPU time of the machine, by ticks. A run that fails has - in its columns and the reason at the end.
#
# Needs root, losetup, mkfs.ext4, fio, postmark, jq, python3, and gocryptfs, cryfs, securefs as wanted.
set -euo pipefail
export LC_ALL=C
TARGETS=${TARGETS:-clear evfs ext4 gocryptfs cryfs securefs}
ROWS=${ROWS:-postmark-small postmark-large mailmix fio-sw-64k fio-sr-64k fio-sr-4k fio-rr-4k fio-rr-64k fio-sw-4k fio-rw-4k fio-rw-64k untar rm}
BASES=${BASES:-evfs clear} ROUNDS=${ROUNDS:-5} FIRST=${FIRST:-1} WARM=${WARM-1} SIZE=${SIZE:-128} DISK=${DISK:-16384} IMAGE=${IMAGE:-4096}
FILES_SMALL=${FILES_SMALL:-3000} FILES_LARGE=${FILES_LARGE:-200} FILES_DIR=${FILES_DIR:-1000000} DIR_MAX_S=${DIR_MAX_S:-180}
TREE=${TREE:-} FILL=${FILL:-} MKFS=${MKFS:-} BEFORE=${BEFORE:-} RUN_MAX_S=${RUN_MAX_S:-240}
WORK=${WORK:-${TMPDIR:-/var/tmp}/evfs-fs}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
MAILMIX=${MAILMIX:-$REPO/target/release/examples/mailmix}
PASSWORD=correct-horse-battery
DISK_DIR=$WORK/disk

# ---- targets ------------------------------------------------------------------------------------------
declare -A MOUNTED=() ATTACHED=() LOOPS=()
evfs() { local g=$1; shift; EVFS_KEYS_DIR=$WORK/keys EVFS_RUN_DIR=$WORK/run in_group "$g" "$EVFS" "$@" >> "$WORK/$g.log" 2>&1; }
volume() { # TARGET FILE: an encrypted volume
  mkdir -p "$WORK/keys" "$WORK/run"; chmod 700 "$WORK/keys" "$WORK/run"
  [ -n "${KEY_MADE:-}" ] || evfs client key generate fs --no-passphrase; KEY_MADE=1
  truncate -s "${IMAGE}M" "$2"
  [ -z "$FILL" ] || head -c "${IMAGE}M" /dev/zero > "$2"
  evfs "$1" volume create "$2" --owner fs --key-bits 256
}
start() { # TARGET: leaves it mounted at $WORK/TARGET
  local t=$1 at=$WORK/$1 on=$DISK_DIR/$1; mkdir -p "$at"
  case $t in
    clear) truncate -s "${IMAGE}M" "$on"; mkdir -p "$WORK/run"; chmod 700 "$WORK/run"
      evfs $t format "$on" && evfs $t mount "$on" "$at" --name $t --background ;;
    evfs|none|keyed) local how=(); case $t in none) how=(--no-checksums) ;; keyed) how=(--integrity) ;; esac
      volume $t "$on" && evfs $t format "$on" --key fs "${how[@]}" && evfs $t mount "$on" "$at" --name $t --key fs --background ;;
    ext4|btrfs*|zfs*) volume $t "$on" && evfs $t attach "$on" --name $t --key fs --loop --background; ATTACHED[$t]=1
      await $t "[ -n \"\$(losetup -nO NAME,BACK-FILE | awk '/${t}\$/ && /run|evfs/ {print \$1}')\" ]"
      LOOPS[$t]=$(losetup -nO NAME,BACK-FILE | awk "/${t}\$/"' && /run|evfs/ {print $1}' | tail -1)
      on_loop $t "${LOOPS[$t]}" "$at" >> "$WORK/$t.log" 2>&1 ;;
    gocryptfs) mkdir "$on"; echo $PASSWORD > "$WORK/pass"; gocryptfs -q -init -passfile "$WORK/pass" "$on" >> "$WORK/$t.log" 2>&1
      in_group $t gocryptfs -q -passfile "$WORK/pass" "$on" "$at" >> "$WORK/$t.log" 2>&1 ;;
    cryfs) mkdir "$on"; echo $PASSWORD | CRYFS_FRONTEND=noninteractive CRYFS_LOCAL_STATE_DIR=$WORK/cryfs.state in_group $t cryfs "$on" "$at" >> "$WORK/$t.log" 2>&1 ;;
    securefs) mkdir "$on"; securefs create --pass $PASSWORD "$on" >> "$WORK/$t.log" 2>&1
      in_group $t securefs mount -b --pass $PASSWORD --log "$WORK/$t.log" "$on" "$at" >> "$WORK/$t.log" 2>&1 ;;
    *) die "no target $t" ;;
  esac
  await "$t" "mountpoint -q $at"; MOUNTED[$t]=1; mkdir -p "$at/work"
}
on_loop() { # TARGET DEVICE DIR: another file system on our block export
  local sum=${1#*-}; [ "$sum" != "$1" ] || sum=
  case $1 in
    ext4) mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $MKFS "$2"; mount "$2" "$3" ;;
    btrfs*) mkfs.btrfs -q --csum "${sum:-crc32c}" -d single -m single "$2"; mount -o noatime "$2" "$3" ;;
    zfs*) [ -e "$WORK/zfs.pid" ] || in_group $1 zfs-fuse -p "$WORK/zfs.pid"
      await $1 'zpool list'
      zpool create -f -m "$3" -O checksum="${sum:-fletcher4}" -O compression=off -O atime=off "$1" "$2" ;;
  esac
}
stop() { # TARGET
  local t=$1 n
  case $t in zfs*) zpool export "$t" || say "$t was not exported" ;; esac
  for n in 1 2 3 4 5; do umount "$WORK/$t" 2>/dev/null && break; sleep 0.5; done
  ! mountpoint -q "$WORK/$t" || umount -l "$WORK/$t" || :
  if [ -n "${ATTACHED[$t]:-}" ]; then evfs "$t" detach "$t" || say "$t was not detached"; fi
  for n in $(seq 300); do [ -n "$(cat "${GROUP[$t]}/cgroup.procs")" ] || break; sleep 0.1; done
}
DISK_LOOP=
disk_up() {
  mkdir -p "$DISK_DIR"; fallocate -l "${DISK}M" "$WORK/disk.img"
  DISK_LOOP=$(losetup --direct-io=on --show -f "$WORK/disk.img")
  mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$DISK_LOOP"; mount "$DISK_LOOP" "$DISK_DIR"
}
clean_up() {
  local t; for t in "${!MOUNTED[@]}"; do stop "$t"; done
  [ ! -e "$WORK/zfs.pid" ] || { kill "$(< "$WORK/zfs.pid")"; rm -f "$WORK/zfs.pid"; }
  umount "$DISK_DIR" 2>/dev/null || say "$DISK_DIR is still mounted"
  [ -z "$DISK_LOOP" ] || losetup -d "$DISK_LOOP" || :
  rm -rf "$WORK/disk.img" "$WORK/random" "$WORK/keys" "$WORK/run" "$WORK/cryfs.state"
  groups_down
}

# ---- rows: each prints the number of operations, or of MiB, that it has done ---------------------------------
client() { in_group client timeout "$RUN_MAX_S" "$@"; }
postmark_() { # DIR FILES LOW HIGH
  printf 'set %s\n' "location $1" "number $2" "transactions $2" "size $3 $4" 'read 8192' 'write 8192' 'buffering false' 'seed 42' > "$WORK/pm"
  printf 'run\nquit\n' >> "$WORK/pm"
  client postmark < "$WORK/pm" > "$WORK/client.out" 2>&1; ! grep -q Error "$WORK/client.out"; echo $(($2 * 2))
}
fio_() { # DIR RW BLOCK
  local rw; case $2 in sr) rw=read ;; sw) rw=write ;; rr) rw=randread ;; rw) rw=randwrite ;; esac
  local end=(); case $rw in *write) end=(--end_fsync=1) ;; esac
  client fio --name=j --filename="$1/fio" --rw=$rw --bs="$3" --size="${SIZE}M" --ioengine=psync --randseed=1 --refill_buffers \
    --thread "${end[@]}" --output-format=json > "$WORK/client.out" 2>&1
  sed -n '/^{/,$p' "$WORK/client.out" | jq -er '.jobs[0] | select(.error == 0) | .read.runtime + .write.runtime' > "$WORK/took"; echo "$SIZE"
}
dd_() { # DIR RW
  case $2 in
    w) client dd if="$WORK/random" of="$1/dd" bs=64k conv=fsync 2> /dev/null ;;
    o) client dd if="$WORK/random" of="$1/dd" bs=64k conv=fsync,notrunc 2> /dev/null ;;
    r) client dd if="$1/dd" of=/dev/null bs=64k 2> /dev/null ;;
  esac; echo "$SIZE"
}
million() { # DIR
  client python3 -c '
import os, sys, time
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); most, until = int(sys.argv[2]), time.time() + float(sys.argv[3]); n = 0
while n < most and (n & 255 or time.time() < until):
    os.close(os.open("file%07d" % n, os.O_CREAT | os.O_WRONLY, 0o644)); n += 1
print(n)' "$1/million" "$FILES_DIR" "$DIR_MAX_S"
}
mix() { printf 'set number %s\nset transactions %s\nset size 500 10000\nset read 8192\nset write 8192\n' "$2" "$2" > "$WORK/mm"; client "$MAILMIX" "$1" < "$WORK/mm" > "$WORK/client.out"; echo $(($2 * 2)); }
work() { # ROW DIR
  case $1 in
    postmark-small) postmark_ "$2" "$FILES_SMALL" 500 10000 ;;
    postmark-large) postmark_ "$2" "$FILES_LARGE" 10240 1048576 ;;
    mailmix) mix "$2" "$FILES_SMALL" ;;
    fio-*) local p=${1#fio-}; fio_ "$2" "${p%%-*}" "${p#*-}" ;;
    dd-*) dd_ "$2" "${1#dd-}" ;;
    untar) client tar xf "$TREE" -C "$2"; echo "$TREE_FILES" ;;
    rm) client rm -r "$2/$TREE_TOP"; echo "$TREE_FILES" ;;
    million) million "$2" ;;
    *) die "no row $1" ;;
  esac
}
settle() { # TARGET: everything durable
  sync -f "$WORK/$1"
  case $1 in gocryptfs|cryfs|securefs) ;; *) evfs "$1" cache flush "$1" ;; esac
  sync -f "$DISK_DIR"
}
drop() { # TARGET: nothing of it is in memory but what its server keeps for itself
  sync -f "$WORK/$1"
  case $1 in zfs*) zpool export "$1"; zpool import -d /dev "$1" ;; esac
  echo 3 > /proc/sys/vm/drop_caches
  case $1 in gocryptfs|cryfs|securefs) ;; *) evfs "$1" cache drop "$1" ;; esac
}
machine_us() { awk -v hz="$(getconf CLK_TCK)" '$1 == "cpu" {printf "%.0f\n", ($2 + $3 + $4 + $7 + $8) * 1000000 / hz}' /proc/stat; }
measure() { # ROUND ROW TARGET
  local round=$1 row=$2 t=$3 dir=$WORK/$3/work c0 f0 m0 c1 f1 m1 t0 t1 did took
  settle "$t"; rm -f "$WORK/took"
  # One server of ZFS has all its pools.
  case $t in zfs*) echo "$(< "$WORK/zfs.pid")" > "${GROUP[$t]}/cgroup.procs" ;; esac
  case $row in dd-w) rm -f "$dir/dd"; settle "$t" ;; dd-r) drop "$t" ;; esac
  m0=$(machine_us) c0=$(cpu_us "$t") f0=$(cpu_us client) t0=$(date +%s%N)
  if ! did=$(work "$row" "$dir" 2> "$WORK/client.err"); then
    printf '%s\t%s\t%s\t-\t-\t-\t-\t%s\t-\n' "$round" "$row" "$t" "$(tail -1 "$WORK/client.err" | tr '\t' ' ' | cut -c1-100)"; return
  fi
  case $row in fio-*|dd-r) ;; *) settle "$t" ;; esac
  t1=$(date +%s%N) c1=$(cpu_us "$t") f1=$(cpu_us client) m1=$(machine_us)
  took=$(((t1 - t0) / 1000)); [ ! -e "$WORK/took" ] || took=$(($(< "$WORK/took") * 1000))
  awk -v id="$round	$row	$t" -v n="$did" -v us="$took" -v s=$((c1 - c0)) -v f=$((f1 - f0)) -v m=$((m1 - m0)) '
    BEGIN { printf "%s\t%s\t%.4f\t%.3f\t%.3f\t\t%.3f\n", id, n, us / 1e6, s / n, (s + f) / n, m / n }'
}
# the targets in the order of a round: turned by one every two rounds, mirrored in every second one
order() { # ROUND
  local all i n; read -ra all <<< "$TARGETS"; n=${#all[@]}
  for ((i = 0; i < n; i++)); do
    if [ $(($1 % 2)) = 0 ]; then echo "${all[(i + $1 / 2) % n]}"; else echo "${all[(n - 1 - i + $1 / 2) % n]}"; fi
  done
}
version() { "$@" 2>/dev/null | head -1 || :; }
header() {
  echo "# $(date -u +%F); $(uname -srm); $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(nproc) CPUs; load $(cut -d' ' -f1 /proc/loadavg)"
  echo "# $(version "$EVFS" --version); $(version gocryptfs -version); $(version cryfs --version); securefs $(dpkg-query -f '${Version}' -W securefs 2>/dev/null || :); $(version fio --version)"
  echo "# TARGETS='$TARGETS' ROWS='$ROWS' BEFORE='$BEFORE'; $ROUNDS rounds; SIZE=$SIZE FILES_SMALL=$FILES_SMALL FILES_LARGE=$FILES_LARGE; the tree has $TREE_FILES names"
  printf '#round\trow\ttarget\tdone\tseconds\tserver_cpu_us_each\tall_cpu_us_each\terror\tmachine_cpu_us_each\n'
}
round() { # ROUND
  local j t
  for j in $ROWS; do
    say "round $1 of $ROUNDS: $j"
    for t in $(order "$1"); do measure "$1" "$j" "$t"; done
  done
}
run() {
  local t r
  [ "$(id -u)" = 0 ] || die 'run as root'
  TREE_FILES=0 TREE_TOP=
  case " $ROWS " in *' untar '*) [ -r "$TREE" ] || die 'TREE is no tar file that can be read'
    TREE_FILES=$(tar tf "$TREE" | wc -l); TREE_TOP=$(tar tf "$TREE" | head -1 | cut -d/ -f1 || :) ;; esac
  mkdir -p "$WORK"; rm -rf "$WORK/keys" "$WORK/run" "$WORK/cryfs.state" "$WORK"/*.log
  trap 'r=$?; clean_up; exit $r' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
  groups_up; group client; for t in $TARGETS; do group "$t"; done
  disk_up; header
  case " $ROWS" in *' dd-'*) head -c "${SIZE}M" /dev/urandom > "$WORK/random" ;; esac
  for t in $TARGETS; do say "start $t"; start "$t"; done
  # The file for the reads; and whoever takes memory for a cache at its first use has it now.
  for t in $TARGETS; do fio_ "$WORK/$t/work" sw 1M > /dev/null || die "$t: filling failed"; settle "$t"; done
  if [ -n "$WARM" ]; then round 0; fi
  for ((r = FIRST; r <= ROUNDS; r++)); do round "$r"; done
}
# For each other target: pairs (other, base) of each row and quantity, as PAIRED reads them
report() {
  local rows=$1 t b
  [ -r "$rows" ] || die "cannot read $rows"
  sed -n 's/^# //p' "$rows" | sort -u | sed 's/^/- /'
  echo "- Runs that failed and are left out: $(awk -F'\t' '!/^#/ && $4 == "-"' "$rows" | wc -l)"
  for b in $BASES; do
    for t in $(awk -F'\t' -v b="$b" '!/^#/ && $3 != b && !s[$3]++ {print $3}' "$rows"); do
      printf '\n### %s (B) against %s (A)\n\n' "$b" "$t"
      awk -F'\t' -v base="$b" -v other="$t" '
        /^#/ || $1 == "0" || $4 == "-" || ($3 != base && $3 != other) { next }
        { key = $2; v[key, $1, $3] = $4 / $5 " " $6 " " $7 " " $9; if (!k[key]++) keys[++nk] = key; if ($1 > last) last = $1 }
        END { split("each/s server-CPU-us all-CPU-us machine-CPU-us", what, " ")
          for (q = 1; q <= 4; q++) for (i = 1; i <= nk; i++) for (r = 1; r <= last; r++) {
            if (!((keys[i], r, base) in v) || !((keys[i], r, other) in v)) continue
            split(v[keys[i], r, other], a, " "); split(v[keys[i], r, base], b, " ")
            if (a[q] + 0 > 0 && b[q] + 0 > 0) print keys[i] "/" what[q], a[q], b[q] } }' "$rows" | $PAIRED
    done
  done
}
case ${1:-} in
  # A namespace of mounts of our own: whoever makes one meanwhile would keep our mounts alive.
  run) [ -n "${APART:-}" ] || APART=1 exec unshare --mount --propagation private "$0" run; run ;;
  report) report "${2:?rows.tsv}" ;;
  *) usage ;;
esac
