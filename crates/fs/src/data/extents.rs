//! The extents of a file: the mapping of its blocks to the device.
//!
//! **Invariant:** the extents of a file do not overlap, and every change of one accounts for the
//! references to its blocks, whether its old record is removed or moves into a snapshot's layer.
//!
//! A file that is truncated within a block, or that grows from within one, keeps bytes after the
//! cut on the device. They are never read: the extent that ends with that block states the number
//! of valid bytes in it (its tail), until the block is written again. So truncating a file writes
//! no data, and after a crash there are either the old size and the old bytes or the new size.

use crate::error::{Error, Result};
use crate::format::key::{Ino, Item, PLACE_MAX, TreeId};
use crate::format::record::{BLOCK_BYTES, Extent, FILE_SIZE_MAX, Run};
use crate::metadata::inode_state::Blocks;
use crate::metadata::overlay::Prior;
use crate::metadata::state::State;
use std::ops::Range;

/// An extent and its first block in the file.
pub(crate) type Mapped = (u64, Extent);

/// Computes the block of the file after the extent's last.
pub(crate) fn end_of((first, extent): &Mapped) -> u64 {
    first + u64::from(extent.blocks)
}

/// Destination of a write to mapped blocks of a file; the others are holes.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    /// Blocks that are written in place.
    pub in_place: Vec<Mapped>,
    /// Blocks that are written to a new place.
    pub replaced: Blocks,
}

/// Computes the blocks of an extent within a range that overlaps it.
pub(crate) fn cut_of(mapped: &Mapped, range: &Range<u64>) -> Range<u64> {
    mapped.0.max(range.start)..end_of(mapped).min(range.end)
}

pub(crate) fn decode(first: u64, bytes: &[u8]) -> Result<Mapped> {
    let extent = Extent::decode(bytes)?;
    if end_of(&(first, extent)) <= FILE_SIZE_MAX / BLOCK_BYTES {
        Ok((first, extent))
    } else {
        Err(Error::corrupt("extent lies beyond the maximum file size"))
    }
}

/// Checks that an extent begins at or after the end of the one before it.
fn check_order(ino: Ino, before: Option<&Mapped>, first: u64) -> Result<()> {
    match before {
        Some(before) if end_of(before) > first => {
            Err(Error::corrupt(format!("inode {ino}: extents overlap")))
        }
        _ => Ok(()),
    }
}

impl State {
    /// Finds the last extent that begins at or before a block.
    pub fn extent_before(&self, tree: TreeId, ino: Ino, block: u64) -> Result<Option<Mapped>> {
        self.last(tree, ino, (Item::Extent, block), decode)
    }

    /// Collects the extents that overlap a range of blocks.
    pub fn extents(&self, tree: TreeId, ino: Ino, range: Range<u64>) -> Result<Vec<Mapped>> {
        let mut found: Vec<Mapped> = Vec::new();
        if range.is_empty() {
            return Ok(found);
        }
        let mut next = range.start;
        if next > 0 {
            let before = self.extent_before(tree, ino, next)?;
            found.extend(before.filter(|mapped| end_of(mapped) > range.start));
            next += 1;
        }
        if next < range.end {
            let places = (Item::Extent, next, range.end - 1);
            self.scan(tree, ino, places, |first, bytes| {
                let mapped = decode(first, bytes)?;
                check_order(ino, found.last(), first)?;
                found.push(mapped);
                Ok(true)
            })?;
        }
        self.check_inside(ino, &found)?;
        Ok(found)
    }

    fn check_inside(&self, ino: Ino, found: &[Mapped]) -> Result<()> {
        let inside = |run: Run| self.bounds.start <= run.start && run.end() <= self.bounds.end;
        match found.iter().find(|(_, extent)| !inside(extent.run())) {
            Some(_) => Err(Error::corrupt(format!(
                "inode {ino}: extent lies outside the device"
            ))),
            None => Ok(()),
        }
    }

    /// Finds the first extent that begins at or after a block.
    pub fn extent_after(&self, tree: TreeId, ino: Ino, block: u64) -> Result<Option<Mapped>> {
        let mut found = None;
        self.scan(
            tree,
            ino,
            (Item::Extent, block, PLACE_MAX),
            |first, bytes| {
                found = Some(decode(first, bytes)?);
                Ok(false)
            },
        )?;
        Ok(found)
    }

    /// Replaces a record by others, each of which lies within its blocks.
    fn replace(&mut self, tree: TreeId, ino: Ino, old: Mapped, new: &[Mapped]) -> Result<()> {
        let (first, extent) = old;
        let same_key = new.first().filter(|(at, _)| *at == first);
        let kept = match same_key {
            Some((_, extent)) => {
                let value = extent.encode();
                self.put(tree, ino, (Item::Extent, first), value, Prior::Possible)?
            }
            None => self.delete(tree, ino, (Item::Extent, first))?,
        };
        for (at, part) in new {
            if kept {
                self.share(part.run())?;
            }
            if *at != first {
                // Within the old record, the file has no other. A record that comes and goes between
                // two commits leaves no trace, over which each search would have to step.
                let value = part.encode();
                self.put(tree, ino, (Item::Extent, *at), value, Prior::Absent)?;
            }
        }
        if !kept {
            let mut at = extent.start;
            for (_, part) in new {
                self.unshare_between(at, part.start)?;
                at = part.run().end();
            }
            self.unshare_between(at, extent.run().end())?;
        }
        Ok(())
    }

    fn unshare_between(&mut self, start: u64, end: u64) -> Result<()> {
        match end - start {
            0 => Ok(()),
            blocks => self.unshare(Run { start, blocks }),
        }
    }

    /// Removes a range of blocks from a file. Returns the number of blocks of the device that the file
    /// no longer has.
    pub fn unmap(&mut self, tree: TreeId, ino: Ino, range: Range<u64>) -> Result<u64> {
        let mut gone = self.cut_chunks(tree, ino, &range)?;
        for (first, extent) in self.extents(tree, ino, range.clone())? {
            let end = end_of(&(first, extent));
            let cut = first.max(range.start)..end.min(range.end);
            let mut left = Vec::new();
            if first < cut.start {
                left.push((first, extent.part(0, cut.start - first)));
            }
            if cut.end < end {
                left.push((cut.end, extent.part(cut.end - first, end - cut.end)));
            }
            self.replace(tree, ino, (first, extent), &left)?;
            gone += cut.end - cut.start;
        }
        Ok(gone)
    }

    /// Removes all extents of a file, which the caller has read. Returns their number of blocks.
    pub fn unmap_all(&mut self, tree: TreeId, ino: Ino, extents: &[Mapped]) -> Result<u64> {
        for pair in extents.windows(2) {
            check_order(ino, pair.first(), pair[1].0)?;
        }
        self.check_inside(ino, extents)?;
        for extent in extents {
            self.replace(tree, ino, *extent, &[])?;
        }
        let blocks = extents.iter().map(|(_, extent)| u64::from(extent.blocks));
        Ok(blocks.sum())
    }

    /// Maps blocks that are already in use and counted to a hole of a file.
    pub fn map(&mut self, tree: TreeId, ino: Ino, mut new: Mapped) -> Result<()> {
        let is_kept = |state: &State, at| state.is_kept(tree, ino, Item::Extent, at);
        let next = self.get(tree, ino, (Item::Extent, end_of(&new)), Extent::decode)?;
        if let Some(next) = next
            && new.1.continues(&next)
            && !is_kept(self, end_of(&new))?
        {
            self.delete(tree, ino, (Item::Extent, end_of(&new)))?;
            new.1.blocks += next.blocks;
            new.1.tail = next.tail;
        }
        let before = match new.0.checked_sub(1) {
            Some(block) => self.extent_before(tree, ino, block)?,
            None => None,
        };
        let mut prior = Prior::Absent;
        if let Some((first, before)) = before
            && end_of(&(first, before)) == new.0
            && before.continues(&new.1)
            && !is_kept(self, first)?
        {
            prior = Prior::Possible;
            let blocks = before.blocks + new.1.blocks;
            let start = before.start;
            new = (
                first,
                Extent {
                    start,
                    blocks,
                    ..new.1
                },
            );
        }
        let value = new.1.encode();
        self.put(tree, ino, (Item::Extent, new.0), value, prior)?;
        Ok(())
    }

    /// Records that mapped blocks have been written in place.
    pub fn set_written(&mut self, tree: TreeId, ino: Ino, range: Range<u64>) -> Result<()> {
        for old in self.extents(tree, ino, range.clone())? {
            let (first, extent) = old;
            let end = end_of(&old);
            let part = first.max(range.start)..end.min(range.end);
            let ends_tail = extent.tail != 0 && part.end == end;
            if !extent.unwritten && !ends_tail {
                continue;
            }
            let mut new = Vec::new();
            if first < part.start {
                new.push((first, extent.part(0, part.start - first)));
            }
            let written = Extent {
                unwritten: false,
                tail: 0,
                ..extent.part(part.start - first, part.end - part.start)
            };
            new.push((part.start, written));
            if part.end < end {
                new.push((part.end, extent.part(part.end - first, end - part.end)));
            }
            self.replace(tree, ino, old, &new)?;
            self.join(tree, ino, part)?;
        }
        Ok(())
    }

    /// Merges records at either end of a range with their neighbors, unless a snapshot needs them.
    fn join(&mut self, tree: TreeId, ino: Ino, range: Range<u64>) -> Result<()> {
        for at in [range.end, range.start] {
            let Some(before) = at.checked_sub(1) else {
                continue;
            };
            let Some((first, before)) = self.extent_before(tree, ino, before)? else {
                continue;
            };
            let after = self.get(tree, ino, (Item::Extent, at), Extent::decode)?;
            let Some(after) = after.filter(|after| before.continues(after)) else {
                continue;
            };
            let meets = end_of(&(first, before)) == at;
            let kept = self.is_kept(tree, ino, Item::Extent, first)?
                || self.is_kept(tree, ino, Item::Extent, at)?;
            if meets && !kept {
                let whole = Extent {
                    blocks: before.blocks + after.blocks,
                    tail: after.tail,
                    ..before
                };
                self.delete(tree, ino, (Item::Extent, at))?;
                self.put(
                    tree,
                    ino,
                    (Item::Extent, first),
                    whole.encode(),
                    Prior::Possible,
                )?;
            }
        }
        Ok(())
    }

    /// Limits a block to its first `bytes` bytes; does nothing if it was not written.
    pub fn set_tail(&mut self, tree: TreeId, ino: Ino, block: u64, bytes: u16) -> Result<()> {
        debug_assert!(bytes > 0 && u64::from(bytes) < BLOCK_BYTES);
        if self.set_chunk_tail(tree, ino, block, bytes)? {
            return Ok(());
        }
        let Some(old) = self.extents(tree, ino, block..block + 1)?.pop() else {
            return Ok(());
        };
        let (first, extent) = old;
        let end = end_of(&old);
        let has_shorter = block + 1 == end && extent.tail != 0 && extent.tail <= bytes;
        if extent.unwritten || has_shorter {
            return Ok(());
        }
        let mut head = extent.part(0, block + 1 - first);
        head.tail = bytes;
        let mut new = vec![(first, head)];
        if block + 1 < end {
            new.push((block + 1, extent.part(block + 1 - first, end - block - 1)));
        }
        self.replace(tree, ino, old, &new)
    }

    /// Finds the parts of a range with blocks that belong to the file alone: they have a single
    /// reference, and no snapshot needs their record.
    pub fn own_parts(&self, tree: TreeId, ino: Ino, range: Range<u64>) -> Result<Vec<Mapped>> {
        let mut own = Vec::new();
        for mapped in self.extents(tree, ino, range.clone())? {
            self.add_own(tree, ino, mapped, &range, &mut own)?;
        }
        Ok(own)
    }

    fn add_own(
        &self,
        tree: TreeId,
        ino: Ino,
        (first, extent): Mapped,
        range: &Range<u64>,
        own: &mut Vec<Mapped>,
    ) -> Result<()> {
        if self.is_kept(tree, ino, Item::Extent, first)? {
            return Ok(());
        }
        let cut = cut_of(&(first, extent), range);
        let part = extent.part(cut.start - first, cut.end - cut.start);
        for (run, count) in self.counts_within(part.run())? {
            if count == 1 {
                let skip = run.start - part.start;
                own.push((cut.start + skip, part.part(skip, run.blocks)));
            }
        }
        Ok(())
    }

    /// Decides for each mapped block of a range whether a write goes to it or to a new block. With
    /// checksums, a block is written in place only if it was never written, or belongs to
    /// `overwritten`: otherwise a crash between the data and its checksum, or after a part of the
    /// block, would make it unreadable.
    pub fn targets(
        &self,
        tree: TreeId,
        ino: Ino,
        range: Range<u64>,
        overwritten: &Blocks,
    ) -> Result<Targets> {
        let mut targets = Targets::default();
        let mut own = Vec::new();
        for mapped in self.extents(tree, ino, range.clone())? {
            let cut = cut_of(&mapped, &range);
            targets.replaced.insert(cut.clone());
            if mapped.1.unwritten || !self.checksums {
                self.add_own(tree, ino, mapped, &range, &mut own)?;
            } else {
                for run in overwritten.within(cut) {
                    self.add_own(tree, ino, mapped, &run, &mut own)?;
                }
            }
        }
        let mut writing = Blocks::default();
        if self.checksums
            && let Some(core) = self.cores.get(&(tree, ino))
        {
            // Of two writes of a block at the same time, one could leave its data, and the other
            // its checksum.
            for write in core.writes.values() {
                writing.extend(&write.wanted);
            }
        }
        for (first, extent) in own {
            for run in writing.missing(first..end_of(&(first, extent))) {
                let part = extent.part(run.start - first, run.end - run.start);
                targets.in_place.push((run.start, part));
                targets.replaced.remove(run);
            }
        }
        Ok(targets)
    }
}
