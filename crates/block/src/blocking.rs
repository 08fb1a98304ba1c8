//! Blocking access to a device, for headers, tools and tests. Uses only submit and reap.

use crate::{
    BlockDevice, Buf, Completion, DeviceInfo, Error, Op, Queue, Request, Result, Wait,
    about_to_sleep,
};

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

    /// Fills a range with zeros. The device may free the space.
    pub fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<()> {
        self.run(Op::WriteZeroes {
            offset,
            len,
            fua: false,
            unmap: true,
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
            about_to_sleep();
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
