//! A device that stands for an encrypted one: it has a key, and encrypts nothing.

use block::{BlockDevice, DERIVED_KEY_BYTES, DeviceInfo, Queue, Result};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// A device whose upper layers get keys. The keys depend on nothing but `key` and the label.
pub struct Keyed {
    lower: Arc<dyn BlockDevice>,
    key: u64,
}

impl Keyed {
    /// Adds a key to a device.
    pub fn new(lower: Arc<dyn BlockDevice>, key: u64) -> Keyed {
        Keyed { lower, key }
    }
}

impl BlockDevice for Keyed {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        self.lower.queue()
    }

    fn derive_key(&self, label: &[u8], key: &mut [u8; DERIVED_KEY_BYTES]) -> bool {
        for (i, part) in key.chunks_exact_mut(8).enumerate() {
            let mut hasher = DefaultHasher::new();
            (self.key, i, label).hash(&mut hasher);
            part.copy_from_slice(&hasher.finish().to_le_bytes());
        }
        true
    }
}
