//! Least recently used: one list; a hit moves a page to the young end. The common baseline; a scan
//! longer than the cache evicts everything.

use super::lists::{Lists, NONE, Queue};
use super::{Batch, Entry, FrameNo, PageKey, Policy, Touched};

const RECENT: Queue = 1;
const NAMED: Queue = 2;

/// Exact if each hit is reported by `hit`; if hits are visible only through `Touched`, it is CLOCK.
pub struct Lru {
    pub(super) lists: Lists,
}

impl Lru {
    /// Creates a policy for frame numbers below `limit`.
    pub fn new(limit: u32) -> Lru {
        Lru {
            lists: Lists::new(NAMED, limit),
        }
    }
}

impl Policy for Lru {
    fn inserted(&mut self, frame: FrameNo, _key: PageKey, _entry: Entry) {
        self.lists.push_front(RECENT, frame);
    }

    fn removed(&mut self, frame: FrameNo) {
        self.lists.remove(frame);
    }

    fn moved(&mut self, from: FrameNo, to: FrameNo) {
        self.lists.replace(from, to);
    }

    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    ) {
        take_oldest(&mut self.lists, RECENT, NAMED, want, touched, out);
    }

    fn kept(&mut self, frame: FrameNo) {
        assert_eq!(self.lists.queue_of(frame), NAMED);
        self.lists.move_front(RECENT, frame);
    }

    fn claim(&mut self, frame: FrameNo) {
        assert_eq!(self.lists.queue_of(frame), RECENT);
        self.lists.move_front(NAMED, frame);
    }

    fn hit(&mut self, frame: FrameNo) {
        if self.lists.queue_of(frame) == RECENT {
            self.lists.move_front(RECENT, frame);
        }
    }

    fn wants_hits(&self) -> bool {
        true
    }

    fn resize(&mut self, _frames: usize) {}

    fn resident(&self) -> usize {
        self.lists.total()
    }
}

/// Names frames from the back of `queue`; a frame that was referenced or is busy moves to the
/// front. Makes at most two rounds: in the second, only frames referenced since the first are
/// spared. Returns the number of clean frames named.
pub(super) fn take_oldest(
    lists: &mut Lists,
    queue: Queue,
    named: Queue,
    want: usize,
    touched: &mut dyn FnMut(FrameNo) -> Touched,
    out: &mut Vec<FrameNo>,
) -> usize {
    let mut batch = Batch::new(want, out);
    for _ in 0..lists.len(queue) * 2 {
        let Some(frame) = lists.back(queue).filter(|_| !batch.full()) else {
            break;
        };
        debug_assert_ne!(lists.queue_of(frame), NONE);
        let state = touched(frame);
        if state.busy || state.frequency > 0 {
            lists.move_front(queue, frame);
        } else if batch.takes(state.dirty) {
            lists.move_front(named, frame);
            batch.push(frame, state.dirty);
        } else {
            break;
        }
    }
    batch.clean
}
