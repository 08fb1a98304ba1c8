# The kernel's NBD client on the volume that /bin/address names: a file system on its first half, with
# /bin/data in it; the rest stays as it is. Prints a line per fact.
set -e
read -r host port name < /bin/address
device=/dev/nbd0
queue=/sys/block/nbd0/queue

attach() {
  nbd-client "$host" "$port" "$device" -N "$name" -b 4096 -C 2 > /tmp/said 2>&1 ||
    { cat /tmp/said; exit 1; }
}
sum() { sha256sum | cut -d ' ' -f 1; }

attach
echo "sectors $(cat /sys/block/nbd0/size)"
echo "block_size $(cat $queue/logical_block_size)"
echo "write_cache $(cat $queue/write_cache)"
echo "fua $(cat $queue/fua)"
half=$(($(cat /sys/block/nbd0/size) / 2))
echo "host_wrote $(dd if=$device bs=512k skip=$((half / 1024)) iflag=direct 2> /dev/null | sum)"

mkfs.ext4 -q -F "$device" $((half / 2))k
mount -t ext4 "$device" /mnt
cp /bin/data /mnt/data
mkdir /mnt/folder
echo "written by the guest" > /mnt/folder/note
umount /mnt
nbd-client -d "$device" > /dev/null

# Another session, another mount: what is read now has been through the volume.
attach
echo 3 > /proc/sys/vm/drop_caches
mount -t ext4 "$device" /mnt
echo "file $(sum < /mnt/data)"
rm /mnt/folder/note
echo "changed by the guest" > /mnt/folder/note
umount /mnt
echo "device $(dd if=$device bs=512k iflag=direct 2> /dev/null | sum)"
nbd-client -d "$device" > /dev/null
