#!/usr/bin/env bash
# One path beside several: runs that are interleaved, one JSON line each, and tables of them.
#
#   paths.sh scale > runs/paths-scale.jsonl        one, two and four paths, by legacy and persistent name
#   paths.sh policies > runs/paths-policies.jsonl  policies on equal, unequal and late paths
#   paths.sh peers > runs/paths-peers.jsonl        unshaped, beside fio, qemu-img bench and iscsi-perf
#   paths.sh stall > runs/paths-stall.jsonl        how long I/O stands still when a path goes
#   paths.sh table FILE                            medians, least and most of each label
#   paths.sh ratio FILE FIELD A B                  median of B / A over the rounds, least and most
#
# Variables: ROUNDS (6) measured rounds; SECONDS_EACH (2.5) of each run; RATE (160) Mbit/s of a path of
# two, half of it of a path of four; SIZE (256) MiB of the image; WORK (/dev/shm/evfs-paths) where it
# and the sockets are; QD (32) requests in flight; CASES: of `policies`, all by default; NICE (0) of servers and
# clients, below 0 where others use the processors.
#
# How: one image, and a qemu-nbd for each path. For `scale` and `policies` they run in a network
# namespace behind one shaped link each (netns.sh); for the others they listen on a Unix socket, and a tgtd
# on loopback. A round takes all configurations, in an order that turns and is mirrored from round to
# round. server_cpu and busy_cpus say whether processors, not paths, were the limit: what is left of
# busy_cpus beside own_cpus and server_cpus is the kernel's network threads and whoever else uses the machine.
#
# Needs root, ip, tc, qemu-nbd, qemu-img, jq; fio, tgt and libiscsi-bin for `peers`.
set -euo pipefail
export LC_ALL=C
ROUNDS=${ROUNDS:-6} EACH=${SECONDS_EACH:-2.5} RATE=${RATE:-160} SIZE=${SIZE:-256} QD=${QD:-32}
WORK=${WORK:-/dev/shm/evfs-paths} NICE=${NICE:-0}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BIN=${BIN:-$REPO/target/release} NETNS=$HERE/netns.sh
WWID=naa.5000c500a1b2c3d4 IQN=iqn.2026-01.org.evfs.bench:disk
POLICIES='round_robin least_cmd_load service_time predicted_finish'
CASES=${CASES:-equal-4k equal-mix unequal-4k unequal-mix late-qd8 late-qd32}
PIDS=() SPACES= TGTD=

die() { echo "paths.sh: $*" >&2; exit 1; }
say() { echo "paths.sh: $*" >&2; }
clean_up() {
  local p
  for p in ${PIDS[@]+"${PIDS[@]}"}; do kill "$p" 2> /dev/null || :; done
  if [ -n "$TGTD" ]; then tgtadm -C "$TGTD" --op delete --mode target --tid 1 --force > /dev/null 2>&1 || :; fi
  sleep 0.2
  for p in ${PIDS[@]+"${PIDS[@]}"}; do kill -9 "$p" 2> /dev/null || :; wait "$p" 2> /dev/null || :; done
  [ -z "$SPACES" ] || "$NETNS" down || :
  rm -rf "$WORK"
}
begin() {
  [ "$(id -u)" = 0 ] || die 'run as root'
  local tool
  for tool in qemu-nbd qemu-img jq "$@"; do command -v "$tool" > /dev/null || die "$tool is missing"; done
  [ -x "$BIN/examples/paths" ] || die "no $BIN/examples/paths; cargo build --release -p evfs-multipath --examples makes it"
  [ "$NICE" = 0 ] || renice -n "$NICE" $$ > /dev/null
  trap 'r=$?; clean_up; exit $r' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
  mkdir -p "$WORK"
  # random, because a server answers a read of a hole with a few bytes
  dd if=/dev/urandom of="$WORK/image" bs=1M count="$SIZE" status=none
}
nbd() { # OPTIONS...: becomes the server
  exec qemu-nbd -x '' --shared=0 -t -D "wwid=$WWID" "$@" --image-opts "driver=raw,file.driver=file,file.locking=off,file.filename=$WORK/image"
}
await() { # WHAT COMMAND...
  local n=0 what=$1; shift
  until "$@" > /dev/null 2>&1; do n=$((n + 1)); [ $n -lt 200 ] || die "$what does not come up"; sleep 0.05; done
}
spaces() { # PATHS
  local p
  SPACES=1; "$NETNS" up "$1" "$RATE"
  export -f nbd; export WORK WWID
  for ((p = 1; p <= $1; p++)); do
    "$NETNS" server bash -c 'nbd "$@"' nbd -b "10.77.$p.1" -p 10809 > /dev/null 2>> "$WORK/log" < /dev/null & PIDS+=($!)
  done
  for ((p = 1; p <= $1; p++)); do
    await "the server of path $p" "$NETNS" client bash -c "exec 3<> /dev/tcp/10.77.$p.1/10809"
  done
}
sockets() { # COUNT
  local p
  for ((p = 1; p <= $1; p++)); do
    (nbd -k "$WORK/$p.sock") > /dev/null 2>> "$WORK/log" < /dev/null & PIDS+=($!)
    await "server $p" [ -S "$WORK/$p.sock" ]
  done
}
RATES=() SETUP=
rates() { local p=1 r; RATES=("$@"); for r in "$@"; do "$NETNS" rate $p "$r"; p=$((p + 1)); done; }
alive() { local p; for p in "${PIDS[@]}"; do kill -0 "$p" 2> /dev/null || return 1; done; }
# runs the command, again if a server went while it ran: somebody else ended it, and the run says nothing
guarded() { # COMMAND...
  local n p
  for n in 1 2 3; do
    if "$@" > "$WORK/line" && alive; then cat "$WORK/line"; return; fi
    ! alive || die 'a run failed'
    say 'a server was ended from outside; all start again, and so does the run'
    for p in "${PIDS[@]}"; do kill "$p" 2> /dev/null || :; done
    PIDS=(); $SETUP; rates "${RATES[@]}"
  done
  die "servers do not stay; tried $n times"
}
all_pids() { local IFS=,; echo "${PIDS[*]}"; }
# the configurations in the order of a round: turned by one every two rounds, mirrored in every second one
order() { # ROUND NAMES...
  local r=$1 n=$(($# - 1)) i; shift; local all=("$@")
  for ((i = 0; i < n; i++)); do
    if [ $((r % 2)) = 0 ]; then echo "${all[(i + r / 2) % n]}"; else echo "${all[(n - 1 - i + r / 2) % n]}"; fi
  done
}
uris() { local p; for ((p = 1; p <= $1; p++)); do echo "nbd://10.77.$p.1"; done; }
shaped() { # LABEL ROUND OPTIONS...
  local label=$1 round=$2; shift 2
  guarded shaped_ "$label" "$round" "$@"
}
shaped_() { # LABEL ROUND OPTIONS...
  local label=$1 round=$2; shift 2
  "$NETNS" client "$BIN/examples/paths" --label "$label" --round "$round" --seconds "$EACH" --servers "$(all_pids)" --interfaces evc- "$@"
}

scale() {
  begin ip tc; SETUP='spaces 4'; $SETUP
  local r c rw options size
  for ((r = 1; r <= ROUNDS; r++)); do
    say "scale, round $r of $ROUNDS"
    for c in $(order "$r" 2-one 2-legacy 2-persistent 4-one 4-legacy 4-persistent); do
      local n=${c%%-*} rate=$((RATE * 2 / ${c%%-*}))
      rates $rate $rate $rate $rate
      case $c in *-one) options='--legacy c0t0d0 --no-leg-mpath' ;; *-legacy) options='--legacy c0t0d0' ;; *) options= ;; esac
      for rw in read write read-64k; do
        case $rw in read) size='--mix 4' ;; write) size='--mix 4 --write-percent 100' ;; *) size='--mix 64' ;; esac
        case $n-$rw in 2-read-64k) continue ;; esac
        # shellcheck disable=SC2046,SC2086
        shaped "$c-$rw" "$r" --qd "$QD" $size $options $(uris "$n")
      done
    done
  done
}

spaces_and_proxy() {
  spaces 2
  "$NETNS" client "$BIN/evfs-pathsim" run --listen 127.0.0.1:10810 --upstream 10.77.2.1:10809 delay=5 > /dev/null 2>> "$WORK/log" < /dev/null &
  PIDS+=($!)
  await 'the proxy' "$NETNS" client bash -c 'exec 3<> /dev/tcp/127.0.0.1/10810'
}
policies() {
  begin ip tc
  [ -x "$BIN/evfs-pathsim" ] || die "no $BIN/evfs-pathsim; cargo build --release -p evfs-pathsim makes it"
  SETUP=spaces_and_proxy; $SETUP
  local r c p half=$((RATE / 2)) mix qd second
  for ((r = 1; r <= ROUNDS; r++)); do
    say "policies, round $r of $ROUNDS"
    for c in $CASES; do
      mix=4 qd=$QD second=nbd://10.77.2.1
      case $c in unequal-*) rates $half "$RATE" ;; *) rates "$half" "$half" ;; esac
      case $c in *-mix) mix=4,8,16 ;; late-qd8) qd=8 ;; esac
      case $c in late-*) second=nbd://127.0.0.1:10810 ;; esac
      # shellcheck disable=SC2086
      for p in $(order "$r" $POLICIES); do
        shaped "$c/$p" "$r" --qd $qd --mix $mix --policy "$p" nbd://10.77.1.1 $second
      done
    done
  done
}

local_() { # LABEL ROUND OPTIONS...
  local label=$1 round=$2; shift 2
  "$BIN/examples/paths" --label "$label" --round "$round" --seconds "$EACH" --servers "$(all_pids)" --qd "$QD" "$@"
}
# processor seconds of a command, user and system, of the whole process
timed() { local TIMEFORMAT='%R %U %S'; { time "$@" > "$WORK/out" 2>&1; } 2> "$WORK/time" || die "$1 failed: $(tail -1 "$WORK/out")"; }
line() { # LABEL ROUND IOPS CPU_SECONDS IOS
  jq -nc --arg l "$1" --argjson r "$2" --argjson i "$3" --argjson c "$4" --argjson n "$5" \
    '{label: $l, round: $r, iops: ($i | round), cpu_us_per_io: ($c * 1e6 / $n), iops_per_core: ($n / $c | round)}'
}
fio_() { # LABEL ROUND
  fio --name=j --thread --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/1.sock" --rw=randread --bs=4k --iodepth="$QD" --time_based \
    --norandommap --ramp_time=0.5 --runtime="$EACH" --output-format=json 2>> "$WORK/log" | sed -n '/^{/,$p' > "$WORK/fio"
  # of the thread that does the work alone; fio's others are not counted
  jq -c --arg l "$1" --argjson r "$2" '.jobs[0] | (.read.iops) as $i | ((.usr_cpu + .sys_cpu) / 100) as $c |
    {label: $l, round: $r, iops: ($i | round), cpu_us_per_io: ($c * 1e6 / $i), iops_per_core: ($i / $c | round)}' "$WORK/fio"
}
qemu_img() { # LABEL ROUND: reads blocks in order, because it knows no other way
  local count=120000 base
  timed qemu-img bench -f raw -c 1 -d 1 -s 4096 "nbd+unix:///?socket=$WORK/1.sock"
  base=$(awk '{print $2 + $3}' "$WORK/time")
  timed qemu-img bench -f raw -c $count -d "$QD" -s 4096 -S 4096 "nbd+unix:///?socket=$WORK/1.sock"
  line "$1" "$2" "$(awk -v n=$count '/Run completed/ {print n / $4}' "$WORK/out")" "$(awk -v b="$base" '{print $2 + $3 - b}' "$WORK/time")" $count
}
iscsi_perf() { # LABEL ROUND
  local seconds=${EACH%.*} iops
  timed iscsi-perf -r -m "$QD" -b 8 -t "$seconds" "iscsi://127.0.0.1:13260/$IQN/1"
  iops=$(tr '\r' '\n' < "$WORK/out" | sed -n 's/.*iops average \([0-9]*\).*/\1/p' | tail -1)
  line "$1" "$2" "$iops" "$(awk '{print $2 + $3}' "$WORK/time")" "$(awk -v i="$iops" '{print i * $1}' "$WORK/time")"
}
peers() {
  begin fio tgtd tgtadm iscsi-perf; sockets 1
  TGTD=13260
  tgtd -f -C $TGTD --iscsi portal=127.0.0.1:13260 > /dev/null 2>> "$WORK/log" < /dev/null & PIDS+=($!)
  await tgtd tgtadm -C $TGTD --op show --mode target
  tgtadm -C $TGTD --op new --mode target --tid 1 -T $IQN
  tgtadm -C $TGTD --op new --mode logicalunit --tid 1 --lun 1 -b "$WORK/image"
  tgtadm -C $TGTD --op bind --mode target --tid 1 -I ALL
  local r c u="nbd+unix:///?socket=$WORK/1.sock" i="iscsi://127.0.0.1:13260/$IQN/1"
  for ((r = 1; r <= ROUNDS; r++)); do
    say "peers, round $r of $ROUNDS"
    for c in $(order "$r" nbd-lun nbd-bare nbd-fio); do
      case $c in *-fio) fio_ "$c" "$r" ;; *-lun) local_ "$c" "$r" "$u" ;; *) local_ "$c" "$r" --bare "$u" ;; esac
    done
    for c in $(order "$r" seq-lun seq-bare seq-qemu-img); do
      case $c in *-img) qemu_img "$c" "$r" ;; *-lun) local_ "$c" "$r" --sequential "$u" ;; *) local_ "$c" "$r" --sequential --bare "$u" ;; esac
    done
    for c in $(order "$r" iscsi-lun iscsi-bare iscsi-perf); do
      case $c in *-perf) iscsi_perf "$c" "$r" ;; *-lun) local_ "$c" "$r" "$i" ;; *) local_ "$c" "$r" --bare "$i" ;; esac
    done
  done
}

stall() { begin; sockets 2; "$BIN/examples/stall" --rounds "${ROUNDS_OF_STALL:-50}" "$WORK/1.sock" "$WORK/2.sock"; }

MEDIAN='def med: sort | if length == 0 then null elif length % 2 == 1 then .[length / 2 | floor] else (.[length / 2] + .[length / 2 - 1]) / 2 end;
  def num: if . == null then "" elif . >= 1000 then (round | tostring) elif . >= 10 then (. * 10 | round / 10 | tostring) else (. * 1000 | round / 1000 | tostring) end;'
table() { # FILE
  if jq -es 'any(.[]; has("stall_us"))' "$1" > /dev/null; then
    echo '| fault | rounds | p50 ms | p99 ms | max ms | longest I/O before, p50 ms | after, max ms |'; echo '|---|---|---|---|---|---|---|'
    jq -rs "$MEDIAN"' group_by(.label)[] | (map(.stall_us // 5e6) | sort) as $s |
      "| \(.[0].label) | \(length) | \($s | med / 1000 | num) | \($s[($s | length * 0.99 | ceil) - 1] / 1000 | num) | \($s[-1] / 1000 | num) | \(map(.worst_before_us) | med / 1000 | num) | \(map(.worst_after_us) | max / 1000 | num) |"' "$1"
    return
  fi
  echo '| label | runs | IOPS, median | least to most | MB/s | p50 us | p99 us | CPU us/I/O | IOPS/core | own + server of busy CPUs |'
  echo '|---|---|---|---|---|---|---|---|---|---|'
  jq -rs "$MEDIAN"' group_by(.label)[] | def m(f): map(f) | map(select(. != null)) | med | num;
    "| \(.[0].label) | \(length) | \(m(.iops)) | \(map(.iops) | min | num) to \(map(.iops) | max | num) | \(m(.mb_s)) | \(m(.p50_us)) | \(m(.p99_us)) | \(m(.cpu_us_per_io)) | \(m(.iops_per_core)) | \(m(.own_cpus)) + \(m(.server_cpus)) of \(m(.busy_cpus)) |"' "$1"
}
ratio() { # FILE FIELD A B
  jq -rs --arg f "$2" --arg a "$3" --arg b "$4" "$MEDIAN"' group_by(.round) | map((map(select(.label == $a))[0][$f]) as $x | (map(select(.label == $b))[0][$f]) as $y | select($x != null and $y != null) | $y / $x) |
    "\($b) / \($a), \($f): \(med | num) (\(min | num) to \(max | num), \(length) rounds)"' "$1"
}

case ${1:-} in
  scale | policies | peers | stall) "$1" ;;
  table) table "${2:?FILE}" ;;
  ratio) ratio "${2:?FILE}" "${3:?FIELD}" "${4:?A}" "${5:?B}" ;;
  *) sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
