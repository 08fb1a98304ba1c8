//! CLOCK: a circle of pages; the hand clears the mark of a referenced page, and takes an
//! unreferenced one. The circle is a list whose back is the position of the hand.

use super::lists::{Lists, Queue};
use super::lru::take_oldest;
use super::{Entry, FrameNo, PageKey, Policy, Touched};

const CIRCLE: Queue = 1;
const NAMED: Queue = 2;

/// One reference bit per page, however often it was touched.
pub struct Clock {
    pub(super) lists: Lists,
    /// Frames with a reference reported by `hit`.
    marked: Vec<bool>,
}

impl Clock {
    /// Creates a policy for frame numbers below `limit`.
    pub fn new(limit: u32) -> Clock {
        Clock {
            lists: Lists::new(NAMED, limit),
            marked: vec![false; limit as usize],
        }
    }

    /// Names victims, as [`Policy::victims`], and returns the number of clean ones.
    pub(super) fn name_victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    ) -> usize {
        let marked = &mut self.marked;
        let mut ask = |frame: FrameNo| {
            let mut state = touched(frame);
            state.frequency |= u8::from(std::mem::take(&mut marked[frame.0 as usize]));
            state
        };
        take_oldest(&mut self.lists, CIRCLE, NAMED, want, &mut ask, out)
    }
}

impl Policy for Clock {
    fn inserted(&mut self, frame: FrameNo, _key: PageKey, _entry: Entry) {
        self.lists.push_front(CIRCLE, frame);
        self.marked[frame.0 as usize] = false;
    }

    fn removed(&mut self, frame: FrameNo) {
        self.lists.remove(frame);
    }

    fn moved(&mut self, from: FrameNo, to: FrameNo) {
        self.lists.replace(from, to);
        self.marked[to.0 as usize] = self.marked[from.0 as usize];
    }

    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    ) {
        self.name_victims(want, touched, out);
    }

    fn kept(&mut self, frame: FrameNo) {
        assert_eq!(self.lists.queue_of(frame), NAMED);
        self.lists.move_front(CIRCLE, frame);
    }

    fn claim(&mut self, frame: FrameNo) {
        assert_eq!(self.lists.queue_of(frame), CIRCLE);
        self.lists.move_front(NAMED, frame);
    }

    fn hit(&mut self, frame: FrameNo) {
        self.marked[frame.0 as usize] = true;
    }

    fn resize(&mut self, _frames: usize) {}

    fn resident(&self) -> usize {
        self.lists.total()
    }
}
