//! The default: S3-FIFO, made safe for files.
//!
//! ```text
//!   read   --> small ---(referenced)--> once more --(again)--> main --+
//!                |  10 %                                        ^ |   | referenced: around again
//!                v                                              | v---+
//!            left small --(wanted again, and main gains by it)--+ left main (the same)
//!   written -> written --(referenced twice)--> once more
//!                |  2 % .. 60 %, learned
//!                v
//!            left written (read again: more room for written pages)
//! ```
//!
//! A page that is used once passes through `small` or `written` and never disturbs `main`. References that
//! come soon after one another (records smaller than a page, four looks at one block) say nothing about
//! the future: they buy a second passage through `small`, and only a reference in that one buys `main`.
//!
//! Written pages have a queue of their own, because a file that is written and read back at once must stay,
//! and one that is written and never read must not push out anything. Which of the two is happening is
//! learned: a written page that left and is read again makes room for written pages, a page of `main`
//! that left and is wanted again takes room from them.
//!
//! Each queue has its own memory of what left it, with its own clock, so that writes do not shorten the
//! memory that finds loops. A loop longer than `main` would still empty it: each page is wanted again, enters, and is
//! gone before its next turn. So `main` watches whether pages that enter are referenced by the time the hand
//! first comes to them, and the fewer are, the fewer of those wanted again are let in: in a loop one
//! in 32, and `main` keeps a part of the loop that hits in each lap. Sources: Yang et al., "FIFO queues are all you need for cache eviction",
//! SOSP 2023 (small, main, ghost); Johnson and Shasha, VLDB 1994 (correlated references); Megiddo
//! and Modha, FAST 2003 (learning from ghosts).

use super::ghost::{Ghost, SOURCES};
use super::lists::{Lists, Queue};
use super::{Batch, Entry, FrameNo, PageKey, Policy, Touched};

const SMALL: Queue = 1;
const MAIN: Queue = 2;
const WRITTEN: Queue = 3;
const NAMED: Queue = 4;

/// The queue that a source of the memory stands for.
fn left(source: usize) -> Queue {
    SMALL + source as Queue
}

/// What a frame's mark holds: frequency, passage, first lap in `main`, home while it is named.
const FREQUENCY: u8 = 0b0000_0011;
const AGAIN: u8 = 0b0000_0100;
/// The hand of `main` has come to it.
const PROVEN: u8 = 0b0000_1000;
const HOME_SHIFT: u8 = 4;

/// Second chances per wanted frame in one call; beyond them references are not heeded. They bound the time
/// the queue lock is held where everything is hot.
const PATIENCE: usize = 64;

/// One, for fractions.
const ONE: u32 = 1 << 16;
/// Least share of pages wanted again that `main` lets in.
const ADMIT_MIN: u32 = ONE / 32;
/// Weight of one page in the mean of what pages in `main` are worth.
const WORTH_WEIGHT: u32 = 64;
/// Room that written pages gain when one of them left too early. They lose one for a page of `main`:
/// a file that is read back comes in bursts, the rest of the load all the time.
const GAIN: usize = 2;

/// Shares of the cache, in percent of its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Pages on their first passages.
    pub small: u8,
    /// Least room for written pages.
    pub written_min: u8,
    /// Most room for written pages.
    pub written_max: u8,
    /// Pages that left `small` and are remembered.
    pub left_small: u16,
    /// Pages that left `main` and are remembered.
    pub left_main: u16,
    /// Pages that left `written` and are remembered.
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

    /// Pages of `SMALL`, `MAIN` and `WRITTEN` that are remembered.
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
    /// Room for written pages, between the shares.
    written_room: usize,
    /// Share of pages that were referenced in their first lap of `main`.
    worth: u32,
    /// What is left over from admissions, below `ONE`.
    credit: u32,
}

impl Ufc {
    /// For a cache of `frames` pages in frames numbered below `limit`.
    pub fn new(limit: u32, frames: usize) -> Ufc {
        Ufc::with_shares(limit, frames, Shares::default())
    }

    /// The same with other shares.
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

    /// Frames that written pages may hold before they are first to leave.
    pub fn written_room(&self) -> usize {
        self.written_room
    }

    /// The queue for a page that enters, by what is remembered of it.
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

    /// Whether this page that is wanted again may enter `main`: the square of what pages there are worth is let in.
    fn admits(&mut self) -> bool {
        let share = (u64::from(self.worth).pow(2) / u64::from(ONE)) as u32;
        self.credit += share.max(ADMIT_MIN);
        let admitted = self.credit >= ONE;
        self.credit %= ONE;
        admitted
    }

    /// The hand comes to a page of `main`.
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

    /// The queue that has to give next.
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

    /// Where a frame that was referenced goes instead of leaving.
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
        // Busy frames met in each queue since one of its frames was of use.
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
                // It is met again where it goes, even if that queue had nothing to give before.
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
