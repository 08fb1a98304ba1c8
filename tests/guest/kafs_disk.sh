# The kernel's client uses the cell as a disk, beside others that do: afsd.fuse on the host, and another
# guest. /share/NAME.tar is a tree of sources, /share/NAME.sums what is in it, /share/cc.tar what a
# compiler takes, /share/tests which tests of Connectathon's are run. Files in /share say who is how far. Prints a line per fact.
set -e
. /share/kafs.sh
me=$(cat /share/me)
other=$(cat /share/other)
tar xf /share/cc.tar -C /
attach /mnt

# ---- a tree of sources ----
mkdir /mnt/$me
cd /mnt/$me
tar xof /share/tree.tar
(cd tree && sha256sum -c /share/sums > /tmp/said) || { cat /tmp/said; exit 1; }
say "verified $(grep -c ': OK$' /tmp/said)"
mv tree moved
mkdir built
cd moved
for source in *.c; do tcc -DLUA_USE_POSIX -c "$source"; done
ar rcs liblua.a $(ls *.o | grep -v main.o) 2> /dev/null || true
tcc -o minimal *.o -lm > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
say "ran $(./minimal script.lua | tr '\t' ' ')"
mv minimal ../built/program
mv ../built ../again
say "ran_again $(../again/program script.lua | tr '\t' ' ')"
rm ./*.o kept

# ---- names and attributes ----
ln lua.h second.h
say "links $(stat -c %h lua.h)"
rm lua.h
say "links_left $(stat -c %h second.h)"
mv second.h lua.h
ln -s lua.h symbolic.h
say "symbolic $(readlink symbolic.h) $(cmp lua.h symbolic.h && echo same)"
rm symbolic.h
chmod 600 main.c
touch -d '2001-02-03 04:05:06' main.c
say "attributes $(stat -c '%a %Y' main.c)"
chmod 644 main.c
say "statfs $(stat -f -c %b . | grep -c '^[1-9]')"
cd /

# ---- Connectathon ----
mkdir /mnt/$me/connectathon
connectathon /mnt/$me/connectathon $(cat /share/tests)
rmdir /mnt/$me/connectathon

# ---- a file beyond 4 GiB ----
dd if=/share/piece of=/mnt/$me/large bs=1M 2> /dev/null
dd if=/share/piece of=/mnt/$me/large bs=1M seek=4608 conv=notrunc 2> /dev/null
dd if=/share/piece of=/mnt/$me/large bs=1M seek=4095 conv=notrunc 2> /dev/null
say "large $(stat -c %s /mnt/$me/large)"

# ---- with a cold cache ----
look_again() {
  (cd /mnt/$me/moved && sha256sum -c /share/sums > /tmp/said) || { cat /tmp/said; exit 1; }
  say "$1_verified $(grep -c ': OK$' /tmp/said)"
  say "$1_first $(dd if=/mnt/$me/large bs=1M count=2 2> /dev/null | sum)"
  say "$1_hole $(dd if=/mnt/$me/large bs=1M skip=4000 count=1 2> /dev/null | tr -d '\000' | wc -c)"
  say "$1_across $(dd if=/mnt/$me/large bs=1M skip=4095 count=2 2> /dev/null | sum)"
  say "$1_last $(dd if=/mnt/$me/large bs=1M skip=4608 2> /dev/null | sum)"
}
attach_again /mnt
look_again cold

# ---- a server that is started again ----
touch /share/$me-may-restart
await /share/restarted
echo "after the restart" > /mnt/$me/after
say "after $(cat /mnt/$me/after)"
look_again warm
attach_again /mnt
look_again restarted

# ---- callbacks ----
until_true [ -e /mnt/talk ]
# How long it is says that a change was heard of. What is read may be older: these kernels keep a page that
# they have just read, although they know that the file has changed (afs_zap_data).
rounds=$(cat /share/rounds)
is_long() { [ "$(stat -c %s /mnt/talk)" = $1 ]; }
for length in $(seq $rounds); do
  until_true is_long $length
  cat /mnt/talk > /dev/null
  touch /share/$me-heard-$length
done
# Each speaks in its turn; the other hears it.
length_of() { case $1 in a) echo $((rounds + 1)) ;; b) echo $((rounds + 2)) ;; esac; }
speak() {
  await /share/$me-speaks
  head -c $(length_of $me) /dev/zero | tr '\000' $me > /mnt/talk
  mkdir /mnt/folder-of-$me
}
hear() {
  until_true is_long $(length_of $other)
  until_true [ -d /mnt/folder-of-$other ]
  touch /share/$me-heard-$other
}
if [ $me = a ]; then speak && hear; else hear && speak; fi
say "heard $other"

# ---- locks ----
exec 9>> /mnt/lock
if [ $me = a ]; then
  flock -n 9
  flock -n /mnt/lock true && fail "two programs have one lock"
  touch /share/locked
  await /share/refused
  flock -u 9
else
  await /share/locked
  flock -n 9 && fail "two machines have one lock"
  touch /share/refused
  flock 9
fi
say "locked"
exec 9>&-

# ---- nothing is left ----
rm -r /mnt/$me /mnt/folder-of-$me
say "left $(ls /mnt | grep -c "^$me\$")"
umount /mnt
