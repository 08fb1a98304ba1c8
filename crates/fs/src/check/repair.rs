//! Repair of the problems that [`crate::Fs::check`] finds.
//!
//! ```text
//!   lost filesets       get a new record if theirs cannot be read
//!   every record        is removed if invalid or misplaced
//!   every fileset       names, links, counts (repair/tree.rs); unnamed inodes go to lost+found
//!   every block         references, bitmap and allocator are recomputed from the records
//! ```
//!
//! **Invariant:** data that a record refers to is kept; if two files refer to a block, both keep
//! it, and share it from then on. Snapshots stay as they are, except for invalid records: an
//! inconsistent snapshot can be read as far as possible, and removed. If pages of the tree are
//! damaged, it is rebuilt first (`check/rebuild.rs`). Deliberately absent: a file system that
//! cannot even be opened.

mod tree;

use super::finding::{Finding, FindingKind, Findings};
use super::meter::Meter;
use super::{Report, accounts, belongs, blocks, sums};
use crate::error::{Kind, Result};
use crate::format::account::AccountRecord;
use crate::format::chunk::{Held, held_by, is_chunk_place};
use crate::format::key::{Item, Key, PLACE_MAX, Section, TreeId};
use crate::format::record::{
    BLOCK_BYTES, EXTENT_BLOCKS_MAX, Entry, FILE_SIZE_MAX, Inode, Out, Run, SharedRun, TARGET_MAX,
    Xattr,
};
use crate::format::tree_record::TreeRecord;
use crate::fs::{FIRST_FILESET, Fs};
use crate::metadata::database::{Db, SpaceChange};
use crate::metadata::inode_state::Blocks;
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, Tree, decode_preserved};
use crate::names::directory::ROOT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Weight of each of the three parts of a repair: the pages, the records, and the final check.
const PART: u64 = 1 << 20;

/// Result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Repair {
    /// Problems found, with the action taken; at most 1000.
    pub done: Vec<Finding>,
    /// Number of all problems, including unlisted ones.
    pub done_count: u64,
    /// Result of the final check.
    pub left: Report,
}

impl Repair {
    pub(super) fn did(&mut self, kind: FindingKind, text: impl Into<String>) {
        self.add(Finding::new(kind, text));
    }

    fn add(&mut self, finding: Finding) {
        self.done_count += 1;
        self.done.add(finding);
    }
}

impl Fs {
    /// Repairs inconsistencies. No other thread may use the file system during this. Durable when
    /// this returns.
    ///
    /// # Errors
    /// [`Kind::Busy`]: there are open files or dirty pages. [`Kind::ReadOnly`]. The device failed,
    /// or the metadata cannot be read at all.
    pub fn repair(&self) -> Result<Repair> {
        self.repair_with(&mut |_, _| {})
    }

    /// As [`Fs::repair`]; `progress` is called from time to time with the amount done and the
    /// total.
    ///
    /// # Errors
    /// As [`Fs::repair`].
    pub fn repair_with(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Repair> {
        let inner = self.inner();
        inner.check_writable()?;
        let mut repair = Repair::default();
        let mut tell = |part: u64, done: u64, total: u64| {
            let share = done as f64 / total.max(1) as f64;
            progress(part * PART + (share * PART as f64) as u64, 3 * PART);
        };
        inner.rebuild_if_damaged(&mut repair, &mut |done, total| tell(0, done, total))?;
        inner.checkpoint()?;
        let repaired = inner.repair(&mut repair, &mut |done, total| {
            tell(1, done, total);
        });
        if repaired.is_err() {
            inner.load_accounts()?;
        }
        repaired?;
        inner.checkpoint()?;
        // Without damage, missing checksums are those of blocks that a crash left half written.
        let summed = match repair.done_count {
            0 => 0,
            _ => inner.add_missing_sums(&mut |_, _| {})?.added,
        };
        if summed > 0 {
            let text =
                format!("computed missing checksums of {summed} blocks from unverified data");
            repair.did(FindingKind::Data, text);
        }
        inner.checkpoint()?;
        repair.left = self.check_with(&mut |done, total| tell(2, done, total))?;
        Ok(repair)
    }
}

impl FsShared {
    fn repair(&self, repair: &mut Repair, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        // In the same order as a commit.
        let db = self.db.lock().expect("no panic under this lock");
        let db = db.as_ref().ok_or_else(crate::error::closed)?;
        let mut op = Op::locked(self, 0)?;
        op.refuse_use()?;
        self.leave_log(&op);
        let metadata = metadata(self);
        let meter = &mut Meter::for_repair(progress, db.item_bytes().unwrap_or(0), &op);
        restore_filesets(&mut op, repair, meter)?;
        accounts::set_aside(&mut op);
        drop_broken(&mut op, &metadata, repair, meter)?;
        let filesets: Vec<TreeId> = {
            let all = op.trees.iter();
            all.filter(|(_, tree)| tree.record.origin == 0)
                .filter(|(_, tree)| !tree.record.removing && !tree.restoring)
                // Half of a snapshot is verified when the rest has arrived.
                .filter(|(_, tree)| tree.record.receiving.is_none())
                .map(|(id, _)| *id)
                .collect()
        };
        for id in filesets {
            tree::repair(&mut op, &self.hasher, id, repair, meter)?;
        }
        for finding in accounts::repair(&mut op)? {
            repair.add(finding);
        }
        repair_next_tree(&mut op, repair);
        repair_counts(&mut op, repair, meter)?;
        let changes = repair_space(&mut op, db, &metadata, repair, meter)?;
        // These were not freed by the operation: the allocator has been set accordingly already.
        op.items.note_space(&changes);
        op.finish();
        Ok(())
    }
}

/// Collects the blocks of the metadata.
fn metadata(fs: &FsShared) -> Blocks {
    let mut blocks = Blocks::default();
    for segment in &fs.superblock.lock().segments {
        blocks.insert(segment.start..segment.start + u64::from(segment.blocks));
    }
    blocks
}

/// Recovers filesets that the file system has lost: by their record, or else by the inodes in their
/// layer. The layer of a snapshot is useless without its record, and is removed.
fn restore_filesets(op: &mut Op, repair: &mut Repair, meter: &mut Meter) -> Result<()> {
    meter.begin(meter.items());
    let state: &State = op;
    let (mut found, mut unread) = (BTreeMap::new(), Vec::new());
    let mut inodes: BTreeMap<TreeId, u64> = BTreeMap::new();
    let (from, to) = (Key::layer(0).0, Key::layer(TreeId::MAX).1);
    state.items.scan(from, to, |key, bytes| {
        meter.item(bytes);
        let is_record = key.layer == 0 && key.object == Section::Trees as u64;
        if is_record {
            match Tree::read(&key, bytes) {
                Ok((id, _)) if state.trees.contains_key(&id) => {}
                Ok((id, tree)) => drop(found.insert(id, tree)),
                Err(_) => unread.push(key),
            }
        } else if !state.trees.contains_key(&key.layer) {
            let says = says_fileset(&key, bytes);
            if says > 0 {
                *inodes.entry(key.layer).or_default() += says;
            }
        }
        Ok(true)
    })?;
    for key in unread {
        let text = format!("{key}: removed an invalid fileset record");
        repair.did(FindingKind::Record, text);
        op.delete_key(key);
    }
    for (id, _) in inodes.into_iter().filter(|(_, says)| *says >= SAYS_ENOUGH) {
        if found.contains_key(&id) {
            continue;
        }
        // The usage is counted when its files are repaired.
        let record = TreeRecord::new(free_name(op, &found, id), op.now);
        let tree = Tree {
            changed: true,
            ..Tree::new(record)
        };
        found.insert(id, tree);
    }
    // Filesets first, because snapshots depend on them.
    let (filesets, snapshots): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|(_, tree)| tree.record.origin == 0);
    for (id, tree) in filesets.into_iter().chain(snapshots) {
        let (origin, name) = (tree.record.origin, tree.record.name.clone());
        let of = op.trees.get_mut(&origin);
        match of.filter(|of| of.record.origin == 0) {
            Some(of) => {
                of.snapshots.push(id);
                of.snapshots.sort_unstable();
            }
            None if origin != 0 => {
                let text = format!("removed snapshot `{name}`: its fileset does not exist");
                repair.did(FindingKind::Record, text);
                op.delete_key(Key::global(Section::Trees, id.into()));
                continue;
            }
            None => {}
        }
        let text = format!("recovered lost fileset or snapshot {id} as `{name}`");
        repair.did(FindingKind::Record, text);
        op.trees.insert(id, tree);
    }
    Ok(())
}

/// Computes the weight of an item as evidence that its layer is a fileset. A damaged key may point
/// into a layer that never existed, but hardly two of them do, and none of a root.
pub(super) fn says_fileset(key: &Key, bytes: &[u8]) -> u64 {
    let is_inode = key.layer != 0
        && key.kind() == Some(Item::Inode)
        && key.is_possible_item()
        && Inode::decode(bytes).is_ok();
    u64::from(is_inode) * (1 + u64::from(key.object == ROOT))
}

/// Weight of the items at which a layer counts as a fileset.
pub(super) const SAYS_ENOUGH: u64 = 2;

/// Finds an unused name for a fileset that has lost its own: [`FIRST_FILESET`] for the first one,
/// if that is unused.
fn free_name(op: &Op, found: &BTreeMap<TreeId, Tree>, id: TreeId) -> String {
    let taken = |name: &str| {
        let mut all = op.trees.values().chain(found.values());
        all.any(|tree| tree.record.name == name)
    };
    let first = (id == 1).then(|| FIRST_FILESET.to_owned());
    let others = (0..).map(|n| match n {
        0 => format!("found-{id}"),
        n => format!("found-{id}-{n}"),
    });
    let mut names = first.into_iter().chain(others);
    names.find(|name| !taken(name)).expect("endless")
}

/// Removes invalid records, and extents at places where no data can be.
fn drop_broken(
    op: &mut Op,
    metadata: &Blocks,
    repair: &mut Repair,
    meter: &mut Meter,
) -> Result<()> {
    meter.begin(meter.items());
    let state: &State = op;
    let mut broken = Vec::new();
    let (from, to) = (Key::layer(0).0, Key::layer(TreeId::MAX).1);
    state.items.scan(from, to, |key, bytes| {
        meter.item(bytes);
        if !is_sound(state, metadata, &key, bytes) {
            broken.push(key);
        }
        Ok(true)
    })?;
    for key in broken {
        let text = format!("{key}: removed an invalid record");
        repair.did(FindingKind::Record, text);
        op.delete_key(key);
    }
    Ok(())
}

fn is_sound(state: &State, metadata: &Blocks, key: &Key, bytes: &[u8]) -> bool {
    if !belongs(state, key) {
        return false;
    }
    if key.layer == 0 && key.object == Section::Sums as u64 {
        return sums::is_sound(state, key, bytes);
    }
    // Other records of the file system as a whole are handled elsewhere.
    let (Some(tree), Some(item)) = (state.trees.get(&key.layer), key.kind()) else {
        return key.layer == 0;
    };
    // The last numbers are never assigned, so that one is left for lost+found.
    if key.object >> 1 >= PLACE_MAX >> 1 {
        return false;
    }
    let value = match tree.record.origin {
        0 => Ok(Some(bytes)),
        _ => decode_preserved(bytes),
    };
    let Ok(value) = value else { return false };
    let Some(value) = value else { return true };
    match item {
        Item::Inode => Inode::decode(value).is_ok(),
        Item::Target => (1..=TARGET_MAX).contains(&value.len()),
        Item::Xattr => Xattr::decode(value).is_ok(),
        Item::Entry => Entry::decode(value).is_ok(),
        Item::Orphan => true,
        Item::UserAccount | Item::GroupAccount => AccountRecord::decode(value).is_ok(),
        // Without the feature, nothing reads or removes them.
        Item::Chunk if !state.compression || !is_chunk_place(key.place()) => false,
        Item::Extent | Item::Chunk => held_by(Some(item), value).is_ok_and(|held| {
            let Some(Held { run, span, .. }) = held else {
                return false;
            };
            let inside = state.bounds.start <= run.start && run.end() <= state.bounds.end;
            let place = key.place().checked_add(span);
            inside
                && place.is_some_and(|end| end <= FILE_SIZE_MAX / BLOCK_BYTES)
                && !metadata.overlaps(run.start..run.end())
        }),
    }
}

/// Ensures that the next fileset gets an unused id.
fn repair_next_tree(op: &mut Op, repair: &mut Repair) {
    let last = op.trees.last_key_value().map_or(0, |(id, _)| *id);
    if last >= op.next_tree && last < TreeId::MAX {
        let text = format!("corrected the next fileset id to {}", last + 1);
        repair.did(FindingKind::Record, text);
        op.next_tree = last + 1;
        let mut out = Out::with(4);
        out.u32(last + 1);
        op.put_key(Key::global(Section::NextTree, 0), out.0, Prior::Possible);
    }
}

/// Recounts the references to blocks.
fn repair_counts(op: &mut Op, repair: &mut Repair, meter: &mut Meter) -> Result<()> {
    meter.begin(meter.items());
    let mut ignored = Report::default();
    let counted = blocks::counted(op, &mut ignored, &mut |bytes| meter.item(bytes))?;
    let mut shared: Vec<(u64, SharedRun)> = Vec::new();
    for (run, count) in counted.into_iter().filter(|(_, count)| *count > 1) {
        let mut at = run.start;
        while at < run.end() {
            let blocks = (run.end() - at).min(EXTENT_BLOCKS_MAX.into()) as u32;
            let count = u32::try_from(count).map_err(|_| Kind::TooManyLinks)?;
            shared.push((at, SharedRun { blocks, count }));
            at += u64::from(blocks);
        }
    }
    let mut there: Vec<(u64, Option<SharedRun>)> = Vec::new();
    let (from, to) = Key::section(Section::Shared);
    op.items.scan(from, to, |key, bytes| {
        there.push((key.item, SharedRun::decode(bytes).ok()));
        Ok(true)
    })?;
    let same = blocks::same_counts(&shared, &there);
    if same {
        return Ok(());
    }
    repair.did(
        FindingKind::Space,
        "corrected the reference counts of shared blocks",
    );
    for (at, _) in there {
        op.delete_key(Key::global(Section::Shared, at));
    }
    for (at, record) in shared {
        op.put_key(
            Key::global(Section::Shared, at),
            record.encode(),
            Prior::Possible,
        );
    }
    Ok(())
}

/// Makes the bitmap and the allocator match the records. Returns the changes of the bitmap.
fn repair_space(
    op: &mut Op,
    db: &Db,
    metadata: &Blocks,
    repair: &mut Repair,
    meter: &mut Meter,
) -> Result<Vec<SpaceChange>> {
    meter.begin(meter.items());
    let mut used = Blocks::default();
    let mut ignored = Report::default();
    for (run, _) in blocks::counted(op, &mut ignored, &mut |bytes| meter.item(bytes))? {
        used.insert(run.start..run.end());
    }
    let mut bitmap = Blocks::default();
    for run in db.used(op.bounds.end)? {
        bitmap.insert(run.start..run.end());
    }
    for change in op.items.space_changes() {
        let range = change.run.start..change.run.end();
        if change.used {
            bitmap.insert(range)
        } else {
            bitmap.remove(range)
        };
    }
    let mut changes = Vec::new();
    for (have, want, to) in [(&used, &bitmap, true), (&bitmap, &used, false)] {
        let differ = have.iter().flat_map(|range| want.missing(range));
        changes.extend(differ.map(|range| SpaceChange {
            run: Run {
                start: range.start,
                blocks: range.end - range.start,
            },
            used: to,
        }));
    }
    if !changes.is_empty() {
        let text = format!("corrected the bitmap; wrong ranges: {}", changes.len());
        repair.did(FindingKind::Space, text);
    }
    let bounds = op.bounds.clone();
    let run = |range: std::ops::Range<u64>| Run {
        start: range.start,
        blocks: range.end - range.start,
    };
    used.extend(metadata);
    // Blocks in use by the last commit must not be reused before the next one is durable: after a
    // crash between the two they would be in use twice.
    let mut resting = Blocks::default();
    for range in bitmap.within(bounds.clone()) {
        used.missing(range).for_each(|part| {
            resting.insert(part);
        });
    }
    used.extend(&resting);
    op.space().replace(used.missing(bounds).map(run));
    let resting: Vec<Run> = resting.iter().map(run).collect();
    op.space().free(&resting);
    op.space().set_loaded();
    Ok(changes)
}

#[cfg(test)]
pub(super) mod tests;
