//! Files that the kernel has open, by the number that it was given.

use fs::Handle;
use fuser::FileHandle;
use std::sync::{Arc, RwLock};

/// An open file of the kernel.
pub(super) struct Open {
    pub handle: Handle,
    /// The file had capabilities when it was opened.
    pub had_capabilities: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Handles(RwLock<Slots>);

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Arc<Open>>>,
    free: Vec<usize>,
}

impl Handles {
    /// Takes a file in.
    pub fn insert(&self, open: Open) -> FileHandle {
        let mut inner = self.0.write().expect("no panic under this lock");
        let open = Some(Arc::new(open));
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

    /// The file of a number.
    pub fn get(&self, number: FileHandle) -> Option<Arc<Open>> {
        let inner = self.0.read().expect("no panic under this lock");
        inner.slots.get(number.0 as usize).cloned().flatten()
    }

    /// Closes it.
    pub fn remove(&self, number: FileHandle) {
        let mut inner = self.0.write().expect("no panic under this lock");
        let slot = inner.slots.get_mut(number.0 as usize);
        let open = slot.and_then(Option::take);
        if open.is_some() {
            inner.free.push(number.0 as usize);
        }
        drop(inner);
        // The file may go for good with it, which takes a while.
        drop(open);
    }
}
