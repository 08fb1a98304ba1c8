//! Settings of a path.

use std::path::PathBuf;

/// Settings of a path.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum number of requests in flight on each queue.
    pub queue_depth: u32,
    /// Maximum transfer length in bytes; the server may lower it.
    pub max_transfer: u32,
    /// Refuse writes on the client side.
    pub read_only: bool,
    /// Certificate directory, used if the URI names none.
    pub certificates: Option<PathBuf>,
}

impl Default for Options {
    /// 128 requests of 8 KiB keep a link of 10 Gbit/s and 1 ms busy; transfers longer than 1 MiB
    /// are no faster on a socket.
    fn default() -> Options {
        Options {
            queue_depth: 128,
            max_transfer: 1 << 20,
            read_only: false,
            certificates: None,
        }
    }
}
