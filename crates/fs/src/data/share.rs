//! Copies of ranges between files that share blocks of the device.
//!
//! Holes and blocks that were never written become holes of the copy. Each side that is written
//! later gets new blocks, like a file in a snapshot. Checksums belong to the blocks of the device,
//! so both sides have them.
//!
//! **Invariant:** a block is shared only if its content on the device is that which readers see: no
//! page of it is dirty, and no write to it is in flight. Deliberately absent: blocks that are
//! copied in part, and the pages of the cache.

use crate::data::chunks::Placed;
use crate::data::extents::{Mapped, cut_of};
use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::chunk::{CHUNK_BLOCKS, bits_of, chunk_of};
use crate::format::key::{Ino, TreeId};
use crate::format::record::{BLOCK_BYTES, FILE_SIZE_MAX, FileType};
use crate::metadata::op::Op;
use crate::metadata::state::State;
use std::ops::Range;
use std::sync::Arc;

/// Most blocks that one operation shares.
pub(crate) const STEP_BLOCKS: u64 = 32_768;

/// Most keys that one operation changes, approximately.
const STEP_KEYS: usize = 4000;

/// Keys for a run of blocks that is shared, or replaced: the extent, for a snapshot as well, and
/// the counts of its references.
const KEYS_PER_RUN: usize = 4;

/// Copy of a range; all numbers are blocks of the files.
struct Copy {
    from: (TreeId, Ino),
    first: u64,
    to: (TreeId, Ino),
    to_first: u64,
    blocks: u64,
}

impl Fileset {
    /// Makes a range of a file refer to the blocks of a range of another file, or of another range
    /// of the same file, in place of its own. The source is a file of this fileset, of another one,
    /// or of a snapshot. Offsets and length are multiples of [`BLOCK_BYTES`]. Takes time in
    /// proportion to the number of extents. The caller has had the dirty pages of the source
    /// written back and those of the target dropped, and keeps pages of the target from being
    /// loaded.
    ///
    /// Returns the number of bytes from the start that are shared now, all in one atomic change; 0
    /// if the first block of the source cannot be shared because its page is dirty or lies at the
    /// end of the file. The target grows to include them.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: not regular files, offsets or length that are not whole blocks, ranges of
    /// one file that overlap; [`Kind::CrossFileset`]: files of two file systems; as
    /// [`Fileset::prepare_write`].
    pub fn share(
        &self,
        source: &Fileset,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64> {
        if !Arc::ptr_eq(&source.fs, &self.fs) {
            return Err(Kind::CrossFileset.into());
        }
        let numbers = [from.1, to.1, len];
        if !numbers.iter().all(|n| n.is_multiple_of(BLOCK_BYTES)) {
            let text = "offset or length is not a whole number of blocks";
            return Err(Error::new(Kind::Invalid, text));
        }
        let fits = |offset: u64| offset.checked_add(len).is_some_and(|e| e <= FILE_SIZE_MAX);
        if !fits(from.1) || !fits(to.1) {
            return Err(Kind::FileTooLarge.into());
        }
        if (source.id, from.0) == (self.id, to.0) && from.1.abs_diff(to.1) < len {
            return Err(Error::new(Kind::Invalid, "the ranges overlap"));
        }
        let copy = Copy {
            from: (source.id, from.0),
            first: from.1 / BLOCK_BYTES,
            to: (self.id, to.0),
            to_first: to.1 / BLOCK_BYTES,
            blocks: (len / BLOCK_BYTES).min(STEP_BLOCKS),
        };
        match self.fs.with_room(|| self.try_share(&copy)) {
            // The caller copies the block, and has one with a single reference again.
            Err(error) if error.kind() == Kind::TooManyLinks => Ok(0),
            shared => shared,
        }
    }

    fn try_share(&self, copy: &Copy) -> Result<u64> {
        let most = self.fs.keys_at_once(STEP_KEYS) / KEYS_PER_RUN;
        let mut op = Op::begin(&self.fs, self.id)?;
        let (tree, ino) = copy.to;
        let inode = op.read_inode(ino)?;
        let kinds = [inode.kind, op.inode(copy.from.0, copy.from.1)?.kind];
        if kinds != [FileType::File; 2] {
            return Err(Error::new(Kind::Invalid, "not a regular file"));
        }
        if copy.to_first * BLOCK_BYTES < inode.size {
            inode.flags.check_unlocked()?;
        } else {
            inode.flags.check_mutable()?;
        }
        let blocks = op.shareable(copy, most)?;
        if blocks == 0 {
            return Ok(0);
        }
        op.check_room()?;
        let source = copy.first..copy.first + blocks;
        let target = copy.to_first..copy.to_first + blocks;
        let mut pieces = op.cut_extents(copy.from.0, copy.from.1, &source)?;
        pieces.retain(|(_, extent)| !extent.unwritten);
        let chunks = op.cut_copies(copy.from, &source)?;
        let gone = op.unmap(tree, ino, target.clone())?;
        let new: u64 = pieces.iter().map(|(_, e)| u64::from(e.blocks)).sum();
        let new = new + chunks.iter().map(|(_, c)| c.run().blocks).sum::<u64>();
        op.use_blocks(-(gone as i64));
        if new > gone {
            op.check_quota(new)?;
        }
        op.use_blocks(new as i64);
        let end = target.end * BLOCK_BYTES;
        if end > inode.disk_size {
            self.cover_tail(&mut op, ino, inode.disk_size, inode.size)?;
        }
        for (at, extent) in pieces {
            op.share(extent.run())?;
            let at = target.start + (at - source.start);
            op.map(tree, ino, (at, extent))?;
        }
        for (at, chunk) in chunks {
            op.share(chunk.run())?;
            let at = at + copy.to_first - copy.first;
            op.map_chunk(tree, ino, (at, chunk))?;
        }
        let now = op.now;
        op.change(ino, |inode| {
            inode.blocks = (inode.blocks + new).saturating_sub(gone);
            inode.disk_size = inode.disk_size.max(end);
            inode.size = inode.size.max(end);
            inode.touch(now);
        })?;
        op.check_accounts()?;
        op.remove_wanted(ino, target);
        op.finish();
        Ok(blocks * BLOCK_BYTES)
    }
}

impl State {
    /// Counts the blocks from the start of a copy that one operation can share: whole blocks that
    /// are on the device, with at most `most` runs on either side.
    fn shareable(&self, copy: &Copy, most: usize) -> Result<u64> {
        let (tree, ino) = copy.from;
        let inode = self.inode(tree, ino)?;
        let mut end = copy.first + copy.blocks;
        // Bytes beyond the size on disk were never part of the file.
        end = end.min(inode.disk_size.min(inode.size) / BLOCK_BYTES);
        if end <= copy.first {
            return Ok(0);
        }
        if let Some(core) = self.cores.get(&copy.from) {
            for blocks in core.waiting() {
                let waiting = blocks.within(copy.first..end).next();
                end = waiting.map_or(end, |run| run.start);
            }
        }
        let blocks = self.reach(copy.from, copy.first..end, most)?;
        let blocks = self.reach(copy.to, copy.to_first..copy.to_first + blocks, most)?;
        let mut end = copy.first + blocks;
        loop {
            match self.end_of_chunks(copy, end, most)? {
                // A shorter range may leave blocks of the target behind that this one replaced.
                shorter if shorter < end => end = shorter,
                _ => return Ok(end - copy.first),
            }
        }
    }

    /// Finds the first block, at most `end`, of a copy that cannot be shared because of compressed
    /// chunks: those of the source keep their place within a chunk, and those of the target must
    /// leave no block behind, because there is one chunk in each place.
    fn end_of_chunks(&self, copy: &Copy, end: u64, most: usize) -> Result<u64> {
        let (source, target) = (copy.from, copy.to);
        let shift = |block: u64| block - copy.first + copy.to_first;
        let fits = copy.first % CHUNK_BLOCKS == copy.to_first % CHUNK_BLOCKS;
        let replaced = self.chunks(target.0, target.1, &(shift(copy.first)..shift(end)))?;
        if let Some((first, _)) = replaced.get(most) {
            return Ok(first.saturating_sub(copy.to_first) + copy.first);
        }
        let all = self.chunks(source.0, source.1, &(copy.first..end))?;
        for (number, (first, chunk)) in all.into_iter().enumerate() {
            if number == most {
                return Ok(first);
            }
            let read = chunk.valid_within(first, &(copy.first..end));
            let Some(start) = read.first().map(|run| run.start) else {
                continue;
            };
            if !fits {
                return Ok(start);
            }
            let range = shift(copy.first)..shift(end);
            let place = chunk_of(shift(start));
            let here = place..place + CHUNK_BLOCKS;
            let others = self.chunks(target.0, target.1, &here)?;
            let mut left = others
                .iter()
                .map(|(at, other)| other.without(bits_of(*at, &range)));
            if left.any(|left| left.is_some()) {
                return Ok(start);
            }
        }
        Ok(end)
    }

    /// Collects the chunks that a copy of a range refers to, with the blocks in the range.
    fn cut_copies(&self, (tree, ino): (TreeId, Ino), range: &Range<u64>) -> Result<Vec<Placed>> {
        let mut all = self.chunks(tree, ino, range)?;
        for (first, chunk) in &mut all {
            chunk.valid &= bits_of(*first, range);
            chunk.tail = chunk
                .tail
                .filter(|(block, _)| chunk.valid >> block & 1 == 1);
        }
        all.retain(|(_, chunk)| chunk.valid != 0);
        Ok(all)
    }

    /// Counts the blocks from the start of a range that have at most `most` runs with equal numbers
    /// of references.
    fn reach(&self, (tree, ino): (TreeId, Ino), range: Range<u64>, most: usize) -> Result<u64> {
        let mut runs = 0;
        for (at, extent) in self.cut_extents(tree, ino, &range)? {
            for (run, _) in self.counts_within(extent.run())? {
                if runs == most {
                    return Ok(at + (run.start - extent.start) - range.start);
                }
                runs += 1;
            }
        }
        Ok(range.end - range.start)
    }

    /// Collects the extents of a range, cut to it.
    fn cut_extents(&self, tree: TreeId, ino: Ino, range: &Range<u64>) -> Result<Vec<Mapped>> {
        let mut all = self.extents(tree, ino, range.clone())?;
        for mapped in &mut all {
            let cut = cut_of(mapped, range);
            let part = mapped.1.part(cut.start - mapped.0, cut.end - cut.start);
            *mapped = (cut.start, part);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::content::Stamp;
    use crate::format::key::{Key, Section};
    use crate::format::record::SharedRun;
    use crate::metadata::overlay::Prior;
    use crate::names::directory::{New, ROOT};
    use crate::{FIRST_FILESET, Fs, Options};
    use block::BlockDevice;
    use block_testing::Mem;

    #[test]
    fn a_block_with_as_many_references_as_can_be_counted_is_left_to_be_copied() {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 512));
        Fs::format(Arc::clone(&device), "").unwrap();
        let fs = Fs::open(device, Options::default()).unwrap();
        let main = fs.fileset_named(FIRST_FILESET).unwrap();
        let new = New::of_root(FileType::File, 0o644);
        let make = |name: &[u8]| main.create(ROOT, name, &new).unwrap().ino;
        let (one, two) = (make(b"one"), make(b"two"));
        main.prepare_write(one, 0..BLOCK_BYTES, Stamp::Change)
            .unwrap();
        let mut plan = main.plan_write(one, 0..1, &[]).unwrap();
        plan.set_sums(vec![1]);
        main.end_write(plan, true).unwrap();
        let mut op = Op::begin(fs.inner(), main.id).unwrap();
        let start = op.extents(main.id, one, 0..1).unwrap()[0].1.start;
        let most = SharedRun {
            blocks: 1,
            count: u32::MAX,
        };
        let key = Key::global(Section::Shared, start);
        op.put_key(key, most.encode(), Prior::Possible);
        op.finish();
        let share = || main.share(&main, (one, 0), (two, 0), BLOCK_BYTES).unwrap();
        assert_eq!(share(), 0);
        assert_eq!(main.attr(two).unwrap().inode.size, 0);
        let mut op = Op::begin(fs.inner(), main.id).unwrap();
        op.delete_key(key);
        op.finish();
        assert_eq!(share(), BLOCK_BYTES);
    }
}
