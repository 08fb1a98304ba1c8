//! How a file is opened.

/// Who else may have the file open through EVFS.
///
/// An open-file-description lock over the whole file (and `O_EXCL` on a block device). It is not
/// the lock that `cryptsetup` takes around header changes, so that keys can be changed while a
/// volume is attached; `qemu` uses locks of the same kind and refuses a file that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Nobody: for writing.
    Exclusive,
    /// Readers only.
    Shared,
    /// Anybody: for a look at a header, under the header lock.
    None,
}

/// Whether to go past the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direct {
    /// Where the file system allows it.
    Auto,
    /// Or fail.
    Always,
    /// Through the page cache.
    Never,
}

/// How requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, and system calls where the system forbids it.
    Auto,
    /// io_uring, or fail.
    IoUring,
    /// `preadv` and `pwritev`, one after the other, in the calling thread.
    Psync,
}

/// Settings of a path; the defaults suit a volume that is about to be attached.
#[derive(Debug, Clone)]
pub struct Options {
    /// Open for reading only.
    pub read_only: bool,
    /// Who else may have it.
    pub lock: Lock,
    /// Past the page cache or through it.
    pub direct: Direct,
    /// io_uring or system calls.
    pub engine: Engine,
    /// Requests in flight on each queue. 128 keeps a fast disk busy with 4 KiB requests.
    pub queue_depth: u32,
    /// Longest transfer in bytes. The kernel splits it as the disk needs.
    pub max_transfer: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            lock: Lock::Exclusive,
            direct: Direct::Auto,
            engine: Engine::Auto,
            queue_depth: 128,
            max_transfer: 4 * 1024 * 1024,
        }
    }
}
