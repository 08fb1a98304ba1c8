//! The hashes that a header may name, and computations with them. This is an allow-list: a header
//! that names another hash is refused.

use crate::error::{Error, Result, quoted};
use secret::SecretBytes;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use std::fmt;

/// A permitted hash algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hash {
    /// SHA-1, supported because old versions of `cryptsetup` used it in PBKDF2 and anti-forensic
    /// splitting, where collisions do not matter.
    Sha1,
    /// SHA-256: the default of `cryptsetup` and of EVFS.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// Returns the name used in headers.
    pub fn name(self) -> &'static str {
        match self {
            Hash::Sha1 => "sha1",
            Hash::Sha256 => "sha256",
            Hash::Sha512 => "sha512",
        }
    }

    pub(crate) fn from_name(name: &str) -> Result<Hash> {
        match name {
            "sha1" => Ok(Hash::Sha1),
            "sha256" => Ok(Hash::Sha256),
            "sha512" => Ok(Hash::Sha512),
            other => Err(Error::unsupported(format!(
                "the hash {} is not one of sha1, sha256, sha512",
                quoted(other)
            ))),
        }
    }

    /// Reports the length of a hash value in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Hash::Sha1 => 20,
            Hash::Sha256 => 32,
            Hash::Sha512 => 64,
        }
    }

    /// Hashes the concatenation of `parts` into `out`, truncated to the length of `out`, which is
    /// at most [`Hash::len`].
    pub(crate) fn digest_into(self, parts: &[&[u8]], out: &mut [u8]) {
        match self {
            Hash::Sha1 => digest::<Sha1>(parts, out),
            Hash::Sha256 => digest::<Sha256>(parts, out),
            Hash::Sha512 => digest::<Sha512>(parts, out),
        }
    }

    /// Derives a key by PBKDF2 (RFC 8018, 5.2) with HMAC of this hash.
    pub(crate) fn pbkdf2(
        self,
        secret: &[u8],
        salt: &[u8],
        iterations: u32,
        len: usize,
    ) -> SecretBytes {
        let mut out = SecretBytes::zeroed(len);
        match self {
            Hash::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(secret, salt, iterations, &mut out),
            Hash::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(secret, salt, iterations, &mut out),
            Hash::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(secret, salt, iterations, &mut out),
        }
        out
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn digest<D: Digest>(parts: &[&[u8]], out: &mut [u8]) {
    let mut hasher = D::new();
    for part in parts {
        hasher.update(part);
    }
    for (to, from) in out.iter_mut().zip(hasher.finalize().iter()) {
        *to = *from;
    }
}
