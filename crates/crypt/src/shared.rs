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
