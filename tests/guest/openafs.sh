#!/usr/bin/env bash
# Starts OpenAFS's servers on the machine that afs-cell.sh makes, with the volumes root.afs,
# root.cell and small, which everybody may write, and locked, which everybody may read.
#
#   openafs.sh DIR CELL
set -euo pipefail
dir=$1 cell=$2
PATH=$PATH:/usr/sbin:/sbin
servers=/usr/lib/openafs

die() { echo "openafs.sh: $*" >&2; exit 1; }

# A program that goes on by itself.
start() { setsid "$@" < /dev/null > "$dir/log/${1##*/}.out" 2>&1 & }

# Tries for a minute.
until_true() {
  local end=$((SECONDS + 60))
  until "$@" > /dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "a minute went by, and not: $*"
    sleep 0.1
  done
}

# The servers trust each other by a key, and take it from a keytab only: one entry, version 2.
make_key() {
  local key
  key=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
  perl -e '
    my ($cell, $realm, $key) = @ARGV;
    sub counted { pack "n/a*", $_[0] }
    my $entry = pack("n", 2) . counted($realm) . counted("afs") . counted($cell)
      . pack("NNC", 1, time, 1) . pack("nn/a*", 18, pack "H*", $key) . pack("N", 1);
    print pack("CC", 5, 2), pack("N/a*", $entry);
  ' "$cell" "${cell^^}" "$key" > "$dir/keytab"
  asetkey add rxkad_krb5 1 18 "$dir/keytab" "afs/$cell@${cell^^}"
}

# Makes the volume $1 with a quota of $2 KiB and the rights $3, in hexadecimal digits, for
# system:anyuser (-101) in its root. Without a token nobody could set a list, so it is done in a dump
# of the volume.
make_volume() {
  vos create afssrv a "$1" -localauth > /dev/null
  vos dump "$1" -file "$dir/dump" -localauth 2> /dev/null
  perl -0777 -pe '
    BEGIN { $rights = chr hex shift }
    s/\x41\x00\x00\x00\x1c(\x00\x00\x00\x01)\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00(\xff\xff\xff\x34\x00\x00\x00\x7f).{8}
     /"\x41\x00\x00\x00\x24$1\x00\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00\x00$2\xff\xff\xff\x9b\x00\x00\x00$rights"/sex
      or die "the access list is not where it was";
  ' "$3" "$dir/dump" > "$dir/patched"
  vos restore afssrv a "$1" -file "$dir/patched" -overwrite full -localauth > /dev/null 2>&1
  vos setfields "$1" -maxquota "$2" -localauth > /dev/null
}

has_quorum() { vos listvldb -localauth 2>&1 | grep -q 'Total entries'; }
has_partition() { vos partinfo afssrv -localauth | grep -q vicepa; }
is_registered() { vos listaddrs -localauth | grep -q .; }

make_key
start $servers/ptserver
start $servers/vlserver
until_true has_quorum
start $servers/dafileserver
start $servers/davolserver
start $servers/salvageserver
until_true has_partition
until_true is_registered
# rlidwk for everybody, as our server does, and rl.
make_volume root.afs 0 3f
make_volume root.cell 0 3f
make_volume small 64 3f
make_volume locked 0 09
