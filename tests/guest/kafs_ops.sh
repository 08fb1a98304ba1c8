# Runs the operations of afs_ops through the kernel's client.
set -e
. /share/kafs.sh
mkdir /small /locked
attach /mnt
attach /small small
attach /locked locked
afs_ops /mnt 10.0.2.2:7777 /small /locked
umount /small /locked /mnt
