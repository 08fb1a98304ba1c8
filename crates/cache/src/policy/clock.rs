//! Second chance: one queue in the order of arrival; a page that was used goes round again.

use super::{Entry, FrameNo, PageKey, Policy, Touched};
use std::collections::VecDeque;

/// One queue of pages. A frame that is gone leaves its place in the queue behind, which is skipped
/// when the hand passes it; a stamp tells an old place from a new one of the same frame.
#[derive(Default)]
pub struct Clock {
    queue: VecDeque<(FrameNo, u32)>,
    /// The stamp of each frame's place, 0 for none.
    places: Vec<u32>,
    stamp: u32,
}

impl Clock {
    /// An empty queue.
    pub fn new() -> Clock {
        Clock::default()
    }

    fn place(&mut self, frame: FrameNo) -> &mut u32 {
        let index = frame.0 as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        &mut self.places[index]
    }

    fn push(&mut self, frame: FrameNo) {
        self.stamp = self.stamp.checked_add(1).unwrap_or(1);
        let stamp = self.stamp;
        *self.place(frame) = stamp;
        self.queue.push_back((frame, stamp));
    }
}

impl Policy for Clock {
    fn inserted(&mut self, frame: FrameNo, _key: PageKey, _entry: Entry) {
        self.push(frame);
    }

    fn removed(&mut self, frame: FrameNo) {
        *self.place(frame) = 0;
    }

    fn moved(&mut self, from: FrameNo, to: FrameNo) {
        *self.place(from) = 0;
        self.push(to);
    }

    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    ) {
        // A page in use is passed at most three times for its notes of use and once more.
        let mut looks = 4 * self.queue.len();
        let mut taken = 0;
        while taken < want && looks > 0 {
            looks -= 1;
            let Some((frame, stamp)) = self.queue.pop_front() else {
                return;
            };
            if *self.place(frame) != stamp {
                continue;
            }
            let seen = touched(frame);
            if seen.busy || seen.dirty || seen.frequency > 0 {
                self.queue.push_back((frame, stamp));
                continue;
            }
            *self.place(frame) = 0;
            out.push(frame);
            taken += 1;
        }
    }

    fn resize(&mut self, _frames: usize) {}
}
