//! The kinds of hostile metadata, one per line: a name, the change to a sound header, the verdict.

use luks2::ErrorKind;
use serde_json::{Value, json};

/// A name, the change to the JSON, and the expected error.
pub(crate) type Case = (&'static str, fn(&mut Value), ErrorKind);

pub(crate) const DAMAGED: ErrorKind = ErrorKind::Damaged;
pub(crate) const REFUSED: ErrorKind = ErrorKind::Refused;
pub(crate) const UNSUPPORTED: ErrorKind = ErrorKind::Unsupported;
pub(crate) const TOO_SMALL: ErrorKind = ErrorKind::DeviceTooSmall;

fn remove(value: &mut Value, key: &str) {
    value
        .as_object_mut()
        .expect("an object")
        .remove(key)
        .expect("a key");
}

fn rename(value: &mut Value, from: &str, to: &str) {
    let object = value.as_object_mut().expect("an object");
    let moved = object.remove(from).expect("a key");
    object.insert(to.into(), moved);
}

/// Adds a second keyslot like keyslot 0, at `offset`, to the keyslots and the digest.
fn second_keyslot(v: &mut Value, offset: &str) {
    let mut slot = v["keyslots"]["0"].clone();
    slot["area"]["offset"] = offset.into();
    v["keyslots"]["1"] = slot;
    v["digests"]["0"]["keyslots"] = json!(["0", "1"]);
}

fn argon2id(v: &mut Value, time: u64, memory: u64, cpus: u64) {
    let salt = v["keyslots"]["0"]["kdf"]["salt"].clone();
    v["keyslots"]["0"]["kdf"] =
        json!({"type": "argon2id", "time": time, "memory": memory, "cpus": cpus, "salt": salt});
}

#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    // Sections
    ("no keyslots", |v| remove(v, "keyslots"), DAMAGED),
    ("no tokens", |v| remove(v, "tokens"), DAMAGED),
    ("no segments", |v| remove(v, "segments"), DAMAGED),
    ("no digests", |v| remove(v, "digests"), DAMAGED),
    ("no config", |v| remove(v, "config"), DAMAGED),
    ("keyslots is an array", |v| v["keyslots"] = json!([]), DAMAGED),
    ("a keyslot is a number", |v| v["keyslots"]["0"] = json!(1), DAMAGED),
    // Numbers of objects
    ("keyslot named by a letter", |v| rename(&mut v["keyslots"], "0", "a"), DAMAGED),
    ("keyslot 32", |v| { rename(&mut v["keyslots"], "0", "32"); v["digests"]["0"]["keyslots"] = json!(["32"]); v["tokens"] = json!({}); }, REFUSED),
    ("keyslot 00", |v| { rename(&mut v["keyslots"], "0", "00"); v["digests"]["0"]["keyslots"] = json!(["00"]); v["tokens"] = json!({}); }, REFUSED),
    ("keyslot without a name", |v| v["keyslots"][""] = v["keyslots"]["0"].clone(), REFUSED),
    ("keyslot 2^32", |v| v["keyslots"]["4294967296"] = v["keyslots"]["0"].clone(), REFUSED),
    ("token 32", |v| rename(&mut v["tokens"], "0", "32"), REFUSED),
    ("digest 8", |v| rename(&mut v["digests"], "0", "8"), REFUSED),
    ("segment 32", |v| { rename(&mut v["segments"], "0", "32"); v["digests"]["0"]["segments"] = json!(["32"]); }, REFUSED),
    // Keyslots
    ("keyslot without type", |v| remove(&mut v["keyslots"]["0"], "type"), DAMAGED),
    ("key size in a string", |v| v["keyslots"]["0"]["key_size"] = json!("64"), DAMAGED),
    ("negative key size", |v| v["keyslots"]["0"]["key_size"] = json!(-64), DAMAGED),
    ("key size of 2^32", |v| v["keyslots"]["0"]["key_size"] = json!(1u64 << 32), DAMAGED),
    ("key size with a fraction", |v| v["keyslots"]["0"]["key_size"] = json!(64.5), DAMAGED),
    ("key size 0", |v| v["keyslots"]["0"]["key_size"] = json!(0), UNSUPPORTED),
    ("key size 48", |v| v["keyslots"]["0"]["key_size"] = json!(48), UNSUPPORTED),
    ("key size of 1 MiB", |v| v["keyslots"]["0"]["key_size"] = json!(1 << 20), UNSUPPORTED),
    ("keyslots of different key sizes", |v| { second_keyslot(v, "1048576"); v["keyslots"]["1"]["key_size"] = json!(32); }, REFUSED),
    ("keyslot of the type reencrypt", |v| v["keyslots"]["0"]["type"] = json!("reencrypt"), UNSUPPORTED),
    ("keyslot of an unknown type", |v| v["keyslots"]["0"]["type"] = json!("tpm9"), UNSUPPORTED),
    // Areas
    ("no area", |v| remove(&mut v["keyslots"]["0"], "area"), DAMAGED),
    ("area over the copies", |v| v["keyslots"]["0"]["area"]["offset"] = json!("28672"), DAMAGED),
    ("area at 0", |v| v["keyslots"]["0"]["area"]["offset"] = json!("0"), DAMAGED),
    ("area over the data", |v| v["keyslots"]["0"]["area"]["offset"] = json!("16773120"), DAMAGED),
    ("area ends beyond 2^64", |v| v["keyslots"]["0"]["area"]["offset"] = json!("18446744073709547520"), DAMAGED),
    ("area offset beyond 2^64", |v| v["keyslots"]["0"]["area"]["offset"] = json!("18446744073709551616"), DAMAGED),
    ("empty area", |v| v["keyslots"]["0"]["area"]["size"] = json!("0"), DAMAGED),
    ("area offset is a number", |v| v["keyslots"]["0"]["area"]["offset"] = json!(32768), DAMAGED),
    ("area offset with a sign", |v| v["keyslots"]["0"]["area"]["offset"] = json!("+32768"), DAMAGED),
    ("area offset in hexadecimal", |v| v["keyslots"]["0"]["area"]["offset"] = json!("0x8000"), DAMAGED),
    ("two keyslots in one area", |v| second_keyslot(v, "32768"), DAMAGED),
    ("areas that overlap by a page", |v| second_keyslot(v, "286720"), DAMAGED),
    ("area too short for its key", |v| v["keyslots"]["0"]["area"]["size"] = json!("4096"), UNSUPPORTED),
    ("misaligned area", |v| v["keyslots"]["0"]["area"]["offset"] = json!("33280"), UNSUPPORTED),
    ("area of an unknown type", |v| v["keyslots"]["0"]["area"]["type"] = json!("x"), DAMAGED),
    ("area without type in an unknown keyslot", |v| { v["keyslots"]["0"]["type"] = json!("x"); remove(&mut v["keyslots"]["0"]["area"], "type"); }, DAMAGED),
    ("area key of 16 bytes", |v| v["keyslots"]["0"]["area"]["key_size"] = json!(16), UNSUPPORTED),
    ("area key of -1 bytes", |v| v["keyslots"]["0"]["area"]["key_size"] = json!(-1), UNSUPPORTED),
    ("null cipher in a keyslot", |v| v["keyslots"]["0"]["area"]["encryption"] = json!("cipher_null-ecb"), REFUSED),
    ("null cipher in a second keyslot", |v| { second_keyslot(v, "1048576"); v["keyslots"]["1"]["area"]["encryption"] = json!("null"); }, REFUSED),
    ("other cipher in a keyslot", |v| v["keyslots"]["0"]["area"]["encryption"] = json!("serpent-xts-plain64"), UNSUPPORTED),
    // Anti-forensic split
    ("no af", |v| remove(&mut v["keyslots"]["0"], "af"), DAMAGED),
    ("af of an unknown type", |v| v["keyslots"]["0"]["af"]["type"] = json!("x"), DAMAGED),
    ("1 stripe", |v| v["keyslots"]["0"]["af"]["stripes"] = json!(1), UNSUPPORTED),
    ("0 stripes", |v| v["keyslots"]["0"]["af"]["stripes"] = json!(0), UNSUPPORTED),
    ("2^40 stripes", |v| v["keyslots"]["0"]["af"]["stripes"] = json!(1u64 << 40), UNSUPPORTED),
    ("stripes in a string", |v| v["keyslots"]["0"]["af"]["stripes"] = json!("4000"), DAMAGED),
    ("af with an unknown hash", |v| v["keyslots"]["0"]["af"]["hash"] = json!("whirlpool"), UNSUPPORTED),
    // Key derivation
    ("no kdf", |v| remove(&mut v["keyslots"]["0"], "kdf"), DAMAGED),
    ("kdf without salt", |v| remove(&mut v["keyslots"]["0"]["kdf"], "salt"), DAMAGED),
    ("kdf with a short salt", |v| v["keyslots"]["0"]["kdf"]["salt"] = json!("AAAA"), UNSUPPORTED),
    ("kdf with a salt that is no base64", |v| v["keyslots"]["0"]["kdf"]["salt"] = json!("?"), UNSUPPORTED),
    ("unknown kdf", |v| v["keyslots"]["0"]["kdf"]["type"] = json!("scrypt"), UNSUPPORTED),
    ("pbkdf2 with 2^32-1 iterations", |v| v["keyslots"]["0"]["kdf"]["iterations"] = json!(u32::MAX), REFUSED),
    ("pbkdf2 with 0 iterations", |v| v["keyslots"]["0"]["kdf"]["iterations"] = json!(0), REFUSED),
    ("pbkdf2 with 2^63 iterations", |v| v["keyslots"]["0"]["kdf"]["iterations"] = json!(1u64 << 63), UNSUPPORTED),
    ("pbkdf2 with an unknown hash", |v| v["keyslots"]["0"]["kdf"]["hash"] = json!("md5"), UNSUPPORTED),
    ("argon2id with 4 TiB", |v| argon2id(v, 4, (1 << 32) - 1, 4), REFUSED),
    ("argon2id with 2^32-1 passes", |v| argon2id(v, (1 << 32) - 1, 1 << 20, 4), REFUSED),
    ("argon2id with 2^24 lanes", |v| argon2id(v, 4, 1 << 20, 1 << 24), REFUSED),
    ("argon2id without passes", |v| argon2id(v, 0, 1 << 10, 1), REFUSED),
    ("argon2id without memory", |v| argon2id(v, 4, 0, 1), REFUSED),
    ("argon2id without lanes", |v| argon2id(v, 4, 1 << 10, 0), REFUSED),
    // Digests
    ("keyslot without digest", |v| v["digests"]["0"]["keyslots"] = json!([]), DAMAGED),
    ("keyslot in two digests", |v| { v["digests"]["1"] = v["digests"]["0"].clone(); v["digests"]["1"]["segments"] = json!([]); }, DAMAGED),
    ("digest of a keyslot that is not there", |v| v["digests"]["0"]["keyslots"] = json!(["0", "5"]), DAMAGED),
    ("digest of a segment that is not there", |v| v["digests"]["0"]["segments"] = json!(["0", "5"]), DAMAGED),
    ("digest without a list of keyslots", |v| remove(&mut v["digests"]["0"], "keyslots"), DAMAGED),
    ("digest with numbers for keyslots", |v| v["digests"]["0"]["keyslots"] = json!([0]), DAMAGED),
    ("digest with another name for a keyslot", |v| v["digests"]["0"]["keyslots"] = json!(["00"]), DAMAGED),
    ("digest of an unknown type", |v| v["digests"]["0"]["type"] = json!("x"), UNSUPPORTED),
    ("digest with an unknown hash", |v| v["digests"]["0"]["hash"] = json!("crc32"), UNSUPPORTED),
    ("digest of no bytes", |v| v["digests"]["0"]["digest"] = json!(""), REFUSED),
    ("digest of 3 bytes", |v| v["digests"]["0"]["digest"] = json!("AAAA"), REFUSED),
    ("digest without iterations", |v| v["digests"]["0"]["iterations"] = json!(0), REFUSED),
    ("digest with 2^32-1 iterations", |v| v["digests"]["0"]["iterations"] = json!(u32::MAX), REFUSED),
    ("digest with a short salt", |v| v["digests"]["0"]["salt"] = json!("AAAA"), REFUSED),
    ("segment without digest", |v| v["digests"]["0"]["segments"] = json!([]), DAMAGED),
    ("segment with two digests", |v| { v["digests"]["1"] = v["digests"]["0"].clone(); v["digests"]["1"]["keyslots"] = json!([]); }, REFUSED),
    // Tokens
    ("token without type", |v| remove(&mut v["tokens"]["0"], "type"), DAMAGED),
    ("token of an empty type", |v| v["tokens"]["0"]["type"] = json!(""), DAMAGED),
    ("token without keyslots", |v| remove(&mut v["tokens"]["0"], "keyslots"), DAMAGED),
    ("token of a keyslot that is not there", |v| v["tokens"]["0"]["keyslots"] = json!(["7"]), DAMAGED),
    // Segments
    ("no segment", |v| v["segments"] = json!({}), DAMAGED),
    ("segment without type", |v| remove(&mut v["segments"]["0"], "type"), DAMAGED),
    ("segment without iv_tweak", |v| remove(&mut v["segments"]["0"], "iv_tweak"), DAMAGED),
    ("segment without encryption", |v| remove(&mut v["segments"]["0"], "encryption"), DAMAGED),
    ("null cipher in the segment", |v| v["segments"]["0"]["encryption"] = json!("cipher_null-ecb"), REFUSED),
    ("null cipher under its short name", |v| v["segments"]["0"]["encryption"] = json!("null"), REFUSED),
    ("other mode in the segment", |v| v["segments"]["0"]["encryption"] = json!("aes-ecb"), UNSUPPORTED),
    ("other vectors in the segment", |v| v["segments"]["0"]["encryption"] = json!("aes-xts-null"), REFUSED),
    ("cipher with a space after it", |v| v["segments"]["0"]["encryption"] = json!("aes-xts-plain64 "), UNSUPPORTED),
    ("no cipher", |v| v["segments"]["0"]["encryption"] = json!(""), DAMAGED),
    ("segment of the type linear", |v| v["segments"]["0"]["type"] = json!("linear"), UNSUPPORTED),
    ("segment with integrity", |v| v["segments"]["0"]["integrity"] = json!({"type": "hmac(sha256)", "journal_encryption": "none", "journal_integrity": "none"}), UNSUPPORTED),
    ("segment in reencryption", |v| v["segments"]["0"]["flags"] = json!(["in-reencryption"]), UNSUPPORTED),
    ("backup segment", |v| v["segments"]["0"]["flags"] = json!(["backup-final"]), UNSUPPORTED),
    ("segment flags in a string", |v| v["segments"]["0"]["flags"] = json!("x"), DAMAGED),
    ("two segments", |v| { v["segments"]["1"] = v["segments"]["0"].clone(); v["digests"]["0"]["segments"] = json!(["0", "1"]); }, UNSUPPORTED),
    ("segment 1 alone", |v| { rename(&mut v["segments"], "0", "1"); v["digests"]["0"]["segments"] = json!(["1"]); }, DAMAGED),
    ("sector size 0", |v| v["segments"]["0"]["sector_size"] = json!(0), DAMAGED),
    ("sector size 513", |v| v["segments"]["0"]["sector_size"] = json!(513), DAMAGED),
    ("sector size 1024", |v| v["segments"]["0"]["sector_size"] = json!(1024), UNSUPPORTED),
    ("sector size 2^31", |v| v["segments"]["0"]["sector_size"] = json!(1u64 << 31), UNSUPPORTED),
    ("sector size in a string", |v| v["segments"]["0"]["sector_size"] = json!("4096"), DAMAGED),
    ("segment size 0", |v| v["segments"]["0"]["size"] = json!("0"), DAMAGED),
    ("segment size of part of a sector", |v| v["segments"]["0"]["size"] = json!("4608"), DAMAGED),
    ("segment size of 100 bytes", |v| v["segments"]["0"]["size"] = json!("100"), DAMAGED),
    ("segment size with a sign", |v| v["segments"]["0"]["size"] = json!("-4096"), DAMAGED),
    ("segment beyond the device", |v| v["segments"]["0"]["size"] = json!("1099511627776"), TOO_SMALL),
    ("segment begins beyond the device", |v| v["segments"]["0"]["offset"] = json!("1099511627776"), TOO_SMALL),
    ("segment ends beyond 2^64", |v| { v["segments"]["0"]["size"] = json!("18446744073709547520"); }, TOO_SMALL),
    ("misaligned segment", |v| v["segments"]["0"]["offset"] = json!("16777217"), DAMAGED),
    ("segment over the keyslots", |v| v["segments"]["0"]["offset"] = json!("32768"), DAMAGED),
    ("segment over the copies", |v| v["segments"]["0"]["offset"] = json!("512"), DAMAGED),
    ("detached header", |v| v["segments"]["0"]["offset"] = json!("0"), UNSUPPORTED),
    ("iv_tweak with a sign", |v| v["segments"]["0"]["iv_tweak"] = json!("-1"), DAMAGED),
    ("iv_tweak that wraps", |v| v["segments"]["0"]["iv_tweak"] = json!("18446744073709551615"), REFUSED),
    ("iv_tweak empty", |v| v["segments"]["0"]["iv_tweak"] = json!(""), DAMAGED),
    // Config
    ("json_size too large", |v| v["config"]["json_size"] = json!("28672"), DAMAGED),
    ("json_size 0", |v| v["config"]["json_size"] = json!("0"), DAMAGED),
    ("json_size of 2^64-1", |v| v["config"]["json_size"] = json!("18446744073709551615"), DAMAGED),
    ("json_size after a space", |v| v["config"]["json_size"] = json!(" 12288"), REFUSED),
    ("misaligned keyslots_size", |v| v["config"]["keyslots_size"] = json!("16744449"), DAMAGED),
    ("keyslots_size over the data", |v| v["config"]["keyslots_size"] = json!("16748544"), DAMAGED),
    ("keyslots_size of 2^60", |v| v["config"]["keyslots_size"] = json!("1152921504606846976"), DAMAGED),
    ("no keyslots_size", |v| remove(&mut v["config"], "keyslots_size"), DAMAGED),
    ("flags of numbers", |v| v["config"]["flags"] = json!([1]), DAMAGED),
    ("requirements in an array", |v| v["config"]["requirements"] = json!([]), DAMAGED),
    ("mandatory in a string", |v| v["config"]["requirements"] = json!({"mandatory": "x"}), DAMAGED),
    ("unknown requirement", |v| v["config"]["requirements"] = json!({"mandatory": ["x"]}), UNSUPPORTED),
    ("reencryption required", |v| v["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2"]}), UNSUPPORTED),
];
