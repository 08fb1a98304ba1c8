//! Directories that were removed while the kernel still references them.
//!
//! A process may have one as its working directory, and list or stat it; that works until the last
//! such process leaves. **Invariant:** a directory that is removed through this mount is kept,
//! empty and without a name, until the kernel has forgotten it. Files need no such treatment: their
//! users have them open, and the times that the kernel sets without an open file are not needed.
use super::{Tree, errno};
use fs::{Attr, FileType, Ino};
use fuse_mount::Errno;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The removed directories that are kept.
#[derive(Default)]
pub(super) struct RemovedDirectories {
    any: AtomicBool,
    directories: Mutex<HashSet<Ino>>,
}

impl Tree {
    /// Runs `remove`, which may remove the directory at an entry, and keeps that directory.
    pub(super) fn removing<T>(
        &self,
        (parent, name): (Ino, &[u8]),
        remove: impl FnOnce() -> fs::Result<T>,
    ) -> Result<T, Errno> {
        let is_directory = |attr: &Attr| attr.inode.kind == FileType::Directory;
        let found = self.files.lookup(parent, name).ok().filter(is_directory);
        let pinned = found.and_then(|attr| self.files.pin(attr.ino).ok());
        let removed = remove();
        if let Some(Attr { ino, .. }) = pinned {
            let is_gone = self.files.attr(ino).is_ok_and(|attr| attr.inode.links == 0);
            if is_gone {
                let mut directories = self.removed.directories.lock();
                let directories = directories.as_mut().expect("no panic under this lock");
                directories.insert(ino);
                self.removed.any.store(true, Ordering::Release);
            } else {
                self.files.unpin(ino).map_err(errno)?;
            }
        }
        removed.map_err(errno)
    }

    /// Keeps the removed directories of a predecessor: the kernel may still use any of them.
    pub(super) fn keep_removed_directories(&self) -> fs::Result<()> {
        let fileset = self.files.fileset();
        for ino in fileset.orphans()? {
            if fileset.attr(ino)?.inode.kind == FileType::Directory {
                self.files.pin(ino)?;
                let mut directories = self.removed.directories.lock();
                let directories = directories.as_mut().expect("no panic under this lock");
                directories.insert(ino);
                self.removed.any.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Releases a removed directory that the kernel has forgotten.
    pub(super) fn release_forgotten(&self, ino: Ino) {
        if !self.removed.any.load(Ordering::Acquire) {
            return;
        }
        let mut directories = self.removed.directories.lock();
        let directories = directories.as_mut().expect("no panic under this lock");
        if directories.remove(&ino) {
            self.let_go(ino);
        }
    }

    /// Releases all removed directories, once the mount has ended.
    pub(super) fn all_forgotten(&self) {
        let mut directories = self.removed.directories.lock();
        let directories = directories.as_mut().expect("no panic under this lock");
        directories.drain().for_each(|ino| self.let_go(ino));
    }

    fn let_go(&self, ino: Ino) {
        if let Err(error) = self.files.unpin(ino) {
            // It remains on the orphan list, and is deleted when the file system is next opened.
            tracing::warn!(name: "EVFS-0206", "cannot remove inode {ino}: {error}");
        }
    }
}
