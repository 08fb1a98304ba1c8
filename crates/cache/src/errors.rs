//! Write-behind errors: every open file reports each error once, at its next flush.
//!
//! **Invariant:** an open file reports an error that happened while it was open, and one that has
//! not been reported to any open file yet; never the same one twice.

use block::{Error, Result};
use std::sync::Mutex;

/// The last error of a file and the number of errors so far.
#[derive(Default)]
pub struct ErrorSequence {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    count: u64,
    last: Option<Error>,
    /// The last error has been reported.
    reported: bool,
}

/// Position of one open file in the sequence of errors.
#[derive(Debug)]
pub struct ErrorCursor(Mutex<u64>);

impl ErrorSequence {
    /// Records an asynchronous error.
    pub fn record(&self, error: Error) {
        let mut state = self.state.lock().expect("no panic under this lock");
        state.count += 1;
        state.last = Some(error);
        state.reported = false;
    }

    /// Creates the cursor for a new open file.
    pub fn cursor(&self) -> ErrorCursor {
        let state = self.state.lock().expect("no panic under this lock");
        let untold = u64::from(state.last.is_some() && !state.reported);
        ErrorCursor(Mutex::new(state.count - untold))
    }

    /// Reports the last error, unless it was already reported through this cursor.
    ///
    /// # Errors
    /// The last recorded error.
    pub fn check(&self, cursor: &ErrorCursor) -> Result<()> {
        let mut state = self.state.lock().expect("no panic under this lock");
        let mut seen = cursor.0.lock().expect("no panic under this lock");
        if *seen == state.count {
            return Ok(());
        }
        *seen = state.count;
        state.reported = true;
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
    fn every_opener_sees_an_error_once_and_a_later_one_only_if_it_is_unreported() {
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
