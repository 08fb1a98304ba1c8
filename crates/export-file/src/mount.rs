//! A mounted directory of volumes, from start to end.

use crate::files::{Export, FIRST_FILE, Files};
use crate::holes::Holes;
use crate::loopdev::{self, LoopDevice};
use crate::survival::{HeldMount, HoldMount, Predecessor, Table};
use fuse_mount::fuse_proto::Time;
use fuse_mount::{Error, Held, Hold, REQUESTS_PER_THREAD, SOURCE, Settings, Users, WhenBusy};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

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
        Mount::begin(config, exports, None)
    }

    /// As [`Mount::start`]; hands what a successor of this process needs to `hold` before the first
    /// request is served.
    ///
    /// # Errors
    /// As [`fuse_mount::Mount::start_held`].
    pub fn start_held(
        config: Config,
        exports: Vec<Export>,
        hold: HoldMount<'_>,
    ) -> Result<Mount, Error> {
        Mount::begin(config, exports, Some(hold))
    }

    fn begin(
        config: Config,
        exports: Vec<Export>,
        hold: Option<HoldMount<'_>>,
    ) -> Result<Mount, Error> {
        clear_dead(&config.mountpoint)?;
        let table = Table::create(exports.len(), now());
        let table =
            table.map_err(|e| Error::io("cannot create memory for the state of files", e))?;
        Mount::over(config, exports, &table, hold, |settings, files, hold| {
            fuse_mount::Mount::start_held(settings, files, hold)
        })
    }

    /// Continues the mount of a server that has died, over the same devices in the same order. The
    /// mountpoint is the one that the predecessor left. Nothing here accesses the directory, which
    /// would wait for this server. Then tells the kernel the sizes, in case the predecessor was about
    /// to.
    ///
    /// # Errors
    /// The table of the predecessor is damaged, or that of other files; as
    /// [`fuse_mount::Mount::resume`].
    pub fn resume(
        config: Config,
        exports: Vec<Export>,
        predecessor: Predecessor,
        hold: HoldMount<'_>,
    ) -> Result<Mount, Error> {
        let Predecessor {
            device,
            session,
            table,
        } = predecessor;
        let table = Table::adopt(table, exports.len()).map_err(|e| {
            let what = format!("cannot continue the mount {}", session.mountpoint.display());
            Error::io(what, e)
        })?;
        let config = Config {
            mountpoint: session.mountpoint,
            ..config
        };
        let mount = Mount::over(
            config,
            exports,
            &table,
            Some(hold),
            |settings, files, hold| {
                fuse_mount::Mount::resume(settings, files, (device, session.offer), hold)
            },
        )?;
        mount.update_sizes()?;
        Ok(mount)
    }

    /// Starts or continues a mount by `begin`.
    fn over(
        config: Config,
        exports: Vec<Export>,
        table: &Table,
        hold: Option<HoldMount<'_>>,
        begin: impl FnOnce(&Settings, Files, Hold<'_>) -> Result<fuse_mount::Mount, Error>,
    ) -> Result<Mount, Error> {
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
        let files = Files::new(exports, table);
        let holes = files.holes();
        let mut hold = hold.map(|hold| {
            move |session: &Held<'_>| {
                hold(&HeldMount {
                    session,
                    table: table.file(),
                })
            }
        });
        let hold: Hold<'_> = match &mut hold {
            Some(hold) => Some(hold),
            None => None,
        };
        let mount = begin(&settings, files, hold)?;
        Ok(Mount {
            mount,
            holes,
            files: count,
        })
    }

    /// Continues the loop device of a predecessor over the file of an export; `kept` is its
    /// [`LoopDevice::descriptor`]. If the predecessor left none, because it was killed while it created
    /// the device, or if the device was removed, creates one as [`LoopDevice::attach`] does.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn adopt_loop(
        &self,
        name: &str,
        kept: Option<OwnedFd>,
        (block_size, read_only): (u32, bool),
    ) -> Result<LoopDevice, Error> {
        let file = self.path_of(name);
        let was_kept = kept.is_some();
        let adopted = kept.map(|kept| LoopDevice::adopt(&kept, &file, read_only));
        if let Some(device) = adopted.transpose()?.flatten() {
            if let Err(e) = device.update_size() {
                tracing::debug!("{}: {e}", device.path().display());
            }
            return Ok(device);
        }
        if let Some(holes) = &self.holes {
            holes.forget();
        }
        let device = LoopDevice::attach(&file, block_size, read_only)?;
        if !was_kept {
            // A child of the predecessor may have completed its device just now.
            loopdev::remove_others_of(&file, device.path());
        }
        Ok(device)
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

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Time {
        seconds: since.as_secs() as i64,
        nanos: since.subsec_nanos(),
    }
}
