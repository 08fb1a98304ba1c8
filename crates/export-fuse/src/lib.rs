//! Two kinds of FUSE mounts: a file system ([`Mount::start_tree`], in `tree`), and a directory with
//! one file for each volume, so that `losetup` can create a block device over it if the kernel has
//! no ublk. The rest of this page describes the second kind.
//!
//! ```text
//!   application or loop device ── kernel ── /dev/fuse ──► thread 1..n, each with its own descriptor
//!                                                         of the mount, device queue and buffer
//! ```
//!
//! Files are opened for direct I/O: the upper layer (the file system on the loop device, the
//! application) caches plaintext, and no second copy is cached here.
//!
//! **Invariant:** a write that is not aligned to the blocks of the device excludes every other
//! write during its read-modify-write, so no neighboring byte is lost.
//!
//! A thread processes one request at a time, and [`REQUESTS_PER_THREAD`] threads are started for
//! each configured one, because most of the time they wait for the disk. Memory: 2 MiB for each,
//! and the request buffer of the `fuser` library.
//!
//! Out of scope: growing or renaming files, and files other than the given ones.

mod files;
mod io;
pub mod loopdev;
mod mount;
mod tree;
mod users;

pub use files::Holes;
pub use mount::{Config, Export, Mount, TreeConfig, abort, clear_dead, no_mounts, server_died};
pub use users::asked_by;

/// Kernel requests in flight for each configured thread.
pub const REQUESTS_PER_THREAD: usize = 4;

/// Error from mounting or unmounting a directory, or from a loop device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process uses the directory or device.
    #[error("{what} is in use: {hint}")]
    Busy {
        /// Directory or device.
        what: String,
        /// Advice for the user.
        hint: String,
    },
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// The failed operation.
        what: String,
        /// Error of the system.
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

    /// Reports whether another process uses the directory or device.
    pub fn is_busy(&self) -> bool {
        matches!(self, Error::Busy { .. })
    }
}
