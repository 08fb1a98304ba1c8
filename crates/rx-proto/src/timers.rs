//! Deadlines of many objects in one heap.
//!
//! An object has an entry at or before its real deadline. Deadlines that move later (and with each
//! packet, most do) leave the heap alone; when the entry comes up, the object looks what its deadline
//! is by then. So a packet costs a comparison, not a place in a heap. An object notes its first entry
//! and its last, so that short deadlines that come and go use its long one again.

use crate::slab::Key;
use crate::time::Timestamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Whose deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Call(Key),
    Connection(Key),
    Path(Key),
}

/// An object's note of its entries in the heap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note {
    first: Timestamp,
    last: Timestamp,
}

impl Note {
    pub(crate) const fn new() -> Note {
        Note {
            first: Timestamp::NEVER,
            last: Timestamp::NEVER,
        }
    }

    /// Whether the entry that came up is the object's first; others were overtaken.
    pub(crate) fn came_up(&mut self, at: Timestamp) -> bool {
        let first = at == self.first;
        if first {
            *self = Note {
                first: self.last,
                last: Timestamp::NEVER,
            };
        }
        first
    }
}

/// All entries.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Timestamp, Timer)>>,
}

impl Timers {
    /// Makes sure that `timer` comes up at `deadline` or before.
    #[inline]
    pub(crate) fn set(&mut self, timer: Timer, note: &mut Note, deadline: Timestamp) {
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

    /// The first entry, and when it comes up.
    pub(crate) fn first(&self) -> Option<(Timestamp, Timer)> {
        self.heap.peek().map(|Reverse(entry)| *entry)
    }

    /// Takes an entry that has come up.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<(Timestamp, Timer)> {
        self.first().filter(|(at, _)| *at <= now)?;
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// How many entries there are, with those that were overtaken.
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
        let (mut timers, mut note) = (Timers::default(), Note::new());
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
        assert!(note.came_up(at(20)));
        assert_eq!(timers.pop(at(60)), Some((at(50), timer)));
        assert!(note.came_up(at(50)) && !note.came_up(at(50)));
    }

    #[test]
    fn short_deadlines_before_a_long_one_do_not_pile_up() {
        let (mut timers, mut note) = (Timers::default(), Note::new());
        let timer = Timer::Call(Slab::new().insert(()));
        for round in 0..1000 {
            timers.set(timer, &mut note, at(1_000_000));
            timers.set(timer, &mut note, at(round + 500));
            timers.set(timer, &mut note, at(round + 20));
            while let Some((at, _)) = timers.pop(at(round + 30)) {
                note.came_up(at);
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
