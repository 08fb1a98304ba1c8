#!/bin/sh
# Installs EVFS from the directory of this file, or removes it.
#
#   install.sh [--prefix DIR]               installs into DIR [default: /usr/local]
#   install.sh --uninstall [--prefix DIR]   removes the installed files
#
# DIR/share/evfs/installed lists the installed files. Outside of DIR these are the helpers of mount(8)
# in /sbin, the units in /usr/local/lib/systemd/system, and the resource agent of Pacemaker in
# /usr/lib/ocf/resource.d. Keys, the configuration and volumes are
# never changed. An installation over an older one replaces it.
set -eu
umask 022

die() {
    echo "install.sh: $*" >&2
    exit 1
}

prefix=/usr/local
action=install
while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -ge 2 ] || die "--prefix needs a directory"
        prefix=${2%/}
        shift
        ;;
    --uninstall) action=uninstall ;;
    *) die "unknown argument \`$1\`: install.sh [--uninstall] [--prefix DIR]" ;;
    esac
    shift
done
case $prefix in
/*) ;;
*) die "\`$prefix\` is not an absolute path" ;;
esac
case $prefix in
*[!A-Za-z0-9/._-]*) die "\`$prefix\` contains a character that a unit or a list cannot: choose another --prefix" ;;
esac
[ "$(id -u)" = 0 ] || die "it installs helpers of mount(8) and units: run it as root"

list=$prefix/share/evfs/installed
units=/usr/local/lib/systemd/system
agents=/usr/lib/ocf/resource.d/evfs

reload() {
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
}

# Removes the files that standard input lists, and directories of EVFS that are empty then.
remove() {
    while IFS= read -r file; do
        rm -f "$file"
    done
    for dir in "$prefix/share/evfs" "$prefix/share/doc/evfs" "$agents"; do
        [ ! -d "$dir" ] || find "$dir" -depth -type d -exec rmdir --ignore-fail-on-non-empty {} +
    done
}

if [ "$action" = uninstall ]; then
    [ -f "$list" ] || die "nothing is installed in $prefix: $list does not exist"
    # Services write all data to stable storage.
    if [ -d /run/systemd/system ]; then
        systemctl stop evfs.service evfs-cluster.service 'evfs@*.service' > /dev/null 2>&1 || :
    fi
    systemctl --no-reload disable evfs.service evfs-cluster.service > /dev/null 2>&1 || :
    temporary=$(mktemp)
    trap 'rm -f "$temporary"' EXIT
    { cat "$list" && echo "$list"; } > "$temporary"
    remove < "$temporary"
    # Disables the instances of evfs@.service: their links lead nowhere now.
    for link in /etc/systemd/system/*.wants/evfs@*.service /etc/systemd/system/*.requires/evfs@*.service; do
        if [ -L "$link" ] && [ ! -e "$link" ]; then
            rm "$link"
        fi
    done
    reload
    echo "removed EVFS from $prefix; /etc/evfs and /var/lib/evfs stay"
    exit
fi

[ "$prefix" = /usr ] || [ ! -e /usr/bin/evfs ] || die "a package has installed /usr/bin/evfs: remove the package first"
cd "$(dirname "$0")"
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
new=$temporary/installed

# put MODE SOURCE TARGET
put() {
    install -D -m "$1" "$2" "$3"
    echo "$3" >> "$new"
}

put 755 bin/evfs "$prefix/bin/evfs"
find share -type f | LC_ALL=C sort > "$temporary/share"
while IFS= read -r file; do
    case $file in
    */vendor-completions/_evfs) put 644 "$file" "$prefix/share/zsh/site-functions/_evfs" ;;
    *) put 644 "$file" "$prefix/$file" ;;
    esac
done < "$temporary/share"
for unit in evfs-cluster.service evfs.service evfs@.service; do
    sed "s|/usr/bin/evfs|$prefix/bin/evfs|" "lib/systemd/system/$unit" > "$temporary/$unit"
    put 644 "$temporary/$unit" "$units/$unit"
done
sed "s|/usr/bin/evfs|$prefix/bin/evfs|g" lib/ocf/resource.d/evfs/evfs > "$temporary/agent"
put 755 "$temporary/agent" "$agents/evfs"
for helper in sbin/*; do
    ln -sfn "$prefix/bin/evfs" "/sbin/${helper##*/}"
    echo "/sbin/${helper##*/}" >> "$new"
done

# Files of an older version that this one does not have.
if [ -f "$list" ]; then
    grep -Fvx -f "$new" "$list" > "$temporary/old" || :
    remove < "$temporary/old"
fi
install -D -m 644 "$new" "$list"
reload
echo "installed $("$prefix/bin/evfs" --version) in $prefix"
command -v fusermount3 > /dev/null || echo "mounts need fusermount3: install the package fuse3"
