//! Files that the kernel has open, by file handle number.

use foldhash::HashMap;
use fs::{Handle, Ino};
use slab::Slab;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, Weak};

/// An open file of the kernel.
pub(super) struct Open {
    pub handle: Handle,
    /// Properties at the time of the opening.
    pub how: How,
    /// Shared by all open handles of the file.
    file: Arc<OpenFile>,
}

/// Properties of an open file from its opening.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct How {
    /// Whether it can write.
    pub writes: bool,
    /// Whether each change is made durable (`O_SYNC`, `O_DSYNC`).
    pub syncs: bool,
    /// Whether the file had capabilities.
    pub had_capabilities: bool,
    /// Whether the kernel reads and writes past its page cache.
    pub uncached: bool,
}

/// State of a file with open handles.
#[derive(Default)]
struct OpenFile {
    /// See [`Open::note_pages`].
    paged: AtomicBool,
    /// Number of handles that can write.
    writers: AtomicUsize,
}

impl Open {
    /// Records that the kernel may have cached pages of the file.
    pub fn note_pages(&self) {
        if !self.file.paged.load(Ordering::SeqCst) {
            self.file.paged.store(true, Ordering::SeqCst);
        }
    }

    /// Reports whether the kernel may have cached pages of the file since it was first opened.
    pub fn has_pages(&self) -> bool {
        self.file.paged.load(Ordering::SeqCst)
    }
}

/// Reports whether a file is opened so that each change is made durable.
pub(super) fn syncs(flags: u32) -> bool {
    flags as i32 & (libc::O_SYNC | libc::O_DSYNC) != 0
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.how.writes {
            self.file.writers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Table of open files.
#[derive(Default)]
pub(super) struct Handles(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    open: Slab<Arc<Open>>,
    files: HashMap<Ino, Weak<OpenFile>>,
}

impl Handles {
    /// Adds an open file; returns its number.
    pub fn insert(&self, handle: Handle, how: How) -> u64 {
        let mut inner = self.0.write().expect("no panic under this lock");
        let known = inner.files.get(&handle.ino()).and_then(Weak::upgrade);
        let file = known.unwrap_or_default();
        inner.files.insert(handle.ino(), Arc::downgrade(&file));
        if how.writes {
            file.writers.fetch_add(1, Ordering::SeqCst);
        }
        let number = inner.open.insert(Arc::new(Open { handle, how, file }));
        number as u64
    }

    /// Reports whether the kernel may hold back changes of a file: only while it is open for writing,
    /// or mapped by a process that had it open for writing.
    pub fn has_writers(&self, ino: Ino) -> bool {
        let inner = self.0.read().expect("no panic under this lock");
        let file = inner.files.get(&ino).and_then(Weak::upgrade);
        file.is_some_and(|file| file.writers.load(Ordering::SeqCst) > 0)
    }

    /// Looks up the open file with this number.
    pub fn get(&self, number: u64) -> Option<Arc<Open>> {
        let inner = self.0.read().expect("no panic under this lock");
        inner.open.get(number as usize).cloned()
    }

    /// Closes the file with this number.
    pub fn remove(&self, number: u64) {
        let mut inner = self.0.write().expect("no panic under this lock");
        let open = inner.open.try_remove(number as usize);
        if let Some(open) = &open
            && Arc::strong_count(&open.file) == 1
        {
            inner.files.remove(&open.handle.ino());
        }
        drop(inner);
        // May delete the file, which takes a while; the lock is already released.
        drop(open);
    }
}
