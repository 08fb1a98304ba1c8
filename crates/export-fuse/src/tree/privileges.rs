//! Set-user-ID, set-group-ID and capabilities, which a change of content or owner removes.
//!
//! The kernel leaves this to the server (FUSE_HANDLE_KILLPRIV_V2), because otherwise it would have
//! to fetch the capabilities before every write. If it knows of such bits and a caller without
//! CAP_FSETID is about to change the content, it sends a SETATTR that sets nothing, and takes the
//! mode from the reply before it continues (`fuse_setattr` of Linux). If it does not know of them,
//! the write request itself carries a flag.
//!
//! **Invariant:** a file whose content was changed by a caller without the right to set privileges
//! has none, and the kernel knows that when the change returns: execve(2) uses the kernel's cached
//! mode without asking the server.

use super::{Tree, errno};
use fs::{Attr, FileType, Ino, Kind, SetAttr};
use fuse_mount::Errno;
use std::collections::HashSet;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The attribute with a file's capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Files whose capabilities were set through this mount.
#[derive(Default)]
pub(super) struct Capabilities {
    any: AtomicBool,
    files: RwLock<HashSet<Ino>>,
}

impl Capabilities {
    /// Records that capabilities of a file were set.
    pub fn given(&self, ino: Ino) {
        self.files
            .write()
            .expect("no panic under this lock")
            .insert(ino);
        self.any.store(true, Ordering::Release);
    }

    /// Reports whether capabilities of a file were set since the mount.
    pub fn were_given(&self, ino: Ino) -> bool {
        let files = || self.files.read().expect("no panic under this lock");
        self.any.load(Ordering::Acquire) && files().contains(&ino)
    }
}

impl Tree {
    /// Checks whether a file has capabilities.
    pub(super) fn has_capabilities(&self, ino: Ino) -> bool {
        self.files.xattr(ino, CAPABILITY).is_ok()
    }

    /// Removes the capabilities of a file.
    pub(super) fn drop_capabilities(&self, ino: Ino) -> Result<(), Errno> {
        match self.files.remove_xattr(ino, CAPABILITY) {
            Err(error) if error.kind() != Kind::NoAttribute => Err(errno(error)),
            _ => Ok(()),
        }
    }

    /// Clears set-user-ID and set-group-ID, and invalidates the kernel's cached mode.
    pub(super) fn drop_set_ids(&self, ino: Ino) -> Result<(), Errno> {
        let attr = self.files.attr(ino).map_err(errno)?;
        let permissions = without_set_ids(&attr);
        if permissions != attr.inode.permissions {
            self.set_permissions(ino, permissions)?;
            self.recall.forget_attributes(ino);
        }
        Ok(())
    }

    /// Sets the permissions of a file and notifies other clients.
    pub(super) fn set_permissions(&self, ino: Ino, permissions: u32) -> Result<Attr, Errno> {
        let set = SetAttr {
            permissions: Some(permissions),
            ..SetAttr::default()
        };
        self.with_lane(|lane, _| lane.set_attr(ino, &set).map_err(errno))
    }
}

/// Checks whether a SETATTR sets nothing, which requests the loss of privileges; see the module.
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

/// Computes the permissions of a file after its content or owner was changed. Set-group-ID without
/// group execute permission means mandatory locking, and is kept.
pub(super) fn without_set_ids(attr: &Attr) -> u32 {
    let permissions = attr.inode.permissions;
    match (attr.inode.kind, permissions & libc::S_IXGRP != 0) {
        (FileType::Directory, _) => permissions,
        (_, true) => permissions & !(libc::S_ISUID | libc::S_ISGID),
        (_, false) => permissions & !libc::S_ISUID,
    }
}
