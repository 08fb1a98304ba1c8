//! Flushes of one file on the pager, one at a time, shared by all waiters.
//!
//! A device reports a lost write to one flush and lets the next one succeed. Of two concurrent
//! flushes, the successful one could thus be reported to a client whose data the other one lost. So
//! only one flush of a file runs at a time; requests that arrive while it runs share the next one
//! and its result.
//!
//! **Invariant:** a flush covers every page whose write had completed when it began, and its
//! success is not reported before it has ended.

use block::{Error, Result};
use std::sync::{Mutex, MutexGuard};

/// Flush state of one file.
#[derive(Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Default)]
struct State {
    /// Number of flushes that have begun.
    begun: u64,
    /// The last one that began has not ended.
    running: bool,
    /// Number of the last flush that failed, and its error.
    failed: Option<(u64, Error)>,
}

/// Next step of a caller that wants a flush.
pub(crate) enum Turn {
    /// Submit the flush, and report its end to [`Flushes::ended`].
    Begin,
    /// Wait: another one is running.
    Wait,
    /// The flush has ended.
    Over(Result<()>),
}

impl Flushes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Returns the number of the first flush that covers all writes completed by now.
    pub(crate) fn next(&self) -> u64 {
        self.lock().begun + 1
    }

    /// Decides the next step for the flush of this number.
    pub(crate) fn next_step(&self, number: u64) -> Turn {
        let mut state = self.lock();
        if state.running {
            if state.begun <= number {
                return Turn::Wait;
            }
        } else if state.begun < number {
            state.begun += 1;
            state.running = true;
            return Turn::Begin;
        }
        match &state.failed {
            Some((failed, error)) if *failed >= number => Turn::Over(Err(error.clone())),
            _ => Turn::Over(Ok(())),
        }
    }

    /// Records the end of the running flush.
    pub(crate) fn ended(&self, result: &Result<()>) {
        let mut state = self.lock();
        state.running = false;
        if let Err(error) = result {
            state.failed = Some((state.begun, error.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn who_comes_while_one_runs_shares_the_next_and_its_outcome() {
        let flushes = Flushes::default();
        let first = flushes.next();
        assert!(matches!(flushes.next_step(first), Turn::Begin));
        let (two, three) = (flushes.next(), flushes.next());
        assert_eq!((first, two, three), (1, 2, 2));
        assert!(matches!(flushes.next_step(two), Turn::Wait));
        flushes.ended(&Ok(()));
        assert!(matches!(flushes.next_step(first), Turn::Over(Ok(()))));
        assert!(matches!(flushes.next_step(two), Turn::Begin));
        assert!(matches!(flushes.next_step(three), Turn::Wait));
        flushes.ended(&Err(Error::new(ErrorKind::Media, "disk", "")));
        assert!(matches!(flushes.next_step(two), Turn::Over(Err(_))));
        assert!(matches!(flushes.next_step(three), Turn::Over(Err(_))));
        assert!(matches!(flushes.next_step(flushes.next()), Turn::Begin));
    }
}
