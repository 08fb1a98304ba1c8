//! State of an inode that exists only in memory: open handles, promised blocks, and writes in
//! flight.

use crate::format::record::{BLOCK_BYTES, Inode};
use crate::metadata::account_state::Owed;
use std::collections::BTreeMap;
use std::ops::Range;

/// In-memory state of an inode. See the module.
pub(crate) struct InodeState {
    /// Inode as readers see it. Its record may be older if `dirty` is set, and in `size`.
    pub inode: Inode,
    /// Whether times, versions or the size on disk are newer than the record.
    pub dirty: bool,
    /// Whether the inode is in the list of those that the next commit writes.
    pub listed: bool,
    /// Whether the inode is in the list of those that an entry follows each commit for; see
    /// [`crate::metadata::unsaved`].
    pub noted_ahead: bool,
    /// Number of open handles.
    pub opens: u64,
    /// Whether the inode was created without a name and may still get its first.
    pub unnamed: bool,
    /// Dirty blocks of the cache that each hold a promise of space.
    pub promised: Blocks,
    /// Blocks that were promised space although the file has them already: they will be written to
    /// a new place. They do not count against the quota.
    pub replacing: Blocks,
    /// Promised blocks that count against quotas: those that do not replace others, also of writes in
    /// flight.
    pub owed: Owed,
    /// Dirty blocks of the cache that will be written in place.
    pub in_place: Blocks,
    /// Writes in flight by number, each with the blocks that are still wanted when it ends.
    pub writes: BTreeMap<u64, Write>,
    /// Number of writes that began while this state was in memory.
    pub begun: u64,
    /// How much to try to compress its content.
    pub effort: Effort,
}

/// Memory of a file about how well it compresses. After chunks that did not, a growing number is
/// stored without an attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Chunks in a row that did not compress.
    failed: u32,
    /// Chunks to be stored without an attempt.
    skip: u32,
}

impl Effort {
    /// Chunks that are skipped at most between two attempts.
    pub const SKIP_MAX: u32 = 64;

    /// Decides whether to try to compress the next chunk.
    pub fn tries(&mut self) -> bool {
        let tries = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        tries
    }

    /// Records the result of an attempt.
    pub fn note(&mut self, saved: bool) {
        if saved {
            self.failed = 0;
        } else {
            self.failed = (self.failed + 1).min(31);
            self.skip = (1 << self.failed).min(Effort::SKIP_MAX);
        }
    }
}

/// Write in flight.
#[derive(Debug, Default)]
pub(crate) struct Write {
    /// Blocks that still belong to the file.
    pub wanted: Blocks,
    /// Blocks with the number of their valid bytes, because the file was truncated there during the
    /// write.
    pub tails: Vec<(u64, u16)>,
}

impl Write {
    /// Limits a block to its first `bytes` bytes.
    pub fn cover_tail(&mut self, block: u64, bytes: u16) {
        if self.wanted.overlaps(block..block + 1) {
            self.tails.push((block, bytes));
        }
    }
}

impl InodeState {
    pub fn new(inode: Inode) -> InodeState {
        InodeState {
            inode,
            dirty: false,
            listed: false,
            noted_ahead: false,
            opens: 0,
            unnamed: false,
            promised: Blocks::default(),
            replacing: Blocks::default(),
            owed: Owed::default(),
            in_place: Blocks::default(),
            writes: BTreeMap::new(),
            effort: Effort::default(),
            begun: 0,
        }
    }

    /// Checks whether the record is complete and the inode is not in use.
    pub fn is_idle(&self) -> bool {
        self.is_unused() && !self.dirty && !self.unnamed && self.inode.size == self.inode.disk_size
    }

    /// Checks whether the inode is not open and has no pages to be written.
    pub fn is_unused(&self) -> bool {
        self.opens == 0
            && self.promised.is_empty()
            && self.in_place.is_empty()
            && self.writes.is_empty()
    }

    /// Checks whether dirty pages of these blocks already have space.
    pub fn is_prepared(&self, blocks: Range<u64>) -> bool {
        let mut missing = self.promised.missing(blocks);
        missing.all(|run| self.in_place.missing(run).next().is_none())
    }

    /// Sets the size on disk to the size, if no page beyond the size on disk still has to be
    /// written.
    pub fn settle_size(&mut self) {
        if self.inode.disk_size != self.inode.size && !self.waits_behind_disk_size() {
            self.inode.disk_size = self.inode.size;
            self.dirty = true;
        }
    }

    /// Ends the interest in blocks that were to replace others: all of a range without a promise.
    /// Returns their number.
    pub fn end_replacing(&mut self, blocks: Range<u64>) -> u64 {
        let ended = self.promised.missing(blocks);
        ended.map(|run| self.replacing.remove(run)).sum()
    }

    fn waits_behind_disk_size(&self) -> bool {
        let from = self.inode.disk_size / BLOCK_BYTES;
        self.waiting().any(|blocks| blocks.overlaps(from..u64::MAX))
    }

    /// Iterates over the sets of blocks of which the device does not have the content that readers
    /// see, or not yet.
    pub fn waiting(&self) -> impl Iterator<Item = &Blocks> {
        let writes = self.writes.values().map(|write| &write.wanted);
        [&self.promised, &self.in_place].into_iter().chain(writes)
    }

    /// Drops the interest in writes to these blocks. Returns the number of promises that end.
    pub fn remove_wanted(&mut self, blocks: Range<u64>) -> u64 {
        for write in self.writes.values_mut() {
            write.wanted.remove(blocks.clone());
        }
        self.in_place.remove(blocks.clone());
        let promised = self.promised.remove(blocks);
        self.settle_size();
        promised
    }
}

/// Set of blocks of a file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// The only run, without memory of its own, as most sets need no more; empty if there is none, or
    /// several.
    only: Range<u64>,
    /// If there are several: all runs, start to end; neither adjacent nor overlapping.
    several: BTreeMap<u64, u64>,
}

impl Blocks {
    /// Creates a set of the blocks of a range.
    pub fn of(blocks: Range<u64>) -> Blocks {
        let mut set = Blocks::default();
        set.insert(blocks);
        set
    }

    pub fn is_empty(&self) -> bool {
        self.only.is_empty() && self.several.is_empty()
    }

    /// Counts the blocks.
    pub fn count(&self) -> u64 {
        self.iter().map(|run| run.end - run.start).sum()
    }

    /// Iterates over all runs in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        let several = self.several.iter().map(|(start, end)| *start..*end);
        let only = (!self.only.is_empty()).then(|| self.only.clone());
        only.into_iter().chain(several)
    }

    /// Iterates over the runs within a range, clipped to it, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let before = self.several.range(..range.start).next_back();
        let inside = self.several.range(range.clone());
        let several = before.into_iter().chain(inside);
        let several = several.map(|(start, end)| *start..*end);
        let all = std::iter::once(self.only.clone()).chain(several);
        let cut = all.map(move |run| run.start.max(range.start)..run.end.min(range.end));
        cut.filter(|run| !run.is_empty())
    }

    /// Reports whether the set contains a block of a range.
    pub fn overlaps(&self, range: Range<u64>) -> bool {
        self.within(range).next().is_some()
    }

    /// Iterates over the runs of a range that are not in the set, in order.
    pub fn missing(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = range.start;
        let end = std::iter::once(range.end..range.end);
        self.within(range).chain(end).filter_map(move |run| {
            let missing = at..run.start;
            at = run.end;
            (!missing.is_empty()).then_some(missing)
        })
    }

    /// Adds a range. Returns the number of blocks that are new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        if self.several.is_empty() {
            let run = self.only.clone();
            if run.is_empty() {
                self.only = range.clone();
                return range.end - range.start;
            }
            if range.start <= run.end && run.start <= range.end {
                self.only = run.start.min(range.start)..run.end.max(range.end);
                return (self.only.end - self.only.start) - (run.end - run.start);
            }
            self.several.insert(run.start, run.end);
            self.only = 0..0;
        }
        let new = self.missing(range.clone());
        let new: u64 = new.map(|run| run.end - run.start).sum();
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.several.range(..=start).next_back()
            && e >= start
        {
            (start, end) = (s, end.max(e));
        }
        while let Some((&s, &e)) = self.several.range(start..=end).next() {
            self.several.remove(&s);
            end = end.max(e);
        }
        self.several.insert(start, end);
        self.note_only();
        new
    }

    /// Moves the only run of several that is left to its place.
    fn note_only(&mut self) {
        if self.several.len() == 1
            && let Some((start, end)) = self.several.pop_first()
        {
            self.only = start..end;
        }
    }

    /// Adds all blocks of another set.
    pub fn extend(&mut self, other: &Blocks) {
        for run in other.iter() {
            self.insert(run);
        }
    }

    /// Removes a range. Returns the number of blocks that were in the set.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let there = self.within(range.clone());
        let there: u64 = there.map(|run| run.end - run.start).sum();
        if there == 0 {
            return 0;
        }
        if self.several.is_empty() {
            let run = std::mem::take(&mut self.only);
            self.insert(run.start..range.start.max(run.start));
            self.insert(range.end.min(run.end)..run.end);
            return there;
        }
        if let Some((&s, &e)) = self.several.range(..range.start).next_back()
            && e > range.start
        {
            self.several.insert(s, range.start);
            if e > range.end {
                self.several.insert(range.end, e);
            }
        }
        while let Some((&s, &e)) = self.several.range(range.clone()).next() {
            self.several.remove(&s);
            if e > range.end {
                self.several.insert(range.end, e);
            }
        }
        self.note_only();
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    #[test]
    fn a_file_that_does_not_compress_is_tried_less_and_less() {
        let mut effort = Effort::default();
        let mut attempts = Vec::new();
        for n in 0..1000 {
            if effort.tries() {
                attempts.push(n);
                effort.note(false);
            }
        }
        assert_eq!(attempts[..4], [0, 3, 8, 17]);
        assert!(attempts.len() < 22, "{attempts:?}");
        let next = (0..=Effort::SKIP_MAX).position(|_| effort.tries());
        assert!(next.is_some());
        effort.note(true);
        assert!(effort.tries() && effort.tries());
    }

    #[test]
    fn a_set_of_blocks_agrees_with_a_list_of_flags() {
        let mut random = Random::new(7);
        let mut set = Blocks::default();
        let mut flags = [false; 200];
        for _ in 0..5000 {
            let start = random.below(200);
            let range = start..start + random.below(200 - start + 1);
            let flags_in = &mut flags[range.start as usize..range.end as usize];
            let there = flags_in.iter().filter(|f| **f).count() as u64;
            if random.below(2) == 0 {
                flags_in.fill(true);
                assert_eq!(set.insert(range.clone()), range.end - range.start - there);
            } else {
                flags_in.fill(false);
                assert_eq!(set.remove(range), there);
            }
            assert!(
                set.iter()
                    .flatten()
                    .eq((0..200).filter(|b| flags[*b as usize]))
            );
            assert_eq!(set.count(), flags.iter().filter(|f| **f).count() as u64);
            let ends: Vec<_> = set.iter().collect();
            assert!(ends.windows(2).all(|w| w[0].end < w[1].start));
            let missing = set.missing(20..150);
            assert!(
                missing
                    .flatten()
                    .eq((20..150).filter(|b| !flags[*b as usize]))
            );
        }
    }
}
