#!/bin/bash
# ceph.sh CONF [ROUNDS] - CPU time per GiB of the path to an RBD image, against fio's rbd engine
#
# Sequential reads and writes of 1 MiB, 8 in flight, on one image of the cluster that CONF describes:
# fio, the path in the clear, and the path with the cipher of a volume, next to each other in each
# round, in rotating order. Counts all threads of each process, less those of a run of one request.
# Prints JSON lines: round, direction, side, CPU seconds per GiB.
set -e
CONF=${1:?CONF}; ROUNDS=${2:-5}; MIB=${MIB:-256}
REPO=$(cd "$(dirname "$0")/../.." && pwd)
LOAD=${LOAD:-$REPO/target/release/examples/rbd_load}
IMAGE=bench$$
rbd -c "$CONF" create --size "${MIB}M" --image-feature exclusive-lock "rbd/$IMAGE"
trap 'rbd -c "$CONF" --no-progress rm "rbd/$IMAGE"' EXIT

# CPU seconds of a command, all of its threads.
cpu() { local TIMEFORMAT='%U %S'; { time "$@" >/dev/null 2>&1; } 2>&1 | awk '{printf "%.3f", $1 + $2}'; }
run() { # SIDE read|write MIB
  case $1 in
    fio) CEPH_CONF=$CONF cpu fio --name=x --ioengine=rbd --pool=rbd --rbdname="$IMAGE" --clientname=admin \
           --rw="$2" --bs=1M --iodepth=8 --size="${3}M" --aux-path=/tmp ;;
    *) cpu "$LOAD" "rbd:rbd/$IMAGE?conf=$CONF" "$2" 1048576 8 $(($3 << 20)) "$1" ;;
  esac
}
SIDES=(fio clear encrypted)
run clear write "$MIB" >/dev/null   # the image has data
for ((round = 1; round <= ROUNDS; round++)); do
  for direction in write read; do
    for ((i = 0; i < 3; i++)); do
      side=${SIDES[$(((i + round) % 3))]}
      start=$(run "$side" "$direction" 1); all=$(run "$side" "$direction" "$MIB")
      awk -v a="$all" -v s="$start" -v m="$MIB" -v r=$round -v d=$direction -v n=$side \
        'BEGIN {printf "{\"round\":%d,\"direction\":\"%s\",\"side\":\"%s\",\"cpu_s_per_gib\":%.3f}\n", r, d, n, (a - s) * 1024 / (m - 1)}'
    done
  done
done
