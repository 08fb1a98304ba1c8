//! Set-user-id, set-group-id and capabilities, which a change of content or owner takes away.
//!
//! The kernel leaves this to us (FUSE_HANDLE_KILLPRIV_V2), because it would have to ask for the
//! capabilities before every write otherwise. Where it knows of such bits and somebody without CAP_FSETID is
//! about to change the content, it sends a SETATTR that sets nothing, and takes the mode from the answer before it
//! goes on (`fuse_setattr` of Linux). Where it does not know of them, the write itself says it.
//!
//! **Invariant:** a file whose content was changed by somebody who may not give privileges has none, and the kernel
//! knows that when the change returns: execve(2) looks at the mode that the kernel has, and asks nobody.

use super::{Tree, errno};
use fs::{Attr, FileType, Ino, Kind, SetAttr};
use fuser::Errno;
use std::collections::HashSet;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The attribute with a file's capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Files that were given capabilities through this mount.
#[derive(Default)]
pub(super) struct Capabilities {
    any: AtomicBool,
    files: RwLock<HashSet<Ino>>,
}

impl Capabilities {
    /// A file was given some.
    pub fn given(&self, ino: Ino) {
        self.files
            .write()
            .expect("no panic under this lock")
            .insert(ino);
        self.any.store(true, Ordering::Release);
    }

    /// Whether a file was given some since the mount.
    pub fn were_given(&self, ino: Ino) -> bool {
        let files = || self.files.read().expect("no panic under this lock");
        self.any.load(Ordering::Acquire) && files().contains(&ino)
    }
}

impl Tree {
    /// Whether a file has capabilities.
    pub(super) fn has_capabilities(&self, ino: Ino) -> bool {
        self.files.xattr(ino, CAPABILITY).is_ok()
    }

    /// Takes the capabilities of a file away.
    pub(super) fn drop_capabilities(&self, ino: Ino) -> Result<(), Errno> {
        match self.files.remove_xattr(ino, CAPABILITY) {
            Err(error) if error.kind() != Kind::NoAttribute => Err(errno(error)),
            _ => Ok(()),
        }
    }

    /// Takes set-user-id and set-group-id away, and has the kernel forget them.
    pub(super) fn drop_set_ids(&self, ino: Ino) -> Result<(), Errno> {
        let attr = self.files.attr(ino).map_err(errno)?;
        let permissions = without_set_ids(&attr);
        if permissions != attr.inode.permissions {
            self.set_permissions(ino, permissions)?;
            self.recall.forget_attributes(ino);
        }
        Ok(())
    }

    /// Gives a file other permissions, which other clients hear of.
    pub(super) fn set_permissions(&self, ino: Ino, permissions: u32) -> Result<Attr, Errno> {
        let set = SetAttr {
            permissions: Some(permissions),
            ..SetAttr::default()
        };
        self.with_lane(|lane, _| lane.set_attr(ino, &set).map_err(errno))
    }
}

/// Whether a SETATTR sets nothing, which stands for the loss of privileges; see the module.
pub(super) fn is_loss(set: &SetAttr) -> bool {
    let SetAttr {
        permissions: None,
        uid: None,
        gid: None,
        size: None,
        accessed: None,
        modified: None,
        ..
    } = set
    else {
        return false;
    };
    true
}

/// The permissions of a file after its content or owner was changed. Set-group-id without execution by
/// the group means mandatory locks, and stays.
pub(super) fn without_set_ids(attr: &Attr) -> u32 {
    let permissions = attr.inode.permissions;
    match (attr.inode.kind, permissions & libc::S_IXGRP != 0) {
        (FileType::Directory, _) => permissions,
        (_, true) => permissions & !(libc::S_ISUID | libc::S_ISGID),
        (_, false) => permissions & !libc::S_ISUID,
    }
}
