//! Attributes of inodes: times, modes and owners, and extended attributes.

use crate::error::{Error, Kind, Result};
use crate::fileset::{Attr, Fileset};
use crate::format::flags::InodeFlags;
use crate::format::key::{Ino, Item, PLACE_MAX};
use crate::format::record::{FileType, Inode, NAME_MAX, Time, XATTR_VALUE_MAX, Xattr};
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::names::acl::{self, Acl};
use crate::names::slots::Slot;

/// Limit for all attribute names of an inode in bytes, as the kernel's XATTR_LIST_MAX.
const XATTR_LIST_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// Time of the operation.
    Now,
    /// Given time.
    To(Time),
}

/// Attributes to change; `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits: the lower twelve bits of `st_mode`.
    pub permissions: Option<u32>,
    /// Owner's user id.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Length in bytes; see [`Fileset::truncate`].
    pub size: Option<u64>,
    /// Whether the new length belongs to a change that has raised the data version already.
    pub has_version: bool,
    /// Time of the last read.
    pub accessed: Option<SetTime>,
    /// Time of the last change of the content.
    pub modified: Option<SetTime>,
    /// Time of the last change of anything, for a client that tracks it itself; otherwise now.
    pub changed: Option<SetTime>,
}

/// Precondition of [`Fileset::set_xattr`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// None: the attribute is created or replaced.
    Any,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

/// Age in seconds at which a read updates the access time even without a change.
const ACCESS_SECONDS: i64 = 24 * 3600;

/// Checks that the flags of an inode permit a change of its attributes.
fn check_flags(inode: &Inode, set: &SetAttr) -> Result<()> {
    // A client that tracks times itself sends those of changes that were permitted.
    let exact = |time| matches!(time, Some(SetTime::To(_)));
    let is_time = (exact(set.accessed) || exact(set.modified)) && set.changed.is_none();
    let others = (set.permissions, set.uid, set.gid) != (None, None, None);
    if is_time || others {
        inode.flags.check_unlocked()
    } else {
        inode.flags.check_mutable()
    }
}

impl Fileset {
    /// Updates the access time after a file was read or a directory listed, if it is out of date:
    /// once after each change, and once a day (the `relatime` of mount(8)), or `always`.
    ///
    /// # Errors
    /// [`Kind::Stale`].
    pub fn note_read(&self, ino: Ino, always: bool) -> Result<()> {
        let now = (self.fs.options.clock)();
        let is_old = |inode: &Inode| {
            if inode.flags.has(InodeFlags::NO_ACCESS_TIME) {
                return false;
            }
            always
                || inode.accessed <= inode.modified.max(inode.changed)
                || inode.accessed.seconds.saturating_add(ACCESS_SECONDS) <= now.seconds
        };
        let state = self.fs.read();
        let inode = state.inode(self.id, ino)?;
        let tree = state.tree(self.id)?;
        let full = !tree.snapshots.is_empty() && !self.fs.space.has_last_room();
        let fixed = self.fs.options.read_only || tree.record.origin != 0 || full;
        drop(state);
        if fixed || !is_old(&inode) {
            return Ok(());
        }
        let mut op = Op::begin(&self.fs, self.id)?;
        let core = op.core(ino)?;
        core.inode.accessed = now;
        core.dirty = true;
        op.list_dirty((self.id, ino));
        op.finish();
        Ok(())
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Those of [`Fileset::truncate`]; [`Kind::Quota`]: the new owner has no room for the file;
    /// [`Kind::Invalid`]: an invalid time; [`Kind::NotPermitted`]:
    /// the flags of the inode.
    pub fn set_attr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.fs.with_room(|| self.try_set_attr(ino, set))
    }

    fn try_set_attr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut op = Op::begin(&self.fs, self.id)?;
        let now = op.now;
        let time = |set: Option<SetTime>, old: Time| match set {
            None => Ok(old),
            Some(SetTime::Now) => Ok(now),
            Some(SetTime::To(time)) if time.nanos < 1_000_000_000 => Ok(time),
            Some(_) => Err(Error::from(Kind::Invalid)),
        };
        let mut inode = op.read_inode(ino)?;
        check_flags(&inode, set)?;
        if set.size.is_none_or(|size| size > inode.size) {
            op.check_kept_room()?;
        }
        inode.permissions = set.permissions.map_or(inode.permissions, |p| p & 0o7777);
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.accessed = time(set.accessed, inode.accessed)?;
        inode.modified = time(set.modified, inode.modified)?;
        inode.changed = time(set.changed, now)?;
        let permissions = inode.permissions;
        if set.uid.is_none() && set.gid.is_none() {
            op.change_later(ino, |old| *old = inode)?;
        } else {
            op.set_inode(self.id, ino, inode)?;
        }
        if set.permissions.is_some() {
            self.follow_mode(&mut op, ino, permissions)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            op.move_owed(ino)?;
        }
        if let Some(size) = set.size {
            let before = op.read_inode(ino)?.data_version;
            self.cut_or_grow(&mut op, ino, size)?;
            if set.has_version {
                op.change(ino, |inode| inode.data_version = before)?;
            }
        }
        if let (Some(_), Some(modified)) = (set.size, set.modified) {
            let to = time(Some(modified), now)?;
            op.change(ino, |inode| inode.modified = to)?;
        }
        let inode = op.read_inode(ino)?;
        op.finish();
        Ok(Attr { ino, inode })
    }

    /// Replaces the flags of a file or a directory, except bits that this code does not know. The
    /// caller checks who may do so.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: unknown flags, or an inode of another type.
    pub fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<Attr> {
        if flags.has(InodeFlags::COMPRESS) {
            self.fs.check_writable()?;
            self.fs.need_compression()?;
        }
        let mut op = Op::begin(&self.fs, self.id)?;
        let mut inode = op.read_inode(ino)?;
        let contradict = flags.only(InodeFlags::INHERITED) == InodeFlags::INHERITED;
        if !inode.kind.has_flags() || flags.unknown() != 0 || contradict {
            return Err(Error::new(
                Kind::Unsupported,
                "files and directories have the flags a, A, c, d, i and m only, and not both c and m",
            ));
        }
        op.check_kept_room()?;
        let unknown = inode.flags.unknown();
        (inode.flags, inode.changed) = (InodeFlags(flags.0 | unknown), op.now);
        op.set_inode(self.id, ino, inode.clone())?;
        op.finish();
        Ok(Attr { ino, inode })
    }

    /// Raises the data version of an inode, for a client that presents more as its content than is
    /// stored here.
    ///
    /// # Errors
    /// [`Kind::Stale`], [`Kind::ReadOnly`].
    pub fn raise_version(&self, ino: Ino) -> Result<Attr> {
        let mut op = Op::begin(&self.fs, self.id)?;
        op.change(ino, |inode| inode.data_version += 1)?;
        let inode = op.read_inode(ino)?;
        op.finish();
        Ok(Attr { ino, inode })
    }

    /// Updates the access list of a file, if it has one, to match its mode.
    fn follow_mode(&self, op: &mut Op, ino: Ino, permissions: u32) -> Result<()> {
        let found = op.xattr(&self.fs.hasher, self.id, ino, acl::ACCESS)?;
        let Slot::Taken(place, value) = found else {
            return Ok(());
        };
        let mut list = Acl::decode(&value)?;
        list.set_mode(permissions);
        let value = list.encode();
        let name = acl::ACCESS;
        let xattr = Xattr {
            name,
            value: &value,
        };
        op.put(
            self.id,
            ino,
            (Item::Xattr, place),
            xattr.encode(),
            Prior::Possible,
        )?;
        Ok(())
    }

    /// Reads the value of an extended attribute.
    ///
    /// # Errors
    /// [`Kind::NoAttribute`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let state = self.fs.read();
        state.inode(self.id, ino)?;
        match state.xattr(&self.fs.hasher, self.id, ino, name)? {
            Slot::Taken(_, value) => Ok(value),
            Slot::Free(_) => Err(Kind::NoAttribute.into()),
        }
    }

    /// Passes the names of the extended attributes of an inode to `take`.
    pub fn xattrs(&self, ino: Ino, mut take: impl FnMut(&[u8])) -> Result<()> {
        let state = self.fs.read();
        state.inode(self.id, ino)?;
        state.scan(self.id, ino, (Item::Xattr, 0, PLACE_MAX), |_, bytes| {
            take(Xattr::decode(bytes)?.name);
            Ok(true)
        })
    }

    /// Sets an extended attribute. POSIX access control lists are validated, and the mode of the
    /// file follows its list; a list that the mode fully expresses is not stored.
    ///
    /// # Errors
    /// [`Kind::Exists`], [`Kind::NoAttribute`]: the precondition `how` is not met. [`Kind::Range`]:
    /// the name is empty or too long. [`Kind::TooBig`]: the value is too long. [`Kind::NoSpace`]:
    /// too many names. [`Kind::Quota`]. [`Kind::Invalid`]: an invalid access control list.
    /// [`Kind::NotPermitted`]: the flags of the inode.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
            return Err(Kind::Range.into());
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(Kind::TooBig.into());
        }
        self.fs
            .with_room(|| self.try_set_xattr(ino, name, value, how))
    }

    fn try_set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        let mut op = Op::begin(&self.fs, self.id)?;
        op.read_inode(ino)?.flags.check_unlocked()?;
        let found = op.xattr(&self.fs.hasher, self.id, ino, name)?;
        match (&found, how) {
            (Slot::Taken(..), SetXattr::Create) => return Err(Kind::Exists.into()),
            (Slot::Free(_), SetXattr::Replace) => return Err(Kind::NoAttribute.into()),
            _ => {}
        }
        op.check_room()?;
        let now = op.now;
        op.change(ino, |inode| inode.changed = now)?;
        if !self.is_kept_as_list(&mut op, ino, name, value)? {
            if let Slot::Taken(place, _) = found {
                op.delete(self.id, ino, (Item::Xattr, place))?;
            }
            op.finish();
            return Ok(());
        }
        let xattr = Xattr { name, value }.encode();
        match found {
            Slot::Taken(place, _) => {
                op.put(self.id, ino, (Item::Xattr, place), xattr, Prior::Possible)?
            }
            Slot::Free(place) => {
                self.check_list(&op, ino, name)?;
                op.put(self.id, ino, (Item::Xattr, place), xattr, Prior::Absent)?
            }
        };
        op.check_held()?;
        op.finish();
        Ok(())
    }

    /// Validates an access control list and updates the mode. Returns whether it has to be stored.
    fn is_kept_as_list(&self, op: &mut Op, ino: Ino, name: &[u8], value: &[u8]) -> Result<bool> {
        if name != acl::ACCESS && name != acl::DEFAULT {
            return Ok(true);
        }
        let list = Acl::decode(value)?;
        let inode = op.read_inode(ino)?;
        if name == acl::DEFAULT {
            return if inode.is_dir() {
                Ok(true)
            } else {
                Err(Error::new(
                    Kind::NotPermitted,
                    "only a directory can have a default access control list",
                ))
            };
        }
        if inode.kind == FileType::Symlink {
            return Err(Kind::Unsupported.into());
        }
        op.change(ino, |inode| {
            inode.permissions = inode.permissions & !0o777 | list.mode();
        })?;
        Ok(!list.is_minimal())
    }

    pub(crate) fn check_list(&self, op: &Op, ino: Ino, name: &[u8]) -> Result<()> {
        let mut bytes = name.len() + 1;
        op.scan(self.id, ino, (Item::Xattr, 0, PLACE_MAX), |_, xattr| {
            bytes += Xattr::decode(xattr)?.name.len() + 1;
            Ok(true)
        })?;
        if bytes <= XATTR_LIST_MAX {
            Ok(())
        } else {
            Err(Error::new(Kind::NoSpace, "too many attributes"))
        }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Kind::NoAttribute`]; [`Kind::NotPermitted`]: the flags of the inode.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let mut op = Op::begin(&self.fs, self.id)?;
        op.read_inode(ino)?.flags.check_unlocked()?;
        let found = op.xattr(&self.fs.hasher, self.id, ino, name)?;
        let Slot::Taken(place, _) = found else {
            return Err(Kind::NoAttribute.into());
        };
        op.delete(self.id, ino, (Item::Xattr, place))?;
        let now = op.now;
        op.change(ino, |inode| inode.changed = now)?;
        op.finish();
        Ok(())
    }
}
