//! A fileset that begins as a copy of a snapshot and shares its data.
//!
//! The records are copied in batches into a tree that is marked as being removed, so that the next
//! open removes a copy that a crash interrupted; clearing the mark makes it a fileset.
//!
//! **Invariant:** each copied extent record counts as a reference to its blocks, so neither side
//! changes them.

use crate::error::Result;
use crate::fileset::Fileset;
use crate::format::chunk::held_by;
use crate::format::key::{Item, Key, TreeId};
use crate::format::record::Inode;
use crate::fs::Fs;
use crate::fs::filesets::{FilesetChange, add_tree, planned};
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::shared::FsShared;
use std::sync::Arc;

/// Largest number of items that one operation copies.
const STEP_ITEMS: usize = 1000;

impl Fs {
    /// Creates a fileset with the content of a snapshot, in time proportional to the number of its
    /// files and extents. It is durable when this returns.
    ///
    /// # Errors
    /// [`Kind::Exists`], [`Kind::NotFound`]; [`Kind::Invalid`]: `of` is not a snapshot, or `name` is
    /// not a valid fileset name; [`Kind::NoSpace`]: the metadata has no room for the records.
    ///
    /// [`Kind::Exists`]: crate::Kind::Exists
    /// [`Kind::NotFound`]: crate::Kind::NotFound
    /// [`Kind::Invalid`]: crate::Kind::Invalid
    /// [`Kind::NoSpace`]: crate::Kind::NoSpace
    pub fn clone_snapshot(&self, of: TreeId, name: &str) -> Result<Fileset> {
        let fs = self.inner();
        let id = {
            let mut op = Op::begin_any(fs, of)?;
            let mut record = planned(&op, FilesetChange::Clone { of, name }, op.now)?;
            record.removing = true;
            op.check_room()?;
            let id = add_tree(&mut op, record)?;
            op.finish();
            id
        };
        let copied = fs
            .copy_items(of, id)
            .and_then(|()| fs.end_clone(of, id, name));
        if let Err(error) = copied {
            // The first error is the one to report; the next open removes the rest.
            let _ = fs.remove_tree_items(id);
            return Err(error);
        }
        self.sync()?;
        let fileset = self.fileset(id)?;
        fileset.remove_orphans()?;
        self.sync()?;
        Ok(fileset)
    }
}

impl FsShared {
    fn copy_items(self: &Arc<FsShared>, of: TreeId, to: TreeId) -> Result<()> {
        let mut next = Some(Key::inode(of, 1).0);
        while let Some(at) = next {
            let mut op = Op::begin_any(self, to)?;
            op.check_room()?;
            let most = self.keys_at_once(STEP_ITEMS);
            let mut items: Vec<(Key, Vec<u8>)> = Vec::new();
            op.scan_keys(of, at, Key::layer(of).1, |key, bytes| {
                items.push((key, bytes.to_vec()));
                Ok(items.len() < most)
            })?;
            let last = items.last().filter(|_| items.len() == most);
            next = last.and_then(|(key, _)| key.next());
            for (key, bytes) in items {
                op.copy_item(key.in_layer(to), bytes)?;
            }
            op.finish();
        }
        Ok(())
    }

    /// Makes the copy a fileset.
    fn end_clone(&self, of: TreeId, id: TreeId, name: &str) -> Result<()> {
        let mut op = Op::begin_any(self, id)?;
        // The name may have been taken in the meantime.
        let record = planned(&op, FilesetChange::Clone { of, name }, op.now)?;
        if let Some(tree) = op.trees.get_mut(&id) {
            tree.record = record;
            tree.touch();
        }
        op.finish();
        Ok(())
    }
}

impl Op<'_> {
    fn copy_item(&mut self, key: Key, bytes: Vec<u8>) -> Result<()> {
        match key.kind() {
            Some(Item::Inode) if Inode::decode(&bytes)?.links == 0 => {
                // It had no name, and was open when the snapshot was taken.
                let orphan = Key::item(key.layer, 0, Item::Orphan, key.object);
                self.put_key(orphan, Vec::new(), Prior::Absent);
            }
            kind => {
                if let Some(held) = held_by(kind, &bytes)? {
                    self.share(held.run)?;
                }
            }
        }
        self.put_key(key, bytes, Prior::Absent);
        Ok(())
    }
}
