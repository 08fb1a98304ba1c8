//! Options of a path.

use std::time::Duration;

/// Use of the image's exclusive lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// The session takes the lock before its first request and keeps it: no other client can write
    /// until it is closed. A client that was fenced does not come back.
    Exclusive,
    /// `librbd` takes the lock for the first write, and hands it to the next client that asks for
    /// it: for LUNs with several paths, whose clients write in turn.
    Cooperative,
}

/// Options of an RBD path.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum requests in flight on one queue.
    pub queue_depth: u32,
    /// Maximum transfer length in bytes.
    pub max_transfer: u32,
    /// Opens the image for reading, without its lock.
    pub read_only: bool,
    /// Use of the exclusive lock; without effect on images that do not have the feature.
    pub lock: Lock,
    /// Time after which the client gives up a request. `None`: never; requests wait until the
    /// cluster carries them out.
    pub give_up: Option<Duration>,
}

impl Default for Options {
    /// Transfers as long as those of the other transports, so that all can be paths of one LUN.
    fn default() -> Options {
        Options {
            queue_depth: 128,
            max_transfer: 1 << 20,
            read_only: false,
            lock: Lock::Exclusive,
            give_up: None,
        }
    }
}
