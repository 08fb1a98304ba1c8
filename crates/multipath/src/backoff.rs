//! Backoff between connection attempts.

use crate::policy::Nanos;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Delay of the next attempt: doubled with each failure, up to [`RETRY_LAST`].
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LAST: Duration = Duration::from_secs(1);

/// Failed attempts since the last useful connection, and time of the next attempt.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: AtomicU32,
    next_try: AtomicU64,
}

impl Backoff {
    /// Delays the next attempt, longer each time.
    pub(crate) fn delay(&self, now: Nanos) {
        let failed = self.tries.fetch_add(1, Relaxed).min(16);
        let pause = RETRY_LAST.min(RETRY_FIRST * (1 << failed));
        self.next_try.store(now + pause.as_nanos() as u64, Relaxed);
    }

    /// Returns the time of the next attempt.
    pub(crate) fn next_try(&self) -> Nanos {
        self.next_try.load(Relaxed)
    }

    /// Begins with the shortest delay again after the next failure.
    pub(crate) fn forget_failures(&self) {
        self.tries.store(0, Relaxed);
    }

    /// Permits an attempt now, and forgets the failures.
    pub(crate) fn reset(&self) {
        self.forget_failures();
        self.next_try.store(0, Relaxed);
    }
}
