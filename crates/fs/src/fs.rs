//! An open file system: its space, and closing it.

mod clone;
pub mod diff;
pub mod filesets;
mod grow;
pub mod open;
pub mod owner_quotas;
mod rollback;
mod shrink;
mod snapshot_space;
pub mod upgrade;

use crate::error::{Error, Result};
use crate::fileset::Fileset;
use crate::format::key::TreeId;
use crate::format::superblock::Superblock;
use crate::metadata::commit::Background;
use crate::metadata::database::Db;
use crate::metadata::shared::FsShared;
use crate::metadata::state::State;
use crate::metadata::survivor::Adoption;
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the fileset that a new file system has.
pub const FIRST_FILESET: &str = "main";

/// Space usage of a file system in blocks of 4096 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Blocks of the device, including the superblocks and the journal.
    pub blocks: u64,
    /// Blocks allocated to the metadata.
    pub metadata: u64,
    /// Blocks of the journal.
    pub journal: u64,
    /// Blocks not in use.
    pub free: u64,
    /// Blocks neither in use nor promised nor reserved for the metadata.
    pub available: u64,
    /// Length of the largest run of free blocks.
    pub largest_free: u64,
    /// Number of runs of free blocks.
    pub free_runs: u64,
    /// Inodes of all filesets.
    pub inodes: u64,
}

/// Open file system. Dropping it commits as much as possible; [`Fs::close`] reports errors.
pub struct Fs {
    inner: Arc<FsShared>,
    /// Its threads; `None` once the file system is closed, or if it is read-only.
    background: Mutex<Option<Background>>,
    /// Held by a thread that grows the file system.
    growing: Mutex<()>,
    adoption: Adoption,
}

impl Fs {
    /// Creates a handle to a fileset or a snapshot.
    ///
    /// # Errors
    /// [`crate::Kind::NotFound`].
    pub fn fileset(&self, id: TreeId) -> Result<Fileset> {
        self.inner.read().tree(id)?;
        Ok(Fileset {
            fs: Arc::clone(&self.inner),
            id,
        })
    }

    /// Returns what became of the log of a predecessor.
    pub fn adoption(&self) -> &Adoption {
        &self.adoption
    }

    /// Ends the adoption of what a killed server left (see [`crate::Survival`]), if there is any. Before, the
    /// caller opens every file that is still open, and its caches get the dirty pages, which no limit
    /// refuses. Removes the files without a name that are not open. A file whose end has no page ends
    /// where it does on the disk.
    ///
    /// # Errors
    /// Those of the removal.
    pub fn end_adoption(&self) -> Result<()> {
        let filesets = |state: &State| -> Vec<TreeId> {
            let all = state.trees.iter().filter(|(_, tree)| tree.adopting);
            all.map(|(id, _)| *id).collect()
        };
        let filesets = filesets(&self.inner.read());
        filesets.into_iter().try_for_each(|id| {
            let fs = Arc::clone(&self.inner);
            Fileset { fs, id }.end_adoption()
        })
    }

    /// Makes all changes so far durable. The caller has already had the caches write back their
    /// pages.
    pub fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    /// As [`Fs::sync`], and commits the changes to the tree, so that a crash leaves no journal to
    /// replay.
    pub fn commit(&self) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.checkpoint()
    }

    /// Returns the space usage. For the usage of each fileset see [`Fs::filesets`].
    pub fn usage(&self) -> Usage {
        let free = self.inner.space.usage();
        let inodes = {
            let state = self.inner.read();
            let filesets = state.trees.values().filter(|t| t.record.origin == 0);
            filesets.map(|tree| tree.record.used_inodes).sum()
        };
        let superblock = self.inner.superblock.lock();
        let segments = superblock.segments.iter();
        Usage {
            blocks: superblock.device_blocks,
            metadata: segments.map(|s| u64::from(s.blocks)).sum(),
            journal: superblock.journal_blocks,
            free: free.free,
            available: free.available,
            largest_free: free.largest_run,
            free_runs: free.runs,
            inodes,
        }
    }

    /// Returns why the file system cannot be changed, if it cannot: it was opened read-only, or an
    /// error occurred after which further changes could lose durable data. Reading still works.
    pub fn read_only_because(&self) -> Option<Error> {
        let asked = self.inner.check_writable().err();
        asked.or_else(|| self.inner.read().failed.clone())
    }

    /// Returns a copy of the superblock.
    pub fn superblock(&self) -> Superblock {
        self.inner.superblock.lock().clone()
    }

    /// Commits everything, closes the file system and releases the device. The caller has already
    /// had the caches write back their pages.
    pub fn close(self) -> Result<()> {
        self.finish()
    }

    /// Like [`Fs::close`] while others still hold the file system: they can change nothing from
    /// here on, and the last of them releases the device. If the last commit fails, it can be
    /// called again.
    pub fn finish(&self) -> Result<()> {
        let mut background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(threads) = background.as_mut() else {
            return Ok(());
        };
        threads.stop(&self.inner);
        if std::thread::panicking() {
            // Whatever the panic was about, it must not become durable.
            return Ok(());
        }
        self.inner.checkpoint()?;
        // Remaining holders of files can change nothing from here on, and get this error.
        let closed = crate::error::closed();
        self.inner.write().failed.get_or_insert(closed);
        let db = self
            .inner
            .db
            .lock()
            .expect("no panic under this lock")
            .take();
        *background = None;
        db.map_or(Ok(()), Db::close)
    }

    pub(crate) fn inner(&self) -> &Arc<FsShared> {
        &self.inner
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!(name: "EVFS-0202", "{}: close failed: {error}", self.inner.name);
        }
    }
}
