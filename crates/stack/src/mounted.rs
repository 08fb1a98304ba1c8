//! A mounted file system: the graph from a DEVICE to a folder, and its orderly end.
//!
//! ```text
//!   FileDevice ── CryptDevice ── Stats ── Fs ── Files, in the cache ── folder
//! ```

use crate::cache::ProcessCache;
use crate::control::{Ask, Listener, check_name};
use crate::device::OpenLun;
use crate::filesystem::{carry_out, open_counted, resolve, uuid_text};
use crate::serve::Serving;
use crate::status::{ExportAt, Status};
use crate::{Error, Result, Settings, signals, volume::Open};
pub use ::fs::Atime;
use ::fs::{FIRST_FILESET, Files, Fs};
use block::StatsHandle;
use cache::{FileId, Vnode};
use export_fuse::{Mount, TreeConfig};
use serde_json::Value;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to mount, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSpec {
    /// The DEVICE.
    pub device: PathBuf,
    /// Name of the mounted file system; part of file names.
    pub name: String,
    /// An existing folder.
    pub folder: PathBuf,
    /// The fileset or snapshot.
    pub fileset: String,
    /// Refuse changes.
    pub read_only: bool,
    /// Requests that are worked on at the same time; the mount's own default if there is none.
    pub threads: Option<usize>,
    /// Whether other users may enter; the mount's own default if it is left open.
    pub allow_other: Option<bool>,
    /// Let the kernel keep what is written to itself for a while.
    pub exclusive: bool,
    /// Honor set-user-ID, set-group-ID and capabilities of programs.
    pub suid: bool,
    /// Let device nodes open devices.
    pub dev: bool,
    /// When reading changes the time of the last reading.
    pub atime: Atime,
    /// Pass discards on.
    pub allow_discards: bool,
    /// The configuration file that this came from.
    pub config: Option<PathBuf>,
}

impl MountSpec {
    /// With defaults: the device's file name without extension is the name.
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

    /// Checks what can be checked before anything is opened.
    ///
    /// # Errors
    /// [`Error::Usage`], [`Error::NotFound`].
    pub fn check(&self) -> Result<()> {
        check_name(&self.name, "a mounted file system")?;
        if (self.suid || self.dev) && !rustix::process::geteuid().is_root() {
            let name = if self.suid { "suid" } else { "dev" };
            return Err(Error::Usage(format!(
                "cannot mount with {name}: only root may; leave it out, or mount as root"
            )));
        }
        check_folder(&self.folder)
    }
}

/// Whether there is a folder to mount on.
pub(crate) fn check_folder(folder: &Path) -> Result<()> {
    match std::fs::metadata(folder) {
        Ok(meta) if !meta.is_dir() => {
            let why = format!("{} is not a folder", folder.display());
            Err(Error::Usage(why))
        }
        // What a killed process left mounted there answers nothing, and is taken away later.
        Err(e) if export_fuse::server_died(&e) => Ok(()),
        Err(e) => Err(Error::io("cannot mount at", folder, e)),
        Ok(_) => Ok(()),
    }
}

/// A file system that is mounted. Dropping it without [`Serving::stop`] unmounts all the same.
pub struct Mounted {
    status: Status,
    listener: Arc<Listener>,
    // The mount before the files, and those before the file system: fields are dropped in this order.
    mount: Option<Mount>,
    files: Arc<Files>,
    fs: Option<Fs>,
    cache: Arc<ProcessCache>,
    stats: StatsHandle,
    lun: Option<Arc<OpenLun>>,
    settings: Settings,
}

impl Mounted {
    /// Opens the file system on an open DEVICE and mounts a fileset of it.
    ///
    /// # Errors
    /// There is no file system, or no such fileset; those of the mount.
    pub fn start(
        spec: &MountSpec,
        open: Open,
        run_dir: &Path,
        settings: &Settings,
        cache: &Arc<ProcessCache>,
    ) -> Result<Mounted> {
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
        let defaults = TreeConfig::new(spec.folder.clone());
        let config = TreeConfig {
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
        let mount = Mount::start_tree(config, Arc::clone(&files))?;
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
        Ok(Mounted {
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

    /// The status, with what has become of the file system since.
    fn status_now(&self) -> Status {
        let mut status = self.status.clone();
        let asked = status.read_only;
        let failed = self.fs.as_ref().and_then(Fs::read_only_because);
        if let (false, Some(why)) = (asked, failed) {
            status.read_only = true;
            status.warn(format!(
                "nothing can be changed any more: {why}; unmount, look after the device, and mount again"
            ));
        }
        status.note_write_back(&[self.files.volume()]);
        status
    }

    /// The pages of a file in what is mounted.
    fn vnode(&self, path: Option<&str>) -> Result<Arc<Vnode>> {
        let path = path.ok_or_else(|| {
            Error::Usage(format!(
                "{} is a mounted file system: name a file in it with --file",
                self.status.name
            ))
        })?;
        let attr = resolve(self.files.fileset(), path)?;
        if attr.inode.kind != ::fs::FileType::File {
            return Err(Error::Usage(format!("{path} is no regular file")));
        }
        let volume = self.files.volume();
        Ok(volume.vnode(FileId(attr.ino), attr.inode.size))
    }

    /// Takes the mount away. Says whether nobody can reach the files any more.
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

    /// Writes everything out and lets the device go.
    fn close(&mut self, over: bool) -> Result<()> {
        self.write_out(over)?;
        if let Some(fs) = &self.fs {
            fs.close()
                .map_err(Error::files(format!("cannot close {}", self.status.name)))?;
        }
        self.fs = None;
        Ok(())
    }

    /// Makes everything durable and, if nobody uses the files any more, wipes what the cache has.
    fn write_out(&self, over: bool) -> Result<()> {
        let name = &self.status.name;
        let failed = || {
            Error::files(format!(
                "cannot write {name} out (--force gives up what is in memory only)"
            ))
        };
        match over {
            true => self.files.close().map_err(failed())?,
            false => self.files.sync().map_err(failed())?,
        }
        match self.status.read_only {
            true => Ok(()),
            false => self.fs()?.commit().map_err(failed()),
        }
    }
}

impl Serving for Mounted {
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
        self.mount.as_ref().and_then(Mount::ended)
    }

    fn answer(&self, ask: &Ask) -> Result<Value> {
        match ask {
            Ask::Stats => {
                Ok(serde_json::to_value(self.stats.snapshot()).expect("counters become JSON"))
            }
            Ask::Status | Ask::MayDetach | Ask::Detach { .. } => Ok(self.status_now().to_value()),
            Ask::Lun(ask) => {
                crate::lun::answer(&self.status.name, self.lun.as_deref(), ask, &self.settings)
            }
            Ask::Cache(ask) => {
                let vnode = |path: Option<&str>| self.vnode(path);
                self.cache.answer(&[self.files.volume()], &vnode, ask)
            }
            Ask::Cell(_) => Err(crate::cell::not_served(&self.status.name)),
            Ask::Files(ask) => {
                let sync = || {
                    let failed = Error::files(format!("cannot write {} out", self.status.name));
                    self.files.sync().map_err(failed)
                };
                carry_out(self.fs()?, ask, &sync, self.status.fileset.as_deref())
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
        self.close(over).map_err(|error| match force {
            true => {
                let lost = crate::cache::dirty_bytes(&[self.files.volume()]);
                Error::data_lost(&self.status.name, Some(lost), &error)
            }
            false => error,
        })
    }
}
