//! A mounted file system: the graph from a DEVICE to a mount point, and its orderly shutdown.
//!
//! ```text
//!   FileDevice ── CryptDevice ── Stats ── Fs ── Files, in the cache ── mount point
//! ```

use super::hub::Serving;
use super::status::{ExportAt, Status};
use crate::cache::ProcessCache;
use crate::control::{ControlRequest, Listener, check_name};
use crate::device::OpenLun;
use crate::filesystem::{execute, open_counted, resolve};
use crate::text::uuid_text;
use crate::{Error, Result, Settings, signals, volume::OpenedDevice};
use ::fs::{Atime, FIRST_FILESET, Files, Fs};
use block::StatsHandle;
use cache::{FileId, Vnode};
use export_fuse::{Mount, MountConfig};
use serde_json::Value;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file system to mount, and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSpec {
    pub device: PathBuf,
    /// Name of the mounted file system; part of file names.
    pub name: String,
    /// Mount point; an existing directory.
    pub folder: PathBuf,
    /// Name of the fileset or snapshot.
    pub fileset: String,
    /// Mount read-only.
    pub read_only: bool,
    /// Requests served concurrently; `None` for the mount's default.
    pub threads: Option<usize>,
    /// Allow other users access; `None` for the mount's default.
    pub allow_other: Option<bool>,
    /// Let the kernel hold back written data: only this mount uses the files.
    pub exclusive: bool,
    /// Honor set-user-ID and set-group-ID bits and capabilities of programs.
    pub suid: bool,
    /// Allow device nodes to open devices.
    pub dev: bool,
    /// Policy for updates of access times.
    pub atime: Atime,
    /// Pass discards to the device.
    pub allow_discards: bool,
    /// Configuration file that defines the mount.
    pub config: Option<PathBuf>,
}

impl MountSpec {
    /// Creates a spec with defaults, named after the device's file name without extension.
    pub fn new(device: &Path, folder: &Path) -> MountSpec {
        MountSpec {
            device: device.to_owned(),
            name: crate::device::default_name(device),
            folder: folder.to_owned(),
            fileset: FIRST_FILESET.to_owned(),
            read_only: false,
            threads: None,
            allow_other: None,
            exclusive: false,
            suid: false,
            dev: false,
            atime: Atime::default(),
            allow_discards: false,
            config: None,
        }
    }

    /// Validates the fields before a device is opened.
    ///
    /// # Errors
    /// [`Error::Usage`]; [`Error::Io`] if the mount point is not accessible.
    pub fn check(&self) -> Result<()> {
        check_name(&self.name, "a mounted file system")?;
        if (self.suid || self.dev) && !rustix::process::geteuid().is_root() {
            let name = if self.suid { "suid" } else { "dev" };
            return Err(Error::Usage(format!(
                "cannot mount with {name}: only root can; omit it, or mount as root"
            )));
        }
        check_folder(&self.folder)
    }
}

/// Checks whether `folder` is a directory to mount on.
pub(crate) fn check_folder(folder: &Path) -> Result<()> {
    match std::fs::metadata(folder) {
        Ok(meta) if !meta.is_dir() => {
            let why = format!("{} is not a directory", folder.display());
            Err(Error::Usage(why))
        }
        // The stale mount of a killed process answers no request; it is removed later.
        Err(e) if fuse_mount::server_died(&e) => Ok(()),
        Err(e) => Err(Error::io("cannot mount at", folder, e)),
        Ok(_) => Ok(()),
    }
}

/// A mounted file system. Dropping it without [`Serving::stop`] also unmounts it.
pub struct MountService {
    status: Status,
    listener: Arc<Listener>,
    // Fields drop in this order: the mount before the files, the files before the file system.
    mount: Option<Mount>,
    files: Arc<Files>,
    fs: Option<Fs>,
    cache: Arc<ProcessCache>,
    stats: StatsHandle,
    lun: Option<Arc<OpenLun>>,
    settings: Settings,
}

impl MountService {
    /// Opens the file system on an open DEVICE and mounts one of its filesets.
    ///
    /// # Errors
    /// The device holds no file system or no such fileset; errors of the mount.
    pub fn start(
        spec: &MountSpec,
        open: OpenedDevice,
        run_dir: &Path,
        settings: &Settings,
        cache: &Arc<ProcessCache>,
    ) -> Result<MountService> {
        signals::stop_in_order();
        let listener = Listener::bind(run_dir, &spec.name)?;
        let name = spec.device.display().to_string();
        let read_only = spec.read_only || open.device.info().read_only;
        let (fs, device, stats) = open_counted(&open, &name, settings, read_only)?;
        let failed = |what: &str| Error::files(format!("cannot {what} {name}"));
        let fileset = fs
            .fileset_named(&spec.fileset)
            .map_err(failed("mount from"))?;
        let read_only = read_only || fileset.is_snapshot().map_err(failed("read"))?;
        let files = Files::new(&fileset, &*cache.cache()?).map_err(failed("mount"))?;
        let defaults = MountConfig::new(spec.folder.clone());
        let config = MountConfig {
            threads: spec.threads.unwrap_or(defaults.threads),
            allow_other: spec.allow_other.unwrap_or(defaults.allow_other),
            read_only,
            exclusive: spec.exclusive,
            suid: spec.suid,
            dev: spec.dev,
            atime: spec.atime,
            ..defaults
        };
        let threads = config.threads;
        // It may be that of an attached volume, with a loop device.
        export_file::clear_dead(&spec.folder)?;
        let mount = Mount::start(config, Arc::clone(&files))?;
        let superblock = fs.superblock();
        let at = std::fs::canonicalize(&spec.folder).unwrap_or_else(|_| spec.folder.clone());
        let mut status = Status::of(&spec.name, &spec.device, threads, &open, device.info());
        status.uuid = uuid_text(&superblock.uuid);
        status.label = superblock.label;
        status.fileset = Some(spec.fileset.clone());
        status.read_only = read_only;
        status.config.clone_from(&spec.config);
        status.exports.push(ExportAt {
            kind: "mount",
            at: at.display().to_string(),
        });
        Ok(MountService {
            status,
            listener: Arc::new(listener),
            mount: Some(mount),
            files,
            fs: Some(fs),
            cache: Arc::clone(cache),
            stats,
            lun: open.disk.lun().cloned(),
            settings: settings.clone(),
        })
    }

    fn fs(&self) -> Result<&Fs> {
        let closed = || Error::Failed(format!("{} is being unmounted", self.status.name));
        self.fs.as_ref().ok_or_else(closed)
    }

    /// Updates a copy of the status with the current state of the file system.
    fn status_now(&self) -> Status {
        let mut status = self.status.clone();
        let asked = status.read_only;
        let failed = self.fs.as_ref().and_then(Fs::read_only_because);
        if let (false, Some(why)) = (asked, failed) {
            status.read_only = true;
            status.warn(format!("{why}; unmount, check the device, and mount again"));
        }
        status.note_write_back(&[self.files.volume()]);
        status
    }

    /// Looks up the vnode of a file in the mounted fileset.
    fn vnode(&self, path: Option<&str>) -> Result<Arc<Vnode>> {
        let path = path.ok_or_else(|| {
            Error::Usage(format!(
                "{} is a mounted file system: select a file in it with --file",
                self.status.name
            ))
        })?;
        let attr = resolve(self.files.fileset(), path)?;
        if attr.inode.kind != ::fs::FileType::File {
            return Err(Error::Usage(format!("{path} is not a regular file")));
        }
        let volume = self.files.volume();
        Ok(volume.vnode(FileId(attr.ino), attr.inode.size))
    }

    /// Unmounts the fileset. Returns whether all users have closed its files.
    fn unmount(&mut self, force: bool) -> Result<bool> {
        let Some(mount) = self.mount.take() else {
            return Ok(true);
        };
        if mount.has_ended() {
            mount.wait();
            return Ok(true);
        }
        match mount.unmount(force) {
            Ok(over) => Ok(over),
            Err(kept) => {
                let (mount, error) = *kept;
                self.mount = Some(mount);
                Err(error.into())
            }
        }
    }

    /// Writes everything out and closes the device.
    fn close(&mut self, over: bool) -> Result<()> {
        self.write_out(over)?;
        if let Some(fs) = &self.fs {
            fs.finish()
                .map_err(Error::files(format!("cannot close {}", self.status.name)))?;
        }
        self.fs = None;
        Ok(())
    }

    /// Makes everything durable and, if `over` says that no user is left, wipes the cached pages.
    fn write_out(&self, over: bool) -> Result<()> {
        let name = &self.status.name;
        let failed = || {
            Error::files(format!(
                "cannot write back {name} (--force discards unwritten data)"
            ))
        };
        if over {
            self.files.close().map_err(failed())?
        } else {
            self.files.sync().map_err(failed())?
        }
        if self.status.read_only {
            Ok(())
        } else {
            self.fs()?.commit().map_err(failed())
        }
    }
}

impl Serving for MountService {
    fn status(&self) -> &Status {
        &self.status
    }

    fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    fn lun(&self) -> Option<&Arc<OpenLun>> {
        self.lun.as_ref()
    }

    fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.mount.as_ref().map(Mount::ended)
    }

    fn answer(&self, ask: &ControlRequest) -> Result<Value> {
        match ask {
            ControlRequest::Stats => {
                Ok(serde_json::to_value(self.stats.snapshot()).expect("counters become JSON"))
            }
            ControlRequest::Status | ControlRequest::MayDetach | ControlRequest::Detach { .. } => {
                Ok(self.status_now().to_value())
            }
            ControlRequest::Lun(ask) => {
                crate::lun::answer(&self.status.name, self.lun.as_deref(), ask, &self.settings)
            }
            ControlRequest::Cache(ask) => {
                let vnode = |path: Option<&str>| self.vnode(path);
                self.cache.answer(&[self.files.volume()], &vnode, ask)
            }
            ControlRequest::Cell(_) => Err(crate::cell::not_served(&self.status.name)),
            ControlRequest::Files(ask) => {
                let sync = || {
                    let failed = Error::files(format!("cannot write back {}", self.status.name));
                    self.files.sync().map_err(failed)
                };
                execute(self.fs()?, ask, &sync, self.status.fileset.as_deref())
            }
        }
    }

    fn in_use(&self) -> Result<()> {
        match &self.mount {
            Some(mount) if !mount.has_ended() => Ok(mount.in_use(true)?),
            _ => Ok(()),
        }
    }

    fn flush(&self) -> Result<()> {
        self.write_out(false)
    }

    fn stop(&mut self, force: bool) -> Result<()> {
        if !force {
            self.in_use()?;
            self.flush()?;
        }
        let over = self.unmount(force)?;
        self.close(over).map_err(|error| {
            if force {
                let lost = crate::cache::dirty_bytes(&[self.files.volume()]);
                Error::data_lost(&self.status.name, Some(lost), &error)
            } else {
                error
            }
        })
    }
}
