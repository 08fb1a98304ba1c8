//! The metadata in memory, under one lock: reading it as of a tree, and changing it step by step.
//!
//! A tree is a fileset or a snapshot of one. Creating a snapshot copies nothing: from then on, the
//! first change of each key of the fileset saves the old value in the snapshot's layer.
//!
//! ```text
//!   snapshot 5 ──not found──► snapshot 8 ──not found──► fileset 2
//!   (values before the        (values before the
//!    first change after 5)     first change after 8)
//! ```
//!
//! **Invariant:** each extent record, in whatever layer, counts as one reference to its blocks; a
//! record that moves into a snapshot's layer takes its reference along. Each change is logged, so
//! that `Op` can roll back an unfinished operation.

use crate::error::{Error, Kind, Result};
use crate::format::account::Owner;
use crate::format::key::{Direction, Ino, Item, Key, Section, TreeId};
use crate::format::record::{Inode, Run};
use crate::format::sums::Summer;
use crate::format::tree_record::TreeRecord;
use crate::metadata::absent::AbsentNames;
use crate::metadata::account_state::{Account, Accounts};
use crate::metadata::database::SpaceChange;
use crate::metadata::inode_state::InodeState;
use crate::metadata::item_map::ItemMap;
use crate::metadata::item_usage::ItemUsage;
use crate::metadata::overlay::{Change, Prior};
use crate::metadata::pending_sums::PendingSums;
use crate::metadata::unsaved::Unsaved;
use foldhash::HashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// Tag: the key did not exist when the snapshot was taken.
const ABSENT: u8 = 0;
/// Tag: the old value follows.
const PRESENT: u8 = 1;

/// Everything that the lock protects.
pub(crate) struct State {
    pub items: ItemMap,
    pub trees: BTreeMap<TreeId, Tree>,
    /// Inodes that are open, or whose state in memory is ahead of their record.
    pub cores: HashMap<(TreeId, Ino), InodeState>,
    /// Inodes in `cores` that the next commit has to write.
    pub dirty_cores: Vec<(TreeId, Ino)>,
    /// Number of changes so far; grows with each one.
    pub changes: u64,
    /// Error after which all changes are refused.
    pub failed: Option<Error>,
    /// The id of the next fileset or snapshot.
    pub next_tree: TreeId,
    /// Blocks of the device that may hold data.
    pub bounds: Range<u64>,
    /// Whether file data has checksums.
    pub checksums: bool,
    /// Whether files may have compressed chunks.
    pub compression: bool,
    /// Function that computes the checksums.
    pub summer: Summer,
    /// Checksums that the next record of the journal makes items.
    pub pending_sums: PendingSums,
    /// Undo log of the current operation.
    pub steps: Vec<Step>,
    /// Blocks that the current operation allocated or freed.
    pub space: Vec<SpaceChange>,
    /// Whether there may be a record of shared blocks. Without snapshots there is none.
    pub may_share: bool,
    /// Names that were looked up in vain.
    pub absent: AbsentNames,
    /// Number of changes to items of each kind, in all trees.
    pub item_changes: [u64; Item::NUMBERS],
    /// What the log for a successor lacks; `None` without such a log.
    pub unsaved: Option<Unsaved>,
}

/// A fileset or a snapshot in memory.
pub(crate) struct Tree {
    pub record: TreeRecord,
    /// Whether the record differs from the one in the items.
    pub changed: bool,
    /// Whether it may differ from the one in the log for a successor.
    pub unsaved: bool,
    /// Blocks promised to its files.
    pub promised: u64,
    /// Those of them that will replace a block of the file.
    pub replacing: u64,
    /// Usage that counts against the limits besides blocks and inodes; `None` without limits.
    pub item_usage: Option<ItemUsage>,
    /// Accounts of users and groups; `None` if none of them has a limit.
    pub accounts: Option<Accounts>,
    /// Whether the fileset is being rolled back, so that nothing may use it.
    pub restoring: bool,
    /// Whether dirty pages of a killed server are taken over. They count against limits, and none of
    /// them is refused.
    pub adopting: bool,
    /// Snapshots of the fileset, oldest first.
    pub snapshots: Vec<TreeId>,
}

impl Tree {
    /// Creates a tree whose record is already in the items.
    pub fn new(record: TreeRecord) -> Tree {
        Tree {
            record,
            changed: false,
            unsaved: false,
            promised: 0,
            replacing: 0,
            item_usage: None,
            accounts: None,
            restoring: false,
            adopting: false,
            snapshots: Vec::new(),
        }
    }

    /// Records that the record has changed.
    pub fn touch(&mut self) {
        (self.changed, self.unsaved) = (true, true);
    }

    /// Decodes an item of [`crate::format::key::Section::Trees`].
    pub fn read(key: &Key, bytes: &[u8]) -> Result<(TreeId, Tree)> {
        let id = TreeId::try_from(key.item).ok().filter(|id| *id != 0);
        let id = id.ok_or_else(|| Error::corrupt("invalid fileset id"))?;
        Ok((id, Tree::new(TreeRecord::decode(bytes)?)))
    }

    /// Returns the blocks that count against the quota: content, allocated and promised, and the
    /// blocks that the counted items would fill.
    pub fn charged_blocks(&self) -> u64 {
        let growth = self.promised.saturating_sub(self.replacing);
        self.record.used_blocks + growth + self.item_usage.map_or(0, |held| held.blocks())
    }

    /// Returns the inodes that count against the quota: each once per name. The root has no name.
    pub fn charged_inodes(&self) -> u64 {
        let names = self.item_usage.map_or(0, |held| held.names + 1);
        self.record.used_inodes.max(names)
    }

    pub fn is_limited(&self) -> bool {
        let is_fileset = self.record.origin == 0 && !self.record.removing && !self.restoring;
        is_fileset && (self.record.quota_blocks != 0 || self.record.quota_inodes != 0)
    }
}

/// Entry of the undo log.
pub(crate) enum Step {
    /// Entry of the overlay, with its previous value.
    Item(Key, Option<Change>),
    /// Inode in memory, with its previous value and dirty flag.
    Core((TreeId, Ino), Inode, bool),
    /// Fileset, with its previous usage.
    ItemUsage(TreeId, ItemUsage),
    /// Account of an owner in a fileset, with its previous state.
    Account(TreeId, Owner, Account),
}

impl State {
    /// Returns a tree that exists and is neither being removed nor rolled back.
    pub fn tree(&self, id: TreeId) -> Result<&Tree> {
        let tree = self.trees.get(&id).filter(|tree| !tree.record.removing);
        let tree = tree.ok_or_else(|| Error::new(Kind::NotFound, "no such fileset or snapshot"))?;
        if tree.restoring {
            let text = "the rollback of the fileset is incomplete; open the file system for writing \
                        to complete it";
            return Err(Error::new(Kind::Busy, text));
        }
        Ok(tree)
    }

    /// Reports whether a fileset is receiving a snapshot, so that it is incomplete.
    pub fn is_receiving(&self, id: TreeId) -> bool {
        let tree = self.trees.get(&id);
        tree.is_some_and(|tree| tree.record.receiving.is_some())
    }

    /// Checks that a fileset is not receiving a snapshot.
    ///
    /// # Errors
    /// [`Kind::Busy`].
    pub fn refuse_receiving(&self, id: TreeId) -> Result<()> {
        if self.is_receiving(id) {
            let text = "it is receiving a snapshot; complete that with `evfs fileset receive`, or \
                        abandon it with --abort";
            return Err(Error::new(Kind::Busy, text));
        }
        Ok(())
    }

    /// Finds the layers to search for a tree: those of snapshots first, then that of the fileset.
    fn layers(&self, id: TreeId) -> Result<(&[TreeId], TreeId)> {
        let tree = self.tree(id)?;
        let origin = match tree.record.origin {
            0 => return Ok((&[], id)),
            origin => origin,
        };
        let siblings = &self.trees.get(&origin).ok_or(Kind::NotFound)?.snapshots;
        let from = siblings
            .iter()
            .position(|s| *s == id)
            .ok_or(Kind::NotFound)?;
        Ok((&siblings[from..], origin))
    }

    /// Checks whether an inode was created after a snapshot.
    fn is_newer(&self, ino: Ino, snapshot: TreeId) -> bool {
        let next_ino = self.trees.get(&snapshot).map(|s| s.record.next_ino);
        next_ino.is_some_and(|next| ino >> 1 >= next)
    }

    /// Reads the value of an item of a tree, converted by `read`.
    pub fn get<T>(
        &self,
        tree: TreeId,
        ino: Ino,
        (item, place): (Item, u64),
        read: impl Fn(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        self.get_key(tree, Key::item(tree, ino, item, place), read)
    }

    pub fn get_key<T>(
        &self,
        tree: TreeId,
        key: Key,
        read: impl Fn(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let (snapshots, origin) = self.layers(tree)?;
        for &layer in snapshots {
            if self.is_newer(key.object, layer) {
                return Ok(None);
            }
            let past = |bytes: &[u8]| decode_preserved(bytes)?.map(&read).transpose();
            if let Some(value) = self.items.get(&key.in_layer(layer), past)? {
                return Ok(value);
            }
        }
        self.items.get(&key.in_layer(origin), read)
    }

    /// Passes the items of one kind and one inode from one place to another, both included, to
    /// `take` until that returns `false`.
    pub fn scan(
        &self,
        tree: TreeId,
        ino: Ino,
        (item, from, to): (Item, u64, u64),
        mut take: impl FnMut(u64, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let (from, to) = (
            Key::item(tree, ino, item, from),
            Key::item(tree, ino, item, to),
        );
        self.scan_keys(tree, from, to, |key, value| take(key.place(), value))
    }

    /// Passes the items of a tree from one key to another, both included, to `take` until that
    /// returns `false`. The layer of the keys has no meaning.
    pub fn scan_keys(
        &self,
        tree: TreeId,
        from: Key,
        to: Key,
        mut take: impl FnMut(Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let (snapshots, origin) = self.layers(tree)?;
        let (from, to) = (from.in_layer(origin), to.in_layer(origin));
        if snapshots.is_empty() {
            return self.items.scan(from, to, take);
        }
        let mut next = Some(from);
        while let Some(at) = next.filter(|at| *at <= to) {
            let Some(key) = self.nearest(snapshots, origin, (at, to), Direction::Forward)? else {
                return Ok(());
            };
            let value = self.get_key(tree, key, |bytes| Ok(bytes.to_vec()))?;
            if let Some(value) = value
                && !take(key, &value)?
            {
                return Ok(());
            }
            next = key.next();
        }
        Ok(())
    }

    /// Finds the last item of one kind and one inode at or before a place.
    pub fn last<T>(
        &self,
        tree: TreeId,
        ino: Ino,
        (item, place): (Item, u64),
        read: impl Fn(u64, &[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let (snapshots, origin) = self.layers(tree)?;
        let from = Key::item(origin, ino, item, 0);
        let mut to = Key::item(origin, ino, item, place);
        if snapshots.is_empty() {
            return self
                .items
                .last(from, to, |key, value| read(key.place(), value));
        }
        loop {
            let Some(key) = self.nearest(snapshots, origin, (from, to), Direction::Backward)?
            else {
                return Ok(None);
            };
            let found = self.get_key(tree, key, |bytes| read(key.place(), bytes))?;
            if found.is_some() || key == from {
                return Ok(found);
            }
            to = Key {
                item: key.item - 1,
                ..key
            };
        }
    }

    /// Passes every item of a tree in order to `take` until that returns `false`.
    pub fn scan_tree(
        &self,
        tree: TreeId,
        take: impl FnMut(Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let (mut from, to) = Key::layer(tree);
        if !self.layers(tree)?.0.is_empty() {
            // Orphans belong to the present state; a snapshot has none.
            from = Key::inode(tree, 1).0;
        }
        self.scan_keys(tree, from, to, take)
    }

    /// Finds the first key in this direction of any layer between two keys, both included. Its
    /// entry may be a deletion.
    fn nearest(
        &self,
        snapshots: &[TreeId],
        origin: TreeId,
        (from, to): (Key, Key),
        direction: Direction,
    ) -> Result<Option<Key>> {
        let mut best: Option<Key> = None;
        for layer in snapshots.iter().copied().chain([origin]) {
            let (from, to) = (from.in_layer(layer), to.in_layer(layer));
            let mut found = None;
            match direction {
                Direction::Forward => self.items.scan(from, to, |key, _| {
                    found = Some(key);
                    Ok(false)
                })?,
                Direction::Backward => found = self.items.last(from, to, |key, _| Ok(key))?,
            }
            let found = found.map(|key| key.in_layer(origin));
            best = match (best, found) {
                (Some(one), Some(two)) => Some(match direction {
                    Direction::Forward => one.min(two),
                    Direction::Backward => one.max(two),
                }),
                (one, two) => one.or(two),
            };
        }
        Ok(best)
    }

    /// Sets an item of a fileset. `prior` states whether the tree may have the item already.
    /// Returns whether an old value has moved into a snapshot's layer.
    pub fn put(
        &mut self,
        tree: TreeId,
        ino: Ino,
        (item, place): (Item, u64),
        value: Vec<u8>,
        prior: Prior,
    ) -> Result<bool> {
        let key = Key::item(tree, ino, item, place);
        let kept = self.note_change(key, Some(&value), prior)?;
        self.put_key(key, value, prior);
        Ok(kept)
    }

    /// Does what a change of an item requires besides the change: saves the old value for a snapshot,
    /// and counts the usage. Returns whether an old value has moved into a snapshot's layer.
    fn note_change(&mut self, key: Key, new: Option<&[u8]>, prior: Prior) -> Result<bool> {
        let plain = self.trees.get(&key.layer).is_none_or(|tree| {
            tree.snapshots.is_empty() && tree.item_usage.is_none() && tree.accounts.is_none()
        });
        if plain {
            return Ok(false);
        }
        let kept = self.keep(key, prior)?;
        self.count_held(key, new.map(<[u8]>::len), prior)?;
        self.account(key, new, prior)?;
        Ok(kept)
    }

    /// Removes an item of a fileset. Returns whether it has moved into a snapshot's layer.
    pub fn delete(&mut self, tree: TreeId, ino: Ino, (item, place): (Item, u64)) -> Result<bool> {
        let key = Key::item(tree, ino, item, place);
        let kept = self.note_change(key, None, Prior::Possible)?;
        self.delete_key(key);
        Ok(kept)
    }

    /// Checks whether a change of this item would first move it into a snapshot's layer.
    pub fn is_kept(&self, tree: TreeId, ino: Ino, item: Item, place: u64) -> Result<bool> {
        let key = Key::item(tree, ino, item, place);
        Ok(self.keeper(key)?.is_some())
    }

    /// Finds the snapshot that still needs the current value of a key.
    fn keeper(&self, key: Key) -> Result<Option<TreeId>> {
        let tree = self.trees.get(&key.layer);
        let Some(snapshot) = tree.and_then(|tree| tree.snapshots.last().copied()) else {
            return Ok(None);
        };
        // Object 0 holds the orphans, which belong to the present state and not to the tree.
        if key.object == 0 || self.is_newer(key.object, snapshot) {
            return Ok(None);
        }
        let has = self.items.get(&key.in_layer(snapshot), |_| Ok(()))?;
        Ok(has.is_none().then_some(snapshot))
    }

    fn keep(&mut self, key: Key, prior: Prior) -> Result<bool> {
        let Some(snapshot) = self.keeper(key)? else {
            return Ok(false);
        };
        let past = |bytes: &[u8]| Ok([&[PRESENT], bytes].concat());
        let old = match prior {
            Prior::Absent => None,
            Prior::Possible => self.items.get(&key, past)?,
        };
        let was_there = old.is_some();
        self.put_key(
            key.in_layer(snapshot),
            old.unwrap_or(vec![ABSENT]),
            Prior::Absent,
        );
        Ok(was_there)
    }

    /// Splits a record of a layer: `rest` is the part from its block `skip` on. What any tree sees
    /// stays the same.
    pub fn put_rest(&mut self, first: Key, skip: u64, rest: Vec<u8>) -> Result<()> {
        let key = Key {
            item: first.item + skip,
            ..first
        };
        // Older snapshots that have a record of their own instead of the first part would see the
        // rest through this layer.
        let origin = self.trees.get(&key.layer).map(|tree| tree.record.origin);
        let fileset = origin.filter(|id| *id != 0).unwrap_or(key.layer);
        let snapshots = self.trees.get(&fileset).map(|tree| &tree.snapshots[..]);
        let older = snapshots.unwrap_or_default().iter().copied();
        let older: Vec<TreeId> = older.take_while(|id| *id != key.layer).collect();
        for id in older.into_iter().rev() {
            if self.items.get(&first.in_layer(id), |_| Ok(()))?.is_some() {
                if self.items.get(&key.in_layer(id), |_| Ok(()))?.is_none() {
                    self.put_key(key.in_layer(id), vec![ABSENT], Prior::Absent);
                }
                break;
            }
        }
        self.put_key(key, rest, Prior::Possible);
        Ok(())
    }

    /// Updates the usage for a change of an item.
    fn count_held(&mut self, key: Key, new: Option<usize>, prior: Prior) -> Result<()> {
        let held = self.trees.get(&key.layer).and_then(|tree| tree.item_usage);
        let Some(before) = held.filter(|_| ItemUsage::is_counted(&key)) else {
            return Ok(());
        };
        let old = match prior {
            Prior::Absent => None,
            Prior::Possible => self.items.get(&key, |bytes| Ok(bytes.len()))?,
        };
        let mut now = before;
        now.change(&key, old, new);
        self.steps.push(Step::ItemUsage(key.layer, before));
        if let Some(tree) = self.trees.get_mut(&key.layer) {
            tree.item_usage = Some(now);
        }
        Ok(())
    }

    /// Returns the number of changes to items of a kind, in all trees.
    pub fn changes_of(&self, item: Item) -> u64 {
        self.item_changes[item as usize]
    }

    fn count_change(&mut self, key: &Key) {
        if let Some(item) = key.kind() {
            self.item_changes[item as usize] += 1;
        }
    }

    /// Sets a key, without saving the old value for a snapshot.
    pub fn put_key(&mut self, key: Key, value: Vec<u8>, prior: Prior) {
        self.count_change(&key);
        self.may_share |= key.is_in(Section::Shared);
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.put(&key, Some(&value));
        }
        let before = self.items.active.put(key, value.into(), prior);
        self.steps.push(Step::Item(key, before));
    }

    /// Removes a key, without saving the old value for a snapshot.
    pub fn delete_key(&mut self, key: Key) {
        self.count_change(&key);
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.put(&key, None);
        }
        let before = self.items.active.delete(key);
        self.steps.push(Step::Item(key, before));
    }

    /// Marks allocated blocks as in use.
    pub fn mark_used(&mut self, run: Run) {
        self.space.push(SpaceChange { run, used: true });
    }

    /// Returns the inode as readers see it.
    pub fn inode(&self, tree: TreeId, ino: Ino) -> Result<Inode> {
        if let Some(core) = self.cores.get(&(tree, ino)) {
            return Ok(core.inode.clone());
        }
        self.stored_inode(tree, ino)
    }

    /// Reads the record of an inode.
    fn stored_inode(&self, tree: TreeId, ino: Ino) -> Result<Inode> {
        let found = self.get(tree, ino, (Item::Inode, 0), Inode::decode)?;
        found.ok_or_else(|| Kind::Stale.into())
    }

    /// Returns the inode with promised blocks included in its block count, for space reporting.
    pub fn inode_shown(&self, tree: TreeId, ino: Ino) -> Result<Inode> {
        let Some(core) = self.cores.get(&(tree, ino)) else {
            return self.stored_inode(tree, ino);
        };
        let mut inode = core.inode.clone();
        inode.blocks += core.promised.count();
        Ok(inode)
    }

    /// Returns the inode of a directory that has not been removed.
    pub fn directory(&self, tree: TreeId, ino: Ino) -> Result<Inode> {
        let inode = self.inode(tree, ino)?;
        match inode.is_dir() {
            true if inode.links > 0 => Ok(inode),
            true => Err(Kind::NotFound.into()),
            false => Err(Kind::NotDirectory.into()),
        }
    }

    /// Writes the record of an inode, and updates its in-memory state if there is one.
    pub fn set_inode(&mut self, tree: TreeId, ino: Ino, inode: Inode) -> Result<()> {
        self.put(tree, ino, (Item::Inode, 0), inode.encode(), Prior::Possible)?;
        if let Some(core) = self.cores.get_mut(&(tree, ino)) {
            let before = std::mem::replace(&mut core.inode, inode);
            let dirty = std::mem::replace(&mut core.dirty, false);
            self.steps.push(Step::Core((tree, ino), before, dirty));
        }
        Ok(())
    }

    /// Applies a change to an inode.
    pub fn update(
        &mut self,
        tree: TreeId,
        ino: Ino,
        change: impl FnOnce(&mut Inode),
    ) -> Result<()> {
        let mut inode = self.inode(tree, ino)?;
        change(&mut inode);
        self.set_inode(tree, ino, inode)
    }

    /// See [`crate::metadata::op::Op::end_replacing`].
    pub fn end_replacing(&mut self, tree: TreeId, ino: Ino, blocks: Range<u64>) {
        let core = self.cores.get_mut(&(tree, ino));
        let ended = core.map_or(0, |core| core.end_replacing(blocks));
        if ended == 0 {
            return;
        }
        if let Some(tree) = self.trees.get_mut(&tree) {
            tree.replacing = tree.replacing.saturating_sub(ended);
        }
        self.owe((tree, ino), ended as i64);
    }

    /// Checks that no file is in use, and then discards the in-memory state of all inodes.
    ///
    /// # Errors
    /// [`Kind::Busy`]: there are open files or dirty pages.
    pub fn refuse_use(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.write_inodes()?;
        if self.cores.values().any(|core| !core.is_idle()) {
            return Err(Error::new(
                Kind::Busy,
                "files are open or have unwritten data",
            ));
        }
        self.cores.clear();
        Ok(())
    }

    /// Switches to a tree that was built from scratch.
    pub fn rebuilt(&mut self, base: crate::metadata::database::Base) {
        self.items.rebuilt(base);
        self.absent = AbsentNames::default();
        self.may_share = true;
    }

    /// Writes the state that only memory has to the items: times and sizes of written files,
    /// checksums, and usage of trees.
    pub fn materialize(&mut self) -> Result<()> {
        self.materialize_sums()?;
        self.materialize_inodes()?;
        let changed: Vec<TreeId> = self
            .trees
            .iter()
            .filter(|(_, t)| t.changed)
            .map(|(id, _)| *id)
            .collect();
        for id in changed {
            let tree = self.trees.get_mut(&id).expect("listed above");
            tree.changed = false;
            let value = tree.record.encode();
            self.put_key(
                Key::global(Section::Trees, id.into()),
                value,
                Prior::Possible,
            );
        }
        self.materialize_accounts();
        self.commit_steps();
        Ok(())
    }

    fn materialize_inodes(&mut self) -> Result<()> {
        while let Some(&name) = self.dirty_cores.last() {
            if let Some(core) = self.cores.get(&name).filter(|core| core.dirty) {
                let inode = core.inode.clone();
                self.set_inode(name.0, name.1, inode)?;
            }
            self.dirty_cores.pop();
            if let Some(core) = self.cores.get_mut(&name) {
                core.listed = false;
            }
            self.forget_idle(name);
        }
        Ok(())
    }

    /// Writes the records of inodes that are out of date to the items. Not part of an operation.
    pub fn write_inodes(&mut self) -> Result<()> {
        debug_assert!(self.steps.is_empty());
        let written = self.materialize_inodes();
        self.commit_steps();
        written
    }

    /// Queues an inode whose record is out of date for the next commit.
    pub fn list_dirty(&mut self, name: (TreeId, Ino)) {
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.inodes.push(name);
        }
        self.queue_dirty(name);
    }

    /// As [`State::list_dirty`], for an inode of which a write has set what [`Written`] holds, and no
    /// more.
    ///
    /// [`Written`]: crate::metadata::saved::Written
    pub fn list_written(&mut self, name: (TreeId, Ino)) {
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.written.push(name);
        }
        self.queue_dirty(name);
    }

    fn queue_dirty(&mut self, name: (TreeId, Ino)) {
        if let Some(core) = self.cores.get_mut(&name)
            && core.dirty
            && !core.listed
        {
            core.listed = true;
            self.dirty_cores.push(name);
        }
    }

    /// Discards the in-memory state of an inode if it does not differ from its record.
    pub fn forget_idle(&mut self, name: (TreeId, Ino)) {
        if self.cores.get(&name).is_some_and(InodeState::is_idle) {
            let gone = self.cores.remove(&name);
            debug_assert!(gone.is_none_or(|core| core.owed.blocks == 0));
        }
    }

    /// Makes the steps so far final, and queues their keys for the journal.
    pub fn commit_steps(&mut self) {
        for step in self.steps.drain(..) {
            match (&step, &mut self.unsaved) {
                (Step::Item(key, _), Some(unsaved)) => unsaved.note_item(key),
                (Step::Core(name, ..), Some(unsaved)) => unsaved.inodes.push(*name),
                (Step::Account(tree, owner, _), Some(unsaved)) => {
                    unsaved.accounts.push((*tree, *owner));
                }
                _ => {}
            }
            if let Step::Item(key, _) = step {
                self.items.note(key);
            }
        }
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.keep();
        }
    }

    /// Rolls back all steps since the last [`State::commit_steps`].
    pub fn roll_back(&mut self) {
        while let Some(step) = self.steps.pop() {
            match step {
                Step::Item(key, before) => {
                    self.count_change(&key);
                    self.items.active.set(key, before);
                }
                Step::ItemUsage(tree, held) => {
                    if let Some(tree) = self.trees.get_mut(&tree) {
                        tree.item_usage = Some(held);
                    }
                }
                Step::Account(tree, owner, before) => self.restore_account(tree, owner, &before),
                Step::Core(name, inode, dirty) => {
                    if let Some(core) = self.cores.get_mut(&name) {
                        (core.inode, core.dirty) = (inode, dirty);
                    }
                }
            }
        }
        self.space.clear();
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.roll_back();
        }
    }
}

/// Encodes an entry of a snapshot's layer: the old value of the key.
pub(crate) fn encode_preserved(value: &[u8]) -> Vec<u8> {
    [&[PRESENT], value].concat()
}

/// Decodes an entry of a snapshot's layer: the old value of the key, or `None` if it had none.
pub(crate) fn decode_preserved(bytes: &[u8]) -> Result<Option<&[u8]>> {
    match bytes {
        [ABSENT] => Ok(None),
        [PRESENT, value @ ..] => Ok(Some(value)),
        _ => Err(Error::corrupt("invalid snapshot record")),
    }
}
