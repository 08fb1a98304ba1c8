//! A mounted file system: the graph from a DEVICE to a mount point.
//!
//! ```text
//!   FileDevice ── CryptDevice ── Stats ── Fs ── Files, in the cache ── mount point
//! ```

use super::health::State;
use super::jobs::Jobs;
use super::mount_point::MountPoint;
use super::recurring::Recurring;
use super::schedule::{self, KeepSnapshots};
use super::scrubs::{self, ScheduledScrub};
use super::status::{ExportAt, Status, SyncCalls};
use super::{Built, Closing, Graph, Tree, check_mount_point};
use crate::cache::ProcessCache;
use crate::control::{FsRequest, GrowRequest, Run, check_name};
use crate::filesystem::grow::{self, Layers, Upper};
use crate::filesystem::{execute, open_counted, resolve, transfer};
use crate::succession::Succession;
use crate::text::{json_of, uuid_text};
use crate::volume::OpenedDevice;
use crate::{Error, Result, Settings};
use ::cache::{Cache, FileId, Vnode, Volume};
use ::fs::{Atime, FIRST_FILESET, Files, Fileset, Fs, Snapshots};
use block::Access;
use export_fuse::{DEFAULT_SYNC_TIMEOUT, Mount, MountConfig};
use serde_json::Value;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The file system to mount, and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSpec {
    pub device: PathBuf,
    /// Name of the mounted file system; part of file names.
    pub name: String,
    /// Mount point; an existing directory.
    pub folder: PathBuf,
    /// Source in the list of mounts; `None` for the mount's default.
    pub source: Option<String>,
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
    /// Let programs be run.
    pub exec: bool,
    /// Policy for updates of access times.
    pub atime: Atime,
    /// Let the kernel forward sync(2) and syncfs(2) where it can, and answer each within this time;
    /// `None` to let them do nothing.
    pub sync_timeout: Option<Duration>,
    /// Show the snapshots of the fileset in `.snapshots`.
    pub snapshots: bool,
    /// Snapshots that the mount takes by the clock.
    pub keep_snapshots: KeepSnapshots,
    /// Scrubs that the mount makes by the clock.
    pub scrub: Option<ScheduledScrub>,
    /// Pass discards to the device.
    pub allow_discards: bool,
    /// Let another process continue the mount if this one dies.
    pub survives: bool,
    /// Configuration file that defines the mount.
    pub config: Option<PathBuf>,
}

/// Converts an option in seconds: 0 lets sync(2) and syncfs(2) do nothing.
pub fn sync_timeout(seconds: u16) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

impl MountSpec {
    /// Creates a spec with defaults, named after the device's file name without extension.
    pub fn new(device: &Path, folder: &Path) -> MountSpec {
        MountSpec {
            device: device.to_owned(),
            name: crate::device::default_name(device),
            folder: folder.to_owned(),
            source: None,
            fileset: FIRST_FILESET.to_owned(),
            read_only: false,
            threads: None,
            allow_other: None,
            exclusive: false,
            suid: false,
            dev: false,
            exec: true,
            atime: Atime::default(),
            sync_timeout: Some(DEFAULT_SYNC_TIMEOUT),
            snapshots: true,
            keep_snapshots: KeepSnapshots::default(),
            scrub: None,
            allow_discards: false,
            survives: false,
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
        if self.survives && self.atime == Atime::Strict {
            return Err(Error::Usage(String::from(
                "cannot mount with --survive and --atime strict, which needs a table of open \
                 directories; omit one of them",
            )));
        }
        check_mount_point(&self.folder)
    }

    /// Returns the configuration of the mount.
    pub(super) fn config(&self, read_only: bool) -> MountConfig {
        let defaults = MountConfig::new(self.folder.clone());
        MountConfig {
            source: self.source.clone().unwrap_or(defaults.source),
            threads: self.threads.unwrap_or(defaults.threads),
            allow_other: self.allow_other.unwrap_or(defaults.allow_other),
            read_only,
            exclusive: self.exclusive,
            suid: self.suid,
            dev: self.dev,
            exec: self.exec,
            atime: self.atime,
            sync_timeout: self.sync_timeout,
            ..defaults
        }
    }
}

/// Builds the graph over an open DEVICE, up to the files of the fileset to mount.
pub(super) fn build(
    spec: &MountSpec,
    open: &OpenedDevice,
    settings: &Settings,
    cache: &ProcessCache,
) -> Result<Built> {
    let name = spec.device.display().to_string();
    let read_only = spec.read_only || open.device.info().read_only;
    let (fs, device, stats) = open_counted(open, &name, settings, Access::read_only_if(read_only))?;
    let failed = |what: &str| Error::files(format!("cannot {what} {name}"));
    let fileset = fs
        .fileset_named(&spec.fileset)
        .and_then(|fileset| complete(&fs, fileset))
        .map_err(failed("mount from"))?;
    let is_snapshot = fileset.is_snapshot().map_err(failed("read"))?;
    let read_only = read_only || is_snapshot;
    if (spec.read_only || is_snapshot) && spec.keep_snapshots != KeepSnapshots::default() {
        return Err(Error::Usage(format!(
            "cannot mount {name} with keep-snapshots: the mount is read-only; omit keep-snapshots"
        )));
    }
    let cache = cache.cache()?;
    let files = Files::new(&fileset, &cache).map_err(failed("mount"))?;
    if let Some(succession) = settings.succession() {
        succession.check_adopted(&fs)?;
        succession.adopt_pages(&cache, &files)?;
    }
    let shown = spec.snapshots && !is_snapshot;
    let snapshots = shown.then(|| Snapshots::new(&fileset, &cache));
    let succession = settings.succession().cloned();
    let config = MountConfig {
        snapshots: snapshots.clone(),
        survival: succession.as_ref().map(Succession::of_mount).transpose()?,
        ..spec.config(read_only)
    };
    let superblock = fs.superblock();
    let status = Status {
        uuid: uuid_text(&superblock.uuid),
        label: superblock.label,
        fileset: Some(spec.fileset.clone()),
        read_only,
        config: spec.config.clone(),
        ..Status::of(
            &spec.name,
            &spec.device,
            config.threads,
            open,
            device.info(),
        )
    };
    let graph = MountGraph {
        name: spec.name.clone(),
        fileset: spec.fileset.clone(),
        read_only,
        point: MountPoint::new(config),
        keep_snapshots: spec.keep_snapshots,
        scrub: spec.scrub,
        scrubs: settings.trust_store().with_file_name("scrubs.json"),
        succession,
        recurring: Vec::new(),
        jobs: Jobs::default(),
        snapshots,
        files,
        cache,
        fs: Some(Arc::new(fs)),
    };
    Ok(Built {
        graph: Box::new(graph),
        status,
        stats,
    })
}

/// Returns the last complete state of a fileset: while it receives a snapshot, the one before.
fn complete(fs: &Fs, fileset: Fileset) -> ::fs::Result<Fileset> {
    let reception = fs.reception(fileset.id())?;
    match reception.and_then(|reception| reception.base) {
        Some(base) => fs.fileset(base),
        None => Ok(fileset),
    }
}

impl SyncCalls {
    fn of(mount: &Mount) -> SyncCalls {
        if mount.receives_sync() {
            SyncCalls::Durable
        } else {
            SyncCalls::Ignored
        }
    }
}

struct MountGraph {
    name: String,
    fileset: String,
    read_only: bool,
    // Fields drop in this order: the mount before the files, the files before the file system.
    point: MountPoint,
    keep_snapshots: KeepSnapshots,
    scrub: Option<ScheduledScrub>,
    /// File with the positions of scrubs.
    scrubs: PathBuf,
    /// State for a process that continues the mount; `None` if it ends with this one.
    succession: Option<Arc<Succession>>,
    /// The threads of both.
    recurring: Vec<Recurring>,
    jobs: Jobs,
    snapshots: Option<Arc<Snapshots>>,
    files: Arc<Files>,
    cache: Arc<Cache>,
    fs: Option<Arc<Fs>>,
}

impl MountGraph {
    fn fs(&self) -> Result<&Arc<Fs>> {
        let closed = || Error::Failed(format!("{} is being unmounted", self.name));
        self.fs.as_ref().ok_or_else(closed)
    }

    /// Mounts the files, unless they are mounted or must not be mounted again.
    fn open_mount(&mut self, status: &mut Status) -> Result<()> {
        if self.point.mount.is_some() {
            return Ok(());
        }
        let Some(config) = self.point.config.take() else {
            return Ok(());
        };
        let folder = &config.mountpoint;
        let succession = self.succession.clone();
        let continues = succession.as_ref().filter(|s| s.is_successor());
        let (mount, at, sync) = match (continues, &config.survival) {
            (Some(succession), Some(survival)) => {
                let before = succession.mount(self.fs()?)?;
                let at = before.session.mountpoint.clone();
                // The first server has found out.
                let sync = if before.session.on_block_device {
                    SyncCalls::Durable
                } else {
                    SyncCalls::Ignored
                };
                let mount = Mount::resume(config.clone(), &self.files, survival, before);
                if let Err(error) = &mount {
                    // Also if no later server can continue.
                    self.flush()?;
                    succession.failed(error)?;
                }
                (mount?, at, sync)
            }
            _ => {
                // It may be that of an attached volume, with a loop device.
                export_file::clear_dead(folder)?;
                let mount = Mount::start(config.clone(), Arc::clone(&self.files))?;
                let at = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
                let sync = SyncCalls::of(&mount);
                (mount, at, sync)
            }
        };
        if let Some(succession) = &succession {
            succession.mounted()?;
        }
        status.exports.push(ExportAt {
            sync: (!self.read_only).then_some(sync),
            ..ExportAt::new("mount", at.display().to_string())
        });
        self.point.mount = Some(mount);
        self.point.config = Some(config);
        Ok(())
    }

    /// Starts to take snapshots and to scrub by the clock, as configured.
    fn start_recurring(&mut self) -> Result<()> {
        let failed = |e| Error::Failed(format!("cannot start a thread for scheduled work: {e}"));
        let fs = self.fs()?;
        let mut started = Vec::new();
        if !self.read_only && self.keep_snapshots != KeepSnapshots::default() {
            let files = Arc::clone(&self.files);
            let write_out = Box::new(move || files.sync());
            let of = self.files.fileset().id();
            let snapshots = schedule::start(self.keep_snapshots, Arc::clone(fs), of, write_out);
            started.push(snapshots.map_err(failed)?);
        }
        if let Some(plan) = self.scrub {
            let uuid = uuid_text(&fs.superblock().uuid);
            let (fs, file) = (Arc::clone(fs), self.scrubs.clone());
            started.push(scrubs::start(plan, fs, &self.name, &uuid, file).map_err(failed)?);
        }
        self.recurring = started;
        Ok(())
    }

    /// Builds the error for failed write-back, given its source.
    fn not_written(&self) -> impl FnOnce(::fs::Error) -> Error + use<> {
        Error::files(format!(
            "cannot write back {} (--force discards unwritten data)",
            self.name
        ))
    }
}

impl Graph for MountGraph {
    fn open_exports(&mut self, status: &mut Status) -> Result<()> {
        self.open_mount(status)?;
        if self.recurring.is_empty() && self.point.config.is_some() {
            self.start_recurring()?;
        }
        Ok(())
    }

    fn in_use(&self) -> Result<()> {
        self.point.in_use()
    }

    fn flush(&self) -> Result<()> {
        self.files.sync().map_err(self.not_written())?;
        if self.read_only {
            Ok(())
        } else {
            self.fs()?.commit().map_err(self.not_written())
        }
    }

    fn close_exports(&mut self, status: &mut Status, closing: Closing) -> Result<()> {
        self.recurring.clear();
        self.jobs.stop();
        self.point.close(status, closing)
    }

    fn close(&mut self) -> Result<()> {
        self.jobs.stop();
        self.flush()?;
        // From here on, the files cannot be used again.
        self.point.config = None;
        if let Some(snapshots) = self.snapshots.take() {
            snapshots.close();
        }
        if self.point.unused {
            self.files.close().map_err(self.not_written())?;
        }
        if let Some(fs) = &self.fs {
            fs.finish()
                .map_err(Error::files(format!("cannot close {}", self.name)))?;
        }
        self.fs = None;
        Ok(())
    }

    fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.point.ended()
    }

    fn has_ended(&self) -> bool {
        self.point.has_ended()
    }

    fn update(&self, status: &mut Status) {
        let failed = self.fs.as_ref().and_then(|fs| fs.read_only_because());
        if let (false, Some(why)) = (self.read_only, failed) {
            status.read_only = true;
            let warning = format!("{why}; unmount, check the device, and mount again");
            status.warn_of(State::ReadOnly, warning);
        }
        status.note_fs(self.fs.as_deref());
        self.jobs.note(status);
    }

    fn trees(&self) -> Vec<Tree> {
        vec![Tree {
            name: self.fileset.clone(),
            pages: Arc::clone(self.files.volume()),
            fileset: Some(self.files.fileset().clone()),
        }]
    }

    fn cached(&self) -> Result<Vec<Arc<Volume>>> {
        Ok(vec![Arc::clone(self.files.volume())])
    }

    fn vnode(&self, path: Option<&str>) -> Result<Arc<Vnode>> {
        let path = path.ok_or_else(|| {
            Error::Usage(format!(
                "{} is a mounted file system; select a file in it with --file",
                self.name
            ))
        })?;
        let attr = resolve(self.files.fileset(), path)?;
        if attr.inode.kind != ::fs::FileType::File {
            return Err(Error::Usage(format!("{path} is not a regular file")));
        }
        let volume = self.files.volume();
        Ok(volume.vnode(FileId(attr.ino), attr.inode.size))
    }

    fn grow(&self, layers: &Layers<'_>, ask: &GrowRequest, run: Run) -> Result<Value> {
        grow::answer(layers, &Upper::FileSystem(self.fs()?), ask, run)
    }

    fn files(&self, request: &FsRequest, run: Run) -> Result<Value> {
        let sync = || {
            let failed = Error::files(format!("cannot write back {}", self.name));
            self.files.sync().map_err(failed)
        };
        if let FsRequest::Transfer(ask) = request {
            return Ok(json_of(&transfer::answer(
                self.fs()?,
                ask,
                run,
                &self.cache,
            )?));
        }
        if let FsRequest::Job(ask) = request {
            let own = Some(self.fileset.as_str());
            return self.jobs.answer((self.fs()?, &self.name), own, ask, run);
        }
        let in_use = self.files.fileset().id();
        execute(self.fs()?, request, run, &sync, Some(in_use))
    }
}
