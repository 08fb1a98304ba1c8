//! Configuration of a mount.

use crate::survival::Survival;
use fs::{Atime, Snapshots};
use fuse_mount::{REQUESTS_PER_THREAD, SOURCE};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time within which a sync(2) or syncfs(2) is answered, unless another one is configured. The
/// kernel warns of tasks that wait for 120 seconds.
pub const DEFAULT_SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// Configuration of a mounted file system.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// Source in the list of mounts.
    pub source: String,
    /// Number of requests in flight, each with a thread.
    pub threads: usize,
    /// Time for which the kernel may cache names and attributes. Long if only this mount changes
    /// the files.
    pub ttl: Duration,
    /// Refuse changes.
    pub read_only: bool,
    /// Admit users other than the one who mounts, subject to the permissions of the files. An
    /// ordinary user needs `user_allow_other` in `/etc/fuse.conf` for it.
    pub allow_other: bool,
    /// Only this mount uses the files, so the kernel may delay writes until the file is closed or
    /// synced, or for about 30 seconds. Many small writes to a large file are several times faster;
    /// small files take longer. A full device is then an error of fsync(2) or close(2) instead of
    /// write(2), and a killed server loses data that the kernel had not yet sent.
    pub exclusive: bool,
    /// Honor set-user-ID, set-group-ID and capabilities of programs in the files. Only root may
    /// enable it; it lets the creator of the files become root.
    pub suid: bool,
    /// Let device nodes among the files open devices. Only root may enable it, for the same reason.
    pub dev: bool,
    /// Let programs among the files be run.
    pub exec: bool,
    /// Policy for updating the access time of files.
    pub atime: Atime,
    /// Let the kernel forward sync(2) and syncfs(2), where it can (as root, from Linux 6.18 on).
    /// Each is answered within this time: with an error, if not all data is durable by then.
    pub sync_timeout: Option<Duration>,
    /// The snapshots to show in the directory `.snapshots` of the root; `None` for none.
    pub snapshots: Option<Arc<Snapshots>>,
    /// Flags of the kernel's INIT request (`fuse_proto::abi`) that are not used, even if the kernel
    /// has them: the mount works as with an older kernel.
    pub without: u64,
    /// Tables for a successor of this server; `None` if its death ends the mount.
    pub survival: Option<Arc<Survival>>,
}

impl MountConfig {
    /// Creates a configuration with the defaults, for files that only this mount changes.
    pub fn new(mountpoint: PathBuf) -> MountConfig {
        MountConfig {
            mountpoint,
            source: SOURCE.into(),
            threads: 2 * REQUESTS_PER_THREAD,
            ttl: Duration::from_secs(3600),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            exclusive: false,
            suid: false,
            dev: false,
            exec: true,
            atime: Atime::default(),
            sync_timeout: Some(DEFAULT_SYNC_TIMEOUT),
            snapshots: None,
            without: 0,
            survival: None,
        }
    }
}
