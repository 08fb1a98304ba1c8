//! Detection of connections that stall.

use std::time::{Duration, Instant};

/// A payload or reply that has moved by this number of bytes has not stalled.
const PROGRESS_BYTES: usize = 128 * 1024;

/// Progress of the payload being received, and of the replies being sent.
pub(super) struct Progress {
    /// Start of the current check.
    since: Instant,
    /// Bytes moved since then.
    moved: usize,
}

impl Progress {
    pub(super) fn new(now: Instant) -> Progress {
        let moved = 0;
        Progress { since: now, moved }
    }

    /// Starts the current check later, at `now`.
    pub(super) fn postpone(&mut self, now: Instant) {
        self.since = now;
    }

    /// Counts bytes that were moved.
    pub(super) fn add(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// Notes that a payload, or a part of a reply, was moved completely.
    pub(super) fn complete(&mut self) {
        self.moved = PROGRESS_BYTES;
    }

    /// Checks for a stall of at least `limit`; `waits` reports whether there is anything to move.
    pub(super) fn has_stalled(&mut self, now: Instant, waits: bool, limit: Duration) -> bool {
        if !waits || self.moved >= PROGRESS_BYTES {
            *self = Progress::new(now);
            return false;
        }
        now.duration_since(self.since) >= limit
    }
}
