//! Two things that a kernel mounts: a file system ([`Mount::start_tree`], in `tree`), and volumes as
//! files, a folder with one file for each, so that `losetup` makes a block device of it where the
//! kernel has no ublk. The rest of this page is about the second.
//!
//! ```text
//!   application or loop device ── kernel ── /dev/fuse ──► thread 1..n, each with its own descriptor
//!                                                         of the mount, device queue and buffer
//! ```
//!
//! Files are opened for direct I/O: what is above (the file system on the loop device, the
//! application) caches clear data once, and nothing caches it twice.
//!
//! **Invariant:** a request that is not aligned to the blocks of the device excludes every other write
//! while it reads, changes and writes back, so no neighbour's byte is lost.
//!
//! A thread carries one request at a time, and [`REQUESTS_PER_THREAD`] of them are started for each
//! thread asked for, because most of the time they wait for the disk. Memory: 2 MiB for each of
//! them, and the request buffer of the `fuser` library.
//!
//! Absent on purpose: growing, renaming, anything but the given files.

mod files;
mod io;
pub mod loopdev;
mod mount;
mod tree;
mod users;

pub use files::Holes;
pub use mount::{Config, Export, Mount, TreeConfig, abort, clear_dead, no_mounts, server_died};
pub use users::asked_by;

/// Kernel requests that are in flight for each thread of the configuration.
pub const REQUESTS_PER_THREAD: usize = 4;

/// Why a folder cannot be mounted or unmounted, or a loop device made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody uses it.
    #[error("{what} is in use: {hint}")]
    Busy {
        /// Folder or device.
        what: String,
        /// What to do.
        hint: String,
    },
    /// The system refuses.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Error {
        Error::Io {
            what: what.into(),
            source,
        }
    }

    /// Whether somebody else holds what is needed.
    pub fn is_busy(&self) -> bool {
        matches!(self, Error::Busy { .. })
    }
}
