//! Reads and writes of any offset and length on a block device, from any thread.

use block::{
    BlockDevice, Buf, BufPool, Completion, Error, ErrorKind, Op, Queue, Request, Result, Wait,
};
use fuse_mount::{PIECE_BYTES, never_wait_for_write_back};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// Buffers per thread: one for the request, one for the block at an unaligned end.
const BUFS: usize = 2;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The queues of this thread, by the id of their device.
    static QUEUES: RefCell<HashMap<u64, Lane>> = RefCell::new(HashMap::new());
}

/// Queue and buffers of one thread for one device.
struct Lane {
    queue: Box<dyn Queue>,
    pool: BufPool,
    done: Vec<Completion>,
    /// The queue has failed for good; the next request opens another.
    is_broken: bool,
}

impl Lane {
    fn open(device: &dyn BlockDevice) -> Result<Lane> {
        never_wait_for_write_back();
        let mut queue = device.queue()?;
        let pool = BufPool::new(PIECE_BYTES, BUFS);
        queue.register(&pool);
        Ok(Lane {
            queue,
            pool,
            done: Vec::new(),
            is_broken: false,
        })
    }

    fn buf(&self, len: usize) -> Buf {
        self.pool.take(len).unwrap_or_else(|| Buf::zeroed(len))
    }

    fn run(&mut self, op: Op) -> Result<Op> {
        let refused = |request: Request| {
            Error::new(ErrorKind::Busy, "queue", "it is full").in_op(&request.op)
        };
        self.queue.submit(Request { tag: 0, op }).map_err(refused)?;
        while self.done.is_empty() {
            block::about_to_sleep();
            let reaped = self.queue.reap(Wait::Block, &mut self.done);
            self.is_broken |= reaped.is_err();
            reaped?;
        }
        let Completion { op, result, .. } = self.done.swap_remove(0);
        result.map(|()| op)
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<Buf> {
        let bufs = self.buf(len).into();
        match self.run(Op::Read { offset, bufs })? {
            Op::Read { bufs, .. } => Ok(bufs.into_first().unwrap_or_else(|| Buf::zeroed(0))),
            _ => unreachable!("a read comes back as a read"),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], durability: Durability) -> Result<()> {
        let mut buf = self.buf(data.len());
        buf.copy_from_slice(data);
        self.run(Op::Write {
            offset,
            bufs: buf.into(),
            fua: durability == Durability::Durable,
        })
        .map(drop)
    }
}

/// Whether a write is on stable storage when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Volatile,
    Durable,
}

/// Byte-granular access to a device.
pub(crate) struct Bytes {
    id: u64,
    device: Arc<dyn BlockDevice>,
    /// Held shared by aligned changes, and exclusively by read-modify-write.
    gate: RwLock<()>,
}

impl Bytes {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Bytes {
        Bytes {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            device,
            gate: RwLock::new(()),
        }
    }

    pub(crate) fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }

    pub(crate) fn size(&self) -> u64 {
        self.device.info().size
    }

    fn block(&self) -> u64 {
        u64::from(self.device.info().logical_block_size)
    }

    fn piece(&self) -> u64 {
        // A multiple of the block size, because both are.
        u64::from(self.device.info().max_transfer).min(PIECE_BYTES as u64)
    }

    fn with_lane<T>(&self, work: impl FnOnce(&mut Lane) -> Result<T>) -> Result<T> {
        QUEUES.with_borrow_mut(|queues| {
            let lane = match queues.entry(self.id) {
                std::collections::hash_map::Entry::Occupied(lane) => lane.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(Lane::open(&*self.device)?)
                }
            };
            let result = work(lane);
            if lane.is_broken {
                queues.remove(&self.id);
            }
            result
        })
    }

    /// Reads `len` bytes at `offset`, fewer at the end of the device, and passes them to a closure.
    pub(crate) fn read<T>(
        &self,
        offset: u64,
        len: usize,
        give: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let end = offset.saturating_add(len as u64).min(self.size());
        let len = end.saturating_sub(offset) as usize;
        if len == 0 {
            return Ok(give(&[]));
        }
        let block = self.block();
        let from = offset - offset % block;
        let to = end.next_multiple_of(block);
        let skip = (offset - from) as usize;
        self.with_lane(|lane| {
            if to - from <= self.piece() {
                let buf = lane.read(from, (to - from) as usize)?;
                return Ok(give(&buf[skip..skip + len]));
            }
            let mut all = Vec::with_capacity((to - from) as usize);
            let mut at = from;
            while at < to {
                let buf = lane.read(at, (to - at).min(self.piece()) as usize)?;
                all.extend_from_slice(&buf);
                at += buf.len() as u64;
            }
            Ok(give(&all[skip..skip + len]))
        })
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] beyond the end: files here cannot grow.
    pub(crate) fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<()> {
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= self.size());
        if end.is_none() {
            let why = "the file cannot grow";
            return Err(Error::new(
                ErrorKind::NoSpace,
                &self.device.info().name,
                why,
            ));
        }
        let block = self.block();
        let aligned = offset.is_multiple_of(block) && (data.len() as u64).is_multiple_of(block);
        if aligned {
            let _shared = self.gate.read().expect("no panic under this lock");
            return self.with_lane(|lane| self.write_aligned(lane, offset, data, durability));
        }
        let _alone = self.gate.write().expect("no panic under this lock");
        self.with_lane(|lane| {
            let from = offset - offset % block;
            let to = (offset + data.len() as u64).next_multiple_of(block);
            let mut around = vec![0; (to - from) as usize];
            let last = around.len() - block as usize;
            // Only the first and last block contain bytes outside the range.
            around[..block as usize].copy_from_slice(&lane.read(from, block as usize)?);
            if last > 0 {
                around[last..].copy_from_slice(&lane.read(to - block, block as usize)?);
            }
            let skip = (offset - from) as usize;
            around[skip..skip + data.len()].copy_from_slice(data);
            self.write_aligned(lane, from, &around, durability)
        })
    }

    fn write_aligned(
        &self,
        lane: &mut Lane,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Result<()> {
        let mut at = offset;
        for piece in data.chunks(self.piece() as usize) {
            lane.write(at, piece, durability)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Discards the whole blocks of a range.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len).min(self.size());
        let block = self.block();
        let (offset, end) = (offset.next_multiple_of(block), end - end % block);
        if offset >= end {
            return Ok(());
        }
        let _shared = self.gate.read().expect("no panic under this lock");
        let len = end - offset;
        self.with_lane(|lane| lane.run(Op::Discard { offset, len }).map(drop))
    }

    /// Makes a range read as zeros.
    pub(crate) fn zero(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len).min(self.size());
        let block = self.block();
        let (from, to) = (offset.next_multiple_of(block), end - end % block);
        if from >= to {
            // The range contains no whole block.
            return self.write(
                offset.min(end),
                &vec![0; end.saturating_sub(offset) as usize],
                Durability::Volatile,
            );
        }
        self.write(
            offset,
            &vec![0; (from - offset) as usize],
            Durability::Volatile,
        )?;
        {
            let _shared = self.gate.read().expect("no panic under this lock");
            let op = Op::WriteZeroes {
                offset: from,
                len: to - from,
                fua: false,
                unmap: false,
            };
            self.with_lane(|lane| lane.run(op).map(drop))?;
        }
        self.write(to, &vec![0; (end - to) as usize], Durability::Volatile)
    }

    /// Makes everything written so far durable, including writes by other threads.
    pub(crate) fn flush(&self) -> Result<()> {
        self.with_lane(|lane| lane.run(Op::Flush).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::{Mem, Random};
    use std::os::fd::BorrowedFd;

    /// A disk whose first queue breaks with a read in flight.
    struct Breaks {
        mem: Mem,
        queues: AtomicU64,
    }

    impl BlockDevice for Breaks {
        fn info(&self) -> &block::DeviceInfo {
            self.mem.info()
        }

        fn queue(&self) -> Result<Box<dyn Queue>> {
            let queue = self.mem.queue()?;
            Ok(match self.queues.fetch_add(1, Ordering::Relaxed) {
                0 => Box::new(Broken(queue)),
                _ => queue,
            })
        }
    }

    struct Broken(Box<dyn Queue>);

    impl Queue for Broken {
        fn info(&self) -> &block::DeviceInfo {
            self.0.info()
        }

        fn capacity(&self) -> usize {
            self.0.capacity()
        }

        fn in_flight(&self) -> usize {
            self.0.in_flight()
        }

        fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
            self.0.submit(request)
        }

        fn kick(&mut self) -> Result<()> {
            self.0.kick()
        }

        fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
            self.0.reap(wait, done)?;
            Err(Error::new(ErrorKind::Io, "queue", "it broke"))
        }

        fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
            self.0.wait_fd()
        }
    }

    #[test]
    fn a_queue_that_broke_is_used_for_nothing_more() {
        let mem = Mem::new(1 << 20, 512);
        let bytes = Bytes::new(Arc::new(Breaks {
            mem,
            queues: AtomicU64::new(0),
        }));
        assert!(bytes.read(0, 512, |_| ()).is_err());
        // The completion that it still had is not taken for that of the next request.
        bytes.write(4096, &[7; 512], Durability::Volatile).unwrap();
        let seen = bytes.read(4096, 512, <[u8]>::to_vec).unwrap();
        assert_eq!(seen, [7; 512]);
    }

    #[test]
    fn any_offset_and_length_agrees_with_a_plain_copy() {
        for block in [512, 4096] {
            let bytes = Bytes::new(Arc::new(Mem::new(3 << 20, block)));
            let mut model = vec![0u8; 3 << 20];
            let mut random = Random::new(7);
            for _ in 0..300 {
                let offset = random.below(model.len() as u64);
                let longest = [10, 5000, 1 << 21][random.below(3) as usize];
                let len = random.below(longest).min(model.len() as u64 - offset) as usize;
                let range = offset as usize..offset as usize + len;
                match random.below(3) {
                    0 => {
                        let mut data = vec![0; len];
                        random.fill(&mut data);
                        let durability = [Durability::Volatile, Durability::Durable];
                        let durability = durability[random.below(2) as usize];
                        bytes.write(offset, &data, durability).unwrap();
                        model[range].copy_from_slice(&data);
                    }
                    1 => {
                        bytes.zero(offset, len as u64).unwrap();
                        model[range].fill(0);
                    }
                    _ => bytes
                        .read(offset, len, |data| assert!(data == &model[range]))
                        .unwrap(),
                }
            }
            bytes
                .read(0, model.len(), |data| assert!(data == model))
                .unwrap();
            bytes
                .read(model.len() as u64 - 3, 100, |data| {
                    assert_eq!(data.len(), 3)
                })
                .unwrap();
            assert_eq!(
                bytes
                    .write(model.len() as u64 - 3, &[1; 4], Durability::Volatile)
                    .unwrap_err()
                    .kind(),
                ErrorKind::NoSpace
            );
        }
    }

    #[test]
    fn unaligned_writers_on_many_threads_lose_no_neighbours_byte() {
        let bytes = Arc::new(Bytes::new(Arc::new(Mem::new(1 << 20, 4096))));
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let bytes = Arc::clone(&bytes);
                // Each thread owns every eighth byte of the same few blocks.
                scope.spawn(move || {
                    for i in 0..500u64 {
                        bytes
                            .write(
                                (i * 8 + thread) % 16384,
                                &[thread as u8 + 1],
                                Durability::Volatile,
                            )
                            .unwrap();
                    }
                });
            }
        });
        bytes
            .read(0, 4000, |data| {
                for (i, byte) in data.iter().enumerate() {
                    assert_eq!(u64::from(*byte), i as u64 % 8 + 1, "byte {i}");
                }
            })
            .unwrap();
    }
}
