//! State that a device shares with its queues.

use block::{BlockDevice, GrowingInfo};
use std::sync::Arc;
use xts::{Tweak, Xts};

/// Position of the encrypted data on the lower device. In bytes, except for `iv_tweak`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSegment {
    /// First byte of the data on the lower device.
    pub offset: u64,
    /// Length; `None` extends to the end of the device ("dynamic" in LUKS2).
    pub size: Option<u64>,
    /// Tweak of the first sector (LUKS2 `iv_tweak`).
    pub iv_tweak: Tweak,
}

/// State shared by a device and its queues; only the size in `info` changes.
pub(crate) struct Shared {
    pub(crate) lower: Arc<dyn BlockDevice>,
    pub(crate) xts: Xts,
    pub(crate) info: GrowingInfo,
    pub(crate) segment: DataSegment,
}

impl Shared {
    /// Computes the tweak of the sector at `offset` of the volume.
    pub(crate) fn tweak(&self, offset: u64) -> Tweak {
        self.segment.iv_tweak.after(offset)
    }

    /// Computes the place of `offset` on the lower device.
    pub(crate) fn lower_offset(&self, offset: u64) -> u64 {
        // Cannot overflow: the request was checked against a size that lies within the device.
        self.segment.offset + offset
    }
}
