//! Creating, listing, renaming, limiting and removing filesets and snapshots.
//!
//! Creating either is a single metadata change, whatever it contains. Removing one first hides it,
//! then deletes its items in batches; the next open finishes a removal that a crash interrupted.
//! **Invariant:** items of a removed snapshot that an older snapshot still needs move to that one.

use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::chunk::{Compression, held_by};
use crate::format::flags::InodeFlags;
use crate::format::key::{Item, Key, Section, TreeId};
use crate::format::record::{FileType, Inode, Out, Time};
use crate::format::superblock::TREE_FLAGS;
use crate::format::tree_record::{Receiving, TreeRecord, is_tree_name};
use crate::fs::Fs;
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, Tree, decode_preserved};
use crate::names::directory::ROOT;
use std::sync::Arc;

/// Number of items of a tree that one operation removes.
const STEP_ITEMS: usize = 1000;

/// Limits of a fileset; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Limit in blocks of 4096 bytes.
    pub blocks: u64,
    /// Limit in inodes.
    pub inodes: u64,
}

/// Change of a fileset or a snapshot as a whole.
#[derive(Debug, Clone, Copy)]
pub enum FilesetChange<'a> {
    /// See [`Fs::create_fileset`].
    Create {
        /// Name of the new fileset.
        name: &'a str,
    },
    /// See [`Fs::snapshot`].
    Snapshot {
        /// The fileset.
        of: TreeId,
        /// Name of the snapshot.
        name: &'a str,
    },
    /// See [`Fs::clone_snapshot`].
    Clone {
        /// The snapshot.
        of: TreeId,
        /// Name of the new fileset.
        name: &'a str,
    },
    /// See [`Fs::rename_fileset`].
    Rename {
        /// The fileset or snapshot.
        id: TreeId,
        /// The new name.
        name: &'a str,
    },
    /// See [`Fs::set_quota`].
    Quota {
        /// The fileset.
        id: TreeId,
        /// The new limits.
        quota: Quota,
    },
    /// See [`Fs::set_compression`].
    Compression {
        /// The fileset.
        id: TreeId,
        /// The method, or none.
        method: Option<Compression>,
    },
    /// See [`Fs::hold`].
    Hold {
        /// The snapshot.
        id: TreeId,
        /// Whether it is to be held.
        held: bool,
    },
    /// See [`Fs::rollback`].
    Rollback {
        /// The snapshot.
        to: TreeId,
        /// Name of the snapshot of the state before.
        keep: Option<&'a str>,
    },
    /// See [`Fs::remove_fileset`].
    Remove {
        /// The fileset or snapshot.
        id: TreeId,
    },
}

impl Fs {
    /// Checks a change without making it, and returns the record after it; the last one of a
    /// fileset that would be removed. Whether there is enough space is not checked.
    ///
    /// # Errors
    /// Those of the change.
    pub fn plan(&self, change: FilesetChange<'_>) -> Result<TreeRecord> {
        let fs = self.inner();
        fs.check_writable()?;
        let record = planned(&fs.read(), change, (fs.options.clock)())?;
        if let FilesetChange::Snapshot { of, .. } = change {
            fs.read().refuse_receiving(of)?;
        }
        match change {
            FilesetChange::Rollback { to, .. } => {
                self.check_detached(fs.read().tree(to)?.record.origin)?;
            }
            FilesetChange::Remove { id } if record.origin == 0 => self.check_detached(id)?,
            _ => {}
        }
        Ok(record)
    }

    /// Returns all filesets and snapshots with their records, in order of their ids.
    pub fn filesets(&self) -> Vec<(TreeId, TreeRecord)> {
        let state = self.inner().read();
        let there = state.trees.iter().filter(|(_, tree)| !tree.record.removing);
        there.map(|(id, tree)| (*id, tree.record.clone())).collect()
    }

    /// Looks up the fileset or snapshot with the given name.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn fileset_named(&self, name: &str) -> Result<Fileset> {
        let found = self.filesets().into_iter().find(|(_, r)| r.name == name);
        match found {
            Some((id, _)) => self.fileset(id),
            None => {
                let text = format!("no fileset or snapshot named `{name}`");
                Err(Error::new(Kind::NotFound, text))
            }
        }
    }

    /// Creates a fileset with an empty root directory. It is durable when this returns.
    ///
    /// # Errors
    /// [`Kind::Exists`]; [`Kind::Invalid`]: `name` is not a valid fileset name.
    pub fn create_fileset(&self, name: &str) -> Result<Fileset> {
        self.add_fileset(name, None)
    }

    /// Creates a fileset; with `receiving` one that receives a snapshot with the given number of the
    /// next inode.
    pub(crate) fn add_fileset(
        &self,
        name: &str,
        receiving: Option<(Receiving, u64)>,
    ) -> Result<Fileset> {
        let add = || self.try_add_fileset(name, receiving);
        let id = self.inner().with_room(add)?;
        self.sync()?;
        self.fileset(id)
    }

    fn try_add_fileset(&self, name: &str, receiving: Option<(Receiving, u64)>) -> Result<TreeId> {
        let mut op = Op::begin_any(self.inner(), 0)?;
        let now = op.now;
        let mut record = planned(&op, FilesetChange::Create { name }, now)?;
        if let Some((receiving, next_ino)) = receiving {
            record.receiving = Some(receiving);
            record.next_ino = record.next_ino.max(next_ino);
        }
        op.check_room()?;
        let id = add_tree(&mut op, record)?;
        let root = Inode {
            kind: FileType::Directory,
            permissions: 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: InodeFlags::default(),
            generation: self.inner().generation,
            size: 0,
            disk_size: 0,
            blocks: 0,
            data_version: 1,
            parent: ROOT,
            entries: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
        };
        op.put(id, ROOT, (Item::Inode, 0), root.encode(), Prior::Absent)?;
        op.finish();
        Ok(id)
    }

    /// Creates a snapshot: a read-only view of the fileset as it is now. The caller has already
    /// had the caches write back their pages. The snapshot is durable when this returns.
    ///
    /// # Errors
    /// [`Kind::Exists`]; [`Kind::Invalid`]: `of` is itself a snapshot; [`Kind::NoSpace`]: dirty
    /// pages that were to be written in place now need new blocks, and there are not enough.
    pub fn snapshot(&self, of: TreeId, name: &str) -> Result<Fileset> {
        self.add_snapshot(of, name, None)
    }

    /// Completes the reception of a snapshot: creates the snapshot, which has the identity
    /// `received` from then on.
    pub(crate) fn add_received(
        &self,
        of: TreeId,
        name: &str,
        received: [u8; 16],
    ) -> Result<Fileset> {
        self.add_snapshot(of, name, Some(received))
    }

    fn add_snapshot(&self, of: TreeId, name: &str, received: Option<[u8; 16]>) -> Result<Fileset> {
        let add = || self.try_add_snapshot(of, name, received);
        let id = self.inner().with_room(add)?;
        self.sync()?;
        self.inner().trees_changed.notify();
        self.fileset(id)
    }

    fn try_add_snapshot(
        &self,
        of: TreeId,
        name: &str,
        received: Option<[u8; 16]>,
    ) -> Result<TreeId> {
        let mut op = Op::begin_any(self.inner(), of)?;
        if received.is_none() {
            op.refuse_receiving(of)?;
        }
        let change = FilesetChange::Snapshot { of, name };
        planned(&op, change, op.now)?;
        op.check_room()?;
        op.promise_in_place()?;
        op.materialize()?;
        // Only now are all blocks and inodes of the fileset in its record.
        let record = TreeRecord {
            received,
            receiving: None,
            ..planned(&op, change, op.now)?
        };
        let id = add_tree(&mut op, record)?;
        let fileset = op.trees.get_mut(&of).ok_or(Kind::NotFound)?;
        fileset.snapshots.push(id);
        if received.is_some() {
            fileset.record.receiving = None;
            fileset.touch();
        }
        op.finish();
        Ok(id)
    }

    /// Renames a fileset or a snapshot. The new name is durable when this returns.
    ///
    /// # Errors
    /// [`Kind::Exists`], [`Kind::Invalid`], [`Kind::NotFound`].
    pub fn rename_fileset(&self, id: TreeId, name: &str) -> Result<()> {
        let mut op = Op::begin_any(self.inner(), id)?;
        let record = planned(&op, FilesetChange::Rename { id, name }, op.now)?;
        let tree = op.trees.get_mut(&id).ok_or(Kind::NotFound)?;
        tree.record = record;
        tree.touch();
        op.finish();
        self.sync()?;
        self.inner().trees_changed.notify();
        Ok(())
    }

    /// Sets the limits of a fileset. Existing content stays, even beyond the limit. Names, targets
    /// of symbolic links and extended attributes count as well as content, and each name of a file
    /// counts as an inode.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`]: `id` is a snapshot.
    pub fn set_quota(&self, id: TreeId, quota: Quota) -> Result<()> {
        let mut op = Op::begin_any(self.inner(), id)?;
        planned(&op, FilesetChange::Quota { id, quota }, op.now)?;
        let tree = op.trees.get_mut(&id).ok_or(Kind::NotFound)?;
        let quota = Quota {
            blocks: std::mem::replace(&mut tree.record.quota_blocks, quota.blocks),
            inodes: std::mem::replace(&mut tree.record.quota_inodes, quota.inodes),
        };
        tree.touch();
        if let Err(error) = op.recount_held(id) {
            let tree = op.trees.get_mut(&id).ok_or(Kind::NotFound)?;
            (tree.record.quota_blocks, tree.record.quota_inodes) = (quota.blocks, quota.inodes);
            return Err(error);
        }
        op.finish();
        self.sync()
    }

    /// Sets the method by which new content of a fileset is compressed, except for files with the flag
    /// [`InodeFlags::NO_COMPRESS`]. Existing content stays as it is until it is written again.
    /// Durable when this returns.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`]: `id` is a snapshot.
    pub fn set_compression(&self, id: TreeId, method: Option<Compression>) -> Result<()> {
        let fs = self.inner();
        let change = FilesetChange::Compression { id, method };
        self.plan(change)?;
        if method.is_some() {
            fs.need_compression()?;
        }
        let mut op = Op::begin_any(fs, id)?;
        let record = planned(&op, change, op.now)?;
        let tree = op.trees.get_mut(&id).ok_or(Kind::NotFound)?;
        tree.record = record;
        tree.touch();
        op.finish();
        self.sync()
    }

    /// Protects a snapshot from removal, or ends that. Durable when this returns.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Invalid`]: `id` is not a snapshot.
    pub fn hold(&self, id: TreeId, held: bool) -> Result<()> {
        let fs = self.inner();
        planned(
            &fs.read(),
            FilesetChange::Hold { id, held },
            Time::default(),
        )?;
        if held {
            fs.superblock.need_features(TREE_FLAGS)?;
        }
        let mut op = Op::begin_any(fs, id)?;
        let record = planned(&op, FilesetChange::Hold { id, held }, op.now)?;
        let tree = op.trees.get_mut(&id).ok_or(Kind::NotFound)?;
        tree.record = record;
        tree.touch();
        op.finish();
        self.sync()
    }

    /// Removes a fileset or a snapshot.
    ///
    /// # Errors
    /// [`Kind::Busy`]: it has open files, dirty pages or snapshots, it is held, or it is a fileset
    /// that is mounted or served. [`Kind::NotFound`].
    pub fn remove_fileset(&self, id: TreeId) -> Result<()> {
        let mut op = Op::begin_any(self.inner(), id)?;
        let record = planned(&op, FilesetChange::Remove { id }, op.now)?;
        // A mount of a fileset keeps its snapshots open after their last use.
        if record.origin == 0 {
            self.check_detached(id)?;
        }
        op.cores.retain(|(tree, _), _| *tree != id);
        let tree = op.trees.get_mut(&id).ok_or(Kind::NotFound)?;
        tree.record.removing = true;
        tree.touch();
        tree.accounts = None;
        op.finish();
        self.inner().trees_changed.notify();
        self.sync()?;
        self.inner().remove_tree_items(id)?;
        self.sync()
    }
}

/// Checks a change, and returns the record after it.
pub(super) fn planned(state: &State, change: FilesetChange<'_>, now: Time) -> Result<TreeRecord> {
    if let Some(error) = &state.failed {
        return Err(error.clone());
    }
    let record = |id| -> Result<TreeRecord> { Ok(state.tree(id)?.record.clone()) };
    match change {
        FilesetChange::Create { name } => {
            check_name(state, name)?;
            Ok(TreeRecord::new(name.to_owned(), now))
        }
        FilesetChange::Snapshot { of, name } => {
            check_name(state, name)?;
            let record = record(of)?;
            if record.origin != 0 {
                return Err(Error::new(
                    Kind::Invalid,
                    "cannot create a snapshot of a snapshot",
                ));
            }
            Ok(TreeRecord {
                origin: of,
                quota_blocks: 0,
                quota_inodes: 0,
                held: false,
                restoring: false,
                received: None,
                created: now,
                name: name.to_owned(),
                ..record
            })
        }
        FilesetChange::Clone { of, name } => {
            check_name(state, name)?;
            let snapshot = record(of)?;
            if snapshot.origin == 0 {
                let text = "it is not a snapshot; create a snapshot of it, and clone that";
                return Err(Error::new(Kind::Invalid, text));
            }
            Ok(TreeRecord {
                next_ino: snapshot.next_ino,
                used_blocks: snapshot.used_blocks,
                used_inodes: snapshot.used_inodes,
                compression: snapshot.compression,
                ..TreeRecord::new(name.to_owned(), now)
            })
        }
        FilesetChange::Rename { id, name } => {
            let record = record(id)?;
            check_name(state, name)?;
            let name = name.to_owned();
            Ok(TreeRecord { name, ..record })
        }
        FilesetChange::Compression { id, method } => {
            let record = record(id)?;
            if record.origin != 0 {
                let text = "a snapshot is never written; set the compression of its fileset";
                return Err(Error::new(Kind::Invalid, text));
            }
            let compression = method;
            Ok(TreeRecord {
                compression,
                ..record
            })
        }
        FilesetChange::Quota { id, quota } => {
            let record = record(id)?;
            if record.origin != 0 {
                return Err(Error::new(Kind::Invalid, "a snapshot has no quota"));
            }
            Ok(TreeRecord {
                quota_blocks: quota.blocks,
                quota_inodes: quota.inodes,
                ..record
            })
        }
        FilesetChange::Hold { id, held } => {
            let record = record(id)?;
            if record.origin == 0 {
                return Err(Error::new(Kind::Invalid, "only a snapshot can be held"));
            }
            Ok(TreeRecord { held, ..record })
        }
        FilesetChange::Rollback { to, keep } => {
            let snapshot = record(to)?;
            if snapshot.origin == 0 {
                return Err(Error::new(Kind::Invalid, "it is not a snapshot"));
            }
            keep.map_or(Ok(()), |name| check_name(state, name))?;
            state.refuse_receiving(snapshot.origin)?;
            check_unused(state, snapshot.origin)?;
            Ok(TreeRecord {
                used_blocks: snapshot.used_blocks,
                used_inodes: snapshot.used_inodes,
                ..record(snapshot.origin)?
            })
        }
        FilesetChange::Remove { id } => {
            let tree = state.tree(id)?;
            if tree.record.held {
                let text = "the snapshot is held; release it first";
                return Err(Error::new(Kind::Busy, text));
            }
            let origin = state.trees.get(&tree.record.origin);
            if origin.is_some_and(|origin| origin.restoring) {
                let text = "the fileset of the snapshot is being rolled back";
                return Err(Error::new(Kind::Busy, text));
            }
            let receiving = origin.and_then(|origin| origin.record.receiving);
            if receiving.is_some_and(|receiving| receiving.base == id) {
                let text = "the fileset of the snapshot is receiving changes since it";
                return Err(Error::new(Kind::Busy, text));
            }
            if !tree.snapshots.is_empty() {
                return Err(Error::new(Kind::Busy, "the fileset has snapshots"));
            }
            check_unused(state, id)?;
            Ok(tree.record.clone())
        }
    }
}

/// Checks that no file of a tree is open or has unwritten data.
fn check_unused(state: &State, id: TreeId) -> Result<()> {
    let mut own = state.cores.iter().filter(|((tree, _), _)| *tree == id);
    if own.any(|(_, core)| !core.is_unused()) {
        let text = "files are open or have unwritten data";
        return Err(Error::new(Kind::Busy, text));
    }
    Ok(())
}

pub(crate) fn check_name(state: &State, name: &str) -> Result<()> {
    if !is_tree_name(name) {
        let text =
            "invalid name: 1 to 255 bytes, no `/` or control characters, and not `.` or `..`";
        return Err(Error::new(Kind::Invalid, text));
    }
    if state
        .trees
        .values()
        .any(|t| !t.record.removing && t.record.name == name)
    {
        Err(Error::new(Kind::Exists, format!("`{name}` already exists")))
    } else {
        Ok(())
    }
}

pub(super) fn add_tree(op: &mut Op, record: TreeRecord) -> Result<TreeId> {
    let id = op.next_tree;
    let next = id.checked_add(1);
    op.next_tree = next.ok_or_else(|| Error::new(Kind::NoSpace, "fileset ids are exhausted"))?;
    let mut out = Out::with(4);
    out.u32(id + 1);
    op.put_key(Key::global(Section::NextTree, 0), out.0, Prior::Possible);
    let mut tree = Tree::new(record);
    tree.touch();
    op.items.find_last_object(id)?;
    op.trees.insert(id, tree);
    op.note_tree(id);
    Ok(id)
}

impl Op<'_> {
    /// Reserves new blocks for the dirty pages that were to be written in place, because a snapshot
    /// is about to keep the old blocks.
    fn promise_in_place(&mut self) -> Result<()> {
        let id = self.tree;
        let dirty = self.cores.iter().filter(|((tree, _), _)| *tree == id);
        let blocks: u64 = dirty.map(|(_, core)| core.in_place.count()).sum();
        self.reserve(blocks, blocks)?;
        let (mut replacing, mut grown) = (0, Vec::new());
        for (name, core) in self.cores.iter_mut().filter(|((tree, _), _)| *tree == id) {
            let in_place = std::mem::take(&mut core.in_place);
            core.promised.extend(&in_place);
            let replaced: u64 = in_place.iter().map(|run| core.replacing.insert(run)).sum();
            replacing += replaced;
            // Blocks that replace others already count once.
            if replaced < in_place.count() {
                grown.push((*name, (in_place.count() - replaced) as i64));
            }
        }
        for (name, by) in grown {
            self.owe(name, by);
        }
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.replacing += replacing;
        }
        Ok(())
    }
}

impl FsShared {
    /// Removes all items of a tree that is marked as being removed, and then its record.
    pub fn remove_tree_items(self: &Arc<FsShared>, id: TreeId) -> Result<()> {
        while !self.remove_some(id)? {}
        Ok(())
    }

    /// Removes one batch of items. Returns whether the removal is complete.
    fn remove_some(&self, id: TreeId) -> Result<bool> {
        let mut op = Op::begin_any(self, id)?;
        let Some(tree) = op.trees.get(&id) else {
            return Ok(true);
        };
        let origin = tree.record.origin;
        let older = op.trees.get(&origin).and_then(|origin| {
            let at = origin.snapshots.iter().position(|s| *s == id)?;
            origin.snapshots.get(at.checked_sub(1)?).copied()
        });
        let mut items: Vec<(Key, Vec<u8>)> = Vec::new();
        let (from, to) = Key::layer(id);
        op.items.scan(from, to, |key, bytes| {
            items.push((key, bytes.to_vec()));
            Ok(items.len() < STEP_ITEMS)
        })?;
        if items.is_empty() {
            op.delete_key(Key::global(Section::Trees, id.into()));
            // While this operation still holds the lock: no other one may keep an old value in a
            // layer that no longer exists.
            op.trees.remove(&id);
            if let Some(origin) = op.trees.get_mut(&origin) {
                origin.snapshots.retain(|snapshot| *snapshot != id);
            }
            op.finish();
            return Ok(true);
        }
        for (key, bytes) in items {
            op.remove_item(key, bytes, origin, older)?;
        }
        op.finish();
        Ok(false)
    }
}

impl Op<'_> {
    fn remove_item(
        &mut self,
        key: Key,
        bytes: Vec<u8>,
        origin: TreeId,
        older: Option<TreeId>,
    ) -> Result<()> {
        self.delete_key(key);
        if let Some(older) = older
            && self.moves_to(key, older)?
        {
            self.put_key(key.in_layer(older), bytes, Prior::Possible);
            return Ok(());
        }
        let kind = key.kind();
        if !matches!(kind, Some(Item::Extent | Item::Chunk)) {
            return Ok(());
        }
        let value = match origin {
            0 => Some(&bytes[..]),
            _ => decode_preserved(&bytes)?,
        };
        match value.map(|value| held_by(kind, value)).transpose()? {
            Some(Some(held)) => self.unshare(held.run),
            _ => Ok(()),
        }
    }
}
