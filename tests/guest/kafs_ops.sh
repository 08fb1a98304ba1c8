# Runs the operations of afs_ops through the kernel's client.
. /share/kafs.sh
attach /mnt
afs_ops /mnt 10.0.2.2:7777
umount /mnt
