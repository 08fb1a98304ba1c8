//! The encrypted volume as a block device.

use crate::queue::{CryptQueue, max_transfer};
use crate::shared::{DataSegment, Shared};
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Queue, Result};
use std::sync::Arc;
use xts::Xts;

/// Settings of the data path that are not stored in the volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Pass discards to the lower device. They reveal unused blocks to an observer of the disk, so
    /// they are off by default.
    pub allow_discards: bool,
    /// Refuse writes.
    pub read_only: bool,
}

/// A block device that presents plaintext and stores ciphertext on the lower device.
///
/// Any number of queues may be open at once; they share only the key schedule, and each has its own
/// buffers, of [`crate::QUEUE_MEMORY_BYTES`] in total.
pub struct CryptDevice {
    shared: Arc<Shared>,
}

impl CryptDevice {
    /// Creates a device that encrypts `segment` of `lower`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the segment does not lie within the device, or its sectors do not
    /// fit the blocks of the lower device.
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
        let logical_block_size = below.logical_block_size.max(sector as u32);
        // A file need not end on a sector boundary; the remainder is not usable.
        let size = segment.size.unwrap_or(available - available % sector);
        if size > available || !size.is_multiple_of(sector) {
            return Err(invalid(format!(
                "a data segment of {size} bytes with sectors of {sector} does not fit the \
                 available {available} bytes"
            )));
        }
        let block = u64::from(below.logical_block_size);
        if !segment.offset.is_multiple_of(block) {
            return Err(invalid(format!(
                "the data begins at byte {}, which is not a multiple of the {block}-byte blocks \
                 of the device",
                segment.offset
            )));
        }
        let info = DeviceInfo {
            name: below.name.clone(),
            wwid: format!("crypt:{}", below.wwid),
            size: whole_blocks(size, logical_block_size),
            logical_block_size,
            optimal_io_size: below.optimal_io_size.max(logical_block_size),
            max_transfer: max_transfer(below.max_transfer, logical_block_size),
            volatile_write_cache: below.volatile_write_cache,
            read_only: below.read_only || options.read_only,
            discard: below.discard && options.allow_discards,
            numa_node: below.numa_node,
        };
        Ok(CryptDevice {
            shared: Arc::new(Shared {
                lower,
                xts,
                info: info.into(),
                segment,
            }),
        })
    }

    /// Returns the kernel that this device's cipher uses.
    pub fn kernel(&self) -> xts::Kernel {
        self.shared.xts.kernel()
    }
}

/// Returns the bytes of whole blocks, the usable part of `size` bytes.
fn whole_blocks(size: u64, logical_block_size: u32) -> u64 {
    size - size % u64::from(logical_block_size)
}

impl BlockDevice for CryptDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn update_size(&self) -> Result<u64> {
        let lower = self.shared.lower.update_size()?;
        let (info, segment) = (&self.shared.info, &self.shared.segment);
        let size = match segment.size {
            Some(_) => info.size,
            None => whole_blocks(
                lower.saturating_sub(segment.offset),
                info.logical_block_size,
            ),
        };
        info.grow(size)
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(CryptQueue::open(Arc::clone(&self.shared))?))
    }
}
