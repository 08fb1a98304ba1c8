//! The changes from one state of a fileset to a later snapshot, or all of a snapshot.

use crate::data::extents::{Mapped, end_of};
use crate::error::Result;
use crate::format::key::{Ino, Item, Key, PLACE_MAX, TreeId};
use crate::format::record::{Extent, Inode};
use crate::metadata::state::State;
use crate::names::directory::ROOT;
use std::ops::Range;

/// Two states to compare.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    /// First state; `None` for an empty one.
    pub base: Option<TreeId>,
    pub target: TreeId,
}

/// Item that may differ, with its values.
pub(super) struct Change {
    /// Key in layer 0.
    pub key: Key,
    pub old: Option<Vec<u8>>,
    pub new: Option<Vec<u8>>,
}

/// Range of blocks of a file that is the same all over in the second state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Hole,
    Unwritten,
    Data,
}

impl Pair {
    /// Collects the first `most` items from a key on, up to another one, that may differ. Fewer
    /// than `most` are all.
    pub fn changes(&self, state: &State, from: Key, to: Key, most: usize) -> Result<Vec<Change>> {
        let mut all = Vec::new();
        // The snapshot has no inodes from there on.
        let next_ino = state.tree(self.target)?.record.next_ino;
        let to = to.min(Key::inode(0, next_ino << 1).0);
        let Some(base) = self.base else {
            state.scan_keys(self.target, from, to, |key, bytes| {
                all.push(Change {
                    key: key.in_layer(0),
                    old: None,
                    new: Some(bytes.to_vec()),
                });
                Ok(all.len() < most)
            })?;
            return Ok(all);
        };
        for key in state.keys_between((base, self.target), from, most)? {
            if key > to {
                break;
            }
            let read = |tree| state.get_key(tree, key, |bytes| Ok(bytes.to_vec()));
            let (old, new) = (read(base)?, read(self.target)?);
            all.push(Change { key, old, new });
        }
        Ok(all)
    }

    /// Finds the first inode from a number on that may have changed.
    pub fn next_inode(&self, state: &State, from: Ino) -> Result<Option<Ino>> {
        let (from, to) = (Key::inode(0, from).0, Key::layer(0).1);
        let found = self.changes(state, from, to, 1)?;
        Ok(found.first().map(|change| change.key.object))
    }

    /// Reports whether the items of one kind of an inode differ.
    pub fn differs(&self, state: &State, ino: Ino, kind: Item) -> Result<bool> {
        /// Items compared at a time.
        const STEP: usize = 16;
        let to = Key::item(0, ino, kind, PLACE_MAX);
        let mut from = Key::item(0, ino, kind, 0);
        loop {
            let all = self.changes(state, from, to, STEP)?;
            if all.iter().any(|change| change.old != change.new) {
                return Ok(true);
            }
            match all.last().and_then(|change| change.key.next()) {
                Some(next) if all.len() == STEP => from = next,
                _ => return Ok(false),
            }
        }
    }

    /// Reads an inode of one of the states; `None` if it has no name there.
    pub fn inode(&self, state: &State, tree: TreeId, ino: Ino) -> Result<Option<Inode>> {
        let found = state.get(tree, ino, (Item::Inode, 0), Inode::decode)?;
        Ok(found.filter(|inode| inode.links > 0 || ino == ROOT))
    }

    /// Finds the next range of blocks, from one on, that differs, and its content in the second
    /// state. With `fresh`, the file has no content in the first state.
    pub fn next_content(
        &self,
        state: &State,
        ino: Ino,
        from: u64,
        fresh: bool,
    ) -> Result<Option<(Range<u64>, Content)>> {
        let Some(base) = self.base.filter(|_| !fresh) else {
            let Some((first, extent)) = extent_from(state, self.target, ino, from)? else {
                return Ok(None);
            };
            let range = first.max(from)..end_of(&(first, extent));
            return Ok(Some((range, content_of(Some(&extent)))));
        };
        let mut at = from;
        while let Some(changed) = self.next_changed(state, base, ino, at)? {
            at = changed.start;
            while at < changed.end {
                let (old, old_end) = piece(state, base, ino, at)?;
                let (new, new_end) = piece(state, self.target, ino, at)?;
                let end = old_end.min(new_end).min(changed.end);
                if !is_same(&old, &new, at..end) {
                    return Ok(Some((at..end, content_of(new.as_ref().map(|new| &new.1)))));
                }
                at = end;
            }
        }
        Ok(None)
    }

    /// Finds the next range of blocks, from one on, whose extents differ in either state.
    fn next_changed(
        &self,
        state: &State,
        base: TreeId,
        ino: Ino,
        from: u64,
    ) -> Result<Option<Range<u64>>> {
        /// Extents compared at a time.
        const STEP: usize = 64;
        // A record before the block may cover it.
        let mut start = from;
        for tree in [base, self.target] {
            let before = state.extent_before(tree, ino, from)?;
            let covers = before.filter(|mapped| end_of(mapped) > from);
            start = start.min(covers.map_or(from, |mapped| mapped.0));
        }
        let to = Key::item(0, ino, Item::Extent, PLACE_MAX);
        let mut next = Some(Key::item(0, ino, Item::Extent, start));
        while let Some(first) = next {
            let all = self.changes(state, first, to, STEP)?;
            for Change { key, old, new } in &all {
                if old == new {
                    continue;
                }
                let mut end = 0;
                for bytes in [old, new].into_iter().flatten() {
                    end = end.max(key.place() + u64::from(Extent::decode(bytes)?.blocks));
                }
                if end > from {
                    return Ok(Some(from.max(key.place())..end));
                }
            }
            let full = all.len() == STEP;
            next = all.last().filter(|_| full).and_then(|last| last.key.next());
        }
        Ok(None)
    }
}

/// Finds the extent that covers a block, or else the next one.
fn extent_from(state: &State, tree: TreeId, ino: Ino, block: u64) -> Result<Option<Mapped>> {
    let before = state.extent_before(tree, ino, block)?;
    match before.filter(|mapped| end_of(mapped) > block) {
        Some(mapped) => Ok(Some(mapped)),
        None => state.extent_after(tree, ino, block),
    }
}

/// Finds the extent that covers a block, and the block up to which that, or a hole, extends.
fn piece(state: &State, tree: TreeId, ino: Ino, block: u64) -> Result<(Option<Mapped>, u64)> {
    Ok(match extent_from(state, tree, ino, block)? {
        Some(mapped) if mapped.0 <= block => (Some(mapped), end_of(&mapped)),
        Some(mapped) => (None, mapped.0),
        None => (None, u64::MAX),
    })
}

fn content_of(extent: Option<&Extent>) -> Content {
    match extent {
        None => Content::Hole,
        Some(extent) if extent.unwritten => Content::Unwritten,
        Some(_) => Content::Data,
    }
}

/// Reports whether a range has the same content in both states, because it is on the same blocks of
/// the device: the first state keeps them, so nothing has overwritten them.
fn is_same(old: &Option<Mapped>, new: &Option<Mapped>, range: Range<u64>) -> bool {
    let (old, new) = match (old, new) {
        (None, None) => return true,
        (Some(old), Some(new)) => (old, new),
        _ => return false,
    };
    if old.1.unwritten || new.1.unwritten {
        return old.1.unwritten && new.1.unwritten;
    }
    let place = |(first, extent): &Mapped| extent.start + (range.start - first);
    let tail = |mapped: &Mapped| (end_of(mapped) == range.end).then_some(mapped.1.tail);
    place(old) == place(new) && tail(old).unwrap_or(0) == tail(new).unwrap_or(0)
}
