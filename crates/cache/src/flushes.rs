//! Flushes below of one file, one at a time, shared by everyone who waits for one.
//!
//! A device reports a lost write to one flush and answers the next one well. Two flushes that run side
//! by side could therefore bring the good answer to a client whose data the other one lost. So only one
//! flush of a file runs at a time; whoever asks meanwhile shares the next one and its outcome.
//!
//! **Invariant:** a flush covers every page that had arrived below when it began, and nobody is told
//! that it went well before it has ended.

use block::{Error, Result};
use std::sync::{Mutex, MutexGuard};

/// The flushes of one file.
#[derive(Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Default)]
struct State {
    /// Flushes that have begun.
    begun: u64,
    /// The last one that began has not ended.
    running: bool,
    /// The number of the last one that failed, and its error.
    failed: Option<(u64, Error)>,
}

/// What a caller does next about its flush.
pub(crate) enum Turn {
    /// Send it, and report its end to [`Flushes::ended`].
    Begin,
    /// Wait: another one runs.
    Wait,
    /// It has ended.
    Over(Result<()>),
}

impl Flushes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }

    /// The number of the first flush that covers everything that has arrived below by now.
    pub(crate) fn next(&self) -> u64 {
        self.lock().begun + 1
    }

    /// How far the flush of this number is.
    pub(crate) fn turn(&self, number: u64) -> Turn {
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

    /// The flush that was begun has ended.
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
        assert!(matches!(flushes.turn(first), Turn::Begin));
        let (two, three) = (flushes.next(), flushes.next());
        assert_eq!((first, two, three), (1, 2, 2));
        assert!(matches!(flushes.turn(two), Turn::Wait));
        flushes.ended(&Ok(()));
        assert!(matches!(flushes.turn(first), Turn::Over(Ok(()))));
        assert!(matches!(flushes.turn(two), Turn::Begin));
        assert!(matches!(flushes.turn(three), Turn::Wait));
        flushes.ended(&Err(Error::new(ErrorKind::Media, "disk", "")));
        assert!(matches!(flushes.turn(two), Turn::Over(Err(_))));
        assert!(matches!(flushes.turn(three), Turn::Over(Err(_))));
        assert!(matches!(flushes.turn(flushes.next()), Turn::Begin));
    }
}
