//! A device that fails requests on purpose.
//!
//! A failed request never reaches the lower device. An invalid request (range, alignment,
//! read-only) is refused as usual, and neither counted nor failed.

use super::drain;
use crate::Random;
use block::{
    BlockDevice, BufPool, Completion, DeviceInfo, Error, ErrorKind, Op, OpKind, Queue, Request,
    Result, Wait,
};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// Selects the requests that fail, and their error. A request is counted when it matches `op` and
/// `range`; a counted request fails when `first` and `every`, or `chance`, select it.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// Count only requests of this kind; `None`: all kinds.
    pub op: Option<OpKind>,
    /// Count only requests that overlap this range of first byte and length in bytes; `None`: all
    /// requests. A flush has no range and overlaps none.
    pub range: Option<(u64, u64)>,
    /// Number of the first counted request that fails, from 1; 0: none fails by its number.
    pub first: u64,
    /// After the first, every `every`-th counted request fails. `None`: only the first does;
    /// `Some(1)`: all from the first on.
    pub every: Option<u64>,
    /// Each counted request fails with this probability, from a generator with this seed. `None`:
    /// no random failures.
    pub chance: Option<(f64, u64)>,
    /// Error of the failed requests.
    pub kind: ErrorKind,
}

impl Failure {
    /// Fails only the `n`-th request of any kind, counted from 1.
    pub fn nth(n: u64, kind: ErrorKind) -> Failure {
        Failure {
            op: None,
            range: None,
            first: n,
            every: None,
            chance: None,
            kind,
        }
    }

    /// Fails every `n`-th request, starting with the `n`-th.
    pub fn every(n: u64, kind: ErrorKind) -> Failure {
        Failure {
            every: Some(n),
            ..Failure::nth(n, kind)
        }
    }

    /// Fails requests with this probability. The same seed and order select the same requests.
    pub fn by_chance(probability: f64, seed: u64, kind: ErrorKind) -> Failure {
        Failure {
            chance: Some((probability, seed)),
            ..Failure::nth(0, kind)
        }
    }

    /// Counts only requests of this kind.
    pub fn of(self, op: OpKind) -> Failure {
        Failure {
            op: Some(op),
            ..self
        }
    }

    /// Counts only requests that overlap the `len` bytes at `offset`.
    pub fn within(self, offset: u64, len: u64) -> Failure {
        Failure {
            range: Some((offset, len)),
            ..self
        }
    }
}

/// A device that fails requests without passing them to the lower device. All queues share the
/// count.
pub struct ErrorDevice {
    lower: Arc<dyn BlockDevice>,
    state: Arc<Mutex<State>>,
}

/// Handle that changes the failures while the device is in use.
#[derive(Clone)]
pub struct ErrorHandle(Arc<Mutex<State>>);

struct State {
    failure: Option<Failure>,
    random: Random,
    counted: u64,
    failed: u64,
}

impl ErrorDevice {
    /// Creates a device over `lower` that fails nothing yet, and its handle.
    pub fn new(lower: Arc<dyn BlockDevice>) -> (ErrorDevice, ErrorHandle) {
        let state = Arc::new(Mutex::new(State::new(None)));
        let handle = ErrorHandle(Arc::clone(&state));
        (ErrorDevice { lower, state }, handle)
    }
}

impl ErrorHandle {
    /// Sets which requests fail, and resets the counters.
    pub fn set(&self, failure: Option<Failure>) {
        *lock(&self.0) = State::new(failure);
    }

    /// Counts the requests failed since the last [`ErrorHandle::set`].
    pub fn failed(&self) -> u64 {
        lock(&self.0).failed
    }

    /// Counts the matching requests since the last [`ErrorHandle::set`] of a failure.
    pub fn counted(&self) -> u64 {
        lock(&self.0).counted
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no panic under this lock")
}

impl State {
    fn new(failure: Option<Failure>) -> State {
        let seed = failure.as_ref().and_then(|f| f.chance);
        State {
            failure,
            random: Random::new(seed.map_or(0, |(_, seed)| seed)),
            counted: 0,
            failed: 0,
        }
    }

    fn select_failure(&mut self, op: &Op) -> Option<ErrorKind> {
        let failure = self.failure.as_ref()?;
        if failure.op.is_some_and(|kind| kind != op.kind()) {
            return None;
        }
        if failure.range.is_some_and(|range| !touches(range, op)) {
            return None;
        }
        self.counted += 1;
        let late = match failure.first {
            0 => None,
            first => self.counted.checked_sub(first),
        };
        let by_number = late.is_some_and(|late| {
            late == 0 || failure.every.is_some_and(|n| late.is_multiple_of(n.max(1)))
        });
        // A double holds 53 random bits: uniform in [0, 1).
        let random = &mut self.random;
        let by_chance = failure.chance.is_some_and(|(probability, _)| {
            ((random.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
        });
        let fails = by_number || by_chance;
        self.failed += u64::from(fails);
        fails.then_some(failure.kind)
    }
}

fn touches((from, len): (u64, u64), op: &Op) -> bool {
    op.range()
        .is_some_and(|(at, bytes)| at < from.saturating_add(len) && at.saturating_add(bytes) > from)
}

impl BlockDevice for ErrorDevice {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let lower = self.lower.queue()?;
        Ok(Box::new(ErrorQueue {
            lower,
            state: Arc::clone(&self.state),
            ready: VecDeque::new(),
        }))
    }
}

struct ErrorQueue {
    lower: Box<dyn Queue>,
    state: Arc<Mutex<State>>,
    /// Failed requests that are not yet reaped. A caller polls once before it sleeps on the lower
    /// descriptor, and so receives them.
    ready: VecDeque<Completion>,
}

impl Queue for ErrorQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight() + self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        if self.info().check(&request.op).is_ok()
            && let Some(kind) = lock(&self.state).select_failure(&request.op)
        {
            let Request { tag, op } = request;
            let error = Error::new(kind, &self.info().name, "injected error").in_op(&op);
            self.ready.push_back(Completion {
                tag,
                op,
                result: Err(error),
            });
            return Ok(());
        }
        self.lower.submit(request)
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let own = drain(&mut self.ready, done);
        let wait = if own > 0 { Wait::Poll } else { wait };
        Ok(own + self.lower.reap(wait, done)?)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mem;
    use block::Blocking;

    fn device() -> (ErrorDevice, ErrorHandle) {
        ErrorDevice::new(Arc::new(Mem::new(1 << 20, 512)))
    }

    /// Finds the numbers of the failing ones among `count` reads of one block each.
    fn failing(device: &ErrorDevice, count: u64) -> Vec<u64> {
        let mut blocking = Blocking::open(device).unwrap();
        let mut fails = |i| blocking.read_at((i - 1) * 512, &mut [0; 512]).is_err();
        (1..=count).filter(|i| fails(*i)).collect()
    }

    #[test]
    fn the_right_requests_fail_by_number() {
        let (device, handle) = device();
        assert_eq!(failing(&device, 9), Vec::<u64>::new());
        handle.set(Some(Failure::nth(3, ErrorKind::Media)));
        assert_eq!(failing(&device, 9), [3]);
        handle.set(Some(Failure::every(3, ErrorKind::Media)));
        assert_eq!(failing(&device, 9), [3, 6, 9]);
        assert_eq!((handle.counted(), handle.failed()), (9, 3));
        let from_five = Failure {
            every: Some(1),
            ..Failure::nth(5, ErrorKind::Media)
        };
        handle.set(Some(from_five));
        assert_eq!(failing(&device, 7), [5, 6, 7]);
        handle.set(None);
        assert_eq!(failing(&device, 9), Vec::<u64>::new());
    }

    #[test]
    fn kind_and_range_choose_what_counts() {
        let (device, handle) = device();
        handle.set(Some(
            Failure::every(1, ErrorKind::PathLost).within(1024, 513),
        ));
        assert_eq!(failing(&device, 9), [3, 4]);
        handle.set(Some(
            Failure::every(1, ErrorKind::NoSpace).of(OpKind::Write),
        ));
        assert_eq!(failing(&device, 9), Vec::<u64>::new());
        let mut blocking = Blocking::open(&device).unwrap();
        let error = blocking.write_at(512, &[0; 512]).unwrap_err();
        assert_eq!(
            (error.kind(), error.range()),
            (ErrorKind::NoSpace, Some((512, 512)))
        );
        blocking.flush().unwrap();
        assert_eq!((handle.counted(), handle.failed()), (1, 1));
    }

    #[test]
    fn a_seed_decides_which_fail_by_chance() {
        let (device, handle) = device();
        let run = |probability, seed| {
            let failure = Failure::by_chance(probability, seed, ErrorKind::TimedOut);
            handle.set(Some(failure));
            failing(&device, 1000)
        };
        let first = run(0.1, 7);
        assert!((50..200).contains(&first.len()), "{} of 1000", first.len());
        assert_eq!(run(0.1, 7), first);
        assert_ne!(run(0.1, 8), first);
        assert_eq!((run(0.0, 1).len(), run(1.0, 1).len()), (0, 1000));
    }

    #[test]
    fn a_refused_request_is_not_counted() {
        let (device, handle) = device();
        handle.set(Some(Failure::nth(1, ErrorKind::Media)));
        let mut blocking = Blocking::open(&device).unwrap();
        let error = blocking.read_at(1 << 20, &mut [0; 512]).unwrap_err();
        assert_eq!((error.kind(), handle.counted()), (ErrorKind::OutOfRange, 0));
    }
}
