//! Recompression: the content of a file is stored as if it were written now.
//!
//! ```text
//!   place of a chunk ──read, decompress──► compressed again, or plain ──durable──► one new record
//! ```
//!
//! A place is rewritten if its content is compressed by another method than its file and fileset ask
//! for, or if that saves a block: content that was written before the method was set, and chunks of
//! which parts were written again or removed. **Invariant:** that of the parent module. Also
//! deliberately absent: places with dirty pages, which are compressed when these are written back.

use super::{DefragProgress, Defragmented, Manner, Mode};
use crate::data::chunks::Placed;
use crate::data::codec::{Packed, unpack};
use crate::data::extents::{Mapped, cut_of, end_of};
use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::chunk::{CHUNK_BLOCKS, Chunk, Compression, bits_of, chunk_of};
use crate::format::key::{Ino, Item, TreeId};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, Extent, Run, blocks_for};
use crate::format::sums::Sum;
use crate::metadata::inode_state::{Blocks, Effort, InodeState};
use crate::metadata::op::Op;
use crate::metadata::state::State;
use block::Buf;
use std::ops::Range;

/// Places that one step rewrites at most: 8 MiB of content.
const STEP_PLACES: usize = 128;
/// Places that one step examines at most, so that a search does not keep others from the metadata.
const STEP_EXAMINED: usize = 512;

/// How the content of a place is stored.
#[derive(Debug, PartialEq, Eq)]
struct Stored {
    /// Extents, cut to the place.
    extents: Vec<Mapped>,
    chunk: Option<Placed>,
}

/// Place of a chunk in a file: blocks of the file, as far as its end.
struct Place {
    range: Range<u64>,
    stored: Stored,
}

/// Places to be rewritten.
struct Step {
    places: Vec<Place>,
    method: Option<Compression>,
    /// Writes of the file that had begun.
    begun: u64,
    /// Where the next step begins; `None` at the end of the file.
    next: Option<u64>,
}

/// New form of the content of a place.
struct Fresh {
    place: Place,
    form: Form,
    /// Its blocks on the device; empty until they are allocated.
    run: Run,
    sums: Vec<Sum>,
}

enum Form {
    Packed(Packed),
    /// The blocks with data, one after the other.
    Plain(Vec<u8>),
}

impl Stored {
    /// Finds the blocks of the file that have data.
    fn data(&self, range: &Range<u64>) -> Blocks {
        let written = self.extents.iter().filter(|(_, extent)| !extent.unwritten);
        let mut data = Blocks::default();
        for mapped in written {
            data.insert(mapped.0..end_of(mapped));
        }
        if let Some((first, chunk)) = &self.chunk {
            for run in chunk.valid_within(*first, range) {
                data.insert(run);
            }
        }
        data
    }

    /// Counts the blocks on the device that have data.
    fn blocks(&self) -> u64 {
        let written = self.extents.iter().filter(|(_, extent)| !extent.unwritten);
        let blocks: u64 = written.map(|(_, extent)| u64::from(extent.blocks)).sum();
        blocks + self.chunk.map_or(0, |(_, chunk)| chunk.run().blocks)
    }

    /// Reports whether another form might suit a method better.
    fn may_improve(&self, method: Option<Compression>) -> bool {
        match (&self.chunk, method) {
            (None, None) => false,
            // One block cannot become less than a block.
            (None, Some(_)) => self.blocks() > 1,
            (Some((_, chunk)), method) => {
                let is_whole = chunk.valid.count_ones() == u32::from(chunk.content);
                Some(chunk.method) != method || !is_whole || self.blocks() > chunk.run().blocks
            }
        }
    }
}

impl Form {
    fn blocks(&self) -> u64 {
        self.data().len() as u64 / BLOCK_BYTES
    }

    fn data(&self) -> &[u8] {
        match self {
            Form::Packed(packed) => &packed.data,
            Form::Plain(data) => data,
        }
    }
}

impl State {
    /// Finds the first place from a block on that has blocks of the device.
    fn place_after(&self, tree: TreeId, ino: Ino, block: u64) -> Result<Option<u64>> {
        let covering = !self.extents(tree, ino, block..block + 1)?.is_empty();
        let extent = if covering {
            Some(block)
        } else {
            self.extent_after(tree, ino, block)?.map(|mapped| mapped.0)
        };
        let chunk = self.chunk_blocks_after(tree, ino, block)?;
        let first = [extent, chunk.map(|run| run.start)];
        Ok(first.into_iter().flatten().min().map(chunk_of))
    }

    /// Reads how a place is stored; `None` if another file or a snapshot has some of its blocks, or if
    /// it has some behind the end of the file.
    fn stored(&self, tree: TreeId, ino: Ino, range: &Range<u64>) -> Result<Option<Stored>> {
        let mapped = self.extents(tree, ino, range.clone())?;
        let cuts = mapped.iter().map(|mapped| cut_of(mapped, range));
        let blocks: u64 = cuts.map(|cut| cut.end - cut.start).sum();
        let extents = self.own_parts(tree, ino, range.clone())?;
        let own: u64 = extents.iter().map(|(_, e)| u64::from(e.blocks)).sum();
        let chunk = self.chunks(tree, ino, range)?.pop();
        if own != blocks {
            return Ok(None);
        }
        if let Some((first, chunk)) = &chunk {
            let counts = self.counts_within(chunk.run())?;
            if chunk.without(bits_of(*first, range)).is_some()
                || self.is_kept(tree, ino, Item::Chunk, *first)?
                || counts.iter().any(|(_, count)| *count != 1)
            {
                return Ok(None);
            }
        }
        Ok(Some(Stored { extents, chunk }))
    }
}

/// Reports whether no page of these blocks is to be written.
fn is_clean(core: &InodeState, range: &Range<u64>) -> bool {
    let mut waiting = core.waiting();
    waiting.all(|blocks| !blocks.overlaps(range.clone()))
}

impl Fileset {
    /// Stores the content of a file as its settings ask for now. If the file changes, the rest stays as it
    /// is.
    pub(super) fn recompress_file(
        &self,
        manner: Manner<'_>,
        ino: Ino,
        done: &mut Defragmented,
        way: &mut DefragProgress,
    ) -> Result<()> {
        // From here on, its state stays in memory, and counts its writes.
        let blocks = self.open(ino)?.inode.blocks;
        let rewritten = self.recompress_open(manner, ino, way);
        let released = self.release(ino);
        let (moved, more) = rewritten?;
        released?;
        if moved > 0 {
            done.recompressed += 1;
            done.moved_blocks += moved;
            done.blocks_before += blocks;
            done.blocks_after += blocks.saturating_add_signed(more);
        }
        way.went(blocks);
        Ok(())
    }

    /// Rewrites the places of an open file. Returns the blocks written, and the change of the number
    /// of blocks.
    fn recompress_open(
        &self,
        manner: Manner<'_>,
        ino: Ino,
        way: &mut DefragProgress,
    ) -> Result<(u64, i64)> {
        let mut effort = Effort::default();
        let (mut moved, mut more) = (0, 0);
        let mut next = Some(0);
        while let Some(from) = next {
            manner.pace.pass(0)?;
            way.went(0);
            let space = &self.fs.space;
            let most = STEP_PLACES as u64 * CHUNK_BLOCKS;
            if manner.mode == Mode::Rewrite
                && space.has_quarantined()
                && space.usage().available < most
            {
                // Blocks freed by earlier steps become usable once those are durable.
                self.fs.sync()?;
            }
            // Before the lookup: none of the blocks that are read is used again.
            let entered = space.enter();
            let step = self.next_step(ino, from);
            let rewritten = step.and_then(|step| {
                let Some(step) = step else { return Ok(None) };
                let next = step.next;
                let by = self.rewrite(manner, ino, step, &mut effort)?;
                Ok(by.map(|by| (by, next)))
            });
            space.leave(entered);
            // A file that changes stays as it is from here on.
            let Some(((blocks, by), after)) = rewritten? else {
                break;
            };
            (moved, more) = (moved + blocks, more + by);
            next = after;
        }
        Ok((moved, more))
    }

    /// Finds the next places to be rewritten; `None` if the file is being written.
    fn next_step(&self, ino: Ino, from: u64) -> Result<Option<Step>> {
        let state = self.fs.read();
        let core = state.cores.get(&(self.id, ino));
        let Some(core) = core.filter(|core| core.writes.is_empty()) else {
            return Ok(None);
        };
        let method = self.method_of(&state, &core.inode);
        let end = blocks_for(core.inode.size);
        let (mut places, mut next) = (Vec::new(), Some(from));
        for _ in 0..STEP_EXAMINED {
            let Some(at) = next.filter(|_| places.len() < STEP_PLACES) else {
                break;
            };
            let first = state.place_after(self.id, ino, at)?;
            let Some(first) = first.filter(|first| *first < end) else {
                next = None;
                break;
            };
            next = Some(first + CHUNK_BLOCKS);
            let range = first..end.min(first + CHUNK_BLOCKS);
            if is_clean(core, &range)
                && let Some(stored) = state.stored(self.id, ino, &range)?
                && stored.may_improve(method)
            {
                places.push(Place { range, stored });
            }
        }
        Ok(Some(Step {
            places,
            method,
            begun: core.begun,
            next,
        }))
    }

    /// Rewrites places. Returns the blocks written, and the change of the number of blocks; `None` if
    /// the file has changed.
    fn rewrite(
        &self,
        manner: Manner<'_>,
        ino: Ino,
        step: Step,
        effort: &mut Effort,
    ) -> Result<Option<(u64, i64)>> {
        let mut all = Vec::new();
        for place in step.places {
            all.extend(self.fresh(manner, ino, place, step.method, effort)?);
        }
        if manner.mode == Mode::Rewrite {
            self.allocate_runs(&mut all);
        }
        if all.is_empty() {
            return Ok(Some((0, 0)));
        }
        let moved = all.iter().map(|fresh| fresh.form.blocks()).sum();
        if manner.mode == Mode::Plan {
            let more =
                |fresh: &Fresh| fresh.form.blocks() as i64 - fresh.place.stored.blocks() as i64;
            return Ok(Some((moved, all.iter().map(more).sum())));
        }
        let entered = self
            .store(&all)
            .and_then(|()| self.enter(ino, &all, step.begun));
        if !matches!(entered, Ok(Some(_))) {
            for fresh in &all {
                self.fs.space.release_run(fresh.run);
            }
        }
        Ok(entered?.map(|more| (moved, more)))
    }

    /// Reads a place, and computes its new form; `None` if that has no advantage.
    fn fresh(
        &self,
        manner: Manner<'_>,
        ino: Ino,
        place: Place,
        method: Option<Compression>,
        effort: &mut Effort,
    ) -> Result<Option<Fresh>> {
        let Place { range, stored } = &place;
        let is_plain = stored.chunk.is_none();
        if is_plain && !effort.tries() {
            return Ok(None);
        }
        let content = self.content(manner, ino, range, stored)?;
        let data = stored.data(range);
        let packed = method.and_then(|method| Packed::of(method, range.start, &content));
        let packed = packed.filter(|packed| packed.blocks() < data.count());
        if is_plain {
            effort.note(packed.is_some());
        }
        let form = packed.map_or_else(
            || {
                let bytes = |run: Range<u64>| {
                    let at = |block: u64| ((block - range.start) * BLOCK_BYTES) as usize;
                    content[at(run.start)..at(run.end)].to_vec()
                };
                Form::Plain(data.iter().flat_map(bytes).collect())
            },
            Form::Packed,
        );
        let has_other = stored.chunk.is_some_and(|(_, c)| Some(c.method) != method);
        if !has_other && form.blocks() >= stored.blocks() {
            return Ok(None);
        }
        let blocks = form.data().chunks(BLOCK_BYTES as usize);
        let sums = blocks.map(|block| self.fs.summer.sum_of(block)).collect();
        Ok(Some(Fresh {
            place,
            form,
            run: Run {
                start: 0,
                blocks: 0,
            },
            sums,
        }))
    }

    /// Reads the content of a place, with zeros for holes and for bytes behind an end.
    fn content(
        &self,
        manner: Manner<'_>,
        ino: Ino,
        range: &Range<u64>,
        stored: &Stored,
    ) -> Result<Vec<u8>> {
        let at = |block: u64| ((block - range.start) * BLOCK_BYTES) as usize;
        let mut content = vec![0; at(range.end)];
        for mapped in stored.extents.iter().filter(|(_, e)| !e.unwritten) {
            let part = &mut content[at(mapped.0)..at(end_of(mapped))];
            manner.pace.pass(part.len() as u64)?;
            self.fs
                .io
                .read(DeviceOffset::of_block(mapped.1.start), part)?;
            self.verify(ino, *mapped, 0, part)?;
            if mapped.1.tail != 0 {
                let valid = part.len() - (BLOCK_BYTES - u64::from(mapped.1.tail)) as usize;
                part[valid..].fill(0);
            }
        }
        if let Some((first, chunk)) = &stored.chunk {
            let unpacked = self.content_of_chunk(manner, ino, *first, chunk)?;
            for run in chunk.valid_within(*first, range) {
                content[at(run.start)..at(run.end)]
                    .copy_from_slice(&unpacked[at(run.start)..at(run.end)]);
            }
            if let Some((block, valid)) = chunk.tail {
                let end = at(first + u64::from(block) + 1);
                content[end - (BLOCK_BYTES - u64::from(valid)) as usize..end].fill(0);
            }
        }
        Ok(content)
    }

    fn content_of_chunk(
        &self,
        manner: Manner<'_>,
        ino: Ino,
        first: u64,
        chunk: &Chunk,
    ) -> Result<Vec<u8>> {
        let run = chunk.run();
        let mut data = vec![0; (run.blocks * BLOCK_BYTES) as usize];
        manner.pace.pass(data.len() as u64)?;
        self.fs
            .io
            .read(DeviceOffset::of_block(run.start), &mut data)?;
        let compressed = Extent {
            start: run.start,
            blocks: run.blocks as u32,
            unwritten: false,
            tail: 0,
        };
        self.verify(ino, (first, compressed), 0, &data)?;
        unpack(chunk, &data).ok_or_else(|| {
            let at = first * BLOCK_BYTES;
            self.note_mismatches(ino, &[at], || self.damaged_path(ino));
            let text = format!("inode {ino}: the compressed chunk at byte {at} is damaged");
            Error::new(Kind::Io, text)
        })
    }

    /// Allocates the blocks of new forms. Those without room are dropped: they stay as they are.
    fn allocate_runs(&self, all: &mut Vec<Fresh>) {
        let space = &self.fs.space;
        let mut goal = None;
        all.retain_mut(|fresh| {
            let blocks = fresh.form.blocks();
            if !space.reserve(blocks) {
                return false;
            }
            match space.allocate_whole(goal, blocks) {
                Some(run) => {
                    goal = Some(run.end());
                    fresh.run = run;
                }
                None => space.release_reserved(blocks),
            }
            fresh.run.blocks > 0
        });
    }

    /// Makes new forms durable in their blocks.
    fn store(&self, all: &[Fresh]) -> Result<()> {
        let longest = self.fs.io.info().max_transfer as usize;
        let mut ops = Vec::new();
        for fresh in all {
            let start = DeviceOffset::of_block(fresh.run.start);
            for (i, part) in fresh.form.data().chunks(longest).enumerate() {
                ops.push(block::Op::Write {
                    offset: start.plus((i * longest) as u64).bytes(),
                    bufs: Buf::copy_of(part).into(),
                    fua: false,
                });
            }
        }
        Ok(self.fs.io.write_and_flush(ops)?)
    }

    /// Replaces the records of places. Returns the change of the number of blocks; `None` if the file
    /// has changed since `begun` of its writes had begun, or if the metadata has no room.
    fn enter(&self, ino: Ino, all: &[Fresh], begun: u64) -> Result<Option<i64>> {
        let mut op = Op::begin(&self.fs, self.id)?;
        let core = op.state().cores.get(&(self.id, ino));
        let core = core.filter(|core| core.writes.is_empty() && core.begun == begun);
        let Some(core) = core else { return Ok(None) };
        for fresh in all {
            let Place { range, stored } = &fresh.place;
            let now = op.state().stored(self.id, ino, range)?;
            if !is_clean(core, range) || now.as_ref() != Some(stored) {
                return Ok(None);
            }
        }
        if op.check_last_room().is_err() {
            return Ok(None);
        }
        let (mut new, mut gone) = (0, 0);
        for fresh in all {
            gone += op.replace_place(ino, fresh)?;
            new += fresh.run.blocks;
        }
        if let Some(more) = new.checked_sub(gone).filter(|more| *more > 0) {
            op.check_quota(more)?;
        }
        let more = new as i64 - gone as i64;
        op.change(ino, |inode| {
            inode.blocks = inode.blocks.saturating_add_signed(more);
        })?;
        op.use_blocks(more);
        op.check_accounts()?;
        op.finish();
        Ok(Some(more))
    }
}

impl Op<'_> {
    /// Replaces the records of a place by that of its new form. Returns the number of blocks of the
    /// device that the file no longer has.
    fn replace_place(&mut self, ino: Ino, fresh: &Fresh) -> Result<u64> {
        let (tree, run) = (self.tree, fresh.run);
        let Place { range, stored } = &fresh.place;
        let data = stored.data(range);
        let mut gone = 0;
        for part in data.iter() {
            gone += self.unmap(tree, ino, part)?;
        }
        match &fresh.form {
            Form::Packed(packed) => {
                let valid = data
                    .iter()
                    .fold(0, |all, part| all | bits_of(range.start, &part));
                self.map_chunk(tree, ino, (range.start, packed.record(run.start, valid)))?;
            }
            Form::Plain(_) => {
                let mut start = run.start;
                for part in data.iter() {
                    let extent = Extent {
                        start,
                        blocks: (part.end - part.start) as u32,
                        unwritten: false,
                        tail: 0,
                    };
                    self.map(tree, ino, (part.start, extent))?;
                    start = extent.run().end();
                }
            }
        }
        self.mark_used(run);
        if self.checksums {
            self.set_sums(run, &fresh.sums);
        }
        Ok(gone)
    }
}
