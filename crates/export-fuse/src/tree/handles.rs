//! Files that the kernel has open, by file handle number.

use fs::{Handle, Ino};
use fuser::FileHandle;
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
pub(super) struct Handles(RwLock<Slots>);

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Arc<Open>>>,
    free: Vec<usize>,
    paged: HashMap<Ino, Weak<AtomicBool>>,
}

impl Handles {
    /// Adds an open file; returns its number.
    pub fn insert(&self, handle: Handle, had_capabilities: bool) -> FileHandle {
        let mut inner = self.0.write().expect("no panic under this lock");
        let known = inner.paged.get(&handle.ino()).and_then(Weak::upgrade);
        let paged = known.unwrap_or_default();
        inner.paged.insert(handle.ino(), Arc::downgrade(&paged));
        let open = Some(Arc::new(Open {
            handle,
            had_capabilities,
            paged,
        }));
        match inner.free.pop() {
            Some(at) => {
                inner.slots[at] = open;
                FileHandle(at as u64)
            }
            None => {
                inner.slots.push(open);
                FileHandle(inner.slots.len() as u64 - 1)
            }
        }
    }

    /// Looks up the open file with this number.
    pub fn get(&self, number: FileHandle) -> Option<Arc<Open>> {
        let inner = self.0.read().expect("no panic under this lock");
        inner.slots.get(number.0 as usize).cloned().flatten()
    }

    /// Closes the file with this number.
    pub fn remove(&self, number: FileHandle) {
        let mut inner = self.0.write().expect("no panic under this lock");
        let slot = inner.slots.get_mut(number.0 as usize);
        let open = slot.and_then(Option::take);
        if let Some(open) = &open {
            inner.free.push(number.0 as usize);
            if Arc::strong_count(&open.paged) == 1 {
                inner.paged.remove(&open.handle.ino());
            }
        }
        drop(inner);
        // May delete the file, which takes a while; the lock is already released.
        drop(open);
    }
}
