//! A mounted directory of volumes, from start to end.

use crate::files::{Export, FIRST_FILE, Files};
use crate::holes::Holes;
use crate::loopdev;
use fuse_mount::{Error, REQUESTS_PER_THREAD, SOURCE, Settings, Users, WhenBusy};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Configuration of a mount.
#[derive(Debug, Clone)]
pub struct Config {
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// Number of threads; each stands for [`REQUESTS_PER_THREAD`] requests in flight.
    pub threads: usize,
}

impl Config {
    /// Creates a configuration with one thread.
    pub fn new(mountpoint: PathBuf) -> Config {
        Config {
            mountpoint,
            threads: 1,
        }
    }
}

/// A mounted directory. Dropping it unmounts it even if it is in use.
pub struct Mount {
    mount: fuse_mount::Mount,
    /// Meaning of holes in the only file.
    holes: Option<Arc<Holes>>,
    /// Number of files.
    files: usize,
}

impl Mount {
    /// Mounts the exports. First clears the mount of a killed process at the same place, as
    /// [`clear_dead`] does.
    ///
    /// # Errors
    /// As [`fuse_mount::Mount::start`].
    pub fn start(config: Config, exports: Vec<Export>) -> Result<Mount, Error> {
        clear_dead(&config.mountpoint)?;
        let settings = Settings {
            mountpoint: config.mountpoint,
            source: SOURCE.into(),
            threads: config.threads.max(1) * REQUESTS_PER_THREAD,
            read_only: false,
            allow_other: false,
            suid: false,
            dev: false,
            exec: false,
            on_block_device: false,
        };
        let count = exports.len();
        let files = Files::new(exports);
        let holes = files.holes();
        let mount = fuse_mount::Mount::start(&settings, files)?;
        Ok(Mount {
            mount,
            holes,
            files: count,
        })
    }

    /// Returns the meaning of holes in the file of the only export.
    pub fn holes(&self) -> Option<&Holes> {
        self.holes.as_deref()
    }

    /// Makes the kernel ask again for the sizes of the files, after devices have grown.
    ///
    /// # Errors
    /// The mount has ended.
    pub fn update_sizes(&self) -> Result<(), Error> {
        let Some(notifier) = self.mount.notifier() else {
            return Ok(());
        };
        for node in (FIRST_FILE..).take(self.files) {
            match notifier.inval_inode(node, -1, 0) {
                // The kernel has not cached anything of the file.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                told => told.map_err(|e| Error::io("cannot announce a new size", e))?,
            }
        }
        Ok(())
    }

    /// Builds the path of the file of an export.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.mount.mountpoint().join(name)
    }

    /// Checks whether an unmount would succeed; see [`fuse_mount::Mount::in_use`].
    ///
    /// # Errors
    /// [`Error::Busy`], with the processes that use the mount.
    pub fn in_use(&self, users: Users) -> Result<(), Error> {
        self.mount.in_use(users)
    }

    /// Unmounts. Returns false if the mount is in use and was detached.
    ///
    /// # Errors
    /// Returned together with the unchanged mount.
    pub fn unmount(self, when_busy: WhenBusy) -> Result<bool, Box<(Mount, Error)>> {
        let Mount {
            mount,
            holes,
            files,
        } = self;
        let has_ended = || true;
        mount.unmount(when_busy, has_ended).map_err(|failed| {
            let (mount, error) = *failed;
            let mount = Mount {
                mount,
                holes,
                files,
            };
            Box::new((mount, error))
        })
    }
}

/// Unmounts the mount that a killed process of this user has left, and removes loop devices over
/// files in it. Returns whether there was one.
///
/// # Errors
/// [`Error::Busy`] if it belongs to another program or another user; errors of the system.
pub fn clear_dead(mountpoint: &Path) -> Result<bool, Error> {
    fuse_mount::clear_dead(mountpoint, loopdev::remove_all_of)
}
