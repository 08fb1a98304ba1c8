//! Reads of structures: a queue of the calling thread, and recently read blocks that all threads
//! share.
//!
//! The blocks are not pages of the cache, because a pager reads structures as well, and it must not
//! call back into the cache: it could wait for a page that it is loading itself.

mod change;

use crate::error::{Error, Result};
use crate::kept::Kept;
use block::{BlockDevice, Blocking, Buf, Op};
use change::Held;
use std::sync::Arc;

/// Bytes of a block that is kept.
const BLOCK: u64 = 4096;

/// Number of blocks in a generation; two are kept, 8 MiB in all.
const GENERATION: usize = 1024;

/// Number of absent blocks that are read at once.
const RUN: u64 = 32;

/// Longest structure that is read into memory of its own, in bytes.
pub const LONGEST: usize = 2 << 20;

/// Recently read blocks of a device, and changed ones that are not on it.
pub struct Blocks {
    kept: Kept<u64, Arc<[u8]>>,
    held: Held,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks {
            kept: Kept::new(GENERATION),
            held: Held::default(),
        }
    }
}

impl Blocks {
    fn get(&self, number: u64) -> Option<Arc<[u8]>> {
        self.held.get(number).or_else(|| self.kept.get(number))
    }
}

/// A thread's access to the structures on a device.
pub struct Disk {
    queue: Blocking,
    blocks: Arc<Blocks>,
    size: u64,
}

impl Disk {
    /// Opens a queue for the calling thread.
    ///
    /// # Errors
    /// The device cannot open a queue, or its blocks are longer than 4096 bytes.
    pub fn open(device: &dyn BlockDevice, blocks: &Arc<Blocks>) -> Result<Disk> {
        let info = device.info();
        let unit = u64::from(info.logical_block_size);
        if unit == 0 || !BLOCK.is_multiple_of(unit) {
            let why = format!("the device has blocks of {unit} bytes, and EVFS needs at most 4096");
            return Err(Error::unsupported(why));
        }
        Ok(Disk {
            queue: Blocking::open(device)?,
            blocks: Arc::clone(blocks),
            size: info.size,
        })
    }

    /// Returns the size of the device in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads from any byte `offset` on.
    ///
    /// # Errors
    /// The range ends behind the device, or the device fails.
    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len())?;
        let (mut at, mut out) = (offset, out);
        while !out.is_empty() {
            let number = at / BLOCK;
            let last = (at + out.len() as u64 - 1) / BLOCK;
            let block = match self.blocks.get(number) {
                Some(block) => block,
                None => self.load(number, (last - number + 1).min(RUN))?,
            };
            let within = (at % BLOCK) as usize;
            let from = block.get(within..).unwrap_or_default();
            let len = from.len().min(out.len());
            if len == 0 {
                return Err(Error::corrupt(
                    "a structure lies behind the end of the device",
                ));
            }
            let (now, rest) = out.split_at_mut(len);
            now.copy_from_slice(&from[..len]);
            (at, out) = (at + len as u64, rest);
        }
        Ok(())
    }

    /// Reads `len` bytes from any byte `offset` on.
    ///
    /// # Errors
    /// As [`Disk::read`]; more than 2 MiB.
    pub fn bytes(&mut self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.check(offset, len)?;
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads `len` bytes that are not needed again, for example compressed ones.
    ///
    /// # Errors
    /// As [`Disk::bytes`].
    pub fn bytes_once(&mut self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.check(offset, len)?;
        let unit = u64::from(self.queue.info().logical_block_size);
        let first = offset - offset % unit;
        let end = (offset + len as u64).next_multiple_of(unit).min(self.size);
        let mut bytes = vec![0; (end - first) as usize];
        self.queue.read_at(first, &mut bytes)?;
        bytes.drain(..(offset - first) as usize);
        bytes.truncate(len);
        Ok(bytes)
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        if len > LONGEST {
            return Err(Error::corrupt("a structure is too long"));
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(Error::corrupt(
                "a structure lies behind the end of the device",
            )),
        }
    }

    /// Reads `count` blocks, keeps them, and returns the first.
    fn load(&mut self, number: u64, count: u64) -> Result<Arc<[u8]>> {
        let offset = number * BLOCK;
        let end = offset.saturating_add(count * BLOCK).min(self.size);
        let len = end
            .saturating_sub(offset)
            .min(u64::from(self.queue.info().max_transfer));
        let bufs = Buf::zeroed(len as usize).into();
        let Op::Read { bufs, .. } = self.queue.run(Op::Read { offset, bufs })? else {
            return Err(Error::corrupt("the device returned another operation"));
        };
        let read = bufs.into_first().ok_or_else(|| Error::corrupt("no data"))?;
        let chunks: Vec<Arc<[u8]>> = read.chunks(BLOCK as usize).map(Arc::from).collect();
        let first = chunks.first().cloned();
        for (number, block) in (number..).zip(chunks) {
            self.blocks.kept.insert(number, block);
        }
        first.ok_or_else(|| Error::corrupt("a structure lies behind the end of the device"))
    }
}
