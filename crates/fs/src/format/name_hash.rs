//! Assignment of names to places, by a hash that is keyed for each file system, so that an attacker
//! cannot make names collide.

use crate::format::key::PLACE_MAX;
use siphasher::sip::SipHasher13;

/// Number of places for names with equal hashes.
pub const SLOTS: u64 = 256;

/// Assigns places to names.
#[derive(Clone)]
pub(crate) struct Hasher([u8; 16]);

impl Hasher {
    pub fn new(key: [u8; 16]) -> Hasher {
        Hasher(key)
    }

    /// Computes the first place of a name.
    pub fn place(&self, name: &[u8]) -> u64 {
        let hash = SipHasher13::new_with_key(&self.0).hash(name);
        (hash & PLACE_MAX & !(SLOTS - 1)).max(SLOTS)
    }
}
