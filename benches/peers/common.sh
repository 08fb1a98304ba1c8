# common.sh - what the benchmarks share; they source it. NAME is that of the benchmark.
NAME=$(basename "$0" .sh)
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
EVFS=${EVFS:-$REPO/target/release/evfs}
PAIRED=${PAIRED:-cargo run --quiet --release --manifest-path $REPO/Cargo.toml -p evfs-bench-core --example paired --}

die() { echo "$NAME.sh: $*" >&2; exit 1; }
say() { echo "$NAME.sh: $*" >&2; }
# what the head of the benchmark says, for whoever calls it wrongly
usage() { sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
await() { local n=0; until eval "$2"; do n=$((n + 1)); [ $n -lt 600 ] || die "$1 does not come up; see $WORK/$1.log"; sleep 0.05; done; }

# ---- CPU: a cgroup for each server and one for the clients; processes enter before exec ---------------
declare -A GROUP=()
GROUPS_UP=
groups_up() {
  local v2; v2=$(awk '$(NF-2) == "cgroup2" || / - cgroup2 / {print $5; exit}' /proc/self/mountinfo)
  if mkdir "/sys/fs/cgroup/cpuacct/evfs-$NAME.$$" 2>/dev/null; then GROUPS_UP=/sys/fs/cgroup/cpuacct/evfs-$NAME.$$
  elif [ -n "$v2" ] && mkdir "$v2/evfs-$NAME.$$" 2>/dev/null; then GROUPS_UP=$v2/evfs-$NAME.$$
  else die 'no cgroup can be made for counting CPU'; fi
}
group() { GROUP[$1]=$GROUPS_UP/$1; mkdir -p "${GROUP[$1]}"; }
groups_down() {
  local t; for t in "${!GROUP[@]}"; do rmdir "${GROUP[$t]}" 2>/dev/null || :; done
  [ -z "$GROUPS_UP" ] || rmdir "$GROUPS_UP" 2>/dev/null || :
}
cpu_us() { # GROUP
  if [ -e "${GROUP[$1]}/cpuacct.usage" ]; then echo $(($(< "${GROUP[$1]}/cpuacct.usage") / 1000))
  else awk '$1 == "usage_usec" {print $2}' "${GROUP[$1]}/cpu.stat"; fi
}
in_group() { local g=${GROUP[$1]}; shift; ( echo "$BASHPID" > "$g/cgroup.procs"; exec ${BEFORE:-} "$@" ); }
