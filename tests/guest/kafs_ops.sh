# Runs the operations of afs_ops through the kernel's client.
set -e
. /share/kafs.sh
attach /mnt
mkdir /small
attach /small small
afs_ops /mnt 10.0.2.2:7777 /small
umount /small /mnt
