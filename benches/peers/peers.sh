#!/usr/bin/env bash
# peers.sh - the exports of EVFS beside those of other encrypting block servers, on one disk.
#
#   peers.sh run > rows.tsv          measure; progress on stderr
#   peers.sh report rows.tsv         Markdown: medians of paired ratios with exact intervals
#
# Settings are variables of the environment:
#   TARGETS  evfs        an EVFS volume, AES-256-XTS, sectors of 4096 bytes unless EVFS_CREATE says otherwise
#            qsd-luks    qemu-storage-daemon over LUKS1, aes-256-xts (it has no LUKS2)
#            qsd-raw     qemu-storage-daemon without encryption
#            nbdkit-luks nbdkit, file plugin and luks filter over LUKS1, aes-256-xts (no LUKS2)
#            nbdkit-raw  nbdkit, file plugin alone
#   EXPORTS  nbd: fio's nbd engine on a Unix socket; fuse: fio psync with O_DIRECT on the exported
#            file (nbdkit through nbdfuse)
#   JOBS     WORKLOAD-JOBSxDEPTH, blocks of 64 KiB: sr, sw, rr, rw are sequential and random reads and
#            writes; depth above 1 is left out on fuse, where psync has none
#   BASE     the target that the report compares with each other one (evfs)
#   ROUNDS   measured rounds (10); one more goes before and is not counted
#   SIZE     MiB moved by a job, all its processes together, each block once (1024)
#   WORK     folder on the disk under test; about (SIZE + 64 MiB) * targets are used, and given back
#   EVFS     the program; EVFS_CREATE, EVFS_ATTACH, QSD_FILE, NBDKIT, NBDFUSE: further options of each
#   PAIRED   the command that turns pairs into a table
#
# How: all servers of an export run at the same time and idle while another one is measured. A round
# takes each job through all targets, next to each other, in an order that turns and is mirrored from round
# to round; runs of one job in one round are a pair. Data is random. Writes end in a flush, inside the
# timed part. The page cache of the backing file is dropped before each run.
#
# Columns: CPU is in seconds for each GiB: of the server (for nbdkit on fuse with its nbdfuse), and of
# server and fio together, less what an idle fio costs. Threads that io_uring makes count as the
# server's; kernel threads that serve everybody count nowhere. device/asked is what the disk moved for
# each byte asked: far below 1, the page cache answered (nbdkit's file plugin cannot go past it).
# A run that fails has - in its columns and the reason at the end; the report leaves it out and says so.
#
# Needs root, and fio, qemu-storage-daemon, qemu-img, nbdkit, nbdfuse, jq as the targets want them.
set -euo pipefail
export LC_ALL=C
TARGETS=${TARGETS:-evfs qsd-luks nbdkit-luks qsd-raw nbdkit-raw}
EXPORTS=${EXPORTS:-nbd fuse}
JOBS=${JOBS:-sr-1x1 sw-1x1 rr-1x1 rw-1x1 sr-1x10 sw-1x10 rr-1x10 rw-1x10 sr-10x1 sw-10x1 rr-10x1 rw-10x1}
BASE=${BASE:-evfs} ROUNDS=${ROUNDS:-10} SIZE=${SIZE:-1024} RUN_MAX_S=${RUN_MAX_S:-120}
WORK=${WORK:-${TMPDIR:-/var/tmp}/evfs-peers}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
EVFS_CREATE=${EVFS_CREATE:-} EVFS_ATTACH=${EVFS_ATTACH:-}
QSD_FILE=${QSD_FILE:-cache.direct=on,aio=io_uring} NBDKIT=${NBDKIT:-} NBDFUSE=${NBDFUSE:--C 4}
PASSPHRASE=correct-horse-battery

# ---- the disk under WORK ------------------------------------------------------------------------------
disk_sectors() { # prints sectors read and written so far; nothing where the file system has no disk of its own
  local dev; dev=$(stat -c %d "$WORK"); dev=$((dev >> 8)):$((dev & 255))
  awk -v d="$dev" '$1 ":" $2 == d {print $6, $10}' /proc/diskstats
}
drop_cache() { sync "$1"; dd if="$1" iflag=nocache count=0 status=none; }

# ---- servers ------------------------------------------------------------------------------------------
declare -A AT=() BACK=()      # where a target is reached now; its backing file
PIDS=() FUSES=() EVFS_UP=
# in the background, inside the group of a target; no function between & and exec, so that $! is it
serve() { # TARGET COMMAND...
  local g=${GROUP[$1]} log=$WORK/$1.log; shift
  ( echo "$BASHPID" > "$g/cgroup.procs"; exec "$@" ) < /dev/null >> "$log" 2>&1 & PIDS+=($!)
}
# luks1 FILE. The shortest key derivation, because nbdkit repeats it for each connection and it would count
# as CPU of the job. qemu-img now and then fails with "Unable to get accurate CPU usage": again
luks1() {
  local n
  for n in 1 2 3 4 5; do
    qemu-img create -q -f luks --object secret,id=s,data=$PASSPHRASE -o key-secret=s,cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64,iter-time=1 \
      "$1" "${SIZE}M" 2>> "$WORK/luks.log" && return
  done
  die "qemu-img create failed; see $WORK/luks.log"
}
evfs() { EVFS_KEYS_DIR=$WORK/data EVFS_RUN_DIR=$WORK/run in_group evfs "$EVFS" "$@"; }
make_backing() { # TARGET: once for all exports
  local t=$1 b=$WORK/$1.img; BACK[$t]=$b
  case $t in
    *-raw) ;;
    *-luks) luks1 "$b" ;;
    evfs) mkdir -p "$WORK/data" "$WORK/run"; chmod 700 "$WORK/run"
      truncate -s $((SIZE + 64))M "$b"
      evfs key generate peers --no-passphrase > "$WORK/evfs.log" 2>&1 || die "evfs key generate failed; see $WORK/evfs.log"
      # shellcheck disable=SC2086
      evfs volume create "$b" --owner peers --key-bits 256 $EVFS_CREATE >> "$WORK/evfs.log" 2>&1 || die "evfs volume create failed; see $WORK/evfs.log" ;;
    *) die "no target $t" ;;
  esac
  fallocate -l $((SIZE + 64))MiB "$b"
}
start() { # TARGET EXPORT: sets AT
  local t=$1 e=$2 s=$WORK/$1.sock x=$WORK/$1.fuse b=${BACK[$1]}
  rm -f "$s"
  case $t in
    evfs) mkdir -p "$x"; EVFS_UP=1
      local way=(--nbd-unix "$s"); [ "$e" = nbd ] || way=(--fuse "$x")
      # shellcheck disable=SC2086
      evfs attach "$b" --direct --name peers "${way[@]}" --key peers --background $EVFS_ATTACH >> "$WORK/evfs.log" 2>&1 || die "evfs attach failed; see $WORK/evfs.log"
      if [ "$e" = nbd ]; then await evfs "[ -S $s ]"; AT[evfs]="nbd+unix:///peers?socket=$s"
      else await evfs "[ -e $x/peers ]"; AT[evfs]=$x/peers; fi ;;
    qsd-*) local layer=(--blockdev "driver=raw,node-name=r,file=f")
      [ "$t" = qsd-raw ] || layer=(--object "secret,id=s,data=$PASSPHRASE" --blockdev "driver=luks,node-name=r,file=f,key-secret=s")
      local way=(--nbd-server "addr.type=unix,addr.path=$s" --export "type=nbd,id=e,node-name=r,name=,writable=on")
      if [ "$e" = fuse ]; then : > "$x"; way=(--export "type=fuse,id=e,node-name=r,mountpoint=$x,writable=on,growable=off"); FUSES+=("$x"); fi
      serve "$t" qemu-storage-daemon --blockdev "driver=file,node-name=f,filename=$b,$QSD_FILE" "${layer[@]}" "${way[@]}"
      if [ "$e" = nbd ]; then await "$t" "[ -S $s ]"; AT[$t]="nbd+unix:///?socket=$s"
      else await "$t" "[ \$(stat -c %s $x) -gt 0 ]"; AT[$t]=$x; fi ;;
    nbdkit-*) local filter=() pass=()
      if [ "$t" = nbdkit-luks ]; then printf %s $PASSPHRASE > "$WORK/pass"; filter=(--filter=luks); pass=("passphrase=+$WORK/pass"); fi
      # shellcheck disable=SC2086
      serve "$t" nbdkit -f -U "$s" ${filter[@]+"${filter[@]}"} $NBDKIT file "$b" ${pass[@]+"${pass[@]}"}
      await "$t" "[ -S $s ]"; AT[$t]="nbd+unix:///?socket=$s"
      if [ "$e" = fuse ]; then mkdir -p "$x"
        # shellcheck disable=SC2086
        serve "$t" nbdfuse $NBDFUSE "$x" "${AT[$t]}"
        await "$t" "[ -e $x/nbd ]"; FUSES+=("$x"); AT[$t]=$x/nbd; fi ;;
  esac
}
stop_all() {
  local f p
  if [ -n "$EVFS_UP" ]; then evfs detach peers >> "$WORK/evfs.log" 2>&1 || say 'evfs detach failed'; EVFS_UP=; fi
  for f in ${FUSES[@]+"${FUSES[@]}"}; do umount "$f" 2>/dev/null || umount -l "$f" 2>/dev/null || :; done
  for p in ${PIDS[@]+"${PIDS[@]}"}; do kill "$p" 2>/dev/null || :; done
  # qemu-storage-daemon 7.2 can spin for ever once its FUSE export is gone
  [ ${#PIDS[@]} = 0 ] || { sleep 0.5; for p in "${PIDS[@]}"; do kill -9 "$p" 2>/dev/null || :; wait "$p" 2>/dev/null || :; done; }
  PIDS=() FUSES=()
}
clean_up() {
  local t; stop_all
  groups_down
  [ -n "${KEEP:-}" ] || for t in $TARGETS; do rm -rf "$WORK/$t.img" "$WORK/$t.sock" "$WORK/$t.fuse" "$WORK/pass"; done
}

# ---- jobs ------------------------------------------------------------------------------------------------
FIO_BASE_US=0
fio_() { # TARGET EXPORT DIRECTION JOBS DEPTH BLOCK: prints bytes, seconds, requests
  local t=$1 e=$2 rw=$3 jobs=$4 depth=$5 block=$6 part opts
  part=$((SIZE * 1024 / jobs / 1024 * 1024))k
  opts=(--name=j --rw="$rw" --bs="$block" --numjobs="$jobs" --iodepth="$depth" --size="$part" --io_size="$part" --offset_increment="$part"
    --group_reporting --randseed=1 --refill_buffers --thread --output-format=json)
  case $rw in *write) opts+=(--end_fsync=1) ;; esac
  if [ "$e" = nbd ]; then opts+=(--ioengine=nbd --uri="${AT[$t]}")
  else opts+=(--ioengine=psync --direct=1 --filename="${AT[$t]}" --allow_file_create=0); fi
  in_group fio timeout "$RUN_MAX_S" fio "${opts[@]}" 2> "$WORK/fio.err" | sed -n '/^{/,$p' > "$WORK/fio.json" || return 1
  jq -er '.jobs[0] | select(.error == 0) | (.read, .write) | select(.io_bytes > 0) | "\(.io_bytes) \(.runtime / 1000) \(.total_ios)"' "$WORK/fio.json"
}
rw_of() { case $1 in sr) echo read ;; sw) echo write ;; rr) echo randread ;; rw) echo randwrite ;; *) die "no workload $1" ;; esac; }
measure() { # ROUND EXPORT JOB TARGET
  local round=$1 e=$2 job=$3 t=$4 w shape rw c0 f0 d0 c1 f1 d1 did
  w=${job%%-*} shape=${job#*-}; rw=$(rw_of "$w")
  drop_cache "${BACK[$t]}"
  c0=$(cpu_us "$t") f0=$(cpu_us fio) d0=$(disk_sectors)
  if ! did=$(fio_ "$t" "$e" "$rw" "${shape%x*}" "${shape#*x}" 64k); then
    printf '%s\t%s\t%s\t%s\t-\t-\t-\t-\t-\t%s\n' "$round" "$e" "$job" "$t" "$(tail -1 "$WORK/fio.err" | tr '\t' ' ' | cut -c1-100)"; return
  fi
  c1=$(cpu_us "$t") f1=$(cpu_us fio) d1=$(disk_sectors)
  awk -v id="$round	$e	$job	$t" -v did="$did" -v d0="$d0" -v d1="$d1" -v w="$w" -v s=$((c1 - c0)) -v f=$((f1 - f0 - FIO_BASE_US)) '
    BEGIN { split(did, x, " "); split(d0, a, " "); split(d1, b, " "); gib = x[1] / 1073741824
      k = w ~ /w$/ ? 2 : 1; proof = d0 == "" ? "-" : sprintf("%.2f", (b[k] - a[k]) * 512 / x[1])
      printf "%s\t%.1f\t%.0f\t%.4f\t%.4f\t%s\t\n", id, x[1] / 1048576 / x[2], x[3] / x[2], s / 1e6 / gib, (s + f) / 1e6 / gib, proof }'
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
  echo "# $(uname -srm); $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(nproc) CPUs; file system $(stat -f -c %T "$WORK"); load $(cut -d' ' -f1 /proc/loadavg)"
  echo "# $(version fio --version); $(version qemu-storage-daemon --version); $(version nbdkit --version); $(version nbdfuse --version)"
  case $TARGETS in *evfs*) echo "# $(version "$EVFS" --version) $EVFS_CREATE $EVFS_ATTACH" ;; esac
  echo "# qemu-storage-daemon file: $QSD_FILE; nbdkit: ${NBDKIT:-defaults}; nbdfuse: $NBDFUSE; $SIZE MiB a job, $ROUNDS rounds; TARGETS='$TARGETS'"
  printf '#round\texport\tjob\ttarget\tMiB/s\tIOPS\tserver_cpu_s/GiB\tall_cpu_s/GiB\tdevice/asked\terror\n'
}
run() {
  local e t j r n
  [ "$(id -u)" = 0 ] || die 'run as root'
  mkdir -p "$WORK"; trap 'r=$?; clean_up; exit $r' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
  groups_up; group fio; for t in $TARGETS; do group "$t"; done
  header
  for n in 1 2 3; do in_group fio fio --name=j --thread --ioengine=null --size=4k --rw=read --output-format=json > /dev/null; done
  FIO_BASE_US=$(($(cpu_us fio) / n))
  for t in $TARGETS; do make_backing "$t"; done
  for e in $EXPORTS; do
    for t in $TARGETS; do
      start "$t" "$e"
      # so that no read meets a hole and no write allocates
      fio_ "$t" "$e" write 1 1 1M > /dev/null || die "$t: filling failed: $(tail -1 "$WORK/fio.err")"
    done
    for ((r = 0; r <= ROUNDS; r++)); do
      say "$e round $r of $ROUNDS"
      for j in $JOBS; do
        if [ "$e" = fuse ] && [ "${j##*x}" != 1 ]; then continue; fi
        for t in $(order "$r"); do measure "$r" "$e" "$j" "$t"; done
      done
    done
    stop_all
  done
}
# For each other target: pairs (other, BASE) of each export, job and quantity, as PAIRED reads them
report() {
  local rows=$1 t failed
  [ -r "$rows" ] || die "cannot read $rows"
  local others; others=$(awk -F'\t' -v b="$BASE" '!/^#/ && $4 != b && !s[$4]++ {print $4}' "$rows")
  [ -n "$others" ] || die "no rows of targets other than $BASE"
  sed -n 's/^# //p' "$rows" | sed 's/^/- /'
  failed=$(awk -F'\t' '!/^#/ && $5 == "-"' "$rows" | wc -l)
  echo "- Runs that failed and are left out: $failed"
  for t in $others; do
    printf '\n### %s (B) against %s (A)\n\nMiB/s: more is better; CPU seconds for each GiB: less is better; device: bytes that the disk moved for each byte asked.\n\n' "$BASE" "$t"
    awk -F'\t' -v base="$BASE" -v other="$t" '
      /^#/ || $1 == 0 || $5 == "-" || ($4 != base && $4 != other) { next }
      { key = $2 "/" $3; v[key, $1, $4] = $5 " " $7 " " $8 " " $9; if (!k[key]++) keys[++nk] = key; if ($1 > last) last = $1 }
      END { split("MiB/s server-CPU all-CPU device", what, " ")
        for (q = 1; q <= 4; q++) for (i = 1; i <= nk; i++) for (r = 1; r <= last; r++) {
          if (!((keys[i], r, base) in v) || !((keys[i], r, other) in v)) continue
          split(v[keys[i], r, other], a, " "); split(v[keys[i], r, base], b, " ")
          if (a[q] + 0 > 0 && b[q] + 0 > 0) print keys[i] "/" what[q], a[q], b[q] } }' "$rows" | $PAIRED
  done
}
case ${1:-} in
  run) run ;;
  report) report "${2:?rows.tsv}" ;;
  *) usage ;;
esac
