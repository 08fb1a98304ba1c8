//! A fileset or a snapshot, and the attributes of its inodes.
//!
//! All operations on files are methods of [`Fileset`], spread over several modules: names in
//! `namespace`, attributes here, content in `file`.

use crate::error::{Error, Kind, Result};
use crate::format::key::{Ino, Item, PLACE_MAX, TreeId};
use crate::format::record::{
    BLOCK_BYTES, FileType, Inode, NAME_MAX, Time, TreeRecord, XATTR_VALUE_MAX, Xattr,
};
use crate::fs::FsShared;
use crate::metadata::op::Op;
use crate::names::acl::{self, Acl};
use crate::names::slots::Slot;
use std::sync::Arc;

/// Limit for all attribute names of an inode in bytes, as the kernel's XATTR_LIST_MAX.
const XATTR_LIST_MAX: usize = 65_536;

/// Handle to a fileset, or to a snapshot of one. Cheap to clone; may be used by any thread.
#[derive(Clone)]
pub struct Fileset {
    pub(crate) fs: Arc<FsShared>,
    pub(crate) id: TreeId,
}

/// Inode and its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Attributes. The block count includes blocks promised to dirty pages.
    pub inode: Inode,
}

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

/// Space usage of a fileset for statfs(2), in blocks of 4096 bytes. A quota counts as the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Total number of blocks.
    pub blocks: u64,
    /// Blocks not in use.
    pub free: u64,
    /// Blocks that a file could still allocate.
    pub available: u64,
    /// Total number of inodes possible.
    pub inodes: u64,
    /// Number of further inodes possible.
    pub free_inodes: u64,
}

/// Age in seconds at which a read updates the access time even without a change.
const ACCESS_SECONDS: i64 = 24 * 3600;

/// Estimate of how many new inodes fit into a block: a record, an entry and an extent take about a
/// tenth of a block, and a file with content takes one more.
const INODES_PER_BLOCK: u64 = 4;

impl Fileset {
    /// Returns the id of the fileset or snapshot.
    pub fn id(&self) -> TreeId {
        self.id
    }

    /// Checks whether this is a snapshot, which never changes.
    pub fn is_snapshot(&self) -> Result<bool> {
        Ok(self.fs.read().tree(self.id)?.record.origin != 0)
    }

    /// Returns a copy of the record.
    pub fn record(&self) -> Result<TreeRecord> {
        Ok(self.fs.read().tree(self.id)?.record.clone())
    }

    /// Reads the attributes of an inode.
    ///
    /// # Errors
    /// [`Kind::Stale`]: there is no inode with this number.
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.fs.read().inode_shown(self.id, ino)?;
        Ok(Attr { ino, inode })
    }

    /// Updates the access time after a file was read or a directory listed, if it is out of date:
    /// once after each change, and once a day (the `relatime` of mount(8)).
    ///
    /// # Errors
    /// [`Kind::Stale`].
    pub fn note_read(&self, ino: Ino) -> Result<()> {
        let now = (self.fs.options.clock)();
        let is_old = |inode: &Inode| {
            inode.accessed <= inode.modified.max(inode.changed)
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
    /// Those of [`Fileset::truncate`]; [`Kind::Invalid`]: an invalid time.
    pub fn set_attr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut op = Op::begin(&self.fs, self.id)?;
        let now = op.now;
        let time = |set: Option<SetTime>, old: Time| match set {
            None => Ok(old),
            Some(SetTime::Now) => Ok(now),
            Some(SetTime::To(time)) if time.nanos < 1_000_000_000 => Ok(time),
            Some(_) => Err(Error::from(Kind::Invalid)),
        };
        let mut inode = op.read_inode(ino)?;
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
        op.set_inode(self.id, ino, inode)?;
        if set.permissions.is_some() {
            self.follow_mode(&mut op, ino, permissions)?;
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
        op.put(self.id, ino, (Item::Xattr, place), xattr.encode(), false)?;
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
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
            return Err(Kind::Range.into());
        }
        if value.len() > XATTR_VALUE_MAX {
            return Err(Kind::TooBig.into());
        }
        let mut op = Op::begin(&self.fs, self.id)?;
        op.read_inode(ino)?;
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
            Slot::Taken(place, _) => op.put(self.id, ino, (Item::Xattr, place), xattr, false)?,
            Slot::Free(place) => {
                self.check_list(&op, ino, name)?;
                op.put(self.id, ino, (Item::Xattr, place), xattr, true)?
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

    fn check_list(&self, op: &Op, ino: Ino, name: &[u8]) -> Result<()> {
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
    /// [`Kind::NoAttribute`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let mut op = Op::begin(&self.fs, self.id)?;
        op.read_inode(ino)?;
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

    /// Returns the space usage.
    pub fn statfs(&self) -> Result<StatFs> {
        let state = self.fs.read();
        let tree = state.tree(self.id)?;
        let record = &tree.record;
        let device = self.fs.space.usage();
        let device_blocks = self.fs.superblock.lock().device_blocks;
        let (mut blocks, mut free, mut available) = (device_blocks, device.free, device.available);
        if record.quota_blocks != 0 {
            let left = record.quota_blocks.saturating_sub(tree.charged_blocks());
            blocks = record.quota_blocks.min(device_blocks);
            (free, available) = (free.min(left), available.min(left));
        }
        let mut free_inodes = device.available * INODES_PER_BLOCK;
        if record.quota_inodes != 0 {
            let left = record.quota_inodes.saturating_sub(tree.charged_inodes());
            free_inodes = free_inodes.min(left);
        }
        Ok(StatFs {
            blocks,
            free,
            available,
            inodes: record.used_inodes + free_inodes,
            free_inodes,
        })
    }

    /// Makes all changes to the metadata so far durable. The caller has already had the cache write
    /// back the pages of the file.
    pub fn sync(&self) -> Result<()> {
        self.fs.sync()
    }
}

/// Computes the number of blocks that hold `bytes` bytes.
pub(crate) fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}
