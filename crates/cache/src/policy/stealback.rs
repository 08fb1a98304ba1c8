//! Stealback: a file that is streamed loses its own pages before it displaces those of others.
//!
//! As documented for HP-UX (fcache_seqlimit_system(5), fcache_seqlimit_file(5)): two limits in
//! percent of the file cache, for all pages of sequential accesses together and for those of one
//! file. Both must be exceeded before a page is stolen, and it is stolen from the file that exceeds
//! its limit. 100 and 100 (the default) turn it off. It precedes another policy, which sees a
//! stolen page as a victim.
//!
//! `Stealing::AsDocumented` also takes pages that a stream has written, and so discards a file that
//! is written and then read back; `Stealing::BehindCursor` takes only clean pages that were read,
//! and that no other reader has referenced.

use super::lists::{Lists, NONE, Queue};
use super::{Batch, Entry, FrameNo, PageKey, Policy, Touched};
use std::collections::HashMap;

/// Number of files whose stream pages are counted at a time. At most 100 files can exceed a limit
/// of one percent; pages of files beyond this number are not stolen.
const FILES: Queue = 1024;

/// Pages examined per wanted page; pages that may not be stolen move to the young end.
const LOOKS: usize = 4;

/// The two limits, in percent of the file cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqLimits {
    /// `fcache_seqlimit_system`
    pub system: u8,
    /// `fcache_seqlimit_file`
    pub file: u8,
}

impl SeqLimits {
    /// Limits with which no page is stolen.
    pub const OFF: SeqLimits = SeqLimits {
        system: 100,
        file: 100,
    };
}

/// Which pages of a stream may be stolen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stealing {
    /// All of them, oldest first.
    AsDocumented,
    /// Clean ones that were read, used and passed by the stream.
    BehindCursor,
}

/// Stealback on top of another policy.
pub struct Stealback {
    inner: Box<dyn Policy>,
    limits: SeqLimits,
    stealing: Stealing,
    frames: usize,
    /// List n holds the stream pages of the file that has slot n.
    pub(super) streams: Lists,
    slot_of: HashMap<u64, Queue>,
    vnode_of: Vec<u64>,
    free: Vec<Queue>,
    /// The file whose stream grew last.
    growing: Queue,
    /// Number of clean frames stolen for the last answer.
    stolen: usize,
}

impl Stealback {
    /// Creates stealback on top of `inner`, for a cache of `frames` pages with frame numbers below
    /// `limit`.
    pub fn new(
        inner: Box<dyn Policy>,
        limit: u32,
        frames: usize,
        limits: SeqLimits,
        stealing: Stealing,
    ) -> Stealback {
        Stealback {
            inner,
            limits,
            stealing,
            frames,
            streams: Lists::new(FILES, limit),
            slot_of: HashMap::with_capacity(FILES.into()),
            vnode_of: vec![0; usize::from(FILES) + 1],
            free: (1..=FILES).rev().collect(),
            growing: NONE,
            stolen: 0,
        }
    }

    /// Replaces the limits, effective at once.
    pub fn set_limits(&mut self, limits: SeqLimits) {
        self.limits = limits;
    }

    /// Returns the number of stream pages in the cache, as counted against
    /// `fcache_seqlimit_system`.
    pub fn stream_pages(&self) -> usize {
        self.streams.total()
    }

    /// Returns how many frames at the start of the last [`Policy::victims`] output were stolen.
    pub fn stolen(&self) -> usize {
        self.stolen
    }

    fn counts(&self, entry: Entry) -> bool {
        match entry {
            Entry::Stream | Entry::Prefetched => true,
            Entry::WrittenStream => self.stealing == Stealing::AsDocumented,
            Entry::Read | Entry::Written | Entry::Metadata => false,
        }
    }

    fn slot(&mut self, vnode: u64) -> Queue {
        if self.vnode_of[usize::from(self.growing)] == vnode && self.growing != NONE {
            return self.growing;
        }
        if let Some(slot) = self.slot_of.get(&vnode) {
            return *slot;
        }
        let Some(slot) = self.free.pop() else {
            return NONE;
        };
        self.slot_of.insert(vnode, slot);
        self.vnode_of[usize::from(slot)] = vnode;
        slot
    }

    /// Stops counting the frame as a stream page.
    fn forget(&mut self, frame: FrameNo) {
        if self.streams.queue_of(frame) == NONE {
            return;
        }
        let slot = self.streams.remove(frame);
        if self.streams.len(slot) == 0 {
            self.slot_of.remove(&self.vnode_of[usize::from(slot)]);
            self.free.push(slot);
            if self.growing == slot {
                self.growing = NONE;
            }
        }
    }

    /// Checks whether both limits are exceeded, the file's by the file whose stream grew last.
    fn exceeded(&self) -> bool {
        let over = |pages: usize, percent: u8| pages * 100 > self.frames * usize::from(percent);
        self.growing != NONE
            && over(self.streams.total(), self.limits.system)
            && over(self.streams.len(self.growing), self.limits.file)
    }

    fn may_steal(&self, state: Touched) -> bool {
        !state.busy
            && match self.stealing {
                Stealing::AsDocumented => true,
                Stealing::BehindCursor => !state.dirty && !state.ahead,
            }
    }

    /// Steals from the growing file until it is within its limit or `batch` is full.
    fn steal(&mut self, touched: &mut dyn FnMut(FrameNo) -> Touched, batch: &mut Batch<'_>) {
        let file = self.growing;
        for _ in 0..self.streams.len(file).min(batch.want * LOOKS) {
            if batch.full() || !self.exceeded() {
                return;
            }
            let frame = self
                .streams
                .back(file)
                .expect("a file over its limit has pages");
            let state = touched(frame);
            if self.stealing == Stealing::BehindCursor && state.frequency > 0 {
                // Other readers use it: it is no longer a page of the stream alone.
                self.forget(frame);
                self.inner.hit(frame);
            } else if !self.may_steal(state) {
                (0..state.frequency).for_each(|_| self.inner.hit(frame));
                self.streams.move_front(file, frame);
            } else if batch.takes(state.dirty) {
                self.forget(frame);
                self.inner.claim(frame);
                batch.push(frame, state.dirty);
            } else {
                return;
            }
        }
    }
}

impl Policy for Stealback {
    fn inserted(&mut self, frame: FrameNo, key: PageKey, entry: Entry) {
        self.inner.inserted(frame, key, entry);
        if !self.counts(entry) {
            return;
        }
        let slot = self.slot(key.vnode);
        if slot != NONE {
            self.streams.push_front(slot, frame);
            self.growing = slot;
        }
    }

    fn removed(&mut self, frame: FrameNo) {
        self.forget(frame);
        self.inner.removed(frame);
    }

    fn moved(&mut self, from: FrameNo, to: FrameNo) {
        if self.streams.queue_of(from) != NONE {
            self.streams.replace(from, to);
        }
        self.inner.moved(from, to);
    }

    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    ) {
        let mut batch = Batch::new(want, out);
        if self.limits != SeqLimits::OFF && self.exceeded() {
            self.steal(touched, &mut batch);
        }
        let (clean_end, stolen, dirty) = (batch.clean_end, batch.clean, batch.dirty);
        self.stolen = stolen;
        let first = out.len();
        self.inner.victims(want - stolen, touched, out);
        for frame in &out[first..] {
            self.forget(*frame);
        }
        // Stolen dirty frames move behind all clean ones.
        out[clean_end..].rotate_left(dirty);
    }

    fn kept(&mut self, frame: FrameNo) {
        self.inner.kept(frame);
    }

    fn claim(&mut self, frame: FrameNo) {
        self.forget(frame);
        self.inner.claim(frame);
    }

    fn hit(&mut self, frame: FrameNo) {
        self.inner.hit(frame);
    }

    fn wants_hits(&self) -> bool {
        self.inner.wants_hits()
    }

    fn resize(&mut self, frames: usize) {
        self.frames = frames;
        self.inner.resize(frames);
    }

    fn resident(&self) -> usize {
        self.inner.resident()
    }
}
