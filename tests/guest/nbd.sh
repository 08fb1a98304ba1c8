# The kernel's NBD client on the volume that /share/address names, in two sessions: the first, with
# one connection, makes a file system on the first half and copies /share/files there; the second,
# with two, reads them back, writes, deletes and trims. Prints a line per fact.
set -e
read -r port name < /share/address
device=/dev/nbd0
about=/sys/block/nbd0

# The volume has sectors of 4096 bytes, which nbd-client does not ask for.
attach() {
  nbd-client 10.0.2.2 "$port" $device -N "$name" -b 4096 -C "$1" > /tmp/said 2>&1 ||
    { cat /tmp/said; exit 1; }
  echo "connections_$1 $(netstat -tn | grep -c ":$port .*ESTABLISHED")"
}
detach() {
  nbd-client -d $device > /dev/null
  while [ -e $about/pid ]; do sleep 0.1; done
}
sum() { sha256sum | cut -d ' ' -f 1; }

attach 1
sectors=$(cat $about/size)
echo "sectors $sectors"
echo "write_cache $(cat $about/queue/write_cache)"
echo "fua $(cat $about/queue/fua)"
echo "host_wrote $(dd if=$device bs=512k skip=$((sectors / 2 / 1024)) iflag=direct 2> /dev/null | sum)"
# Without discards, so that those of fstrim can be told.
mkfs.ext4 -q -F -E nodiscard $device $((sectors / 2 / 2))k
mount -t ext4 $device /mnt
cp -r /share/files /mnt/files
cat /share/files/* > /mnt/ballast
umount /mnt
e2fsck -f -n $device > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
detach

attach 2
echo 3 > /proc/sys/vm/drop_caches
mount -t ext4 $device /mnt
(cd /mnt/files && sha256sum -c /share/manifest > /tmp/said) || { cat /tmp/said; exit 1; }
echo "verified $(grep -c ': OK$' /tmp/said)"
echo "written in the second session" > /mnt/note
rm /mnt/ballast
# Only what a commit of the journal has freed is trimmed.
sync
fstrim /mnt
umount /mnt
e2fsck -f -n $device > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
echo "device $(dd if=$device bs=512k iflag=direct 2> /dev/null | sum)"
detach
