//! The cipher queue of one thread.
//!
//! A read is submitted to the lower device with the caller's own buffers, shifted by the data
//! segment, and decrypted in place when it is reaped. A write is encrypted on submit into buffers
//! of the queue, because the caller's page stays plaintext; the caller's buffers are kept here
//! until the completion.
//!
//! **Invariant:** a request to the lower device never contains plaintext.
//!
//! Out of scope: ordering, retries, and any memory that grows. A write that finds no free buffer
//! waits for one. A write-zeroes writes encrypted zeros, a few buffers at a time.

use crate::shared::Shared;
use block::{BufPool, Bufs, Completion, DeviceInfo, Error, Op, Queue, Request, Result, Wait};
use layer_cpu::{Layer, within};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of one cipher buffer. A 64 KiB write fills half of one. The ring of the lower device
/// submits one buffer without an I/O vector and, if registered, without pinning pages each time.
const CIPHER_BUF_BYTES: usize = 128 * 1024;
/// Number of cipher buffers of a queue.
const CIPHER_BUFS: usize = 64;
/// Longest transfer in bytes: four of this length fit in the buffers at once.
const MAX_TRANSFER: u32 = 2 * 1024 * 1024;
/// Number of cipher buffers that one write-zeroes keeps in flight.
const ZERO_BUFS: usize = 4;

/// Memory of one queue in bytes: its cipher buffers.
pub const QUEUE_MEMORY_BYTES: usize = CIPHER_BUF_BYTES * CIPHER_BUFS;

const _: () = assert!(MAX_TRANSFER as usize * 4 <= QUEUE_MEMORY_BYTES);

/// Computes the largest transfer, given the lower device's limit `below` and the block size.
pub(crate) fn max_transfer(below: u32, block: u32) -> u32 {
    let max = below.min(MAX_TRANSFER);
    (max - max % block).max(block)
}

pub(crate) struct CryptQueue {
    shared: Arc<Shared>,
    lower: Box<dyn Queue>,
    pool: BufPool,
    /// Job of each request in flight; the index is the tag on the lower queue.
    slots: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Slots of writes and write-zeroes that wait for cipher buffers, oldest first.
    starved: VecDeque<usize>,
    /// Requests that the lower queue had no room for.
    held: VecDeque<Request>,
    /// Completions not yet reaped by the caller.
    ready: VecDeque<Completion>,
    /// Scratch vector for reaping the lower queue.
    below: Vec<Completion>,
}

/// A request between submit and reap.
enum Job {
    /// Reads, flushes and discards: the lower queue holds the operation itself.
    Through {
        tag: u64,
    },
    /// The caller's operation with its plaintext buffers.
    Write {
        tag: u64,
        op: Op,
    },
    Zero(ZeroJob),
}

/// A write-zeroes in progress; `next` to `end` remains to be submitted.
struct ZeroJob {
    tag: u64,
    op: Op,
    next: u64,
    end: u64,
    fua: bool,
    running: usize,
    error: Option<Error>,
}

impl CryptQueue {
    pub(crate) fn open(shared: Arc<Shared>) -> Result<CryptQueue> {
        let mut lower = shared.lower.queue()?;
        let pool = BufPool::new(CIPHER_BUF_BYTES, CIPHER_BUFS);
        lower.register(&pool);
        let capacity = lower.capacity();
        Ok(CryptQueue {
            shared,
            lower,
            pool,
            slots: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            starved: VecDeque::new(),
            held: VecDeque::new(),
            ready: VecDeque::new(),
            below: Vec::new(),
        })
    }

    /// Computes the plain64 tweak of the sector at `offset` of the volume. It counts 512-byte units
    /// for every sector size (LUKS2 on-disk format 1.1, section 3.3: `iv_tweak`).
    fn unit(&self, offset: u64) -> u64 {
        self.shared.segment.iv_tweak.wrapping_add(offset / 512)
    }

    fn lower_offset(&self, offset: u64) -> u64 {
        // Cannot overflow: the request was checked against a size that lies within the device.
        self.shared.segment.offset + offset
    }

    /// Submits a request to the lower queue, or holds it until the queue has room.
    fn send(&mut self, request: Request) {
        if !self.held.is_empty() {
            self.held.push_back(request);
        } else if let Err(request) = self.lower.submit(request) {
            self.held.push_back(request);
        }
    }

    /// Starts the job of a slot as far as buffers allow; returns false if it must wait for some.
    fn start(&mut self, slot: usize) -> bool {
        match self.slots[slot].take() {
            Some(Job::Write { tag, op }) => {
                let Op::Write { offset, bufs, fua } = &op else {
                    unreachable!("a write job holds a write")
                };
                let (offset, fua) = (*offset, *fua);
                let ciphered = self.encipher(offset, bufs);
                self.slots[slot] = Some(Job::Write { tag, op });
                let Some(bufs) = ciphered else { return false };
                let offset = self.lower_offset(offset);
                self.send(Request {
                    tag: slot as u64,
                    op: Op::Write { offset, bufs, fua },
                });
                true
            }
            Some(Job::Zero(mut job)) => {
                let fed = self.feed_zeroes(slot, &mut job);
                self.slots[slot] = Some(Job::Zero(job));
                fed
            }
            other => {
                self.slots[slot] = other;
                true
            }
        }
    }

    /// Encrypts `clear` into buffers of the queue; `None` while too few are free.
    fn encipher(&self, offset: u64, clear: &Bufs) -> Option<Bufs> {
        let total = clear.total_len();
        let mut out = take_bufs(&self.pool, total)?;
        let mut unit = self.unit(offset);
        let mut at = 0;
        for piece in clear.iter() {
            let mut src = &piece[..];
            while !src.is_empty() {
                let dst = &mut out.as_mut_slice()[at / CIPHER_BUF_BYTES][at % CIPHER_BUF_BYTES..];
                let len = src.len().min(dst.len());
                self.shared
                    .xts
                    .encrypt_to(unit, &src[..len], &mut dst[..len]);
                src = &src[len..];
                at += len;
                unit = unit.wrapping_add(len as u64 / 512);
            }
        }
        Some(out)
    }

    /// Keeps up to [`ZERO_BUFS`] buffers of encrypted zeros in flight; returns false if there is
    /// more to write but no buffer is in flight.
    fn feed_zeroes(&mut self, slot: usize, job: &mut ZeroJob) -> bool {
        while job.next < job.end && job.running < ZERO_BUFS && job.error.is_none() {
            let longest = CIPHER_BUF_BYTES.min(self.shared.info.max_transfer as usize) as u64;
            let len = longest.min(job.end - job.next) as usize;
            let Some(mut buf) = self.pool.take(len) else {
                break;
            };
            buf.fill(0);
            self.shared.xts.encrypt(self.unit(job.next), &mut buf);
            let offset = self.lower_offset(job.next);
            let op = Op::Write {
                offset,
                bufs: buf.into(),
                fua: job.fua,
            };
            job.next += len as u64;
            job.running += 1;
            self.send(Request {
                tag: slot as u64,
                op,
            });
        }
        job.running > 0 || job.next >= job.end
    }

    /// Processes a completion of the lower queue: decrypts data, releases buffers, advances jobs.
    fn complete(&mut self, done: Completion) {
        let slot = done.tag as usize;
        match self.slots[slot]
            .take()
            .expect("each tag below stands for one job")
        {
            Job::Through { tag } => {
                let op = self.unshift(done.op, done.result.is_ok());
                self.finish(
                    slot,
                    Completion {
                        tag,
                        op,
                        result: done.result,
                    },
                );
            }
            Job::Write { tag, op } => {
                drop(done.op);
                self.finish(
                    slot,
                    Completion {
                        tag,
                        op,
                        result: done.result,
                    },
                );
            }
            Job::Zero(mut job) => {
                drop(done.op);
                job.running -= 1;
                job.error = job.error.take().or(done.result.err());
                let fed = self.feed_zeroes(slot, &mut job);
                let over = job.running == 0 && (job.next >= job.end || job.error.is_some());
                if over {
                    let ZeroJob { tag, op, error, .. } = job;
                    self.finish(
                        slot,
                        Completion {
                            tag,
                            op,
                            result: error.map_or(Ok(()), Err),
                        },
                    );
                } else {
                    self.slots[slot] = Some(Job::Zero(job));
                    if !fed {
                        self.starved.push_back(slot);
                    }
                }
            }
        }
    }

    /// Restores the caller's view of an operation: its own offset, and plaintext if it was a read.
    fn unshift(&self, mut op: Op, went_well: bool) -> Op {
        let start = self.shared.segment.offset;
        match &mut op {
            Op::Read { offset, bufs } => {
                *offset -= start;
                if went_well {
                    let mut unit = self.unit(*offset);
                    for buf in bufs.iter_mut() {
                        self.shared.xts.decrypt(unit, buf);
                        unit = unit.wrapping_add(buf.len() as u64 / 512);
                    }
                }
            }
            Op::Discard { offset, .. } => *offset -= start,
            Op::Flush | Op::Write { .. } | Op::WriteZeroes { .. } => {}
        }
        op
    }

    fn finish(&mut self, slot: usize, completion: Completion) {
        self.slots[slot] = None;
        self.free.push(slot);
        self.ready.push_back(completion);
    }

    /// Submits waiting requests: first those the lower queue refused, then those lacking buffers.
    fn resume(&mut self) {
        while let Some(request) = self.held.pop_front() {
            if let Err(request) = self.lower.submit(request) {
                self.held.push_front(request);
                return;
            }
        }
        while let Some(slot) = self.starved.pop_front() {
            if !self.start(slot) {
                self.starved.push_front(slot);
                return;
            }
        }
    }
}

/// Takes buffers for `total` bytes, or `None` while too few are free. Takes all or none, so that
/// two waiting writes cannot each hold half of the buffers that the other needs.
fn take_bufs(pool: &BufPool, total: usize) -> Option<Bufs> {
    if total <= CIPHER_BUF_BYTES {
        return pool.take(total).map(Bufs::from);
    }
    let mut bufs = Vec::with_capacity(total.div_ceil(CIPHER_BUF_BYTES));
    let mut left = total;
    while left > 0 {
        let len = left.min(CIPHER_BUF_BYTES);
        bufs.push(pool.take(len)?);
        left -= len;
    }
    Some(bufs.into())
}

impl Queue for CryptQueue {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let _here = within(Layer::Crypt);
        if self.in_flight() >= self.slots.len() {
            return Err(request);
        }
        let Request { tag, op } = request;
        let empty = op.range().is_some_and(|(_, len)| len == 0);
        match self.shared.info.check(&op) {
            Ok(()) if !empty => {}
            result => {
                self.ready.push_back(Completion { tag, op, result });
                return Ok(());
            }
        }
        let slot = self
            .free
            .pop()
            .expect("fewer than `capacity` are in flight");
        match op {
            Op::Read { offset, bufs } => {
                self.slots[slot] = Some(Job::Through { tag });
                let offset = self.lower_offset(offset);
                self.send(Request {
                    tag: slot as u64,
                    op: Op::Read { offset, bufs },
                });
            }
            Op::Discard { offset, len } => {
                self.slots[slot] = Some(Job::Through { tag });
                let offset = self.lower_offset(offset);
                self.send(Request {
                    tag: slot as u64,
                    op: Op::Discard { offset, len },
                });
            }
            Op::Flush => {
                self.slots[slot] = Some(Job::Through { tag });
                self.send(Request {
                    tag: slot as u64,
                    op,
                });
            }
            Op::Write { .. } => self.begin(slot, Job::Write { tag, op }),
            Op::WriteZeroes {
                offset, len, fua, ..
            } => {
                let (next, end) = (offset, offset + len);
                let job = ZeroJob {
                    tag,
                    op,
                    next,
                    end,
                    fua,
                    running: 0,
                    error: None,
                };
                self.begin(slot, Job::Zero(job));
            }
        }
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        let _here = within(Layer::Crypt);
        self.resume();
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let _here = within(Layer::Crypt);
        let until = match wait {
            // A time too long for the clock waits indefinitely.
            Wait::AtMost(time) => Instant::now().checked_add(time),
            Wait::Poll | Wait::Block => None,
        };
        let mut wait = wait;
        loop {
            self.resume();
            let wait_below = if self.ready.is_empty() {
                wait
            } else {
                Wait::Poll
            };
            let mut below = std::mem::take(&mut self.below);
            let reaped = self.lower.reap(wait_below, &mut below);
            for completion in below.drain(..) {
                self.complete(completion);
            }
            self.below = below;
            reaped?;
            let count = self.ready.len();
            if count > 0 || self.in_flight() == 0 || wait == Wait::Poll {
                // Freed buffers let waiting requests start before the caller sleeps.
                self.kick()?;
                done.extend(self.ready.drain(..));
                return Ok(count);
            }
            // Only part of a write-zeroes completed: keep waiting.
            if let Some(until) = until {
                let left = until.saturating_duration_since(Instant::now());
                wait = if left.is_zero() {
                    Wait::Poll
                } else {
                    Wait::AtMost(left)
                };
            }
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

impl CryptQueue {
    /// Stores a job that needs buffers in its slot and starts it, after those already waiting.
    fn begin(&mut self, slot: usize, job: Job) {
        self.slots[slot] = Some(job);
        if !self.starved.is_empty() || !self.start(slot) {
            self.starved.push_back(slot);
        }
    }
}
