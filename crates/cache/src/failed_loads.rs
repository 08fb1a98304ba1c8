//! Recent load failures of a file, for sessions that were waiting for the load.

use block::Error;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Failed loads that are kept; a waiter for an older one retries the load itself.
const KEPT: usize = 16;

/// The last failed loads of one file.
#[derive(Default)]
pub(crate) struct FailedLoads(Mutex<State>);

#[derive(Default)]
struct State {
    count: u64,
    last: VecDeque<(u64, Range<u64>, Error)>,
}

impl FailedLoads {
    /// Returns the number of failed loads, to be read before waiting for one.
    pub(crate) fn count(&self) -> u64 {
        self.lock().count
    }

    /// Records the error of a load of these pages.
    pub(crate) fn record(&self, pages: Range<u64>, error: Error) {
        let mut state = self.lock();
        state.count += 1;
        let count = state.count;
        state.last.push_back((count, pages, error));
        if state.last.len() > KEPT {
            state.last.pop_front();
        }
    }

    /// Finds why the load of a page failed, if it did since [`FailedLoads::count`] was `since`.
    pub(crate) fn why(&self, page: u64, since: u64) -> Option<Error> {
        let state = self.lock();
        let mut last = state.last.iter().rev();
        let found = last.find(|(count, pages, _)| *count > since && pages.contains(&page));
        found.map(|(_, _, error)| error.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }
}
