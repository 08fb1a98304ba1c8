//! What lies below the cache: files that pages are brought from and taken to.
//!
//! The contract is that of [`block::Queue`], with the file beside each request: getpage is a read,
//! putpage a write, sync a flush. Offsets are bytes of the file, and what was never written reads
//! as zeros. The cache reads and writes whole pages of 4096 bytes, the last one of a file included.

use block::{BufPool, Completion, Request, Result, Wait};
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// A file's number below its pager. A raw device has one file, 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// What a pager says about itself. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagerInfo {
    /// Name for messages and statistics.
    pub name: String,
    /// Offsets and lengths of requests are multiples of this; a power of two, at most 4096.
    pub block_size: u32,
    /// A length at which transfers run well.
    pub optimal_io_size: u32,
    /// Longest read or write, 4096 or more.
    pub max_transfer: u32,
    /// NUMA node of what lies below, where known.
    pub numa_node: Option<u32>,
    /// Writes are refused.
    pub read_only: bool,
    /// [`block::Op::Discard`] does something.
    pub discard: bool,
    /// A flush of one file covers the writes of all files.
    pub flushes_all: bool,
}

/// Files below a cache.
pub trait Pager: Send + Sync {
    /// What it is. Does not change while it is open.
    fn info(&self) -> &PagerInfo;

    /// Opens a queue for the calling thread. Any number may be open at once, on any threads.
    fn queue(&self) -> Result<Box<dyn PagerQueue>>;

    /// Called before clean or absent pages of `range` (whole pages, in bytes) become dirty: the
    /// place to reserve space, so that a write that cannot be kept is refused while its writer can
    /// still be told. Called by the writing thread; must not call back into the cache.
    ///
    /// # Errors
    /// The write ends with this error and changes nothing.
    fn will_write(&self, file: FileId, range: Range<u64>) -> Result<()> {
        let (_, _) = (file, range);
        Ok(())
    }
}

/// One thread's way to a pager: [`block::Queue`] with a file beside each request.
pub trait PagerQueue {
    /// Requests that may be submitted and not yet reaped.
    fn capacity(&self) -> usize;

    /// Requests that are submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Takes a request; gives it back when `capacity` requests are in flight. Does not block. A
    /// flush covers the writes of `file` that were reaped, on any queue, before it is submitted.
    fn submit(&mut self, file: FileId, request: Request) -> std::result::Result<(), Request>;

    /// Hands what is staged below, as one batch.
    ///
    /// # Errors
    /// The queue is beyond use.
    fn kick(&mut self) -> Result<()>;

    /// Kicks, then moves completions to the end of `done` and says how many.
    ///
    /// # Errors
    /// The queue is beyond use.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize>;

    /// A descriptor that becomes readable when a reap has something to give, as
    /// [`block::Queue::wait_fd`].
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// A hint that buffers of `pool` will come often.
    fn register(&mut self, pool: &BufPool) {
        let _ = pool;
    }
}
