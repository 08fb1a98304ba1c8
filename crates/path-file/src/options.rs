//! Options for opening a file.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Other EVFS processes that may have the file open at the same time.
///
/// This is an open-file-description lock over the whole file (and `O_EXCL` on a block device). It
/// is not the lock that `cryptsetup` takes around header changes, so keys can be changed while a
/// volume is attached; `qemu` uses locks of the same kind and refuses a file that is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// No other process; for writing.
    Exclusive,
    /// Readers only.
    Shared,
    /// Any process; for reading a header, under the header lock.
    None,
}

/// Whether to bypass the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direct {
    /// Bypass it where the file system allows it.
    Auto,
    /// Bypass it, or fail.
    Always,
    /// Use the page cache.
    Never,
}

/// Interface by which requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, or system calls where the system forbids it.
    Auto,
    /// io_uring, or fail.
    IoUring,
    /// `preadv` and `pwritev`, one after the other, in the calling thread.
    Psync,
}

/// Open file description that has the lock.
#[derive(Debug, Clone, Default)]
pub enum Holder {
    /// The one that the device uses.
    #[default]
    Device,
    /// One of its own ([`crate::FileDevice::lock_holder`]), which may outlive the process. The one that
    /// the device uses has a part of the lock as long as its rings have requests, so that a successor
    /// does not begin before.
    Apart,
    /// That of a process with [`Holder::Apart`], which this process continues.
    Predecessor(Arc<OwnedFd>),
}

/// Options of a path; the defaults suit a volume that is about to be attached.
#[derive(Debug, Clone)]
pub struct Options {
    /// Open the file for reading only.
    pub read_only: bool,
    /// Lock on the file.
    pub lock: Lock,
    /// Who has the lock.
    pub holder: Holder,
    /// Use of the page cache.
    pub direct: Direct,
    /// Use of io_uring.
    pub engine: Engine,
    /// Limit for requests in flight on each queue. 128 keeps a fast disk busy with 4 KiB requests.
    pub queue_depth: u32,
    /// Largest transfer in bytes. The kernel splits it as the disk requires.
    pub max_transfer: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            lock: Lock::Exclusive,
            holder: Holder::Device,
            direct: Direct::Auto,
            engine: Engine::Auto,
            queue_depth: 128,
            max_transfer: 4 * 1024 * 1024,
        }
    }
}
