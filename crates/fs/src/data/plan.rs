//! Planning of I/O: a page request of a file becomes requests of the device.
//!
//! **Invariant:** a planned write touches no block that a snapshot, a crash or another file could
//! still expose. Blocks with one reference are written in place if they were never written, if the
//! file system has no checksums, or, on a full device, after their checksums were durably dropped;
//! everything else goes to new blocks. When the write ends, the plan is entered into the metadata or
//! undone.

use crate::data::chunks::{PackedWrite, Placed};
use crate::data::codec::Packed;
use crate::data::content::split;
use crate::data::extents::{Mapped, cut_of, end_of};
use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::key::Ino;
use crate::format::record::{
    BLOCK_BYTES, DeviceOffset, Extent, FILE_SIZE_MAX, FileType, Run, blocks_for,
};
use crate::format::sums::{NO_SUM, Sum};
use crate::metadata::inode_state::{Blocks, Write};
use crate::metadata::op::Op;
use std::ops::Range;

/// Part of a request: a range of its bytes, and their offset on the device; `None` reads as zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub bytes: Range<u64>,
    pub device: Option<DeviceOffset>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadPlan {
    /// Parts of the request, in order and without gaps.
    pub parts: Vec<Part>,
    /// Bytes of the request to be zeroed, whatever the device returns.
    pub zeros: Vec<Range<u64>>,
    /// Checksum of each block that the device returns, and [`NO_SUM`] for the others; empty if
    /// there are none.
    pub sums: Vec<Sum>,
    /// Compressed chunks that blocks of the request are read from.
    pub chunks: Vec<ChunkRead>,
}

/// Compressed chunk from which a request reads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChunkRead {
    pub placed: Placed,
    /// Blocks of the file that the request reads from it.
    pub blocks: Vec<Range<u64>>,
    /// Checksum of each of its blocks on the device; empty for a file system without.
    pub sums: Vec<Sum>,
}

#[derive(Debug)]
pub(crate) struct WritePlan {
    pub ino: Ino,
    number: u64,
    /// Blocks of the request. Those beyond the end of the file are not written: they became dirty
    /// before the file was truncated.
    blocks: Range<u64>,
    /// Blocks of the file that are written in place.
    in_place: Vec<Mapped>,
    /// Blocks of the file that are written to new blocks.
    new: Vec<(u64, Run)>,
    /// Chunks of the file that are written compressed.
    chunks: Vec<PackedWrite>,
    /// Checksum of each block of the request; empty for a file system without.
    sums: Vec<Sum>,
    /// Whether the file system has checksums.
    checksums: bool,
    /// Whether the plan dropped checksums of blocks that will be overwritten.
    drops_sums: bool,
}

/// Computes the blocks of a request.
pub(crate) fn blocks_of(offset: u64, len: u64) -> Result<Range<u64>> {
    let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
    let end = end.ok_or(Kind::FileTooLarge)?;
    if !offset.is_multiple_of(BLOCK_BYTES) || !len.is_multiple_of(BLOCK_BYTES) || len == 0 {
        return Err(Error::new(
            Kind::Invalid,
            "offset or length is not a whole number of blocks",
        ));
    }
    Ok(offset / BLOCK_BYTES..end / BLOCK_BYTES)
}

impl Fileset {
    /// Plans a read of whole blocks.
    pub(crate) fn plan_read(&self, ino: Ino, blocks: Range<u64>) -> Result<ReadPlan> {
        let state = self.fs.read();
        let inode = state.inode(self.id, ino)?;
        if inode.kind != FileType::File {
            return Err(Error::new(Kind::Invalid, "not a regular file"));
        }
        let mut plan = ReadPlan::default();
        let at = |block: u64| (block - blocks.start) * BLOCK_BYTES;
        let mut done = blocks.start;
        for (first, extent) in state.extents(self.id, ino, blocks.clone())? {
            let part = first.max(blocks.start)..end_of(&(first, extent)).min(blocks.end);
            plan.add(at(done)..at(part.start), None);
            let start = extent.start + (part.start - first);
            let device = (!extent.unwritten).then_some(DeviceOffset::of_block(start));
            if state.checksums && !extent.unwritten {
                let run = Run {
                    start,
                    blocks: part.end - part.start,
                };
                plan.sums
                    .reserve_exact((blocks.end - blocks.start) as usize - plan.sums.len());
                plan.sums
                    .resize((part.start - blocks.start) as usize, NO_SUM);
                state.add_sums(run, &mut plan.sums)?;
            }
            plan.add(at(part.start)..at(part.end), device);
            if extent.tail != 0 && part.end == end_of(&(first, extent)) {
                plan.zeros
                    .push(at(part.end - 1) + u64::from(extent.tail)..at(part.end));
            }
            done = part.end;
        }
        plan.add(at(done)..at(blocks.end), None);
        for placed in state.chunks(self.id, ino, &blocks)? {
            let (first, chunk) = placed;
            let read = chunk.valid_within(first, &blocks);
            if read.is_empty() {
                continue;
            }
            let sums = if state.checksums {
                state.sums(chunk.run())?
            } else {
                Vec::new()
            };
            if let Some((block, bytes)) = chunk.tail.map(|(n, bytes)| (first + u64::from(n), bytes))
                && blocks.contains(&block)
            {
                plan.zeros.push(at(block) + u64::from(bytes)..at(block + 1));
            }
            plan.chunks.push(ChunkRead {
                placed,
                blocks: read,
                sums,
            });
        }
        // Bytes that a write left beyond the size on disk before a crash were never part of the
        // file.
        let (block, bytes) = split(inode.disk_size);
        if bytes != 0 && blocks.contains(&block) {
            plan.zeros.push(at(block) + u64::from(bytes)..at(block + 1));
        }
        Ok(plan)
    }

    /// Plans a write of whole blocks, of which some may have been compressed, and allocates the
    /// blocks that it needs.
    pub(crate) fn plan_write(
        &self,
        ino: Ino,
        blocks: Range<u64>,
        packed: &[Packed],
    ) -> Result<WritePlan> {
        self.fs
            .with_room(|| self.try_plan_write(ino, blocks.clone(), packed))
    }

    fn try_plan_write(&self, ino: Ino, blocks: Range<u64>, packed: &[Packed]) -> Result<WritePlan> {
        let mut op = Op::begin(&self.fs, self.id)?;
        let inode = op.read_inode(ino)?;
        if inode.kind != FileType::File {
            return Err(Error::new(Kind::Invalid, "not a regular file"));
        }
        let end = blocks_for(inode.size).clamp(blocks.start, blocks.end);
        let wanted = blocks.start..end;
        let overwritten = op.core(ino)?.in_place.clone();
        let targets = op.targets(self.id, ino, wanted.clone(), &overwritten)?;
        let (mut in_place, replaced) = (targets.in_place, targets.replaced);
        let checksums = op.checksums;
        let mut rest = Blocks::of(wanted.clone());
        let chunks = match op.place_chunks(ino, &wanted, packed) {
            Ok(chunks) => chunks,
            Err(error) => {
                op.return_taken();
                return Err(error);
            }
        };
        let mut in_chunks = Blocks::default();
        for chunk in &chunks {
            in_chunks.insert(chunk.range.clone());
            rest.remove(chunk.range.clone());
        }
        if !chunks.is_empty() {
            in_place = outside(&in_place, &in_chunks);
        }
        for part in &in_place {
            rest.remove(part.0..end_of(part));
        }
        let core = op.core(ino)?;
        let without = |run| core.promised.missing(run);
        let without: Vec<Range<u64>> = replaced.iter().flat_map(without).collect();
        let promised = core.promised.within(blocks.clone());
        let promised: u64 = promised.map(|run| run.end - run.start).sum();
        // All blocks of compressed chunks are promised, and stay so until the write ends.
        let promised = promised - in_chunks.count();
        let needed = rest.count();
        // Blocks are promised when pages become dirty. A write without a promise, or one that needs
        // more blocks because of a snapshot, has to reserve them now.
        if needed > promised
            && let Err(error) = op.promise_at_last(ino, needed - promised, without)
        {
            op.return_taken();
            return Err(error);
        }
        let new = match op.take_for(ino, &rest) {
            Ok(new) => new,
            Err(error) => {
                // The pages stay dirty and keep their promises.
                op.return_taken();
                op.release_reserved(ino, needed.saturating_sub(promised));
                op.end_replacing(ino, blocks);
                return Err(error);
            }
        };
        let core = op.core(ino)?;
        core.promised.remove(blocks.clone());
        core.in_place.remove(blocks.clone());
        let number = core
            .writes
            .last_key_value()
            .map_or(0, |(number, _)| number + 1);
        let write = Write {
            wanted: Blocks::of(wanted),
            tails: Vec::new(),
        };
        core.writes.insert(number, write);
        core.begun += 1;
        let mut drops_sums = false;
        for (_, extent) in in_place.iter().filter(|(_, e)| checksums && !e.unwritten) {
            // From here on, a crash may leave any mixture of the old and the new content.
            drops_sums = true;
            op.drop_sums(extent.run());
        }
        // The fileset keeps its promise until the blocks count as used; see `end_write`.
        if promised > needed {
            op.release_reserved(ino, promised - needed);
        }
        op.finish();
        Ok(WritePlan {
            ino,
            number,
            blocks,
            in_place,
            new,
            chunks,
            sums: Vec::new(),
            checksums,
            drops_sums,
        })
    }

    /// Enters a completed write into the metadata, or undoes it.
    ///
    /// # Errors
    /// The metadata could not be changed; the write is undone.
    pub(crate) fn end_write(&self, plan: WritePlan, went_well: bool) -> Result<()> {
        let result = if went_well {
            self.carry_in(&plan)
        } else {
            Ok(false)
        };
        match result {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.cancel(plan);
                Ok(())
            }
            Err(error) => {
                self.cancel(plan);
                Err(error)
            }
        }
    }

    /// Enters a write into the metadata. Returns `false` if it is to be undone without an error.
    fn carry_in(&self, plan: &WritePlan) -> Result<bool> {
        let (tree, ino) = (self.id, plan.ino);
        let mut op = Op::begin(&self.fs, tree)?;
        let write = op
            .cores
            .get(&(tree, ino))
            .and_then(|core| core.writes.get(&plan.number));
        let Some(write) = write else {
            // The file has been removed.
            return Ok(false);
        };
        let (wanted, tails) = (write.wanted.clone(), write.tails.clone());
        let inode = op.read_inode(ino)?;
        let (mut more, mut unwanted) = (0i64, Vec::new());
        for (first, run) in &plan.new {
            let blocks = *first..first + run.blocks;
            let place = |block: u64| run.start + (block - first);
            for part in wanted.within(blocks.clone()) {
                more -= op.unmap(tree, ino, part.clone())? as i64;
                let extent = Extent {
                    start: place(part.start),
                    blocks: (part.end - part.start) as u32,
                    unwritten: false,
                    tail: 0,
                };
                op.map(tree, ino, (part.start, extent))?;
                op.mark_used(extent.run());
                op.set_sums_of(plan, part.start, extent.run());
                more += i64::from(extent.blocks);
            }
            for part in wanted.missing(blocks) {
                unwanted.push(Run {
                    start: place(part.start),
                    blocks: part.end - part.start,
                });
            }
        }
        for part in &plan.in_place {
            for range in wanted.within(part.0..end_of(part)) {
                op.enter_in_place(plan, part, range)?;
            }
        }
        for chunk in &plan.chunks {
            let (change, is_used) = op.enter_chunk(ino, chunk, &wanted)?;
            more += change;
            if !is_used {
                unwanted.push(chunk.chunk.run());
            }
        }
        for (block, bytes) in tails {
            op.set_tail(tree, ino, block, bytes)?;
        }
        let reached = wanted.iter().last().map_or(0, |run| run.end * BLOCK_BYTES);
        let disk_size = inode.disk_size.max(inode.size.min(reached));
        if disk_size != inode.disk_size || more != 0 {
            op.change(ino, |inode| {
                inode.disk_size = disk_size;
                inode.blocks = inode.blocks.saturating_add_signed(more);
            })?;
            op.use_blocks(more);
        }
        // Nothing can fail from here on.
        unwanted
            .into_iter()
            .for_each(|run| op.space().release_run(run));
        op.end_promise(ino, plan.promised_blocks());
        op.space().release_reserved(plan.saved_blocks());
        if let Some(core) = op.cores.get_mut(&(tree, ino)) {
            core.writes.remove(&plan.number);
            core.settle_size();
        }
        op.end_replacing(ino, plan.blocks.clone());
        op.list_dirty((tree, ino));
        op.forget_idle((tree, ino));
        op.finish();
        Ok(true)
    }

    /// Releases the blocks of a write. Blocks that are still wanted keep their promise, because
    /// their pages are still dirty.
    fn cancel(&self, plan: WritePlan) {
        let mut state = self.fs.write();
        let mut core = state.cores.get_mut(&(self.id, plan.ino));
        let mut kept = 0;
        let write = core
            .as_mut()
            .and_then(|core| core.writes.remove(&plan.number));
        let wanted = write.unwrap_or_default().wanted;
        if let Some(core) = &mut core {
            for part in &plan.in_place {
                for run in wanted.within(part.0..end_of(part)) {
                    core.in_place.insert(run);
                }
            }
            for (first, run) in &plan.new {
                for run in wanted.within(*first..first + run.blocks) {
                    kept += core.promised.insert(run);
                }
            }
            for chunk in &plan.chunks {
                for run in wanted.within(chunk.range.clone()) {
                    kept += core.promised.insert(run);
                }
            }
        }
        let all = plan.promised_blocks();
        for (_, run) in plan.new {
            self.fs.space.return_run(run);
        }
        for chunk in plan.chunks {
            self.fs.space.return_run(chunk.chunk.run());
        }
        let gone = all - kept;
        self.fs.space.release_reserved(gone);
        if let Some(tree) = state.trees.get_mut(&self.id) {
            tree.promised = tree.promised.saturating_sub(gone);
        }
        state.owe((self.id, plan.ino), -(gone as i64));
        state.end_replacing(self.id, plan.ino, plan.blocks);
    }
}

impl ReadPlan {
    fn add(&mut self, bytes: Range<u64>, device: Option<DeviceOffset>) {
        if !bytes.is_empty() {
            self.parts.push(Part { bytes, device });
        }
    }
}

impl WritePlan {
    fn new_blocks(&self) -> u64 {
        self.new.iter().map(|(_, run)| run.blocks).sum()
    }

    /// Counts the blocks that were promised for what goes to new blocks.
    fn promised_blocks(&self) -> u64 {
        let chunks = self.chunks.iter().map(|c| c.range.end - c.range.start);
        self.new_blocks() + chunks.sum::<u64>()
    }

    /// Counts the promised blocks that compression saves.
    fn saved_blocks(&self) -> u64 {
        let chunks = self.chunks.iter();
        let saved = chunks.map(|c| c.range.end - c.range.start - c.chunk.run().blocks);
        saved.sum()
    }

    /// Counts the blocks that are written as they are. Without compressed chunks, they are the first
    /// ones of the request.
    pub fn written_blocks(&self) -> u64 {
        let in_place = self.in_place.iter().map(|(_, part)| u64::from(part.blocks));
        self.new_blocks() + in_place.sum::<u64>()
    }

    /// Reports whether a block of the request, counted from its start, is written as it is.
    pub fn is_written(&self, index: usize) -> bool {
        let block = self.blocks.start + index as u64;
        let in_place = self.in_place.iter().map(|part| part.0..end_of(part));
        let new = self
            .new
            .iter()
            .map(|(first, run)| *first..first + run.blocks);
        in_place.chain(new).any(|run| run.contains(&block))
    }

    /// Returns the compressed chunks of the request that are written.
    pub fn chunks(&mut self) -> &mut [PackedWrite] {
        &mut self.chunks
    }

    /// Reports whether the blocks written get checksums.
    pub fn has_checksums(&self) -> bool {
        self.checksums
    }

    /// Reports whether the write needs [`WritePlan::set_sums`] before it ends.
    pub fn needs_sums(&self) -> bool {
        self.checksums && self.sums.is_empty() && self.written_blocks() > 0
    }

    /// Reports whether the metadata has to be durable before the data is written: blocks with
    /// checksums are overwritten, which no longer have them.
    pub fn needs_sync(&self) -> bool {
        self.drops_sums
    }

    /// Sets the checksums of the blocks of the request, in order.
    pub fn set_sums(&mut self, sums: Vec<Sum>) {
        debug_assert_eq!(sums.len() as u64, self.blocks.end - self.blocks.start);
        self.sums = sums;
    }

    /// Collects the parts of the request to write, in order and without gaps.
    pub fn parts(&self) -> Vec<Part> {
        let in_place = self
            .in_place
            .iter()
            .map(|(first, extent)| (*first, extent.run()));
        let mut all: Vec<(u64, Run)> = in_place.chain(self.new.iter().copied()).collect();
        all.sort_unstable();
        let mut parts: Vec<Part> = Vec::new();
        for (first, run) in all {
            let start = (first - self.blocks.start) * BLOCK_BYTES;
            let bytes = start..start + run.blocks * BLOCK_BYTES;
            let device = DeviceOffset::of_block(run.start);
            let len = |part: &Part| part.bytes.end - part.bytes.start;
            match parts.last_mut() {
                Some(last)
                    if last.bytes.end == bytes.start
                        && last.device.map(|d| d.plus(len(last))) == Some(device) =>
                {
                    last.bytes.end = bytes.end;
                }
                _ => parts.push(Part {
                    bytes,
                    device: Some(device),
                }),
            }
        }
        parts
    }
}

/// Cuts parts of a file to the blocks that are not in a set.
fn outside(parts: &[Mapped], blocks: &Blocks) -> Vec<Mapped> {
    let mut cut = Vec::new();
    for part in parts {
        for run in blocks.missing(part.0..end_of(part)) {
            let skip = run.start - part.0;
            cut.push((run.start, part.1.part(skip, run.end - run.start)));
        }
    }
    cut
}

impl Op<'_> {
    /// Sets the checksums of written blocks, the first of which is block `first` of the file.
    fn set_sums_of(&mut self, plan: &WritePlan, first: u64, run: Run) {
        if plan.checksums {
            let from = (first - plan.blocks.start) as usize;
            self.set_sums(run, &plan.sums[from..from + run.blocks as usize]);
        }
    }

    /// Enters a part of a write that went to blocks which the file already had.
    fn enter_in_place(&mut self, plan: &WritePlan, to: &Mapped, range: Range<u64>) -> Result<()> {
        let (tree, ino) = (self.tree, plan.ino);
        if !plan.checksums {
            return self.set_written(tree, ino, range);
        }
        for mapped in self.extents(tree, ino, range.clone())? {
            let cut = cut_of(&mapped, &range);
            let start = mapped.1.start + (cut.start - mapped.0);
            // A later write of these blocks may have ended first; its data is in another place.
            let is_same = start == to.1.start + (cut.start - to.0);
            if is_same && mapped.1.unwritten == to.1.unwritten {
                let blocks = cut.end - cut.start;
                self.set_sums_of(plan, cut.start, Run { start, blocks });
                self.set_written(tree, ino, cut)?;
            }
        }
        Ok(())
    }

    /// Promises blocks to a write that is already in progress, from the reserve of the metadata if
    /// necessary. Some of them replace the `replaced` blocks of the file.
    fn promise_at_last(&mut self, ino: Ino, blocks: u64, replaced: Vec<Range<u64>>) -> Result<()> {
        let replaced_blocks: u64 = replaced.iter().map(|run| run.end - run.start).sum();
        let growth = blocks.saturating_sub(replaced_blocks);
        if growth > 0 {
            self.check_quota(growth)?;
            self.check_owners(ino, growth)?;
        }
        if !self.space().reserve(blocks) && !self.space().reserve_from_metadata(blocks) {
            return Err(crate::space::full());
        }
        let id = self.tree;
        let core = self.cores.get_mut(&(id, ino));
        let replacing: u64 = core.map_or(0, |core| {
            let replaced = replaced.into_iter();
            replaced.map(|run| core.replacing.insert(run)).sum()
        });
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.promised += blocks;
            tree.replacing += replacing;
        }
        self.owe((id, ino), blocks as i64 - replacing as i64);
        Ok(())
    }

    /// Allocates promised blocks for blocks of a file.
    fn take_for(&mut self, ino: Ino, blocks: &Blocks) -> Result<Vec<(u64, Run)>> {
        let mut new = Vec::new();
        for hole in blocks.iter() {
            let mut at = hole.start;
            let mut goal = self.goal(ino, at)?;
            while at < hole.end {
                let run = self.take(goal, hole.end - at)?;
                new.push((at, run));
                at += run.blocks;
                goal = Some(run.end());
            }
        }
        Ok(new)
    }

    /// Ends a promise of the fileset whose blocks were allocated.
    fn end_promise(&mut self, ino: Ino, blocks: u64) {
        let id = self.tree;
        self.owe((id, ino), -(blocks as i64));
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.promised = tree.promised.saturating_sub(blocks);
        }
    }
}
