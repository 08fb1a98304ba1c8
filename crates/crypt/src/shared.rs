//! State that a device shares with its queues.

use block::{BlockDevice, DeviceInfo};
use std::sync::Arc;
use xts::Xts;

/// Position of the encrypted data on the lower device. In bytes, except for `iv_tweak`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSegment {
    /// First byte of the data on the lower device.
    pub offset: u64,
    /// Length; `None` extends to the end of the device ("dynamic" in LUKS2).
    pub size: Option<u64>,
    /// Number of the first 512-byte unit for the plain64 tweak (LUKS2 `iv_tweak`).
    pub iv_tweak: u64,
}

/// Immutable state shared by a device and its queues.
pub(crate) struct Shared {
    pub(crate) lower: Arc<dyn BlockDevice>,
    pub(crate) xts: Xts,
    pub(crate) info: DeviceInfo,
    pub(crate) segment: DataSegment,
}

impl Shared {
    /// Computes the plain64 tweak of the sector at `offset` of the volume. It counts 512-byte units
    /// for every sector size (LUKS2 on-disk format 1.1, section 3.3: `iv_tweak`).
    pub(crate) fn unit(&self, offset: u64) -> u64 {
        self.segment.iv_tweak.wrapping_add(offset / 512)
    }

    /// Computes the place of `offset` on the lower device.
    pub(crate) fn lower_offset(&self, offset: u64) -> u64 {
        // Cannot overflow: the request was checked against a size that lies within the device.
        self.segment.offset + offset
    }
}
