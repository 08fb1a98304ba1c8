//! Applying records to a fileset that is receiving a snapshot.
//!
//! The records come from outside: each one is checked before it changes anything, and refers to
//! inodes by number, so it can reach nothing but its own fileset. A new inode has no name and is on
//! the list of orphans until it gets one; so the fileset can be checked at any time. Each record is
//! one operation, and applying it again has no effect, so that a part of a segment can be applied
//! before a crash.

use super::invalid;
use crate::data::content::Allocate;
use crate::error::{Kind, Result};
use crate::files::{Files, Handle, Lane};
use crate::fileset::Fileset;
use crate::format::flags::InodeFlags;
use crate::format::key::{Ino, Item, PLACE_MAX};
use crate::format::record::{
    BLOCK_BYTES, Entry, FILE_SIZE_MAX, FileType, Inode, LINKS_MAX, NAME_MAX, TARGET_MAX,
    XATTR_VALUE_MAX, Xattr, is_name,
};
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::names::acl::{self, Acl};
use crate::names::attributes::SetAttr;
use crate::names::directory::ROOT;
use crate::names::slots::Slot;
use send_proto::{Attributes, Record};
use std::ops::Range;
use std::sync::Arc;

/// Access to a fileset that is receiving.
pub(super) struct Stage {
    pub fileset: Fileset,
    pub files: Arc<Files>,
    lane: Lane,
    /// File whose content came last.
    open: Option<(Ino, Handle)>,
    /// Number of the next inode, halved, of the snapshot.
    next_ino: u64,
}

impl Stage {
    pub fn new(fileset: Fileset, files: Arc<Files>) -> Result<Stage> {
        let next_ino = fileset.record()?.next_ino;
        Ok(Stage {
            lane: files.lane()?,
            fileset,
            files,
            open: None,
            next_ino,
        })
    }

    /// Applies a record.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the record does not fit the fileset. [`Kind::NoSpace`], [`Kind::Quota`];
    /// errors of the device.
    pub fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        match *record {
            Record::Inode {
                ino,
                kind,
                rdev,
                size,
                target,
            } => self.inode(ino, kind, rdev, size, target),
            Record::Attributes { ino, set } => self.attributes(ino, &set),
            Record::ClearXattrs { ino } => self.clear_xattrs(ino),
            Record::Xattr { ino, name, value } => self.xattr(ino, name, value),
            Record::Data { ino, offset, bytes } => self.data(ino, offset, bytes),
            Record::Hole {
                ino,
                offset,
                length,
            } => self.allocate(ino, offset, length, Allocate::Punch),
            Record::Unwritten {
                ino,
                offset,
                length,
            } => self.allocate(ino, offset, length, Allocate::ZeroKeepSize),
            Record::Unlink { dir, name } => self.unlink(dir, name),
            Record::Link { dir, ino, name } => self.link(dir, ino, name),
            Record::Position(_) => Ok(()),
        }
    }

    /// Writes back the content that was applied.
    pub fn write_out(&mut self) -> Result<()> {
        self.open = None;
        Ok(self.files.volume().write_out()?)
    }

    fn check_ino(&self, ino: Ino) -> Result<()> {
        if (1..=PLACE_MAX).contains(&ino) && ino >> 1 < self.next_ino {
            Ok(())
        } else {
            Err(invalid(format!("inode {ino} is beyond the last one")))
        }
    }

    /// Begins an operation on an existing inode.
    fn begin(&self, ino: Ino) -> Result<(Op<'_>, Inode)> {
        self.check_ino(ino)?;
        let op = Op::begin(&self.fileset.fs, self.fileset.id)?;
        let inode = op.read_inode(ino).map_err(|error| match error.kind() {
            Kind::Stale => invalid(format!("inode {ino} does not exist")),
            _ => error,
        })?;
        Ok((op, inode))
    }

    fn inode(&mut self, ino: Ino, kind: u32, rdev: u32, size: u64, target: &[u8]) -> Result<()> {
        self.check_ino(ino)?;
        let found = FileType::of_mode(kind).filter(|found| found.mode_bits() == kind);
        let kind = found.ok_or_else(|| invalid(format!("inode {ino} has an unknown type")))?;
        let is_link = kind == FileType::Symlink;
        let sound = (ino & 1 == 1) == (kind == FileType::Directory)
            && (size == 0 || kind == FileType::File)
            && size <= FILE_SIZE_MAX
            && (rdev == 0 || !kind.has_flags())
            && target.is_empty() != is_link
            && target.len() <= TARGET_MAX
            && !target.contains(&0);
        if !sound {
            return Err(invalid(format!("inode {ino} does not fit its type")));
        }
        let made = self.fileset.fs.with_room(|| {
            let mut op = Op::begin(&self.fileset.fs, self.fileset.id)?;
            let tree = op.tree;
            let made = match op.read_inode(ino) {
                Ok(inode) if inode.kind != kind => {
                    return Err(invalid(format!("inode {ino} has another type already")));
                }
                Ok(inode) => {
                    op.check_kept_room()?;
                    let flags = InodeFlags::default();
                    op.set_inode(
                        tree,
                        ino,
                        Inode {
                            rdev,
                            flags,
                            ..inode
                        },
                    )?;
                    false
                }
                Err(error) if error.kind() == Kind::Stale => {
                    op.check_new_inode()?;
                    let inode = new_inode(&op, kind, rdev, size);
                    op.put(tree, ino, (Item::Inode, 0), inode.encode(), Prior::Absent)?;
                    op.put(tree, 0, (Item::Orphan, ino), Vec::new(), Prior::Absent)?;
                    op.use_inodes(1);
                    true
                }
                Err(error) => return Err(error),
            };
            if is_link {
                let target = target.to_vec();
                let len = target.len() as u64;
                op.put(tree, ino, (Item::Target, 0), target, Prior::Possible)?;
                op.change(ino, |inode| (inode.size, inode.disk_size) = (len, len))?;
            }
            op.check_held()?;
            op.finish();
            Ok(made)
        })?;
        if made || kind != FileType::File {
            return Ok(());
        }
        let before = self.files.attr(ino)?.inode.size;
        if size < before {
            self.open = None;
            self.lane.cut(ino, size)?;
        } else if size > before {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            self.lane.set_attr(ino, &set)?;
        }
        Ok(())
    }

    fn attributes(&mut self, ino: Ino, set: &Attributes) -> Result<()> {
        let known = InodeFlags::KNOWN.0;
        if set.flags & InodeFlags::COMPRESS.0 != 0 {
            self.fileset.fs.need_compression()?;
        }
        let (mut op, inode) = self.begin(ino)?;
        let flags_fit = set.flags == 0 || inode.kind.has_flags() && set.flags & !known == 0;
        if set.permissions & !0o7777 != 0 || !flags_fit {
            return Err(invalid(format!("inode {ino} has unknown attributes")));
        }
        op.check_kept_room()?;
        let tree = op.tree;
        let inode = Inode {
            permissions: set.permissions,
            uid: set.uid,
            gid: set.gid,
            flags: InodeFlags(set.flags),
            accessed: set.accessed.into(),
            modified: set.modified.into(),
            changed: set.changed.into(),
            created: set.created.into(),
            data_version: inode.data_version.wrapping_add(1),
            ..inode
        };
        op.set_inode(tree, ino, inode)?;
        op.move_owed(ino)?;
        op.finish();
        Ok(())
    }

    fn clear_xattrs(&mut self, ino: Ino) -> Result<()> {
        let (mut op, _) = self.begin(ino)?;
        op.check_kept_room()?;
        let tree = op.tree;
        let mut places = Vec::new();
        op.scan(tree, ino, (Item::Xattr, 0, PLACE_MAX), |place, _| {
            places.push(place);
            Ok(true)
        })?;
        for place in places {
            op.delete(tree, ino, (Item::Xattr, place))?;
        }
        op.finish();
        Ok(())
    }

    fn xattr(&mut self, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        let fits = (1..=NAME_MAX).contains(&name.len())
            && !name.contains(&0)
            && value.len() <= XATTR_VALUE_MAX;
        if !fits {
            return Err(invalid(format!("inode {ino} has an invalid attribute")));
        }
        self.fileset.fs.with_room(|| {
            let (mut op, inode) = self.begin(ino)?;
            let list = name == acl::ACCESS && inode.kind != FileType::Symlink
                || name == acl::DEFAULT && inode.is_dir();
            let is_list = [acl::ACCESS, acl::DEFAULT].contains(&name);
            if is_list && !(list && Acl::decode(value).is_ok()) {
                let text = format!("inode {ino} has an invalid access control list");
                return Err(invalid(text));
            }
            op.check_room()?;
            let (tree, xattr) = (op.tree, Xattr { name, value }.encode());
            match op.xattr(&self.fileset.fs.hasher, tree, ino, name)? {
                Slot::Taken(place, _) => {
                    op.put(tree, ino, (Item::Xattr, place), xattr, Prior::Possible)?
                }
                Slot::Free(place) => {
                    self.fileset.check_list(&op, ino, name)?;
                    op.put(tree, ino, (Item::Xattr, place), xattr, Prior::Absent)?
                }
            };
            op.check_held()?;
            op.finish();
            Ok(())
        })
    }

    /// Opens a file for a change of its content within a range.
    fn file(&mut self, ino: Ino, bytes: &Range<u64>) -> Result<()> {
        self.check_ino(ino)?;
        let inode = self.begin(ino)?.1;
        if inode.kind != FileType::File || bytes.end > FILE_SIZE_MAX || bytes.is_empty() {
            return Err(invalid(format!(
                "inode {ino} has content in an impossible place"
            )));
        }
        if self.open.as_ref().is_none_or(|(open, _)| *open != ino) {
            self.open = Some((ino, self.files.open(ino)?));
        }
        Ok(())
    }

    fn data(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        self.file(ino, &range)?;
        match &self.open {
            Some((_, file)) if range.end <= file.attr()?.inode.size => {
                self.lane.write_late(file, offset, bytes)
            }
            _ => Err(invalid(format!("inode {ino} has content beyond its end"))),
        }
    }

    fn allocate(&mut self, ino: Ino, offset: u64, length: u64, how: Allocate) -> Result<()> {
        let range = offset..offset.saturating_add(length);
        self.file(ino, &range)?;
        if !(offset.is_multiple_of(BLOCK_BYTES) && length.is_multiple_of(BLOCK_BYTES)) {
            return Err(invalid(format!(
                "inode {ino} has a hole of a part of a block"
            )));
        }
        match &self.open {
            Some((_, file)) => self.lane.allocate_blocks(file, range, how),
            None => Ok(()),
        }
    }

    /// Removes a name, if it exists.
    fn unlink(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_ino(dir)?;
        if !is_name(name) {
            return Err(invalid(format!("directory {dir} has an invalid name")));
        }
        let mut op = Op::begin(&self.fileset.fs, self.fileset.id)?;
        let (tree, hasher) = (op.tree, &self.fileset.fs.hasher);
        let Slot::Taken(place, (ino, _)) = op.entry(hasher, tree, dir, name)? else {
            return Ok(());
        };
        op.check_kept_room()?;
        let mut inode = op.read_inode(ino)?;
        let is_dir = inode.is_dir();
        op.delete(tree, dir, (Item::Entry, place))?;
        op.change(dir, |parent| {
            parent.entries = parent.entries.saturating_sub(1);
            // A directory without a name has no links at all.
            parent.links = parent.links.saturating_sub(is_dir.into());
            parent.data_version = parent.data_version.wrapping_add(1);
        })?;
        inode.links = if is_dir {
            0
        } else {
            inode.links.saturating_sub(1)
        };
        if inode.links == 0 {
            op.put(tree, 0, (Item::Orphan, ino), Vec::new(), Prior::Possible)?;
        }
        op.set_inode(tree, ino, inode)?;
        op.finish();
        Ok(())
    }

    /// Adds a name.
    fn link(&mut self, dir: Ino, ino: Ino, name: &[u8]) -> Result<()> {
        if !is_name(name) || ino == ROOT || ino == dir {
            return Err(invalid(format!("directory {dir} has an invalid name")));
        }
        self.check_ino(ino)?;
        self.fileset.fs.with_room(|| {
            let (mut op, parent) = self.begin(dir)?;
            let (tree, hasher) = (op.tree, &self.fileset.fs.hasher);
            let inode = op.read_inode(ino).map_err(|error| match error.kind() {
                Kind::Stale => invalid(format!("inode {ino} has a name, but does not exist")),
                _ => error,
            })?;
            if !parent.is_dir() {
                return Err(invalid(format!("inode {dir} is not a directory")));
            }
            let place = match op.entry(hasher, tree, dir, name)? {
                Slot::Taken(_, (other, _)) if other == ino => return Ok(()),
                Slot::Taken(..) => {
                    return Err(invalid(format!("directory {dir} has a name twice")));
                }
                Slot::Free(place) => place,
            };
            let is_dir = inode.is_dir();
            if is_dir && inode.links > 0 {
                return Err(invalid(format!("directory {ino} has two names")));
            }
            if inode.links >= LINKS_MAX || is_dir && parent.links >= LINKS_MAX {
                return Err(invalid(format!("inode {ino} has too many links")));
            }
            op.check_room()?;
            let (kind, was_unnamed) = (inode.kind, inode.links == 0);
            let entry = Entry { ino, kind, name }.encode();
            op.put(tree, dir, (Item::Entry, place), entry, Prior::Absent)?;
            op.change(dir, |parent| {
                parent.entries += 1;
                parent.links += u32::from(is_dir && (parent.links > 0 || dir == ROOT));
                parent.data_version = parent.data_version.wrapping_add(1);
            })?;
            let links = if is_dir {
                2 + directories_in(&op, ino, &inode)?
            } else {
                inode.links + 1
            };
            op.change(ino, |inode| (inode.links, inode.parent) = (links, dir))?;
            if was_unnamed {
                op.delete(tree, 0, (Item::Orphan, ino))?;
            }
            op.check_held()?;
            op.finish();
            Ok(())
        })
    }
}

/// Counts the subdirectories of a directory.
fn directories_in(op: &Op<'_>, dir: Ino, inode: &Inode) -> Result<u32> {
    let mut count = 0;
    if inode.entries > 0 {
        op.scan(op.tree, dir, (Item::Entry, 0, PLACE_MAX), |_, bytes| {
            count += u32::from(Entry::decode(bytes)?.kind == FileType::Directory);
            Ok(true)
        })?;
    }
    Ok(count)
}

/// Creates an inode without a name.
fn new_inode(op: &Op<'_>, kind: FileType, rdev: u32, size: u64) -> Inode {
    Inode {
        kind,
        permissions: 0,
        links: 0,
        uid: 0,
        gid: 0,
        rdev,
        flags: InodeFlags::default(),
        generation: op.generation(),
        size,
        disk_size: size,
        blocks: 0,
        data_version: 1,
        parent: ROOT,
        entries: 0,
        accessed: op.now,
        modified: op.now,
        changed: op.now,
        created: op.now,
    }
}
