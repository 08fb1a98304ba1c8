//! Numbers of the seals of a volume.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Highest epoch of a valid seal.
const VALID_MAX: Epoch = Epoch(1 << 48);
/// Cap on the previous epoch when a new seal counts on from it: a forged one cannot exhaust
/// [`VALID_MAX`].
const COUNTED_MAX: Epoch = Epoch(1 << 32);

/// Number of a header's seal; each new seal of a volume has a higher one. It is not the sequence
/// number of the header, which increases with each write of any program.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[repr(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// Epoch of a header without a seal, and of the seals of version 1.
    pub const ZERO: Epoch = Epoch(0);

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Checks whether a valid seal can have this epoch.
    pub(crate) fn is_valid(self) -> bool {
        self <= VALID_MAX
    }

    /// Computes the epoch of a seal that follows one with this epoch, up to the cap.
    pub(crate) fn next(self) -> Epoch {
        Epoch(self.min(COUNTED_MAX).0 + 1)
    }

    /// Returns the bytes that the codes of a seal cover.
    pub(crate) fn to_be_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
