//! The interface to the storage behind the cache: files that pages are loaded from and written to.
//!
//! The contract is that of [`block::Queue`], with a file for each request: getpage is a read,
//! putpage a write, sync a flush. Offsets are bytes of the file, and ranges never written read as
//! zeros. The cache reads and writes whole pages of 4096 bytes, including the last one of a file.

use block::{BufPool, Completion, Request, Result, Wait};
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// A file's number in its pager. A raw device has one file, 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

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
    fn queue(&self) -> Result<Box<dyn PagerQueue>>;

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

/// One thread's access to a pager: [`block::Queue`] with a file for each request.
pub trait PagerQueue {
    /// Returns the number of requests that may be submitted and not yet reaped.
    fn capacity(&self) -> usize;

    /// Returns the number of requests that are submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Takes a request, or returns it when `capacity` requests are in flight. Does not block. A
    /// flush covers the writes of `file` that were reaped, on any queue, before it is submitted.
    fn submit(&mut self, file: FileId, request: Request) -> std::result::Result<(), Request>;

    /// Submits the staged requests to the device as one batch.
    ///
    /// # Errors
    /// Fatal: the queue must be dropped.
    fn kick(&mut self) -> Result<()>;

    /// Kicks, then appends completions to `done` and returns their number.
    ///
    /// # Errors
    /// Fatal: the queue must be dropped.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize>;

    /// Returns a descriptor that becomes readable when a reap would return completions, like
    /// [`block::Queue::wait_fd`].
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Hints that buffers of `pool` will be used often.
    fn register(&mut self, pool: &BufPool) {
        let _ = pool;
    }
}
