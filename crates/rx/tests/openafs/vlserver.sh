#!/bin/bash
# A volume location server of OpenAFS on its own network, and a program that calls it there.
#
#   vlserver.sh DIR PROGRAM ARGUMENTS...    PROGRAM finds the server at 10.77.0.1, port 7003; DIR is empty
#
# The network, its files under /etc and /var, and all processes are in namespaces of their own and end with the
# program. Needs root, and Debian's openafs-dbserver (1.8). The server takes no address of 127/8 for its own,
# so the loopback device gets another.
set -euo pipefail
if [ "${1:-}" != --inside ]; then
    exec unshare --mount --net --uts --pid --fork --kill-child --mount-proc --propagation private "$0" --inside "$@"
fi
dir=$2
shift 2
ip link set lo up
ip addr add 10.77.0.1/32 dev lo
mkdir -p "$dir"/etc/server "$dir"/var/db "$dir"/var/local "$dir"/log
chmod 700 "$dir"/var/db "$dir"/var/local
mount --bind "$dir/etc" /etc/openafs
mount --bind "$dir/var" /var/lib/openafs
mount --bind "$dir/log" /var/log/openafs
printf '10.77.0.1 afssrv\n127.0.0.1 localhost\n' > "$dir/hosts"
mount --bind "$dir/hosts" /etc/hosts
hostname afssrv
echo test.local | tee /etc/openafs/ThisCell > /etc/openafs/server/ThisCell
printf '>test.local\n10.77.0.1 #afssrv\n' | tee /etc/openafs/CellServDB > /etc/openafs/server/CellServDB
echo 10.77.0.1 > /var/lib/openafs/local/NetInfo
/usr/lib/openafs/vlserver -noauth < /dev/null > "$dir/log/out" 2>&1 &
for _ in $(seq 600); do
    if rxdebug 10.77.0.1 7003 -version 2> /dev/null | grep -q 'AFS version'; then
        "$@"
        exit
    fi
    sleep 0.1
done
cat "$dir/log/out" >&2
echo 'the volume location server does not answer' >&2
exit 1
