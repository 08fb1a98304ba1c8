//! A device that never takes a failed flush back.
//!
//! A disk, and the kernel in front of a file, report lost writes to one flush and answer the others
//! well, although nothing was written again. With several clients a good answer goes to somebody
//! whose data is lost.
//!
//! **Invariant:** once a flush, or the flush that is part of a write with FUA, has failed, on any queue,
//! none succeeds that was in flight beside it at any moment, or that is submitted later. Before anything was
//! written a failure loses nothing, and binds nobody.
//!
//! ```text
//!   queue 1   |--- flush ------- well below, held ------------------| judged and given out
//!   queue 2        |--- flush -------------------- failed below ----| wakes queue 1
//! ```
//!
//! So one that went well below is held until all those have ended that were in flight then, on whatever queue,
//! and no longer: those that are submitted later would not have been told of its data. Who waits
//! for a flush needs the owners of other queues to reap theirs.

use super::sleep::{Both, end_of};
use crate::{
    BlockDevice, BufPool, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Result,
    Wait,
};
use rustix::event::EventfdFlags;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// How long a queue that is dropped waits for the answers to its flushes.
const LAST_WORD: Duration = Duration::from_secs(5);

/// A device whose flushes fail for good after the first failure.
pub struct StickyFlush {
    lower: Arc<dyn BlockDevice>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Set before the one that failed ends in `flights`.
    failed: Arc<OnceLock<Error>>,
    /// Something that changes data was submitted, on any queue; set before it goes below.
    written: AtomicBool,
    flights: Mutex<Flights>,
}

/// The flushes and writes with FUA of all queues, by number in the order of their submits.
#[derive(Default)]
struct Flights {
    next: u64,
    /// Those without an answer from below.
    open: BTreeSet<u64>,
    /// Queues that hold something until none below a number is open.
    sleepers: Vec<(u64, Arc<OwnedFd>)>,
}

impl Flights {
    fn begin(&mut self) -> u64 {
        self.next += 1;
        self.open.insert(self.next - 1);
        self.next - 1
    }

    /// Ends one, and wakes those who have waited for it alone.
    fn end(&mut self, number: u64) {
        self.open.remove(&number);
        let first_open = self.first_open();
        for (_, waker) in self
            .sleepers
            .extract_if(.., |(until, _)| *until <= first_open)
        {
            // Fails only when it is readable already.
            let _ = rustix::io::write(waker.as_ref(), &1u64.to_ne_bytes());
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
    /// Over `lower`, which has lost nothing yet.
    pub fn new(lower: Arc<dyn BlockDevice>) -> StickyFlush {
        StickyFlush {
            lower,
            shared: Arc::default(),
        }
    }

    /// The first failure, in a cell that fills when it happens.
    pub fn failure(&self) -> Arc<OnceLock<Error>> {
        Arc::clone(&self.shared.failed)
    }
}

impl BlockDevice for StickyFlush {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let lower = self.lower.queue()?;
        let waker = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::from_io(&lower.info().name, e.into()))?;
        Ok(Box::new(StickyQueue {
            both: Both::of(&*lower, waker.as_fd())?,
            lower,
            shared: Arc::clone(&self.shared),
            below: Vec::new(),
            held: Vec::new(),
            waker: Arc::new(waker),
            sleeps: false,
        }))
    }
}

struct StickyQueue {
    lower: Box<dyn Queue>,
    shared: Arc<Shared>,
    /// The numbers of those that are below, which are their tags there, and their tags here.
    below: Vec<(u64, u64)>,
    /// What goes out when none below a number is open.
    held: Vec<(u64, Completion)>,
    /// Readable when something held may go out.
    waker: Arc<OwnedFd>,
    /// It is among the sleepers, or has been woken since.
    sleeps: bool,
    both: Both,
}

/// Whether a success tells that data is durable.
fn vouches(op: &Op) -> bool {
    matches!(
        op,
        Op::Flush | Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. }
    )
}

/// Whether a flush, or a write with FUA, that ended like this may have been told of a loss.
fn tells_of_loss(op: &Op, error: &Error) -> bool {
    matches!(op, Op::Flush) || may_have_flushed(error.kind())
}

/// Whether a write with FUA that ended like this may have been a write and a flush that failed. The
/// other kinds refuse the write itself, and nothing that was written before is in doubt.
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
    /// Takes what has come from below since `had`, and gives out what need not be held any more.
    fn settle(&mut self, had: usize, done: &mut Vec<Completion>) {
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
                        // Another queue may have been first.
                        let _ = self.shared.failed.set(error.clone());
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
        done.extend(free.map(|completion| judge(completion, failed, name)));
        self.wake_when_free(&mut flights);
    }

    /// Has the waker tell when the next of what is held may go out.
    fn wake_when_free(&mut self, flights: &mut Flights) {
        if std::mem::take(&mut self.sleeps) {
            let own = |sleeper: &(u64, Arc<OwnedFd>)| Arc::ptr_eq(&sleeper.1, &self.waker);
            match flights.sleepers.iter().position(own) {
                Some(at) => drop(flights.sleepers.swap_remove(at)),
                // Nobody writes to it before it is a sleeper again.
                None => drop(rustix::io::read(&self.waker, &mut [0u8; 8])),
            }
        }
        if let Some(until) = self.held.iter().map(|(until, _)| *until).min() {
            flights.sleepers.push((until, Arc::clone(&self.waker)));
            self.sleeps = true;
        }
    }
}

/// Lets no success out after a failure.
fn judge(mut completion: Completion, failed: Option<&Error>, name: &str) -> Completion {
    if let (Ok(()), Some(first)) = (&completion.result, failed) {
        let why =
            format!("another flush failed ({first}), so data that was acknowledged may be lost");
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
        if !matches!(request.op, Op::Read { .. } | Op::Flush) {
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
        let until = end_of(wait);
        let before = done.len();
        loop {
            // Only with something held may another queue be what ends the wait.
            let below = match (self.held.is_empty(), until) {
                (false, _) => Wait::Poll,
                (true, Some(until)) => {
                    Wait::AtMost(until.saturating_duration_since(Instant::now()))
                }
                (true, None) => wait,
            };
            let had = done.len();
            let reaped = self.lower.reap(below, done);
            self.settle(had, done);
            let count = done.len() - before;
            if reaped? > 0 && count == 0 {
                // All of it is held, and there may be more.
                continue;
            }
            let late = until.is_some_and(|until| Instant::now() >= until);
            if count > 0 || self.in_flight() == 0 || wait == Wait::Poll || late {
                return Ok(count);
            }
            if !self.held.is_empty() {
                self.both.sleep(until, &self.lower.info().name)?;
            }
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.both.fd())
    }

    fn holds_answers(&self) -> bool {
        self.lower.holds_answers()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

impl Drop for StickyQueue {
    /// Those that nobody waits for any more may be the ones that are told of a loss.
    fn drop(&mut self) {
        let until = Instant::now() + LAST_WORD;
        let mut done = Vec::new();
        while !self.below.is_empty() && self.lower.in_flight() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let reaped = self.lower.reap(Wait::AtMost(left), &mut done);
            self.settle(0, &mut done);
            done.clear();
            if reaped.is_err() || left.is_zero() {
                break;
            }
        }
        self.held.clear();
        let shared = Arc::clone(&self.shared);
        let mut flights = shared.flights();
        for (number, _) in self.below.drain(..) {
            let why = "a flush was given up before the device had answered it";
            let _ = shared.failed.set(Error::new(
                ErrorKind::Cancelled,
                &self.lower.info().name,
                why,
            ));
            flights.end(number);
        }
        self.wake_when_free(&mut flights);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, ErrorDevice, Failure, Mem, OpKind};

    #[test]
    fn conforms() {
        crate::conformance::run(&|| Arc::new(StickyFlush::new(Arc::new(Mem::new(16 << 20, 512)))));
    }

    #[test]
    fn after_a_flush_that_failed_no_queue_flushes_well_again() {
        let (device, errors) = ErrorDevice::new(Arc::new(Mem::new(1 << 20, 512)));
        let sticky = StickyFlush::new(Arc::new(device));
        let (mut one, mut two) = (
            Blocking::open(&sticky).unwrap(),
            Blocking::open(&sticky).unwrap(),
        );
        one.write_at(0, &[0; 512]).unwrap();
        one.flush().unwrap();
        errors.set(Some(Failure::nth(1, ErrorKind::Media).of(OpKind::Flush)));
        assert!(one.flush().is_err() && sticky.failure().get().is_some());
        for client in [&mut two, &mut one] {
            client.write_at(0, &[1; 512]).unwrap();
            assert_eq!(client.flush().unwrap_err().kind(), ErrorKind::Media);
        }
        assert!(Blocking::open(&sticky).unwrap().flush().is_err());
    }
}
