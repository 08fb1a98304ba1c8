#!/usr/bin/env bash
# afs.sh - our file server beside OpenAFS's: runs that are interleaved, one JSON line each, and tables of them.
#
#   afs.sh run >> runs/afs.jsonl                measure; progress on stderr
#   afs.sh table runs/afs.jsonl                 best and median of each case and target
#   afs.sh ratio runs/afs.jsonl ours oafs       one target over another, by rounds: median [least, most]
#
# Settings are variables of the environment:
#   TARGETS  ours        a file without encryption, served with the settings that it has by itself
#            encrypted   the same on an EVFS volume, AES-256-XTS
#            before      as ours, by the program that BEFORE_EVFS names: for changes
#            oafs        OpenAFS's dafileserver as it is started
#            oafs_best   the same with -udpsize 4194304 -sendsize 1048576 -p 64 -rxpck 2000 -jumbo
#   CASES    load-1, load-20    clientload: 15 clients read one file of 1 or 20 MB at once
#            cold-1      the same by 15 clients that the server has never heard of
#            store-15    15 clients write 4 MB each into files of their own
#            read, store one client, 20 MB three times
#            null-1, null-4, status-1, status-4    GetTime and FetchStatus with one and four threads
#            names-1, names-15    files made and removed: one client, and fifteen
#            gone-15     a file is made and removed after 15 clients have ended that the server promised to tell of it:
#                        what it waits for them. All other clients give up their promises before they end
#            own-read, own-time, own-share    our own client: crates/afs-server/examples/load.rs
#            fuse        afsd.fuse: cold read of 60 MB, names, a cold look at 500 files
#            fuse-write  afsd.fuse: write of 32 MB, until it is with the server
#            fuse-15     15 of afsd.fuse read one file of 1 MB, cold
#   ROUNDS   rounds (5), and FIRST the number of the first (1), for runs in pieces
#   NICE     of servers and clients alike (0), below 0 where others use the processors
#   WORK     folder on the disk under test
#   EVFS, LOAD   the programs
#
# How: each target has namespaces of its own (network, mounts, processes), with its server at the same address on loopback;
# all run at once, idle but for the one that is called. A round takes each case through all targets next to each other, in
# an order that turns and is mirrored from round to round. Clients are OpenAFS's Rx library (afs-openafs.c) with the settings
# of that library, afsd.fuse, and ours. OpenAFS's servers and our file lie on one disk. cpu is of the server's control
# group, and of the clients'; drops is what the system dropped in the run for want of buffer (`Udp: RcvbufErrors` of the
# target's namespace, servers and clients); busy how many processors were in use, whoever used them.
#
# Needs root, jq, gcc, perl, python3, and the packages openafs-fileserver, openafs-dbserver, openafs-krb5, openafs-client, openafs-fuse;
# apt fetches libopenafs-dev, which is unpacked and not installed.
set -euo pipefail
export LC_ALL=C
TARGETS=${TARGETS:-ours encrypted oafs oafs_best}
CASES=${CASES:-load-1 load-20 cold-1 store-15 read store null-1 null-4 status-1 status-4 names-1 names-15 gone-15 own-read own-share own-time fuse fuse-write fuse-15}
ROUNDS=${ROUNDS:-5} FIRST=${FIRST:-1} WORK=${WORK:-${TMPDIR:-/var/tmp}/evfs-afs}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
LOAD=${LOAD:-$REPO/target/release/examples/load} BEFORE_EVFS=${BEFORE_EVFS:-}
SELF=$(readlink -f "$0") CELL=test.local IP=10.77.0.1 LIB=/usr/lib/openafs
BEST=(-udpsize 4194304 -sendsize 1048576 -p 64 -rxpck 2000 -jumbo)
MB=1000000
declare -A SPACE=() FILE1=() FILE20=() VOLUME=()

# ---- namespaces ----------------------------------------------------------------------------------------
space() { # TARGET: inside: addresses, and folders of its own where OpenAFS looks for its files
  local at=$WORK/$1
  ip link set lo up; ip addr add "$IP/32" dev lo; ip route add local 10.80.0.0/16 dev lo
  mkdir -p "$at"/{etc/server,var/db,var/local,log,vicepa,m,cache} /vicepa; chmod 700 "$at"/var/*
  mount --bind "$at/etc" /etc/openafs; mount --bind "$at/var" /var/lib/openafs
  mount --bind "$at/log" /var/log/openafs; mount --bind "$at/vicepa" /vicepa
  printf '%s afssrv\n127.0.0.1 localhost\n' "$IP" > "$at/hosts"; mount --bind "$at/hosts" /etc/hosts; hostname afssrv
  echo $CELL | tee /etc/openafs/ThisCell > /etc/openafs/server/ThisCell
  printf '>%s\n%s #afssrv\n' $CELL $IP | tee /etc/openafs/CellServDB > /etc/openafs/server/CellServDB
  echo "/afs:$at/cache:100000" > /etc/openafs/cacheinfo; echo $IP > /var/lib/openafs/local/NetInfo
  touch /vicepa/AlwaysAttach "$at/ready"
  while :; do wait -n 2>/dev/null || sleep 0.3; done
}
space_up() { # TARGET
  local pid
  rm -rf "${WORK:?}/$1"; mkdir -p "$WORK/$1"
  unshare -m -n -u -p -f --kill-child --mount-proc --propagation private bash "$SELF" _space "$1" < /dev/null > "$WORK/$1.log" 2>&1 &
  pid=$!; await "$1" "[ -e $WORK/$1/ready ]"
  SPACE[$1]=$(awk '{print $1}' "/proc/$pid/task/$pid/children")
}
inside() { local t=$1; shift; nsenter -t "${SPACE[$t]}" -m -n -u -p -- "$@"; }
serve() { # TARGET COMMAND...: in the background, its CPU counted
  local t=$1; shift
  in_group "$t" nsenter -t "${SPACE[$t]}" -m -n -u -p -- "$@" < /dev/null >> "$WORK/$t.log" 2>&1 &
}
client() { local t=$1; shift; in_group client nsenter -t "${SPACE[$t]}" -m -n -u -p -- timeout 120 "$@"; }
clean_up() {
  local t p
  for t in "${!SPACE[@]}"; do kill -9 "${SPACE[$t]}" 2>/dev/null || :; done
  for p in $(jobs -p); do wait "$p" 2>/dev/null || :; done
  sleep 0.3; groups_down
  for t in $TARGETS; do rm -rf "${WORK:?}/$t" "$WORK/$t.img"; done
}

# ---- servers -------------------------------------------------------------------------------------------
keytab() { # asetkey takes no key that is not in a file of Kerberos's
  perl -e 'my($c,$r,$k)=@ARGV; sub cs{pack("n/a*",$_[0])}
    my $e=pack("n",2).cs($r).cs("afs").cs($c).pack("NNC",1,time,1).pack("nn/a*",18,pack("H*",$k)).pack("N",1);
    print pack("CC",5,2),pack("N/a*",$e)' $CELL ${CELL^^} "$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')" > "$WORK/$1/keytab"
  inside "$1" asetkey add rxkad_krb5 1 18 "$WORK/$1/keytab" afs/$CELL@${CELL^^}
}
open_to_all() { # TARGET VOLUME: there is no tool for access lists without a kernel client: the dump is changed
  local d=$WORK/$1/dump
  inside "$1" vos dump "$2" -file "$d" -localauth 2>/dev/null
  perl -0777 -pe 's/\x41\x00\x00\x00\x1c(\x00\x00\x00\x01)\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00(\xff\xff\xff\x34\x00\x00\x00\x7f).{8}/"\x41\x00\x00\x00\x24$1\x00\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00\x00$2\xff\xff\xff\x9b\x00\x00\x00\x7f"/se' "$d" > "$d.open"
  if cmp -s "$d" "$d.open"; then die "the access list of $2 is not where it was"; fi
  inside "$1" vos restore afssrv a "$2" -file "$d.open" -overwrite full -localauth > /dev/null 2>&1 || die "vos restore $2"
}
openafs() { # TARGET FLAG...
  local t=$1 v; shift
  keytab "$t"
  inside "$t" setsid $LIB/ptserver < /dev/null > /dev/null 2>&1 &
  inside "$t" setsid $LIB/vlserver < /dev/null > /dev/null 2>&1 &
  await "$t" "inside $t vos listvldb -localauth 2>&1 | grep -q 'Total entries'"
  serve "$t" $LIB/dafileserver "$@"
  inside "$t" setsid $LIB/davolserver < /dev/null > /dev/null 2>&1 &
  inside "$t" setsid $LIB/salvageserver < /dev/null > /dev/null 2>&1 &
  await "$t" "inside $t vos partinfo afssrv -localauth 2>/dev/null | grep -q vicepa"
  await "$t" "inside $t vos listaddrs -localauth 2>/dev/null | grep -q ."
  for v in root.afs root.cell; do
    inside "$t" vos create afssrv a $v -localauth > /dev/null 2>> "$WORK/$t.log" || die "vos create $v; see $WORK/$t.log"
    open_to_all "$t" $v; inside "$t" vos setfields $v -maxquota 0 -localauth > /dev/null
  done
}
evfs() { local t=$1; shift; EVFS_KEYS_DIR=$WORK/$t/keys EVFS_RUN_DIR=$WORK/$t/run inside "$t" "$@" >> "$WORK/$t.log" 2>&1; }
ours() { # TARGET PROGRAM KEY...
  local t=$1 program=$2; shift 2
  evfs "$t" "$program" cell init $CELL "$WORK/$t.img" --listen $IP "$@" || die "$t: no cell; see $WORK/$t.log"
  EVFS_KEYS_DIR=$WORK/$t/keys EVFS_RUN_DIR=$WORK/$t/run serve "$t" "$program" serve "$WORK/$t.img" --listen $IP --anonymous-write "$@"
}
start() { # TARGET
  local t=$1 v
  space_up "$t"; mkdir -p "$WORK/$t/keys" "$WORK/$t/run"; chmod 700 "$WORK/$t/keys" "$WORK/$t/run"
  case $t in
    oafs) openafs $t ;;
    oafs_best) openafs $t "${BEST[@]}" ;;
    ours) truncate -s 2G "$WORK/$t.img"; ours $t "$EVFS" ;;
    before) truncate -s 2G "$WORK/$t.img"; ours $t "$BEFORE_EVFS" ;;
    encrypted) truncate -s 2G "$WORK/$t.img"
      evfs $t "$EVFS" key generate afs --no-passphrase
      evfs $t "$EVFS" volume create "$WORK/$t.img" --owner afs --key-bits 256
      ours $t "$EVFS" --key afs ;;
    *) die "no target $t" ;;
  esac
  await "$t" "inside $t $WORK/afsc $IP root.cell volume > $WORK/$t/volume 2>/dev/null"
  v=$(< "$WORK/$t/volume"); VOLUME[$t]=$v
  await "$t" "inside $t $WORK/afsc $IP $v make -b $MB -l one > $WORK/$t/one 2>/dev/null"
  FILE1[$t]=$(< "$WORK/$t/one"); FILE20[$t]=$(inside "$t" "$WORK/afsc" $IP "$v" make -b $((20 * MB)) -l twenty)
  inside "$t" "$WORK/afsc" $IP "$v" make -b $((60 * MB)) -l sixty > /dev/null
}
build() {
  local inc=$WORK/dev/usr/include lib=$WORK/dev/usr/lib
  if [ ! -e "$lib/libafsrpc.a" ]; then
    (cd "$WORK" && apt-get download -q libopenafs-dev > /dev/null && dpkg -x libopenafs-dev_*.deb dev)
  fi
  gcc -O2 -w -pthread -DAFS_PTHREAD_ENV -I"$inc" -o "$WORK/afsc" "$REPO/benches/peers/afs-openafs.c" \
    "$lib/libafsrpc.a" "$lib/libopr.a" -lresolv || die 'the client does not build'
}

# ---- cases ---------------------------------------------------------------------------------------------
drops() { inside "$1" awk '/^Udp:/ && $6 != "RcvbufErrors" { print $6 }' /proc/net/snmp; }
busy() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8, $2 + $3 + $4 + $5 + $6 + $7 + $8 }' /proc/stat; }
RUNS=0
afsc() { # TARGET COMMAND OPTION...: from addresses that nobody had before
  local t=$1; shift; RUNS=$((RUNS + 1))
  client "$t" "$WORK/afsc" $IP "${VOLUME[$t]}" "$@" -a "10.80.$((RUNS % 250)).$((RUNS / 250 * 16 + 1))" > "$WORK/out"
}
own() { # TARGET CLIENTS SECONDS WHAT [MIB]
  client "$1" "$LOAD" $IP "${VOLUME[$1]}" "${@:2}" > "$WORK/own"
  sed -nE 's/.*: ([0-9]+) calls\/s, ([0-9]+) MB\/s, longest ([0-9.]+) ms.*/{"seconds":'"$3"',"calls_s":\1,"own_mb_s":\2,"longest_ms":\3}/p' "$WORK/own" > "$WORK/out"
}
# count, CASE, COMMAND...: one line with what the command has left in $WORK/out, of so many calls and bytes (0: as the line says)
count() { # ROUND TARGET CASE CALLS BYTES COMMAND...
  local round=$1 t=$2 case=$3 calls=$4 bytes=$5 s0 c0 d0 b0; shift 5
  s0=$(cpu_us "$t") c0=$(cpu_us client) d0=$(drops "$t") b0=$(busy)
  if ! "$@" 2> "$WORK/err"; then say "$case $t failed: $(tail -1 "$WORK/err")"; return; fi
  jq -c --argjson round "$round" --arg target "$t" --arg case "$case" --argjson calls "$calls" --argjson bytes "$bytes" \
    --argjson server $(($(cpu_us "$t") - s0)) --argjson client $(($(cpu_us client) - c0)) --argjson drops $(($(drops "$t") - d0)) \
    --arg busy "$(awk -v a="$b0" -v b="$(busy)" -v n="$(nproc)" 'BEGIN { split(a, x); split(b, y); printf "%.2f", n * (y[1] - x[1]) / (y[2] - x[2]) }')" \
    '(if $calls > 0 then $calls else .calls_s * .seconds end) as $calls
    | (if .own_mb_s then .own_mb_s * 1e6 * .seconds else $bytes end) as $bytes
    | {round: $round, case: $case, target: $target, seconds, average, longest: (.longest // ((.longest_ms // 0) / 1000)),
      calls_s: ($calls / .seconds * 100 | round / 100), mb_s: ($bytes / 1e6 / .seconds * 10 | round / 10), server_us_call: ($server / $calls),
      server_cpu_s_gb: (if $bytes > 0 then $server / $bytes * 1e3 else null end), client_cpu_s_gb: (if $bytes > 0 then $client / $bytes * 1e3 else null end),
      drops: $drops, busy_cpus: ($busy | tonumber)} + (if .more then {more} else {} end)' "$WORK/out"
}
fuse_up() { # TARGET NAME BLOCKS
  local m=$WORK/$1/m/$2; mkdir -p "$m" "$WORK/$1/cache/$2"
  client "$1" setsid afsd.fuse -dynroot -fakestat -confdir /etc/openafs -mountdir "$m" -cachedir "$WORK/$1/cache/$2" -nosettime \
    -memcache -blocks "$3" < /dev/null > "$WORK/$1/log/afsd" 2>&1 &
  await "$1" "inside $1 ls $m | grep -q $CELL"
}
fuse_down() { inside "$1" umount "$WORK/$1/m/$2" 2>/dev/null || inside "$1" umount -l "$WORK/$1/m/$2"; }
timed() { # TARGET SCRIPT: what the shell takes for it
  client "$1" bash -ec 't=$(date +%s%N); '"$2"'; echo "{\"seconds\":$((($(date +%s%N) - t) / 1000))e-6}"' > "$WORK/out"
}
names() { # TARGET FOLDER: rates of each kind of change
  client "$1" python3 - "$2" > "$WORK/out" <<'PY'
import json, os, sys, time
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); more = {}; n = 150
def each(what, act):
    t = time.time()
    for i in range(n): act(i)
    more[what] = round(n / (time.time() - t))
def written(i):
    with open("w%d" % i, "w") as f: f.write("x" * 1000)
begun = time.time()
each("create", lambda i: os.close(os.open("f%d" % i, os.O_CREAT | os.O_WRONLY, 0o644)))
each("create_1k", written)
each("chmod", lambda i: os.chmod("f%d" % i, 0o600))
each("rename", lambda i: os.rename("f%d" % i, "g%d" % i))
each("unlink", lambda i: os.unlink("g%d" % i))
each("unlink_1k", lambda i: os.unlink("w%d" % i))
each("mkdir", lambda i: os.mkdir("d%d" % i))
each("rmdir", lambda i: os.rmdir("d%d" % i))
os.chdir("/"); os.rmdir(sys.argv[1])
print(json.dumps({"seconds": time.time() - begun, "more": more}))
PY
}
look() { # TARGET FOLDER
  client "$1" python3 -c '
import json, os, sys, time
t = time.time(); n = sum(1 for e in os.scandir(sys.argv[1]) if os.stat(e.path))
print(json.dumps({"seconds": time.time() - t}))' "$2" > "$WORK/out"
}
fuse() { # ROUND TARGET
  local t=$2 at
  at=$WORK/$t/m/a$1/$CELL; fuse_up "$t" "a$1" 262144
  count "$1" "$t" fuse-read 1 $((60 * MB)) timed "$t" "cat '$at/sixty' > /dev/null"
  count "$1" "$t" fuse-names 1200 0 names "$t" "$at/n$1"
  if [ ! -e "$WORK/$t/many" ]; then
    inside "$t" bash -ec "mkdir $at/many; cd $at/many; for i in \$(seq 500); do : > f\$i; done"; touch "$WORK/$t/many"
  fi
  fuse_down "$t" "a$1"
  fuse_up "$t" "b$1" 8192; at=$WORK/$t/m/b$1/$CELL
  count "$1" "$t" fuse-stat 500 0 look "$t" "$at/many"
  fuse_down "$t" "b$1"
}
# The client closes a file before it has stored it, and a server may say the new length before it has all: it is over when
# as many bytes have passed, and no more pass.
write_it() { # TARGET FILE BYTES
  client "$1" python3 -c '
import json, sys, time
def passed(): return int([l for l in open("/proc/net/dev") if "lo:" in l][0].split(":")[1].split()[0])
size = int(sys.argv[2]); before = passed(); begun = time.time()
with open(sys.argv[1], "wb") as f:
    for _ in range(size // 1000000): f.write(bytes(1000000))
seen = last = 0
while seen < before + size or time.time() < last + 0.1:
    now = passed()
    if now != seen: seen, last = now, time.time()
    time.sleep(0.005)
print(json.dumps({"seconds": last - begun}))' "$2" "$3" > "$WORK/out"
}
fuse_write() { # ROUND TARGET
  local t=$2 at=$WORK/$2/m/d$1/$CELL
  fuse_up "$t" "d$1" 262144; inside "$t" ls "$at" > /dev/null
  count "$1" "$t" fuse-write 1 $((32 * MB)) write_it "$t" "$at/written$1" $((32 * MB))
  fuse_down "$t" "d$1"
}
fuse_15() { # ROUND TARGET
  local t=$2 n at
  for n in $(seq 15); do fuse_up "$t" "c$1-$n" 8192; done
  count "$1" "$t" fuse-15 15 $((15 * MB)) client_15 "$t" "$WORK/$t/m/c$1-"
  for n in $(seq 15); do fuse_down "$t" "c$1-$n"; done
}
client_15() { # TARGET PREFIX
  client "$1" python3 -c '
import json, sys, threading, time
took = []; ready = threading.Barrier(15)
def read(n):
    ready.wait(); t = time.time()
    with open("%s%d/%s/one" % (sys.argv[1], n + 1, sys.argv[2]), "rb") as f: assert len(f.read()) == 1000000
    took.append(time.time() - t)
all = [threading.Thread(target=read, args=(n,)) for n in range(15)]
for t in all: t.start()
for t in all: t.join()
assert len(took) == 15
print(json.dumps({"seconds": max(took), "average": sum(took) / 15, "longest": max(took)}))' "$2" $CELL > "$WORK/out"
}
measure() { # ROUND CASE TARGET
  local r=$1 case=$2 t=$3
  local many=(count "$r" "$t" "$case")
  case $case in
    load-1) "${many[@]}" 15 $((15 * MB)) afsc "$t" fetch -c 15 -b $MB -f "${FILE1[$t]}" ;;
    cold-1) "${many[@]}" 15 $((15 * MB)) afsc "$t" fetch -c 15 -b $MB -f "${FILE1[$t]}" -x ;;
    load-20) "${many[@]}" 15 $((300 * MB)) afsc "$t" fetch -c 15 -b $((20 * MB)) -f "${FILE20[$t]}" ;;
    store-15) "${many[@]}" 15 $((60 * MB)) afsc "$t" store -c 15 -b $((4 * MB)) ;;
    read) "${many[@]}" 3 $((60 * MB)) afsc "$t" fetch -n 3 -b $((20 * MB)) -f "${FILE20[$t]}" ;;
    store) "${many[@]}" 3 $((60 * MB)) afsc "$t" store -n 3 -b $((20 * MB)) ;;
    null-[14]) "${many[@]}" $((${case#*-} * 3000)) 0 afsc "$t" time -n 3000 -t "${case#*-}" ;;
    status-[14]) "${many[@]}" $((${case#*-} * 3000)) 0 afsc "$t" status -n 3000 -t "${case#*-}" ;;
    names-1) "${many[@]}" 400 0 afsc "$t" names -n 200 ;;
    names-15) "${many[@]}" 1500 0 afsc "$t" names -n 50 -c 15 ;;
    gone-15) afsc "$t" status -c 15 -k; "${many[@]}" 2 0 afsc "$t" names ;;
    own-read) "${many[@]}" 0 0 own "$t" 1 1 fetch 20 ;;
    own-share) "${many[@]}" 0 0 own "$t" 15 1 share 1 ;;
    own-time) "${many[@]}" 0 0 own "$t" 4 1 time ;;
    fuse) fuse "$r" "$t" ;;
    fuse-write) fuse_write "$r" "$t" ;;
    fuse-15) fuse_15 "$r" "$t" ;;
    *) die "no case $case" ;;
  esac
}
# the targets in the order of a round: turned by one every two rounds, mirrored in every second one
order() { # ROUND
  local all i n; read -ra all <<< "$TARGETS"; n=${#all[@]}
  for ((i = 0; i < n; i++)); do
    if [ $(($1 % 2)) = 0 ]; then echo "${all[(i + $1 / 2) % n]}"; else echo "${all[(n - 1 - i + $1 / 2) % n]}"; fi
  done
}
run() {
  local t r c
  [ "$(id -u)" = 0 ] || die 'run as root'
  mkdir -p "$WORK"; build
  [ "${NICE:-0}" = 0 ] || renice -n "$NICE" $$ > /dev/null
  trap 'r=$?; clean_up; exit $r' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
  groups_up; group client; for t in $TARGETS; do group "$t"; done
  for t in $TARGETS; do say "start $t"; start "$t"; done
  for ((r = FIRST; r < FIRST + ROUNDS; r++)); do
    for c in $CASES; do
      say "round $r: $c"
      for t in $(order "$r"); do measure "$r" "$c" "$t"; done
    done
  done
}

# ---- tables --------------------------------------------------------------------------------------------
JQ='def median: sort | .[length / 2 | floor]; def f: if . == null then "-" elif . >= 100 then round else . * 100 | round / 100 end;'
# A row for each case, a column for each target
table() {
  jq -rs "$JQ"'. as $all | ($all | map(.target) | unique) as $targets
    | def cells(value): . as $runs | $targets | map(. as $t | $runs | map(select(.target == $t)) | if length == 0 then "-" else value end) | join(" | ");
    def rows(cases; value): $all | map(select(cases)) | group_by(.case)[] | "| \(.[0].case) | \(cells(value)) |";
    def table(title; cases; value): "", title, "", "| case | \($targets | join(" | ")) |", "|---|\($targets | map("---|") | add)", rows(cases; value);
    def least(what): map(what) | "\(min | f) (\(median | f))"; def best(what): map(what) | "\(max | f) (\(median | f))";
    table("MB/s, best (median)"; .mb_s > 0; best(.mb_s)),
    table("CPU of the server, seconds for each GB, least (median)"; .mb_s > 0; least(.server_cpu_s_gb)),
    table("Calls or operations a second, best (median)"; .mb_s == 0; best(.calls_s)),
    table("CPU of the server, microseconds for each of them, least (median)"; .mb_s == 0; least(.server_us_call)),
    table("Seconds of the slowest client and of the average one, medians; the longest of all rounds"; .average != null and .mb_s > 0;
      "\(map(.seconds) | median | f), \(map(.average) | median | f); \(map(.seconds) | max | f)"),
    table("Datagrams dropped in a run, median (most)"; .mb_s > 0; "\(map(.drops) | median) (\(map(.drops) | max))"),
    ($all | map(select(.more) | .target as $t | .more | to_entries[] | {case: .key, target: $t, rate: .value}) as $all
    | "", "Names through afsd.fuse, each in a second, best (median)", "", "| case | \($targets | join(" | ")) |", "|---|\($targets | map("---|") | add)",
      ($all | group_by(.case)[] | "| \(.[0].case) | \(cells(best(.rate))) |"))' "$1"
}
ratio() { # FILE TARGET TARGET
  jq -rs --arg a "$2" --arg b "$3" "$JQ"'def show: map(select(. != null)) | sort | if length == 0 then "-" else "\(.[length / 2 | floor] | f) [\(.[0] | f), \(.[-1] | f)]" end;
    def over($x; $y): if $x == null or $y == null or $y == 0 then null else $x / $y end;
    "| case | rate, \($a) / \($b) | server CPU for each byte or call | rounds |", "|---|---|---|---|",
    (group_by(.case)[] | .[0].case as $case
    | [group_by(.round)[] | [(.[] | select(.target == $a)), (.[] | select(.target == $b))] | select(length == 2)]
    | "| \($case) | \(map(over(.[0].calls_s; .[1].calls_s)) | show) | \(map(over(.[0].server_us_call; .[1].server_us_call)) | show) | \(length) |")' "$1"
}
case ${1:-} in
  run) run ;;
  table) table "${2:?runs.jsonl}" ;;
  ratio) ratio "${2:?runs.jsonl}" "${3:?target}" "${4:?target}" ;;
  _space) space "${2:?target}" ;;
  *) usage ;;
esac
