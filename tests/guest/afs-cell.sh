#!/usr/bin/env bash
# Process 1 of a machine of its own, made of this one, on which an AFS cell is at home:
#
#   unshare -m -n -u -p -f --kill-child --propagation private afs-cell.sh DIR CELL ADDRESS
#
# It sees the files of this machine, except for the directories of OpenAFS's servers and clients,
# which are those of DIR and begin empty. Its network is a loopback with ADDRESS on it: servers of
# OpenAFS refuse 127.0.0.1. It prints "ready" and lives until it is killed, with all its children.
set -euo pipefail
dir=$1 cell=$2 address=$3
root=$dir/root
PATH=$PATH:/usr/sbin:/sbin

ip link set lo up
ip addr add "$address/32" dev lo

# Beside the directories of this machine comes vicepa, where OpenAFS's file server has its volumes.
mkdir -p "$root"
mount -t tmpfs -o mode=755 root "$root"
for entry in /*; do
  case $entry in /proc | /vicepa) continue ;; esac
  if [ -L "$entry" ]; then
    cp -P "$entry" "$root/"
  elif [ -d "$entry" ]; then
    mkdir -p "$root$entry"
    mount --bind "$entry" "$root$entry"
  fi
done
mkdir -p "$root/proc" "$root/vicepa" "$dir"/{etc/server,log,var/db,var/local,vicepa}
mount -t proc proc "$root/proc"
chmod 700 "$dir"/var/*
mount --bind "$dir/vicepa" "$root/vicepa"
mount --bind "$dir/etc" "$root/etc/openafs"
mount --bind "$dir/var" "$root/var/lib/openafs"
mount --bind "$dir/log" "$root/var/log/openafs"

# Names are asked for in this file before anywhere else, and nobody else can be reached.
hostname afssrv
printf '%s afssrv\n127.0.0.1 localhost\n' "$address" > "$dir/hosts"
mount --bind "$dir/hosts" "$root/etc/hosts"
cd "$dir"
echo "$cell" | tee etc/ThisCell > etc/server/ThisCell
printf '>%s #test\n%s #afssrv\n' "$cell" "$address" | tee etc/CellServDB > etc/server/CellServDB
echo "/afs:$dir/cache:100000" > etc/cacheinfo
echo "$address" > var/local/NetInfo
touch vicepa/AlwaysAttach

# Detach this machine's mounts: a copy of one would keep its device busy.
mkdir "$root/.old"
cd "$root"
pivot_root . .old
umount -l .old
rmdir .old
# Bash waits for whoever lost their parents.
exec chroot . bash -c 'echo ready; exec < <(sleep infinity); while :; do read -r _ || wait; done'
