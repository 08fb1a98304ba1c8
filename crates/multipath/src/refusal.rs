//! Refusals: paths that showed another LUN, until an examination or an administrator clears them.

use crate::policy::Nanos;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Backoff before a refused path is examined again; doubled with each refusal, up to
/// [`EXAMINE_LAST`].
const EXAMINE_FIRST: Nanos = 1_000_000_000;
const EXAMINE_LAST: Nanos = 60_000_000_000;

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
    /// Number of refusals, and time of the next examination.
    count: AtomicU32,
    examine_at: AtomicU64,
    /// An examination is running.
    pub(crate) examined: AtomicBool,
}

impl Refusals {
    pub(crate) fn add(&self, refusal: Refusal, now: Nanos) {
        let times = self.count.fetch_add(1, Relaxed).min(16);
        let pause = (EXAMINE_FIRST << times).min(EXAMINE_LAST);
        self.examine_at.store(now + pause, Relaxed);
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
        self.holds() && self.examine_at.load(Relaxed) <= now
    }
}
