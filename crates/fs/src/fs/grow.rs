//! Growing: the file system on a device that has become larger.
//!
//! The size is a field of the superblock, and everything else is derived from it: blocks without a
//! bit in the bitmap are free. So a grow is one change of the superblock, and a crash leaves the old
//! size or the new one. The journal keeps its size. **Invariant:** no block of the new part is
//! allocated before the new size is durable.

use super::Fs;
use super::open::backlog_max;
use crate::error::{Error, Kind, Result};
use crate::format::record::{BLOCK_BYTES, DEVICE_BLOCKS_MAX, Run};
use crate::space::reserve_blocks;
use std::sync::atomic::Ordering::Relaxed;

impl Fs {
    /// Returns the number of bytes that [`Fs::grow`] would add.
    pub fn growable_bytes(&self) -> u64 {
        let used = self.inner().superblock.lock().device_blocks * BLOCK_BYTES;
        let largest = self.grown_bytes(self.inner().device.info().size);
        largest.map_or(0, |largest| largest - used)
    }

    /// Returns the bytes in use after [`Fs::grow`] on a device of `device_bytes`. Makes the checks of
    /// a grow, and changes nothing.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the device is too large. The file system cannot be changed.
    pub fn plan_growth(&self, device_bytes: u64) -> Result<u64> {
        self.inner().check_writable()?;
        self.grown_bytes(device_bytes)
    }

    fn grown_bytes(&self, device_bytes: u64) -> Result<u64> {
        let blocks = device_bytes / BLOCK_BYTES;
        if blocks >= DEVICE_BLOCKS_MAX {
            let text = format!(
                "device size is {device_bytes} bytes; the maximum is {}",
                DEVICE_BLOCKS_MAX * BLOCK_BYTES - 1
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        let used = self.inner().superblock.lock().device_blocks;
        Ok(blocks.max(used) * BLOCK_BYTES)
    }

    /// Extends the file system to the current size of the device; files may be in use. Returns the
    /// bytes in use then, which are durable.
    ///
    /// # Errors
    /// Those of [`Fs::plan_growth`]; the superblock could not be written, and the file system keeps its
    /// size.
    pub fn grow(&self) -> Result<u64> {
        let fs = self.inner();
        let _alone = self.growing.lock().expect("no panic under this lock");
        let bytes = self.plan_growth(fs.device.info().size)?;
        let now = bytes / BLOCK_BYTES;
        let before = std::mem::replace(&mut fs.superblock.lock().device_blocks, now);
        if now == before {
            return Ok(bytes);
        }
        if let Err(error) = fs.superblock.write() {
            fs.superblock.lock().device_blocks = before;
            return Err(error.into());
        }
        fs.write().bounds.end = now;
        let added = Run {
            start: before,
            blocks: now - before,
        };
        fs.space.extend(added, reserve_blocks(now));
        fs.backlog_max.store(backlog_max(now), Relaxed);
        Ok(bytes)
    }
}
