//! The file in which `redb` stores its data: sparse, and growing.
//!
//! The segments of the superblock map its blocks to the device. **Invariant:** a segment and the
//! length are durable before anything in them is; a block that was never written reads as zeros.
//! Blocks that `redb` writes are buffered in memory until it requests a sync, and are then written
//! together. With [`Access::ReadOnly`] they stay in memory, so that even a file system that was not
//! closed can be read without changing it. Then the device does not change either, and is read ahead.

mod ahead;

use crate::device_io::DeviceIo;
use crate::error::{Error, Kind, Result};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, Run};
use crate::format::superblock::{SEGMENTS_MAX, Segment, Superblock, TagsRoot};
use crate::integrity::{IntegrityKey, tampered};
use crate::metadata::page_layout::PageLayout;
use crate::metadata::read_ahead::ReadAhead;
use crate::metadata::superblock_file::SuperblockFile;
use crate::metadata::tags::{PAGES_MAX, Place, Read, Tags, Unreadable, file_blocks};
use crate::space::Space;
use block::{Access, Buf, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Contents of blocks, by their number.
type Blocks = BTreeMap<u64, Arc<[u8; BLOCK]>>;

/// Number of buffered blocks above which they are written without a sync: 16 MiB.
const PENDING_MAX: usize = 4096;
/// Number of blocks that differ from their tags and are reported; further ones are not.
const REPORTED_MAX: usize = 16;
/// Largest merged write in bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Smallest number of blocks allocated at once, if there is that much space.
const UNIT_BLOCKS_MIN: u64 = 64;
/// Largest number of blocks allocated at once: 64 MiB.
const UNIT_BLOCKS_MAX: u64 = 16_384;

/// Backing store of the metadata database. See the module.
pub(crate) struct DatabaseFile {
    io: Arc<DeviceIo>,
    superblock: Arc<SuperblockFile>,
    space: Arc<Space>,
    access: Access,
    state: Mutex<State>,
    /// Pages that were read ahead, if the device does not change.
    ahead: Mutex<ReadAhead>,
    /// Geometry of the file, for that; `None` if its header is damaged.
    layout: OnceLock<Option<PageLayout>>,
    /// Tags of all blocks, if they are keyed. Locked after the state, and before the superblock.
    tags: Option<Mutex<Tagged>>,
}

struct Tagged {
    tags: Tags,
    /// Whether a write failed: another one could overwrite blocks to which a superblock refers.
    failed: bool,
    /// Blocks that did not match, which are reported once.
    reported: BTreeSet<u64>,
}

#[derive(Default)]
struct State {
    /// Blocks that are not on the device yet.
    pending: Blocks,
    /// Whether the superblock has changes that are not on the device yet.
    superblock_changed: bool,
    /// Length in bytes; the only place for it if the file is read-only.
    len: u64,
}

impl DatabaseFile {
    pub fn new(
        io: Arc<DeviceIo>,
        superblock: Arc<SuperblockFile>,
        space: Arc<Space>,
        access: Access,
    ) -> DatabaseFile {
        let (len, root) = {
            let superblock = superblock.lock();
            (superblock.metadata_bytes, superblock.tags)
        };
        let tagged = |key: &Arc<IntegrityKey>| {
            Mutex::new(Tagged {
                tags: Tags::new(Arc::clone(key), root),
                failed: false,
                reported: BTreeSet::new(),
            })
        };
        DatabaseFile {
            tags: superblock.key().map(tagged),
            io,
            superblock,
            space,
            access,
            state: Mutex::new(State {
                len,
                ..State::default()
            }),
            ahead: Mutex::default(),
            layout: OnceLock::new(),
        }
    }

    fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Reads whole blocks from the device.
    fn read_below(&self, first: u64, out: &mut [u8]) -> block::Result<()> {
        let mut at = 0;
        while at < out.len() {
            let block = first + (at / BLOCK) as u64;
            let left = ((out.len() - at) / BLOCK) as u64;
            let (place, run) = locate(&self.superblock.lock().segments, block);
            let bytes = run.min(left) as usize * BLOCK;
            let part = &mut out[at..at + bytes];
            match place {
                Some(start) => self.io.read(DeviceOffset::of_block(start), part)?,
                None => part.fill(0),
            }
            at += bytes;
        }
        Ok(())
    }

    /// Reads whole blocks, including buffered ones.
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> block::Result<()> {
        let count = (out.len() / BLOCK) as u64;
        let waiting = |state: &State| {
            let range = state.pending.range(first..first + count);
            range
                .map(|(block, data)| (*block, Arc::clone(data)))
                .collect::<Vec<_>>()
        };
        // Taken first: a block buffered now may be on the device, and no longer in memory, before
        // the device is read.
        let pending = waiting(&self.lock());
        if pending.len() as u64 != count {
            match &self.tags {
                None => self.read_unbuffered(first, first, out)?,
                Some(tagged) => {
                    let is_pending = |block| pending.iter().any(|(at, _)| *at == block);
                    for (block, part) in (first..).zip(out.chunks_mut(BLOCK)) {
                        if !is_pending(block) && !self.read_tagged(tagged, block, part)? {
                            // As for what lies behind the end. A page has more than one block only
                            // if a value is long.
                            out.fill(0);
                            return Ok(());
                        }
                    }
                }
            }
        }
        for (block, data) in pending {
            let at = (block - first) as usize * BLOCK;
            out[at..at + BLOCK].copy_from_slice(&data[..]);
        }
        Ok(())
    }

    /// Reads a block from the device, or zeros if it was never written. Returns `false` if it, or a
    /// node above it, does not match its tag.
    fn read_tagged(
        &self,
        tagged: &Mutex<Tagged>,
        block: u64,
        out: &mut [u8],
    ) -> block::Result<bool> {
        let place = Place::of_page(block);
        let mut locked = self.lock_tags(tagged);
        let found = locked.tags.find(place, &|at, out| self.read_below(at, out));
        drop(locked);
        let matches = match found {
            Ok(None) => {
                out.fill(0);
                true
            }
            Ok(Some(known)) => {
                self.read_unbuffered(block, known.block, out)?;
                let key = self.superblock.key();
                key.is_some_and(|key| key.block_tag(out) == known.tag)
            }
            Err(Unreadable::Tampered) => false,
            Err(Unreadable::Device(error)) => return Err(error),
        };
        if !matches && self.lock_tags(tagged).is_new(block) {
            tracing::error!(
                name: "EVFS-0209",
                "{}: {}",
                self.io.info().name,
                tampered(format_args!("block {block} of the metadata"))
            );
        }
        Ok(matches)
    }

    /// Returns the length of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().len
    }

    /// Reads bytes of the file, including buffered ones; zeros beyond the end.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> block::Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.lock().len) {
            // Damaged metadata refers to such bytes. Zeros are not a valid page, which the reader
            // detects; an error would count as a device error, after which `redb` refuses to read
            // anything, even data that could be saved. A page may claim a length of up to 4 GiB, so
            // the bytes are counted for readers that carry on.
            self.superblock.note_beyond(out.len());
            out.fill(0);
            return Ok(());
        }
        let (first, skip) = (offset / BLOCK_BYTES, (offset % BLOCK_BYTES) as usize);
        if skip == 0 && out.len().is_multiple_of(BLOCK) {
            return self.read_blocks(first, out);
        }
        let mut whole = vec![0; (skip + out.len()).next_multiple_of(BLOCK)];
        self.read_blocks(first, &mut whole)?;
        out.copy_from_slice(&whole[skip..skip + out.len()]);
        Ok(())
    }

    fn lock_tags<'a>(&self, tagged: &'a Mutex<Tagged>) -> MutexGuard<'a, Tagged> {
        tagged.lock().expect("no panic under this lock")
    }

    /// Ensures that a block is mapped to the device, and those that change with it.
    fn place(&self, state: &mut State, block: u64) -> Result<()> {
        let mut superblock = self.superblock.lock();
        if self.is_read_only() {
            return Ok(());
        }
        let mut place = |block| {
            if locate(&superblock.segments, block).0.is_none() {
                map(&mut superblock.segments, &self.space, block)?;
                state.superblock_changed = true;
            }
            Ok(())
        };
        match self.tags {
            None => place(block),
            Some(_) => Place::of_page(block).blocks_of_path().try_for_each(place),
        }
    }

    /// Writes the buffered blocks and flushes the device.
    fn write_out(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let (pending, superblock_changed) = {
            let state = self.lock();
            (state.pending.clone(), state.superblock_changed)
        };
        if let Some(tagged) = &self.tags {
            if pending.is_empty() && !superblock_changed {
                return Ok(self.io.flush()?);
            }
            self.write_tagged(tagged, &pending, None)?;
            let mut state = self.lock();
            (state.pending, state.superblock_changed) = (BTreeMap::new(), false);
            return Ok(());
        }
        if superblock_changed {
            self.superblock.write()?;
            self.lock().superblock_changed = false;
        }
        let ops = self.gather(&pending);
        self.io.write_and_flush(ops)?;
        let mut state = self.lock();
        // `redb` has one writer, which waits here: the buffered blocks are exactly those written.
        state.pending.clear();
        Ok(())
    }

    /// Writes blocks, their tags, and then the superblock, which makes all of it valid at once: until
    /// then, none of the blocks that it refers to is overwritten. With `cut`, removes the blocks from
    /// this one on. Returns the runs on the device that are no longer mapped.
    fn write_tagged(
        &self,
        tagged: &Mutex<Tagged>,
        pending: &Blocks,
        cut_at: Option<u64>,
    ) -> Result<Vec<Run>> {
        let (blocks, root) = self.update_tags(tagged, pending, cut_at)?;
        // Without the lock: readers get these blocks from memory, and others do not change.
        let ops = self.gather(&blocks);
        // Durable before the superblock, which is written behind a barrier.
        self.io.write(ops)?;
        let behind = {
            let mut superblock = self.superblock.lock();
            superblock.tags = root;
            let end = cut_at.map(file_blocks);
            end.map_or(Vec::new(), |end| cut(&mut superblock.segments, end))
        };
        self.superblock.write()?;
        self.lock_tags(tagged).failed = false;
        Ok(behind)
    }

    /// Updates the tags in memory for [`DatabaseFile::write_tagged`], which has failed until it says
    /// otherwise. Returns the blocks to be written, nodes included, and the new root.
    fn update_tags(
        &self,
        tagged: &Mutex<Tagged>,
        pending: &Blocks,
        cut_at: Option<u64>,
    ) -> Result<(Blocks, TagsRoot)> {
        let mut tagged = self.lock_tags(tagged);
        if tagged.failed {
            let text = "the metadata cannot be written after an error";
            return Err(Error::new(Kind::Io, text));
        }
        tagged.failed = true;
        let read: Read = &|at, out| self.read_below(at, out);
        let tags = &mut tagged.tags;
        let mut update = || {
            if let Some(pages) = cut_at {
                tags.cut(pages, read)?;
            }
            let mut blocks = BTreeMap::new();
            for (block, data) in pending {
                let place = Place::of_page(*block);
                blocks.insert(tags.set(place, &data[..], read)?, Arc::clone(data));
            }
            let (nodes, root) = tags.finish(read)?;
            blocks.extend(nodes.into_iter().map(|(at, node)| (at, node.into())));
            Ok((blocks, root))
        };
        update().map_err(|error| match error {
            Unreadable::Device(error) => error.into(),
            Unreadable::Tampered => tampered("the tree of tags of the metadata"),
        })
    }

    /// Builds the writes for the buffered blocks, with adjacent blocks merged.
    fn gather(&self, pending: &Blocks) -> Vec<Op> {
        let longest = WRITE_BYTES_MAX.min(self.io.info().max_transfer as usize) / BLOCK;
        let superblock = self.superblock.lock();
        let mut ops = Vec::new();
        let mut run: Vec<Buf> = Vec::new();
        let mut start = 0;
        for (block, data) in pending {
            let place = locate(&superblock.segments, *block).0;
            let place = place.expect("a block has a place before it waits");
            if !run.is_empty() && (place != start + run.len() as u64 || run.len() == longest) {
                ops.push(write(start, std::mem::take(&mut run)));
            }
            if run.is_empty() {
                start = place;
            }
            run.push(Buf::copy_of(&data[..]));
        }
        if !run.is_empty() {
            ops.push(write(start, run));
        }
        ops
    }
}

fn write(start: u64, run: Vec<Buf>) -> Op {
    Op::Write {
        offset: DeviceOffset::of_block(start).bytes(),
        bufs: run.into(),
        fua: false,
    }
}

/// Finds the location of a block on the device, and the number of blocks from it on that are
/// alike: mapped to consecutive blocks, or not mapped.
fn locate(segments: &[Segment], block: u64) -> (Option<u64>, u64) {
    let placed = &segments[..segments.partition_point(|s| !s.is_spare())];
    let after = placed.partition_point(|s| u64::from(s.logical) <= block);
    if let Some(segment) = after.checked_sub(1).map(|i| placed[i]) {
        let skip = block - u64::from(segment.logical);
        if skip < u64::from(segment.blocks) {
            return (Some(segment.start + skip), u64::from(segment.blocks) - skip);
        }
    }
    let next = placed.get(after).map_or(u64::MAX, |s| s.logical.into());
    (None, next - block)
}

/// Maps a block together with its neighbors; the number of blocks is 1/8 of those mapped so far, and
/// at most 1/8 of those that are left: a commit on a full device touches blocks in several places.
fn map(segments: &mut Vec<Segment>, space: &Space, block: u64) -> Result<()> {
    let end_of = |s: &Segment| u64::from(s.logical) + u64::from(s.blocks);
    let placed = segments.partition_point(|s| !s.is_spare());
    let after = segments[..placed].partition_point(|s| u64::from(s.logical) <= block);
    let hole_start = after.checked_sub(1).map_or(0, |i| end_of(&segments[i]));
    let hole_end = match segments[..placed].get(after) {
        Some(next) => next.logical.into(),
        None => u64::from(u32::MAX),
    };
    let total: u64 = segments[..placed].iter().map(|s| u64::from(s.blocks)).sum();
    let mut unit = (total / 8)
        .next_power_of_two()
        .clamp(UNIT_BLOCKS_MIN, UNIT_BLOCKS_MAX);
    if space.is_loaded() {
        let share = space.metadata_left(8 * unit) / 8;
        unit = unit.min(share.max(1).next_power_of_two());
    }
    let before = after.checked_sub(1).map(|i| segments[i]);
    loop {
        let from = (block - block % unit).max(hole_start);
        let blocks = (from + unit - from % unit).min(hole_end) - from;
        let follows = before.filter(|s| end_of(s) == from);
        let goal = follows.map(|s| s.start + u64::from(s.blocks));
        let found = if space.is_loaded() {
            space.allocate_metadata(goal, blocks).map(|run| run.start)
        } else {
            from_spare(segments, blocks)
        };
        if let Some(start) = found {
            if follows.is_some() && goal == Some(start) {
                segments[after - 1].blocks += blocks as u32;
            } else {
                let segment = Segment {
                    logical: from as u32,
                    blocks: blocks as u32,
                    start,
                };
                segments.insert(after, segment);
            }
            return Ok(());
        }
        if unit == 1 || segments.len() >= SEGMENTS_MAX {
            let text = "no space left on the device for metadata";
            return Err(Error::new(Kind::NoSpace, text));
        }
        unit /= 2;
    }
}

/// Unmaps all blocks from `end` on. Returns their runs on the device.
fn cut(segments: &mut Vec<Segment>, end: u64) -> Vec<Run> {
    let mut behind = Vec::new();
    for segment in segments.iter_mut().filter(|s| !s.is_spare()) {
        let keep = end
            .saturating_sub(segment.logical.into())
            .min(segment.blocks.into());
        let run = Run {
            start: segment.start + keep,
            blocks: u64::from(segment.blocks) - keep,
        };
        if run.blocks > 0 {
            segment.blocks = keep as u32;
            behind.push(run);
        }
    }
    segments.retain(|segment| segment.blocks > 0);
    behind
}

/// Takes blocks from the end of a spare.
fn from_spare(segments: &mut Vec<Segment>, blocks: u64) -> Option<u64> {
    let fits = |s: &Segment| s.is_spare() && u64::from(s.blocks) >= blocks;
    let at = segments.iter().position(fits)?;
    let spare = &mut segments[at];
    spare.blocks -= blocks as u32;
    let start = spare.start + u64::from(spare.blocks);
    if spare.blocks == 0 {
        segments.remove(at);
    }
    Some(start)
}

/// Sets space aside for the next open. Returns whether the superblock has changed.
pub(crate) fn keep_spare(superblock: &mut Superblock, space: &Space) -> bool {
    let spare = |s: &&Segment| s.is_spare();
    let kept: u64 = superblock
        .segments
        .iter()
        .filter(spare)
        .map(|s| u64::from(s.blocks))
        .sum();
    if kept >= UNIT_BLOCKS_MIN || superblock.segments.len() >= SEGMENTS_MAX {
        return false;
    }
    match space.allocate_metadata(None, UNIT_BLOCKS_MIN) {
        Some(run) => {
            let segment = Segment::spare(run.start, run.blocks as u32);
            superblock.segments.push(segment);
            true
        }
        None => false,
    }
}

impl Tagged {
    /// Reports whether a block is to be reported. Damage of a node concerns many.
    fn is_new(&mut self, block: u64) -> bool {
        self.reported.len() < REPORTED_MAX && self.reported.insert(block)
    }
}

impl fmt::Debug for DatabaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseFile({})", self.io.info().name)
    }
}

fn other(error: impl Into<Error>) -> io::Error {
    io::Error::other(error.into())
}

impl redb::StorageBackend for DatabaseFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, out).map_err(other)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.tags.is_some() && len > PAGES_MAX * BLOCK_BYTES {
            let text = "metadata with keyed checksums cannot be larger than 62 GiB";
            return Err(other(Error::new(Kind::NoSpace, text)));
        }
        let mut state = self.lock();
        let shorter = len < state.len;
        state.len = len;
        state.pending.split_off(&len.div_ceil(BLOCK_BYTES));
        if self.is_read_only() {
            return Ok(());
        }
        if let Some(tagged) = &self.tags {
            self.superblock.lock().metadata_bytes = len;
            state.superblock_changed = true;
            if shorter {
                let end = len.div_ceil(BLOCK_BYTES);
                let behind = self.write_tagged(tagged, &BTreeMap::new(), Some(end));
                state.superblock_changed = false;
                behind
                    .map_err(other)?
                    .into_iter()
                    .for_each(|run| self.space.add(run));
            }
            return Ok(());
        }
        let behind = {
            let mut superblock = self.superblock.lock();
            superblock.metadata_bytes = len;
            if shorter {
                cut(&mut superblock.segments, len.div_ceil(BLOCK_BYTES))
            } else {
                Vec::new()
            }
        };
        state.superblock_changed = true;
        if shorter {
            // No other user may get the blocks while a superblock assigns them to the metadata.
            self.superblock.write().map_err(other)?;
            state.superblock_changed = false;
            behind.into_iter().for_each(|run| self.space.add(run));
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.write_out().map_err(other)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while at < data.len() {
            let position = offset + at as u64;
            let (block, skip) = (position / BLOCK_BYTES, (position % BLOCK_BYTES) as usize);
            let part = &data[at..data.len().min(at + BLOCK - skip)];
            let mut content = [0; BLOCK];
            if part.len() < BLOCK {
                self.read_blocks(block, &mut content).map_err(other)?;
            }
            content[skip..skip + part.len()].copy_from_slice(part);
            let mut state = self.lock();
            self.place(&mut state, block).map_err(other)?;
            if state.pending.insert(block, Arc::new(content)).is_none() {
                self.superblock.note_written();
            }
            at += part.len();
        }
        if self.lock().pending.len() > PENDING_MAX {
            self.write_out().map_err(other)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::{Mem, Random};
    use redb::StorageBackend;

    fn file(mem: Mem) -> (DatabaseFile, Arc<SuperblockFile>, Arc<Space>) {
        let io = Arc::new(DeviceIo::start(Arc::new(mem)).unwrap());
        let superblock = Superblock::new(64 << 20, "", [1; 32], 0).unwrap();
        let first = superblock.first_block();
        let space = Arc::new(Space::new(0));
        space.add(Run {
            start: first,
            blocks: superblock.device_blocks - first,
        });
        space.set_loaded();
        let superblock = Arc::new(SuperblockFile::new(Arc::clone(&io), superblock, None));
        let file = DatabaseFile::new(
            io,
            Arc::clone(&superblock),
            Arc::clone(&space),
            Access::ReadWrite,
        );
        (file, superblock, space)
    }

    #[test]
    fn what_lies_behind_the_end_is_no_error_which_would_end_all_reading() {
        let (file, superblock, _) = file(Mem::new(64 << 20, 512));
        file.set_len(8192).unwrap();
        file.write(0, &[7; 8192]).unwrap();
        for offset in [4097, 8192, 1 << 40, u64::MAX - 100] {
            let mut out = [1; 4096];
            file.read(offset, &mut out).unwrap();
            assert!(out == [0; 4096], "{offset}");
        }
        let mut out = [1; 4096];
        file.read(4096, &mut out).unwrap();
        assert!(out == [7; 4096]);
        // A page that is longer than all metadata is no error either.
        let before = superblock.beyond();
        let mut out = [1; 8193];
        file.read(0, &mut out).unwrap();
        assert!(out == [0; 8193]);
        assert_eq!(superblock.beyond() - before, 8193);
    }

    /// A commit on a full device touches blocks in several places of the file.
    #[test]
    fn no_place_takes_all_blocks_that_are_left() {
        let (file, _, space) = file(Mem::new(64 << 20, 512));
        file.set_len(48 << 20).unwrap();
        file.write(0, &vec![7; 8 << 20]).unwrap();
        let left = space.metadata_left(u64::MAX);
        space.allocate_metadata(None, left - 256).unwrap();
        for place in 3..11 {
            file.write(place * (4 << 20), &[8; 4096]).unwrap();
        }
    }

    #[test]
    fn what_is_written_reads_back_before_and_after_a_sync_and_holes_are_zeros() {
        let mem = Mem::new(64 << 20, 512);
        let (file, superblock, _) = file(mem);
        let len = 8 << 20;
        file.set_len(len as u64).unwrap();
        let mut model = vec![0u8; len];
        let mut random = Random::new(1);
        for round in 0..300 {
            let offset = random.below(len as u64) as usize;
            let bytes = random.below(30_000).min((len - offset) as u64) as usize;
            random.fill(&mut model[offset..offset + bytes]);
            file.write(offset as u64, &model[offset..offset + bytes])
                .unwrap();
            if round % 50 == 0 {
                file.sync_data().unwrap();
            }
            let from = random.below(len as u64 - 5000) as usize;
            let mut out = vec![1; 5000];
            file.read(from as u64, &mut out).unwrap();
            assert!(out == model[from..from + 5000], "round {round}");
        }
        file.sync_data().unwrap();
        let io = Arc::clone(&file.io);
        let again = SuperblockFile::read(Arc::clone(&io), &Mem::new(1 << 20, 512)).unwrap();
        assert_eq!(*again.lock(), *superblock.lock());
        let space = Arc::new(Space::new(0));
        let file = DatabaseFile::new(io, Arc::new(again), space, Access::ReadOnly);
        let mut out = vec![0; len];
        file.read(0, &mut out).unwrap();
        assert!(out == model);
        file.write(5, b"kept in memory").unwrap();
        file.sync_data().unwrap();
        file.read(5, &mut out[..14]).unwrap();
        assert_eq!(out[..14], *b"kept in memory");
    }

    #[test]
    fn places_come_in_growing_pieces_and_the_last_from_scraps() {
        let space = Space::new(0);
        space.set_loaded();
        space.add(Run {
            start: 1000,
            blocks: 4096,
        });
        for block in 0..16 {
            space.add(Run {
                start: 10_000 + block * 2,
                blocks: 1,
            });
        }
        let mut segments = Vec::new();
        let mut placed = 0;
        while locate(&segments, placed).0.is_some() || map(&mut segments, &space, placed).is_ok() {
            placed += 1;
        }
        assert_eq!(placed, 4096 + 16);
        assert_eq!(segments.len(), 17);
        assert!(space.unused().is_empty());
    }

    #[test]
    fn a_shorter_length_gives_its_blocks_back() {
        let (file, superblock, space) = file(Mem::new(64 << 20, 512));
        let free = space.usage().free;
        file.set_len(4 << 20).unwrap();
        file.write(0, &vec![1; 4 << 20]).unwrap();
        file.sync_data().unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(free - space.usage().free, 256);
        let segments = superblock.lock().segments.clone();
        assert_eq!(segments.iter().map(|s| s.blocks).sum::<u32>(), 256);
        file.set_len(2 << 20).unwrap();
        let mut out = vec![9; 1 << 20];
        file.read(1 << 20, &mut out).unwrap();
        assert!(
            out.iter().all(|byte| *byte == 0),
            "what was cut off is not there again"
        );
    }

    #[test]
    fn before_the_allocator_is_loaded_the_spare_serves() {
        let space = Space::new(0);
        let mut segments = vec![Segment::spare(500, 70)];
        map(&mut segments, &space, 3).unwrap();
        assert_eq!(locate(&segments, 3).0, Some(506 + 3));
        assert_eq!(segments.last().unwrap().blocks, 6);
        map(&mut segments, &space, 64).unwrap();
        assert!(locate(&segments, 64).0.is_some());
        assert!(
            !segments
                .iter()
                .any(|s| s.start < 500 || s.start + u64::from(s.blocks) > 570)
        );
    }
}
