//! The time of an operation that consists of several attempts.

use std::time::Duration;

/// The end of an operation, as the time since a fixed point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Duration);

impl Deadline {
    /// Creates the deadline of an operation that begins at `now` and takes at most `within`.
    pub fn after(now: Duration, within: Duration) -> Deadline {
        Deadline(now.saturating_add(within))
    }

    /// Returns the time that is left; zero after the deadline.
    pub fn left(self, now: Duration) -> Duration {
        self.0.saturating_sub(now)
    }

    /// Returns the time for the next attempt: half of what is left if other attempts may follow it,
    /// and otherwise all of it.
    pub fn share(self, now: Duration, is_last: bool) -> Duration {
        let left = self.left(now);
        if is_last { left } else { left / 2 }
    }
}
