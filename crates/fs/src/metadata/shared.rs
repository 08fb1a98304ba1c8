//! The state that all handles of an open file system share.
//!
//! ```text
//!   db (commits)  ──►  log (records of the journal)  ──►  state (all metadata in memory)
//! ```
//!
//! Locks are taken in this order only. No thread waits for the device while it holds the state for
//! writing, except to read pages of metadata that a change needs.

use crate::device_io::DeviceIo;
use crate::error::{Error, Kind, Result};
use crate::format::name_hash::Hasher;
use crate::format::record::Time;
use crate::format::sums::Summer;
use crate::format::superblock::COMPRESSION;
use crate::metadata::attached::Attached;
use crate::metadata::change_signal::ChangeSignal;
use crate::metadata::coordination::{Group, Log, Wake};
use crate::metadata::database::Db;
use crate::metadata::mismatches::Mismatches;
use crate::metadata::state::State;
use crate::metadata::superblock_file::SuperblockFile;
use crate::metadata::survivor::Survival;
use crate::metadata::tree_signal::TreeSignal;
use crate::metadata::view_slot::ViewSlot;
use crate::space::Space;
use block::BlockDevice;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Options for opening a file system.
#[derive(Debug, Clone)]
pub struct Options {
    /// Write nothing, not even to recover from a crash.
    pub read_only: bool,
    /// Read every page of the metadata first, and compare its checksum.
    pub verify: bool,
    /// Open the file system even if the free blocks or the filesets cannot be determined, so that
    /// [`crate::Fs::repair`] can find them; until then no block can be allocated.
    pub rescue: bool,
    /// Longest time that a change waits for its commit without an explicit request.
    pub commit_interval: Duration,
    /// Memory for cached pages of metadata, in bytes.
    pub metadata_cache_bytes: usize,
    /// Clock for the times of inodes.
    pub clock: fn() -> Time,
    /// Memory from which a successor of this process takes over, and this one from its
    /// predecessor; not used if the file system is read-only or to be rescued.
    pub survival: Option<Survival>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            verify: false,
            rescue: false,
            // As ext4 and similar file systems: limits the loss at a power failure.
            commit_interval: Duration::from_secs(5),
            metadata_cache_bytes: 256 << 20,
            clock: Time::now,
            survival: None,
        }
    }
}

/// State shared by all handles to a file system.
pub(crate) struct FsShared {
    pub name: String,
    pub device: Arc<dyn BlockDevice>,
    pub io: Arc<DeviceIo>,
    pub superblock: Arc<SuperblockFile>,
    pub space: Arc<Space>,
    pub options: Options,
    pub hasher: Hasher,
    /// Function that computes the checksums of file data.
    pub summer: Summer,
    pub generation: u32,
    pub db: Mutex<Option<Db>>,
    pub log: Mutex<Log>,
    pub group: Group,
    pub state: RwLock<State>,
    /// Number of changed keys that wait for a commit.
    pub backlog: AtomicUsize,
    /// Backlog that wakes the commit thread; a multiple of it makes callers wait.
    pub backlog_max: AtomicUsize,
    pub wake: Wake,
    /// Notified of each change.
    pub changes: ChangeSignal,
    pub mismatches: Mismatches,
    /// Notified of each fileset or snapshot that is created, renamed or removed.
    pub trees_changed: TreeSignal,
    pub attached: Attached,
    /// View that a check of the file system in use holds.
    pub view: ViewSlot,
}

impl FsShared {
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no panic under this lock")
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no panic under this lock")
    }

    /// Permits compressed chunks from now on, which programs that do not know them refuse. Durable
    /// when this returns.
    pub fn need_compression(&self) -> Result<()> {
        if !self.read().compression {
            self.superblock.need_features(COMPRESSION)?;
            self.write().compression = true;
        }
        Ok(())
    }

    /// Checks that the file system is open for writing.
    pub fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            Err(Error::new(
                Kind::ReadOnly,
                "the file system is open read-only",
            ))
        } else {
            Ok(())
        }
    }
}
