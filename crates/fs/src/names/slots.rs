//! Names and their cookies.
//!
//! An entry of a directory, or an attribute of an inode, is stored at the place that its name
//! hashes to with the file system's own key; 256 places are available for names with equal hashes.
//! So a lookup is one short scan however large the directory is, the order of a directory never
//! changes during a listing, and the place is the cookie to continue from. **Invariant:** a name is
//! within the 256 places of its hash; places below 256 are never used, so that `.` and `..` can
//! have cookies.

use crate::error::{Error, Kind, Result};
use crate::format::key::{Ino, Item, Key, TreeId};
use crate::format::name_hash::{Hasher, SLOTS};
use crate::format::record::{Entry, FileType, NAME_MAX, Xattr, is_name};
use crate::metadata::state::State;

/// Result of the search for a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Slot<T> {
    /// The name exists at this place, with this value.
    Taken(u64, T),
    /// The name does not exist, and this place is free for it.
    Free(u64),
}

impl State {
    fn slot<T>(
        &self,
        tree: TreeId,
        ino: Ino,
        item: Item,
        first: u64,
        matching: impl Fn(&[u8]) -> Result<Option<T>>,
    ) -> Result<Slot<T>> {
        let (key, changes) = (Key::item(tree, ino, item, first), self.changes_of(item));
        if let Some(free) = self.absent.find(key, changes) {
            // The tree may have been removed since.
            return self.tree(tree).map(|_| Slot::Free(free));
        }
        // Nearly every existing name is at its first place.
        let there = self.get(tree, ino, (item, first), &matching)?;
        if let Some(value) = there.flatten() {
            return Ok(Slot::Taken(first, value));
        }
        let mut found = None;
        let mut free = first;
        let places = (item, first, first + SLOTS - 1);
        self.scan(tree, ino, places, |place, bytes| {
            if place == free {
                free += 1;
            }
            found = matching(bytes)?.map(|value| (place, value));
            Ok(found.is_none())
        })?;
        match found {
            Some((place, value)) => Ok(Slot::Taken(place, value)),
            None if free < first + SLOTS => {
                self.absent.add(key, free, changes);
                Ok(Slot::Free(free))
            }
            None => Err(Error::new(
                Kind::NoSpace,
                "too many names with the same hash",
            )),
        }
    }

    /// Looks up a name in a directory.
    pub fn entry(
        &self,
        hasher: &Hasher,
        tree: TreeId,
        dir: Ino,
        name: &[u8],
    ) -> Result<Slot<(Ino, FileType)>> {
        self.slot(tree, dir, Item::Entry, hasher.place(name), |bytes| {
            let entry = Entry::decode(bytes)?;
            Ok((entry.name == name).then_some((entry.ino, entry.kind)))
        })
    }

    /// Looks up an extended attribute.
    pub fn xattr(
        &self,
        hasher: &Hasher,
        tree: TreeId,
        ino: Ino,
        name: &[u8],
    ) -> Result<Slot<Vec<u8>>> {
        self.slot(tree, ino, Item::Xattr, hasher.place(name), |bytes| {
            let xattr = Xattr::decode(bytes)?;
            Ok((xattr.name == name).then(|| xattr.value.to_vec()))
        })
    }
}

/// Checks that a name is valid for a directory entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Kind::NameTooLong.into());
    }
    if is_name(name) {
        Ok(())
    } else {
        Err(Error::new(Kind::Invalid, "invalid file name"))
    }
}
