//! The end of a reception: checks the part of the tree that the stream has changed, and removes the
//! inodes that are left without a name.
//!
//! The operations that apply records keep counts and lists right; what they cannot see is whether
//! all directories hang together.

use super::changes::Pair;
use super::invalid;
use crate::error::Result;
use crate::fileset::Fileset;
use crate::format::key::{Ino, Item, Key, PLACE_MAX, TreeId};
use crate::metadata::state::State;
use crate::names::directory::ROOT;
use std::collections::HashSet;

/// Number of items that are examined before others may change the metadata.
const STEP_ITEMS: usize = 1000;

/// Checks and completes a fileset that has received changes since `base`.
///
/// # Errors
/// [`crate::Kind::Invalid`]: the tree is not one.
pub(super) fn settle(fileset: &Fileset, base: Option<TreeId>) -> Result<()> {
    let pair = Pair {
        base,
        target: fileset.id,
    };
    let mut below = HashSet::from([ROOT]);
    let mut from = Some(Key::inode(0, ROOT).0);
    while let Some(at) = from {
        let state = fileset.fs.read();
        let all = pair.changes(&state, at, Key::layer(0).1, STEP_ITEMS)?;
        for change in &all {
            let ino = change.key.object;
            if ino & 1 == 1 && change.key.kind() == Some(Item::Inode) && change.new.is_some() {
                check_way_up(&state, fileset.id, ino, &mut below)?;
            }
        }
        let full = all.len() == STEP_ITEMS;
        from = all.last().filter(|_| full).and_then(|last| last.key.next());
    }
    let mut orphans = Vec::new();
    {
        let state = fileset.fs.read();
        state.scan(fileset.id, 0, (Item::Orphan, 0, PLACE_MAX), |ino, _| {
            orphans.push(ino);
            Ok(true)
        })?;
        for ino in &orphans {
            if state.inode(fileset.id, *ino)?.entries > 0 {
                return Err(invalid(format!("directory {ino} has entries and no name")));
            }
        }
    }
    orphans
        .into_iter()
        .try_for_each(|ino| fileset.remove_orphan(ino).map(drop))
}

/// Checks that a directory is below the root, unless it has no name. `below` are directories that
/// are.
fn check_way_up(state: &State, tree: TreeId, ino: Ino, below: &mut HashSet<Ino>) -> Result<()> {
    let (mut way, mut at) = (HashSet::new(), ino);
    while !below.contains(&at) {
        let inode = state.inode(tree, at)?;
        if inode.links == 0 && at == ino {
            return Ok(());
        }
        if inode.links == 0 || !way.insert(at) {
            return Err(invalid(format!("directory {ino} is not below the root")));
        }
        at = inode.parent;
    }
    below.extend(way);
    Ok(())
}
