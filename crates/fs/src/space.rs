//! The free blocks of the device, and the blocks promised to files.
//!
//! ```text
//!   free ──allocate──► in use ──free──► resting ──durable, and no request in flight──► free
//! ```
//!
//! **Invariant:** a block that was in use is not allocated again before the change that freed it is
//! durable and every request that may still access it has ended. So neither a crash nor a slow
//! request exposes bytes of one file in another. The other invariant: the number of free blocks,
//! less those promised, is never negative; so write-behind finds room for everything it was
//! promised.
//!
//! All this is in memory; `metadata/database.rs` keeps the bitmap on disk.

mod set_use;

use crate::error::{Error, Kind, Result};
use crate::format::record::Run;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Free runs that a search examines before it takes the best fit of all.
const SEARCH_RUNS: usize = 16;

/// Most blocks that [`Space::take_unused`] takes at a time: 64 MiB.
const UNUSED_BLOCKS_MAX: u64 = 16_384;

/// Extents of the tree per block, including the room that a commit needs to change them: some
/// ninety bytes each in pages that are half full, twice.
const EXTENTS_PER_BLOCK: u64 = 16;
/// Promised blocks that one block of the reserve can hold the extents of; that takes half of it.
const PROMISES_PER_RESERVE: u64 = EXTENTS_PER_BLOCK / 2;

/// Number of a change set: the changes that become durable together. Sets are closed in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct ChangeSet(u64);

/// Number of completed writes of file data, which stands for the first writes of that number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Writes(u64);

/// Allocator of the device's blocks, shared by all threads.
pub(crate) struct Space {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Free runs by start, with their length; never adjacent.
    by_start: BTreeMap<u64, u64>,
    /// The same runs as (length, start).
    by_blocks: BTreeSet<(u64, u64)>,
    free: u64,
    promised: u64,
    /// Blocks set aside for the metadata.
    reserve: u64,
    /// End of the run that the last search found.
    cursor: u64,
    /// Blocks freed but not yet reusable, by the number of the change set that freed them.
    resting: BTreeMap<ChangeSet, Vec<Run>>,
    resting_blocks: u64,
    /// Number of the open change set.
    current: ChangeSet,
    /// Number of the last durable change set.
    durable: ChangeSet,
    /// Requests in flight, by the change set that was open when they began.
    flying: BTreeMap<ChangeSet, u64>,
    /// Writes of file data that have completed, and how many of them a flush has covered.
    written: Writes,
    flushed: Writes,
    loaded: bool,
    /// Blocks of the metadata that its items do not need.
    slack: u64,
    /// Number of runs that the metadata may still allocate.
    runs_left: usize,
    /// Block from which on none may be allocated, because the file system is to end there.
    end: u64,
    /// Free blocks from there on.
    beyond: Vec<Run>,
}

/// Free space of the device in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    /// Blocks not in use, including resting ones.
    pub free: u64,
    /// Blocks that a single file could still be promised.
    pub available: u64,
    /// Length of the largest free run.
    pub largest_run: u64,
    /// Number of free runs.
    pub runs: u64,
}

impl Space {
    /// Creates an allocator without free blocks.
    pub fn new(reserve: u64) -> Space {
        let inner = Inner {
            reserve,
            current: ChangeSet(1),
            runs_left: usize::MAX,
            end: u64::MAX,
            ..Inner::default()
        };
        Space {
            inner: Mutex::new(inner),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic under this lock")
    }

    /// Adds free blocks that no change set freed, when the allocator is loaded.
    pub fn add(&self, run: Run) {
        self.lock().release(run);
    }

    /// Adds the blocks by which the file system has grown, and sets the number of blocks set aside for
    /// its metadata.
    pub fn extend(&self, run: Run, reserve: u64) {
        let mut inner = self.lock();
        inner.end = u64::MAX;
        inner.release(run);
        inner.reserve = reserve;
    }

    /// Allocates no block from `end` on until [`Space::end_limit`].
    pub fn limit(&self, end: u64) {
        let mut inner = self.lock();
        inner.end = end;
        let within = inner.by_start.range(..end).next_back();
        let cut = within.filter(|(start, blocks)| *start + *blocks > end);
        let first = cut.map_or(end, |(start, _)| *start);
        let all: Vec<Run> = inner
            .by_start
            .range(first..)
            .map(|(&start, &blocks)| Run { start, blocks })
            .collect();
        for run in all {
            inner.remove_run(run.start, run.blocks);
            inner.free -= run.blocks;
            inner.release(run);
        }
    }

    /// Ends the limit: if the file system now ends there, its metadata has a reserve of `reserve`
    /// blocks; otherwise, the blocks behind are free again.
    pub fn end_limit(&self, reserve: Option<u64>) {
        let mut inner = self.lock();
        let beyond = std::mem::take(&mut inner.beyond);
        match reserve {
            Some(reserve) => inner.reserve = reserve,
            None => {
                inner.end = u64::MAX;
                beyond.into_iter().for_each(|run| inner.release(run));
            }
        }
    }

    /// Adds the blocks from `start` to `end`, which may be none.
    ///
    /// # Errors
    /// Some of the blocks are already free.
    pub fn add_between(&self, start: u64, end: u64) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let mut inner = self.lock();
        let before = inner.by_start.range(..end).next_back();
        if before.is_some_and(|(first, blocks)| first + blocks > start) {
            return Err(Error::corrupt(format!(
                "blocks {start}..{end}: already free"
            )));
        }
        let blocks = end - start;
        inner.release(Run { start, blocks });
        Ok(())
    }

    /// Makes exactly these runs free. There must be no promises and no requests in flight.
    pub fn replace(&self, free: impl Iterator<Item = Run>) {
        let mut inner = self.lock();
        inner.by_start.clear();
        inner.by_blocks.clear();
        inner.resting.clear();
        (inner.free, inner.resting_blocks) = (0, 0);
        for run in free {
            inner.release(run);
        }
    }

    /// Removes exactly these blocks from the free ones.
    ///
    /// # Errors
    /// Not all of the blocks are free.
    pub fn remove(&self, run: Run) -> Result<()> {
        let taken = self.lock().remove(run);
        taken.ok_or_else(|| {
            let text = format!("blocks {}..{}: already in use", run.start, run.end());
            Error::corrupt(text)
        })
    }

    /// Allows the metadata to allocate from now on.
    pub fn set_loaded(&self) {
        self.lock().loaded = true;
    }

    /// Reports whether [`Space::set_loaded`] was called.
    pub fn is_loaded(&self) -> bool {
        self.lock().loaded
    }

    /// Returns how full the device is.
    pub fn usage(&self) -> Free {
        let inner = self.lock();
        Free {
            free: inner.free + inner.resting_blocks,
            // Resting blocks become usable as soon as a request needs more than the others.
            available: if inner.has_room(inner.reserve) || inner.resting_blocks > 0 {
                inner.available(inner.free + inner.resting_blocks)
            } else {
                0
            },
            largest_run: inner.by_blocks.last().map_or(0, |(blocks, _)| *blocks),
            runs: inner.by_blocks.len() as u64,
        }
    }

    /// Promises `blocks` to a file, if there are enough. [`Space::allocate`] or
    /// [`Space::release_reserved`] ends the promise.
    pub fn reserve(&self, blocks: u64) -> bool {
        let mut inner = self.lock();
        let kept = inner.available(inner.free) >= blocks && inner.has_room(inner.reserve);
        if kept {
            inner.promised += blocks;
        }
        kept
    }

    /// Makes a promise that [`Space::reserve`] refused, from the metadata's reserve: for the few
    /// blocks that write-behind needs when a file became shared after it had been written to.
    pub fn reserve_from_metadata(&self, blocks: u64) -> bool {
        let mut inner = self.lock();
        let kept = inner.free >= inner.promised + blocks;
        if kept {
            inner.promised += blocks;
        }
        kept
    }

    /// Releases promised blocks.
    pub fn release_reserved(&self, blocks: u64) {
        let mut inner = self.lock();
        debug_assert!(inner.promised >= blocks);
        inner.promised = inner.promised.saturating_sub(blocks);
    }

    /// Reports whether a request is in flight to the device.
    pub fn is_busy(&self) -> bool {
        !self.lock().flying.is_empty()
    }

    /// Reports whether there are freed blocks that cannot be reused yet.
    pub fn has_quarantined(&self) -> bool {
        self.lock().resting_blocks > 0
    }

    /// Checks whether there is room for more metadata, so that new objects may be created.
    pub fn has_room(&self) -> bool {
        self.has_room_for(0)
    }

    /// Checks whether the metadata may grow by a number of blocks, and has its reserve after that.
    pub fn has_room_for(&self, blocks: u64) -> bool {
        let inner = self.lock();
        inner.has_room(inner.reserve.saturating_add(blocks))
    }

    /// Checks whether the metadata of existing objects may grow, which half of the reserve is for.
    /// The other half is for removing objects.
    pub fn has_last_room(&self) -> bool {
        let inner = self.lock();
        inner.has_room(inner.reserve / 2)
    }

    /// Counts the blocks that the metadata could use, up to `enough`: those it could allocate, and those
    /// it has but does not need.
    pub fn metadata_room(&self, enough: u64) -> u64 {
        let inner = self.lock();
        inner.slack.saturating_add(inner.metadata_room(enough))
    }

    /// Counts the blocks that the metadata could allocate in addition to those it has, up to `enough`.
    pub fn metadata_left(&self, enough: u64) -> u64 {
        self.lock().metadata_room(enough)
    }

    /// Sets how many blocks of the metadata its items do not need, and how many more runs it may
    /// allocate.
    pub fn set_slack(&self, blocks: u64, runs_left: usize) {
        let mut inner = self.lock();
        (inner.slack, inner.runs_left) = (blocks, runs_left);
    }

    /// Allocates a run of up to `want` promised blocks, at `goal` if that is free.
    pub fn allocate(&self, goal: Option<u64>, want: u64) -> Option<Run> {
        let mut inner = self.lock();
        let want = want.min(inner.promised);
        let run = if inner.is_crumbled() {
            inner.crumb(want)?
        } else {
            inner.choose(goal, want)?
        };
        inner.remove(run)?;
        inner.promised -= run.blocks;
        Some(run)
    }

    /// As [`Space::allocate`], but allocates all of the blocks or none.
    pub fn allocate_whole(&self, goal: Option<u64>, want: u64) -> Option<Run> {
        let mut inner = self.lock();
        if want > inner.promised || inner.is_crumbled() {
            return None;
        }
        let mut fitting = |goal| inner.choose(goal, want).filter(|run| run.blocks == want);
        let run = fitting(goal).or_else(|| fitting(None))?;
        inner.remove(run)?;
        inner.promised -= want;
        Some(run)
    }

    /// Releases a run that was allocated but that no metadata refers to.
    pub fn release_run(&self, run: Run) {
        // Nothing on disk refers to these blocks, but the request that wrote them may not be the
        // only one that knew them.
        self.lock().release(run);
    }

    /// Releases a run like [`Space::release_run`], and restores its promise.
    pub fn return_run(&self, run: Run) {
        let mut inner = self.lock();
        inner.release(run);
        inner.promised += run.blocks;
    }

    /// Allocates exactly `want` blocks for the metadata, from its reserve if necessary; at `goal`
    /// if those are free.
    pub fn allocate_metadata(&self, goal: Option<u64>, want: u64) -> Option<Run> {
        let mut inner = self.lock();
        if inner.free < inner.promised + want {
            return None;
        }
        let run = inner.choose(goal, want)?;
        if run.blocks < want {
            return None;
        }
        inner.remove(run).map(|()| run)
    }

    /// Takes the part in a range of the first free run that has at least `min` blocks, and returns
    /// where to continue. Takes at most half of the blocks that could be promised, so that others
    /// still find room. [`Space::give_back`] returns it.
    pub fn take_unused(&self, range: Range<u64>, min: u64) -> Option<(Run, u64)> {
        let mut inner = self.lock();
        let before = inner.by_start.range(..range.start).next_back();
        let after = inner.by_start.range(range.clone());
        let large = before.into_iter().chain(after);
        let large = large.filter(|(_, blocks)| **blocks >= min);
        let mut inside = large.map(|(start, blocks)| {
            let first = (*start).max(range.start);
            first..(start + blocks).min(range.end)
        });
        let found = inside.find(|run| !run.is_empty())?;
        let most = (inner.available(inner.free) / 2).clamp(1, UNUSED_BLOCKS_MAX);
        if inner.available(inner.free) < most {
            return None;
        }
        let run = Run {
            start: found.start,
            blocks: (found.end - found.start).min(most),
        };
        inner.remove(run)?;
        Some((run, run.end()))
    }

    /// Returns blocks of [`Space::take_unused`], in which nothing was stored.
    pub fn give_back(&self, run: Run) {
        self.lock().release(run);
    }

    /// Frees blocks as part of the open change set.
    pub fn free(&self, runs: &[Run]) {
        let mut inner = self.lock();
        let current = inner.current;
        for run in runs {
            inner.resting_blocks += run.blocks;
        }
        inner.resting.entry(current).or_default().extend(runs);
    }

    /// Closes the open change set and returns its number.
    pub fn close_set(&self) -> ChangeSet {
        let mut inner = self.lock();
        let next = ChangeSet(inner.current.0 + 1);
        std::mem::replace(&mut inner.current, next)
    }

    /// Records that the change sets up to `set` are durable.
    pub fn set_durable(&self, set: ChangeSet) {
        let mut inner = self.lock();
        inner.durable = inner.durable.max(set);
        inner.wake();
    }

    /// Registers a request that is about to look up blocks. Returns the change set to pass to
    /// [`Space::leave`].
    pub fn enter(&self) -> ChangeSet {
        let mut inner = self.lock();
        let current = inner.current;
        *inner.flying.entry(current).or_default() += 1;
        current
    }

    /// Unregisters a request that changed no file data.
    pub fn leave(&self, entered: ChangeSet) {
        self.lock().leave(entered);
    }

    /// Unregisters a request that may have changed file data.
    pub fn leave_after_write(&self, entered: ChangeSet) {
        let mut inner = self.lock();
        inner.written.0 += 1;
        inner.leave(entered);
    }

    /// Returns the number of completed writes of file data.
    pub fn written(&self) -> Writes {
        self.lock().written
    }

    /// Checks whether one of the first `written` writes has not been covered by a flush.
    pub fn needs_flush_of(&self, written: Writes) -> bool {
        written > self.lock().flushed
    }

    /// Records that a flush has covered the first `written` writes.
    pub fn set_flushed(&self, written: Writes) {
        let mut inner = self.lock();
        inner.flushed = inner.flushed.max(written);
    }

    /// Returns the free and the resting runs in order, for a check of the file system.
    pub fn unused(&self) -> Vec<Run> {
        let inner = self.lock();
        let free = inner.by_start.iter();
        let mut all: Vec<Run> = free
            .map(|(&start, &blocks)| Run { start, blocks })
            .collect();
        all.extend(inner.resting.values().flatten());
        all.sort_unstable();
        all
    }
}

impl Inner {
    /// Computes how many blocks could be promised if `free` blocks were free. Metadata for
    /// promised blocks may take up to one extent per block. The reserve has room for some of them;
    /// beyond those, a promise also withholds the blocks for its extents.
    fn available(&self, free: u64) -> u64 {
        let room = free.saturating_sub(self.reserve);
        let covered = room.min(PROMISES_PER_RESERVE * self.reserve);
        // Each full set of the others takes one block more for its extents.
        let others = room - covered;
        let (sets, rest) = (
            others / (EXTENTS_PER_BLOCK + 1),
            others % (EXTENTS_PER_BLOCK + 1),
        );
        let most = covered + sets * EXTENTS_PER_BLOCK + rest.min(EXTENTS_PER_BLOCK - 1);
        most.saturating_sub(self.promised)
    }

    /// Counts the blocks that the metadata could allocate in the runs left to it, up to `enough`.
    fn metadata_room(&self, enough: u64) -> u64 {
        let mut blocks = 0;
        for (run, _) in self.by_blocks.iter().rev().take(self.runs_left) {
            blocks += run;
            if blocks >= enough {
                break;
            }
        }
        blocks.min(self.free.saturating_sub(self.promised))
    }

    fn has_room(&self, beyond: u64) -> bool {
        self.slack > beyond || self.metadata_room(beyond + 1) > beyond
    }

    /// Checks whether there are so few large runs that the metadata needs all of them.
    fn is_crumbled(&self) -> bool {
        let few = 2 * self.reserve;
        let large = self.by_blocks.iter().rev().take(self.runs_left);
        let mut blocks = 0;
        !large.map(|(run, _)| run).any(|run| {
            blocks += run;
            blocks > few
        })
    }

    /// Finds up to `want` blocks of the smallest run.
    fn crumb(&self, want: u64) -> Option<Run> {
        let &(blocks, start) = self.by_blocks.first().filter(|_| want > 0)?;
        let blocks = want.min(blocks);
        Some(Run { start, blocks })
    }

    fn insert(&mut self, start: u64, blocks: u64) {
        self.by_start.insert(start, blocks);
        self.by_blocks.insert((blocks, start));
    }

    fn remove_run(&mut self, start: u64, blocks: u64) {
        self.by_start.remove(&start);
        self.by_blocks.remove(&(blocks, start));
    }

    /// Finds the free run that contains this block.
    fn around(&self, block: u64) -> Option<Run> {
        let (&start, &blocks) = self.by_start.range(..=block).next_back()?;
        (block < start + blocks).then_some(Run { start, blocks })
    }

    fn release(&mut self, mut run: Run) {
        if run.end() > self.end {
            let start = run.start.max(self.end);
            let blocks = run.end() - start;
            self.beyond.push(Run { start, blocks });
            run.blocks -= blocks;
            if run.blocks == 0 {
                return;
            }
        }
        let Run { mut start, blocks } = run;
        let mut end = run.end();
        self.free += blocks;
        if let Some((&before, &len)) = self.by_start.range(..start).next_back()
            && before + len == start
        {
            self.remove_run(before, len);
            start = before;
        }
        if let Some(&len) = self.by_start.get(&end) {
            self.remove_run(end, len);
            end += len;
        }
        self.insert(start, end - start);
    }

    fn remove(&mut self, run: Run) -> Option<()> {
        let whole = self.around(run.start).filter(|w| run.end() <= w.end())?;
        self.remove_run(whole.start, whole.blocks);
        if whole.start < run.start {
            self.insert(whole.start, run.start - whole.start);
        }
        if run.end() < whole.end() {
            self.insert(run.end(), whole.end() - run.end());
        }
        self.free -= run.blocks;
        Some(())
    }

    /// Chooses a run of up to `want` blocks: at the goal; else the next one after the cursor that
    /// is large enough; else the smallest that is; else the largest run.
    fn choose(&mut self, goal: Option<u64>, want: u64) -> Option<Run> {
        if want == 0 {
            return None;
        }
        if let Some(goal) = goal
            && let Some(whole) = self.around(goal)
        {
            let blocks = want.min(whole.end() - goal);
            return Some(Run {
                start: goal,
                blocks,
            });
        }
        let near = self.around(self.cursor).into_iter().map(|whole| Run {
            start: self.cursor,
            blocks: whole.end() - self.cursor,
        });
        let next = self.by_start.range(self.cursor..).take(SEARCH_RUNS);
        let next = next.map(|(&start, &blocks)| Run { start, blocks });
        let fitting = near.chain(next).find(|run| run.blocks >= want);
        let best = || self.by_blocks.range((want, 0)..).next();
        let found = fitting.or_else(|| {
            let (blocks, start) = *best().or_else(|| self.by_blocks.last())?;
            Some(Run { start, blocks })
        })?;
        let blocks = want.min(found.blocks);
        self.cursor = found.start + blocks;
        Some(Run { blocks, ..found })
    }

    fn leave(&mut self, entered: ChangeSet) {
        if let Some(count) = self.flying.get_mut(&entered) {
            *count -= 1;
            if *count == 0 {
                self.flying.remove(&entered);
                self.wake();
            }
        }
    }

    /// Frees resting blocks that may be reused.
    fn wake(&mut self) {
        let oldest = self.flying.keys().next().copied();
        while let Some((&set, _)) = self.resting.first_key_value() {
            if set > self.durable || oldest.is_some_and(|oldest| oldest <= set) {
                return;
            }
            for run in self.resting.remove(&set).unwrap_or_default() {
                self.resting_blocks -= run.blocks;
                self.release(run);
            }
        }
    }
}

/// Computes the number of blocks to reserve for metadata: the need of a commit on a full device.
pub(crate) fn reserve_blocks(device_blocks: u64) -> u64 {
    // 1 MiB on the smallest device, 256 MiB from 16 GiB on.
    (device_blocks / 64).clamp(256, 65_536)
}

/// Creates the error of a full device.
pub(crate) fn full() -> Error {
    Error::new(Kind::NoSpace, "no space left on the device")
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    fn run(start: u64, blocks: u64) -> Run {
        Run { start, blocks }
    }

    fn space(blocks: u64) -> Space {
        let space = Space::new(0);
        space.add(run(0, blocks));
        space
    }

    #[test]
    fn a_promise_is_kept_and_never_given_twice() {
        let space = Space::new(10);
        space.add(run(0, 100));
        assert!(space.reserve(90) && !space.reserve(1));
        assert!(space.reserve_from_metadata(10) && !space.reserve_from_metadata(1));
        assert_eq!(space.allocate(None, 60), Some(run(0, 60)));
        assert_eq!(space.usage().free, 40);
        space.release_reserved(40);
        assert!(space.reserve(30) && !space.reserve(1));
        assert_eq!(space.allocate_metadata(None, 11), None);
        assert_eq!(space.allocate_metadata(None, 10), Some(run(60, 10)));
    }

    #[test]
    fn promises_leave_room_for_the_metadata_that_will_name_them() {
        let space = Space::new(10);
        space.add(run(0, 1000));
        let mut promised = 0;
        while space.reserve(1) {
            promised += 1;
        }
        assert!(space.metadata_room(u64::MAX) >= 10 / 2 + promised / EXTENTS_PER_BLOCK);
        assert!(promised > 900, "{promised}");
        // Once they are allocated, the blocks that the metadata did not need can be promised.
        assert_eq!(
            space.allocate(None, promised).map(|r| r.blocks),
            Some(promised)
        );
        assert!(space.reserve(1000 - promised - 10) && !space.reserve(1));
    }

    #[test]
    fn what_is_called_available_can_be_promised_and_not_a_block_more() {
        for blocks in [11, 100, 1000, 54_321] {
            let space = Space::new(10);
            space.add(run(0, blocks));
            let available = space.usage().available;
            assert!(!space.reserve(available + 1), "of {blocks}");
            assert!(space.reserve(available), "of {blocks}");
            assert_eq!(space.usage().available, 0);
        }
        // Freed blocks count, although they become usable only once that is durable.
        let space = Space::new(10);
        space.free(&[run(0, 100)]);
        assert_eq!(space.usage().available, 90);
    }

    #[test]
    fn a_goal_is_followed_and_runs_grow_together_again() {
        let space = space(100);
        assert!(space.reserve_from_metadata(100));
        assert_eq!(space.allocate(Some(50), 10), Some(run(50, 10)));
        assert_eq!(space.allocate(Some(60), 10), Some(run(60, 10)));
        assert_eq!(space.allocate(Some(55), 40), Some(run(0, 40)));
        for freed in [run(50, 10), run(0, 40), run(60, 10)] {
            space.release_run(freed);
        }
        assert_eq!(space.unused(), [run(0, 100)]);
        assert!(space.remove(run(90, 20)).is_err());
    }

    #[test]
    fn freed_blocks_rest_until_durable_and_until_older_requests_have_ended() {
        let space = space(10);
        space.reserve(10);
        assert_eq!(space.allocate(None, 10), Some(run(0, 10)));
        let reader = space.enter();
        space.free(&[run(0, 4)]);
        let first = space.close_set();
        space.free(&[run(4, 6)]);
        assert!(!space.reserve(1));
        space.set_durable(first);
        assert!(!space.reserve(1), "a request may still touch them");
        let later = space.enter();
        space.leave(reader);
        assert!(space.reserve(4) && !space.reserve(1));
        let second = space.close_set();
        space.set_durable(second);
        assert!(!space.reserve(1));
        space.leave_after_write(later);
        assert!(space.reserve(6));
        assert!(space.needs_flush_of(Writes(1)));
        space.set_flushed(space.written());
        assert!(!space.needs_flush_of(Writes(1)));
    }

    #[test]
    fn unused_runs_are_taken_in_order_and_leave_room_for_others() {
        let space = space(100);
        assert!(space.reserve(40));
        let start = space.usage();
        let taken: Vec<Run> = [(0..100, 10), (0..4, 5), (90..100, 8)]
            .into_iter()
            .filter_map(|(range, min)| Some(space.take_unused(range, min)?.0))
            .collect();
        assert_eq!(taken.len(), 2, "{taken:?}");
        assert_eq!(taken[0].start, 0);
        assert!(taken[0].blocks <= 30 && taken[1].start >= 90);
        assert!(space.allocate(None, 40).is_some(), "promises are kept");
        taken.into_iter().for_each(|run| space.give_back(run));
        assert_eq!(space.usage().free, start.free - 40);
        assert!(space.take_unused(0..0, 1).is_none());
    }

    #[test]
    fn random_use_agrees_with_a_bitmap() {
        const BLOCKS: u64 = 500;
        let mut random = Random::new(1);
        let space = space(BLOCKS);
        let mut used = [false; BLOCKS as usize];
        let mut held: Vec<Run> = Vec::new();
        for _ in 0..20_000 {
            if random.below(2) == 0 {
                let want = 1 + random.below(40);
                let goal = (random.below(2) == 0).then(|| random.below(BLOCKS));
                if space.reserve(want) {
                    let got = space.allocate(goal, want).unwrap();
                    space.release_reserved(want - got.blocks);
                    for block in got.start..got.end() {
                        assert!(!std::mem::replace(&mut used[block as usize], true));
                    }
                    held.push(got);
                }
            } else if !held.is_empty() {
                let gone = held.swap_remove(random.below(held.len() as u64) as usize);
                used[gone.start as usize..gone.end() as usize].fill(false);
                space.release_run(gone);
            }
            let free = used.iter().filter(|used| !**used).count() as u64;
            assert_eq!(space.usage().free, free);
        }
        let unused = space.unused();
        assert!(unused.windows(2).all(|w| w[0].end() < w[1].start));
        let expected = (0..BLOCKS).filter(|b| !used[*b as usize]);
        assert!(unused.iter().flat_map(|r| r.start..r.end()).eq(expected));
    }
}
