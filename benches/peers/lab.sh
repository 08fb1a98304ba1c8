#!/bin/bash
# Whether the benchmarks can be believed, on this machine and now: our workloads beside the programs that they follow,
# by turns in one folder, and comparisons of a thing with itself. Prints tables of paired ratios.
#
#   benches/peers/lab.sh DIR [PAIRS]        needs fio and postmark; EVFS is the program [target/release/evfs]
#
# The order of each pair is turned round from one to the next. Absolute figures are this machine's of the hour.
set -euo pipefail
folder=$(realpath "${1:?FOLDER}")
pairs=${2:-8}
evfs=${EVFS:-target/release/evfs}
work=$(mktemp -d "$folder/credible.XXXXXX")
trap 'rm -rf "$work"' EXIT
paired() { ${PAIRED:-cargo run -q --release -p evfs-bench-core --example paired --} --theta 0.1; }

# The value of a figure of a run: WORKLOAD PHASE FIGURE, and parameters.
value() {
    local workload=$1 phase=$2 figure=$3
    shift 3
    "$evfs" --json lab run "$workload" --target "$work" --quick --runs 1 "$@" 2>/dev/null |
        python3 -c '
import json, sys
phase, figure = sys.argv[1:]
found = json.load(sys.stdin)["findings"][0]["figures"]
print(next(f["value"] for f in found if f["phase"].startswith(phase) and f["cell"] == figure))' "$phase" "$figure"
}

# One pair of commands, the second first in every other turn.
turns() {
    local metric=$1 one=$2 other=$3 n a b
    for n in $(seq "$pairs"); do
        if ((n % 2)); then a=$($one) b=$($other); else b=$($other) a=$($one); fi
        echo "$metric $a $b"
    done
}

mib=128
ours() { value seqrand "$1" parent --set threads=1 --set "phases=$2" --set record=64k --set file=${mib}M --set stonewall=false --set with_sync="$3" --set direct="$4"; }
theirs() { value fio fio "$1" --set "rw=$2" --set block=64k --set size=${mib}M --set depth=1 --set fsync="$3" --set direct="$4"; }
# Reads are of a file that was written as ours is, durable and by direct writes of 64 KiB: one that fio makes by itself, in
# the page cache, lies otherwise on the disk, and is read a tenth faster, by fio as well.
theirs_reads() {
    local fio=(fio --output-format=json --name=reads --filename="$work/reads" --bs=64k --size=${mib}M --direct=1 --ioengine=psync
        --thread --invalidate=0)
    "${fio[@]}" --rw=write --end_fsync=1 --fallocate=none >/dev/null
    "${fio[@]}" --rw="$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["jobs"][0]["read"]["bw_bytes"] / 2**20)'
    rm "$work/reads"
}
ours_write() { ours write write true false; }
theirs_write() { theirs write write true false; }
ours_direct() { ours write write true true; }
theirs_direct() { theirs write write true true; }
ours_read() { ours read write,read true true; }
theirs_read() { theirs_reads read; }
ours_random() { ours random-read write,random-read true true; }
theirs_random() { theirs_reads randread; }

cat >"$work/mail" <<EOF
set number 1000
set transactions 1000
set size 10240 1048576
set read 8192
set write 8192
set buffering false
set location $work
EOF
# The original counts whole seconds; its time is taken around it, as ours is of the whole.
theirs_mail() { python3 -c '
import subprocess, sys, time
began = time.monotonic()
subprocess.run(["postmark", sys.argv[1]], input=b"run\nquit\n", stdout=subprocess.DEVNULL, check=True)
print(time.monotonic() - began)' "$work/mail"; }
ours_mail() { value mailmix mailmix total --postmark "$work/mail"; }

echo "Ours (A) beside the original (B):"
echo
{
    turns "64-KiB-write-fsync-MiB/s" ours_write theirs_write
    turns "64-KiB-write-direct-MiB/s" ours_direct theirs_direct
    turns "64-KiB-read-direct-MiB/s" ours_read theirs_read
    turns "64-KiB-random-read-direct-MiB/s" ours_random theirs_random
    turns "mailmix-s" ours_mail theirs_mail
} | paired

# Twenty comparisons of a stack with itself, of which at most one may say anything but that there is no difference: what
# the sentences over its rate and its CPU say.
itself() {
    local n
    for n in $(seq 20); do
        "$evfs" lab compare clear clear --quick --workload rand-read --block 64k --depth 4 --size 64M --device "$work" \
            --seed "$n" 2>/dev/null |
            sed -n 's/^clear (2) against clear, \([^:]*\): \([a-z ]*[a-z]\).*/\1: \2/p'
    done | sort | uniq -c
}
echo
echo "A stack against itself, twenty times:"
itself
echo "The same while a process burns a core:"
sh -c 'while :; do :; done' &
burner=$!
trap 'kill $burner; rm -rf "$work"' EXIT
itself
