//! Notification of threads that show the list of filesets and snapshots.

use std::sync::{Mutex, PoisonError, Weak};

/// Receiver of notifications. Called without a lock of the file system.
pub(crate) trait TreeWatcher: Send + Sync {
    /// Takes note that a fileset or a snapshot was created, renamed or removed.
    fn trees_changed(&self);
}

/// Registered watchers.
#[derive(Default)]
pub(crate) struct TreeSignal(Mutex<Vec<Weak<dyn TreeWatcher>>>);

impl TreeSignal {
    /// Registers a watcher for as long as it lives.
    pub fn watch(&self, watcher: Weak<dyn TreeWatcher>) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|other| other.strong_count() > 0);
        list.push(watcher);
    }

    /// Notifies all watchers. The caller holds no lock.
    pub fn notify(&self) {
        let list: Vec<_> = {
            let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            list.iter().filter_map(Weak::upgrade).collect()
        };
        list.iter().for_each(|watcher| watcher.trees_changed());
    }
}
