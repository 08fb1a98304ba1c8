# The first day of a newcomer, with EVFS and two peers, on a system that has none of them: the two
# boots of a system in a guest, of which /share/boot names one. An encrypted file system of 64 MiB,
# opened at boot by a key on the system's own disk.
#
# Prints `step PROGRAM STEP COMMANDS MILLISECONDS` for each step, and what was typed before it.
# COMMANDS counts lines typed; a line added to a file, or removed, is one.
umask 077

# Commands that restart the system, whatever is installed: nothing is typed after them.
restart=('systemctl reboot --no-block')

say() { echo "$*"; }
now() { date +%s%3N; }
# Types commands, all of which have to succeed.
step() {
  local program=$1 step=$2 start command
  shift 2
  start=$(now)
  for command; do
    say "typed $program $command"
    bash -c "$command" < /dev/null > /tmp/said 2>&1 || fail "$command: $(cat /tmp/said)"
  done
  say "step $program $step $# $(($(now) - start))"
}
fail() {
  say "fault $*"
  journalctl --boot --output=short-monotonic _TRANSPORT=journal + _TRANSPORT=stdout
  exit 1
}
# Fails unless the file of each program is there.
check() {
  local dir
  for dir in /srv/a /srv/b /srv/c; do
    [ "$(cat $dir/file 2>&1)" = kept ] || fail "$1: $dir/file: $(cat $dir/file 2>&1)"
  done
}
# The time that units took to start, in milliseconds.
started() {
  local unit all=0
  for unit; do
    [ "$(systemctl show --property=ActiveState --value "$unit")" = active ] || fail "$unit"
    for stamp in ActiveEnter InactiveExit; do
      local $stamp=$(systemctl show --property=${stamp}TimestampMonotonic --value "$unit")
    done
    all=$((all + (ActiveEnter - InactiveExit) / 1000))
  done
  echo $all
}
# The step that ended the boot before: its time is that of opening and mounting by these units.
restarted() {
  local program=$1 millis command
  shift
  millis=$(started "$@") || { say "$millis" && exit 1; }
  for command in "${restart[@]}"; do say "typed $program $command"; done
  say "step $program reboot ${#restart[@]} $millis"
}
# Kills the process that serves a mount.
kill_server() {
  local pid
  for pid in $(cat "/sys/fs/cgroup/system.slice/$1/cgroup.procs"); do kill -9 "$pid"; done
}
# The state of an instance of the unit, and the number of its links.
instance() {
  echo "$(systemctl show --property=ActiveState --value evfs@d.service)" \
    "$(find /etc/systemd/system -type l -name 'evfs@*' | wc -l)"
}

first() {
  step evfs install 'dpkg -i /share/old/*.deb'
  step evfs quickstart 'evfs quickstart --size 96M'
  step evfs create \
    'evfs key generate admin --no-passphrase' \
    'evfs volume create /srv/a.img --size 64M --owner admin' \
    'evfs format /srv/a.img'
  step evfs mount \
    'mkdir /srv/a' \
    'evfs mount /srv/a.img /srv/a --background'
  step evfs boot \
    'echo "/srv/a.img /srv/a evfs nofail,key=admin 0 0" >> /etc/fstab'

  step cryptsetup install 'dpkg -i /share/later/cryptsetup-bin_*.deb'
  step cryptsetup create \
    'head -c 32 /dev/urandom > /etc/b.key' \
    'truncate --size=64M /srv/b.img' \
    'cryptsetup luksFormat --batch-mode /srv/b.img /etc/b.key' \
    'cryptsetup open --key-file /etc/b.key /srv/b.img b' \
    'mkfs.ext4 -q /dev/mapper/b'
  step cryptsetup mount \
    'mkdir /srv/b' \
    'mount /dev/mapper/b /srv/b'
  step cryptsetup boot \
    'echo "b /srv/b.img /etc/b.key luks,nofail" >> /etc/crypttab' \
    'echo "/dev/mapper/b /srv/b ext4 nofail 0 2" >> /etc/fstab'

  step gocryptfs install 'dpkg -i /share/later/gocryptfs_*.deb'
  step gocryptfs create \
    'head -c 32 /dev/urandom | base64 > /etc/c.key' \
    'mkdir /srv/c.encrypted' \
    'gocryptfs -init -passfile /etc/c.key /srv/c.encrypted'
  step gocryptfs mount \
    'mkdir /srv/c' \
    'gocryptfs -passfile /etc/c.key /srv/c.encrypted /srv/c'
  local options=nofail,allow_other,passfile=/etc/c.key
  step gocryptfs boot \
    "echo '/srv/c.encrypted /srv/c fuse./usr/bin/gocryptfs $options 0 0' >> /etc/fstab"

  echo kept | tee /srv/a/file /srv/b/file > /srv/c/file
}

second() {
  check "after the restart"
  restarted evfs srv-a.mount
  restarted cryptsetup systemd-cryptsetup@b.service srv-b.mount
  restarted gocryptfs srv-c.mount

  kill_server srv-a.mount
  step evfs kill 'mount /srv/a'
  # The kernel serves it.
  step cryptsetup kill
  kill_server srv-c.mount
  step gocryptfs kill \
    'umount /srv/c' \
    'mount /srv/c'
  check "after a kill"

  step evfs upgrade 'dpkg -i /share/new/*.deb'
  step cryptsetup upgrade 'dpkg -i /share/later/cryptsetup-bin_*.deb'
  step gocryptfs upgrade 'dpkg -i /share/later/gocryptfs_*.deb'
  check "after an upgrade"

  evfs volume create /srv/d.img --size 64M --owner admin > /dev/null
  printf '[volume.d]\ndevice = "/srv/d.img"\n' > /etc/evfs/evfs.toml
  systemctl enable --quiet --now evfs@d.service
  local before after
  before=$(instance)
  step evfs remove \
    'umount /srv/a' \
    'sed -i /srv.a.img/d /etc/fstab' \
    'dpkg --remove evfs'
  step cryptsetup remove \
    'umount /srv/b' \
    'cryptsetup close b' \
    'sed -i /mapper.b/d /etc/fstab' \
    'sed -i /srv.b.img/d /etc/crypttab' \
    'dpkg --remove cryptsetup-bin'
  step gocryptfs remove \
    'umount /srv/c' \
    'sed -i /srv.c.encrypted/d /etc/fstab' \
    'dpkg --remove gocryptfs'
  after=$(instance)
  say "instance $before $after"
  say "left $(grep -c " /srv/" /proc/mounts || :)"
  say "key $(ls /etc/evfs/keys | tr "\n" " ")"
}

case $(cat /share/boot) in first) last=("${restart[@]}") ;; *) last=('systemctl poweroff --no-block') ;; esac
trap 'for command in "${last[@]}"; do bash -c "$command" 2> /dev/null; done' EXIT
set -e
say "state $(systemctl is-system-running --wait || :)"
systemctl --failed --plain --no-legend | sed 's/^/failed /'
"$(cat /share/boot)"
say end
