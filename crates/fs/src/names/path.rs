//! Paths of inodes, to show them to users.

use crate::fileset::Fileset;
use crate::format::key::Ino;
use crate::names::directory::{AFTER_DOTS, ROOT};

/// Number of directories that [`Fileset::path_of`] searches, at most.
const STEPS_MAX: usize = 64;

impl Fileset {
    /// Finds a path of an inode from the root, without a slash at its start, to show it. Returns
    /// `None` if the inode has no name in the directory to which it was last moved, or if a
    /// directory on the way has more than `entries_max` entries, so that a search takes long.
    pub fn path_of(&self, ino: Ino, entries_max: u64) -> Option<String> {
        let mut names = Vec::new();
        let mut at = ino;
        for _ in 0..STEPS_MAX {
            if at == ROOT {
                names.reverse();
                return Some(names.join("/"));
            }
            let parent = self.attr(at).ok()?.inode.parent;
            if self.attr(parent).ok()?.inode.entries > entries_max {
                return None;
            }
            names.push(self.name_in(parent, at)?);
            at = parent;
        }
        None
    }

    /// Finds the name of an inode in a directory; bytes that are not UTF-8 are replaced.
    fn name_in(&self, dir: Ino, ino: Ino) -> Option<String> {
        let mut found = None;
        let listed = self.read_dir(dir, AFTER_DOTS, |entry| {
            if entry.ino == ino {
                found = Some(String::from_utf8_lossy(entry.name).into_owned());
            }
            Ok(found.is_none())
        });
        listed.ok()?;
        found
    }
}
