#!/usr/bin/env bash
# Our Rx beside OpenAFS's: runs that are interleaved, one JSON line each, and a table of them.
#
#   rx.sh run > runs/rx.jsonl       all pairs of client and server, ROUNDS times
#   rx.sh raw > runs/rx-raw.jsonl   ours beside UDP sockets with the same batches, 250 MB twice, ROUNDS times
#   rx.sh table runs/rx.jsonl       best and median of each
#   rx.sh ratio runs/rx.jsonl ours-ours oafs-oafs       one pair (client-server) over another, by rounds
#
# Variables: ROUNDS (5); WORK (/tmp/evfs-rx) for the headers and the peer; CASES, all by default; NICE (0) of servers and
# clients alike, below 0 where others use the processors.
#
# How: servers of ours and of OpenAFS's Rx library (rx-openafs.c: the protocol of rxperf), the latter as its programs
# start it and at its best (`big`: 4 MiB of socket buffer, jumbograms), run at once on loopback, idle but for the one that is
# called. A round takes each case with each pair, in an order that turns from round to round. cpu is processor time of
# client and server in seconds for each GB (10^9), drops what the system dropped for want of buffer in the run (`Udp:
# RcvbufErrors`, all sockets of the machine), busy how many processors were in use, whoever used them.
#
# Needs jq, gcc, apt (for libopenafs-dev, which is unpacked and not installed).
set -euo pipefail
export LC_ALL=C
ROUNDS=${ROUNDS:-5} WORK=${WORK:-/tmp/evfs-rx}
CASES=${CASES:-null-1 null-4 recv-1 send-1 recv-15 send-15}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/common.sh"
OURS=$REPO/target/release/examples/rxperf
PAIRS=(ours-ours oafs-ours oafs_big-ours ours-oafs ours-oafs_big oafs-oafs oafs_big-oafs_big)
PIDS=()

clean_up() { local p; for p in ${PIDS[@]+"${PIDS[@]}"}; do kill -9 "$p" 2> /dev/null || :; wait "$p" 2> /dev/null || :; done; }

build() {
  [ -x "$OURS" ] || die "no $OURS; cargo build --release -p evfs-rx --examples makes it"
  mkdir -p "$WORK"
  if [ ! -x "$WORK/rxc" ]; then
    (cd "$WORK" && apt-get download -q libopenafs-dev > /dev/null && dpkg -x libopenafs-dev_*.deb dev)
    gcc -O2 -pthread -DAFS_PTHREAD_ENV -I"$WORK/dev/usr/include" -o "$WORK/rxc" "$HERE/rx-openafs.c" \
      "$WORK/dev/usr/lib/libafsrpc.a" "$WORK/dev/usr/lib/libopr.a" -lresolv 2> /dev/null || die 'the peer does not build'
  fi
}
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
drops() { awk '/^Udp:/ && $6 != "RcvbufErrors" { print $6 }' /proc/net/snmp; }
busy() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8, $2 + $3 + $4 + $5 + $6 + $7 + $8 }' /proc/stat; }

client() { # CLIENT PORT COMMAND BYTES TIMES THREADS PROCESSES
  local n pids=() p
  for n in $(seq "$7"); do
    case $1 in
      ours) "$OURS" "$3" --to "127.0.0.1:$2" --bytes "$4" --times "$5" --threads "$6" ;;
      oafs) "$WORK/rxc" "$3" 127.0.0.1 "$2" "$4" "$5" "$6" 0 ;;
      oafs_big) "$WORK/rxc" "$3" 127.0.0.1 "$2" "$4" "$5" "$6" 1 4194304 ;;
    esac > "$WORK/out.$n" &
    pids+=($!)
  done
  for p in "${pids[@]}"; do wait "$p" || die "$1 failed"; done
}
one() { # ROUND CASE PAIR
  local case=$2 from=${3%-*} to=${3#*-} command bytes times threads=1 processes=1 pid port t0 d0 b0 b1
  case $case in
    null-1) command=rpc bytes=4 times=3000 ;;
    null-4) command=rpc bytes=4 times=1000 threads=4 ;;
    recv-1) command=recv bytes=20000000 times=2 ;;
    send-1) command=send bytes=20000000 times=2 ;;
    recv-15) command=recv bytes=1000000 times=5 processes=15 ;;
    send-15) command=send bytes=1000000 times=5 processes=15 ;;
    *) die "no case $case" ;;
  esac
  case $to in ours) pid=${PIDS[0]} port=7109 ;; oafs) pid=${PIDS[1]} port=7119 ;; *) pid=${PIDS[2]} port=7129 ;; esac
  t0=$(ticks "$pid") d0=$(drops) b0=$(busy)
  client "$from" "$port" "$command" "$bytes" "$times" "$threads" "$processes"
  b1=$(busy)
  cat $(seq -f "$WORK/out.%g" "$processes") | jq -sc --arg round "$1" --arg case "$case" --arg client "$from" --arg server "$to" \
    --argjson ticks $(($(ticks "$pid") - t0)) --argjson drops $(($(drops) - d0)) --argjson hz "$(getconf CLK_TCK)" \
    --argjson bytes $((bytes * times * threads * processes)) --argjson calls $((times * threads * processes)) \
    --arg busy "$(awk -v a="$b0" -v b="$b1" -v n="$(nproc)" 'BEGIN { split(a, x); split(b, y); printf "%.2f", n * (y[1] - x[1]) / (y[2] - x[2]) }')" \
    '{round: ($round | tonumber), case: $case, client: $client, server: $server, seconds: (map(.seconds) | max),
      mb_s: ($bytes / 1e6 / (map(.seconds) | max) | round), calls_s: ($calls / (map(.seconds) | max) | round),
      client_cpu_s: (map(.cpu_s) | add), server_cpu_s: ($ticks / $hz), drops: $drops, busy_cpus: ($busy | tonumber),
      client_cpu_s_gb: ((map(.cpu_s) | add) / $bytes * 1e9), server_cpu_s_gb: ($ticks / $hz / $bytes * 1e9)}'
}
run() {
  build
  [ "${NICE:-0}" = 0 ] || renice -n "$NICE" $$ > /dev/null
  trap 'r=$?; clean_up; exit $r' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
  "$OURS" server --listen 127.0.0.1:7109 > /dev/null & PIDS+=($!)
  "$WORK/rxc" server 7119 0 65536 > /dev/null & PIDS+=($!)
  "$WORK/rxc" server 7129 1 4194304 > /dev/null & PIDS+=($!)
  sleep 1
  local round case n=${#PAIRS[@]} i
  for round in $(seq "$ROUNDS"); do
    for case in $CASES; do
      for i in $(seq 0 $((n - 1))); do one "$round" "$case" "${PAIRS[$(((i + round) % n))]}"; done
    done
  done
}
raw() {
  trap 'r=$?; clean_up; exit $r' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
  mkdir -p "$WORK"
  [ "${NICE:-0}" = 0 ] || renice -n "$NICE" $$ > /dev/null
  "$OURS" server --listen 127.0.0.1:7109 > /dev/null & PIDS+=($!)
  sleep 1
  local round command t0
  for round in $(seq "$ROUNDS"); do
    "$REPO/target/release/examples/raw_udp" 500 | jq -c --argjson round "$round" '{round: $round, what: "raw", mb_s, cpu_s_gb, lost}'
    for command in recv send; do
      t0=$(ticks "${PIDS[0]}")
      "$OURS" "$command" --to 127.0.0.1:7109 --bytes 250000000 --times 2 > "$WORK/out"
      jq -c --argjson round "$round" --arg command "$command" --argjson ticks $(($(ticks "${PIDS[0]}") - t0)) --argjson hz "$(getconf CLK_TCK)" \
        '{round: $round, what: ("rx " + $command), mb_s, cpu_s_gb: ((.cpu_s + $ticks / $hz) / 0.5), dropped, resent}' "$WORK/out"
    done
  done
}
table() {
  jq -rs 'def median: sort | .[length / 2 | floor]; def r: . * 100 | round / 100;
    group_by([.case, .server, .client])[] | . as $runs | $runs[0] as $x |
    if ($x.case | startswith("null")) then
      "| \($x.case) | \($x.client) | \($x.server) | \(map(.calls_s) | max) | \(map(.calls_s) | median) | \(map(.client_cpu_s / .calls_s / .seconds * 1e6) | min | round) | \(map(.server_cpu_s / .calls_s / .seconds * 1e6) | min | round) | \(map(.drops) | add) |"
    else
      "| \($x.case) | \($x.client) | \($x.server) | \(map(.mb_s) | max) | \(map(.mb_s) | median) | \(map(.client_cpu_s_gb) | min | r) | \(map(.server_cpu_s_gb) | min | r) | \(map(.drops) | add) |"
    end' "$1"
}
# Rounds' ratios of rate and processor time of one pair over another: median, least and most.
ratio() { # FILE PAIR PAIR
  jq -rs --arg a "$2" --arg b "$3" 'def pair: "\(.client)-\(.server)"; def f: . * 100 | round / 100;
    def show: sort | "\(.[length / 2 | floor] | f) [\(.[0] | f), \(.[-1] | f)]";
    group_by(.case)[] | .[0].case as $case
    | [group_by(.round)[] | [(.[] | select(pair == $a)), (.[] | select(pair == $b))] | select(length == 2)]
    | "| \($case) | \(map(.[1].seconds / .[0].seconds) | show) | \(map((.[0] | .client_cpu_s + .server_cpu_s) / (.[1] | .client_cpu_s + .server_cpu_s)) | show) | \(map(.[0].server_cpu_s / .[1].server_cpu_s) | show) |"' "$1"
}
case ${1:-} in run) run ;; raw) raw ;; table) table "$2" ;; ratio) ratio "$2" "$3" "$4" ;; *) usage ;; esac
