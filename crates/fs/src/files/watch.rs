//! Who keeps copies of what files hold, and is told when another client changes it.
//!
//! **Invariant:** a change is told after everybody can see it, by the thread that made it, which holds
//! no lock of the files; so whoever forgets its copy then, and asks again, gets what is new. A client is
//! not told of its own changes.
//!
//! Not told: the times of last reading, and what an fsck or a restored snapshot does below.

use super::{Atime, Files};
use crate::key::Ino;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

/// What another client has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<'a> {
    /// These bytes of a file read differently, and its attributes have changed; a range that ends at
    /// `u64::MAX` goes to the end of the file, wherever that was or is.
    Content(Ino, Range<u64>),
    /// Attributes of an inode: size, times, mode, owner, links, extended attributes.
    Attributes(Ino),
    /// A name in a directory stands for something else, or for nothing, and so the directory's
    /// attributes have changed.
    Entry(Ino, &'a [u8]),
}

/// See the module.
pub trait Watcher: Send + Sync {
    /// Takes note. The caller is in the middle of another client's request: this neither waits for a
    /// client nor calls back into the files.
    fn changed(&self, change: &Change<'_>);
}

/// Those who are told of changes.
#[derive(Default)]
pub(super) struct Watchers {
    clients: AtomicU64,
    count: AtomicUsize,
    list: RwLock<Vec<(u64, Arc<dyn Watcher>)>>,
}

/// A watcher that is told of changes, until this is dropped.
pub struct Watch {
    files: Arc<Files>,
    watcher: Arc<dyn Watcher>,
}

impl Watchers {
    /// A number for a new client.
    pub fn client(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn edit(&self, edit: impl FnOnce(&mut Vec<(u64, Arc<dyn Watcher>)>)) {
        let mut list = self.list.write().expect("no panic under this lock");
        edit(&mut list);
        self.count.store(list.len(), Ordering::SeqCst);
    }

    fn tell(&self, client: u64, changes: &[Change<'_>]) {
        let list = self.list.read().expect("a watcher does not panic");
        for (_, watcher) in list.iter().filter(|(of, _)| *of != client) {
            changes.iter().for_each(|change| watcher.changed(change));
        }
    }
}

impl Files {
    /// Another client of the same files and pages. What it changes is told to the watchers of all
    /// others, and what they change to its own.
    pub fn client(self: &Arc<Files>) -> Arc<Files> {
        self.client_with(self.atime)
    }

    /// The same, whose reading changes times in a way of its own.
    pub fn client_with(self: &Arc<Files>, atime: Atime) -> Arc<Files> {
        Arc::new(Files {
            shared: Arc::clone(&self.shared),
            atime,
            client: self.shared.watchers.client(),
        })
    }

    /// Has `watcher` told of what other clients change, from now on and for as long as the result lives.
    pub fn watch(self: &Arc<Files>, watcher: Arc<dyn Watcher>) -> Watch {
        let entry = (self.client, Arc::clone(&watcher));
        self.shared.watchers.edit(|list| list.push(entry));
        Watch {
            files: Arc::clone(self),
            watcher,
        }
    }

    /// Whether there is anybody to tell.
    pub(super) fn is_watched(&self) -> bool {
        self.shared.watchers.count.load(Ordering::SeqCst) > 0
    }

    /// Tells the watchers of other clients. By a caller without a lock.
    pub(super) fn tell(&self, changes: &[Change<'_>]) {
        if self.is_watched() {
            self.shared.watchers.tell(self.client, changes);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mine = |(_, other): &(u64, Arc<dyn Watcher>)| Arc::ptr_eq(other, &self.watcher);
        let watchers = &self.files.shared.watchers;
        watchers.edit(|list| list.retain(|entry| !mine(entry)));
    }
}
