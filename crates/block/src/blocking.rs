//! Blocking access to a device, for headers, tools and tests. Uses only submit and reap.

use crate::{BlockDevice, Buf, Completion, DeviceInfo, Error, Op, Queue, Request, Result, Wait};

/// Number of chunks in flight when a long transfer is split.
const CHUNKS_IN_FLIGHT: usize = 4;
/// Longest chunk of a split transfer in bytes, where the device allows this length.
const CHUNK_BYTES: usize = 1 << 20;

/// A queue whose caller waits for each operation.
pub struct Blocking {
    queue: Box<dyn Queue>,
    done: Vec<Completion>,
}

impl Blocking {
    /// Opens a queue on `device` for the calling thread.
    pub fn open(device: &dyn BlockDevice) -> Result<Blocking> {
        Ok(Blocking::over(device.queue()?))
    }

    /// Wraps an open queue with nothing in flight.
    pub fn over(queue: Box<dyn Queue>) -> Blocking {
        Blocking {
            queue,
            done: Vec::new(),
        }
    }

    /// Returns the properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        self.queue.info()
    }

    /// Reads into `out` from `offset`. Offset and length are multiples of the logical block size.
    pub fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let chunk = self.chunk();
        let total = out.len();
        self.run_chunks(
            total.div_ceil(chunk),
            |i| {
                let from = i * chunk;
                let len = chunk.min(total - from);
                Op::Read {
                    offset: offset.saturating_add(from as u64),
                    bufs: Buf::zeroed(len).into(),
                }
            },
            |i, op| {
                if let Op::Read { bufs, .. } = op {
                    let mut from = i * chunk;
                    for buf in bufs.iter() {
                        out[from..from + buf.len()].copy_from_slice(buf);
                        from += buf.len();
                    }
                }
            },
        )
    }

    /// Writes `data` at `offset`. Offset and length are multiples of the logical block size.
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let chunk = self.chunk();
        self.run_chunks(
            data.len().div_ceil(chunk),
            |i| {
                let from = i * chunk;
                let part = &data[from..data.len().min(from + chunk)];
                let bufs = Buf::copy_of(part).into();
                Op::Write {
                    offset: offset.saturating_add(from as u64),
                    bufs,
                    fua: false,
                }
            },
            |_, _| {},
        )
    }

    /// Puts all completed writes on stable storage.
    pub fn flush(&mut self) -> Result<()> {
        self.run(Op::Flush).map(drop)
    }

    /// Discards a range.
    pub fn discard(&mut self, offset: u64, len: u64) -> Result<()> {
        self.run(Op::Discard { offset, len }).map(drop)
    }

    /// Fills a range with zeros.
    pub fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> Result<()> {
        self.run(Op::WriteZeroes {
            offset,
            len,
            fua: false,
            unmap,
        })
        .map(drop)
    }

    /// Carries out one operation and returns it with its buffers.
    pub fn run(&mut self, op: Op) -> Result<Op> {
        self.queue
            .submit(Request { tag: 0, op })
            .unwrap_or_else(|_| unreachable!("an empty queue takes a request"));
        let done = self.reap_one()?;
        done.result.map(|()| done.op)
    }

    fn chunk(&self) -> usize {
        let info = self.queue.info();
        // A multiple of the block size, because both bounds are.
        CHUNK_BYTES
            .min(info.max_transfer as usize)
            .max(info.logical_block_size as usize)
    }

    fn reap_one(&mut self) -> Result<Completion> {
        while self.done.is_empty() {
            self.queue.reap(Wait::Block, &mut self.done)?;
        }
        Ok(self.done.swap_remove(0))
    }

    /// Runs `count` operations, a few in flight at a time. After the first error it submits no
    /// more, waits for those in flight, and returns that error.
    fn run_chunks(
        &mut self,
        count: usize,
        mut make: impl FnMut(usize) -> Op,
        mut take: impl FnMut(usize, Op),
    ) -> Result<()> {
        let (mut next, mut running) = (0, 0);
        let mut first_error: Option<Error> = None;
        let limit = CHUNKS_IN_FLIGHT.min(self.queue.capacity());
        loop {
            while next < count && running < limit && first_error.is_none() {
                let op = make(next);
                self.queue
                    .submit(Request {
                        tag: next as u64,
                        op,
                    })
                    .unwrap_or_else(|_| unreachable!("fewer than `capacity` are in flight"));
                next += 1;
                running += 1;
            }
            if running == 0 {
                return first_error.map_or(Ok(()), Err);
            }
            let done = self.reap_one()?;
            running -= 1;
            match done.result {
                Ok(()) => take(done.tag as usize, done.op),
                Err(e) => first_error = first_error.or(Some(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorDevice, ErrorKind, Failure, Mem, MemConfig, Random};
    use std::sync::Arc;

    /// Creates a disk on which a long transfer takes many small requests.
    fn narrow(capacity: usize) -> Mem {
        Mem::with(MemConfig {
            capacity,
            max_transfer: 1024,
            ..MemConfig::new(1 << 20, 512)
        })
    }

    #[test]
    fn long_transfers_are_split_and_come_back_whole() {
        for capacity in [1, 2, 128] {
            let mem = narrow(capacity);
            let mut blocking = Blocking::open(&mem).unwrap();
            let mut data = vec![0; 100 * 512];
            Random::new(1).fill(&mut data);
            blocking.write_at(512, &data).unwrap();
            let mut back = vec![0; data.len()];
            blocking.read_at(512, &mut back).unwrap();
            assert!(back == data);
            blocking.write_zeroes(512, 1024, true).unwrap();
            blocking.discard(2048, 512).unwrap();
            blocking.flush().unwrap();
            blocking.read_at(0, &mut back[..2048]).unwrap();
            assert_eq!(back[..1536], [0; 1536]);
            assert_eq!(back[1536..2048], data[1024..1536]);
        }
    }

    #[test]
    fn the_first_error_ends_a_long_transfer_and_the_next_call_works() {
        let (device, handle) = ErrorDevice::new(Arc::new(narrow(128)));
        let mut blocking = Blocking::open(&device).unwrap();
        for n in 1..=20 {
            handle.set(Some(Failure::nth(n, ErrorKind::Media)));
            let error = blocking.write_at(0, &[1; 20 * 1024]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Media);
            assert_eq!(error.range(), Some(((n - 1) * 1024, 1024)));
            handle.set(None);
            let mut back = [0; 1024];
            blocking.write_at(0, &[n as u8; 1024]).unwrap();
            blocking.read_at(0, &mut back).unwrap();
            assert_eq!(back, [n as u8; 1024]);
        }
    }

    #[test]
    fn wrong_ranges_are_errors_and_empty_ones_are_nothing() {
        let mem = narrow(8);
        let mut blocking = Blocking::open(&mem).unwrap();
        let mut out = vec![0; 4096];
        for offset in [1 << 20, u64::MAX - 511] {
            let error = blocking.read_at(offset, &mut out).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfRange);
        }
        let error = blocking.write_at(0, &out[..100]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misaligned);
        blocking.read_at(0, &mut []).unwrap();
        blocking.write_at(0, &[]).unwrap();
    }

    #[test]
    fn an_operation_comes_back_with_its_buffers() {
        let mem = narrow(8);
        let mut blocking = Blocking::open(&mem).unwrap();
        mem.poke(512, &[5; 512]);
        let bufs = Buf::zeroed(512).into();
        let Op::Read { bufs, .. } = blocking.run(Op::Read { offset: 512, bufs }).unwrap() else {
            panic!("another operation came back")
        };
        assert_eq!(bufs.as_slice()[0][..], [5; 512]);
    }
}
