//! Notifications to the kernel.

use crate::device::Device;
use fuse_proto::notify;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Handle for notifications about the files of a mount. The kernel may wait for requests of the
/// mount before a call returns.
#[derive(Clone)]
pub struct Notifier(Arc<Device>);

impl Notifier {
    pub(crate) fn new(device: &Arc<Device>) -> Notifier {
        Notifier(Arc::clone(device))
    }

    /// Invalidates the attributes of a file, and its pages in a range. Length 0: up to the end; a
    /// negative offset: no pages.
    ///
    /// # Errors
    /// The kernel does not know the file, or the mount has ended.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> io::Result<()> {
        self.send(notify::inval_inode(node, offset, len).as_ref(), &[])
    }

    /// Invalidates a name.
    ///
    /// # Errors
    /// The kernel does not know the name, or the mount has ended.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let message = notify::inval_entry(parent, name);
        self.send(message.as_ref(), &[])
    }

    fn send(&self, head: &[u8], rest: &[u8]) -> io::Result<()> {
        Ok(self.0.send(&[IoSlice::new(head), IoSlice::new(rest)])?)
    }
}
