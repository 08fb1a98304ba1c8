#!/bin/sh
# Makes the seeds of the LUKS2 targets again with the installed cryptsetup.
# Run in this folder; the seeds differ from those committed in their random parts only.
set -eu
image=$(mktemp); token=$(mktemp)
trap 'rm -f "$image" "$token"' EXIT
cheap="--pbkdf-memory=32 --pbkdf-force-iterations=4 --pbkdf-parallel=1"
make() { # NAME HEADER_BYTES OPTIONS...
    name=$1; bytes=$2; shift 2
    rm -f "$image"; truncate -s 17M "$image"
    printf pw | cryptsetup luksFormat -q --type luks2 --key-file=- "$@" "$image"
    save
}
save() {
    dd if="$image" of="corpus/luks2_header/$name" bs="$bytes" count=2 status=none
    dd if="$image" bs=4096 skip=1 count=3 status=none | tr -d '\000' >"corpus/luks2_json/$name"
}
make argon2id-512 16384 $cheap -s 512 --sector-size 512 --label seed
make argon2i-256 16384 $cheap --pbkdf argon2i -s 256 --sector-size 4096
make pbkdf2-sha1 16384 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --hash sha1
make metadata-32k 32768 $cheap --luks2-metadata-size 32k
make many 16384 $cheap -s 256
for n in 1 2 3; do
    printf 'pw%s' $n >"$token"
    printf pw | cryptsetup luksAddKey -q $cheap --key-file=- "$image" "$token"
done
printf '%s' '{"type":"other","keyslots":["0","2"],"n":[1.5,-2e3,null],"s":"\/\u00e9"}' >"$token"
cryptsetup token import --json-file "$token" "$image"
cryptsetup config "$image" --key-slot 1 --priority prefer
name=many; bytes=16384; save
