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
use block::{
    Backlog, BufPool, Bufs, Completion, DeviceInfo, Error, Op, Queue, Request, Result,
    SUM_BLOCK_BYTES, Sum, SumGroup, Summer, Wait,
};
use layer_cpu::{Layer, within};
use slab::Slab;
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
    lower: Backlog,
    /// Maximum number of requests in flight.
    capacity: usize,
    pool: BufPool,
    /// Job of each request in flight, by its tag on the lower queue.
    jobs: Slab<Job>,
    /// Keys of writes and write-zeroes that wait for cipher buffers, oldest first.
    starved: VecDeque<usize>,
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

impl ZeroJob {
    /// Keeps up to [`ZERO_BUFS`] buffers of encrypted zeros in flight; returns false if there is
    /// more to write but no buffer is in flight.
    fn feed(&mut self, key: usize, shared: &Shared, pool: &BufPool, lower: &mut Backlog) -> bool {
        while self.next < self.end && self.running < ZERO_BUFS && self.error.is_none() {
            let longest = CIPHER_BUF_BYTES.min(shared.info.max_transfer as usize) as u64;
            let len = longest.min(self.end - self.next) as usize;
            let Some(mut buf) = pool.take(len) else {
                break;
            };
            buf.fill(0);
            shared.xts.encrypt(shared.tweak(self.next), &mut buf);
            let op = Op::Write {
                offset: shared.lower_offset(self.next),
                bufs: buf.into(),
                fua: self.fua,
            };
            self.next += len as u64;
            self.running += 1;
            let tag = key as u64;
            lower.submit(Request { tag, op });
        }
        self.running > 0 || self.next >= self.end
    }

    fn is_over(&self) -> bool {
        self.running == 0 && (self.next >= self.end || self.error.is_some())
    }
}

impl CryptQueue {
    pub(crate) fn open(shared: Arc<Shared>) -> Result<CryptQueue> {
        let lower = shared.lower.queue()?;
        let capacity = lower.capacity();
        let mut lower = Backlog::new(lower);
        let pool = BufPool::new(CIPHER_BUF_BYTES, CIPHER_BUFS);
        lower.register(&pool);
        Ok(CryptQueue {
            shared,
            lower,
            capacity,
            pool,
            jobs: Slab::with_capacity(capacity),
            starved: VecDeque::new(),
            ready: VecDeque::new(),
            below: Vec::new(),
        })
    }

    /// Starts a job as far as buffers allow; returns false if it must wait for some.
    fn start(&mut self, key: usize) -> bool {
        match &mut self.jobs[key] {
            Job::Write { op, .. } => {
                let Op::Write { offset, bufs, fua } = op else {
                    unreachable!("a write job holds a write")
                };
                let (offset, fua) = (*offset, *fua);
                let Some(bufs) = encrypted(&self.shared, &self.pool, offset, bufs) else {
                    return false;
                };
                let offset = self.shared.lower_offset(offset);
                let op = Op::Write { offset, bufs, fua };
                let tag = key as u64;
                self.lower.submit(Request { tag, op });
                true
            }
            Job::Zero(job) => job.feed(key, &self.shared, &self.pool, &mut self.lower),
            Job::Through { .. } => true,
        }
    }

    /// Processes a completion of the lower queue: decrypts data, releases buffers, advances jobs.
    fn complete(&mut self, done: Completion) {
        let key = done.tag as usize;
        let (tag, op, result) = match &mut self.jobs[key] {
            &mut Job::Through { tag } => {
                let op = self.unshift(done.op, done.result.is_ok());
                (tag, op, done.result)
            }
            Job::Write { tag, op } => (*tag, std::mem::replace(op, Op::Flush), done.result),
            Job::Zero(job) => {
                drop(done.op);
                job.running -= 1;
                job.error = job.error.take().or(done.result.err());
                let fed = job.feed(key, &self.shared, &self.pool, &mut self.lower);
                if !job.is_over() {
                    if !fed {
                        self.starved.push_back(key);
                    }
                    return;
                }
                let op = std::mem::replace(&mut job.op, Op::Flush);
                (job.tag, op, job.error.take().map_or(Ok(()), Err))
            }
        };
        self.jobs.remove(key);
        self.ready.push_back(Completion { tag, op, result });
    }

    /// Restores the caller's view of an operation: its own offset, and plaintext if it was a read.
    fn unshift(&self, mut op: Op, went_well: bool) -> Op {
        let start = self.shared.segment.offset;
        match &mut op {
            Op::Read { offset, bufs } => {
                *offset -= start;
                let sums = went_well.then(|| decrypt(&self.shared, *offset, bufs));
                match sums.flatten() {
                    Some(sums) => bufs.set_sums(sums),
                    // Those of the ciphertext, which a layer below may have computed.
                    None => drop(bufs.take_sums()),
                }
            }
            Op::Discard { offset, .. } => *offset -= start,
            Op::Flush | Op::Write { .. } | Op::WriteZeroes { .. } => {}
        }
        op
    }

    /// Submits waiting requests: first those the lower queue refused, then those lacking buffers.
    fn resume(&mut self) {
        if !self.lower.resume() {
            return;
        }
        while let Some(key) = self.starved.pop_front() {
            if !self.start(key) {
                self.starved.push_front(key);
                return;
            }
        }
    }
}

/// Returns the function of the checksums that the caller asked for, if each block lies in one buffer.
fn asked_summer(bufs: &Bufs) -> Option<Arc<dyn Summer>> {
    let fits = |buf: &block::Buf| buf.len().is_multiple_of(SUM_BLOCK_BYTES);
    bufs.summer().filter(|_| bufs.iter().all(fits)).cloned()
}

/// Starts the checksums of `total` bytes.
fn group_of<'s, 'b>(summer: &'s Option<Arc<dyn Summer>>, total: usize) -> Option<SumGroup<'s, 'b>> {
    let blocks = total / SUM_BLOCK_BYTES;
    summer
        .as_deref()
        .map(|summer| SumGroup::new(summer, blocks))
}

/// Length of the part of `left` bytes to be processed at a time: a block while its bytes are needed
/// twice.
fn step(sums: Option<&SumGroup<'_, '_>>, left: usize) -> usize {
    match sums {
        Some(_) => left.min(SUM_BLOCK_BYTES),
        None => left,
    }
}

/// Adds a part of the length that [`step`] returned to the checksums.
fn add<'b>(sums: &mut Option<SumGroup<'_, 'b>>, part: &'b [u8]) {
    if let (Some(sums), Some(block)) = (sums, part.as_array()) {
        sums.add(block);
    }
}

/// Decrypts what was read, in place. Returns the checksums, if the caller asked for them.
fn decrypt(shared: &Shared, offset: u64, bufs: &mut Bufs) -> Option<Vec<Sum>> {
    let summer = asked_summer(bufs);
    let mut sums = group_of(&summer, bufs.total_len());
    let mut tweak = shared.tweak(offset);
    for buf in bufs.iter_mut() {
        let mut rest = &mut buf[..];
        while !rest.is_empty() {
            let len = step(sums.as_ref(), rest.len());
            let (part, after) = rest.split_at_mut(len);
            shared.xts.decrypt(tweak, part);
            add(&mut sums, part);
            rest = after;
            tweak = tweak.after(len as u64);
        }
    }
    sums.map(SumGroup::finish)
}

/// Encrypts `clear` into buffers of `pool`; `None` while too few are free. Sets the checksums of
/// `clear`, if the caller asked for them.
fn encrypted(shared: &Shared, pool: &BufPool, offset: u64, clear: &mut Bufs) -> Option<Bufs> {
    let total = clear.total_len();
    let mut out = take_bufs(pool, total)?;
    let summer = asked_summer(clear);
    let mut sums = group_of(&summer, total);
    let mut tweak = shared.tweak(offset);
    let mut at = 0;
    for piece in clear.iter() {
        let mut src = &piece[..];
        while !src.is_empty() {
            let dst = &mut out.as_mut_slice()[at / CIPHER_BUF_BYTES][at % CIPHER_BUF_BYTES..];
            let len = step(sums.as_ref(), src.len().min(dst.len()));
            let (part, after) = src.split_at(len);
            shared.xts.encrypt_to(tweak, part, &mut dst[..len]);
            add(&mut sums, part);
            src = after;
            at += len;
            tweak = tweak.after(len as u64);
        }
    }
    if let Some(sums) = sums.map(SumGroup::finish) {
        clear.set_sums(sums);
    }
    Some(out)
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
        self.capacity
    }

    fn in_flight(&self) -> usize {
        self.jobs.len() + self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let _here = within(Layer::Crypt);
        if self.in_flight() >= self.capacity {
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
        let op = match op {
            Op::Read { offset, bufs } => {
                let offset = self.shared.lower_offset(offset);
                Op::Read { offset, bufs }
            }
            Op::Discard { offset, len } => {
                let offset = self.shared.lower_offset(offset);
                Op::Discard { offset, len }
            }
            Op::Flush => Op::Flush,
            Op::Write { .. } => {
                self.begin(Job::Write { tag, op });
                return Ok(());
            }
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
                self.begin(Job::Zero(job));
                return Ok(());
            }
        };
        let tag = self.jobs.insert(Job::Through { tag }) as u64;
        self.lower.submit(Request { tag, op });
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        let _here = within(Layer::Crypt);
        self.resume();
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let _here = within(Layer::Crypt);
        let until = wait.deadline();
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
        self.lower.queue().wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

impl CryptQueue {
    /// Starts a job that needs buffers, after those already waiting.
    fn begin(&mut self, job: Job) {
        let key = self.jobs.insert(job);
        if !self.starved.is_empty() || !self.start(key) {
            self.starved.push_back(key);
        }
    }
}
