//! Properties of a mount.

use crate::SOURCE;
use std::path::PathBuf;

/// Properties of a mount.
#[derive(Debug, Clone)]
pub struct Settings {
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// Source in the list of mounts. Nothing depends on it, but mount(8) recognizes an entry of
    /// fstab(5) by it.
    pub source: String,
    /// Number of requests in flight, each with a thread.
    pub threads: usize,
    /// Refuse changes.
    pub read_only: bool,
    /// Admit users other than the one who mounts.
    pub allow_other: bool,
    /// Honor set-user-ID, set-group-ID and capabilities of programs in the files.
    pub suid: bool,
    /// Let device nodes among the files open devices.
    pub dev: bool,
    /// Let programs among the files be run.
    pub exec: bool,
    /// Mount from a block device, so that the kernel may forward sync(2) and syncfs(2), as
    /// [`Mount::receives_sync`](crate::Mount::receives_sync) finds out. Only root can.
    pub on_block_device: bool,
}

impl Settings {
    /// Returns the source, unless `fusermount3` would take a part of it for another option.
    pub(crate) fn source(&self) -> &str {
        if self.source.contains([',', '\\']) {
            SOURCE
        } else {
            &self.source
        }
    }
}
