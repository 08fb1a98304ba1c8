//! The `keyslots` section. A keyslot with unsupported parameters is kept and listed, and only
//! opening it fails; a keyslot with a null cipher makes the whole header refused.

use super::field::base64;
use super::segment::{CIPHER, refuse_cipher};
use super::{Config, Digest, Fields};
use crate::af::STRIPES;
use crate::binary::BINARY_LEN;
use crate::error::{Error, ErrorKind, Result, quoted};
use crate::hash::Hash;
use crate::json::{Json, Object};
use crate::kdf::{Argon2Cost, Kdf, SALT_LEN};
use std::collections::BTreeMap;

/// Alignment of keyslot areas, in bytes.
const AREA_ALIGN: u64 = 4096;

/// Longest volume key of a keyslot, in bytes: 4,096 bits, eight times the largest cipher key.
const KEY_SIZE_MAX: u32 = 512;

/// A range of bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Range {
    /// Computes the offset of the first byte after the range.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    pub(crate) fn overlaps(&self, other: &Range) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// Order in which keyslots are tried if none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Priority {
    /// Never tried; must be named.
    Ignore,
    /// Tried after the preferred ones.
    #[default]
    Normal,
    /// Tried first.
    Prefer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyslot {
    key_size: u32,
    priority: Priority,
    area: Range,
    kind: SlotKind,
}

/// Type of a keyslot, and whether EVFS supports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// Supported.
    Usable(Luks2Keyslot),
    /// Type `luks2`, but with an unsupported parameter; holds the reason.
    Unusable(String),
    /// Another type; holds its name.
    Foreign(String),
}

/// Parameters by which a keyslot of type `luks2` protects its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Luks2Keyslot {
    /// Key derivation function and its costs.
    pub kdf: Kdf,
    /// Hash of the anti-forensic split.
    pub af_hash: Hash,
    /// Length in bytes of the key that encrypts the area: 32 or 64.
    pub area_key_size: u32,
    pub(crate) salt: Vec<u8>,
}

impl Keyslot {
    /// Reports the length in bytes of the key in the keyslot.
    pub fn key_size(&self) -> u32 {
        self.key_size
    }

    /// Returns the priority at which the keyslot is tried.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// Returns the range of the key material on the device.
    pub fn area(&self) -> Range {
        self.area
    }

    /// Returns the protection parameters, if EVFS supports the keyslot.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with the parameter that is not supported.
    pub fn protection(&self) -> Result<&Luks2Keyslot> {
        match &self.kind {
            SlotKind::Usable(slot) => Ok(slot),
            SlotKind::Unusable(reason) => Err(Error::unsupported(reason.as_str())),
            SlotKind::Foreign(kind) => Err(Error::unsupported(format!(
                "keyslot of unknown type {}",
                quoted(kind)
            ))),
        }
    }

    /// Reports whether EVFS can open the keyslot, given the passphrase.
    pub fn is_usable(&self) -> bool {
        matches!(self.kind, SlotKind::Usable(_))
    }

    pub(super) fn is_luks2(&self) -> bool {
        !matches!(self.kind, SlotKind::Foreign(_))
    }

    pub(super) fn read(fields: &Fields<'_>) -> Result<Keyslot> {
        let key_size = fields.u32("key_size")?;
        let area = fields.object("area")?;
        area.str("type")?;
        let range = Range {
            offset: area.u64("offset")?,
            len: area.u64("size")?,
        };
        let priority = match fields.has("priority").then(|| fields.u32("priority")) {
            None | Some(Ok(1)) => Priority::Normal,
            Some(Ok(2)) => Priority::Prefer,
            Some(_) => Priority::Ignore,
        };
        let kind = match fields.str("type")? {
            "luks2" => read_luks2(fields, &area, key_size, &range)?,
            "reencrypt" => {
                return Err(Error::unsupported(
                    "the volume is being reencrypted; finish it first with `cryptsetup reencrypt \
                     --resume-only`",
                ));
            }
            other => SlotKind::Foreign(other.to_owned()),
        };
        Ok(Keyslot {
            key_size,
            priority,
            area: range,
            kind,
        })
    }
}

/// Reads the parameters of a keyslot of type `luks2`. Missing fields are damage; unsupported values
/// make the keyslot unusable.
fn read_luks2(
    fields: &Fields<'_>,
    area: &Fields<'_>,
    key_size: u32,
    range: &Range,
) -> Result<SlotKind> {
    let path = fields.path();
    let af = fields.object("af")?;
    let kdf = fields.object("kdf")?;
    if af.str("type")? != "luks1" || area.str("type")? != "raw" {
        return Err(Error::damaged(format!("{path}: unknown af or area type")));
    }
    let stripes = af.integer("stripes")?;
    let af_hash = Hash::from_name(af.str("hash")?);
    let encryption = area.str("encryption")?;
    let area_key_size = area.integer("key_size")?;
    let cost = read_kdf(&kdf)?;
    if let Some(refusal) = refuse_cipher(path, encryption) {
        return match refusal.kind() {
            ErrorKind::Refused => Err(refusal),
            _ => Ok(SlotKind::Unusable(refusal.to_string())),
        };
    }
    let unusable = |reason: String| Ok(SlotKind::Unusable(format!("{path}: {reason}")));
    // Every writer uses 4,000 stripes. Another number could make the reader read or compute more
    // than the area holds.
    if stripes.map(|n| n as usize) != Some(STRIPES) {
        return unusable(format!(
            "the number of anti-forensic stripes is not {STRIPES}"
        ));
    }
    if key_size == 0 || key_size > KEY_SIZE_MAX {
        return unusable(format!("invalid key size of {key_size} bytes"));
    }
    let Some(area_key_size @ (32 | 64)) = area_key_size else {
        return unusable("the area key is not 32 or 64 bytes".into());
    };
    if !range.offset.is_multiple_of(AREA_ALIGN) || range.len < material_len(key_size) {
        return unusable("the area is misaligned or too short for its key".into());
    }
    let salt = kdf.bytes("salt").unwrap_or_default();
    if salt.len() != SALT_LEN {
        return unusable(format!("the salt is not {SALT_LEN} bytes of base64"));
    }
    match (af_hash, cost) {
        (Ok(af_hash), Ok(kdf)) => Ok(SlotKind::Usable(Luks2Keyslot {
            kdf,
            af_hash,
            area_key_size,
            salt,
        })),
        (Err(e), _) | (_, Err(e)) => unusable(e.to_string()),
    }
}

/// Reads the key derivation. The inner error is for a function that EVFS does not support.
fn read_kdf(kdf: &Fields<'_>) -> Result<Result<Kdf>> {
    let range = || Error::refused("a key derivation cost is out of range");
    match kdf.str("type")? {
        "pbkdf2" => {
            kdf.str("salt")?;
            let iterations = kdf.integer("iterations")?.ok_or_else(range);
            let hash = Hash::from_name(kdf.str("hash")?);
            Ok(iterations.and_then(|iterations| {
                Ok(Kdf::Pbkdf2 {
                    hash: hash?,
                    iterations,
                })
            }))
        }
        name @ ("argon2i" | "argon2id") => {
            kdf.str("salt")?;
            let (time, memory) = (kdf.integer("time")?, kdf.integer("memory")?);
            let costs = time.zip(memory).zip(kdf.integer("cpus")?).ok_or_else(range);
            let cost = costs.map(|((time, memory_kib), cpus)| Argon2Cost {
                time,
                memory_kib,
                cpus,
            });
            Ok(cost.map(if name == "argon2i" {
                Kdf::Argon2i
            } else {
                Kdf::Argon2id
            }))
        }
        other => Ok(Err(Error::unsupported(format!(
            "the key derivation {} is not one of argon2id, argon2i, pbkdf2",
            quoted(other)
        )))),
    }
}

/// Computes the length in bytes of split key material: whole 512-byte units of the area's cipher.
pub(crate) fn material_len(key_size: u32) -> u64 {
    (u64::from(key_size) * STRIPES as u64).next_multiple_of(512)
}

/// Computes the length in bytes of the area that is allocated for a key.
pub(crate) fn area_len(key_size: u32) -> u64 {
    material_len(key_size).next_multiple_of(AREA_ALIGN)
}

/// Checks that areas lie between the copies and the end of the keyslots area without overlapping.
pub(super) fn check_areas(keyslots: &BTreeMap<u32, Keyslot>, config: &Config) -> Result<()> {
    let first = 2 * (config.json_size() + BINARY_LEN as u64);
    let end = first + config.keyslots_size();
    let mut areas: Vec<_> = keyslots.iter().map(|(id, k)| (k.area, id)).collect();
    areas.sort();
    for (area, id) in &areas {
        let ends = area.offset.checked_add(area.len);
        if area.offset < first || area.len == 0 || ends.is_none_or(|e| e > end) {
            return Err(Error::damaged(format!(
                "keyslot {id}: the area of {} bytes at {} lies outside the keyslots area, {first} \
                 to {end}",
                area.len, area.offset
            )));
        }
    }
    for ((a, a_id), (b, b_id)) in areas.iter().zip(areas.iter().skip(1)) {
        if a.overlaps(b) {
            return Err(Error::damaged(format!(
                "the areas of keyslots {a_id} and {b_id} overlap"
            )));
        }
    }
    Ok(())
}

/// Checks that the keyslots of the volume key hold keys of one length, which the cipher supports.
///
/// A digest does not distinguish a key from the same key with zeros appended, so the keyslots must
/// agree on the length.
pub(super) fn check_key_sizes(
    keyslots: &BTreeMap<u32, Keyslot>,
    digests: &BTreeMap<u32, Digest>,
    volume_digest: u32,
) -> Result<()> {
    let bound = digests
        .get(&volume_digest)
        .map(Digest::keyslots)
        .unwrap_or_default();
    let mut sizes = bound
        .iter()
        .filter_map(|n| keyslots.get(n))
        .map(Keyslot::key_size);
    let Some(first) = sizes.next() else {
        return Ok(());
    };
    if sizes.any(|size| size != first) {
        return Err(Error::refused(
            "the keyslots of the volume key state different key lengths",
        ));
    }
    if first != 32 && first != 64 {
        return Err(Error::unsupported(format!(
            "a volume key of {first} bytes is not supported; {CIPHER} needs 32 or 64"
        )));
    }
    Ok(())
}

/// Parameters of a new keyslot.
pub(crate) struct NewKeyslot<'a> {
    pub(crate) key_size: u32,
    pub(crate) area: Range,
    pub(crate) kdf: &'a Kdf,
    pub(crate) salt: &'a [u8],
    pub(crate) af_hash: Hash,
    pub(crate) priority: Priority,
}

/// Builds the JSON of a keyslot, with fields in the order in which `cryptsetup` writes them.
pub(crate) fn keyslot_json(new: &NewKeyslot<'_>) -> Object {
    let kdf = Object::new().with("type", Json::string(new.kdf.name()));
    let kdf = match *new.kdf {
        Kdf::Pbkdf2 { hash, iterations } => kdf
            .with("hash", Json::string(hash.name()))
            .with("iterations", Json::u32(iterations)),
        Kdf::Argon2id(cost) | Kdf::Argon2i(cost) => kdf
            .with("time", Json::u32(cost.time))
            .with("memory", Json::u32(cost.memory_kib))
            .with("cpus", Json::u32(cost.cpus)),
    };
    let af = Object::new()
        .with("type", Json::string("luks1"))
        .with("stripes", Json::Number(STRIPES.to_string()))
        .with("hash", Json::string(new.af_hash.name()));
    let area = Object::new()
        .with("type", Json::string("raw"))
        .with("offset", Json::u64(new.area.offset))
        .with("size", Json::u64(new.area.len))
        .with("encryption", Json::string(CIPHER))
        .with("key_size", Json::u32(new.key_size));
    let slot = Object::new()
        .with("type", Json::string("luks2"))
        .with("key_size", Json::u32(new.key_size));
    let slot = match new.priority {
        Priority::Normal => slot,
        Priority::Ignore => slot.with("priority", Json::u32(0)),
        Priority::Prefer => slot.with("priority", Json::u32(2)),
    };
    slot.with("af", Json::Object(af))
        .with("area", Json::Object(area))
        .with("kdf", Json::Object(kdf.with("salt", base64(new.salt))))
}
