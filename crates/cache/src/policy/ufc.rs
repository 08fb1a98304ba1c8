//! The default policy: S3-FIFO, adapted to files.
//!
//! ```text
//!   read   --> small ---(referenced)--> once more --(again)--> main --+
//!                |  10 %                                        ^ |   | referenced: around again
//!                v                                              | v---+
//!            left small --(read again, and main gains by it)----+ left main (the same)
//!   written -> written --(referenced twice)--> once more
//!                |  2 % .. 60 %, learned
//!                v
//!            left written (read again: more room for written pages)
//! ```
//!
//! A page that is used once passes through `small` or `written` and never disturbs `main`.
//! References in quick succession (records smaller than a page, four lookups of one block) do not
//! predict later use: they earn a second pass through `small`, and only a reference during that
//! pass earns `main`.
//!
//! Written pages have a queue of their own, because a file that is written and read back at once
//! should stay, and one that is written and never read should displace nothing. The share is
//! learned: a written page that was evicted and is read again enlarges the room for written pages,
//! a page of `main` that was evicted and is requested again reduces it.
//!
//! Each queue has its own history of evicted pages, with its own clock, so that writes do not
//! shorten the history that detects loops. A loop longer than `main` would still flush it: each
//! page is requested again, enters, and is evicted before its next use. So `main` measures the
//! share of entering pages that are referenced before the hand first reaches them; the lower it is,
//! the fewer re-requested pages are admitted. In a loop one in 32 is admitted, and `main` keeps a
//! part of the loop that hits in each round.
//!
//! Sources: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023 (small, main,
//! ghost); Johnson and Shasha, VLDB 1994 (correlated references); Megiddo and Modha, FAST 2003
//! (learning from ghosts).

use super::ghost::{Ghost, SOURCES};
use super::lists::{Lists, Queue};
use super::{Batch, Entry, FrameNo, PageKey, Policy, Touched};

const SMALL: Queue = 1;
const MAIN: Queue = 2;
const WRITTEN: Queue = 3;
const NAMED: Queue = 4;

/// Converts a source number of the history to the queue that it stands for.
fn left(source: usize) -> Queue {
    SMALL + source as Queue
}

/// Bits of a frame's mark: frequency, second pass, first round in `main`, home queue while named.
const FREQUENCY: u8 = 0b0000_0011;
const AGAIN: u8 = 0b0000_0100;
/// The hand of `main` has reached the frame.
const PROVEN: u8 = 0b0000_1000;
const HOME_SHIFT: u8 = 4;

/// Second chances per wanted frame in one call; beyond them references are ignored. Limits the time
/// that the pool's lock is held when everything is hot.
const PATIENCE: usize = 64;

/// The value 1 as a fixed-point fraction.
const ONE: u32 = 1 << 16;
/// Smallest share of re-requested pages that `main` admits.
const ADMIT_MIN: u32 = ONE / 32;
/// Weight of one page in the running mean of `worth`: 1 / `WORTH_WEIGHT`.
const WORTH_WEIGHT: u32 = 64;
/// Frames that written pages gain when one of them was evicted too early. They lose one for a page
/// of `main`: reading back a file comes in bursts, the other load is constant.
const GAIN: usize = 2;

/// Shares of the cache, in percent of its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Pages on their first and second passes.
    pub small: u8,
    /// Smallest room for written pages.
    pub written_min: u8,
    /// Largest room for written pages.
    pub written_max: u8,
    /// Length of the history of `small`.
    pub left_small: u16,
    /// Length of the history of `main`.
    pub left_main: u16,
    /// Length of the history of `written`.
    pub left_written: u16,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares {
            small: 10,
            written_min: 2,
            written_max: 60,
            left_small: 150,
            left_main: 50,
            left_written: 100,
        }
    }
}

impl Shares {
    fn of(percent: u16, frames: usize) -> usize {
        frames * usize::from(percent) / 100
    }

    /// Computes the history lengths of `SMALL`, `MAIN` and `WRITTEN` in pages.
    fn spans(&self, frames: usize) -> [usize; SOURCES] {
        [self.left_small, self.left_main, self.left_written].map(|share| Shares::of(share, frames))
    }
}

/// S3-FIFO with a learned share for written pages.
pub struct Ufc {
    pub(super) lists: Lists,
    hash: Vec<u64>,
    mark: Vec<u8>,
    left: Ghost,
    shares: Shares,
    frames: usize,
    /// Room for written pages in frames, between the shares.
    written_room: usize,
    /// Share of pages that were referenced in their first round of `main`.
    worth: u32,
    /// Remainder of the admission shares, below `ONE`.
    credit: u32,
}

impl Ufc {
    /// Creates a policy for a cache of `frames` pages with frame numbers below `limit`.
    pub fn new(limit: u32, frames: usize) -> Ufc {
        Ufc::with_shares(limit, frames, Shares::default())
    }

    /// Creates a policy like [`Ufc::new`], with other shares.
    pub fn with_shares(limit: u32, frames: usize, shares: Shares) -> Ufc {
        Ufc {
            lists: Lists::new(NAMED, limit),
            hash: vec![0; limit as usize],
            mark: vec![0; limit as usize],
            left: Ghost::new(shares.spans(frames)),
            shares,
            frames,
            written_room: Shares::of(shares.written_min.into(), frames),
            worth: ONE,
            credit: 0,
        }
    }

    /// Returns the number of frames that written pages may hold before they are evicted first.
    pub fn written_room(&self) -> usize {
        self.written_room
    }

    /// Chooses the queue for a page that enters, according to its history.
    fn place(&mut self, hash: u64, written: bool) -> Queue {
        let first = if written { WRITTEN } else { SMALL };
        match self.left.recall(hash).map(left) {
            Some(MAIN) => {
                self.written_room = self.written_room.saturating_sub(1).max(self.written_min());
                if self.admits() { MAIN } else { first }
            }
            Some(SMALL) if self.admits() => MAIN,
            Some(WRITTEN) if !written => {
                self.written_room = (self.written_room + GAIN).min(self.written_max());
                first
            }
            _ => first,
        }
    }

    /// Decides whether this re-requested page may enter `main`: the admitted share is `worth`
    /// squared.
    fn admits(&mut self) -> bool {
        let share = (u64::from(self.worth).pow(2) / u64::from(ONE)) as u32;
        self.credit += share.max(ADMIT_MIN);
        let admitted = self.credit >= ONE;
        self.credit %= ONE;
        admitted
    }

    /// Updates `worth` when the hand first reaches a page of `main`.
    fn prove(&mut self, frame: FrameNo) {
        let mark = &mut self.mark[frame.0 as usize];
        if *mark & PROVEN == 0 {
            let gained = if *mark & FREQUENCY > 0 { ONE } else { 0 };
            self.worth = (self.worth * (WORTH_WEIGHT - 1) + gained) / WORTH_WEIGHT;
            *mark |= PROVEN;
        }
    }

    fn written_min(&self) -> usize {
        Shares::of(self.shares.written_min.into(), self.frames)
    }

    fn written_max(&self) -> usize {
        Shares::of(self.shares.written_max.into(), self.frames)
    }

    /// Chooses the queue to evict from next.
    fn giver(&self, spent: [bool; 4]) -> Option<Queue> {
        let can = |queue: Queue| !spent[usize::from(queue)] && self.lists.len(queue) > 0;
        let over = |queue, room| self.lists.len(queue) > room;
        let small_room = Shares::of(self.shares.small.into(), self.frames);
        if can(WRITTEN) && over(WRITTEN, self.written_room) {
            return Some(WRITTEN);
        }
        if can(SMALL) && over(SMALL, small_room) {
            return Some(SMALL);
        }
        [MAIN, SMALL, WRITTEN].into_iter().find(|queue| can(*queue))
    }

    /// Chooses the destination of a referenced frame that is spared, and its new mark.
    fn another_turn(&self, queue: Queue, mark: u8) -> Option<(Queue, u8)> {
        let frequency = mark & FREQUENCY;
        let again = mark & AGAIN != 0;
        match queue {
            MAIN if frequency > 0 => Some((MAIN, PROVEN | (frequency - 1))),
            SMALL if frequency > 0 && again => Some((MAIN, 0)),
            SMALL if frequency > 0 => Some((SMALL, AGAIN)),
            WRITTEN if frequency > 1 => Some((SMALL, AGAIN)),
            _ => None,
        }
    }

    fn name(&mut self, frame: FrameNo) {
        let home = self.lists.remove(frame);
        assert_ne!(home, NAMED, "{frame:?} is named already");
        self.lists.push_front(NAMED, frame);
        self.mark[frame.0 as usize] |= (home as u8) << HOME_SHIFT;
    }

    fn home(&self, frame: FrameNo) -> Queue {
        Queue::from(self.mark[frame.0 as usize] >> HOME_SHIFT)
    }
}

impl Policy for Ufc {
    fn inserted(&mut self, frame: FrameNo, key: PageKey, entry: Entry) {
        let hash = key.hash();
        let queue = self.place(hash, entry.is_written());
        self.lists.push_front(queue, frame);
        self.hash[frame.0 as usize] = hash;
        self.mark[frame.0 as usize] = 0;
    }

    fn removed(&mut self, frame: FrameNo) {
        if self.lists.remove(frame) != NAMED {
            return;
        }
        let source = usize::from(self.home(frame) - SMALL);
        self.left.remember(source, self.hash[frame.0 as usize]);
    }

    fn moved(&mut self, from: FrameNo, to: FrameNo) {
        self.lists.replace(from, to);
        self.hash[to.0 as usize] = self.hash[from.0 as usize];
        self.mark[to.0 as usize] = self.mark[from.0 as usize];
    }

    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    ) {
        let mut batch = Batch::new(want, out);
        let mut patience = want.saturating_mul(PATIENCE);
        // Consecutive busy frames met in each queue.
        let mut idle = [0; 4];
        let mut spent = [false; 4];
        while !batch.full() {
            let Some(queue) = self.giver(spent) else {
                return;
            };
            let at = usize::from(queue);
            let frame = self.lists.back(queue).expect("a giver has frames");
            let state = touched(frame);
            let mark = &mut self.mark[frame.0 as usize];
            *mark = *mark & !FREQUENCY | ((*mark & FREQUENCY) + state.frequency).min(FREQUENCY);
            if queue == MAIN && !state.busy {
                self.prove(frame);
            }
            let mark = self.mark[frame.0 as usize];
            if state.busy {
                self.lists.move_front(queue, frame);
                idle[at] += 1;
                spent[at] = idle[at] >= self.lists.len(queue);
            } else if let Some((to, mark)) = self.another_turn(queue, mark).filter(|_| patience > 0)
            {
                patience -= 1;
                idle[at] = 0;
                // The frame is met again in its new queue, even if that queue was exhausted before.
                idle[usize::from(to)] = 0;
                spent[usize::from(to)] = false;
                self.lists.move_front(to, frame);
                self.mark[frame.0 as usize] = mark;
            } else if batch.takes(state.dirty) {
                idle[at] = 0;
                self.name(frame);
                batch.push(frame, state.dirty);
            } else {
                spent[at] = true;
            }
        }
    }

    fn kept(&mut self, frame: FrameNo) {
        assert_eq!(self.lists.queue_of(frame), NAMED);
        self.lists.move_front(self.home(frame), frame);
        self.mark[frame.0 as usize] &= (1 << HOME_SHIFT) - 1;
    }

    fn claim(&mut self, frame: FrameNo) {
        self.name(frame);
    }

    fn hit(&mut self, frame: FrameNo) {
        let mark = &mut self.mark[frame.0 as usize];
        if *mark & FREQUENCY < FREQUENCY {
            *mark += 1;
        }
    }

    fn resize(&mut self, frames: usize) {
        self.frames = frames;
        self.left.resize(self.shares.spans(frames));
        self.written_room = self
            .written_room
            .clamp(self.written_min(), self.written_max());
    }

    fn resident(&self) -> usize {
        self.lists.total()
    }
}
