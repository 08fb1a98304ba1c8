//! Multi-part stores that clients observe as a single change.
//!
//! The file system raises a file's version with the first bytes, so that a crash in the middle
//! leaves another version than before. Until the last bytes are written, clients are shown the old
//! version: they fetch the current content, are notified when the change ends, and find a new
//! version.
//!
//! Content shown with the old version may then differ from the original content of that version.
//! Before it leaves the server, the raised version is therefore made durable
//! ([`Stores::make_durable`]): after a crash clients find a different version.
//!
//! **Invariant:** a version that was shown with the first bytes of a change is not shown with the
//! last, nor, after a crash, without them.

use fs::{Attr, Files, Ino};
use std::collections::HashMap;
use std::sync::Mutex;

const SHARDS: usize = 64;

/// Stores in progress in a volume.
pub(crate) struct Stores {
    shards: Vec<Mutex<Shard>>,
}

#[derive(Default)]
struct Shard {
    /// Number of stores begun plus stores ended.
    turns: u64,
    running: HashMap<Ino, Running>,
}

struct Running {
    stores: u32,
    /// Version to report to clients.
    shown: u64,
    /// A store that has ended may not be durable.
    unsynced: bool,
}

impl Stores {
    pub(crate) fn new() -> Stores {
        Stores {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> std::sync::MutexGuard<'_, Shard> {
        let at = (ino / 2) as usize % SHARDS;
        self.shards[at].lock().expect("no panic under this lock")
    }

    /// Begins a store, which must not have raised the file's version yet.
    pub(crate) fn begin<'s>(&'s self, files: &Files, ino: Ino) -> fs::Result<Store<'s>> {
        let mut shard = self.shard(ino);
        let shown = files.attr(ino)?.inode.data_version;
        shard.turns += 1;
        let running = shard.running.entry(ino);
        let none = Running {
            stores: 0,
            shown,
            unsynced: false,
        };
        let running = running.or_insert(none);
        if running.stores == 0 {
            running.shown = shown;
        }
        running.stores += 1;
        drop(shard);
        Ok(Store {
            stores: self,
            ino,
            raised: false,
            durable: false,
        })
    }

    /// Makes the raised version of a file with stores in progress durable. Must be called after the
    /// file was read and before the result leaves the server.
    pub(crate) fn make_durable(&self, files: &Files, ino: Ino) -> fs::Result<()> {
        if !self.shard(ino).running.contains_key(&ino) {
            return Ok(());
        }
        files.sync_names()?;
        let mut shard = self.shard(ino);
        if let Some(running) = shard.running.get(&ino)
            && running.stores == 0
        {
            shard.turns += 1;
            shard.running.remove(&ino);
        }
        Ok(())
    }

    /// Reads an inode with the version to report to clients.
    pub(crate) fn attr(&self, files: &Files, ino: Ino) -> fs::Result<Attr> {
        loop {
            let before = self.shard(ino).turns;
            let mut attr = files.attr(ino)?;
            let shard = self.shard(ino);
            if shard.turns != before {
                continue;
            }
            if let Some(running) = shard.running.get(&ino).filter(|r| r.stores > 0) {
                attr.inode.data_version = running.shown;
            }
            return Ok(attr);
        }
    }
}

/// Store in progress; ends on drop.
pub(crate) struct Store<'s> {
    stores: &'s Stores,
    ino: Ino,
    /// The store has certainly raised the version. A failed one may have done so as well; then the
    /// reported version advances by more than 1 when the last store ends.
    pub(crate) raised: bool,
    /// All effects of the store are durable.
    pub(crate) durable: bool,
}

impl Drop for Store<'_> {
    fn drop(&mut self) {
        let mut shard = self.stores.shard(self.ino);
        shard.turns += 1;
        if let Some(running) = shard.running.get_mut(&self.ino) {
            running.stores -= 1;
            running.shown += u64::from(self.raised);
            running.unsynced |= !self.durable;
            if running.stores == 0 && !running.unsynced {
                shard.running.remove(&self.ino);
            }
        }
    }
}
