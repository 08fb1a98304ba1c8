//! Names: looking up, creating, linking, removing, listing.
//!
//! **Invariant:** the link count of an inode is the number of its names (for a directory: 2, plus
//! one for each subdirectory); an inode without a name is removed, or listed as an orphan until its
//! last user has closed it. Deliberately absent: access control. The kernel does that for a mount,
//! the access lists of AFS for the file server. The flags of inodes are no access control: they hold
//! for every client.

use crate::data::content::{EXTENTS_AT_ONCE, Items};
use crate::error::{Error, Kind, Result};
use crate::fileset::{Attr, Fileset};
use crate::format::flags::InodeFlags;
use crate::format::key::{Ino, Item, PLACE_MAX};
use crate::format::record::{Entry, FileType, Inode, LINKS_MAX, TARGET_MAX, Xattr};
use crate::metadata::inode_state::InodeState;
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::state::State;
use crate::names::acl::{self, Acl};
use crate::names::slots::{Slot, check_name};

/// Inode number of the root directory.
pub const ROOT: Ino = 1;

/// Position in a directory after `.` and `..`, for [`Fileset::read_dir`].
pub(crate) const AFTER_DOTS: u64 = 2;

/// Largest depth of a directory; a longer path to the root is a loop.
pub(crate) const DEPTH_MAX: usize = 1 << 20;

/// Extended attributes that a new directory inherits from its parent: the access list of AFS, which
/// belongs to directories and is copied to new subdirectories.
pub const INHERITED: [&[u8]; 1] = [b"trusted.afs.acl"];

/// Properties of an object to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct New {
    /// Any type except a symbolic link; see [`Fileset::symlink`].
    pub kind: FileType,
    /// Requested permission bits, with set-user-id, set-group-id and sticky.
    pub permissions: u32,
    /// Bits to remove from them, unless the directory has a default access control list.
    pub umask: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Group id, unless the directory passes on its own (set-group-id).
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
}

impl New {
    /// Returns the properties of an object owned by root with exactly these permissions.
    pub const fn of_root(kind: FileType, permissions: u32) -> New {
        New {
            kind,
            permissions,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
        }
    }
}

/// Entry of a directory as listed by [`Fileset::read_dir`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Position from which to continue after this entry.
    pub cookie: u64,
    /// Inode number.
    pub ino: Ino,
    /// Type of the inode.
    pub kind: FileType,
    /// Name; `.` and `..` come first.
    pub name: &'a [u8],
}

impl Fileset {
    /// Looks up the inode of a name in a directory.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::NotDirectory`], [`Kind::NameTooLong`].
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let state = self.fs.read();
        let directory = state.directory(self.id, dir)?;
        let ino = match name {
            b"." => dir,
            b".." => directory.parent,
            name => {
                check_name(name)?;
                match state.entry(&self.fs.hasher, self.id, dir, name)? {
                    Slot::Taken(_, (ino, _)) => ino,
                    Slot::Free(_) => return Err(Kind::NotFound.into()),
                }
            }
        };
        Ok(Attr {
            ino,
            inode: state.inode_shown(self.id, ino)?,
        })
    }

    /// Creates a file, a directory or a special file.
    ///
    /// # Errors
    /// [`Kind::Exists`], [`Kind::NotFound`] and [`Kind::NotDirectory`] for the directory,
    /// [`Kind::NoSpace`], [`Kind::Quota`], [`Kind::NameTooLong`], [`Kind::ReadOnly`].
    pub fn create(&self, dir: Ino, name: &[u8], new: &New) -> Result<Attr> {
        self.create_then(dir, name, new, |_, _| {})
    }

    /// Creates a file as [`Fileset::create`] does, and opens it.
    ///
    /// # Errors
    /// As [`Fileset::create`].
    pub fn create_open(&self, dir: Ino, name: &[u8], new: &New) -> Result<Attr> {
        self.create_then(dir, name, new, |op, attr| {
            self.add_core(op, attr).opens = 1;
        })
    }

    fn create_then(
        &self,
        dir: Ino,
        name: &[u8],
        new: &New,
        last: impl Fn(&mut Op, &Attr),
    ) -> Result<Attr> {
        if new.kind == FileType::Symlink {
            return Err(Error::new(Kind::Invalid, "a symbolic link needs a target"));
        }
        self.fs.with_room(|| {
            let mut op = Op::begin(&self.fs, self.id)?;
            let attr = self.make(&mut op, dir, name, new)?;
            op.check_held()?;
            last(&mut op, &attr);
            op.finish();
            Ok(attr)
        })
    }

    /// Adds the in-memory state of a new inode. Not undone with the operation, so it comes last.
    fn add_core<'a>(&self, op: &'a mut Op, attr: &Attr) -> &'a mut InodeState {
        let core = op.cores.entry((self.id, attr.ino));
        core.or_insert_with(|| InodeState::new(attr.inode.clone()))
    }

    /// Creates a regular file without a name, opened once already (`O_TMPFILE` of open(2)): its
    /// last [`Fileset::release`] or a crash removes it, unless [`Fileset::link`] adds a name
    /// before. It inherits from `dir`.
    ///
    /// # Errors
    /// As [`Fileset::create`].
    pub fn create_unnamed(&self, dir: Ino, new: &New) -> Result<Attr> {
        if new.kind != FileType::File {
            return Err(Error::new(
                Kind::Invalid,
                "only a regular file can be created without a name",
            ));
        }
        self.fs.with_room(|| {
            let mut op = Op::begin(&self.fs, self.id)?;
            let parent = op.directory(self.id, dir)?;
            let mut attr = self.make_inode(&mut op, dir, &parent, new)?;
            attr.inode.links = 0;
            op.set_inode(self.id, attr.ino, attr.inode.clone())?;
            op.put(
                self.id,
                0,
                (Item::Orphan, attr.ino),
                Vec::new(),
                Prior::Absent,
            )?;
            op.check_held()?;
            let core = self.add_core(&mut op, &attr);
            (core.opens, core.unnamed) = (1, true);
            op.finish();
            Ok(attr)
        })
    }

    /// Creates a symbolic link; its permissions are 0777.
    ///
    /// # Errors
    /// As [`Fileset::create`].
    pub fn symlink(
        &self,
        dir: Ino,
        name: &[u8],
        target: &[u8],
        uid: u32,
        gid: u32,
    ) -> Result<Attr> {
        if target.len() > TARGET_MAX {
            return Err(Kind::NameTooLong.into());
        }
        if target.is_empty() || target.contains(&0) {
            return Err(Error::new(
                Kind::Invalid,
                "the target of a symbolic link must not be empty or contain NUL",
            ));
        }
        let new = New {
            uid,
            gid,
            ..New::of_root(FileType::Symlink, 0o777)
        };
        self.fs.with_room(|| {
            let mut op = Op::begin(&self.fs, self.id)?;
            let mut attr = self.make(&mut op, dir, name, &new)?;
            op.put(
                self.id,
                attr.ino,
                (Item::Target, 0),
                target.to_vec(),
                Prior::Absent,
            )?;
            op.change(attr.ino, |inode| {
                (inode.size, inode.disk_size) = (target.len() as u64, target.len() as u64);
            })?;
            attr.inode = op.read_inode(attr.ino)?;
            op.check_held()?;
            op.finish();
            Ok(attr)
        })
    }

    /// Reads the target of a symbolic link.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: not a symbolic link.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let state = self.fs.read();
        if state.inode(self.id, ino)?.kind != FileType::Symlink {
            return Err(Error::new(Kind::Invalid, "not a symbolic link"));
        }
        let target = state.get(self.id, ino, (Item::Target, 0), |bytes| Ok(bytes.to_vec()))?;
        target.ok_or_else(|| Error::corrupt(format!("inode {ino}: symbolic link has no target")))
    }

    fn make(&self, op: &mut Op, dir: Ino, name: &[u8], new: &New) -> Result<Attr> {
        check_name(name)?;
        let parent = op.directory(self.id, dir)?;
        let Slot::Free(place) = op.entry(&self.fs.hasher, self.id, dir, name)? else {
            return Err(Kind::Exists.into());
        };
        let attr = self.make_inode(op, dir, &parent, new)?;
        let (ino, kind) = (attr.ino, new.kind);
        let entry = Entry { ino, kind, name };
        self.add_entry(op, dir, place, &entry)?;
        Ok(attr)
    }

    /// Adds an entry at a free place of a directory.
    fn add_entry(&self, op: &mut Op, dir: Ino, place: u64, entry: &Entry) -> Result<()> {
        let (item, bytes) = ((Item::Entry, place), entry.encode());
        op.put(self.id, dir, item, bytes, Prior::Absent)?;
        let now = op.now;
        op.change_later(dir, |parent| {
            parent.entries += 1;
            parent.links += u32::from(entry.kind == FileType::Directory);
            parent.touch(now);
        })
    }

    /// Creates an inode with its attributes, inheriting from the directory `dir`, which is `parent`;
    /// the caller adds the name.
    pub(super) fn make_inode(
        &self,
        op: &mut Op,
        dir: Ino,
        parent: &Inode,
        new: &New,
    ) -> Result<Attr> {
        parent.flags.check_mutable()?;
        op.check_new_inode()?;
        let is_dir = new.kind == FileType::Directory;
        if is_dir && parent.links >= LINKS_MAX {
            return Err(Kind::TooManyLinks.into());
        }
        let ino = op.new_ino(is_dir)?;
        let inherits = parent.permissions & libc::S_ISGID != 0;
        let mut inode = Inode {
            kind: new.kind,
            permissions: new.permissions & 0o7777,
            links: if is_dir { 2 } else { 1 },
            uid: new.uid,
            gid: if inherits { parent.gid } else { new.gid },
            rdev: if new.kind.has_flags() { 0 } else { new.rdev },
            flags: if new.kind.has_flags() {
                parent.flags.only(InodeFlags::INHERITED)
            } else {
                InodeFlags::default()
            },
            generation: self.fs.generation,
            size: 0,
            disk_size: 0,
            blocks: 0,
            data_version: 1,
            parent: dir,
            entries: 0,
            accessed: op.now,
            modified: op.now,
            changed: op.now,
            created: op.now,
        };
        if is_dir && inherits {
            inode.permissions |= libc::S_ISGID;
        }
        self.give_acl(op, dir, ino, &mut inode, new.umask)?;
        if is_dir {
            self.give_inherited(op, dir, ino)?;
        }
        op.put(
            self.id,
            ino,
            (Item::Inode, 0),
            inode.encode(),
            Prior::Absent,
        )?;
        op.use_inodes(1);
        Ok(Attr { ino, inode })
    }

    /// Applies the default list of the directory to a new inode, or else the umask.
    fn give_acl(
        &self,
        op: &mut Op,
        dir: Ino,
        ino: Ino,
        inode: &mut Inode,
        umask: u32,
    ) -> Result<()> {
        let default = match op.xattr(&self.fs.hasher, self.id, dir, acl::DEFAULT)? {
            Slot::Taken(_, value) if inode.kind != FileType::Symlink => value,
            _ => {
                inode.permissions &= !(umask & 0o777);
                return Ok(());
            }
        };
        let mut access = Acl::decode(&default)?;
        access.limit(inode.permissions);
        inode.permissions = inode.permissions & !0o777 | access.mode();
        let mut give = |name: &[u8], value: &[u8]| {
            let place = self.fs.hasher.place(name);
            let xattr = Xattr { name, value };
            op.put(
                self.id,
                ino,
                (Item::Xattr, place),
                xattr.encode(),
                Prior::Absent,
            )
        };
        if !access.is_minimal() {
            give(acl::ACCESS, &access.encode())?;
        }
        if inode.is_dir() {
            give(acl::DEFAULT, &default)?;
        }
        Ok(())
    }

    /// Copies the inherited attributes of the parent to a new directory.
    fn give_inherited(&self, op: &mut Op, dir: Ino, ino: Ino) -> Result<()> {
        for name in INHERITED {
            if let Slot::Taken(_, value) = op.xattr(&self.fs.hasher, self.id, dir, name)? {
                let place = self.fs.hasher.place(name);
                let value = &value[..];
                let xattr = Xattr { name, value }.encode();
                op.put(self.id, ino, (Item::Xattr, place), xattr, Prior::Absent)?;
            }
        }
        Ok(())
    }

    /// Adds a name to a file, or the first one to an unnamed file.
    ///
    /// # Errors
    /// [`Kind::NotPermitted`]: a directory, or the flags of the inode or of the directory.
    /// [`Kind::NotFound`]: a file that has lost all its names.
    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        self.fs.with_room(|| self.try_link(ino, dir, name))
    }

    fn try_link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let mut op = Op::begin(&self.fs, self.id)?;
        let inode = op.read_inode(ino)?;
        if inode.is_dir() {
            return Err(Error::new(
                Kind::NotPermitted,
                "a directory cannot have hard links",
            ));
        }
        let name_of = (self.id, ino);
        let unnamed = op.cores.get(&name_of).is_some_and(|core| core.unnamed);
        if inode.links == 0 && !unnamed {
            return Err(Kind::NotFound.into());
        }
        if inode.links >= LINKS_MAX {
            return Err(Kind::TooManyLinks.into());
        }
        op.directory(self.id, dir)?.flags.check_mutable()?;
        let Slot::Free(place) = op.entry(&self.fs.hasher, self.id, dir, name)? else {
            return Err(Kind::Exists.into());
        };
        inode.flags.check_unlocked()?;
        op.check_room()?;
        let kind = inode.kind;
        let entry = Entry { ino, kind, name };
        self.add_entry(&mut op, dir, place, &entry)?;
        let now = op.now;
        op.change(ino, |inode| {
            inode.links += 1;
            inode.changed = now;
        })?;
        if unnamed {
            op.delete(self.id, 0, (Item::Orphan, ino))?;
        }
        let inode = op.read_inode(ino)?;
        op.check_held()?;
        if let Some(core) = op.cores.get_mut(&name_of) {
            core.unnamed = false;
        }
        op.finish();
        Ok(Attr { ino, inode })
    }

    /// Removes a name of anything except a directory. Returns the inode as it is afterwards:
    /// without links it is removed, or will be when it is closed.
    ///
    /// # Errors
    /// [`Kind::IsDirectory`], [`Kind::NotFound`], [`Kind::NotPermitted`]: the flags of the inode or
    /// of the directory.
    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.remove(dir, name, Removal::Unlink)
            .map(|removed| removed.0)
    }

    /// As [`Fileset::unlink`]; returns as well whether the inode is removed already.
    pub(crate) fn unlink_now(&self, dir: Ino, name: &[u8]) -> Result<(Attr, bool)> {
        self.remove(dir, name, Removal::Unlink)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Kind::NotEmpty`], [`Kind::NotDirectory`], [`Kind::NotFound`], [`Kind::Invalid`] for `.`.
    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        match name {
            b"." => Err(Kind::Invalid.into()),
            b".." => Err(Kind::NotEmpty.into()),
            name => self
                .remove(dir, name, Removal::Rmdir)
                .map(|removed| removed.0),
        }
    }

    fn remove(&self, dir: Ino, name: &[u8], removal: Removal) -> Result<(Attr, bool)> {
        let is_dir = removal == Removal::Rmdir;
        check_name(name)?;
        let mut op = Op::begin(&self.fs, self.id)?;
        let parent = op.directory(self.id, dir)?;
        let Slot::Taken(place, (ino, kind)) = op.entry(&self.fs.hasher, self.id, dir, name)? else {
            return Err(Kind::NotFound.into());
        };
        match (kind == FileType::Directory, is_dir) {
            (true, false) => return Err(Kind::IsDirectory.into()),
            (false, true) => return Err(Kind::NotDirectory.into()),
            _ => {}
        }
        parent.flags.check_unlocked()?;
        let (inode, items) = op.read_with_items(self.id, ino)?;
        inode.flags.check_unlocked()?;
        op.delete(self.id, dir, (Item::Entry, place))?;
        let now = op.now;
        op.change_later(dir, |parent| {
            parent.entries = parent.entries.saturating_sub(1);
            parent.links = parent.links.saturating_sub(is_dir.into());
            parent.touch(now);
        })?;
        let (inode, left) = self.drop_link(&mut op, ino, inode, items)?;
        let is_open = op.cores.contains_key(&(self.id, ino));
        op.finish();
        let gone = if left {
            self.remove_orphan(ino)?
        } else {
            inode.links == 0 && !is_open
        };
        Ok((Attr { ino, inode }, gone))
    }

    /// Drops a link of an inode whose entry was removed. `items` are those besides the record, if the
    /// caller has read them. Comes last in its operation. Returns the inode, and whether the caller
    /// has to remove it after the operation.
    pub(super) fn drop_link(
        &self,
        op: &mut Op,
        ino: Ino,
        mut inode: Inode,
        items: Option<Items>,
    ) -> Result<(Inode, bool)> {
        if inode.is_dir() && inode.entries > 0 {
            return Err(Kind::NotEmpty.into());
        }
        inode.links = if inode.is_dir() {
            0
        } else {
            inode.links.saturating_sub(1)
        };
        inode.changed = op.now;
        let is_open = op
            .cores
            .get(&(self.id, ino))
            .is_some_and(|core| core.opens > 0);
        if inode.links == 0 && !is_open {
            let is_small = match &items {
                Some(items) => items.are_few(),
                None => self.is_small(op, ino, &inode)?,
            };
            if is_small {
                op.destroy(ino, &inode, items)?;
                return Ok((inode, false));
            }
        }
        let left = inode.links == 0 && !is_open;
        op.set_inode(self.id, ino, inode.clone())?;
        if inode.links == 0 {
            op.put(self.id, 0, (Item::Orphan, ino), Vec::new(), Prior::Absent)?;
        }
        Ok((inode, left))
    }

    /// Checks whether an inode has few enough extents to be removed in one operation.
    fn is_small(&self, op: &Op, ino: Ino, inode: &Inode) -> Result<bool> {
        // No extent is empty.
        if inode.blocks <= EXTENTS_AT_ONCE as u64 {
            return Ok(true);
        }
        let mut extents = 0;
        for kind in [Item::Extent, Item::Chunk] {
            op.scan(self.id, ino, (kind, 0, PLACE_MAX), |_, _| {
                extents += 1;
                Ok(extents <= EXTENTS_AT_ONCE)
            })?;
        }
        Ok(extents <= EXTENTS_AT_ONCE)
    }

    /// Passes the entries of a directory after a cookie to `take` until that returns `false`.
    /// Cookie 0 is the start; `.` and `..` come first. An entry that exists throughout the listing
    /// is passed exactly once.
    ///
    /// # Errors
    /// [`Kind::NotDirectory`], and errors of `take`.
    pub fn read_dir(
        &self,
        dir: Ino,
        after: u64,
        mut take: impl FnMut(DirEntry) -> Result<bool>,
    ) -> Result<()> {
        self.list(dir, after, |_, entry| take(entry))
    }

    /// As [`Fileset::read_dir`], with the attributes of each inode.
    ///
    /// # Errors
    /// As [`Fileset::read_dir`].
    pub fn read_dir_attrs(
        &self,
        dir: Ino,
        after: u64,
        mut take: impl FnMut(DirEntry, Attr) -> Result<bool>,
    ) -> Result<()> {
        self.list(dir, after, |state, entry| {
            let ino = entry.ino;
            let inode = state.inode_shown(self.id, ino)?;
            take(entry, Attr { ino, inode })
        })
    }

    fn list(
        &self,
        dir: Ino,
        after: u64,
        mut take: impl FnMut(&State, DirEntry) -> Result<bool>,
    ) -> Result<()> {
        let state = &*self.fs.read();
        let inode = state.inode(self.id, dir)?;
        if !inode.is_dir() {
            return Err(Kind::NotDirectory.into());
        }
        let dots: [(u64, Ino, &[u8]); 2] = [(1, dir, b"."), (2, inode.parent, b"..")];
        for (cookie, ino, name) in dots.into_iter().filter(|dot| dot.0 > after) {
            let kind = FileType::Directory;
            let entry = DirEntry {
                cookie,
                ino,
                kind,
                name,
            };
            if !take(state, entry)? {
                return Ok(());
            }
        }
        if after >= PLACE_MAX {
            return Ok(());
        }
        let places = (Item::Entry, after + 1, PLACE_MAX);
        state.scan(self.id, dir, places, |cookie, bytes| {
            let Entry { ino, kind, name } = Entry::decode(bytes)?;
            let entry = DirEntry {
                cookie,
                ino,
                kind,
                name,
            };
            take(state, entry)
        })
    }
}

/// Call that removes a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// Removes anything except a directory.
    Unlink,
    /// Removes an empty directory.
    Rmdir,
}
