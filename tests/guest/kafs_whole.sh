# Writes a file of many pieces through the kernel's client, and compares it once nothing is cached.
set -e
. /share/kafs.sh
cp /share/piece /tmp/piece
pieces=$(cat /share/pieces)
attach /mnt
sh /share/whole.sh /tmp/piece "$pieces" > /mnt/whole
say "written $(cut -d ' ' -f 1 /proc/uptime)"
attach_again /mnt
sh /share/whole.sh /tmp/piece "$pieces" | cmp - /mnt/whole
say "compared $(cut -d ' ' -f 1 /proc/uptime)"
rm /mnt/whole
umount /mnt
