//! Requests of a queue's user.

use block::Completion;
use std::collections::VecDeque;

/// Requests between submit and reap.
///
/// **Invariant:** a request counts as in flight from its submission until its completion is reaped,
/// and only requests in flight are ready.
#[derive(Default)]
pub(super) struct Requests {
    in_flight: usize,
    ready: VecDeque<Completion>,
}

impl Requests {
    /// Counts a submitted request.
    pub(super) fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// Adds the completion of a submitted request.
    pub(super) fn complete(&mut self, completion: Completion) {
        self.ready.push_back(completion);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Reports whether no request is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Reports whether a completion can be reaped.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Moves all completions to `done` and returns their number.
    pub(super) fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        let count = self.ready.len();
        self.in_flight -= count;
        done.extend(self.ready.drain(..));
        count
    }
}
