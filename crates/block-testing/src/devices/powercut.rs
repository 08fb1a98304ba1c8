//! A disk with a volatile write cache, and all states that a power cut can leave.
//!
//! Reads see all writes. The state after a power cut follows the contract of the block interface to
//! the letter: a write is durable once the completion of its FUA request has been reaped, or once
//! the completion of a flush has been reaped that was submitted after the write's own completion
//! had been reaped. Of every other write any subset of its 512-byte sectors may survive.
//!
//! ```text
//!  submit A   submit B   reap A    submit flush   reap flush, B
//!  ───┬──────────┬──────────────────────────────────┬──────────────►  log
//!     1          2                                  3                 points of a cut
//!   A may be   A, B may be                        A is, B may be      on the disk
//! ```
//!
//! **Invariant:** data that is durable at a point is whole in every image of that point and of all
//! later ones, until a newer write replaces it.
//!
//! Deliberately absent: sectors that hold neither an old nor a new value (real disks do not do
//! that), and a bound on the log: it keeps the data of every write as long as the device exists.

mod replay;
#[cfg(test)]
mod tests;

pub use replay::{Crash, Replay, Tear, Volatile};

use super::{drain, gather, mem::Mem};
use block::{BlockDevice, Completion, DeviceInfo, Op, Queue, Request, Result, Wait};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// Maximum number of requests in flight on a queue.
const CAPACITY: usize = 128;

/// A disk with a volatile write cache whose power can be cut at any point.
///
/// Requests are carried out on submit. Memory: the disk, and the data of every write so far.
pub struct PowerCut {
    shared: Arc<Shared>,
}

struct Shared {
    info: DeviceInfo,
    /// Content that reads see.
    current: Mem,
    /// Content before the first event.
    before: Mem,
    log: Mutex<Log>,
}

/// Events that change the possible states after a cut, in order.
#[derive(Default)]
struct Log {
    events: Vec<Event>,
    /// Changes that are not durable yet, in ascending order of their index in `events`.
    volatile: Vec<Pending>,
}

struct Pending {
    event: usize,
    /// The completion has been reaped, so the next flush covers the change.
    reaped: bool,
}

#[derive(Clone)]
enum Event {
    /// A write, discard or write-zeroes.
    Change(Change),
    /// The changes at these indices of the log are durable from here on.
    Durable(Vec<usize>),
}

#[derive(Clone)]
struct Change {
    offset: u64,
    len: u64,
    /// `None`: zeros.
    data: Option<Arc<Vec<u8>>>,
}

impl PowerCut {
    /// Creates a disk with a copy of `disk`, all of which is durable.
    pub fn new(disk: &Mem) -> PowerCut {
        let info = DeviceInfo {
            volatile_write_cache: true,
            name: "powercut".into(),
            ..disk.info().clone()
        };
        PowerCut {
            shared: Arc::new(Shared {
                info,
                current: disk.fork(),
                before: disk.fork(),
                log: Mutex::default(),
            }),
        }
    }

    /// Counts the events so far: changes, and flushes or FUA writes whose completion
    /// made data durable. The power can be cut before the first event and after each one.
    pub fn events(&self) -> usize {
        self.shared.log().events.len()
    }

    /// Returns the content that reads see now.
    pub fn contents(&self) -> Mem {
        self.shared.current.fork()
    }

    /// Creates a replay of the log so far. The device remains usable.
    pub fn replay(&self) -> Replay {
        let events = self.shared.log().events.clone();
        Replay::new(&self.shared.before, events)
    }

    /// Returns the disk after a cut at `point` events, with the volatile writes torn by `tear`. For
    /// many cuts use [`PowerCut::replay`], [`PowerCut::boundaries`] or [`PowerCut::images`].
    pub fn crash(&self, point: usize, tear: Tear) -> Mem {
        self.replay().image(point, tear)
    }

    /// Iterates over every point of the log in ascending order, each with none of the volatile
    /// writes, all of them, and `torn` random parts of them; a point without volatile writes
    /// appears once.
    pub fn boundaries(&self, seed: u64, torn: usize) -> impl Iterator<Item = Crash> + use<> {
        replay::boundaries(self.replay(), seed, torn)
    }

    /// Iterates over `count` random cuts at random points, in ascending order of the points.
    pub fn images(&self, seed: u64, count: usize) -> impl Iterator<Item = Crash> + use<> {
        replay::images(self.replay(), seed, count)
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no panic under this lock")
    }

    /// Carries out a change and logs it under one lock, so that the log has the order that reads
    /// see. Returns its index in the log.
    fn change(&self, change: Change) -> Option<usize> {
        if change.len == 0 {
            return None;
        }
        let mut log = self.log();
        match &change.data {
            Some(data) => self.current.poke(change.offset, data),
            None => self.current.poke_zeroes(change.offset, change.len),
        }
        let event = log.events.len();
        log.events.push(Event::Change(change));
        log.volatile.push(Pending {
            event,
            reaped: false,
        });
        Some(event)
    }
}

impl Log {
    /// Lists the changes that a flush submitted now covers.
    fn covered(&self) -> Vec<usize> {
        let reaped = self.volatile.iter().filter(|p| p.reaped);
        reaped.map(|p| p.event).collect()
    }

    fn mark_reaped(&mut self, event: usize) {
        if let Ok(at) = self.volatile.binary_search_by_key(&event, |p| p.event) {
            self.volatile[at].reaped = true;
        }
    }

    /// Logs that those of these changes are durable that were not before.
    fn make_durable(&mut self, mut events: Vec<usize>) {
        events.sort_unstable();
        events.dedup();
        events.retain(|event| {
            let found = self.volatile.binary_search_by_key(event, |p| p.event);
            found.is_ok()
        });
        if events.is_empty() {
            return;
        }
        let gone = |p: &Pending| events.binary_search(&p.event).is_ok();
        self.volatile.retain(|p| !gone(p));
        self.events.push(Event::Durable(events));
    }
}

impl BlockDevice for PowerCut {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(PowerCutQueue {
            shared: Arc::clone(&self.shared),
            ready: VecDeque::new(),
            due: Vec::new(),
        }))
    }
}

struct PowerCutQueue {
    shared: Arc<Shared>,
    ready: VecDeque<Completion>,
    /// Effects on the log when the completions in `ready` are reaped.
    due: Vec<Due>,
}

/// Effect of reaping a completion.
enum Due {
    /// The change at this index has completed; a flush submitted from now on covers it.
    Reaped(usize),
    /// The changes at these indices are durable: those that a flush covered, or a FUA write itself.
    Durable(Vec<usize>),
}

impl PowerCutQueue {
    fn carry_out(&mut self, op: &mut Op) -> Result<()> {
        let shared = &self.shared;
        shared.info.check(op)?;
        let (change, fua) = match op {
            Op::Read { offset, bufs } => {
                let mut at = *offset;
                for buf in bufs.iter_mut() {
                    shared.current.peek(at, buf);
                    at += buf.len() as u64;
                }
                return Ok(());
            }
            Op::Flush => {
                let covered = shared.log().covered();
                self.due.push(Due::Durable(covered));
                return Ok(());
            }
            Op::Write { offset, bufs, fua } => (
                Change {
                    offset: *offset,
                    len: bufs.total_len() as u64,
                    data: Some(Arc::new(gather(bufs))),
                },
                *fua,
            ),
            Op::WriteZeroes {
                offset, len, fua, ..
            } => (zeroes(*offset, *len), *fua),
            Op::Discard { offset, len } => (zeroes(*offset, *len), false),
        };
        if let Some(event) = shared.change(change) {
            self.due.push(if fua {
                Due::Durable(vec![event])
            } else {
                Due::Reaped(event)
            });
        }
        Ok(())
    }
}

fn zeroes(offset: u64, len: u64) -> Change {
    Change {
        offset,
        len,
        data: None,
    }
}

impl Queue for PowerCutQueue {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
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
        let result = self.carry_out(&mut op);
        self.ready.push_back(Completion { tag, op, result });
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, _wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        if !self.due.is_empty() {
            let mut log = self.shared.log();
            let mut durable = Vec::new();
            for due in self.due.drain(..) {
                match due {
                    Due::Reaped(event) => log.mark_reaped(event),
                    Due::Durable(events) => durable.extend(events),
                }
            }
            log.make_durable(durable);
        }
        Ok(drain(&mut self.ready, done))
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
