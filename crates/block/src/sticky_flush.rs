//! A device on which a failed flush is final.
//!
//! A disk, and the kernel in front of a file, report lost writes to one flush and let the other
//! flushes succeed, although the data was not written again. With several clients, a success may go
//! to a client whose data is lost.
//!
//! **Invariant:** once a flush, or the flush that is part of a write with FUA, has failed on any
//! queue, no flush succeeds that was in flight at the same time as the failed one at any moment, or
//! that is submitted later. A failure before the first write loses no data and has no effect on
//! other flushes.
//!
//! ```text
//!   queue 1   |--- flush ------- succeeds in lower, held -----------| judged and returned
//!   queue 2        |--- flush -------------------- fails in lower --| wakes queue 1
//! ```
//!
//! A successful flush is therefore held until all flushes have ended that were in flight when it
//! succeeded, on any queue. It does not wait for flushes submitted later: those would not have been
//! notified of a loss of its data. A flush completes only if the owners of the other queues reap
//! theirs.

use crate::{
    BlockDevice, BufPool, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Result,
    Wait, WaitPair, Waker,
};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// How long the drop of a queue waits for the results of its flushes.
const LAST_WORD: Duration = Duration::from_secs(5);

/// A device whose flushes all fail after the first failure.
pub struct StickyFlush {
    lower: Arc<dyn BlockDevice>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// First failure; set before the failed request ends in `flights`.
    failed: Arc<OnceLock<Error>>,
    /// A request that changes data was submitted on any queue; set before it reaches the lower
    /// device.
    written: AtomicBool,
    flights: Mutex<Flights>,
    /// Called before a failure is returned to any caller.
    note: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Shared {
    fn fail(&self, error: Error) {
        if let Some(note) = self.note.get() {
            note();
        }
        // Another queue may have set it first.
        let _ = self.failed.set(error);
    }
}

/// Flushes and writes with FUA of all queues, numbered in the order of their submits.
#[derive(Default)]
struct Flights {
    next: u64,
    /// Requests that the lower device has not answered.
    open: BTreeSet<u64>,
    /// Queues that hold completions until no request with a smaller number is open.
    sleepers: Vec<(u64, Arc<Waker>)>,
}

impl Flights {
    fn begin(&mut self) -> u64 {
        self.next += 1;
        self.open.insert(self.next - 1);
        self.next - 1
    }

    /// Ends a request, and wakes the queues that waited only for it.
    fn end(&mut self, number: u64) {
        self.open.remove(&number);
        let first_open = self.first_open();
        for (_, waker) in self
            .sleepers
            .extract_if(.., |(until, _)| *until <= first_open)
        {
            waker.wake();
        }
    }

    fn first_open(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next)
    }
}

impl Shared {
    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().expect("no panic under this lock")
    }
}

impl StickyFlush {
    /// Creates a device over `lower`, which has lost nothing yet.
    pub fn new(lower: Arc<dyn BlockDevice>) -> StickyFlush {
        StickyFlush {
            lower,
            shared: Arc::default(),
        }
    }

    /// Continues the device of another process, which may have written and not flushed: from now on a
    /// failure counts. `failed`: one of its flushes failed.
    pub fn continue_after(&self, failed: bool) {
        self.shared.written.store(true, Ordering::SeqCst);
        if failed {
            let why = "a flush of the previous server failed";
            let name = &self.lower.info().name;
            self.shared.fail(Error::new(ErrorKind::Io, name, why));
        }
    }

    /// Calls `note` when a flush fails, before its result is returned. Only the first call has an
    /// effect.
    pub fn note_failure(&self, note: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.note.set(Box::new(note));
    }

    /// Returns a cell that receives the first failure when it occurs.
    pub fn failure(&self) -> Arc<OnceLock<Error>> {
        Arc::clone(&self.shared.failed)
    }
}

impl BlockDevice for StickyFlush {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn update_size(&self) -> Result<u64> {
        self.lower.update_size()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let lower = self.lower.queue()?;
        let waker = Waker::new().map_err(|e| Error::from_io(&lower.info().name, e))?;
        Ok(Box::new(StickyQueue {
            pair: WaitPair::new(&*lower, waker.as_fd())?,
            lower,
            shared: Arc::clone(&self.shared),
            below: Vec::new(),
            held: Vec::new(),
            waker: Arc::new(waker),
            sleeps: false,
        }))
    }

    fn derive_key(&self, label: &[u8], key: &mut [u8; crate::DERIVED_KEY_BYTES]) -> bool {
        self.lower.derive_key(label, key)
    }
}

struct StickyQueue {
    lower: Box<dyn Queue>,
    shared: Arc<Shared>,
    /// Numbers of the requests in the lower queue, which are their tags there, with the caller's
    /// tags.
    below: Vec<(u64, u64)>,
    /// Completions to return once no request with a smaller number is open.
    held: Vec<(u64, Completion)>,
    /// Readable when a held completion may be returned.
    waker: Arc<Waker>,
    /// The queue is in `sleepers`, or has been woken since.
    sleeps: bool,
    pair: WaitPair,
}

/// Reports whether a success of this operation means that data is durable.
fn vouches(op: &Op) -> bool {
    matches!(
        op,
        Op::Flush | Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. }
    )
}

/// Reports whether a flush, or a write with FUA, with this error may have reported a loss of data.
fn tells_of_loss(op: &Op, error: &Error) -> bool {
    matches!(op, Op::Flush) || may_have_flushed(error.kind())
}

/// Reports whether a write with FUA and this error may have been a write and a failed flush. The
/// other kinds refuse the write itself, and earlier writes are not in doubt.
fn may_have_flushed(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::OutOfRange
            | ErrorKind::Misaligned
            | ErrorKind::TooLarge
            | ErrorKind::ReadOnly
            | ErrorKind::NoSpace
            | ErrorKind::Unsupported
            | ErrorKind::Invalid
            | ErrorKind::Permission
    )
}

impl StickyQueue {
    /// Processes the lower completions from index `had` on, and returns those that need not be held
    /// any more.
    fn process_completions(&mut self, had: usize, done: &mut Vec<Completion>) {
        if self.held.is_empty() && !done[had..].iter().any(|c| vouches(&c.op)) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut flights = shared.flights();
        for mut completion in done.extract_if(had.., |c| vouches(&c.op)) {
            let at = self.below.iter().position(|b| b.0 == completion.tag);
            let at = at.expect("each number below stands for one request");
            let (number, tag) = self.below.swap_remove(at);
            completion.tag = tag;
            let until = match &completion.result {
                Ok(()) => flights.next,
                Err(error) => {
                    let written = self.shared.written.load(Ordering::SeqCst);
                    if written && tells_of_loss(&completion.op, error) {
                        self.shared.fail(error.clone());
                    }
                    0
                }
            };
            self.held.push((until, completion));
            flights.end(number);
        }
        let first_open = flights.first_open();
        let free = self
            .held
            .extract_if(.., |(until, _)| *until <= first_open)
            .map(|(_, completion)| completion);
        let failed = self.shared.failed.get();
        let name = &self.lower.info().name;
        done.extend(free.map(|completion| apply_failure(completion, failed, name)));
        self.wake_when_free(&mut flights);
    }

    /// Has the waker signal when the next held completion may be returned.
    fn wake_when_free(&mut self, flights: &mut Flights) {
        if std::mem::take(&mut self.sleeps) {
            let own = |sleeper: &(u64, Arc<Waker>)| Arc::ptr_eq(&sleeper.1, &self.waker);
            match flights.sleepers.iter().position(own) {
                Some(at) => drop(flights.sleepers.swap_remove(at)),
                // No thread writes to it before it is a sleeper again.
                None => drop(self.waker.take()),
            }
        }
        if let Some(until) = self.held.iter().map(|(until, _)| *until).min() {
            flights.sleepers.push((until, Arc::clone(&self.waker)));
            self.sleeps = true;
        }
    }
}

/// Turns a success after a failure into an error.
fn apply_failure(mut completion: Completion, failed: Option<&Error>, name: &str) -> Completion {
    if let (Ok(()), Some(first)) = (&completion.result, failed) {
        let why = format!("another flush failed ({first}), so acknowledged data may be lost");
        completion.result = Err(Error::new(first.kind(), name, why).in_op(&completion.op));
    }
    completion
}

impl Queue for StickyQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight() + self.held.len()
    }

    fn room(&self) -> usize {
        self.lower.room().saturating_sub(self.held.len())
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        let changes = !matches!(request.op, Op::Read { .. } | Op::Flush);
        // It never becomes false again: most writes need not take the cache line from other CPUs.
        if changes && !self.shared.written.load(Ordering::SeqCst) {
            self.shared.written.store(true, Ordering::SeqCst);
        }
        if !vouches(&request.op) {
            return self.lower.submit(request);
        }
        let Request { tag, op } = request;
        let number = self.shared.flights().begin();
        match self.lower.submit(Request { tag: number, op }) {
            Ok(()) => {
                self.below.push((number, tag));
                Ok(())
            }
            Err(Request { op, .. }) => {
                self.shared.flights().end(number);
                Err(Request { tag, op })
            }
        }
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let until = wait.deadline();
        let before = done.len();
        loop {
            // Another queue can end the wait only while a completion is held.
            let below = match (self.held.is_empty(), until) {
                (false, _) => Wait::Poll,
                (true, Some(until)) => {
                    Wait::AtMost(until.saturating_duration_since(Instant::now()))
                }
                (true, None) => wait,
            };
            let had = done.len();
            let reaped = self.lower.reap(below, done);
            self.process_completions(had, done);
            let count = done.len() - before;
            if reaped? > 0 && count == 0 {
                // All completions are held, and there may be more.
                continue;
            }
            let late = until.is_some_and(|until| Instant::now() >= until);
            if count > 0 || self.in_flight() == 0 || wait == Wait::Poll || late {
                return Ok(count);
            }
            if !self.held.is_empty() {
                self.pair.sleep(until, &self.lower.info().name)?;
            }
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pair.fd())
    }

    fn holds_answers(&self) -> bool {
        self.lower.holds_answers()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

impl Drop for StickyQueue {
    /// Waits for outstanding flushes: one without a waiting caller may be the one that reports a
    /// loss.
    fn drop(&mut self) {
        let until = Instant::now() + LAST_WORD;
        let mut done = Vec::new();
        while !self.below.is_empty() && self.lower.in_flight() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let reaped = self.lower.reap(Wait::AtMost(left), &mut done);
            self.process_completions(0, &mut done);
            done.clear();
            if reaped.is_err() || left.is_zero() {
                break;
            }
        }
        self.held.clear();
        let shared = Arc::clone(&self.shared);
        let mut flights = shared.flights();
        for (number, _) in self.below.drain(..) {
            let why = "a flush was abandoned before the device answered it";
            shared.fail(Error::new(
                ErrorKind::Cancelled,
                &self.lower.info().name,
                why,
            ));
            flights.end(number);
        }
        self.wake_when_free(&mut flights);
    }
}
