//! Rebuilding the tree of the metadata from the readable part of the old one.
//!
//! ```text
//!   damaged tree ──readable items──► new tree in free blocks ──durable──► superblock refers to it
//! ```
//!
//! **Invariant:** until the superblock is written the old tree is valid, and neither its blocks nor
//! blocks of data that a record refers to are written; so after a crash one of the two trees is
//! complete. Unreadable items are lost, and the repair that follows handles the consequences.

use super::finding::FindingKind;
use super::meter::Meter;
use super::pages;
use super::repair::{Repair, SAYS_ENOUGH, says_fileset};
use crate::error::{Error, Kind, Result};
use crate::format::chunk::held_by;
use crate::format::key::{Direction, Key, Section, TreeId};
use crate::format::record::{Out, Run};
use crate::format::superblock::{Superblock, TagsRoot};
use crate::metadata::database::{Base, Checksums, Db, Epoch, SpaceChange};
use crate::metadata::database_file::DatabaseFile;
use crate::metadata::inode_state::Blocks;
use crate::metadata::overlay::{Change, Overlay, Prior};
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, decode_preserved};
use crate::metadata::superblock_file::SuperblockFile;
use block::Access;
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of items written to the new tree per commit.
const BATCH_ITEMS: usize = 1 << 16;
/// Limit for the number of probes for damaged places. Each is located with about 14 halvings, which
/// leaves a few hundred inodes of ten million.
const PROBES_MAX: u64 = 1 << 14;
/// Number of bytes that count as one probe: a damaged reference may request gigabytes beyond the
/// end, and allocating that memory takes time.
const PROBE_BYTES: u64 = 1 << 20;

impl FsShared {
    /// Rebuilds the tree if a page of it is damaged.
    pub(super) fn rebuild_if_damaged(
        &self,
        repair: &mut Repair,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        // In the same order as a commit.
        let mut slot = self.db.lock().expect("no panic under this lock");
        let db = slot.as_ref().ok_or_else(crate::error::closed)?;
        let old = self.superblock.lock().clone();
        let meter = &mut Meter::for_pages(progress, &old);
        let verified = db
            .epoch()
            .and_then(|epoch| pages::verify(&self.io, (&old, self.superblock.key()), epoch, meter));
        let damage = match verified {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == Kind::Corrupt => error,
            Err(error) => return Err(error),
        };
        let mut log = self.log();
        let mut state = self.write();
        state.refuse_use()?;
        self.leave_log(&state);
        let base = db.base()?;
        let new = Arc::new(SuperblockFile::in_memory(
            Arc::clone(&self.io),
            Superblock {
                segments: Vec::new(),
                metadata_bytes: 0,
                tags: TagsRoot::default(),
                ..old.clone()
            },
            self.superblock.key().cloned(),
        ));
        let epoch = log.epoch_after_all();
        self.commit_begins(epoch);
        let built = self.build(&base, &state, &old, &new, epoch);
        let lost = match built {
            Ok(lost) => lost,
            Err(error) => {
                let segments = new.lock().segments.clone();
                segments.iter().for_each(|s| self.space.add(s.run()));
                return Err(error);
            }
        };
        // The old tree is closed before its blocks may be reused.
        drop(base);
        drop(slot.take());
        let swapped = self.swap(&old, &new).and_then(|db| {
            state.rebuilt(db.base()?);
            Ok(db)
        });
        let db = swapped.inspect_err(|error| {
            let text = format!("the file system is read-only after an error: {error}");
            state.failed.get_or_insert(Error::new(Kind::ReadOnly, text));
        })?;
        log.skip_all();
        self.commit_ended(epoch);
        // The new tree has all that was in memory.
        state.changes += 1;
        self.log_durable(state.changes);
        *slot = Some(db);
        let text = format!(
            "{damage}; rebuilt the metadata from its readable part; unreadable key ranges: {lost}"
        );
        repair.did(FindingKind::Pages, text);
        Ok(())
    }

    /// Fills a new tree, whose location `new` describes. Returns the number of gaps.
    fn build(
        &self,
        base: &Base,
        state: &State,
        old: &Superblock,
        new: &Arc<SuperblockFile>,
        epoch: Epoch,
    ) -> Result<usize> {
        let mut used = Blocks::default();
        let mut says = 0;
        let mut note = |key: Key, value: &[u8]| {
            says += says_fileset(&key, value);
            note_extent(state, key, value, &mut used);
        };
        salvage(base, &self.superblock, &mut |key, value| {
            note(key, value);
            Ok(())
        })?;
        for (key, change) in state.items.active.iter() {
            if let Some(value) = change.value() {
                note(*key, value);
            }
        }
        // Without a fileset, the repair would remove everything else as well.
        if says < SAYS_ENOUGH {
            let text = "the readable part of the metadata contains no files: nothing was changed; \
                restore the files from a backup";
            return Err(Error::corrupt(text));
        }
        let runs = |blocks: Vec<std::ops::Range<u64>>| {
            let run = |range: std::ops::Range<u64>| Run {
                start: range.start,
                blocks: range.end - range.start,
            };
            blocks.into_iter().map(run).collect::<Vec<Run>>()
        };
        let data = runs(used.iter().collect());
        for segment in &old.segments {
            let run = segment.run();
            used.insert(run.start..run.end());
        }
        let free = runs(used.missing(state.bounds.clone()).collect());
        self.space.replace(free.into_iter());
        self.space.set_loaded();

        let (io, space) = (Arc::clone(&self.io), Arc::clone(&self.space));
        let file = DatabaseFile::new(io, Arc::clone(new), space, Access::ReadWrite);
        let db = Db::open(file, self.options.metadata_cache_bytes, Checksums::Trust)?;
        let mut batch = Overlay::default();
        let lost = salvage(base, &self.superblock, &mut |key, value| {
            batch.put(key, value.into(), Prior::Absent);
            if batch.len() < BATCH_ITEMS {
                Ok(())
            } else {
                db.commit(&std::mem::take(&mut batch), &[], epoch)
            }
        })?;
        for (key, change) in state.items.active.iter() {
            batch.set(*key, Some(change.clone()));
        }
        let mut next = Out::with(4);
        next.u32(state.next_tree);
        let next = Change::Put {
            value: next.0.into(),
            prior: Prior::Possible,
        };
        batch.set(Key::global(Section::NextTree, 0), Some(next));
        for (id, tree) in &state.trees {
            let value = tree.record.encode().into();
            let record = Change::Put {
                value,
                prior: Prior::Possible,
            };
            let key = Key::global(Section::Trees, u64::from(*id));
            batch.set(key, Some(record));
        }
        let space: Vec<SpaceChange> = data
            .into_iter()
            .map(|run| SpaceChange { run, used: true })
            .collect();
        db.commit(&batch, &space, epoch)?;
        db.close()?;
        Ok(lost)
    }

    /// Makes the new tree the valid one, and opens it.
    fn swap(&self, old: &Superblock, new: &SuperblockFile) -> Result<Db> {
        {
            let mut superblock = self.superblock.lock();
            let new = new.lock();
            superblock.segments = new.segments.clone();
            superblock.metadata_bytes = new.metadata_bytes;
            superblock.tags = new.tags;
        }
        // Both copies, so that losing one of them does not revive the damaged tree.
        self.superblock.write()?;
        old.segments.iter().for_each(|s| self.space.add(s.run()));
        let file = DatabaseFile::new(
            Arc::clone(&self.io),
            Arc::clone(&self.superblock),
            Arc::clone(&self.space),
            Access::ReadWrite,
        );
        Db::open_file(file, self.options.metadata_cache_bytes, Checksums::Trust)
    }
}

/// Records the blocks of an item if it is an extent.
fn note_extent(state: &State, key: Key, value: &[u8], used: &mut Blocks) {
    let kind = key.kind();
    if key.layer == 0 {
        return;
    }
    let in_fileset = held_by(kind, value).ok().flatten();
    let in_snapshot = || held_by(kind, decode_preserved(value).ok()??).ok()?;
    // If the record of the tree is lost, the format is unknown until the repair has found it.
    let held = match state.trees.get(&key.layer).map(|tree| tree.record.origin) {
        Some(0) => in_fileset,
        Some(_) => in_snapshot(),
        None => in_fileset.or_else(in_snapshot),
    };
    if let Some(held) = held {
        let run = held.run;
        if state.bounds.start <= run.start && run.end() <= state.bounds.end {
            used.insert(run.start..run.end());
        }
    }
}

/// Passes every readable item to `take`, in no particular order. Returns the number of gaps.
fn salvage(
    base: &Base,
    superblock: &SuperblockFile,
    take: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
) -> Result<usize> {
    let mut gaps = VecDeque::from([(Key::layer(0).0, Key::layer(TreeId::MAX).1)]);
    let before = superblock.beyond();
    let (mut probes, mut lost) = (0, 0);
    while let Some((from, to)) = gaps.pop_front() {
        probes += 1;
        // Read from both ends up to the damage.
        let Some(from) = read_from(base, from, to, Direction::Forward, take)? else {
            continue;
        };
        let Some(to) = read_from(base, from, to, Direction::Backward, take)? else {
            continue;
        };
        let spent = probes + (superblock.beyond() - before) / PROBE_BYTES;
        match middle(from, to) {
            Some((end, start)) if spent < PROBES_MAX => {
                gaps.extend([(from, end), (start, to)]);
            }
            _ => lost += 1,
        }
    }
    Ok(lost)
}

/// Reads from one end of a range on. Returns the key at which reading failed, if it did.
fn read_from(
    base: &Base,
    mut from: Key,
    mut to: Key,
    direction: Direction,
    take: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
) -> Result<Option<Key>> {
    let stopped = |at: Key, error: Error| match error.kind() {
        Kind::Corrupt => Ok(Some(at)),
        _ => Err(error),
    };
    let mut range = match base.range(from, to) {
        Ok(range) => range,
        Err(error) => return stopped(start_of(from, to, direction), error),
    };
    loop {
        match range.next(direction) {
            Ok(Some((key, value))) => {
                take(key, value.value())?;
                let rest = key.adjacent(direction);
                let Some(rest) = rest.filter(|rest| (from..=to).contains(rest)) else {
                    return Ok(None);
                };
                match direction {
                    Direction::Forward => from = rest,
                    Direction::Backward => to = rest,
                }
            }
            Ok(None) => return Ok(None),
            Err(error) => return stopped(start_of(from, to, direction), error),
        }
    }
}

/// Returns the end of a range at which reading in this direction begins.
fn start_of(from: Key, to: Key, direction: Direction) -> Key {
    match direction {
        Direction::Forward => from,
        Direction::Backward => to,
    }
}

/// Finds two adjacent keys near the middle of a range: at the border of two layers if possible,
/// else of two inodes. An inode is not split.
fn middle(from: Key, to: Key) -> Option<(Key, Key)> {
    let start = if from.layer < to.layer {
        Key::layer(from.layer + (to.layer - from.layer).div_ceil(2)).0
    } else {
        let half = (to.object.checked_sub(from.object)?).div_ceil(2);
        Key {
            object: from.object + half,
            item: 0,
            ..from
        }
    };
    let end = start.previous()?;
    (from < start && start <= to).then_some((end, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_parts_layers_and_then_inodes() {
        let key = |layer, object, item| Key {
            layer,
            object,
            item,
        };
        let check = |from: Key, to: Key, expected: Option<Key>| {
            let found = middle(from, to);
            assert_eq!(found.map(|(_, start)| start), expected);
            assert!(found.is_none_or(|(end, start)| end.next() == Some(start) && from <= end));
        };
        check(key(1, 5, 5), key(4, 0, 0), Some(key(3, 0, 0)));
        check(key(1, 5, 5), key(2, 0, 0), Some(key(2, 0, 0)));
        check(key(1, 5, 5), key(1, 8, 0), Some(key(1, 7, 0)));
        check(key(1, 7, 5), key(1, 8, 0), Some(key(1, 8, 0)));
        check(key(1, 8, 5), key(1, 8, 9), None);
        check(
            key(0, 0, 0),
            Key::layer(u32::MAX).1,
            Some(key(1 << 31, 0, 0)),
        );
    }
}
