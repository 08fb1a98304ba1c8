//! Changes of structures: in memory at first, and on the device when their format says so.
//!
//! A changed block stays in memory until all of its changes are on the device. Only the changed
//! sectors are written: the rest of a block can belong to files, whose pages are in the cache.

use super::{BLOCK, Disk};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Changed blocks.
#[derive(Default)]
pub(super) struct Held {
    blocks: Mutex<HashMap<u64, Arc<[u8]>>>,
    /// Their number, so that a reader of a format without changes takes no lock.
    count: AtomicUsize,
}

impl Held {
    pub(super) fn get(&self, number: u64) -> Option<Arc<[u8]>> {
        match self.count.load(Relaxed) {
            0 => None,
            _ => self.with(|blocks| blocks.get(&number).cloned()),
        }
    }

    /// Calls `work`, whose steps leave the blocks in a valid state even if one panics.
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<u64, Arc<[u8]>>) -> T) -> T {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut blocks);
        self.count.store(blocks.len(), Relaxed);
        done
    }
}

impl Disk {
    /// Returns the bytes that the device writes at once or not at all.
    pub(crate) fn unit(&self) -> u64 {
        self.queue.info().logical_block_size.into()
    }

    /// Returns the number of blocks with changes that are only in memory.
    pub(crate) fn held(&self) -> usize {
        self.blocks.held.count.load(Relaxed)
    }

    /// Changes bytes in memory.
    ///
    /// # Errors
    /// The range ends behind the device, or the rest of a block cannot be read.
    pub(crate) fn change(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        let (mut at, mut bytes) = (offset, bytes);
        while !bytes.is_empty() {
            let number = at / BLOCK;
            let mut block = match self.blocks.get(number) {
                Some(block) => block.to_vec(),
                None => self.load(number, 1)?.to_vec(),
            };
            let start = (at % BLOCK) as usize;
            let len = bytes.len().min(block.len().saturating_sub(start));
            if len == 0 {
                return Err(Error::corrupt(
                    "a structure lies behind the end of the device",
                ));
            }
            let (now, rest) = bytes.split_at(len);
            block[start..start + len].copy_from_slice(now);
            self.blocks
                .held
                .with(|blocks| blocks.insert(number, block.into()));
            (at, bytes) = (at + len as u64, rest);
        }
        Ok(())
    }

    /// Writes whole sectors to the device. The caller changes the blocks in memory.
    ///
    /// # Errors
    /// The device fails.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        Ok(self.queue.write_at(offset, bytes)?)
    }

    /// Waits until everything written is on stable storage.
    ///
    /// # Errors
    /// The device fails.
    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.queue.flush()?)
    }

    /// Notes that all changes are on the device.
    pub(crate) fn settle(&self) {
        let blocks = self.blocks.held.with(std::mem::take);
        for (number, block) in blocks {
            self.blocks.kept.insert(number, block);
        }
    }
}
