//! Errors of write-behind: whoever has a file open is told of each once, at the next flush.
//!
//! **Invariant:** an opener is told of an error that happened while it had the file open, and of one
//! that nobody has been told of yet; never of the same one twice.

use block::{Error, Result};
use std::sync::Mutex;

/// The last error of a file and how many there were.
#[derive(Default)]
pub struct ErrorSequence {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    count: u64,
    last: Option<Error>,
    /// Somebody was told of the last one.
    told: bool,
}

/// How far one opener has been told.
#[derive(Debug)]
pub struct ErrorCursor(Mutex<u64>);

impl ErrorSequence {
    /// Something went wrong behind the openers' backs.
    pub fn record(&self, error: Error) {
        let mut state = self.state.lock().expect("no panic under this lock");
        state.count += 1;
        state.last = Some(error);
        state.told = false;
    }

    /// Where a new opener begins.
    pub fn cursor(&self) -> ErrorCursor {
        let state = self.state.lock().expect("no panic under this lock");
        let untold = u64::from(state.last.is_some() && !state.told);
        ErrorCursor(Mutex::new(state.count - untold))
    }

    /// The last error, if this opener has not been told of it.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self, cursor: &ErrorCursor) -> Result<()> {
        let mut state = self.state.lock().expect("no panic under this lock");
        let mut seen = cursor.0.lock().expect("no panic under this lock");
        if *seen == state.count {
            return Ok(());
        }
        *seen = state.count;
        state.told = true;
        state.last.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn error() -> Error {
        Error::new(ErrorKind::Media, "disk", "")
    }

    #[test]
    fn every_opener_is_told_once_and_a_later_one_only_of_what_nobody_was_told() {
        let errors = ErrorSequence::default();
        let (one, two) = (errors.cursor(), errors.cursor());
        assert!(errors.check(&one).is_ok());
        errors.record(error());
        let untold = errors.cursor();
        assert!(errors.check(&untold).is_err() && errors.check(&untold).is_ok());
        let told = errors.cursor();
        assert!(errors.check(&told).is_ok());
        for cursor in [&one, &two] {
            assert!(errors.check(cursor).is_err() && errors.check(cursor).is_ok());
        }
        errors.record(error());
        errors.record(error());
        for cursor in [&one, &two, &told, &untold] {
            assert!(errors.check(cursor).is_err() && errors.check(cursor).is_ok());
        }
    }
}
