//! What operations change, for the log in memory that a successor of a killed server reads.
//!
//! An entry of the log holds everything that an operation changed: the items with their present
//! values, as a record of the journal does, and what a commit would make items of later: inodes whose
//! record is out of date, checksums, the records of filesets, and accounts. Each entry is complete
//! when the operation ends, so the entries together lead to the state after the last one. When a
//! commit makes items of what was in memory, that is an entry, too: a snapshot that follows keeps
//! those values.
//!
//! What no commit makes an item of, the sizes of files whose ends are in the cache, is an entry after
//! each commit or record, because the disk never has it.
//!
//! Entries that the disk has already may be replayed as well, if all later ones follow: an entry states
//! values and not differences, so of each key, inode, checksum and block the last value wins, and that
//! one is not older than the disk's.

use crate::error::Result;
use crate::format::key::{Ino, Item, Key, Section, TreeId};
use crate::format::record::{FILE_SIZE_MAX, In, Inode, Out, Run};
use crate::format::sums::{SUMS_BLOCKS, Sum};
use crate::metadata::database::SpaceChange;
use crate::metadata::inode_state::InodeState;
use crate::metadata::journal::{self, Delta};
use crate::metadata::pending_sums::{PendingSums, bits, parts};
use crate::metadata::state::State;
use crate::metadata::unsaved::{Unsaved, is_ahead};
use std::collections::BTreeMap;

/// Flag of an inode: it was created without a name and may still get its first.
const UNNAMED: u32 = 1;
/// Length of an inode that is the record among the items, except for its size.
const AS_ITEM: u32 = 0;

/// An inode in memory.
#[derive(Debug, Clone)]
pub(crate) struct SavedInode {
    /// The inode, if its record is out of date.
    inode: Option<Inode>,
    size: u64,
    unnamed: bool,
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

/// Returns the inode that a key is the record of.
fn inode_of(key: &Key) -> Option<(TreeId, Ino)> {
    let is_record = key.layer != 0 && *key == Key::item(key.layer, key.object, Item::Inode, 0);
    is_record.then_some((key.layer, key.object))
}

/// Returns the number of the record of checksums that a key is of.
fn sums_of(key: &Key) -> Option<u64> {
    key.is_in(Section::Sums).then_some(key.item)
}

impl State {
    /// Encodes everything that has changed since the last call, and passes it to `save`, unless it is
    /// nothing. `space` are the blocks that the operation allocated or freed.
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
        let mut unsaved = std::mem::take(unsaved);
        let bytes = self.encode(&mut unsaved, space);
        save(&bytes);
        unsaved.clear();
        unsaved.bytes = bytes;
        self.unsaved = Some(unsaved);
    }

    /// Encodes what the disk will not have even if all changes so far are durable, and passes it to
    /// `save`, unless it is nothing: it belongs after them.
    pub fn save_ahead(&mut self, save: impl FnOnce(&mut State, &[u8])) {
        let Some(mut unsaved) = self.unsaved.take() else {
            return;
        };
        unsaved
            .ahead
            .retain(|name| self.cores.get(name).is_some_and(is_ahead));
        if !unsaved.ahead.is_empty() {
            let mut out = Out(std::mem::take(&mut unsaved.bytes));
            out.0.clear();
            out.u32(0);
            out.u32(0);
            self.encode_inodes(unsaved.ahead.iter(), &mut out);
            out.u32(0);
            save(self, &out.0);
            unsaved.bytes = out.0;
        }
        self.unsaved = Some(unsaved);
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

    fn encode(&self, unsaved: &mut Unsaved, space: &[SpaceChange]) -> Vec<u8> {
        sort(&mut unsaved.keys);
        for key in &unsaved.keys {
            // What is in memory counts more than the item.
            if let Some(name) = inode_of(key) {
                unsaved.inodes.push(name);
            } else if let Some(number) = sums_of(key) {
                let (start, blocks) = (number * SUMS_BLOCKS, SUMS_BLOCKS);
                unsaved.sums.push(Run { start, blocks });
            }
        }
        sort(&mut unsaved.inodes);
        sort(&mut unsaved.accounts);
        sort(&mut unsaved.trees);
        let mut out = Out(std::mem::take(&mut unsaved.bytes));
        out.0.clear();
        let items = unsaved.keys.len() + unsaved.accounts.len() + unsaved.trees.len();
        out.u32(items as u32);
        out.u32(space.len() as u32);
        for key in &unsaved.keys {
            let change = self.items.active.get(key);
            journal::put_item(&mut out, key, change.and_then(|change| change.value()));
        }
        for (tree, owner) in &unsaved.accounts {
            let accounts = self.trees.get(tree).and_then(|t| t.accounts.as_ref());
            let record = accounts.and_then(|a| a.get(owner)).map(|a| a.record);
            let value = record.filter(|r| !r.is_empty()).map(|r| r.encode());
            journal::put_item(&mut out, &owner.key(*tree), value.as_deref());
        }
        for id in &unsaved.trees {
            let key = Key::global(Section::Trees, (*id).into());
            let value = self.trees.get(id).map(|tree| tree.record.encode());
            journal::put_item(&mut out, &key, value.as_deref());
        }
        for change in space {
            journal::put_space(&mut out, change);
        }
        self.encode_inodes(unsaved.inodes.iter(), &mut out);
        for at in 0..unsaved.inodes.len() {
            let name = unsaved.inodes[at];
            unsaved.note_ahead(name, self.cores.get(&name));
        }
        self.encode_sums(unsaved, &mut out);
        out.0
    }

    fn encode_inodes<'a>(&self, names: impl Iterator<Item = &'a (TreeId, Ino)>, out: &mut Out) {
        let count_at = out.0.len();
        out.u32(0);
        let mut count = 0_u32;
        for name in names {
            let Some(core) = self.cores.get(name) else {
                continue;
            };
            count += 1;
            out.u32(name.0);
            out.u64(name.1);
            out.u32(if core.unnamed { UNNAMED } else { 0 });
            out.u64(core.inode.size);
            if core.dirty {
                let len_at = out.0.len();
                out.u32(0);
                core.inode.encode_into(out);
                let len = (out.0.len() - len_at - 4) as u32;
                out.0[len_at..len_at + 4].copy_from_slice(&len.to_le_bytes());
            } else {
                out.u32(AS_ITEM);
            }
        }
        out.0[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
    }

    fn encode_sums(&self, unsaved: &Unsaved, out: &mut Out) {
        let count_at = out.0.len();
        out.u32(0);
        let mut count = 0_u32;
        for (number, at, _, len) in unsaved.sums.iter().flat_map(|run| parts(*run)) {
            // Those that are items by now were saved as such.
            let Some(pending) = self.pending_sums.0.get(&number) else {
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

    /// Adds the state in memory that replayed entries lead to.
    ///
    /// # Errors
    /// [`crate::Kind::Stale`]: an inode of them does not exist; the metadata cannot be read.
    pub fn add_replayed(&mut self, replayed: Replayed) -> Result<()> {
        let mut unsaved = Unsaved {
            replaying: true,
            ..Unsaved::default()
        };
        for (name, saved) in replayed.inodes {
            let tree = self.trees.get(&name.0);
            if !tree.is_some_and(|t| t.record.origin == 0 && !t.record.removing && !t.restoring) {
                continue;
            }
            let dirty = saved.inode.is_some();
            let inode = match saved.inode {
                Some(inode) => inode,
                None => self.inode(name.0, name.1)?,
            };
            let core = InodeState {
                dirty,
                unnamed: saved.unnamed,
                ..InodeState::new(Inode {
                    size: saved.size,
                    ..inode
                })
            };
            if dirty || is_ahead(&core) {
                unsaved.note_ahead(name, Some(&core));
                self.cores.insert(name, core);
                self.list_dirty(name);
            }
        }
        self.pending_sums = replayed.sums;
        self.unsaved = Some(unsaved);
        Ok(())
    }
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
            let len = fields.u32()? as usize;
            let record = fields.bytes(len)?;
            let is_item = record.len() == AS_ITEM as usize;
            let inode = (!is_item).then(|| Inode::decode(record)).transpose()?;
            if flags & !UNNAMED != 0 || size > FILE_SIZE_MAX || name.0 == 0 || name.1 == 0 {
                return Err(fields.wrong());
            }
            let saved = SavedInode {
                inode,
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
            let before = replayed.inodes.remove(&name);
            let inode = saved.inode.or(before.and_then(|before| before.inode));
            replayed.inodes.insert(name, SavedInode { inode, ..saved });
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
