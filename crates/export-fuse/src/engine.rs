//! Reads and writes of any offset and length, made of requests to devices of blocks.
//!
//! ```text
//!   read, change, flush ──► job ──► requests to the device's queue ──► completions ──► Finished
//!                            │ changes wait at the gate │
//! ```
//!
//! One engine belongs to one thread and never blocks. It knows nothing of FUSE but the numbers of
//! requests, so it is tested without a mount.
//!
//! **Memory:** [`POOL_BYTES`] in a pool. Only what is not aligned to blocks, and devices that take
//! less than [`BUF_BYTES`] at once, use the heap: at most one request and two blocks for each of
//! [`SLOTS`] slots.

use crate::gate::{Gate, Ticket};
use crate::stats::Counters;
use block::{BlockDevice, Buf, BufPool, Bufs, Completion, Op, Queue, Request, Result, Wait};
use std::collections::VecDeque;
use std::sync::Arc;

/// Longest read or write that the kernel sends, in bytes: its own limit of 256 pages.
pub(crate) const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Bytes of a buffer. The usual requests of 4 KiB to 128 KiB take one.
pub(crate) const BUF_BYTES: usize = 128 * 1024;
/// Buffers that stand ready for what is read from the kernel next.
pub(crate) const LANDING: usize = TRANSFER_BYTES_MAX / BUF_BYTES;
/// Buffers of a thread. Fifty-six requests of up to 128 KiB are in flight while eight buffers wait
/// for the next one.
const BUFS: usize = 64;
/// Requests in flight on a thread.
pub(crate) const SLOTS: usize = 64;

/// Memory of a thread's buffers.
pub(crate) const POOL_BYTES: usize = BUF_BYTES * BUFS;

/// What came of a request.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Number that the kernel gave the request.
    pub(crate) unique: u64,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// Bytes `skip..skip + len` of these buffers, in order of their offsets.
    Data {
        parts: Vec<(u64, Bufs)>,
        skip: usize,
        len: usize,
    },
    Written(u32),
    Done,
    /// An errno.
    Failed(i32),
}

/// What is to stand in the range afterwards.
#[derive(Debug)]
pub(crate) enum Content {
    Bytes(Vec<Buf>),
    Zeros { unmap: bool },
}

#[derive(Debug)]
enum Work {
    Read {
        skip: usize,
        len: usize,
        parts: Vec<(u64, Bufs)>,
    },
    Change(Change),
    Flush,
}

#[derive(Debug)]
struct Change {
    offset: u64,
    len: u64,
    content: Content,
    durable: bool,
    /// Blocks that hold bytes of others, by offset, once they have been read.
    edges: Vec<(u64, Buf)>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// At the gate.
    Waiting,
    /// Reading the blocks at the ends.
    Reading,
    Writing,
}

struct Job {
    unique: u64,
    file: usize,
    work: Work,
    /// Requests to the device that have not come back.
    left: usize,
    errno: Option<i32>,
}

/// One device, as this thread reaches it.
struct Lane {
    queue: Box<dyn Queue>,
    gate: Arc<Gate>,
    /// Requests that the queue had no room for.
    backlog: VecDeque<Request>,
    block: u64,
    size: u64,
    /// Longest transfer of the device.
    max: usize,
    /// Length of the buffers that fit it.
    piece: usize,
}

impl Lane {
    fn covered(&self, offset: u64, len: u64) -> (u64, u64) {
        let from = offset - offset % self.block;
        (from, (offset + len).next_multiple_of(self.block))
    }

    fn submit(&mut self, request: Request) {
        if !self.backlog.is_empty() {
            self.backlog.push_back(request);
        } else if let Err(request) = self.queue.submit(request) {
            self.backlog.push_back(request);
        }
    }
}

/// All requests of one thread.
pub(crate) struct Engine {
    worker: usize,
    pool: BufPool,
    landing: Vec<Buf>,
    lanes: Vec<Lane>,
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    finished: Vec<Finished>,
    /// Changes of other threads that may go in now.
    granted: Vec<Ticket>,
    done: Vec<Completion>,
    /// Something was submitted since the queues were last reaped.
    submitted: bool,
    counters: Arc<Counters>,
}

impl Engine {
    /// An engine of the calling thread, with a queue on every device.
    pub(crate) fn open(
        worker: usize,
        devices: &[(Arc<dyn BlockDevice>, Arc<Gate>)],
        counters: Arc<Counters>,
    ) -> Result<Engine> {
        let pool = BufPool::new(BUF_BYTES, BUFS);
        let mut lanes = Vec::with_capacity(devices.len());
        for (device, gate) in devices {
            let mut queue = device.queue()?;
            queue.register(&pool);
            let info = device.info();
            let (block, max) = (info.logical_block_size as usize, info.max_transfer as usize);
            let pooled = max >= BUF_BYTES && block <= BUF_BYTES;
            lanes.push(Lane {
                queue,
                gate: Arc::clone(gate),
                backlog: VecDeque::new(),
                block: block as u64,
                size: info.size,
                max,
                piece: if pooled { BUF_BYTES } else { max },
            });
        }
        Ok(Engine {
            worker,
            pool,
            landing: Vec::with_capacity(LANDING),
            lanes,
            jobs: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS).rev().collect(),
            finished: Vec::new(),
            granted: Vec::new(),
            done: Vec::new(),
            submitted: false,
            counters,
        })
    }

    /// The queues, to wait for.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &dyn Queue> {
        self.lanes.iter().map(|lane| &*lane.queue)
    }

    /// Room for the payload of a request of any length; `None` while too much is in flight.
    pub(crate) fn landing(&mut self) -> Option<&mut [Buf; LANDING]> {
        while self.landing.len() < LANDING {
            self.landing.push(self.pool.take(BUF_BYTES)?);
        }
        self.landing.as_mut_slice().try_into().ok()
    }

    /// Whether a request can be begun.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether anything has not come to its end.
    pub(crate) fn is_busy(&self) -> bool {
        self.free.len() < SLOTS
    }

    /// The first `len` bytes that landed, given up.
    pub(crate) fn landed(&mut self, len: usize) -> Vec<Buf> {
        let count = len.div_ceil(BUF_BYTES).min(self.landing.len());
        let mut bufs: Vec<Buf> = self.landing.drain(..count).collect();
        if let Some(last) = bufs.last_mut() {
            last.set_len(len - (count - 1) * BUF_BYTES);
        }
        bufs
    }

    fn pooled(&mut self, len: usize) -> Buf {
        let mut buf = match self.landing.pop() {
            Some(buf) => buf,
            None => match self.pool.take(len) {
                Some(buf) => buf,
                None => return Buf::zeroed(len),
            },
        };
        buf.set_len(len);
        buf
    }

    /// Buffers for `len` bytes, each at most as long as the device takes at once.
    fn bufs_for(&mut self, file: usize, len: usize) -> Vec<Buf> {
        let piece = self.lanes[file].piece;
        let mut bufs = Vec::with_capacity(len.div_ceil(piece));
        let mut left = len;
        while left > 0 {
            let part = left.min(piece);
            bufs.push(match piece == BUF_BYTES {
                true => self.pooled(part),
                false => Buf::zeroed(part),
            });
            left -= part;
        }
        bufs
    }

    fn start(&mut self, unique: u64, file: usize, work: Work) -> usize {
        let slot = self.free.pop().expect("the caller asked for room");
        self.jobs[slot] = Some(Job {
            unique,
            file,
            work,
            left: 0,
            errno: None,
        });
        slot
    }

    fn submit(&mut self, slot: usize, op: Op) {
        let Some(job) = self.jobs[slot].as_mut() else {
            unreachable!("requests belong to jobs")
        };
        job.left += 1;
        self.submitted = true;
        let tag = slot as u64;
        self.lanes[job.file].submit(Request { tag, op });
    }

    /// Begins to read up to `len` bytes; fewer come at the end of the device.
    pub(crate) fn read(&mut self, unique: u64, file: usize, offset: u64, len: u32) {
        let lane = &self.lanes[file];
        let len = u64::from(len).min(lane.size.saturating_sub(offset));
        Counters::count(&self.counters.reads, 1);
        Counters::count(&self.counters.read_bytes, len);
        if len == 0 {
            let outcome = Outcome::Done;
            return self.finished.push(Finished { unique, outcome });
        }
        let (from, to) = lane.covered(offset, len);
        let max = lane.max;
        let bufs = self.bufs_for(file, (to - from) as usize);
        let work = Work::Read {
            skip: (offset - from) as usize,
            len: len as usize,
            parts: Vec::with_capacity(1),
        };
        let slot = self.start(unique, file, work);
        for (offset, bufs) in grouped(bufs, from, max) {
            self.submit(slot, Op::Read { offset, bufs });
        }
    }

    /// Begins to make everything durable whose write was answered.
    pub(crate) fn flush(&mut self, unique: u64, file: usize) {
        Counters::count(&self.counters.flushes, 1);
        let slot = self.start(unique, file, Work::Flush);
        self.submit(slot, Op::Flush);
    }

    /// Begins a change of a range that lies within the device and is not empty.
    pub(crate) fn change(
        &mut self,
        unique: u64,
        file: usize,
        (offset, len): (u64, u64),
        content: Content,
        durable: bool,
    ) {
        match &content {
            Content::Bytes(_) => {
                Counters::count(&self.counters.writes, 1);
                Counters::count(&self.counters.written_bytes, len);
            }
            Content::Zeros { .. } => Counters::count(&self.counters.zeroed, 1),
        }
        let lane = &self.lanes[file];
        let (from, to) = lane.covered(offset, len);
        let alone = (from, to) != (offset, offset + len);
        let gate = Arc::clone(&lane.gate);
        let work = Work::Change(Change {
            offset,
            len,
            content,
            durable,
            edges: Vec::new(),
            stage: Stage::Waiting,
        });
        let slot = self.start(unique, file, work);
        if gate.enter(self.ticket(slot), from..to, alone) {
            self.enter(slot);
        } else {
            Counters::count(&self.counters.waited, 1);
        }
    }

    fn ticket(&self, slot: usize) -> Ticket {
        Ticket {
            worker: self.worker,
            slot,
        }
    }

    /// Carries on with a change that the gate let in.
    pub(crate) fn enter(&mut self, slot: usize) {
        let Some(Job {
            file,
            work: Work::Change(change),
            ..
        }) = self.jobs[slot].as_mut()
        else {
            unreachable!("only changes wait at the gate")
        };
        let lane = &self.lanes[*file];
        let block = lane.block;
        let (from, to) = lane.covered(change.offset, change.len);
        let first = (from != change.offset).then_some(from);
        let last = (to != change.offset + change.len).then_some(to - block);
        let edges = [first, last.filter(|last| Some(*last) != first)];
        if first.or(last).is_none() {
            return self.write(slot);
        }
        change.stage = Stage::Reading;
        Counters::count(&self.counters.patched, 1);
        for offset in edges.into_iter().flatten() {
            let bufs = Buf::zeroed(block as usize).into();
            self.submit(slot, Op::Read { offset, bufs });
        }
    }

    /// Writes a change whose edges are known.
    fn write(&mut self, slot: usize) {
        let Some(Job {
            file,
            work: Work::Change(change),
            ..
        }) = self.jobs[slot].as_mut()
        else {
            unreachable!("only changes write")
        };
        change.stage = Stage::Writing;
        let lane = &self.lanes[*file];
        for op in change.operations(lane) {
            self.submit(slot, op);
        }
    }

    /// Hands on what waits, and takes completions; says whether to come again before sleeping. Does
    /// not block.
    ///
    /// # Errors
    /// A queue is beyond use.
    pub(crate) fn turn(&mut self) -> Result<bool> {
        let mut done = std::mem::take(&mut self.done);
        self.submitted = false;
        for lane in &mut self.lanes {
            while let Some(request) = lane.backlog.pop_front() {
                if let Err(request) = lane.queue.submit(request) {
                    lane.backlog.push_front(request);
                    break;
                }
            }
            if lane.queue.in_flight() > 0 {
                lane.queue.reap(Wait::Poll, &mut done)?;
            }
        }
        let some = !done.is_empty();
        for completion in done.drain(..) {
            self.settle(completion);
        }
        self.done = done;
        // Completions make room for what is left over; without any, there is one to wait for.
        let left_over = self.lanes.iter().any(|lane| !lane.backlog.is_empty());
        Ok(self.submitted || (some && left_over))
    }

    /// Gives up what has not come to its end, because this thread ends; waits until the devices let
    /// go of it. What this lets in of other threads stands in [`Engine::take_granted`].
    pub(crate) fn abandon(&mut self) {
        for lane in &mut self.lanes {
            lane.backlog.clear();
        }
        let lanes = std::mem::take(&mut self.lanes);
        let gates: Vec<_> = lanes.iter().map(|lane| Arc::clone(&lane.gate)).collect();
        drop(lanes);
        for slot in 0..SLOTS {
            if let Some(Job {
                file,
                work: Work::Change(_),
                ..
            }) = self.jobs[slot].take()
            {
                let granted = gates[file].leave(self.ticket(slot));
                let others = granted.into_iter().filter(|t| t.worker != self.worker);
                self.granted.extend(others);
            }
        }
    }

    /// Requests that came to their end since the last call.
    pub(crate) fn take_finished(&mut self, out: &mut Vec<Finished>) {
        out.append(&mut self.finished);
    }

    /// Changes of other threads that may go in.
    pub(crate) fn take_granted(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.granted)
    }

    fn settle(&mut self, completion: Completion) {
        let Completion { tag, op, result } = completion;
        let slot = tag as usize;
        let Some(job) = self.jobs.get_mut(slot).and_then(Option::as_mut) else {
            unreachable!("completions belong to jobs")
        };
        job.left -= 1;
        if let Err(e) = &result {
            tracing::warn!("{e}");
            Counters::count(&self.counters.errors, 1);
            job.errno = job.errno.or(Some(e.errno()));
        }
        if let (Op::Read { offset, bufs }, Ok(())) = (op, &result) {
            match &mut job.work {
                Work::Read { parts, .. } => parts.push((offset, bufs)),
                Work::Change(change) => change.edges.extend(bufs.into_first().map(|b| (offset, b))),
                Work::Flush => {}
            }
        }
        if job.left > 0 {
            return;
        }
        let more = matches!(&job.work, Work::Change(change) if change.stage == Stage::Reading);
        if more && job.errno.is_none() {
            self.write(slot);
        } else {
            self.finish(slot);
        }
    }

    fn finish(&mut self, slot: usize) {
        let Some(job) = self.jobs[slot].take() else {
            unreachable!("jobs finish once")
        };
        self.free.push(slot);
        if matches!(job.work, Work::Change(_)) {
            let granted = self.lanes[job.file].gate.leave(self.ticket(slot));
            for ticket in granted {
                match ticket.worker == self.worker {
                    true => self.enter(ticket.slot),
                    false => self.granted.push(ticket),
                }
            }
        }
        let outcome = match (job.errno, job.work) {
            (Some(errno), _) => Outcome::Failed(errno),
            (None, Work::Flush) => Outcome::Done,
            (
                None,
                Work::Read {
                    skip,
                    len,
                    mut parts,
                },
            ) => {
                parts.sort_unstable_by_key(|(offset, _)| *offset);
                Outcome::Data { parts, skip, len }
            }
            (None, Work::Change(change)) => match change.content {
                Content::Bytes(_) => Outcome::Written(change.len as u32),
                Content::Zeros { .. } => Outcome::Done,
            },
        };
        self.finished.push(Finished {
            unique: job.unique,
            outcome,
        });
    }
}

impl Change {
    /// What is asked of the device, once the edges are there.
    fn operations(&mut self, lane: &Lane) -> Vec<Op> {
        let fua = self.durable;
        let (from, to) = lane.covered(self.offset, self.len);
        match &mut self.content {
            Content::Zeros { unmap } => {
                let unmap = *unmap;
                let mut ops = Vec::with_capacity(3);
                let (mut first, mut last) = (from, to);
                for (at, mut block) in self.edges.drain(..) {
                    let zero_from = self.offset.max(at) - at;
                    let zero_to = (self.offset + self.len).min(at + lane.block) - at;
                    block[zero_from as usize..zero_to as usize].fill(0);
                    match at == from {
                        true => first = at + lane.block,
                        false => last = at,
                    }
                    ops.push(Op::Write {
                        offset: at,
                        bufs: block.into(),
                        fua,
                    });
                }
                if first < last {
                    ops.push(Op::WriteZeroes {
                        offset: first,
                        len: last - first,
                        fua,
                        unmap,
                    });
                }
                ops
            }
            Content::Bytes(payload) => {
                let payload = std::mem::take(payload);
                let whole = self.edges.is_empty() && lane.piece == BUF_BYTES;
                let bufs = match whole {
                    true => payload,
                    false => self.patched(lane, from, to, &payload),
                };
                grouped(bufs, from, lane.max)
                    .map(|(offset, bufs)| Op::Write { offset, bufs, fua })
                    .collect()
            }
        }
    }

    /// Whole blocks: the edges as they were read, with the payload over them.
    fn patched(&self, lane: &Lane, from: u64, to: u64, payload: &[Buf]) -> Vec<Buf> {
        let mut all = vec![0; (to - from) as usize];
        for (at, block) in &self.edges {
            let start = (at - from) as usize;
            all[start..start + block.len()].copy_from_slice(block);
        }
        let mut at = (self.offset - from) as usize;
        for buf in payload {
            all[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        all.chunks(lane.piece).map(Buf::copy_of).collect()
    }
}

/// Groups buffers, none longer than `max`, into transfers of at most `max` bytes.
fn grouped(bufs: Vec<Buf>, offset: u64, max: usize) -> impl Iterator<Item = (u64, Bufs)> {
    let mut rest = bufs.into_iter().peekable();
    let mut at = offset;
    std::iter::from_fn(move || {
        let first = rest.next()?;
        let (start, mut len) = (at, first.len());
        let fits = |buf: &Buf, len: usize| len + buf.len() <= max;
        let bufs = match rest.peek() {
            Some(next) if fits(next, len) => {
                let mut group = vec![first];
                while let Some(next) = rest.next_if(|next| fits(next, len)) {
                    len += next.len();
                    group.push(next);
                }
                group.into()
            }
            _ => first.into(),
        };
        at += len as u64;
        Some((start, bufs))
    })
}

#[cfg(test)]
mod tests;
