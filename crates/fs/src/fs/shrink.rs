//! Shrinking: everything beyond the new end of the file system moves below it.
//!
//! ```text
//!   metadata ──copy──► free blocks ──durable──► superblock refers to them
//!   data     ──copy──► free blocks ──durable──► all records refer to them, in one operation
//!   nothing left beyond the end, committed  ──► superblock states the new end
//! ```
//!
//! A record belongs to a layer, and all records of a block change at once, with its count and its
//! checksum; so filesets and snapshots stay as they are, and keep sharing it. **Invariant:** until the
//! superblock states the new end, the file system is complete in its old size, and after a crash it
//! opens as always. So a shrink can be interrupted at any moment, and started again. Blocks without a
//! valid checksum are copied as they are, and keep their checksum. The memory is about 60 bytes
//! for each extent or compressed chunk beyond the end.

mod chunks;

use super::Fs;
use super::open::backlog_max;
use crate::error::{Error, Kind, Result};
use crate::format::key::{Item, Key, Section, TreeId};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, Extent, Run};
use crate::format::sums::SUMS_BLOCKS;
use crate::format::superblock::{DEVICE_BYTES_MIN, SEGMENTS_MAX, Segment};
use crate::metadata::database::SpaceChange;
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, decode_preserved, encode_preserved};
use crate::space::{full, reserve_blocks};
use block::Buf;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks that one operation moves at most: 64 MiB.
const STEP_BLOCKS: u64 = 16_384;
/// Bytes of one copy.
const COPY_BYTES: u64 = 1 << 20;
/// Records of checksums that one operation removes.
const SUMS_AT_ONCE: usize = 1024;
/// Free blocks besides the reserve of the metadata that a shrink needs.
const SPARE_BLOCKS: u64 = 128;

/// Records of extents that reach beyond the new end, in the order of their blocks.
type Records = BTreeMap<(u64, Key), Extent>;

impl Fs {
    /// Computes the smallest size to which the file system can shrink now, in bytes.
    pub fn minimum_bytes(&self) -> u64 {
        let usage = self.usage();
        let in_use = usage.blocks - usage.free;
        let mut blocks = DEVICE_BYTES_MIN / BLOCK_BYTES;
        loop {
            // Changed metadata is written to new places, and the reserve has to be left.
            let needed = in_use + 2 * reserve_blocks(blocks) + SPARE_BLOCKS;
            if needed <= blocks {
                return blocks.min(usage.blocks) * BLOCK_BYTES;
            }
            blocks = needed;
        }
    }

    /// Checks whether the file system can shrink to `bytes`, and changes nothing. Returns the size
    /// that it would have, and the blocks of data that would move.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: it is smaller already. [`Kind::NoSpace`]: it needs more.
    /// [`Kind::Busy`]: files are open. The file system cannot be changed.
    pub fn plan_shrink(&self, bytes: u64) -> Result<(u64, u64)> {
        let fs = self.inner();
        fs.check_writable()?;
        let end = bytes / BLOCK_BYTES;
        let now = fs.superblock.lock().device_blocks;
        if end > now {
            let text = format!("it has {} bytes already", now * BLOCK_BYTES);
            return Err(Error::new(Kind::Invalid, text));
        }
        let minimum = self.minimum_bytes();
        if end * BLOCK_BYTES < minimum {
            let text =
                format!("{bytes} bytes are too few: the smallest possible size is {minimum}");
            return Err(Error::new(Kind::NoSpace, text));
        }
        fs.write().refuse_use()?;
        let state = fs.read();
        let records = records_beyond(&state, end)?;
        let chunks = chunks::blocks_of(&chunks::chunks_beyond(&state, end)?);
        Ok((end * BLOCK_BYTES, blocks_beyond(&records, end) + chunks))
    }

    /// Moves everything beyond `bytes`, and makes the file system end there. No other thread may use
    /// it during this. `progress` is called with the blocks moved and their number. Returns the size
    /// in bytes, which is durable.
    ///
    /// # Errors
    /// Those of [`Fs::plan_shrink`]. [`Kind::Corrupt`]: the metadata is damaged. The device failed.
    /// The file system is complete, and keeps its size.
    pub fn shrink(&self, bytes: u64, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let fs = self.inner();
        let _alone = self.growing.lock().expect("no panic under this lock");
        fs.check_writable()?;
        // Inodes without a change in memory are not in use.
        fs.checkpoint()?;
        let (bytes, _) = self.plan_shrink(bytes)?;
        let end = bytes / BLOCK_BYTES;
        if end == fs.superblock.lock().device_blocks {
            return Ok(bytes);
        }
        fs.space.limit(end);
        let shrunk = fs
            .clear_beyond(end, progress)
            .and_then(|()| fs.set_end(end));
        fs.space
            .end_limit(shrunk.is_ok().then(|| reserve_blocks(end)));
        shrunk.map(|()| bytes)
    }
}

impl FsShared {
    /// Moves everything beyond a block.
    fn clear_beyond(&self, end: u64, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.move_metadata(end)?;
        let mut records = records_beyond(&self.read(), end)?;
        let chunks = chunks::chunks_beyond(&self.read(), end)?;
        let total = blocks_beyond(&records, end) + chunks::blocks_of(&chunks);
        let mut done = 0;
        progress(0, total);
        // First those that need free blocks side by side.
        for records in chunks.values() {
            done += self.with_room(|| self.move_chunk(records))?;
            progress(done.min(total), total);
        }
        while let Some(run) = next_run(&records, end) {
            done += self.with_room(|| self.move_data(run, end, &mut records))?;
            progress(done.min(total), total);
        }
        self.checkpoint()?;
        self.drop_sums_beyond(end)?;
        self.checkpoint()
    }

    /// Moves the first blocks of a run to free ones, with all records that refer to them. Returns
    /// their number.
    fn move_data(&self, run: Run, end: u64, records: &mut Records) -> Result<u64> {
        let want = run.blocks.min(self.space.usage().available.max(1));
        if !self.space.reserve(want) && !self.space.reserve_from_metadata(want) {
            return Err(full());
        }
        let taken = self.space.allocate(None, want);
        let rest = want - taken.map_or(0, |to| to.blocks);
        self.space.release_reserved(rest);
        let to = taken.ok_or_else(full)?;
        let from = Run {
            start: run.start,
            blocks: to.blocks,
        };
        let moved = self
            .copy_blocks(from, to.start)
            .and_then(|()| self.refer_to(from, to, end, records));
        match moved {
            Ok(()) => Ok(from.blocks),
            Err(error) => {
                self.space.release_run(to);
                Err(error)
            }
        }
    }

    /// Makes all records of a run refer to its copy.
    fn refer_to(&self, from: Run, to: Run, end: u64, records: &mut Records) -> Result<()> {
        let mut op = Op::begin_any(self, 0)?;
        let mut left = Vec::new();
        let mut moved = Vec::new();
        let after = (from.end(), Key::layer(0).0);
        for ((start, key), extent) in records.range(..after) {
            moved.push((*start, *key));
            let tree = op.trees.get(&key.layer);
            let is_snapshot = tree.is_some_and(|tree| tree.record.origin != 0);
            let whole = extent.run();
            let cut = whole.start.max(from.start)..whole.end().min(from.end());
            for range in [whole.start..cut.start, cut.clone(), cut.end..whole.end()] {
                if range.is_empty() {
                    continue;
                }
                let skip = range.start - whole.start;
                let mut part = extent.part(skip, range.end - range.start);
                if range == cut {
                    part.start = to.start + (range.start - from.start);
                } else if range.end > end {
                    let item = key.item + skip;
                    left.push(((part.start, Key { item, ..*key }), part));
                }
                let value = if is_snapshot {
                    encode_preserved(&part.encode())
                } else {
                    part.encode()
                };
                if skip == 0 {
                    op.put_key(*key, value, Prior::Possible);
                } else {
                    op.put_rest(*key, skip, value)?;
                }
            }
        }
        op.move_run(from, to)?;
        op.finish();
        for at in &moved {
            records.remove(at);
        }
        records.extend(left);
        Ok(())
    }

    /// Copies blocks as they are, and makes the copy durable.
    fn copy_blocks(&self, from: Run, to: u64) -> Result<()> {
        let step = COPY_BYTES.min(self.io.info().max_transfer.into()) / BLOCK_BYTES;
        let mut done = 0;
        while done < from.blocks {
            let blocks = step.min(from.blocks - done);
            let mut data = vec![0; (blocks * BLOCK_BYTES) as usize];
            self.io
                .read(DeviceOffset::of_block(from.start + done), &mut data)?;
            let write = block::Op::Write {
                offset: DeviceOffset::of_block(to + done).bytes(),
                bufs: Buf::copy_of(&data).into(),
                fua: false,
            };
            self.io.write(vec![write])?;
            done += blocks;
        }
        Ok(self.io.flush()?)
    }

    /// Moves the blocks of the metadata that lie beyond a block.
    fn move_metadata(&self, end: u64) -> Result<()> {
        // No commit begins, so the blocks do not change.
        let db = self.db.lock().expect("no panic under this lock");
        let before = self.superblock.lock().segments.clone();
        if before.iter().all(|segment| segment.run().end() <= end) {
            return Ok(());
        }
        let mut taken: Vec<Run> = Vec::new();
        let after = self.place_segments(&before, end, &mut taken);
        let after = after.inspect_err(|_| taken.iter().for_each(|run| self.space.add(*run)))?;
        self.superblock.lock().segments = after;
        if let Err(error) = self.superblock.write() {
            // One of the copies may refer to the new places: they stay in use until the next open.
            self.superblock.lock().segments = before;
            return Err(error.into());
        }
        for segment in before {
            let run = segment.run();
            let start = run.start.max(end);
            if start < run.end() {
                let blocks = run.end() - start;
                self.space.add(Run { start, blocks });
            }
        }
        match db.as_ref() {
            Some(db) => self.note_slack(db),
            None => Err(crate::error::closed()),
        }
    }

    /// Copies the blocks of segments that lie beyond a block, and returns all segments as they are
    /// then.
    fn place_segments(
        &self,
        before: &[Segment],
        end: u64,
        taken: &mut Vec<Run>,
    ) -> Result<Vec<Segment>> {
        let mut after = Vec::new();
        let mut spares = Vec::new();
        for segment in before {
            let run = segment.run();
            let keep = end.saturating_sub(run.start).min(run.blocks);
            let is_spare = segment.is_spare();
            let list = if is_spare { &mut spares } else { &mut after };
            if keep > 0 {
                list.push(Segment {
                    blocks: keep as u32,
                    ..*segment
                });
            }
            let mut at = keep;
            while at < run.blocks {
                let mut want = run.blocks - at;
                let to = loop {
                    match self.space.allocate_metadata(None, want) {
                        Some(to) => break to,
                        None if want == 1 => return Err(full()),
                        None => want /= 2,
                    }
                };
                taken.push(to);
                if is_spare {
                    list.push(Segment::spare(to.start, want as u32));
                } else {
                    let from = Run {
                        start: run.start + at,
                        blocks: want,
                    };
                    self.copy_blocks(from, to.start)?;
                    list.push(Segment {
                        logical: segment.logical + at as u32,
                        blocks: want as u32,
                        start: to.start,
                    });
                }
                at += want;
            }
        }
        after.extend(spares);
        if after.len() > SEGMENTS_MAX {
            let text = "the free space below the new end is in too many pieces for the metadata; \
                        choose a larger size";
            return Err(Error::new(Kind::NoSpace, text));
        }
        Ok(after)
    }

    /// Removes the checksums of blocks beyond the end.
    fn drop_sums_beyond(&self, end: u64) -> Result<()> {
        loop {
            let mut keys = Vec::new();
            let from = Key::global(Section::Sums, end.div_ceil(SUMS_BLOCKS));
            let to = Key::section(Section::Sums).1;
            self.read().items.scan(from, to, |key, _| {
                keys.push(key);
                Ok(keys.len() < SUMS_AT_ONCE)
            })?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut op = Op::begin_any(self, 0)?;
            keys.into_iter().for_each(|key| op.delete_key(key));
            op.finish();
        }
    }

    /// Makes the file system end at a block beyond which nothing is in use.
    fn set_end(&self, end: u64) -> Result<()> {
        let db = self.db.lock().expect("no panic under this lock");
        let db = db.as_ref().ok_or_else(crate::error::closed)?;
        let before = self.superblock.lock().device_blocks;
        let metadata = self.superblock.lock().segments.clone();
        let used = db.used(before)?;
        let runs = used.into_iter().chain(metadata.iter().map(Segment::run));
        if let Some(run) = runs.into_iter().find(|run| run.end() > end) {
            return Err(Error::corrupt(format!(
                "block {} is in use by nothing that can be moved; `evfs fsck --repair` corrects that",
                run.start.max(end)
            )));
        }
        self.superblock.lock().device_blocks = end;
        if let Err(error) = self.superblock.write() {
            self.superblock.lock().device_blocks = before;
            return Err(error.into());
        }
        self.write().bounds.end = end;
        self.backlog_max.store(backlog_max(end), Relaxed);
        Ok(())
    }
}

impl Op<'_> {
    /// Moves the counts and the checksums of a run to its copy, and frees it.
    fn move_run(&mut self, from: Run, to: Run) -> Result<()> {
        self.move_counts(from, to.start)?;
        if self.checksums {
            let sums = self.sums(from)?;
            self.set_sums(to, &sums);
        }
        self.mark_used(to);
        self.space.push(SpaceChange {
            run: from,
            used: false,
        });
        Ok(())
    }
}

/// Collects the extents of all layers that reach beyond a block.
fn records_beyond(state: &State, end: u64) -> Result<Records> {
    let mut all = Records::new();
    let what = (Item::Extent, end);
    scan_beyond(state, what, Extent::decode, Extent::run, |key, extent| {
        all.insert((extent.start, key), extent);
        Ok(())
    })?;
    Ok(all)
}

/// Visits the records of one kind, of all layers, that reach beyond a block. `take` is called with
/// each of them, and `run_of` finds its blocks.
fn scan_beyond<T>(
    state: &State,
    (item, end): (Item, u64),
    decode: impl Fn(&[u8]) -> Result<T>,
    run_of: impl Fn(&T) -> Run,
    mut take: impl FnMut(Key, T) -> Result<()>,
) -> Result<()> {
    let (from, to) = (Key::layer(1).0, Key::layer(TreeId::MAX).1);
    state.items.scan(from, to, |key, bytes| {
        if key.kind() != Some(item) || key.object == 0 {
            return Ok(true);
        }
        let value = match state.trees.get(&key.layer).map(|tree| tree.record.origin) {
            Some(0) => Some(bytes),
            Some(_) => decode_preserved(bytes)?,
            None => return Err(Error::corrupt(format!("{key}: stray record"))),
        };
        if let Some(record) = value.map(&decode).transpose()?
            && run_of(&record).end() > end
        {
            if run_of(&record).end() > state.bounds.end {
                return Err(Error::corrupt(format!("{key} lies outside the device")));
            }
            take(key, record)?;
        }
        Ok(true)
    })
}

/// Counts the blocks beyond `end` that records refer to.
fn blocks_beyond(records: &Records, end: u64) -> u64 {
    let (mut reached, mut blocks) = (end, 0);
    for extent in records.values() {
        let run = extent.run();
        blocks += run.end().saturating_sub(run.start.max(reached));
        reached = reached.max(run.end());
    }
    blocks
}

/// Finds the first run beyond `end` of which records refer to each block; a part of it, if it is long.
fn next_run(records: &Records, end: u64) -> Option<Run> {
    let mut all = records.values();
    let first = all.next()?.run();
    let start = first.start.max(end);
    let mut reached = first.end();
    for extent in all {
        if extent.start > reached || reached - start >= STEP_BLOCKS {
            break;
        }
        reached = reached.max(extent.run().end());
    }
    let blocks = (reached - start).min(STEP_BLOCKS);
    Some(Run { start, blocks })
}
