//! The snapshots of a fileset, opened on demand for a mount of the fileset.
//!
//! **Invariant:** a snapshot with an open file is not removed. The files of a removed snapshot are
//! closed and leave the cache. A few snapshots stay open after their last use, since each one takes
//! two threads.

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
        let removed: Vec<Arc<Files>> = {
            let exists = |files: &Arc<Files>| self.has(&self.fileset.fs.read(), files.fileset().id);
            let mut inner = self.lock();
            let kept = std::mem::take(&mut inner.kept).into_iter();
            let (kept, removed) = kept.partition(exists);
            inner.kept = kept;
            removed
        };
        for files in removed {
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
