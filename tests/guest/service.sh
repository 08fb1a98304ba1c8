# Units, fstab and credentials of EVFS in a system in a guest; /share/boot names the boot.
# Prints a line per fact, which begins with its name. The boot ends in every case.

say() { echo "$*"; }
# A property of a unit.
property() { systemctl show --property="$1" --value "$2"; }
# Waits until a command succeeds, for two minutes.
until_true() {
  local end=$((SECONDS + 120))
  until "$@"; do
    [ $SECONDS -lt $end ] || { say "fault not in two minutes: $*" && exit 1; }
    sleep 0.1
  done
}
# The last words of a boot, with the journal if something went wrong.
finish() {
  if [ "$1" = 0 ]; then
    say end
  else
    journalctl --boot --output=short-monotonic _TRANSPORT=journal + _TRANSPORT=stdout
  fi
  systemctl poweroff --no-block 2> /dev/null
}
# The facts that each boot begins with.
begin() {
  say "state $(systemctl is-system-running --wait || :)"
  say "boot_id $(cat /proc/sys/kernel/random/boot_id)"
  systemctl --failed --plain --no-legend | sed 's/^/failed /'
}
# The end of the boot before: the order in which units stopped, units that failed to start or stop,
# errors, and signs of a crash.
look_back() {
  local before=(journalctl --boot=-1 --output=cat)
  "${before[@]}" --output-fields=UNIT JOB_TYPE=stop JOB_RESULT=done | sed 's/^/stopped /'
  "${before[@]}" --output-fields=UNIT JOB_RESULT=failed + JOB_RESULT=timeout | sed 's/^/job_failed /'
  "${before[@]}" --priority=err _TRANSPORT=journal + _TRANSPORT=stdout | sed 's/^/error /'
  signs_of_a_crash
}
# Signs in this boot that the machine, or a service in it, did not end in an orderly way before.
signs_of_a_crash() {
  journalctl --sync
  journalctl --boot --output=cat |
    grep -i 'uncleanly shut down\|recovery complete\|which a killed process left\|no longer in use' |
    sed 's/^/unclean /' || :
}

first() {
  say "automount $(property SubState data.automount) $(property ActiveState data.mount)"
  ls -A /data > /dev/null
  say "accessed $(property ActiveState data.mount)"
  systemctl enable --now consumer.service
  say "consumer $(property ActiveState consumer.service)"
  say "credential $(cd /etc && ls -d credstore.encrypted/* store.key 2> /dev/null | tr '\n' ' ')"
  say "status $(evfs --json status | tr -d '\n')"

  local pid restarts=0 how
  pid=$(property MainPID evfs.service)
  echo kept > /store/kept
  sync /store/kept
  is_restarted() {
    [ "$(property NRestarts evfs.service)" = $restarts ] &&
      [ "$(property ActiveState evfs.service)" = active ] && cmp -s /store/kept - <<< kept
  }
  for how in KILL STOP; do
    kill -s $how "$(property MainPID evfs.service)"
    restarts=$((restarts + 1))
    until_true is_restarted && say "restarted_after_$how"
  done
  [ "$(property MainPID evfs.service)" != "$pid" ]
  # The killed services leave signs, or the next boot would prove nothing by finding none.
  signs_of_a_crash
  journalctl --boot --unit=evfs.service --output=cat --grep='Watchdog timeout' | sed 's/^/watchdog /'

  # The last words of this boot are in memory only.
  echo late > /store/late
  # From the next boot on, each table has a process of its own, and one is opened by an answer.
  systemctl disable evfs.service
  systemctl enable evfs@store.service evfs@asked.service
  sed -i 's/^\[mount.store\]$/&\nsurvive = true/' /etc/evfs/evfs.toml
  printf '\n[volume.asked]\ndevice = "/dev/vdd"\nloop = true\n' >> /etc/evfs/evfs.toml
}

second() {
  local unit device
  look_back
  for unit in evfs@store evfs@asked consumer; do
    say "active_$unit $(property ActiveState $unit.service) $(property NRestarts $unit.service)"
  done
  say "kept $(cat /store/kept)"
  say "late $(cat /store/late)"
  say "log $(tr '\n' ' ' < /data/log)"
  say "status $(evfs --json status | tr -d '\n')"
  device=$(evfs --json status | grep -o '/dev/loop[0-9]*' | head -n 1)
  echo "through the loop device" | dd of="$device" bs=4096 count=1 conv=sync,notrunc status=none
  say "loop $(head -n 1 "$device")"
  outlive
}

# Servers die, or the program starts again, while a file is open; then the keeper is killed, and then
# the unit starts again.
outlive() {
  local lines=0 how server=
  is_right() { cmp -s /store/lines <(seq $lines); }
  is_another() {
    server=$(evfs --json status store | sed -n 's/^ *"pid": \([0-9]*\),$/\1/p')
    [ -n "$server" ] && [ "$server" != "$1" ]
  }
  append() { seq $((lines + 1)) $((lines + $1)) >&8 && lines=$((lines + $1)); }
  exec 8>> /store/lines
  for how in kill kill restart kill; do
    append 500
    until_true is_another "$server"
    if [ $how = kill ]; then kill -s KILL "$server"; else evfs restart store > /dev/null; fi
    append 1
    is_right && say "outlived $how"
  done
  exec 8>&-
  say "watched $(property ActiveState evfs@store.service) $(property NRestarts evfs@store.service)"
  append() { seq $((lines + 1)) $((lines + $1)) >> /store/lines && lines=$((lines + $1)); }
  append 100
  # systemd does not wait for the server, which stops in order.
  sync /store/lines
  systemctl kill --kill-whom=main --signal=KILL evfs@store.service
  until_true is_right && say "without_keeper $(property NRestarts evfs@store.service)"
  append 100
  systemctl restart evfs@store.service
  is_right && say "restarted $(property ActiveState evfs@store.service)"
}

trap 'finish $?' EXIT
set -e
begin
"$(cat /share/boot)"
