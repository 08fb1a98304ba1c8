//! Results of a file's write-back, and the flushes that follow it.

use crate::errors::ErrorSequence;
use crate::flushes::Flushes;
use crate::wait::WaitList;
use block::Result;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Write-back state of one file.
#[derive(Default)]
pub(crate) struct WriteBack {
    pub(crate) errors: ErrorSequence,
    pub(crate) flushes: Flushes,
    /// Sessions that wait for pages under write-back, or for a flush.
    pub(crate) waiters: WaitList,
    backoff: Mutex<Backoff>,
}

/// Back-off of background write-back.
#[derive(Default)]
struct Backoff {
    failures: u32,
    not_before: Option<Instant>,
}

impl WriteBack {
    /// Records the end of the running flush.
    pub(crate) fn flush_ended(&self, result: &Result<()>) {
        self.flushes.ended(result);
        self.waiters.wake_all();
    }

    /// Checks whether the back-off permits background write-back now.
    pub(crate) fn may_retry(&self) -> bool {
        let backoff = self.backoff();
        backoff.not_before.is_none_or(|at| Instant::now() >= at)
    }

    /// Records the result of a write; after a first failure, background write-back pauses for
    /// `first`. Returns whether the result is a change: a first failure, or a success after one.
    pub(crate) fn note_result(&self, good: bool, first: Duration) -> bool {
        let mut backoff = self.backoff();
        let news = good == (backoff.failures > 0);
        if good {
            if news {
                *backoff = Backoff::default();
            }
            return news;
        }
        let wait = first * (1 << backoff.failures.min(6)).min(100);
        backoff.failures += 1;
        backoff.not_before = Some(Instant::now() + wait);
        news
    }

    fn backoff(&self) -> MutexGuard<'_, Backoff> {
        self.backoff.lock().expect("no panic under this lock")
    }
}
