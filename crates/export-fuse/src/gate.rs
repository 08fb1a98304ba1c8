//! Who may change which blocks of a file now.
//!
//! **Invariant:** a change that reads blocks, patches them and writes them back is alone on these
//! blocks among all changes of all threads. Changes of whole blocks do not wait for one another: the
//! waist orders nothing among requests in flight, and neither does a disk.
//!
//! Nobody sleeps here. Who cannot go in is noted, in order of arrival, and named by the
//! [`Gate::leave`] that lets it in. Reads never come here.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

/// A change: the thread that carries it out, and its slot there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) worker: usize,
    pub(crate) slot: usize,
}

#[derive(Debug, Clone)]
struct Change {
    ticket: Ticket,
    bytes: Range<u64>,
    alone: bool,
}

impl Change {
    fn excludes(&self, other: &Change) -> bool {
        (self.alone || other.alone)
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

#[derive(Debug, Default)]
struct State {
    inside: Vec<Change>,
    waiting: VecDeque<Change>,
}

/// The changes of one file. Both lists are bounded by the slots of all threads.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<State>);

impl Gate {
    /// Lets a change of these bytes in, or notes it and gives false.
    pub(crate) fn enter(&self, ticket: Ticket, bytes: Range<u64>, alone: bool) -> bool {
        let change = Change {
            ticket,
            bytes,
            alone,
        };
        let mut state = self.0.lock().expect("no panic under this lock");
        // Who waits comes first, or a stream of changes would keep it out for ever.
        let State { inside, waiting } = &mut *state;
        if inside.iter().chain(&*waiting).any(|c| c.excludes(&change)) {
            waiting.push_back(change);
            return false;
        }
        inside.push(change);
        true
    }

    /// Ends a change, or takes one back that waits; gives those that are let in by it.
    pub(crate) fn leave(&self, ticket: Ticket) -> Vec<Ticket> {
        let mut state = self.0.lock().expect("no panic under this lock");
        let State { inside, waiting } = &mut *state;
        if let Some(index) = inside.iter().position(|c| c.ticket == ticket) {
            inside.swap_remove(index);
        } else {
            waiting.retain(|c| c.ticket != ticket);
        }
        let mut granted = Vec::new();
        let mut index = 0;
        while index < waiting.len() {
            let earlier = waiting.range(..index);
            if inside
                .iter()
                .chain(earlier)
                .any(|c| c.excludes(&waiting[index]))
            {
                index += 1;
            } else if let Some(change) = waiting.remove(index) {
                granted.push(change.ticket);
                inside.push(change);
            }
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(slot: usize) -> Ticket {
        Ticket { worker: 0, slot }
    }

    #[test]
    fn whole_blocks_never_wait_for_one_another() {
        let gate = Gate::default();
        assert!(gate.enter(ticket(0), 0..4096, false));
        assert!(gate.enter(ticket(1), 0..8192, false));
        assert_eq!(gate.leave(ticket(0)), []);
    }

    #[test]
    fn a_patch_waits_for_what_overlaps_and_for_nothing_else() {
        let gate = Gate::default();
        assert!(gate.enter(ticket(0), 0..8192, false));
        assert!(!gate.enter(ticket(1), 4096..8192, true));
        assert!(gate.enter(ticket(2), 8192..12288, true));
        assert_eq!(gate.leave(ticket(2)), []);
        assert_eq!(gate.leave(ticket(0)), [ticket(1)]);
    }

    #[test]
    fn who_waits_is_not_overtaken_by_later_changes() {
        let gate = Gate::default();
        assert!(gate.enter(ticket(0), 0..4096, false));
        assert!(!gate.enter(ticket(1), 0..4096, true));
        assert!(!gate.enter(ticket(2), 0..4096, false));
        assert!(!gate.enter(ticket(3), 0..4096, false));
        assert_eq!(gate.leave(ticket(0)), [ticket(1)]);
        assert_eq!(gate.leave(ticket(1)), [ticket(2), ticket(3)]);
    }
}
