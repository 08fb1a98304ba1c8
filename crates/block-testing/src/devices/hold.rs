//! Common part of `delay` and `rate`: a queue that holds completions until their deadline.
//!
//! A request is submitted to the lower device at once, so requests stay parallel. Its completion is
//! returned when the lower device is done *and* the deadline has passed. One epoll descriptor
//! covers both events, so a caller can sleep on it.

use block::{
    BlockDevice, BufPool, Completion, DeviceInfo, Error, Op, Queue, Request, Result, Wait, WaitPair,
};
use rustix::event::Timespec;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use slab::Slab;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Earliest completion time of a request that is submitted now; `None`: beyond the clock's range.
pub(super) trait Deadline: Send + Sync {
    fn of(&self, op: &Op, now: Instant) -> Option<Instant>;
}

/// A device whose queues hold completions.
pub(super) struct Hold {
    pub(super) lower: Arc<dyn BlockDevice>,
    pub(super) deadline: Arc<dyn Deadline>,
}

impl Hold {
    /// Opens a queue over a queue of the lower device.
    pub(super) fn queue(&self) -> Result<Box<dyn Queue>> {
        let lower = self.lower.queue()?;
        let failed = |e: rustix::io::Errno| Error::from_io(&lower.info().name, e.into());
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        let pair = WaitPair::new(&*lower, timer.as_fd())?;
        Ok(Box::new(HoldQueue {
            lower,
            deadline: Arc::clone(&self.deadline),
            tags: Slab::new(),
            held: Vec::new(),
            below: Vec::new(),
            timer,
            pair,
        }))
    }
}

struct HoldQueue {
    lower: Box<dyn Queue>,
    deadline: Arc<dyn Deadline>,
    /// The caller's tag and the deadline of each request in the lower queue, by its tag there.
    tags: Slab<(u64, Instant)>,
    held: Vec<(Instant, Completion)>,
    below: Vec<Completion>,
    timer: OwnedFd,
    pair: WaitPair,
}

/// Delay that stands for a deadline beyond the clock's range.
const FAR_AWAY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl HoldQueue {
    /// Moves completions of the lower queue to the held ones.
    fn collect(&mut self) -> Result<()> {
        self.lower.reap(Wait::Poll, &mut self.below)?;
        for mut completion in self.below.drain(..) {
            // Each tag of the lower queue stands for one request.
            let (tag, at) = self.tags.remove(completion.tag as usize);
            completion.tag = tag;
            self.held.push((at, completion));
        }
        Ok(())
    }

    /// Moves due completions to `done`, and sets the timer for the next one.
    fn release(&mut self, done: &mut Vec<Completion>) -> Result<usize> {
        let now = Instant::now();
        let before = done.len();
        let mut index = 0;
        while index < self.held.len() {
            if self.held[index].0 <= now {
                done.push(self.held.swap_remove(index).1);
            } else {
                index += 1;
            }
        }
        let next = self.held.iter().map(|(at, _)| *at).min();
        // A zero value disarms the timer, which is right while nothing is held; a completion that
        // is due at this very moment uses a nanosecond instead. Setting the timer also makes it
        // unreadable.
        let left = next.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(now)
                .max(Duration::from_nanos(1))
        });
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let setting = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)
            .map_err(|e| Error::from_io(&self.lower.info().name, e.into()))?;
        Ok(done.len() - before)
    }
}

impl Queue for HoldQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.tags.len() + self.held.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        let Request { tag, op } = request;
        let now = Instant::now();
        let at = self.deadline.of(&op, now).unwrap_or(now + FAR_AWAY);
        let slot = self.tags.vacant_entry();
        let lower = Request {
            tag: slot.key() as u64,
            op,
        };
        match self.lower.submit(lower) {
            Ok(()) => {
                slot.insert((tag, at));
                Ok(())
            }
            Err(Request { op, .. }) => Err(Request { tag, op }),
        }
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let until = wait.deadline();
        loop {
            self.collect()?;
            let count = self.release(done)?;
            let late = until.is_some_and(|until| Instant::now() >= until);
            if count > 0 || self.in_flight() == 0 || wait == Wait::Poll || late {
                return Ok(count);
            }
            self.pair.sleep(until, &self.lower.info().name)?;
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pair.fd())
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}
