#!/usr/bin/env bash
# Two network namespaces, a server's and a client's, with one link for each path between them:
# a veth pair whose rate TBF limits on both ends (a read's data leave the server, a write's the client).
#
#   netns.sh up PATHS RATE_MBIT     make them; what an earlier `up` made goes first
#   netns.sh down                   remove them; no error if there are none
#   netns.sh rate PATH RATE_MBIT    another rate for one link
#   netns.sh link PATH up|down      the server's end of a link, up or down
#   netns.sh server COMMAND...      run a command where servers are
#   netns.sh client COMMAND...      run a command where clients are
#
# Paths count from 1. Path P has 10.77.P.1 on the server's end (interface evs-P) and 10.77.P.2 on the
# client's (evc-P). Needs root, ip and tc from iproute2, nsenter. EVFS_NETNS (evfs) begins the names of the
# namespaces.
set -euo pipefail
NAME=${EVFS_NETNS:-evfs} SERVER=${EVFS_NETNS:-evfs}-server CLIENT=${EVFS_NETNS:-evfs}-client
PATHS_MAX=32
# Bytes that may leave at once: more than the largest segment the kernel passes down, or it is cut first
BURST=32kb LATENCY=400ms

die() { echo "netns.sh: $*" >&2; exit 1; }
exists() { [ -e "/run/netns/$1" ]; }
number() { # VALUE MAX WHAT
  [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -ge 1 ] && [ "$1" -le "$2" ] || die "$3 is a number from 1 to $2, not '$1'"
}
is_up() { exists "$SERVER" && exists "$CLIENT" || die "there are no namespaces $NAME-*; netns.sh up PATHS RATE_MBIT makes them"; }
is_path() {
  number "$1" $PATHS_MAX PATH
  ip -n "$SERVER" link show "evs-$1" > /dev/null 2>&1 || die "there is no path $1; netns.sh up makes paths"
}
shape() { # PATH RATE_MBIT
  tc -n "$SERVER" qdisc replace dev "evs-$1" root tbf rate "$2mbit" burst $BURST latency $LATENCY
  tc -n "$CLIENT" qdisc replace dev "evc-$1" root tbf rate "$2mbit" burst $BURST latency $LATENCY
}
down() {
  local n
  for n in "$CLIENT" "$SERVER"; do
    exists "$n" || continue
    # a link goes with its namespace once no process is left in it
    ip -n "$n" -o link show 2> /dev/null | sed -n 's/^[0-9]*: \(ev[sc]-[0-9]*\)@.*/\1/p' |
      while read -r link; do ip -n "$n" link delete "$link" 2> /dev/null || :; done
    ip netns delete "$n" || die "namespace $n cannot be removed"
  done
}
up() { # PATHS RATE_MBIT
  local p n
  number "$1" $PATHS_MAX PATHS; number "$2" 100000 RATE_MBIT
  down
  trap 'r=$?; [ $r = 0 ] || { down; echo "netns.sh: up failed" >&2; }; exit $r' EXIT
  for n in "$SERVER" "$CLIENT"; do ip netns add "$n"; ip -n "$n" link set lo up; done
  for ((p = 1; p <= $1; p++)); do
    ip -n "$SERVER" link add "evs-$p" type veth peer name "evc-$p" netns "$CLIENT"
    ip -n "$SERVER" address add "10.77.$p.1/24" dev "evs-$p"
    ip -n "$CLIENT" address add "10.77.$p.2/24" dev "evc-$p"
    ip -n "$SERVER" link set "evs-$p" up
    ip -n "$CLIENT" link set "evc-$p" up
    shape "$p" "$2"
  done
}

usage() { sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
need() { [ "$1" -eq "$2" ] || usage; }
[ $# -ge 1 ] || usage
[ "$(id -u)" = 0 ] || die 'run as root'
for tool in ip tc nsenter; do command -v $tool > /dev/null || die "$tool is missing; iproute2 and util-linux have them"; done
what=$1; shift
case $what in
  up) need $# 2; up "$@" ;;
  down) need $# 0; down ;;
  rate) need $# 2; is_up; is_path "$1"; number "$2" 100000 RATE_MBIT; shape "$@" ;;
  link) need $# 2; is_up; is_path "$1"
    case $2 in up | down) ip -n "$SERVER" link set "evs-$1" "$2" ;; *) usage ;; esac ;;
  # not `ip netns exec`: it copies all mounts, and keeps them from being unmounted while the command runs
  server | client) [ $# -ge 1 ] || usage; is_up; exec nsenter --net="/run/netns/$NAME-$what" -- "$@" ;;
  *) usage ;;
esac
