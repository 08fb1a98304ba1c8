//! Deadlines of many objects in one heap.
//!
//! An object has an entry at or before its real deadline. Moving a deadline later, as most packets
//! do, does not touch the heap; when the entry expires, the object computes its current deadline.
//! So a packet costs a comparison and not a heap insertion. An object records its first and its
//! last entry, so that short deadlines that are set and cleared reuse the entry of the long one.

use crate::slab::Key;
use crate::time::Timestamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Object that a deadline belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Call(Key),
    Connection(Key),
    Path(Key),
}

/// An object's record of its entries in the heap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimerEntry {
    first: Timestamp,
    last: Timestamp,
}

impl TimerEntry {
    pub(crate) const fn new() -> TimerEntry {
        TimerEntry {
            first: Timestamp::NEVER,
            last: Timestamp::NEVER,
        }
    }

    /// Updates the record for an expired entry and returns whether it was the object's first; other
    /// entries are stale.
    pub(crate) fn expire(&mut self, at: Timestamp) -> bool {
        let first = at == self.first;
        if first {
            *self = TimerEntry {
                first: self.last,
                last: Timestamp::NEVER,
            };
        }
        first
    }
}

/// Heap of all entries.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Timestamp, Timer)>>,
}

impl Timers {
    /// Ensures that `timer` expires at `deadline` or before.
    #[inline]
    pub(crate) fn set(&mut self, timer: Timer, note: &mut TimerEntry, deadline: Timestamp) {
        if deadline < note.first {
            note.last = if note.last == Timestamp::NEVER {
                note.first
            } else {
                note.last
            };
            note.first = deadline;
            self.heap.push(Reverse((deadline, timer)));
        }
    }

    pub(crate) fn first(&self) -> Option<(Timestamp, Timer)> {
        self.heap.peek().map(|Reverse(entry)| *entry)
    }

    /// Removes and returns an entry that has expired.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<(Timestamp, Timer)> {
        self.first().filter(|(at, _)| *at <= now)?;
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Returns the number of entries, including stale ones.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn later_deadlines_cost_nothing_and_earlier_ones_come_first() {
        let (mut timers, mut note) = (Timers::default(), TimerEntry::new());
        let timer = Timer::Call(Slab::new().insert(()));
        timers.set(timer, &mut note, at(50));
        timers.set(timer, &mut note, at(90));
        assert_eq!(timers.len(), 1);
        timers.set(timer, &mut note, at(20));
        assert_eq!(
            (timers.first(), timers.pop(at(19))),
            (Some((at(20), timer)), None)
        );
        assert_eq!(timers.pop(at(20)), Some((at(20), timer)));
        assert!(note.expire(at(20)));
        assert_eq!(timers.pop(at(60)), Some((at(50), timer)));
        assert!(note.expire(at(50)) && !note.expire(at(50)));
    }

    #[test]
    fn short_deadlines_before_a_long_one_do_not_pile_up() {
        let (mut timers, mut note) = (Timers::default(), TimerEntry::new());
        let timer = Timer::Call(Slab::new().insert(()));
        for round in 0..1000 {
            timers.set(timer, &mut note, at(1_000_000));
            timers.set(timer, &mut note, at(round + 500));
            timers.set(timer, &mut note, at(round + 20));
            while let Some((at, _)) = timers.pop(at(round + 30)) {
                note.expire(at);
            }
        }
        assert!(timers.len() < 600, "{}", timers.len());
        let long = timers
            .heap
            .iter()
            .filter(|Reverse((t, _))| *t == at(1_000_000));
        assert_eq!(long.count(), 1);
    }
}
