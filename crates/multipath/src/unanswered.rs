//! Lost writes: writes that a lost path left unanswered. A slow server may still execute them.

use crate::mailbox::QueueId;
use crate::policy::Nanos;
use crate::sync::lock;
use block::Op;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A write that was sent and not answered. Until it is settled, the server may still execute it and
/// thereby undo a later write to the same blocks.
#[derive(Debug, Clone)]
pub(crate) struct UnansweredWrite {
    pub(crate) queue: QueueId,
    pub(crate) tag: u64,
    pub(crate) path: usize,
    pub(crate) fence_key: Option<u64>,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) noted: Nanos,
    /// Time at which it counts as settled; [`OPEN`] while its connection is open, because queued
    /// data may be sent at any time.
    pub(crate) until: Nanos,
}

/// Value of [`UnansweredWrite::until`] while the connection has not been closed.
pub(crate) const OPEN: Nanos = Nanos::MAX;

/// All lost writes of a LUN. Checked by every write; the lock is taken only if any exist.
#[derive(Debug, Default)]
pub(crate) struct UnansweredWrites {
    count: AtomicUsize,
    list: Mutex<Vec<UnansweredWrite>>,
}

impl UnansweredWrites {
    pub(crate) fn add(&self, ghost: UnansweredWrite) {
        let mut list = lock(&self.list);
        list.push(ghost);
        self.count.store(list.len(), Release);
    }

    /// Checks whether this operation must wait for a lost write to the same blocks.
    pub(crate) fn must_wait(&self, op: &Op, now: Nanos) -> bool {
        if self.count.load(Acquire) == 0 || !op.changes_data() {
            return false;
        }
        let Some((offset, len)) = op.range() else {
            return false;
        };
        self.keep(|ghost| ghost.until > now);
        let end = offset + len;
        lock(&self.list)
            .iter()
            .any(|g| offset < g.end && g.start < end)
    }

    pub(crate) fn remove_answered(&self, queue: QueueId, tag: u64) {
        self.keep(|g| (g.queue, g.tag) != (queue, tag));
    }

    /// Sets the settling time of lost writes after their connection was closed: `until`, or `fence`
    /// nanoseconds later for writes that a fence can settle.
    pub(crate) fn closed(&self, queue: QueueId, path: usize, until: Nanos, fence: Nanos) {
        for ghost in lock(&self.list).iter_mut() {
            if (ghost.queue, ghost.path, ghost.until) == (queue, path, OPEN) {
                ghost.until = until + ghost.fence_key.map_or(0, |_| fence);
            }
        }
    }

    /// Checks whether a write on an open connection has been unanswered since before `noted`.
    pub(crate) fn overdue(&self, queue: QueueId, path: usize, noted: Nanos) -> bool {
        let mine = |g: &UnansweredWrite| (g.queue, g.path, g.until) == (queue, path, OPEN);
        self.len() > 0 && lock(&self.list).iter().any(|g| mine(g) && g.noted < noted)
    }

    pub(crate) fn fenced(&self, key: u64) {
        self.keep(|g| g.fence_key != Some(key));
    }

    pub(crate) fn keys(&self) -> Vec<(usize, u64)> {
        if self.count.load(Acquire) == 0 {
            return Vec::new();
        }
        let list = lock(&self.list);
        let mut keys: Vec<_> = list
            .iter()
            .filter_map(|g| Some((g.path, g.fence_key?)))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Acquire)
    }

    /// Checks whether any lost write may still be executed.
    pub(crate) fn pending(&self, now: Nanos) -> bool {
        if self.len() > 0 {
            self.keep(|ghost| ghost.until > now);
        }
        self.len() > 0
    }

    fn keep(&self, keep: impl Fn(&UnansweredWrite) -> bool) {
        let mut list = lock(&self.list);
        list.retain(keep);
        self.count.store(list.len(), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_holds_what_overlaps_it_until_it_is_settled() {
        let ghosts = UnansweredWrites::default();
        let (one, two) = (QueueId::new(1), QueueId::new(2));
        let ghost = |tag, key| UnansweredWrite {
            queue: one,
            tag,
            path: 0,
            fence_key: key,
            start: 4096,
            end: 8192,
            noted: 5,
            until: OPEN,
        };
        let zero = |offset| Op::WriteZeroes {
            offset,
            len: 4096,
            fua: false,
            unmap: false,
        };
        ghosts.add(ghost(5, None));
        assert!(ghosts.must_wait(&zero(4096), 10));
        assert!(!ghosts.must_wait(&zero(0), 10) && !ghosts.must_wait(&zero(8192), 10));
        ghosts.remove_answered(one, 5);
        assert!(!ghosts.must_wait(&zero(4096), 10));
        ghosts.add(ghost(6, Some(9)));
        assert_eq!(ghosts.keys(), [(0, 9)]);
        ghosts.fenced(9);
        assert!(!ghosts.must_wait(&zero(4096), 10));
        ghosts.add(ghost(7, None));
        assert!(ghosts.overdue(one, 0, 6) && !ghosts.overdue(one, 0, 5));
        assert!(!ghosts.overdue(two, 0, 6));
        assert!(
            ghosts.must_wait(&zero(4096), 1001),
            "its connection is open"
        );
        ghosts.closed(one, 1, 10, 0);
        ghosts.closed(one, 0, 1000, 1000);
        assert!(ghosts.must_wait(&zero(4096), 999));
        assert!(!ghosts.must_wait(&zero(4096), 1001), "the time is over");
    }
}
