//! State that a mount leaves to a successor of its server, and with which the successor begins.

use ::survival::{OpenFiles, Requests};
use fs::Fs;
use fuse_mount::{Held, Record};
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Most threads of a mount whose server may have a successor.
pub const SURVIVING_THREADS_MAX: usize = 256;

/// Tables that outlive the server of a mount, and the receiver of its descriptors.
pub struct Survival {
    /// Files that the kernel has open.
    pub open_files: Arc<OpenFiles>,
    /// Requests that were carried out.
    pub requests: Arc<Requests>,
    /// Number of predecessors.
    pub generation: u32,
    /// Receives the descriptors of the mount before its first request is served.
    pub hold: Box<HoldMount>,
}

/// See [`Survival::hold`].
pub type HoldMount = dyn Fn(&Held<'_>) -> io::Result<()> + Send + Sync;

/// A mount to be continued.
pub struct Predecessor {
    /// The descriptor of the mount.
    pub device: OwnedFd,
    /// Its directory, and other properties of the session.
    pub session: Record,
    /// The file system, which this process has opened and whose dirty pages it has adopted.
    pub fs: Arc<Fs>,
    /// Requests that the predecessor has carried out, and perhaps not answered.
    pub done: HashSet<u64>,
}

impl fmt::Debug for Survival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Survival")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
