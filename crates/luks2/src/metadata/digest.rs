//! The `digests` section, by which a volume key is recognized.

use super::Fields;
use crate::error::{Error, ErrorKind, Result, quoted};
use crate::hash::Hash;
use crate::kdf::{KdfLimits, SALT_LEN, pbkdf2_work_kib};
use secret::SecretBytes;
use std::collections::BTreeMap;
use subtle::ConstantTimeEq;

/// Shortest digest in bytes (that of SHA-1).
const DIGEST_LEN_MIN: usize = 20;

/// A digest of a volume key, with the keyslots that hold this key and the segments it decrypts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    keyslots: Vec<u32>,
    segments: Vec<u32>,
    check: std::result::Result<Pbkdf2Digest, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pbkdf2Digest {
    hash: Hash,
    iterations: u32,
    salt: Vec<u8>,
    digest: Vec<u8>,
}

impl Digest {
    /// Lists the keyslots that hold the key.
    pub fn keyslots(&self) -> &[u32] {
        &self.keyslots
    }

    /// Lists the segments that the key decrypts; none for the key of an unbound keyslot.
    pub fn segments(&self) -> &[u32] {
        &self.segments
    }

    /// Returns the salt, if EVFS supports the digest. A digest of the same key over another salt
    /// can be computed only with the key.
    pub fn salt(&self) -> Option<&[u8]> {
        self.check.as_ref().ok().map(|check| check.salt.as_slice())
    }

    /// Estimates the cost of checking a key, in the unit of [`crate::Kdf::work_kib`].
    pub(crate) fn work_kib(&self) -> u64 {
        let check = self.check.as_ref();
        check.map_or(0, |check| pbkdf2_work_kib(check.iterations))
    }

    pub(super) fn read(fields: &Fields<'_>) -> Result<Digest> {
        let check = match fields.str("type")? {
            // cryptsetup reads these fields only when it checks a key. Errors in them are not
            // damage that the other copy could repair, but a header that no key opens.
            "pbkdf2" => Pbkdf2Digest::read(fields).map_err(|e| Error::refused(e.to_string()))?,
            other => Err(format!("{}: unknown type {}", fields.path(), quoted(other))),
        };
        Ok(Digest {
            keyslots: fields.numbers("keyslots")?,
            segments: fields.numbers("segments")?,
            check,
        })
    }

    /// Checks in constant time whether `key` is the key of this digest.
    ///
    /// The caller must have checked the length of the key: HMAC pads its key with zeros, so a
    /// shorter key and the same key with zeros appended have the same digest.
    pub(crate) fn matches(&self, key: &[u8], limits: &KdfLimits) -> Result<bool> {
        let check = self
            .check
            .as_ref()
            .map_err(|reason| Error::unsupported(reason.as_str()))?;
        if check.iterations > limits.iterations_max {
            return Err(Error::refused(format!(
                "the digest requires {} iterations; the limit is {}",
                check.iterations, limits.iterations_max
            )));
        }
        let computed = check
            .hash
            .pbkdf2(key, &check.salt, check.iterations, check.digest.len());
        Ok(computed[..].ct_eq(&check.digest).into())
    }
}

impl Pbkdf2Digest {
    /// Reads the digest. The inner error is for a valid digest that EVFS does not support.
    fn read(fields: &Fields<'_>) -> Result<std::result::Result<Pbkdf2Digest, String>> {
        let hash = match Hash::from_name(fields.str("hash")?) {
            Ok(hash) => hash,
            Err(e) => return Ok(Err(e.within(fields.path()).to_string())),
        };
        let iterations = fields.u32("iterations")?;
        let salt = fields.bytes("salt")?;
        let digest = fields.bytes("digest")?;
        let path = fields.path();
        if iterations == 0 {
            return Err(Error::refused(format!("{path}: the iteration count is 0")));
        }
        if salt.len() != SALT_LEN {
            return Err(Error::refused(format!(
                "{path}: the salt is not {SALT_LEN} bytes"
            )));
        }
        // As in cryptsetup: the 20 bytes of LUKS1, or a whole hash. A short digest would accept
        // wrong keys.
        if digest.len() != DIGEST_LEN_MIN && digest.len() != hash.len() {
            return Err(Error::refused(format!(
                "{path}: a digest of {} bytes does not match {hash}",
                digest.len()
            )));
        }
        Ok(Ok(Pbkdf2Digest {
            hash,
            iterations,
            salt,
            digest,
        }))
    }
}

/// Finds the number of the one digest that belongs to `segment`.
pub(super) fn of_segment(digests: &BTreeMap<u32, Digest>, segment: u32) -> Result<u32> {
    let mut owners = digests
        .iter()
        .filter(|(_, d)| d.segments.contains(&segment));
    match (owners.next(), owners.next()) {
        // As in cryptsetup: without a digest, any key would be accepted.
        (None, _) => Err(Error::damaged(format!("segment {segment} has no digest"))),
        (Some((_, digest)), None) if digest.check.is_err() => {
            let reason = digest.check.as_ref().err().cloned().unwrap_or_default();
            Err(Error::new(ErrorKind::Unsupported, reason))
        }
        (Some((id, _)), None) => Ok(*id),
        (Some(_), Some(_)) => Err(Error::refused(format!(
            "segment {segment} has more than one digest"
        ))),
    }
}

/// Builds the JSON of a new digest of `key`.
pub(crate) fn digest_json(
    key: &SecretBytes,
    iterations: u32,
    segments: &[u32],
    salt: &[u8],
) -> crate::json::Object {
    use super::field::base64;
    use crate::json::{Json, Object};
    let hash = Hash::Sha256;
    let digest = hash.pbkdf2(key, salt, iterations, hash.len());
    Object::new()
        .with("type", Json::string("pbkdf2"))
        .with("keyslots", Json::names(&[]))
        .with("segments", Json::names(segments))
        .with("hash", Json::string(hash.name()))
        .with("iterations", Json::u32(iterations))
        .with("salt", base64(salt))
        .with("digest", base64(&digest))
}
