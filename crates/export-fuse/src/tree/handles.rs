//! Files that the kernel has open, by file handle number.

use fs::{Handle, Ino};
use slab::Slab;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, Weak};

/// An open file of the kernel.
pub(super) struct Open {
    pub handle: Handle,
    /// Whether the file had capabilities when it was opened.
    pub had_capabilities: bool,
    /// See [`Open::note_pages`]; shared by all open handles of the file.
    paged: Arc<AtomicBool>,
}

impl Open {
    /// Records that the kernel may have cached pages of the file.
    pub fn note_pages(&self) {
        if !self.paged.load(Ordering::SeqCst) {
            self.paged.store(true, Ordering::SeqCst);
        }
    }

    /// Reports whether the kernel may have cached pages of the file since it was first opened.
    pub fn has_pages(&self) -> bool {
        self.paged.load(Ordering::SeqCst)
    }
}

/// Table of open files.
#[derive(Default)]
pub(super) struct Handles(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    open: Slab<Arc<Open>>,
    paged: HashMap<Ino, Weak<AtomicBool>>,
}

impl Handles {
    /// Adds an open file; returns its number.
    pub fn insert(&self, handle: Handle, had_capabilities: bool) -> u64 {
        let mut inner = self.0.write().expect("no panic under this lock");
        let known = inner.paged.get(&handle.ino()).and_then(Weak::upgrade);
        let paged = known.unwrap_or_default();
        inner.paged.insert(handle.ino(), Arc::downgrade(&paged));
        let number = inner.open.insert(Arc::new(Open {
            handle,
            had_capabilities,
            paged,
        }));
        number as u64
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
            && Arc::strong_count(&open.paged) == 1
        {
            inner.paged.remove(&open.handle.ino());
        }
        drop(inner);
        // May delete the file, which takes a while; the lock is already released.
        drop(open);
    }
}
