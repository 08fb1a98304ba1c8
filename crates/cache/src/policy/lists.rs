//! Doubly linked lists over frame numbers, in flat arrays.
//!
//! Invariant: a frame is linked into the list that `queue` names for it, or into none. All-zero
//! memory is the empty state, so that the allocator can provide untouched pages.

use super::FrameNo;

const PREV: usize = 0;
const NEXT: usize = 1;

/// Number of a list, from 1; 0 stands for none.
pub(super) type Queue = u16;
/// Queue number of a frame in no list.
pub(super) const NONE: Queue = 0;

pub(super) struct Lists {
    /// Links of list heads, then of frames. The head's next is the front, its previous the back.
    links: Vec<[u32; 2]>,
    queue: Vec<Queue>,
    len: Vec<usize>,
}

impl Lists {
    /// Creates lists 1 to `queues` of frames below `limit`.
    pub(super) fn new(queues: Queue, limit: u32) -> Lists {
        let heads = usize::from(queues) + 1;
        let nodes = heads + limit as usize;
        assert!(u32::try_from(nodes).is_ok(), "too many frames");
        let mut links = vec![[0; 2]; nodes];
        for (head, link) in links.iter_mut().enumerate().take(heads) {
            *link = [head as u32; 2];
        }
        Lists {
            links,
            queue: vec![NONE; limit as usize],
            len: vec![0; heads],
        }
    }

    pub(super) fn queue_of(&self, frame: FrameNo) -> Queue {
        self.queue[frame.0 as usize]
    }

    pub(super) fn len(&self, queue: Queue) -> usize {
        self.len[usize::from(queue)]
    }

    /// Finds the oldest frame of a list.
    pub(super) fn back(&self, queue: Queue) -> Option<FrameNo> {
        let node = self.links[usize::from(queue)][PREV] as usize;
        let frame = node.checked_sub(self.len.len())?;
        Some(FrameNo(frame as u32))
    }

    /// Inserts a frame that is in no list at the young end.
    pub(super) fn push_front(&mut self, queue: Queue, frame: FrameNo) {
        assert_eq!(self.queue_of(frame), NONE, "{frame:?} holds a page already");
        let node = self.node(frame);
        let head = usize::from(queue);
        let first = self.links[head][NEXT];
        self.links[node] = [head as u32, first];
        self.links[head][NEXT] = node as u32;
        self.links[first as usize][PREV] = node as u32;
        self.queue[frame.0 as usize] = queue;
        self.len[head] += 1;
    }

    /// Removes a frame from its list, and returns the list.
    pub(super) fn remove(&mut self, frame: FrameNo) -> Queue {
        let queue = self.queue_of(frame);
        assert_ne!(queue, NONE, "{frame:?} holds no page");
        let [prev, next] = self.links[self.node(frame)];
        self.links[prev as usize][NEXT] = next;
        self.links[next as usize][PREV] = prev;
        self.queue[frame.0 as usize] = NONE;
        self.len[usize::from(queue)] -= 1;
        queue
    }

    /// Moves a frame from its list to the young end of `queue`.
    pub(super) fn move_front(&mut self, queue: Queue, frame: FrameNo) {
        self.remove(frame);
        self.push_front(queue, frame);
    }

    /// Puts `to` into the place of `from`.
    pub(super) fn replace(&mut self, from: FrameNo, to: FrameNo) {
        assert_eq!(self.queue_of(to), NONE, "{to:?} holds a page already");
        let queue = self.queue_of(from);
        assert_ne!(queue, NONE, "{from:?} holds no page");
        let node = self.node(to);
        let [prev, next] = self.links[self.node(from)];
        self.links[node] = [prev, next];
        self.links[prev as usize][NEXT] = node as u32;
        self.links[next as usize][PREV] = node as u32;
        self.queue[to.0 as usize] = queue;
        self.queue[from.0 as usize] = NONE;
    }

    /// Counts the frames in all lists.
    pub(super) fn total(&self) -> usize {
        self.len.iter().sum()
    }

    fn node(&self, frame: FrameNo) -> usize {
        self.len.len() + frame.0 as usize
    }

    /// Checks that every list is consistent in both directions and has the frames that name it.
    #[cfg(test)]
    pub(super) fn verify(&self) {
        let mut seen = vec![NONE; self.queue.len()];
        for queue in 1..self.len.len() {
            let mut at = queue;
            let mut count = 0;
            loop {
                let next = self.links[at][NEXT] as usize;
                assert_eq!(self.links[next][PREV] as usize, at, "links disagree");
                if next == queue {
                    break;
                }
                let frame = next - self.len.len();
                assert_eq!(seen[frame], NONE, "frame {frame} is in two places");
                seen[frame] = queue as Queue;
                count += 1;
                at = next;
            }
            assert_eq!(count, self.len[queue], "length of list {queue}");
        }
        assert_eq!(seen, self.queue);
    }
}
