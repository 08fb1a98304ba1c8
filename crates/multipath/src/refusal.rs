//! Refusals: paths that showed another LUN, until an examination or an administrator clears them.

use crate::policy::Nanos;
use crate::sync::lock;
use retry::{Backoff, Breaker, Jitter, State};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

/// Pauses before a refused path is examined again; they grow with each refusal.
const EXAMINE: Backoff = Backoff::new(
    Duration::from_secs(1),
    Duration::from_secs(60),
    Jitter::Equal,
);

/// Reason why a path was refused (AUTH_FAILED).
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// It showed other blocks, not just another description: only a nonce clears it.
    pub(crate) other_blocks: bool,
}

impl Refusal {
    /// Creates a refusal because of the target's description.
    pub(crate) fn described(why: String) -> Refusal {
        Refusal {
            why,
            other_blocks: false,
        }
    }
}

/// Refusals of one path.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    current: Mutex<Option<Refusal>>,
    holds: AtomicBool,
    /// Refusals of all time, and the time of the next examination.
    refused: Breaker,
    /// An examination is running.
    pub(crate) examined: AtomicBool,
}

impl Refusals {
    /// Adds a refusal. `seed`: that of the path.
    pub(crate) fn add(&self, refusal: Refusal, now: Nanos, seed: u64) {
        self.refused
            .failed(Duration::from_nanos(now), &EXAMINE, seed);
        *lock(&self.current) = Some(refusal);
        self.holds.store(true, Release);
    }

    /// Lifts the refusal.
    pub(crate) fn lift(&self) {
        *lock(&self.current) = None;
        self.holds.store(false, Release);
    }

    /// Checks whether the path is refused.
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Acquire)
    }

    pub(crate) fn current(&self) -> Option<Refusal> {
        lock(&self.current).clone()
    }

    /// Checks whether the path is refused and due for examination.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.holds() && self.refused.state(Duration::from_nanos(now)) != State::Open
    }
}
