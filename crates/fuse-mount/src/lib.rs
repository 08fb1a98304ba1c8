//! Mounting by FUSE: the session with the kernel, and the end of a mount.
//!
//! ```text
//!   application ── kernel ── /dev/fuse ──► thread 1..n, each with its own descriptor ──► file system
//! ```
//!
//! `attach.rs` mounts (`block_mount.rs`: from a block device), `session.rs` receives requests and calls the file system ([`Serve`]),
//! `leadership.rs` distributes them over the threads, `demand.rs` decides how many of these receive,
//! and `waiting.rs` how they wait.
//!
//! The file system that is served belongs to the caller. **Invariant:** nothing here sends a request
//! to a mounted directory that could wait for its server, except to find out whether the server has
//! died; a mount of another user or program is never unmounted.

mod apart;
mod attach;
mod block_mount;
mod demand;
mod device;
mod leadership;
mod loop_device;
mod mount;
mod mountpoint;
mod notifier;
mod record;
mod serve;
mod session;
mod settings;
mod table;
mod turn;
mod users;
mod waiting;

pub use apart::apart;
pub use fuse_proto;
pub use loop_device::{attach_loop_apart, loop_control, renew_loop};
pub use mount::{Mount, Users};
pub use mountpoint::{
    WhenBusy, abort, clear_dead, is_mounted, may_gain_privileges, mount_helper, no_mounts,
    server_died,
};
pub use notifier::Notifier;
pub use record::Record;
pub use rustix::io::Errno;
pub use serve::{Reply, Serve};
pub use session::{Held, Hold};
pub use settings::Settings;
pub use table::{MountEntry, mounts};
pub use users::asked_by;

/// Source in the list of mounts, unless the settings of a mount name another one.
pub const SOURCE: &str = "evfs";

/// Kernel requests in flight for each configured thread.
pub const REQUESTS_PER_THREAD: usize = 4;

/// Longest piece of a request, in bytes: the largest that the kernel sends at once.
pub const PIECE_BYTES: usize = 1 << 20;

/// `PR_SET_IO_FLUSHER` of <linux/prctl.h> (Linux 5.6).
const PR_SET_IO_FLUSHER: i32 = 57;

/// Exempts the calling thread, to which the kernel writes back dirty pages, from waiting for dirty
/// pages to be written back when it allocates memory. Only root may set this, and only root needs
/// it.
pub fn never_wait_for_write_back() {
    // SAFETY: prctl with these arguments only sets a flag of this thread.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Error from mounting or unmounting a directory, or from a loop device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process uses the directory or device.
    #[error("{what} is in use: {hint}")]
    Busy {
        /// Directory or device.
        what: String,
        /// Advice for the user.
        hint: String,
    },
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// The failed operation.
        what: String,
        /// Error of the system.
        source: std::io::Error,
    },
}

impl Error {
    /// Wraps an error of the system.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Error {
        Error::Io {
            what: what.into(),
            source,
        }
    }

    /// Reports whether a mount that was to be continued is not there any more.
    pub fn is_gone(&self) -> bool {
        use std::io::ErrorKind::NotConnected;
        matches!(self, Error::Io { source, .. } if source.kind() == NotConnected)
    }

    /// Reports whether another process uses the directory or device.
    pub fn is_busy(&self) -> bool {
        matches!(self, Error::Busy { .. })
    }
}
