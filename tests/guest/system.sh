# Prepares a Debian system that a guest boots: boot.sh --root runs it in front of the system's init.
#
# The share may have install.deb, a package to install; files, a tree to copy over that of the system;
# and enable, the names of units to enable. It has run, a script that bash runs in the system, as root,
# and whose output is that of the guest. The script is no part of the boot, whose end it may wait for.
set -e
system=/root
share=$system/share
units=$system/etc/systemd/system
# Runs a program of the system.
inside() { PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/busybox chroot $system "$@"; }

# A machine without an identity is new, and asks questions at the console.
[ -s $system/etc/machine-id ] || tr -d - < /proc/sys/kernel/random/uuid > $system/etc/machine-id
echo guest > $system/etc/hostname
mkdir -p $system/var/log/journal
# No user logs in, and no time is spent on daily work.
for unit in getty.target systemd-logind.service e2scrub_reap.service apt-daily.timer \
  apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do
  ln -sf /dev/null $units/$unit
done

if [ -e $share/install.deb ]; then inside dpkg --install /share/install.deb > /dev/null; fi
if [ -d $share/files ]; then cp -r $share/files/. $system/; fi
cat > $units/guest.service <<'UNIT'
[Unit]
Description=Script of the test
[Service]
ExecStart=/bin/bash -c 'exec bash /share/run > /dev/ttyS1 2>&1'
[Install]
WantedBy=multi-user.target
UNIT
inside systemctl --root=/ --quiet enable guest.service
if [ -e $share/enable ]; then inside systemctl --root=/ --quiet enable $(cat $share/enable); fi
