//! A device that stands for an encrypted one: it has a key, and encrypts nothing.

use block::{BlockDevice, DERIVED_KEY_BYTES, DeviceInfo, Queue, Result};
use std::sync::Arc;

/// A device whose upper layers get keys. The keys depend on nothing but `key` and the label, and are
/// the same in all versions, because images of earlier ones need them.
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

    fn update_size(&self) -> Result<u64> {
        self.lower.update_size()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        self.lower.queue()
    }

    fn derive_key(&self, label: &[u8], key: &mut [u8; DERIVED_KEY_BYTES]) -> bool {
        for (i, part) in key.chunks_exact_mut(8).enumerate() {
            let (number, own) = ((i as u64).to_le_bytes(), self.key.to_le_bytes());
            let bytes = number.iter().chain(&own).chain(label);
            // FNV-1a.
            let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            part.copy_from_slice(&hash.to_le_bytes());
        }
        true
    }
}
