//! Results of a file's write-back, and the flushes that follow it.

use crate::errors::ErrorSequence;
use crate::flushes::Flushes;
use crate::wait::WaitList;
use block::Result;
use retry::{Backoff, Breaker, State};
use std::time::Duration;

/// Write-back state of one file.
#[derive(Default)]
pub(crate) struct WriteBack {
    pub(crate) errors: ErrorSequence,
    pub(crate) flushes: Flushes,
    /// Sessions that wait for pages under write-back, or for a flush.
    pub(crate) waiters: WaitList,
    /// Failed writes; background write-back pauses after each.
    writes: Breaker,
}

impl WriteBack {
    /// Records the end of the running flush.
    pub(crate) fn flush_ended(&self, result: &Result<()>) {
        self.flushes.ended(result);
        self.waiters.wake_all();
    }

    /// Checks whether background write-back is permitted at `now`, by the clock of the cache.
    pub(crate) fn may_retry(&self, now: Duration) -> bool {
        self.writes.state(now) != State::Open
    }

    /// Records the result of a write at `now`; after a failure, background write-back pauses.
    /// Returns whether the result is a change: a first failure, or a success after one.
    pub(crate) fn note_result(
        &self,
        good: bool,
        now: Duration,
        pauses: &Backoff,
        seed: u64,
    ) -> bool {
        if good {
            self.writes.succeeded()
        } else {
            self.writes.failed(now, pauses, seed)
        }
    }
}
