//! The changes from one state of a fileset to a later snapshot, or all of a snapshot.

use crate::data::chunks::Placed;
use crate::data::extents::{Mapped, end_of};
use crate::error::{Kind, Result};
use crate::format::chunk::{chunk_of, held_by};
use crate::format::key::{Ino, Item, Key, PLACE_MAX, TreeId};
use crate::format::record::Inode;
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
    /// state. The first state counts up to the block `kept` only; after it, it has no content.
    pub fn next_content(
        &self,
        state: &State,
        ino: Ino,
        from: u64,
        kept: u64,
    ) -> Result<Option<(Range<u64>, Content)>> {
        let Some(base) = self.base.filter(|_| kept > 0) else {
            let (piece, end) = piece(state, self.target, ino, from)?;
            if piece != Piece::Hole {
                return Ok(Some((from..end, piece.content())));
            }
            if end == u64::MAX {
                return Ok(None);
            }
            let (piece, next) = self::piece(state, self.target, ino, end)?;
            return Ok(Some((end..next, piece.content())));
        };
        let mut at = from;
        while let Some(changed) = self.next_changed(state, base, ino, at)? {
            at = changed.start;
            while at < changed.end {
                let (old, old_end) = if at < kept {
                    let (old, end) = piece(state, base, ino, at)?;
                    (old, end.min(kept))
                } else {
                    (Piece::Hole, u64::MAX)
                };
                let (new, new_end) = piece(state, self.target, ino, at)?;
                let end = old_end.min(new_end).min(changed.end);
                if !is_same(&old, &new, at..end) {
                    return Ok(Some((at..end, new.content())));
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
        let extents = self.next_changed_item(state, base, ino, from, Item::Extent)?;
        let chunks = self.next_changed_item(state, base, ino, from, Item::Chunk)?;
        let both = extents.into_iter().chain(chunks);
        Ok(both.min_by_key(|range| range.start))
    }

    fn next_changed_item(
        &self,
        state: &State,
        base: TreeId,
        ino: Ino,
        from: u64,
        kind: Item,
    ) -> Result<Option<Range<u64>>> {
        /// Items compared at a time.
        const STEP: usize = 64;
        // A record before the block may cover it.
        let mut start = from;
        if kind == Item::Chunk {
            start = chunk_of(from);
        }
        for tree in [base, self.target]
            .into_iter()
            .filter(|_| kind == Item::Extent)
        {
            let before = state.extent_before(tree, ino, from)?;
            let covers = before.filter(|mapped| end_of(mapped) > from);
            start = start.min(covers.map_or(from, |mapped| mapped.0));
        }
        let to = Key::item(0, ino, kind, PLACE_MAX);
        let mut next = Some(Key::item(0, ino, kind, start));
        while let Some(first) = next {
            let all = self.changes(state, first, to, STEP)?;
            for Change { key, old, new } in &all {
                if old == new {
                    continue;
                }
                let mut end = 0;
                for bytes in [old, new].into_iter().flatten() {
                    let held = held_by(Some(kind), bytes)?;
                    end = end.max(key.place() + held.map_or(0, |held| held.span));
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

/// Place of a block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    Hole,
    Extent(Mapped),
    Chunk(Placed),
}

impl Piece {
    fn content(&self) -> Content {
        match self {
            Piece::Hole => Content::Hole,
            Piece::Extent((_, extent)) if extent.unwritten => Content::Unwritten,
            Piece::Extent(_) | Piece::Chunk(_) => Content::Data,
        }
    }
}

/// Finds the place of a block, and the block up to which the following ones are in the same extent,
/// chunk or hole.
fn piece(state: &State, tree: TreeId, ino: Ino, block: u64) -> Result<(Piece, u64)> {
    let extent = extent_from(state, tree, ino, block)?;
    if let Some(mapped) = extent.filter(|mapped| mapped.0 <= block) {
        return Ok((Piece::Extent(mapped), end_of(&mapped)));
    }
    let end = extent.map_or(u64::MAX, |mapped| mapped.0);
    match state.chunk_blocks_after(tree, ino, block)? {
        Some(run) if run.start == block => {
            let mut chunks = state.chunks(tree, ino, &(block..block + 1))?;
            let placed = chunks.pop().ok_or(Kind::Corrupt)?;
            Ok((Piece::Chunk(placed), run.end))
        }
        next => Ok((
            Piece::Hole,
            end.min(next.map_or(u64::MAX, |next| next.start)),
        )),
    }
}

/// Reports whether a range has the same content in both states, because it is on the same blocks of
/// the device: the first state keeps them, so nothing has overwritten them.
fn is_same(old: &Piece, new: &Piece, range: Range<u64>) -> bool {
    match (old, new) {
        (Piece::Hole, Piece::Hole) => true,
        (Piece::Extent(old), Piece::Extent(new)) => {
            if old.1.unwritten || new.1.unwritten {
                return old.1.unwritten && new.1.unwritten;
            }
            let place = |(first, extent): &Mapped| extent.start + (range.start - first);
            let tail = |mapped: &Mapped| (end_of(mapped) == range.end).then_some(mapped.1.tail);
            place(old) == place(new) && tail(old).unwrap_or(0) == tail(new).unwrap_or(0)
        }
        (Piece::Chunk(old), Piece::Chunk(new)) => {
            let tail = |placed: &Placed| {
                let tail = placed.1.tail;
                tail.filter(|(block, _)| range.contains(&(placed.0 + u64::from(*block))))
            };
            old.1.start == new.1.start && tail(old) == tail(new)
        }
        _ => false,
    }
}
