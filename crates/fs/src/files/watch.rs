//! Clients that cache the content of files, and their notification of changes by other clients.
//!
//! **Invariant:** a watcher is notified after the change is visible, by the thread that made it,
//! which holds no lock of the files; so a client that drops its copy then and reads again gets the
//! new state. A client is not notified of its own changes.
//!
//! Not notified: access times, and changes by an fsck or a restored snapshot.

use super::{Atime, Files};
use crate::format::key::Ino;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

/// Change made by another client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<'a> {
    /// The content of these bytes, and the attributes of the file. A range that ends at `u64::MAX`
    /// extends to the end of the file, old or new.
    Content(Ino, Range<u64>),
    /// Attributes of an inode: size, times, mode, owner, links, extended attributes.
    Attributes(Ino),
    /// The target of a name in a directory, which may also have been added or removed, and the
    /// directory's attributes.
    Entry(Ino, &'a [u8]),
}

/// Receiver of notifications. See the module.
pub trait Watcher: Send + Sync {
    /// Takes note of a change. Called in the middle of another client's request, so it must neither
    /// wait for a client nor call back into the files.
    fn changed(&self, change: &Change<'_>);
}

/// Registered watchers.
#[derive(Default)]
pub(super) struct Watchers {
    clients: AtomicU64,
    count: AtomicUsize,
    list: RwLock<Vec<Registered>>,
}

struct Registered {
    client: u64,
    watcher: Arc<dyn Watcher>,
    /// Identity of the registration: a watcher may be registered more than once.
    token: Arc<()>,
}

/// Registration of a watcher; dropping it ends the notifications.
pub struct Watch {
    files: Arc<Files>,
    token: Arc<()>,
}

impl Watchers {
    /// Allocates a number for a new client.
    pub fn client(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn edit(&self, edit: impl FnOnce(&mut Vec<Registered>)) {
        let mut list = self.list.write().expect("no panic under this lock");
        edit(&mut list);
        self.count.store(list.len(), Ordering::SeqCst);
    }

    fn notify(&self, client: u64, changes: &[Change<'_>]) {
        let list = self.list.read().expect("a watcher does not panic");
        for other in list.iter().filter(|other| other.client != client) {
            changes
                .iter()
                .for_each(|change| other.watcher.changed(change));
        }
    }
}

impl Files {
    /// Creates another client of the same files and pages. Its changes are reported to the watchers
    /// of all others, and theirs to its own.
    pub fn client(self: &Arc<Files>) -> Arc<Files> {
        self.client_with(self.atime)
    }

    /// Creates another client with its own policy for access times.
    pub fn client_with(self: &Arc<Files>, atime: Atime) -> Arc<Files> {
        Arc::new(Files {
            shared: Arc::clone(&self.shared),
            atime,
            client: self.shared.watchers.client(),
        })
    }

    /// Registers `watcher` for changes by other clients for as long as the result lives.
    pub fn watch(self: &Arc<Files>, watcher: Arc<dyn Watcher>) -> Watch {
        let token = Arc::new(());
        let registered = Registered {
            client: self.client,
            watcher,
            token: Arc::clone(&token),
        };
        self.shared.watchers.edit(|list| list.push(registered));
        Watch {
            files: Arc::clone(self),
            token,
        }
    }

    /// Checks whether there is any watcher.
    pub(super) fn is_watched(&self) -> bool {
        self.shared.watchers.count.load(Ordering::SeqCst) > 0
    }

    /// Notifies the watchers of other clients. The caller must not hold a lock.
    pub(super) fn notify_others(&self, changes: &[Change<'_>]) {
        if self.is_watched() {
            self.shared.watchers.notify(self.client, changes);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let is_other = |other: &Registered| !Arc::ptr_eq(&other.token, &self.token);
        self.files
            .shared
            .watchers
            .edit(|list| list.retain(is_other));
    }
}
