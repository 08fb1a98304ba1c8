//! The encrypted volume as a block device.

use crate::queue::CryptQueue;
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Queue, Result};
use std::sync::Arc;
use xts::Xts;

/// Where the encrypted data lies on the device below. Bytes, but for `iv_tweak`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSegment {
    /// First byte of the data on the device below.
    pub offset: u64,
    /// Length; `None` reaches to the end of the device ("dynamic" in LUKS2).
    pub size: Option<u64>,
    /// Number of the first 512-byte unit for the plain64 tweak (LUKS2 `iv_tweak`).
    pub iv_tweak: u64,
}

/// Settings of the data path that are not written in the volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Pass discards on. They show whoever sees the disk which blocks are unused, so they are
    /// refused unless asked for.
    pub allow_discards: bool,
    /// Refuse writes.
    pub read_only: bool,
}

/// A block device that reads clear and lies enciphered.
///
/// Any number of queues may be open at once; each has buffers of its own and shares nothing but
/// the key schedule. Memory: [`crate::QUEUE_MEMORY_BYTES`] for a queue.
pub struct CryptDevice {
    shared: Arc<Shared>,
}

/// What all queues of a device read and none changes.
pub(crate) struct Shared {
    pub(crate) lower: Arc<dyn BlockDevice>,
    pub(crate) xts: Xts,
    pub(crate) info: DeviceInfo,
    pub(crate) segment: DataSegment,
}

impl CryptDevice {
    /// Lays the cipher over `segment` of `lower`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the segment does not lie inside the device, or its sectors do
    /// not fit the blocks below.
    pub fn new(
        lower: Arc<dyn BlockDevice>,
        xts: Xts,
        segment: DataSegment,
        options: Options,
    ) -> Result<CryptDevice> {
        let below = lower.info().clone();
        let sector = u64::from(xts.sector_size().bytes());
        let invalid = |why: String| Error::new(ErrorKind::Invalid, &below.name, why);
        let available = below.size.checked_sub(segment.offset).ok_or_else(|| {
            invalid(format!(
                "the data of the volume begins at byte {}, but the device ends at {}",
                segment.offset, below.size
            ))
        })?;
        // A file need not end on a sector; what is left over cannot be used.
        let size = segment.size.unwrap_or(available - available % sector);
        if size > available || !size.is_multiple_of(sector) {
            return Err(invalid(format!(
                "a data segment of {size} bytes with sectors of {sector} does not fit the {available} bytes there are"
            )));
        }
        let block = u64::from(below.logical_block_size);
        if !segment.offset.is_multiple_of(block) {
            return Err(invalid(format!(
                "the data begins at byte {}, which is not a multiple of the {block}-byte blocks below",
                segment.offset
            )));
        }
        let logical_block_size = below.logical_block_size.max(sector as u32);
        let info = DeviceInfo {
            name: below.name.clone(),
            wwid: format!("crypt:{}", below.wwid),
            size: size - size % u64::from(logical_block_size),
            logical_block_size,
            optimal_io_size: below.optimal_io_size.max(logical_block_size),
            max_transfer: crate::queue::max_transfer(below.max_transfer, logical_block_size),
            volatile_write_cache: below.volatile_write_cache,
            read_only: below.read_only || options.read_only,
            discard: below.discard && options.allow_discards,
            numa_node: below.numa_node,
        };
        Ok(CryptDevice {
            shared: Arc::new(Shared {
                lower,
                xts,
                info,
                segment,
            }),
        })
    }

    /// The cipher kernel that works for this volume.
    pub fn kernel(&self) -> xts::Kernel {
        self.shared.xts.kernel()
    }
}

impl BlockDevice for CryptDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(CryptQueue::open(Arc::clone(&self.shared))?))
    }
}
