//! Keyed checksums: tags that only the holder of the volume's key can compute.
//!
//! **Invariant:** a block whose tag its parent holds, and a root, which holds its own tag, use
//! different keys. So no content of a file can produce the tag of a root.

use crate::error::{Error, Kind, Result};
use block::{BlockDevice, DERIVED_KEY_BYTES};
use secret::SecretBytes;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroize;

/// Length of a tag in bytes.
pub(crate) const TAG_BYTES: usize = 16;

/// BLAKE3 with a key, truncated.
pub(crate) type Tag = [u8; TAG_BYTES];

/// Tag of nothing: of a page that was never written.
pub(crate) const NO_TAG: Tag = [0; TAG_BYTES];

/// Labels of the keys, before the UUID of the file system.
const BLOCKS_LABEL: &[u8] = b"evfs file system 1: blocks ";
const ROOTS_LABEL: &[u8] = b"evfs file system 1: roots ";

/// Keys of a file system.
pub(crate) struct IntegrityKey {
    blocks: SecretBytes,
    roots: SecretBytes,
}

impl IntegrityKey {
    /// Obtains the keys of the file system with this UUID from its device.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the device has no key.
    pub fn of(device: &dyn BlockDevice, uuid: &[u8; 16]) -> Result<Arc<IntegrityKey>> {
        let derive = |label: &[u8]| {
            let mut key = SecretBytes::zeroed(DERIVED_KEY_BYTES);
            let place = key.first_chunk_mut().expect("of this length");
            device
                .derive_key(&[label, uuid].concat(), place)
                .then_some(key)
        };
        match (derive(BLOCKS_LABEL), derive(ROOTS_LABEL)) {
            (Some(blocks), Some(roots)) => Ok(Arc::new(IntegrityKey { blocks, roots })),
            _ => Err(Error::new(
                Kind::Unsupported,
                "keyed checksums need the key of an encrypted volume, and this device has none; use \
                 the volume that contains the file system",
            )),
        }
    }

    #[cfg(test)]
    pub fn for_tests(byte: u8) -> Arc<IntegrityKey> {
        Arc::new(IntegrityKey {
            blocks: SecretBytes::from_slice(&[byte; DERIVED_KEY_BYTES]),
            roots: SecretBytes::from_slice(&[!byte; DERIVED_KEY_BYTES]),
        })
    }

    /// Computes the tag of a block. Another block holds it.
    pub fn block_tag(&self, block: &[u8]) -> Tag {
        tag(&self.blocks, &[block])
    }

    /// Computes the tag of a root, which holds it itself. The parts have fixed lengths, or state
    /// them.
    pub fn root_tag(&self, parts: &[&[u8]]) -> Tag {
        tag(&self.roots, parts)
    }
}

fn tag(key: &SecretBytes, parts: &[&[u8]]) -> Tag {
    let key = key.first_chunk().expect("the length of all keys");
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    let hash = hasher.finalize();
    // It holds a copy of the key.
    hasher.zeroize();
    *hash.as_bytes().first_chunk().expect("half of a hash")
}

impl fmt::Debug for IntegrityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntegrityKey")
    }
}

/// Creates the error for content that does not match its tag.
pub(crate) fn tampered(what: impl fmt::Display) -> Error {
    Error::corrupt(format!(
        "{what} was tampered with or is damaged: its keyed checksum does not match; restore from a \
         backup what cannot be read"
    ))
}
