//! A disk in memory: sparse, shared by any number of queues, and cheap to copy.

use super::drain;
use crate::{BlockDevice, Completion, DeviceInfo, Op, Queue, Request, Result, Wait};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// Bytes that share a lock, and that are copied when one of two clones writes.
const CHUNK_BYTES: usize = 64 * 1024;
/// Requests in flight on a queue.
const CAPACITY: usize = 128;
/// Longest transfer.
const MAX_TRANSFER: u32 = 4 << 20;

type Chunk = Mutex<Option<Arc<Vec<u8>>>>;

/// A disk in memory. What was never written reads as zeros and takes no memory.
///
/// Writes are durable at once. [`Mem::fork`] makes a copy that shares unchanged chunks.
pub struct Mem {
    shared: Arc<Shared>,
}

struct Shared {
    info: DeviceInfo,
    chunks: Vec<Chunk>,
}

impl Mem {
    /// A disk of `size` zero bytes with blocks of `logical_block_size`.
    ///
    /// # Panics
    /// When the size is no multiple of the block size.
    pub fn new(size: u64, logical_block_size: u32) -> Mem {
        assert!(
            size.is_multiple_of(u64::from(logical_block_size)),
            "{size} bytes are no whole blocks"
        );
        let count = size.div_ceil(CHUNK_BYTES as u64);
        Mem::of(
            size,
            logical_block_size,
            (0..count).map(|_| Mutex::new(None)).collect(),
        )
    }

    fn of(size: u64, logical_block_size: u32, chunks: Vec<Chunk>) -> Mem {
        let info = DeviceInfo {
            name: "mem".into(),
            wwid: format!("mem:{:p}", chunks.as_ptr()),
            size,
            logical_block_size,
            optimal_io_size: CHUNK_BYTES as u32,
            max_transfer: MAX_TRANSFER,
            volatile_write_cache: false,
            read_only: false,
            discard: true,
            numa_node: None,
        };
        Mem {
            shared: Arc::new(Shared { info, chunks }),
        }
    }

    /// The same disk for reading only: it sees later writes of the original.
    pub fn read_only(&self) -> ReadOnlyMem {
        let info = DeviceInfo {
            read_only: true,
            ..self.shared.info.clone()
        };
        ReadOnlyMem {
            info,
            shared: Arc::clone(&self.shared),
        }
    }

    /// A disk with the same content that goes its own way from here on.
    pub fn fork(&self) -> Mem {
        let chunks = self
            .shared
            .chunks
            .iter()
            .map(|c| Mutex::new(lock(c).clone()))
            .collect();
        Mem::of(
            self.shared.info.size,
            self.shared.info.logical_block_size,
            chunks,
        )
    }

    /// Bytes from `offset` on, for tests and replays. No alignment is needed.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        self.shared.read(offset, out);
    }

    /// Changes bytes from `offset` on, for tests and replays. No alignment is needed.
    pub fn poke(&self, offset: u64, data: &[u8]) {
        self.shared.write(offset, data);
    }
}

/// A [`Mem`] seen through a read-only device.
pub struct ReadOnlyMem {
    info: DeviceInfo,
    shared: Arc<Shared>,
}

fn lock(chunk: &Chunk) -> std::sync::MutexGuard<'_, Option<Arc<Vec<u8>>>> {
    chunk.lock().expect("no panic under this lock")
}

/// Splits a range at chunk borders: chunk, offset in it, range in the caller's bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let position = offset as usize + at;
        let (chunk, inside) = (position / CHUNK_BYTES, position % CHUNK_BYTES);
        let step = (CHUNK_BYTES - inside).min(len - at);
        let range = at..at + step;
        at += step;
        (step > 0).then_some((chunk, inside, range))
    })
}

impl Shared {
    fn read(&self, offset: u64, out: &mut [u8]) {
        for (chunk, inside, range) in parts(offset, out.len()) {
            let out = &mut out[range];
            match &*lock(&self.chunks[chunk]) {
                Some(bytes) => out.copy_from_slice(&bytes[inside..inside + out.len()]),
                None => out.fill(0),
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        for (chunk, inside, range) in parts(offset, data.len()) {
            let data = &data[range];
            let mut chunk = lock(&self.chunks[chunk]);
            let bytes = chunk.get_or_insert_with(|| Arc::new(vec![0; CHUNK_BYTES]));
            Arc::make_mut(bytes)[inside..inside + data.len()].copy_from_slice(data);
        }
    }

    fn zero(&self, offset: u64, len: u64) {
        for (chunk, inside, range) in parts(offset, len as usize) {
            let mut chunk = lock(&self.chunks[chunk]);
            if range.len() == CHUNK_BYTES {
                *chunk = None;
            } else if let Some(bytes) = chunk.as_mut() {
                Arc::make_mut(bytes)[inside..inside + range.len()].fill(0);
            }
        }
    }

    fn carry_out(&self, info: &DeviceInfo, op: &mut Op) -> Result<()> {
        info.check(op)?;
        match op {
            Op::Read { offset, bufs } => {
                let mut at = *offset;
                for buf in bufs.iter_mut() {
                    self.read(at, buf);
                    at += buf.len() as u64;
                }
            }
            Op::Write { offset, bufs, .. } => {
                let mut at = *offset;
                for buf in bufs.iter() {
                    self.write(at, buf);
                    at += buf.len() as u64;
                }
            }
            Op::Discard { offset, len } | Op::WriteZeroes { offset, len, .. } => {
                self.zero(*offset, *len);
            }
            Op::Flush => {}
        }
        Ok(())
    }
}

impl BlockDevice for Mem {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let info = self.shared.info.clone();
        Ok(Box::new(MemQueue {
            info,
            shared: Arc::clone(&self.shared),
            ready: VecDeque::new(),
        }))
    }
}

impl BlockDevice for ReadOnlyMem {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let info = self.info.clone();
        Ok(Box::new(MemQueue {
            info,
            shared: Arc::clone(&self.shared),
            ready: VecDeque::new(),
        }))
    }
}

/// Carries every request out on submit; the completions wait for the reap.
struct MemQueue {
    info: DeviceInfo,
    shared: Arc<Shared>,
    ready: VecDeque<Completion>,
}

impl Queue for MemQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn in_flight(&self) -> usize {
        self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.ready.len() >= CAPACITY {
            return Err(request);
        }
        let Request { tag, mut op } = request;
        let result = self.shared.carry_out(&self.info, &mut op);
        self.ready.push_back(Completion { tag, op, result });
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, _wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        Ok(drain(&mut self.ready, done))
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
