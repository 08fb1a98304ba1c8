//! Volumes as files: a mounted folder with one file for each, so that `losetup` makes a block device
//! of it where the kernel has no ublk.
//!
//! ```text
//!   application or loop device ── kernel ── /dev/fuse ──► thread 1..n: descriptor, engine, queues
//!
//!   session   mounting and the first handshake          engine   requests of bytes to requests of
//!   wire      bytes to requests, answers to bytes                blocks, many in flight
//!   folder    names, attributes, what may be done       gate     who may change which blocks
//!   worker    the loop of a thread                      loopdev  block devices over the files
//! ```
//!
//! **Cached once.** Files are opened for direct I/O, whether the program asked for O_DIRECT or not:
//! the kernel keeps no pages of them. What is above, the file system on the loop device or the
//! application, caches clear data once. Writes to one file run side by side
//! (`FOPEN_PARALLEL_DIRECT_WRITES`), and a shared mapping works where the kernel allows one.
//!
//! **Invariant:** a change that is not aligned to the blocks of the device excludes every other change
//! of the same blocks while it reads, patches and writes back, so no neighbour's byte is lost.
//!
//! **Durability** is that of a disk: an answered write survives a power cut after the next fsync, or
//! close of a file that was open for writing, that is answered; with O_SYNC or O_DSYNC at once.
//!
//! **Memory:** [`THREAD_MEMORY_BYTES`] for each thread, touched as far as it is needed, and what the
//! device takes for a queue. Requests that are not aligned to blocks take some more while they last.
//!
//! Absent on purpose: growing, renaming, anything but the given files; and signals: who calls decides
//! when to unmount.

mod engine;
mod folder;
mod gate;
pub mod loopdev;
mod mount;
mod session;
mod stats;
mod sys;
mod wire;
mod worker;

pub use mount::{Config, Export, Mount};
pub use stats::Stats;

/// Memory of the buffers of one thread, in bytes.
pub const THREAD_MEMORY_BYTES: usize = engine::POOL_BYTES;

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
    /// A device cannot be used.
    #[error("a device gives no queue")]
    Device(#[source] block::Error),
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
