//! A device over another one whose changes stay in memory, for dry runs.
//!
//! **Invariant:** only reads reach the lower device. All queues see the changes of every other
//! queue, and the changes are dropped with the device.
//!
//! Deliberately absent: speed. Each block that was written is an entry of one map.

use crate::{
    BlockDevice, BufPool, Bufs, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request,
    Result, Wait,
};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// Most bytes of changes that a device keeps.
const KEPT_BYTES_MAX: u64 = 1 << 30;

/// A device whose changes stay in memory.
pub struct Scratch {
    lower: Arc<dyn BlockDevice>,
    info: DeviceInfo,
    changes: Arc<Mutex<Changes>>,
}

/// Contents of changed blocks, by the number of the block.
struct Changes {
    block_bytes: usize,
    blocks: HashMap<u64, Box<[u8]>>,
}

impl Scratch {
    /// Creates a device with the content of `lower`, which may be read-only.
    pub fn new(lower: Arc<dyn BlockDevice>) -> Scratch {
        let info = DeviceInfo {
            read_only: false,
            ..lower.info().clone()
        };
        let changes = Changes {
            block_bytes: info.logical_block_size as usize,
            blocks: HashMap::new(),
        };
        Scratch {
            lower,
            info,
            changes: Arc::new(Mutex::new(changes)),
        }
    }
}

impl BlockDevice for Scratch {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(ScratchQueue {
            lower: self.lower.queue()?,
            info: self.info.clone(),
            changes: Arc::clone(&self.changes),
            ready: Vec::new(),
        }))
    }

    fn derive_key(&self, label: &[u8], key: &mut [u8; crate::DERIVED_KEY_BYTES]) -> bool {
        self.lower.derive_key(label, key)
    }
}

impl Changes {
    /// Replaces the blocks from `offset` on by `data`, a whole number of blocks.
    fn write<'a>(&mut self, offset: u64, data: impl Iterator<Item = &'a [u8]>) {
        let first = offset / self.block_bytes as u64;
        let blocks = data.flat_map(|part| part.chunks(self.block_bytes));
        for (number, block) in (first..).zip(blocks) {
            self.blocks.insert(number, block.into());
        }
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) {
        let block_bytes = self.block_bytes as u64;
        for number in offset / block_bytes..(offset + len) / block_bytes {
            self.blocks
                .insert(number, vec![0; self.block_bytes].into_boxed_slice());
        }
    }

    /// Copies the changed blocks over those that were read at `offset`.
    fn show(&self, offset: u64, bufs: &mut Bufs) {
        if self.blocks.is_empty() {
            return;
        }
        let mut number = offset / self.block_bytes as u64;
        for buf in bufs.iter_mut() {
            for block in buf.chunks_mut(self.block_bytes) {
                if let Some(changed) = self.blocks.get(&number) {
                    block.copy_from_slice(changed);
                }
                number += 1;
            }
        }
    }

    /// Reports whether `len` more bytes can be kept.
    fn has_room(&self, len: u64) -> bool {
        let kept = self.blocks.len() as u64 * self.block_bytes as u64;
        kept.saturating_add(len) <= KEPT_BYTES_MAX
    }
}

struct ScratchQueue {
    lower: Box<dyn Queue>,
    info: DeviceInfo,
    changes: Arc<Mutex<Changes>>,
    /// Completions of requests that the lower device does not get.
    ready: Vec<Completion>,
}

impl ScratchQueue {
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().expect("no panic under this lock")
    }

    /// Carries out an operation other than a read.
    fn change(&self, op: &Op) -> Result<()> {
        self.info.check(op)?;
        let len = op.range().map_or(0, |(_, len)| len);
        let mut changes = self.changes();
        match op {
            Op::Write { .. } | Op::WriteZeroes { .. } if !changes.has_room(len) => {
                let why = format!(
                    "a dry run keeps its changes in memory, at most {} GiB",
                    KEPT_BYTES_MAX >> 30
                );
                Err(Error::new(ErrorKind::NoSpace, &self.info.name, why).in_op(op))
            }
            Op::Write { offset, bufs, .. } => {
                changes.write(*offset, bufs.iter().map(|buf| &**buf));
                Ok(())
            }
            Op::WriteZeroes { offset, len, .. } => {
                changes.write_zeroes(*offset, *len);
                Ok(())
            }
            // The content of a discarded range is undefined, so it may stay.
            Op::Read { .. } | Op::Flush | Op::Discard { .. } => Ok(()),
        }
    }
}

impl Queue for ScratchQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight() + self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        if let Op::Read { .. } = request.op {
            return self.lower.submit(request);
        }
        let Request { tag, op } = request;
        let result = self.change(&op);
        self.ready.push(Completion { tag, op, result });
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let wait = if self.ready.is_empty() {
            wait
        } else {
            Wait::Poll
        };
        let first = done.len();
        done.append(&mut self.ready);
        let reaped = self.lower.reap(wait, done);
        let changes = self.changes();
        for completion in &mut done[first..] {
            if let (Op::Read { offset, bufs }, Ok(())) = (&mut completion.op, &completion.result) {
                changes.show(*offset, bufs);
            }
        }
        reaped.map(|_| done.len() - first)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}
