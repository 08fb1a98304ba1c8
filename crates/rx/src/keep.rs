//! Who holds what a port leaves to another server.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Holds the sockets and the tables of calls of ports, by name, so that another process can continue
/// them if this one is killed.
pub trait Keep: Send + Sync {
    /// Takes what a predecessor has left under a name; empty if there is none.
    fn take(&self, name: &str) -> Vec<OwnedFd>;

    /// Leaves descriptors under a name.
    ///
    /// # Errors
    /// They cannot be left.
    fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()>;
}
