//! A device that fails requests on purpose.

use super::drain;
use crate::{
    BlockDevice, BufPool, Completion, DeviceInfo, Error, ErrorKind, OpKind, Queue, Request, Result,
    Wait,
};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// Which requests fail, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Only requests of this kind are counted and failed; `None`: all.
    pub op: Option<OpKind>,
    /// Only requests that touch this byte range; `None`: any.
    pub range: Option<(u64, u64)>,
    /// The first counted request that fails, from 1 on.
    pub first: u64,
    /// After the first, every so many counted requests fail; `None`: only the first does, and with
    /// `Some(1)` all from then on.
    pub every: Option<u64>,
    /// What the failed ones end with.
    pub kind: ErrorKind,
}

/// Fails requests of the device below without passing them on.
pub struct ErrorDevice {
    lower: Arc<dyn BlockDevice>,
    state: Arc<Mutex<State>>,
}

struct State {
    failure: Option<Failure>,
    counted: u64,
    failed: u64,
}

/// Changes what fails while the device is in use.
#[derive(Clone)]
pub struct ErrorHandle(Arc<Mutex<State>>);

impl ErrorDevice {
    /// Over `lower`, with nothing failing yet.
    pub fn new(lower: Arc<dyn BlockDevice>) -> (ErrorDevice, ErrorHandle) {
        let state = Arc::new(Mutex::new(State {
            failure: None,
            counted: 0,
            failed: 0,
        }));
        (
            ErrorDevice {
                lower,
                state: Arc::clone(&state),
            },
            ErrorHandle(state),
        )
    }
}

impl ErrorHandle {
    /// Sets what fails, and starts counting anew.
    pub fn set(&self, failure: Option<Failure>) {
        let mut state = self.0.lock().expect("no panic under this lock");
        *state = State {
            failure,
            counted: 0,
            failed: 0,
        };
    }

    /// Requests that were failed since the last [`ErrorHandle::set`].
    pub fn failed(&self) -> u64 {
        self.0.lock().expect("no panic under this lock").failed
    }

    /// Requests that were counted since the last [`ErrorHandle::set`].
    pub fn counted(&self) -> u64 {
        self.0.lock().expect("no panic under this lock").counted
    }
}

impl State {
    fn judge(&mut self, request: &Request) -> Option<ErrorKind> {
        let failure = self.failure.as_ref()?;
        if failure.op.is_some_and(|kind| kind != request.op.kind()) {
            return None;
        }
        if let (Some((from, len)), Some((at, bytes))) = (failure.range, request.op.range())
            && (at >= from + len || at + bytes <= from)
        {
            return None;
        }
        self.counted += 1;
        let late = self.counted.checked_sub(failure.first)?;
        let fails = late == 0 || failure.every.is_some_and(|n| late.is_multiple_of(n.max(1)));
        self.failed += u64::from(fails);
        fails.then_some(failure.kind)
    }
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
        // A request that is wrong anyway is refused by the device below, and not counted.
        if self.info().check(&request.op).is_ok()
            && let Some(kind) = self
                .state
                .lock()
                .expect("no panic under this lock")
                .judge(&request)
        {
            let Request { tag, op } = request;
            let error = Error::new(kind, &self.info().name, "failed on purpose").in_op(&op);
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
