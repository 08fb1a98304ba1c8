#!/usr/bin/env bash
# foreign.sh - file systems of other programs: evfs mount beside the kernel's loop mount and the programs that
# mount the same image on FUSE.
#
#   foreign.sh run >> rows.tsv       measure; progress on stderr. Rows may be measured in several runs
#   foreign.sh report rows.tsv       Markdown: medians of paired ratios with exact intervals
#
# Settings are variables of the environment:
#   FORMATS  ext4 squashfs iso fat (all)
#   ROWS     seq         read a file of SIZE MiB, in pieces of 1 MiB; per MiB
#            find        names and attributes of all FILES files (find -printf %s); per file
#            small       read all FILES files of 500 to 10,000 bytes, in 20 directories; per file
#            Each row is measured twice: `first` on a fresh mount, `again` after the kernel has dropped its pages
#            and names, so that a program answers from a cache of its own, if it has one
#   ROUNDS   number of the last measured round (6), and FIRST that of the first (1), for runs in pieces
#   SIZE     MiB of the large file (64); FILES number of small ones (2000)
#   WORK     folder in memory for the images
#   BEFORE   a command that servers and clients are run by, such as "chrt -r 5"
#   EVFS, PAIRED   the programs
#
# How: each image is made once, in memory, so that no row measures a disk. A round takes each format through its
# targets next to each other, in an order that turns and is mirrored from round to round: evfs, the kernel where
# /proc/filesystems has the format, and fuse2fs, squashfuse or fuseiso where they are installed. A target that
# is missing is named on stderr and has no rows.
#
# Needs root, mkfs.ext4, mksquashfs, xorriso, mkfs.vfat, mcopy.
set -euo pipefail
export LC_ALL=C
FORMATS=${FORMATS:-ext4 squashfs iso fat} ROWS=${ROWS:-seq find small}
ROUNDS=${ROUNDS:-6} FIRST=${FIRST:-1} SIZE=${SIZE:-64} FILES=${FILES:-2000} BEFORE=${BEFORE:-} RUN_MAX_S=${RUN_MAX_S:-60}
WORK=${WORK:-/dev/shm/evfs-foreign}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# ---- images ---------------------------------------------------------------------------------------------
tree() {
  local n at
  mkdir -p "$WORK/tree"; dd if=/dev/urandom of="$WORK/tree/large" bs=1M count="$SIZE" status=none
  for ((n = 0; n < FILES; n++)); do
    at=$WORK/tree/dir$((n % 20)); [ -d "$at" ] || mkdir "$at"
    head -c $((500 + n * 7919 % 9500)) /dev/urandom > "$at/small file $n"
  done
}
image() { # FORMAT
  local i=$WORK/$1.img
  case $1 in
    ext4) truncate -s $((SIZE + 128))M "$i"; mkfs.ext4 -q -F -O '^has_journal' -d "$WORK/tree" "$i" ;;
    squashfs) mksquashfs "$WORK/tree" "$i" -quiet -no-progress -comp zstd ;;
    iso) xorriso -as mkisofs -quiet -R -o "$i" "$WORK/tree" ;;
    fat) truncate -s $((SIZE + 128))M "$i"; mkfs.vfat "$i"; mcopy -s -Q -i "$i" "$WORK/tree"/* :: ;;
    *) die "no format $1" ;;
  esac >> "$WORK/images.log" 2>&1 || die "cannot make $1; see $WORK/images.log"
}

# ---- targets --------------------------------------------------------------------------------------------
kernel_name() { case $1 in iso) echo iso9660 ;; fat) echo vfat ;; *) echo "$1" ;; esac; }
peer() { case $1 in ext4) echo fuse2fs ;; squashfs) echo squashfuse ;; iso) echo fuseiso ;; esac; }
targets() { # FORMAT
  local p; p=$(peer "$1"); echo evfs
  if grep -qw "$(kernel_name "$1")" /proc/filesystems; then echo kernel; else say "this kernel has no $(kernel_name "$1")"; fi
  if [ -z "$p" ]; then :; elif command -v "$p" > /dev/null; then echo "$p"; else say "$p is not installed"; fi
}
evfs() { EVFS_KEYS_DIR=$WORK/keys EVFS_RUN_DIR=$WORK/run in_group server "$EVFS" "$@" >> "$WORK/evfs.log" 2>&1; }
start() { # FORMAT TARGET: leaves it mounted at $WORK/at
  local i=$WORK/$1.img
  case $2 in
    evfs) evfs mount "$i" "$WORK/at" --name foreign --read-only --background ;;
    kernel) mount -o loop,ro -t "$(kernel_name "$1")" "$i" "$WORK/at" ;;
    fuse2fs) in_group server fuse2fs -o ro "$i" "$WORK/at" >> "$WORK/fuse.log" 2>&1 ;;
    squashfuse | fuseiso) in_group server "$2" "$i" "$WORK/at" >> "$WORK/fuse.log" 2>&1 ;;
  esac
  await "$2" "mountpoint -q $WORK/at"
}
stop() {
  local n; for n in 1 2 3 4 5; do umount "$WORK/at" 2> /dev/null && break; sleep 0.2; done
  for n in $(seq 100); do [ -n "$(cat "${GROUP[server]}/cgroup.procs")" ] || break; sleep 0.05; done
}
clean_up() { ! mountpoint -q "$WORK/at" || stop; groups_down; rm -rf "$WORK"; }

# ---- rows: each prints the number of operations, or of MiB, that it has done ----------------------------
client() { in_group client timeout "$RUN_MAX_S" "$@"; }
work() { # ROW
  case $1 in
    seq) client dd if="$WORK/at/large" of=/dev/null bs=1M status=none; echo "$SIZE" ;;
    find) [ "$(client find "$WORK/at" -name 'small*' -printf '%s\n' | wc -l)" = "$FILES" ]; echo "$FILES" ;;
    small) client find "$WORK/at" -name 'small*' -exec cat {} + > /dev/null; echo "$FILES" ;;
    *) die "no row $1" ;;
  esac
}
one() { # ROUND FORMAT TARGET WHEN ROW
  local t0 t1 c0 c1 s0 s1 did
  s0=$(cpu_us server) c0=$(cpu_us client) t0=$(date +%s%N)
  did=$(work "$5") || { printf '%s\t%s-%s-%s\t%s\t-\t-\t-\n' "$1" "$2" "$5" "$4" "$3"; return; }
  t1=$(date +%s%N) s1=$(cpu_us server) c1=$(cpu_us client)
  # round, row, target, operations, seconds, CPU of server and client in us for each operation
  awk -v r="$1" -v row="$2-$5-$4" -v t="$3" -v n="$did" -v ns=$((t1 - t0)) -v us=$((s1 - s0 + c1 - c0)) \
    'BEGIN { printf "%s\t%s\t%s\t%d\t%.6f\t%.3f\n", r, row, t, n, ns / 1e9, us / n }'
}
run() {
  [ "$(id -u)" = 0 ] || die 'run as root'
  local tool; for tool in mkfs.ext4 mksquashfs xorriso mkfs.vfat mcopy; do command -v $tool > /dev/null || die "$tool is missing"; done
  [ -x "$EVFS" ] || die "no $EVFS; cargo build --release -p evfs makes it"
  mkdir -p "$WORK/at" "$WORK/keys" "$WORK/run"; chmod 700 "$WORK/keys" "$WORK/run"
  groups_up; group server; group client
  trap 'r=$?; clean_up; exit $r' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
  local f t r n row list; local -A of=()
  tree; for f in $FORMATS; do image "$f"; of[$f]=$(targets "$f" | tr '\n' ' '); done
  echo "# $(uname -r), $(nproc) CPUs, load $(cut -d' ' -f1-3 /proc/loadavg) at the start, $SIZE MiB and $FILES files"
  for ((r = FIRST; r <= ROUNDS; r++)); do
    for f in $FORMATS; do
      read -ra list <<< "${of[$f]}"; n=${#list[@]}
      for ((t = 0; t < n; t++)); do
        # turned by the round, and mirrored in every second one
        local k=$(((t + r) % n)); [ $((r % 2)) = 0 ] || k=$((n - 1 - k))
        say "round $r: $f, ${list[k]}"
        start "$f" "${list[k]}"
        for row in $ROWS; do one "$r" "$f" "${list[k]}" first "$row"; done
        for row in $ROWS; do echo 3 > /proc/sys/vm/drop_caches; one "$r" "$f" "${list[k]}" again "$row"; done
        stop
      done
    done
  done
  echo "# load $(cut -d' ' -f1-3 /proc/loadavg) at the end"
}

# Pairs (other, evfs) of each row, as PAIRED reads them: operations per second, and CPU for each
report() {
  local rows=$1 t
  [ -r "$rows" ] || die "cannot read $rows"
  sed -n 's/^# //p' "$rows" | sort -u | sed 's/^/- /'
  echo "- Runs that failed and are left out: $(awk -F'\t' '!/^#/ && $4 == "-"' "$rows" | wc -l)"
  for t in $(awk -F'\t' '!/^#/ && $3 != "evfs" && !s[$3]++ {print $3}' "$rows"); do
    printf '\n### evfs (B) against %s (A)\n\n' "$t"
    awk -F'\t' -v other="$t" '
      /^#/ || $4 == "-" { next }
      { if (!k[$2]++) keys[++nk] = $2; v[$2, $1, $3] = $4 / $5 " " $6; if ($1 > last) last = $1 }
      END { split("each/s CPU-us", what, " ")
        for (q = 1; q <= 2; q++) for (i = 1; i <= nk; i++) for (r = 1; r <= last; r++) {
          if (!((keys[i], r, "evfs") in v) || !((keys[i], r, other) in v)) continue
          split(v[keys[i], r, other], a, " "); split(v[keys[i], r, "evfs"], b, " ")
          if (a[q] + 0 > 0 && b[q] + 0 > 0) print keys[i] "/" what[q], a[q], b[q] } }' "$rows" | $PAIRED
  done
}

case ${1:-} in
  run) run ;;
  report) [ $# = 2 ] || usage; report "$2" ;;
  *) usage ;;
esac
