//! The open file, which a device shares with its queues. Its last user releases the open lock.

use crate::lock;
use crate::options::Engine;
use block::GrowingInfo;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// State shared by the device and its queues; only the size in `info` changes.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) info: GrowingInfo,
    pub(crate) direct: bool,
    pub(crate) memory_align: u32,
    pub(crate) engine: Engine,
    pub(crate) queue_depth: u32,
    pub(crate) path: PathBuf,
    /// Reason why I/O does not bypass the page cache, if it does not.
    pub(crate) why_not_direct: Option<String>,
    /// The open file description that has the lock, if it is not that of `file`.
    pub(crate) lock_holder: Option<Arc<OwnedFd>>,
    /// Nothing is left for a successor, which would need the lock.
    pub(crate) in_order: AtomicBool,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        lock::drop_open_lock(&self.file);
        if let Some(holder) = self
            .lock_holder
            .as_ref()
            .filter(|_| *self.in_order.get_mut())
        {
            lock::drop_open_lock(&**holder);
        }
    }
}
