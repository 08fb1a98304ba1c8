//! Changes of content that take a while, and are one change to whoever looks.
//!
//! The file system raises a file's version with the first bytes, so that a crash in the middle leaves
//! another version than there was before. Until the last bytes are there, clients are shown the old
//! one: they fetch what there is, are told at the end that it is no longer so, and find a new version.
//!
//! What they are shown with the old version is then no longer what that version had. So before they have
//! it, the version that was raised is made durable ([`Stores::settle`]): after a crash they find another one.
//!
//! **Invariant:** a version that was shown with the first bytes of a change is not shown with the last,
//! nor, after a crash, without them.

use fs::{Attr, Files, Ino};
use std::collections::HashMap;
use std::sync::Mutex;

const SHARDS: usize = 64;

/// The changes under way in a volume.
pub(crate) struct Stores {
    shards: Vec<Mutex<Shard>>,
}

#[derive(Default)]
struct Shard {
    /// Beginnings and ends that there were.
    turns: u64,
    running: HashMap<Ino, Running>,
}

struct Running {
    stores: u32,
    /// The version to show.
    shown: u64,
    /// A change that has ended may not be durable.
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

    /// Begins a change. The file's version must not have been raised by it yet.
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

    /// To be called after a file was looked at, before anybody has what was seen: if it is being changed,
    /// what the changes did so far to its version is made durable.
    pub(crate) fn settle(&self, files: &Files, ino: Ino) -> fs::Result<()> {
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

    /// An inode as it is shown.
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

/// A change under way, which ends when this is dropped.
pub(crate) struct Store<'s> {
    stores: &'s Stores,
    ino: Ino,
    /// It has certainly raised the version. One that failed may have done so as well; then the version
    /// shown leaps when the last change ends.
    pub(crate) raised: bool,
    /// All that it did is durable.
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
