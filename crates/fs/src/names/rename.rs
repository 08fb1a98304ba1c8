//! Renaming: replacing, exchanging, leaving a whiteout.

use crate::error::{Error, Kind, Result};
use crate::fileset::{Attr, Fileset};
use crate::format::key::{Ino, Item};
use crate::format::record::{Entry, FileType, Inode};
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::names::directory::{DEPTH_MAX, New, ROOT};
use crate::names::slots::{Slot, check_name};

/// How [`Fileset::rename`] treats an existing target name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// Replaces it; its inode loses the name.
    Replace,
    /// Fails.
    NoReplace,
    /// Exchanges the two names; fails if there is no target.
    Exchange,
    /// Leaves a whiteout under the old name: a character device 0/0 of this owner, by which an
    /// overlay marks a name of its lower layer as removed.
    Whiteout {
        /// Owner's user id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Whether an existing target is replaced; otherwise it makes the rename fail.
        replaces: bool,
    },
}

impl Fileset {
    /// Renames, also across directories; at every moment, and after a crash, each of the inodes has
    /// one of its names. Returns the replaced inode as [`Fileset::unlink`] does.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: moving a directory below itself. [`Kind::NotEmpty`],
    /// [`Kind::IsDirectory`], [`Kind::NotDirectory`]: the target cannot be replaced.
    /// [`Kind::Exists`] with [`Rename::NoReplace`]. [`Kind::NotPermitted`]: the flags of an inode or
    /// of a directory.
    pub fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<Option<Attr>> {
        check_name(from.1)?;
        check_name(to.1)?;
        let replaced = self.fs.with_room(|| self.try_rename(from, to, how))?;
        let Some((ino, (inode, left))) = replaced else {
            return Ok(None);
        };
        if left {
            self.remove_orphan(ino)?;
        }
        Ok(Some(Attr { ino, inode }))
    }

    /// Renames; the caller removes the replaced inode if it is left.
    fn try_rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<Option<(Ino, (Inode, bool))>> {
        let mut op = Op::begin(&self.fs, self.id)?;
        op.check_kept_room()?;
        let from_flags = op.directory(self.id, from.0)?.flags;
        let to_flags = op.directory(self.id, to.0)?.flags;
        let Slot::Taken(place, moved) = op.entry(&self.fs.hasher, self.id, from.0, from.1)? else {
            return Err(Kind::NotFound.into());
        };
        let source = Named {
            dir: from.0,
            name: from.1,
            place,
            ino: moved.0,
            kind: moved.1,
        };
        let target = op.entry(&self.fs.hasher, self.id, to.0, to.1)?;
        self.refuse_loop(&op, &source, to.0)?;
        let may_replace = match how {
            Rename::NoReplace => false,
            Rename::Whiteout { replaces, .. } => replaces,
            Rename::Replace | Rename::Exchange => true,
        };
        match (&target, how) {
            (Slot::Taken(..), _) if !may_replace => return Err(Kind::Exists.into()),
            (Slot::Free(_), Rename::Exchange) => return Err(Kind::NotFound.into()),
            (Slot::Taken(_, (ino, _)), _) if *ino == source.ino => return Ok(None),
            _ => {}
        }
        from_flags.check_unlocked()?;
        to_flags.check_mutable()?;
        op.read_inode(source.ino)?.flags.check_unlocked()?;
        let mut replaced = None;
        match target {
            Slot::Taken(place, (ino, kind)) => {
                to_flags.check_unlocked()?;
                op.read_inode(ino)?.flags.check_unlocked()?;
                let target = Named {
                    dir: to.0,
                    name: to.1,
                    place,
                    ino,
                    kind,
                };
                if how == Rename::Exchange {
                    self.refuse_loop(&op, &target, from.0)?;
                    self.exchange(&mut op, &source, &target)?;
                } else {
                    replaced = Some((ino, self.replace(&mut op, &source, &target)?));
                }
            }
            Slot::Free(place) => {
                op.check_room()?;
                self.take_name(&mut op, &source)?;
                let target = Named {
                    dir: to.0,
                    name: to.1,
                    place,
                    ..source
                };
                self.give_name(&mut op, &target, Prior::Absent)?;
            }
        }
        if let Rename::Whiteout { uid, gid, .. } = how {
            self.leave_whiteout(&mut op, &source, (uid, gid))?;
        }
        // Once per directory, however many names changed: clients see one change per version.
        let now = op.now;
        op.change_later(from.0, |dir| dir.touch(now))?;
        if to.0 != from.0 {
            op.change_later(to.0, |dir| dir.touch(now))?;
        }
        op.check_held()?;
        op.finish();
        Ok(replaced)
    }

    /// Creates a whiteout at the name that an inode has just lost. The caller records the change of
    /// the directory's content.
    fn leave_whiteout(&self, op: &mut Op, left: &Named, (uid, gid): (u32, u32)) -> Result<()> {
        op.check_room()?;
        let new = New {
            uid,
            gid,
            ..New::of_root(FileType::CharDevice, 0)
        };
        let dir = op.directory(self.id, left.dir)?;
        let Attr { ino, inode } = self.make_inode(op, left.dir, &dir, &new)?;
        let entry = Entry {
            ino,
            kind: inode.kind,
            name: left.name,
        };
        let (item, bytes) = ((Item::Entry, left.place), entry.encode());
        op.put(self.id, left.dir, item, bytes, Prior::Possible)?;
        op.change_later(left.dir, |dir| dir.entries += 1)
    }

    /// Checks that a directory is not moved below itself.
    fn refuse_loop(&self, op: &Op, moved: &Named, dir: Ino) -> Result<()> {
        if moved.kind != FileType::Directory || moved.dir == dir {
            return Ok(());
        }
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == moved.ino {
                return Err(Error::new(
                    Kind::Invalid,
                    "cannot move a directory into itself or a subdirectory of itself",
                ));
            }
            if at == ROOT {
                return Ok(());
            }
            at = op.read_inode(at)?.parent;
        }
        Err(Error::corrupt(format!(
            "inode {dir}: not reachable from the root"
        )))
    }

    fn replace(&self, op: &mut Op, source: &Named, target: &Named) -> Result<(Inode, bool)> {
        match (source.is_dir(), target.is_dir()) {
            (true, false) => return Err(Kind::NotDirectory.into()),
            (false, true) => return Err(Kind::IsDirectory.into()),
            _ => {}
        }
        if target.is_dir() && op.read_inode(target.ino)?.entries > 0 {
            return Err(Kind::NotEmpty.into());
        }
        self.take_name(op, source)?;
        self.take_name(op, target)?;
        let new = Named {
            dir: target.dir,
            name: target.name,
            place: target.place,
            ..*source
        };
        self.give_name(op, &new, Prior::Possible)?;
        let inode = op.read_inode(target.ino)?;
        self.drop_link(op, target.ino, inode, None)
    }

    fn exchange(&self, op: &mut Op, source: &Named, target: &Named) -> Result<()> {
        self.take_name(op, source)?;
        self.take_name(op, target)?;
        for (what, place) in [(source, target), (target, source)] {
            let new = Named {
                ino: what.ino,
                kind: what.kind,
                ..*place
            };
            self.give_name(op, &new, Prior::Possible)?;
        }
        Ok(())
    }

    /// Removes an entry from its directory. The caller handles the inode, and records the change of
    /// the directory's content.
    fn take_name(&self, op: &mut Op, named: &Named) -> Result<()> {
        op.delete(self.id, named.dir, (Item::Entry, named.place))?;
        op.change_later(named.dir, |dir| {
            dir.entries = dir.entries.saturating_sub(1);
            dir.links = dir.links.saturating_sub(named.is_dir().into());
        })
    }

    /// Adds an entry for an inode that has just lost another. The caller records the change of the
    /// directory's content. `prior` is that of the entry's place.
    fn give_name(&self, op: &mut Op, named: &Named, prior: Prior) -> Result<()> {
        let entry = Entry {
            ino: named.ino,
            kind: named.kind,
            name: named.name,
        };
        op.put(
            self.id,
            named.dir,
            (Item::Entry, named.place),
            entry.encode(),
            prior,
        )?;
        let now = op.now;
        op.change_later(named.dir, |dir| {
            dir.entries += 1;
            dir.links += u32::from(named.is_dir());
        })?;
        op.change(named.ino, |inode| {
            inode.changed = now;
            if inode.parent != named.dir {
                inode.parent = named.dir;
                // The `..` of a directory changes with its parent.
                inode.data_version += u64::from(inode.is_dir());
            }
        })
    }
}

/// Entry and its location.
#[derive(Clone, Copy)]
struct Named<'a> {
    dir: Ino,
    name: &'a [u8],
    place: u64,
    ino: Ino,
    kind: FileType,
}

impl Named<'_> {
    fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }
}
