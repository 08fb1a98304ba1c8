//! The interface to the storage behind the cache: files that pages are loaded from and written to.
//!
//! Requests go through a [`Queue`], with a file for each: getpage is a read, putpage a write, sync
//! a flush. Offsets are bytes of the file, and ranges never written read as zeros. The cache reads
//! and writes whole pages of 4096 bytes, including the last one of a file.
//!
//! `foreign/src/pager.rs` is a small pager, without writes; a format that only says where the bytes
//! of a file are implements its trait `Tree` instead (`foreign/examples/own_format.rs`).

use block::{Queue, Request, Result};
use std::ops::Range;

/// A file's number in its pager. A raw device has one file, 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// A request on a file. A flush covers the writes of the file that were reaped, on any queue, before
/// it is submitted.
#[derive(Debug)]
pub struct FileRequest {
    /// The file that the offsets refer to.
    pub file: FileId,
    /// The operation.
    pub request: Request,
}

/// Name of a pager's files among those of other pagers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tree {
    /// UUID of the file system.
    pub file_system: [u8; 16],
    /// Number within the file system that is never used again for other files.
    pub number: u64,
}

/// One thread's queue to a pager.
pub type PagerQueue = dyn Queue<FileRequest, PagerInfo>;

/// Properties of a pager. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagerInfo {
    /// Name for messages and statistics.
    pub name: String,
    /// Offsets and lengths of requests are multiples of this; a power of two, at most 4096.
    pub block_size: u32,
    /// Length of efficient transfers.
    pub optimal_io_size: u32,
    /// Longest read or write, 4096 or more.
    pub max_transfer: u32,
    /// NUMA node of the device, if known.
    pub numa_node: Option<u32>,
    /// Writes are refused.
    pub read_only: bool,
    /// [`block::Op::Discard`] has an effect.
    pub discard: bool,
    /// A flush of one file covers the writes of all files.
    pub flushes_all: bool,
}

/// Storage for the files of a cached volume.
pub trait Pager: Send + Sync {
    /// Returns the properties, which do not change while the pager is open.
    fn info(&self) -> &PagerInfo;

    /// Opens a queue for the calling thread. Any number may be open at once, on any threads.
    fn queue(&self) -> Result<Box<PagerQueue>>;

    /// Returns the name by which a successor of this process finds the pager's files; see
    /// [`crate::Predecessor`]. `None`: it cannot find them.
    fn tree(&self) -> Option<Tree> {
        None
    }

    /// Reserves space. Called before clean or absent pages of `range` (whole pages, in bytes)
    /// become dirty, so that a write that cannot be stored is refused while the error can still be
    /// returned to its writer. Called by the writing thread; must not call back into the cache.
    ///
    /// # Errors
    /// The write fails with this error and changes nothing.
    fn will_write(&self, file: FileId, range: Range<u64>) -> Result<()> {
        let (_, _) = (file, range);
        Ok(())
    }
}
