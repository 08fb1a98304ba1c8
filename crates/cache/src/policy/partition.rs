//! Separates metadata from data, so that neither can displace all of the other.
//!
//! Metadata is evicted last while it takes no more than its share of the cache, and first when it
//! takes more. So a scan of data preserves directories and allocation maps, and a walk over all of
//! the metadata preserves the data. Frames unused by one are available to the other. Data is
//! ordered by stealback on top of another policy, metadata by CLOCK: it has no streams, and
//! metadata that is used once is usually used again.

use super::{Clock, Entry, FrameNo, PageKey, Policy, SeqLimits, Stealback, Touched};
use std::ops::Range;

/// Two policies on one set of frames.
pub struct Partition {
    data: Stealback,
    metadata: Clock,
    /// Bitmap of the frames that hold metadata.
    is_metadata: Vec<u64>,
    /// Number of metadata frames that are not evicted for data.
    share: usize,
    /// Positions of the stolen clean frames in the last answer.
    stolen: Range<usize>,
}

impl Partition {
    /// Creates a partition with policy `data` for data, for frame numbers below `limit`.
    pub fn new(data: Stealback, limit: u32) -> Partition {
        Partition {
            data,
            metadata: Clock::new(limit),
            is_metadata: vec![0; (limit as usize).div_ceil(64)],
            share: 0,
            stolen: 0..0,
        }
    }

    /// Sets the number of metadata frames that are not evicted for data.
    pub fn set_share(&mut self, frames: usize) {
        self.share = frames;
    }

    /// Sets the limits of stealback.
    pub fn set_limits(&mut self, limits: SeqLimits) {
        self.data.set_limits(limits);
    }

    /// Returns the number of frames that hold metadata.
    pub fn metadata(&self) -> usize {
        self.metadata.resident()
    }

    /// Returns the positions, in the output of the last [`Policy::victims`], of the clean frames
    /// that a file's stream stole from the file itself.
    pub fn stolen(&self) -> Range<usize> {
        self.stolen.clone()
    }

    fn place(frame: FrameNo) -> (usize, u64) {
        (frame.0 as usize / 64, 1 << (frame.0 % 64))
    }

    fn holds_metadata(&self, frame: FrameNo) -> bool {
        let (word, bit) = Partition::place(frame);
        self.is_metadata[word] & bit != 0
    }

    fn set_metadata(&mut self, frame: FrameNo, metadata: bool) {
        let (word, bit) = Partition::place(frame);
        if metadata {
            self.is_metadata[word] |= bit;
        } else {
            self.is_metadata[word] &= !bit;
        }
    }

    fn of(&mut self, frame: FrameNo) -> &mut dyn Policy {
        if self.holds_metadata(frame) {
            &mut self.metadata
        } else {
            &mut self.data
        }
    }
}

impl Policy for Partition {
    fn inserted(&mut self, frame: FrameNo, key: PageKey, entry: Entry) {
        self.set_metadata(frame, entry == Entry::Metadata);
        self.of(frame).inserted(frame, key, entry);
    }

    fn removed(&mut self, frame: FrameNo) {
        self.of(frame).removed(frame);
    }

    fn moved(&mut self, from: FrameNo, to: FrameNo) {
        self.of(from).moved(from, to);
        self.set_metadata(to, self.holds_metadata(from));
    }

    fn victims(
        &mut self,
        want: usize,
        touched: &mut dyn FnMut(FrameNo) -> Touched,
        out: &mut Vec<FrameNo>,
    ) {
        let had = out.len();
        let over = self.metadata.resident().saturating_sub(self.share);
        // Dirty metadata frees no frame until it is written back, so data makes up for it.
        let clean = self.metadata.name_victims(want.min(over), touched, out);
        let first = out.len();
        if clean < want {
            self.data.victims(want - clean, touched, out);
        }
        self.stolen = first..first + self.data.stolen();
        if out.len() == had {
            self.metadata.victims(want, touched, out);
        }
    }

    fn kept(&mut self, frame: FrameNo) {
        self.of(frame).kept(frame);
    }

    fn claim(&mut self, frame: FrameNo) {
        self.of(frame).claim(frame);
    }

    fn hit(&mut self, frame: FrameNo) {
        self.of(frame).hit(frame);
    }

    fn wants_hits(&self) -> bool {
        self.data.wants_hits()
    }

    fn resize(&mut self, frames: usize) {
        self.data.resize(frames);
        self.metadata.resize(frames);
    }

    fn resident(&self) -> usize {
        self.data.resident() + self.metadata.resident()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Lru, Stealing};

    fn partition(frames: u32, share: usize) -> Partition {
        let lru = Box::new(Lru::new(frames));
        let (off, how) = (SeqLimits::OFF, Stealing::BehindCursor);
        let data = Stealback::new(lru, frames, frames as usize, off, how);
        let mut partition = Partition::new(data, frames);
        partition.set_share(share);
        partition
    }

    fn insert(policy: &mut Partition, frames: Range<u32>, entry: Entry) {
        for frame in frames {
            let page = u64::from(frame);
            policy.inserted(FrameNo(frame), PageKey { vnode: 1, page }, entry);
        }
    }

    fn evict(policy: &mut Partition, want: usize) -> Vec<u32> {
        let mut out = Vec::new();
        policy.victims(want, &mut |_| Touched::default(), &mut out);
        out.iter().for_each(|frame| policy.removed(*frame));
        out.iter().map(|frame| frame.0).collect()
    }

    #[test]
    fn metadata_goes_first_beyond_its_share_and_last_within() {
        let mut policy = partition(16, 3);
        insert(&mut policy, 0..5, Entry::Metadata);
        insert(&mut policy, 5..10, Entry::Read);
        assert_eq!(evict(&mut policy, 4), [0, 1, 5, 6]);
        assert_eq!(policy.metadata(), 3);
        assert_eq!(evict(&mut policy, 4), [7, 8, 9]);
        assert_eq!(evict(&mut policy, 2), [2, 3], "somebody has to go");
        policy.moved(FrameNo(4), FrameNo(11));
        insert(&mut policy, 4..5, Entry::Read);
        assert_eq!((policy.metadata(), policy.resident()), (1, 2));
        assert_eq!(evict(&mut policy, 1), [4]);
    }

    #[test]
    fn dirty_metadata_beyond_its_share_does_not_keep_clean_data() {
        let mut policy = partition(16, 0);
        insert(&mut policy, 0..5, Entry::Metadata);
        insert(&mut policy, 5..10, Entry::Read);
        let dirty = |frame: FrameNo| Touched {
            dirty: frame.0 < 5,
            ..Touched::default()
        };
        let mut out = Vec::new();
        policy.victims(2, &mut { dirty }, &mut out);
        let clean: Vec<u32> = out.iter().map(|f| f.0).filter(|f| *f >= 5).collect();
        assert_eq!(clean, [5, 6]);
    }

    #[test]
    fn what_a_file_stole_from_itself_is_told_apart() {
        let mut policy = partition(10, 1);
        policy.set_limits(SeqLimits { system: 0, file: 0 });
        insert(&mut policy, 0..2, Entry::Metadata);
        insert(&mut policy, 2..4, Entry::Read);
        insert(&mut policy, 4..6, Entry::Stream);
        let mut out = Vec::new();
        policy.victims(4, &mut |_| Touched::default(), &mut out);
        let stolen: Vec<u32> = out[policy.stolen()].iter().map(|f| f.0).collect();
        assert_eq!((out[0].0, stolen, out[3].0), (0, vec![4, 5], 2));
    }
}
