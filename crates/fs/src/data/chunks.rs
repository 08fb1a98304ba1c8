//! The compressed chunks of a file, in the metadata.
//!
//! **Invariant:** a block of a file is read from its chunk, from an extent, or is a hole: the valid
//! blocks of a chunk and the extents do not overlap. A chunk counts as one reference to its blocks
//! on the device, and its file is charged with all of them, as long as any of its blocks is valid.
//!
//! A part of a chunk that is written, punched or truncated is no longer valid; nothing is
//! decompressed for that, and no data is written. The bytes of the others stay where they are.

use crate::data::codec::Packed;
use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::chunk::{
    CHUNK_BLOCKS, Chunk, Compression, bits_of, chunk_of, held_by, is_chunk_place,
};
use crate::format::flags::InodeFlags;
use crate::format::key::{Ino, Item, PLACE_MAX, TreeId};
use crate::format::record::{FileType, Inode, Run, blocks_for};
use crate::format::sums::Sum;
use crate::metadata::inode_state::{Blocks, Effort};
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::state::State;
use std::ops::Range;

/// A chunk and its first block in the file.
pub(crate) type Placed = (u64, Chunk);

/// Chunk that a write in flight stores.
#[derive(Debug)]
pub(crate) struct PackedWrite {
    /// Blocks of the file.
    pub range: Range<u64>,
    /// The record, once all of its blocks are still wanted.
    pub chunk: Chunk,
    /// Index in the compressed chunks of the request.
    pub index: usize,
    /// Checksums of its blocks on the device; empty for a file system without.
    pub sums: Vec<Sum>,
}

fn decode(first: u64, bytes: &[u8]) -> Result<Placed> {
    let chunk = Chunk::decode(bytes)?;
    if is_chunk_place(first) {
        Ok((first, chunk))
    } else {
        Err(Error::corrupt("compressed chunk in an impossible place"))
    }
}

impl State {
    /// Collects the chunks of a file that a range of blocks overlaps, whether these blocks are
    /// valid or not.
    pub fn chunks(&self, tree: TreeId, ino: Ino, range: &Range<u64>) -> Result<Vec<Placed>> {
        let mut found = Vec::new();
        if range.is_empty() || !self.compression {
            return Ok(found);
        }
        let places = (Item::Chunk, chunk_of(range.start), range.end - 1);
        self.scan(tree, ino, places, |first, bytes| {
            found.push(decode(first, bytes)?);
            Ok(true)
        })?;
        match found.iter().find(|(_, chunk)| !self.is_inside(chunk.run())) {
            Some(_) => Err(Error::corrupt(format!(
                "inode {ino}: compressed chunk lies outside the device"
            ))),
            None => Ok(found),
        }
    }

    fn is_inside(&self, run: Run) -> bool {
        self.bounds.start <= run.start && run.end() <= self.bounds.end
    }

    /// Collects the blocks of a range that are read from chunks.
    pub fn valid_in_chunks(&self, tree: TreeId, ino: Ino, range: &Range<u64>) -> Result<Blocks> {
        let mut valid = Blocks::default();
        for (first, chunk) in self.chunks(tree, ino, range)? {
            for run in chunk.valid_within(first, range) {
                valid.insert(run);
            }
        }
        Ok(valid)
    }

    /// Finds the first blocks from one on that are read from a chunk.
    pub fn chunk_blocks_after(
        &self,
        tree: TreeId,
        ino: Ino,
        block: u64,
    ) -> Result<Option<Range<u64>>> {
        if !self.compression {
            return Ok(None);
        }
        let mut found = None;
        let places = (Item::Chunk, chunk_of(block), PLACE_MAX);
        self.scan(tree, ino, places, |first, bytes| {
            let (first, chunk) = decode(first, bytes)?;
            let mut runs = chunk.valid_within(first, &(block..first + CHUNK_BLOCKS));
            runs.truncate(1);
            found = runs.pop();
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    /// Finds a block up to which a file has at most `most` extents and about as many chunks; `None`
    /// if it does not have more of either.
    pub fn end_of_step(&self, tree: TreeId, ino: Ino, most: usize) -> Result<Option<u64>> {
        let mut end: Option<u64> = None;
        for kind in [Item::Extent, Item::Chunk] {
            let mut ends = Vec::new();
            self.scan(tree, ino, (kind, 0, PLACE_MAX), |first, bytes| {
                let held = held_by(Some(kind), bytes)?;
                ends.push(first + held.map_or(0, |held| held.span));
                Ok(ends.len() <= most)
            })?;
            if ends.len() > most {
                end = Some(end.map_or(ends[most - 1], |end| end.min(ends[most - 1])));
            }
        }
        Ok(end)
    }

    /// Takes blocks of a range from the chunks that they are read from. Returns the number of
    /// blocks of the device that the file no longer has.
    pub fn cut_chunks(&mut self, tree: TreeId, ino: Ino, range: &Range<u64>) -> Result<u64> {
        let mut gone = 0;
        for (first, chunk) in self.chunks(tree, ino, range)? {
            let left = chunk.without(bits_of(first, range));
            if left == Some(chunk) {
                continue;
            }
            if left.is_none() {
                gone += chunk.run().blocks;
            }
            self.set_chunk(tree, ino, (first, chunk), left)?;
        }
        Ok(gone)
    }

    /// Removes all chunks of a file, which the caller has read. Returns the number of their blocks
    /// on the device.
    pub fn remove_chunks(&mut self, tree: TreeId, ino: Ino, chunks: &[Placed]) -> Result<u64> {
        for placed in chunks {
            self.set_chunk(tree, ino, *placed, None)?;
        }
        Ok(chunks.iter().map(|(_, chunk)| chunk.run().blocks).sum())
    }

    /// Replaces the record of a chunk by another one of the same blocks, or by none.
    fn set_chunk(&mut self, tree: TreeId, ino: Ino, old: Placed, new: Option<Chunk>) -> Result<()> {
        let (first, chunk) = old;
        if !self.is_inside(chunk.run()) {
            let text = format!("inode {ino}: compressed chunk lies outside the device");
            return Err(Error::corrupt(text));
        }
        let place = (Item::Chunk, first);
        let kept = match new {
            Some(new) => self.put(tree, ino, place, new.encode(), Prior::Possible)?,
            None => self.delete(tree, ino, place)?,
        };
        match (kept, new) {
            // The old record, which a snapshot needs, keeps its reference.
            (true, Some(_)) => self.share(chunk.run()),
            (false, None) => self.unshare(chunk.run()),
            _ => Ok(()),
        }
    }

    /// Maps blocks of a file that are holes to a chunk whose blocks are in use and counted. No block
    /// of the file is read from an earlier chunk in this place.
    pub fn map_chunk(&mut self, tree: TreeId, ino: Ino, (first, chunk): Placed) -> Result<()> {
        debug_assert!(is_chunk_place(first));
        let value = chunk.encode();
        self.put(tree, ino, (Item::Chunk, first), value, Prior::Possible)?;
        Ok(())
    }

    /// Limits a block that is read from a chunk to its first `bytes` bytes. Returns whether it is.
    pub fn set_chunk_tail(
        &mut self,
        tree: TreeId,
        ino: Ino,
        block: u64,
        bytes: u16,
    ) -> Result<bool> {
        let Some((first, chunk)) = self.chunks(tree, ino, &(block..block + 1))?.pop() else {
            return Ok(false);
        };
        let place = (block - first) as u8;
        if chunk.valid >> place & 1 == 0 {
            return Ok(false);
        }
        let bytes = match chunk.tail {
            // A file ends in one block only, and has no valid blocks after it.
            Some((other, _)) if other != place => {
                let text = format!("inode {ino}: a compressed chunk ends twice");
                return Err(Error::corrupt(text));
            }
            Some((_, before)) if before <= bytes => return Ok(true),
            _ => bytes,
        };
        let new = Chunk {
            tail: Some((place, bytes)),
            ..chunk
        };
        self.set_chunk(tree, ino, (first, chunk), Some(new))?;
        Ok(true)
    }
}

impl Fileset {
    /// Compresses the chunks of a file that a write of blocks covers, as far as the settings of the
    /// file ask for it. `read` passes the bytes of a range of blocks.
    pub(crate) fn pack(
        &self,
        ino: Ino,
        blocks: &Range<u64>,
        read: impl Fn(Range<u64>) -> Vec<u8>,
    ) -> Vec<Packed> {
        let Some((method, end, before)) = self.packing(ino) else {
            return Vec::new();
        };
        let mut effort = before;
        let mut all = Vec::new();
        let mut first = blocks.start.next_multiple_of(CHUNK_BLOCKS);
        while first < blocks.end {
            let range = first..(first + CHUNK_BLOCKS).min(end);
            first += CHUNK_BLOCKS;
            // One block cannot become less than a block.
            if range.end <= blocks.end && range.start + 2 <= range.end && effort.tries() {
                let packed = Packed::of(method, range.start, &read(range));
                effort.note(packed.is_some());
                all.extend(packed);
            }
        }
        if effort != before {
            let mut state = self.fs.write();
            if let Some(core) = state.cores.get_mut(&(self.id, ino)) {
                core.effort = effort;
            }
        }
        all
    }

    /// Returns the method of compression of a file, its number of blocks, and how much to try.
    fn packing(&self, ino: Ino) -> Option<(Compression, u64, Effort)> {
        let state = self.fs.read();
        if !state.compression {
            return None;
        }
        // Only files with dirty pages have something to write.
        let core = state.cores.get(&(self.id, ino))?;
        let method = self.method_of(&state, &core.inode)?;
        Some((method, blocks_for(core.inode.size), core.effort))
    }

    /// Returns the method by which new content of an inode is compressed.
    pub(crate) fn method_of(&self, state: &State, inode: &Inode) -> Option<Compression> {
        let set = state.trees.get(&self.id)?.record.compression;
        let method = match (inode.flags, set) {
            (flags, _) if flags.has(InodeFlags::NO_COMPRESS) => None,
            (flags, None) if flags.has(InodeFlags::COMPRESS) => Some(Compression::Zstd),
            (_, set) => set,
        };
        method.filter(|_| state.compression && inode.kind == FileType::File)
    }
}

impl Op<'_> {
    /// Allocates the blocks of compressed chunks that a write of the `wanted` blocks can store.
    pub fn place_chunks(
        &mut self,
        ino: Ino,
        wanted: &Range<u64>,
        all: &[Packed],
    ) -> Result<Vec<PackedWrite>> {
        let mut placed = Vec::new();
        for (index, packed) in all.iter().enumerate() {
            let range = packed.first..packed.first + u64::from(packed.content);
            // The blocks of the chunk are taken from what its pages were promised, so they never
            // need more than that; pages that are to be written in place have no promise.
            let promised = &self.core(ino)?.promised;
            let is_promised = promised.missing(range.clone()).next().is_none();
            if range.start < wanted.start || range.end > wanted.end || !is_promised {
                continue;
            }
            let goal = self.chunk_goal(ino, &placed, range.start)?;
            let Some(run) = self.take_whole(goal, packed.blocks()) else {
                continue;
            };
            placed.push(PackedWrite {
                chunk: packed.record(run.start, bits_of(range.start, &range)),
                range,
                index,
                sums: Vec::new(),
            });
        }
        Ok(placed)
    }

    /// Finds the preferred location of a chunk: after the one before, or after the preceding block.
    fn chunk_goal(&self, ino: Ino, placed: &[PackedWrite], first: u64) -> Result<Option<u64>> {
        if let Some(last) = placed.last() {
            return Ok(Some(last.chunk.run().end()));
        }
        let Some(before) = first.checked_sub(CHUNK_BLOCKS) else {
            return Ok(None);
        };
        match self.chunks(self.tree, ino, &(before..first))?.first() {
            Some((_, chunk)) => Ok(Some(chunk.run().end())),
            None => self.goal(ino, first),
        }
    }

    /// Enters a chunk that was written into the metadata, as far as its blocks are still wanted.
    /// Returns the change of the number of blocks of the file, and whether the chunk is in use.
    pub fn enter_chunk(
        &mut self,
        ino: Ino,
        write: &PackedWrite,
        wanted: &Blocks,
    ) -> Result<(i64, bool)> {
        let (tree, first) = (self.tree, write.range.start);
        let (mut change, mut valid) = (0, 0);
        for part in wanted.within(write.range.clone()) {
            valid |= bits_of(first, &part);
            change -= self.unmap(tree, ino, part)? as i64;
        }
        if valid == 0 {
            return Ok((0, false));
        }
        if !self.chunks(tree, ino, &write.range)?.is_empty() {
            // Another write of blocks here ended during this one, and some of them are no longer
            // wanted from this one. The pages stay dirty, and are written again.
            let text = format!("inode {ino}: two writes of a compressed chunk at the same time");
            return Err(Error::new(Kind::Busy, text));
        }
        let chunk = Chunk {
            valid,
            ..write.chunk
        };
        self.map_chunk(tree, ino, (first, chunk))?;
        self.mark_used(chunk.run());
        if !write.sums.is_empty() {
            self.set_sums(chunk.run(), &write.sums);
        }
        Ok((change + i64::from(chunk.blocks), true))
    }
}
