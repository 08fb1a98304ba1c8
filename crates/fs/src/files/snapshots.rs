//! The snapshots of a fileset, opened on demand for a mount of the fileset.
//!
//! **Invariant:** a snapshot with an open file is not removed. The files of a removed snapshot are
//! closed and leave the cache, although threads may keep a lane of it. A few snapshots stay open
//! after their last use, since each one takes two threads.

use super::{Atime, Files};
use crate::error::{Kind, Result};
use crate::fileset::Fileset;
use crate::format::key::TreeId;
use crate::format::record::Time;
use crate::metadata::state::{State, Tree};
use crate::metadata::tree_signal::TreeWatcher;
use cache::Cache;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Number of snapshots that stay open after their last use.
const KEPT: usize = 4;

/// Function to be called after each change of the list.
type Notify = Box<dyn Fn() + Send + Sync>;

/// See the module.
pub struct Snapshots {
    fileset: Fileset,
    cache: Arc<Cache>,
    inner: Mutex<Inner>,
    notify: Mutex<Option<Notify>>,
}

#[derive(Default)]
struct Inner {
    /// Snapshots used last, the latest one last.
    kept: Vec<Arc<Files>>,
    /// All open snapshots, including those in use by handles only.
    open: Vec<(TreeId, Weak<Files>)>,
}

/// A snapshot in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotName {
    /// Number for [`Snapshots::files`].
    pub id: TreeId,
    /// Text that [`crate::Fs::fileset_named`] finds.
    pub name: String,
    /// Time at which it was taken.
    pub created: Time,
}

impl std::fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Snapshots").field(&self.fileset.id).finish()
    }
}

impl Snapshots {
    /// Prepares access to the snapshots of a fileset through a cache. Opens none yet.
    pub fn new(fileset: &Fileset, cache: &Arc<Cache>) -> Arc<Snapshots> {
        let snapshots = Arc::new(Snapshots {
            fileset: fileset.clone(),
            cache: Arc::clone(cache),
            inner: Mutex::default(),
            notify: Mutex::default(),
        });
        let weak = Arc::downgrade(&snapshots);
        fileset.fs.trees_changed.watch(weak);
        snapshots
    }

    /// Sets the function to be called after each change of the list. It must not wait for the file
    /// system.
    pub fn on_change(&self, notify: impl Fn() + Send + Sync + 'static) {
        let mut own = self.notify.lock().expect("no panic under this lock");
        *own = Some(Box::new(notify));
    }

    /// Returns the snapshots, oldest first.
    ///
    /// # Errors
    /// [`Kind::NotFound`]: the fileset has been removed.
    pub fn list(&self) -> Result<Vec<SnapshotName>> {
        let state = self.fileset.fs.read();
        let all = state.tree(self.fileset.id)?.snapshots.iter();
        let named = all.filter_map(|id| Some((*id, &state.tree(*id).ok()?.record)));
        let named = named.map(|(id, record)| SnapshotName {
            id,
            name: record.name.clone(),
            created: record.created,
        });
        Ok(named.collect())
    }

    /// Returns a snapshot for reading its names and attributes.
    ///
    /// # Errors
    /// [`Kind::Stale`]: the fileset has no such snapshot.
    pub fn fileset(&self, id: TreeId) -> Result<Fileset> {
        if !self.has(&self.fileset.fs.read(), id) {
            return Err(Kind::Stale.into());
        }
        let fs = Arc::clone(&self.fileset.fs);
        Ok(Fileset { fs, id })
    }

    /// Opens the files of a snapshot.
    ///
    /// # Errors
    /// As [`Snapshots::fileset`]; those of [`Files::new`].
    pub fn files(&self, id: TreeId) -> Result<Arc<Files>> {
        let snapshot = self.fileset(id)?;
        let mut inner = self.lock();
        let position = inner.kept.iter().position(|files| files.fileset().id == id);
        if let Some(at) = position {
            let last = inner.kept.len() - 1;
            inner.kept[at..=last].rotate_left(1);
            return Ok(Arc::clone(&inner.kept[last]));
        }
        inner.open.retain(|(_, files)| files.strong_count() > 0);
        let open = inner.open.iter().find(|(open, _)| *open == id);
        let files = match open.and_then(|(_, files)| files.upgrade()) {
            Some(files) => files,
            None => {
                let files = Files::new(&snapshot, &self.cache)?.client_with(Atime::None);
                inner.open.push((id, Arc::downgrade(&files)));
                files
            }
        };
        inner.kept.push(Arc::clone(&files));
        let first = (inner.kept.len() > KEPT).then(|| inner.kept.remove(0));
        drop(inner);
        // Closes the snapshot unless it is in use, which takes a while.
        drop(first);
        Ok(files)
    }

    fn has(&self, state: &State, id: TreeId) -> bool {
        let own = |tree: &Tree| tree.record.origin == self.fileset.id;
        state.tree(id).is_ok_and(own)
    }

    /// Closes the snapshots that are open, except those in use.
    pub fn close(&self) {
        let kept = std::mem::take(&mut self.lock().kept);
        drop(kept);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic under this lock")
    }
}

impl TreeWatcher for Snapshots {
    fn trees_changed(&self) {
        let exists = |files: &Arc<Files>| self.has(&self.fileset.fs.read(), files.fileset().id);
        // The last use of one may end here, which takes a while, so not under the lock.
        let open: Vec<Arc<Files>> = {
            let mut inner = self.lock();
            let all = inner.open.iter();
            let open = all.filter_map(|(_, files)| files.upgrade()).collect();
            inner.kept.retain(exists);
            open
        };
        for files in open.iter().filter(|files| !exists(files)) {
            // No file of it was open, so there is nothing left to write.
            if let Err(error) = files.close() {
                tracing::debug!("cannot drop the pages of a removed snapshot: {error}");
            }
        }
        let notify = self.notify.lock().expect("no panic under this lock");
        if let Some(notify) = &*notify {
            notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::FileType;
    use crate::names::directory::{New, ROOT};
    use crate::{FIRST_FILESET, Fs, Options, WritePosition};
    use block_testing::Mem;
    use cache::Config;

    #[test]
    fn the_files_of_a_removed_snapshot_leave_the_cache_although_a_thread_keeps_a_lane() {
        let device = Arc::new(Mem::new(32 << 20, 4096));
        Fs::format(device.clone(), "").unwrap();
        let fs = Fs::open(device, Options::default()).unwrap();
        let main = fs.fileset_named(FIRST_FILESET).unwrap();
        let cache = Cache::new(Config::new(8 << 20)).unwrap();
        let files = Files::new(&main, &cache).unwrap();
        let new = New::of_root(FileType::File, 0o644);
        let (attr, file) = files.create_open(ROOT, b"file", &new).unwrap();
        let mut lane = files.lane().unwrap();
        let at = WritePosition::Offset(0);
        lane.write(&file, at, &[7; 4096]).unwrap();
        files.sync().unwrap();
        let take = |n| fs.snapshot(main.id, &format!("{n}")).unwrap().id;
        let all: Vec<TreeId> = (0..=KEPT).map(take).collect();
        let snapshots = Snapshots::new(&main, &cache);
        let first = snapshots.files(all[0]).unwrap();
        let mut lane = first.lane().unwrap();
        let file = first.open(attr.ino).unwrap();
        assert_eq!(lane.read(&file, 0, &mut [0; 10]).unwrap(), 10);
        drop(file);
        // The use of others makes it one that is not kept.
        for id in &all[1..] {
            snapshots.files(*id).unwrap();
        }
        assert_eq!(first.volume().files().len(), 1);
        fs.remove_fileset(all[0]).unwrap();
        assert!(first.volume().files().is_empty());
    }
}
