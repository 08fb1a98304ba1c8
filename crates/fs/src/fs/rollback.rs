//! Rolling a fileset back to one of its snapshots.
//!
//! ```text
//!   snapshot of the present state ─► mark ─► batches of old values ─► unmark
//! ```
//!
//! The layers from the snapshot on contain exactly the items that have changed since, so the work
//! is proportional to the change. **Invariant:** while the mark is set, no client uses the fileset, and
//! the next open for writing continues from the start, so that a crash at any moment leads to one of
//! the two states. Younger snapshots, and the number of the next inode, stay as they are. An inode
//! that returns is a different one for clients that cache its content: a higher data version, or a
//! new generation.
//!
//! The end of an abandoned reception is a rollback, too. The number of the next inode is then that of
//! before the stream: no client has seen the inodes of the stream.

use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::chunk::held_by;
use crate::format::key::{Item, Key, PLACE_MAX, TreeId};
use crate::format::record::{BLOCK_BYTES, Inode};
use crate::format::superblock::TREE_FLAGS;
use crate::fs::Fs;
use crate::fs::filesets::{FilesetChange, planned};
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::shared::FsShared;
use crate::metadata::state::State;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Largest number of items that one operation examines.
const STEP_ITEMS: usize = 1000;

/// Bytes of a record in the tree besides its value.
const RECORD_BYTES: u64 = 32;

impl Fs {
    /// Makes a fileset equal to one of its snapshots. `keep` is the name of a snapshot of the state
    /// before, to be taken first. Durable when this returns; a crash before leads to the state
    /// before or after.
    ///
    /// # Errors
    /// [`Kind::Busy`]: the fileset is in use. [`Kind::Invalid`]: `to` is not a snapshot.
    /// [`Kind::Exists`]: the name `keep` is in use. [`Kind::NoSpace`]: the metadata has no room for
    /// the records of both states. The fileset is as before then, but the snapshot `keep` may
    /// exist. After the mark is set, an error of the device, or space that others have used in the
    /// meantime, leaves a fileset that cannot be used: the next open for writing completes the
    /// rollback.
    pub fn rollback(&self, to: TreeId, keep: Option<&str>) -> Result<()> {
        let fs = self.inner();
        let of = {
            let state = fs.read();
            planned(
                &state,
                FilesetChange::Rollback { to, keep },
                (fs.options.clock)(),
            )?;
            state.tree(to)?.record.origin
        };
        self.check_detached(of)?;
        let blocks = fs.rollback_blocks(of, to, keep.is_some())?;
        Op::begin_any(fs, of)?.check_room_for(blocks)?;
        if let Some(name) = keep {
            self.snapshot(of, name)?;
        }
        fs.superblock.need_features(TREE_FLAGS)?;
        let mut op = Op::begin_any(fs, of)?;
        op.check_room_for(blocks)?;
        op.materialize()?;
        planned(&op, FilesetChange::Rollback { to, keep: None }, op.now)?;
        self.check_detached(of)?;
        self.begin_rollback(op, to)
    }

    /// Abandons the reception of changes since a snapshot: makes the fileset equal to it.
    pub(crate) fn undo_reception(&self, of: TreeId, to: TreeId) -> Result<()> {
        let fs = self.inner();
        let blocks = fs.rollback_blocks(of, to, false)?;
        fs.superblock.need_features(TREE_FLAGS)?;
        let mut op = Op::begin_any(fs, of)?;
        op.check_room_for(blocks)?;
        op.materialize()?;
        self.check_detached(of)?;
        self.begin_rollback(op, to)
    }

    fn begin_rollback(&self, mut op: Op<'_>, to: TreeId) -> Result<()> {
        let of = op.tree;
        op.cores.retain(|(tree, _), _| *tree != of);
        op.mark_restoring(to, true)?;
        op.finish();
        self.sync()?;
        self.inner().finish_rollback(of, to).map_err(|error| {
            let text = "the fileset cannot be used until the next mount completes the rollback";
            Error::new(error.kind(), format!("{error}; {text}"))
        })
    }

    /// Checks that a fileset is neither mounted nor served.
    pub(crate) fn check_detached(&self, id: TreeId) -> Result<()> {
        if self.inner().attached.is_any(id) {
            let text = "the fileset is in use; unmount it, or stop serving it";
            return Err(Error::new(Kind::Busy, text));
        }
        Ok(())
    }
}

impl FsShared {
    /// Completes a rollback whose snapshot `to` is marked.
    pub fn finish_rollback(self: &Arc<FsShared>, of: TreeId, to: TreeId) -> Result<()> {
        let mut next = Some(Key::inode(of, 1).0);
        while let Some(at) = next {
            let mut op = Op::begin_any(self, of)?;
            op.check_last_room()?;
            // Each may change a record of the fileset, and one that a younger snapshot keeps.
            let most = self.keys_at_once(2 * STEP_ITEMS) / 2;
            let keys = op.changed_keys(of, to, at, most)?;
            let full = keys.len() == most;
            next = keys.last().filter(|_| full).and_then(|key| key.next());
            for key in keys {
                op.restore(of, to, key)?;
            }
            op.finish();
        }
        self.end_rollback(of, to)?;
        self.sync()?;
        let fileset = Fileset {
            fs: Arc::clone(self),
            id: of,
        };
        self.drop_stale_orphans(of)?;
        fileset.remove_orphans()?;
        self.sync()
    }

    /// Removes entries from the list of orphans whose inodes have names again, or do not exist, after
    /// a reception was abandoned.
    fn drop_stale_orphans(&self, of: TreeId) -> Result<()> {
        let mut orphans = Vec::new();
        self.read()
            .scan(of, 0, (Item::Orphan, 0, PLACE_MAX), |ino, _| {
                orphans.push(ino);
                Ok(true)
            })?;
        for ino in orphans {
            let inode = self.read().inode(of, ino);
            match inode {
                Ok(inode) if inode.links == 0 => {}
                Err(error) if error.kind() != Kind::Stale => return Err(error),
                _ => {
                    let mut op = Op::begin_any(self, of)?;
                    op.delete(of, 0, (Item::Orphan, ino))?;
                    op.finish();
                }
            }
        }
        Ok(())
    }

    /// Estimates the growth of the metadata by a rollback: the fileset gets the old records. The
    /// present ones stay if a younger snapshot keeps them.
    fn rollback_blocks(&self, of: TreeId, to: TreeId, keep: bool) -> Result<u64> {
        let (mut bytes, mut next) = (0, Some(Key::inode(of, 1).0));
        while let Some(at) = next {
            let state = self.read();
            let kept = keep || state.tree(of)?.snapshots.last() != Some(&to);
            let keys = state.changed_keys(of, to, at, STEP_ITEMS)?;
            let full = keys.len() == STEP_ITEMS;
            next = keys.last().filter(|_| full).and_then(|key| key.next());
            for key in keys {
                let len = |bytes: &[u8]| Ok(RECORD_BYTES + bytes.len() as u64);
                let now = state.items.get(&key, len)?.filter(|_| !kept);
                let old = state.get_key(to, key, len)?.unwrap_or(0);
                bytes += old.saturating_sub(now.unwrap_or(0));
            }
        }
        // A page of the tree may be half full.
        Ok((2 * bytes).div_ceil(BLOCK_BYTES))
    }

    /// Makes a fileset usable again, also one that cannot be rolled back because of damage: a repair
    /// then corrects the number of the next inode.
    pub fn end_rollback(&self, of: TreeId, to: TreeId) -> Result<()> {
        let mut op = Op::begin_any(self, of)?;
        op.mark_restoring(to, false)?;
        let tree = op.trees.get_mut(&of).ok_or(Kind::NotFound)?;
        if let Some(receiving) = tree.record.receiving.take() {
            tree.record.next_ino = receiving.next_ino;
            tree.touch();
        }
        op.recount_held(of)?;
        op.finish();
        Ok(())
    }
}

impl State {
    /// Collects the first keys, from one on, that a fileset may have changed since a snapshot.
    fn changed_keys(&self, of: TreeId, to: TreeId, from: Key, most: usize) -> Result<Vec<Key>> {
        let mut keys = self.kept_since(of, to, None, from, most)?;
        let next_ino = self.tree(to)?.record.next_ino;
        let newer = Key::inode(of, next_ino << 1).0.max(from);
        let mut newest = 0;
        self.items.scan(newer, Key::layer(of).1, |key, _| {
            keys.insert(key);
            newest += 1;
            Ok(newest < most)
        })?;
        Ok(keys.into_iter().take(most).collect())
    }

    /// Collects the first keys, from one on, of which a snapshot of a fileset or a later one, up to
    /// `before`, has kept the old value. The keys are in the layer of the fileset.
    pub fn kept_since(
        &self,
        of: TreeId,
        snapshot: TreeId,
        before: Option<TreeId>,
        from: Key,
        count: usize,
    ) -> Result<BTreeSet<Key>> {
        let all = &self.trees.get(&of).ok_or(Kind::NotFound)?.snapshots;
        let layers = all.iter().skip_while(|id| **id != snapshot);
        let mut keys = BTreeSet::new();
        for &layer in layers.take_while(|id| Some(**id) != before) {
            let mut found = 0;
            let (first, last) = (from.in_layer(layer), Key::layer(layer).1);
            self.items.scan(first, last, |key, _| {
                keys.insert(key.in_layer(of));
                found += 1;
                Ok(found < count)
            })?;
        }
        while keys.len() > count {
            keys.pop_last();
        }
        Ok(keys)
    }
}

impl Op<'_> {
    fn mark_restoring(&mut self, to: TreeId, mark: bool) -> Result<()> {
        let of = self.tree;
        let snapshot = self.trees.get_mut(&to).ok_or(Kind::NotFound)?;
        snapshot.record.restoring = mark;
        snapshot.touch();
        self.note_tree(to);
        let tree = self.trees.get_mut(&of).ok_or(Kind::NotFound)?;
        tree.restoring = mark;
        if mark {
            tree.item_usage = None;
        }
        Ok(())
    }

    /// Gives an item of a fileset the value that it has in a snapshot.
    fn restore(&mut self, of: TreeId, to: TreeId, key: Key) -> Result<()> {
        let bytes = |bytes: &[u8]| Ok(bytes.to_vec());
        let now = self.items.get(&key, bytes)?;
        let mut old = self.get_key(to, key, bytes)?;
        let (Some(kind), ino) = (key.kind(), key.object) else {
            return Ok(());
        };
        if kind == Item::Inode {
            let was = old.as_deref().map(Inode::decode).transpose()?;
            let is = now.as_deref().map(Inode::decode).transpose()?;
            match (&was, &is) {
                (Some(was), Some(is)) if was != is => {
                    let data_version = was.data_version.max(is.data_version) + 1;
                    old = Some(
                        Inode {
                            data_version,
                            ..was.clone()
                        }
                        .encode(),
                    );
                }
                (Some(was), None) => {
                    let generation = self.generation();
                    old = Some(
                        Inode {
                            generation,
                            ..was.clone()
                        }
                        .encode(),
                    );
                }
                _ => {}
            }
            if was.is_some_and(|was| was.links == 0) {
                // It had no name, and was open when the snapshot was taken.
                self.put(of, 0, (Item::Orphan, ino), Vec::new(), Prior::Possible)?;
            }
            self.use_inodes(i64::from(old.is_some()) - i64::from(now.is_some()));
        }
        if now == old {
            return Ok(());
        }
        let run = |value: &Option<Vec<u8>>| -> Result<Option<_>> {
            let held = value.as_deref().map(|value| held_by(Some(kind), value));
            Ok(held.transpose()?.flatten().map(|held| held.run))
        };
        let (before, after) = (run(&now)?, run(&old)?);
        // First, so that blocks that both refer to are never free.
        if let Some(run) = after {
            self.share(run)?;
            self.use_blocks(run.blocks as i64);
        }
        let place = (kind, key.place());
        let kept = match old {
            Some(value) => self.put(of, ino, place, value, Prior::Possible)?,
            None => self.delete(of, ino, place)?,
        };
        if let Some(run) = before {
            if !kept {
                self.unshare(run)?;
            }
            self.use_blocks(-(run.blocks as i64));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::FileType;
    use crate::names::directory::{New, ROOT};
    use crate::{FIRST_FILESET, Options};
    use block_testing::Mem;

    const NEW: New = New::of_root(FileType::File, 0o644);

    fn name(number: usize) -> Vec<u8> {
        format!("{number}{}", "n".repeat(200)).into_bytes()
    }

    #[test]
    fn an_interrupted_rollback_without_room_is_completed_once_there_is_some() {
        const FILES: usize = 3000;
        let device = Arc::new(Mem::new(12 << 20, 4096));
        Fs::format(device.clone(), "").expect("formatted");
        let fs = Fs::open(device.clone(), Options::default()).expect("open");
        let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
        for number in 0..FILES {
            main.create(ROOT, &name(number), &NEW).expect("created");
        }
        let to = fs.snapshot(main.id, "then").expect("a snapshot").id;
        for number in 0..FILES {
            main.unlink(ROOT, &name(number)).expect("removed");
        }
        let other = fs.create_fileset("other").expect("created");
        // As if the process had been killed after the mark, and another one had then filled the
        // device.
        fs.inner()
            .superblock
            .need_features(TREE_FLAGS)
            .expect("a flag");
        let mut op = Op::begin_any(fs.inner(), main.id).expect("an operation");
        op.mark_restoring(to, true).expect("marked");
        op.finish();
        let create = |number: &usize| other.create(ROOT, &name(*number), &NEW).is_ok();
        let filled = (0..).take_while(create).count();
        let op = Op::begin_any(fs.inner(), main.id).expect("an operation");
        let error = fs.begin_rollback(op, to).expect_err("no room");
        assert_eq!(error.kind(), Kind::NoSpace, "{error}");
        assert!(
            error.to_string().contains("next mount completes"),
            "{error}"
        );
        fs.close().expect("closed");

        let fs = Fs::open(device.clone(), Options::default()).expect("open");
        let error = main_of(&fs).err().expect("a mixture");
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        let other = fs.fileset_named("other").expect("it can be used");
        for number in 0..filled {
            other.unlink(ROOT, &name(number)).expect("removed");
        }
        fs.close().expect("closed");

        let fs = Fs::open(device, Options::default()).expect("open");
        let main = main_of(&fs).expect("it is complete");
        for number in 0..FILES {
            main.lookup(ROOT, &name(number)).expect("restored");
        }
        let report = fs.check().expect("checked");
        assert!(report.is_clean(), "{:#?}", report.problems);
    }

    fn main_of(fs: &Fs) -> Result<Fileset> {
        let main = fs.fileset_named(FIRST_FILESET)?;
        main.attr(ROOT).map(|_| main)
    }
}
