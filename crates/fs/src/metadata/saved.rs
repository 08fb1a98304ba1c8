//! What operations change, for the log in memory that a successor of a killed server reads.
//!
//! An entry of the log holds everything that an operation changed: the items with their present
//! values, as a record of the journal does, and what a commit would make items of later: inodes whose
//! record is out of date, checksums, the records of filesets, and accounts. Each entry is complete
//! when the operation ends, so the entries together lead to the state after the last one. When a
//! commit makes items of what was in memory, that is an entry, too: a snapshot that follows keeps
//! those values.
//!
//! Of an inode of which a write has set times, size and version, an entry holds no more than these: what
//! is before it, in the log or on the disk, has the rest.
//!
//! What no commit makes an item of, the sizes of files whose ends are in the cache, is an entry after
//! each commit or record, because the disk never has it.
//!
//! Entries that the disk has already may be replayed as well, if all later ones follow: an entry states
//! values and not differences, so of each key, inode, field of a written inode, checksum and block the
//! last value wins, and that one is not older than the disk's.

use crate::error::Result;
use crate::format::key::{Ino, Key, Section, TreeId};
use crate::format::record::{FILE_SIZE_MAX, INODE_BYTES, In, Inode, Out, Time};
use crate::format::sums::{SUMS_BLOCKS, Sum};
use crate::metadata::database::SpaceChange;
use crate::metadata::inode_state::InodeState;
use crate::metadata::journal::{self, Delta};
use crate::metadata::pending_sums::{PendingSums, bits, parts};
use crate::metadata::state::State;
use crate::metadata::unsaved::{Unsaved, inode_of, is_ahead, sums_of};
use foldhash::HashMap;
use std::collections::BTreeMap;

/// Flag of an inode: it was created without a name and may still get its first.
const UNNAMED: u32 = 1;
/// Flag: what a write sets follows.
const WRITTEN: u32 = 2;
/// Flag: the record follows. Without this flag and the last one, the record among the items is right.
const RECORD: u32 = 4;

/// An inode in memory.
#[derive(Debug, Clone)]
pub(crate) struct SavedInode {
    content: Content,
    size: u64,
    unnamed: bool,
}

/// An inode, except for its size.
#[derive(Debug, Clone)]
enum Content {
    /// As the record among the items.
    AsItem,
    /// As that record, but for what writes have set.
    Written(Written),
    Record(Inode),
}

/// What a write sets besides the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    modified: Time,
    changed: Time,
    data_version: u64,
}

impl Written {
    fn of(inode: &Inode) -> Written {
        Written {
            modified: inode.modified,
            changed: inode.changed,
            data_version: inode.data_version,
        }
    }

    fn encode_into(&self, out: &mut Out) {
        out.time(self.modified);
        out.time(self.changed);
        out.u64(self.data_version);
    }

    fn decode(fields: &mut In) -> Result<Written> {
        Ok(Written {
            modified: fields.time()?,
            changed: fields.time()?,
            data_version: fields.u64()?,
        })
    }

    fn apply(self, inode: &mut Inode) {
        (inode.modified, inode.changed) = (self.modified, self.changed);
        inode.data_version = self.data_version;
    }
}

impl Content {
    /// Adds what earlier entries know.
    fn after(self, before: Option<Content>) -> Content {
        match (self, before) {
            (Content::AsItem, Some(before)) => before,
            (Content::Written(written), Some(Content::Record(mut inode))) => {
                written.apply(&mut inode);
                Content::Record(inode)
            }
            (content, _) => content,
        }
    }
}

/// Checksums of a record that were set: its number, a bit for each, and those that have one.
struct SavedSums {
    number: u64,
    set: u64,
    sums: Vec<Sum>,
}

/// Decoded entry.
pub(crate) struct Saved {
    delta: Delta,
    inodes: Vec<((TreeId, Ino), SavedInode)>,
    sums: Vec<SavedSums>,
}

/// State in memory that entries lead to, besides the items.
#[derive(Default)]
pub(crate) struct Replayed {
    pub inodes: BTreeMap<(TreeId, Ino), SavedInode>,
    pub sums: PendingSums,
    pub space: Vec<SpaceChange>,
}

fn sort<T: Ord>(list: &mut Vec<T>) {
    if list.len() > 1 {
        list.sort_unstable();
        list.dedup();
    }
}

impl State {
    /// Completes the entry of everything that has changed since the last call, and passes it to `save`,
    /// unless it is empty. `space` are the blocks that the operation allocated or freed.
    pub fn save(&mut self, space: &[SpaceChange], save: impl FnOnce(&[u8])) {
        let Some(unsaved) = &mut self.unsaved else {
            return;
        };
        if unsaved.replaying {
            unsaved.clear();
        }
        if unsaved.is_empty() && space.is_empty() {
            return;
        }
        sort(&mut unsaved.accounts);
        while let Some((tree, owner)) = unsaved.accounts.pop() {
            let accounts = self.trees.get(&tree).and_then(|t| t.accounts.as_ref());
            let record = accounts.and_then(|a| a.get(&owner)).map(|a| a.record);
            let value = record.filter(|r| !r.is_empty()).map(|r| r.encode());
            unsaved.put(&owner.key(tree), value.as_deref());
        }
        sort(&mut unsaved.trees);
        while let Some(id) = unsaved.trees.pop() {
            let key = Key::global(Section::Trees, id.into());
            match self.trees.get(&id) {
                Some(tree) => unsaved.put_with(&key, |out| tree.record.encode_into(out)),
                None => unsaved.put(&key, None),
            }
        }
        unsaved.end_items(space.len());
        for change in space {
            journal::put_space(&mut unsaved.entry, change);
        }
        put_inodes(unsaved, &mut self.cores);
        put_sums(unsaved, &self.pending_sums);
        save(&unsaved.entry.0);
        unsaved.clear();
    }

    /// Encodes what the disk will not have even if all changes so far are durable, and passes it to
    /// `save`, unless it is nothing: it belongs after them.
    pub fn save_ahead(&mut self, save: impl FnOnce(&mut State, &[u8])) {
        let State { unsaved, cores, .. } = self;
        let Some(unsaved) = unsaved else {
            return;
        };
        sort(&mut unsaved.ahead);
        unsaved.ahead.retain(|name| {
            let core = cores.get_mut(name);
            core.is_some_and(|core| {
                core.noted_ahead = is_ahead(core);
                core.noted_ahead
            })
        });
        if unsaved.ahead.is_empty() {
            return;
        }
        let mut out = Out::with(16 + unsaved.ahead.len() * 32);
        // Neither items nor blocks.
        out.u64(0);
        out.u32(unsaved.ahead.len() as u32);
        for name in &unsaved.ahead {
            put_inode(&mut out, *name, &cores[name], RECORD);
        }
        // No checksums.
        out.u32(0);
        save(self, &out.0);
    }

    /// Notes a fileset whose record has changed, for the next entry.
    pub fn note_tree(&mut self, id: TreeId) {
        if let Some(unsaved) = &mut self.unsaved
            && let Some(tree) = self.trees.get_mut(&id)
            && std::mem::take(&mut tree.unsaved)
        {
            unsaved.trees.push(id);
        }
    }

    /// Adds the state in memory that replayed entries lead to.
    ///
    /// # Errors
    /// [`crate::Kind::Stale`]: an inode of them does not exist; the metadata cannot be read.
    pub fn add_replayed(&mut self, replayed: Replayed) -> Result<()> {
        let mut unsaved = Unsaved::new(true);
        for (name, saved) in replayed.inodes {
            let tree = self.trees.get(&name.0);
            if !tree.is_some_and(|t| t.record.origin == 0 && !t.record.removing && !t.restoring) {
                continue;
            }
            let dirty = !matches!(saved.content, Content::AsItem);
            let mut inode = match &saved.content {
                Content::Record(inode) => inode.clone(),
                _ => self.inode(name.0, name.1)?,
            };
            if let Content::Written(written) = saved.content {
                written.apply(&mut inode);
            }
            let mut core = InodeState {
                dirty,
                unnamed: saved.unnamed,
                ..InodeState::new(Inode {
                    size: saved.size,
                    ..inode
                })
            };
            if dirty || is_ahead(&core) {
                unsaved.note_ahead(name, &mut core);
                self.cores.insert(name, core);
                self.list_dirty(name);
            }
        }
        self.pending_sums = replayed.sums;
        self.unsaved = Some(unsaved);
        Ok(())
    }
}

/// Adds the inodes that have changed to an entry.
fn put_inodes(unsaved: &mut Unsaved, cores: &mut HashMap<(TreeId, Ino), InodeState>) {
    let count_at = unsaved.entry.0.len();
    unsaved.entry.u32(0);
    let (mut inodes, mut written) = (
        std::mem::take(&mut unsaved.inodes),
        std::mem::take(&mut unsaved.written),
    );
    sort(&mut inodes);
    sort(&mut written);
    written.retain(|name| inodes.binary_search(name).is_err());
    let mut count = 0_u32;
    for (names, form) in [(&inodes, RECORD), (&written, WRITTEN)] {
        for name in names {
            if let Some(core) = cores.get_mut(name) {
                put_inode(&mut unsaved.entry, *name, core, form);
                unsaved.note_ahead(*name, core);
                count += 1;
            }
        }
    }
    (unsaved.inodes, unsaved.written) = (inodes, written);
    unsaved.entry.0[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
}

/// Encodes an inode in a form, or as its record if that is up to date.
fn put_inode(out: &mut Out, name: (TreeId, Ino), core: &InodeState, form: u32) {
    let form = if core.dirty { form } else { 0 };
    out.u32(name.0);
    out.u64(name.1);
    out.u32(form | if core.unnamed { UNNAMED } else { 0 });
    out.u64(core.inode.size);
    match form {
        RECORD => core.inode.encode_into(out),
        WRITTEN => Written::of(&core.inode).encode_into(out),
        _ => {}
    }
}

/// Adds the checksums that were set to an entry.
fn put_sums(unsaved: &mut Unsaved, pending: &PendingSums) {
    let out = &mut unsaved.entry;
    let count_at = out.0.len();
    out.u32(0);
    let mut count = 0_u32;
    for (number, at, _, len) in unsaved.sums.iter().flat_map(|run| parts(*run)) {
        // Those that are items by now were saved as such.
        let Some(pending) = pending.0.get(&number) else {
            continue;
        };
        let set = pending.set & bits(at, len);
        count += 1;
        out.u64(number);
        out.u64(set);
        for i in set_bits(set) {
            out.0.extend_from_slice(&pending.sums.0[i].to_le_bytes());
        }
    }
    out.0[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
}

fn set_bits(set: u64) -> impl Iterator<Item = usize> {
    (0..SUMS_BLOCKS as usize).filter(move |i| (set >> i) & 1 != 0)
}

impl Saved {
    /// Decodes an entry.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`].
    pub fn decode(bytes: &[u8]) -> Result<Saved> {
        let mut fields = In::of(bytes, "entry of the log in memory");
        let (items, runs) = (fields.u32()?, fields.u32()?);
        let delta = journal::take_changes(&mut fields, items.into(), runs.into())?;
        let mut inodes = Vec::new();
        for _ in 0..fields.u32()? {
            let name = (fields.u32()?, fields.u64()?);
            let (flags, size) = (fields.u32()?, fields.u64()?);
            let content = match flags & !UNNAMED {
                0 => Content::AsItem,
                WRITTEN => Content::Written(Written::decode(&mut fields)?),
                RECORD => Content::Record(Inode::decode(fields.bytes(INODE_BYTES)?)?),
                _ => return Err(fields.wrong()),
            };
            if size > FILE_SIZE_MAX || name.0 == 0 || name.1 == 0 {
                return Err(fields.wrong());
            }
            let saved = SavedInode {
                content,
                size,
                unnamed: flags & UNNAMED != 0,
            };
            inodes.push((name, saved));
        }
        let mut sums = Vec::new();
        for _ in 0..fields.u32()? {
            let (number, set) = (fields.u64()?, fields.u64()?);
            let one = |_| fields.take().map(Sum::from_le_bytes);
            let all: Result<Vec<Sum>> = set_bits(set).map(one).collect();
            sums.push(SavedSums {
                number,
                set,
                sums: all?,
            });
        }
        fields.end()?;
        Ok(Saved {
            delta,
            inodes,
            sums,
        })
    }

    /// Adds the entry to the state that the ones before it lead to. Returns its items.
    pub fn replay(self, replayed: &mut Replayed) -> Delta {
        for (key, _) in &self.delta.items {
            if let Some(name) = inode_of(key) {
                replayed.inodes.remove(&name);
            } else if let Some(number) = sums_of(key) {
                replayed.sums.0.remove(&number);
            }
        }
        for (name, saved) in self.inodes {
            let before = replayed.inodes.remove(&name).map(|before| before.content);
            let content = saved.content.after(before);
            replayed
                .inodes
                .insert(name, SavedInode { content, ..saved });
        }
        for saved in self.sums {
            let pending = replayed.sums.record(saved.number);
            pending.set |= saved.set;
            for (i, sum) in set_bits(saved.set).zip(saved.sums) {
                pending.sums.0[i] = sum;
            }
        }
        replayed.space.extend(&self.delta.space);
        self.delta
    }
}
