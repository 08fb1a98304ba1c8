//! An attached volume: the graph from a file to its exports, and its orderly shutdown.
//!
//! ```text
//!   FileDevice ── CryptDevice ── StickyFlush ── CachedDevice ── Stats ──┬── NBD server
//!                                                                       └── FUSE ── loop device
//! ```

use super::hub::Serving;
use super::mount::check_folder;
use super::status::{ExportAt, Status};
use crate::cache::ProcessCache;
use crate::control::{ControlRequest, Listener, check_name};
use crate::device::OpenLun;
use crate::{Error, Result, Settings, signals, volume::OpenedDevice};
use block::{BlockDevice, Blocking, Stats, StatsHandle, StickyFlush};
use cache::CachedDevice;
use export_file::loopdev::LoopDevice;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Longest name of a Unix socket, in bytes: `sun_path` without the terminating zero.
const SOCKET_NAME_MAX: usize = 107;

/// The volume to attach, and its exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachSpec {
    /// File, disk or LUN that holds the volume.
    pub device: PathBuf,
    /// Name of the attached volume; part of file names.
    pub name: String,
    /// Address for NBD over TCP.
    pub nbd: Option<SocketAddr>,
    /// Path for NBD over a Unix socket.
    pub nbd_unix: Option<PathBuf>,
    /// Certificates for NBD over TCP.
    pub tls: Option<export_nbd::Tls>,
    /// Serve unauthenticated TCP clients.
    pub anonymous: bool,
    /// Mount point of a FUSE mount with one file, the volume.
    pub fuse: Option<PathBuf>,
    /// Create a loop device over the file in the mount.
    pub loop_device: bool,
    /// Number of threads that serve each export.
    pub threads: usize,
    /// Refuse writes.
    pub read_only: bool,
    /// Pass discards to the device.
    pub allow_discards: bool,
    /// Cache pages in this process.
    pub cached: bool,
    /// Configuration file that defines the service.
    pub config: Option<PathBuf>,
}

impl AttachSpec {
    /// Creates a spec with defaults for `device`, named after its file name without extension.
    pub fn new(device: &Path, threads: usize) -> AttachSpec {
        AttachSpec {
            device: device.to_owned(),
            name: crate::device::default_name(device),
            nbd: None,
            nbd_unix: None,
            tls: None,
            anonymous: false,
            fuse: None,
            loop_device: false,
            threads,
            read_only: false,
            allow_discards: false,
            cached: true,
            config: None,
        }
    }

    /// Validates the fields and fills in the default export: an NBD socket in the directory of
    /// control sockets.
    pub fn complete(mut self, run_dir: &Path) -> Result<AttachSpec> {
        check_name(&self.name, "an attached volume")?;
        if let Some(folder) = &self.fuse {
            check_folder(folder)?;
        }
        if self.loop_device && self.fuse.is_none() {
            self.fuse = Some(run_dir.join(format!("{}.fuse", self.name)));
        }
        if self.nbd.is_none() && self.nbd_unix.is_none() && self.fuse.is_none() {
            self.nbd_unix = Some(run_dir.join(format!("{}.nbd", self.name)));
        }
        let full = self.nbd_unix.as_ref().map(std::path::absolute);
        if let Some(Ok(full)) = full
            && full.as_os_str().len() > SOCKET_NAME_MAX
        {
            return Err(Error::Usage(format!(
                "{} is too long for a socket path: it has {} bytes, and clients can connect to at \
                 most {SOCKET_NAME_MAX}; choose a shorter path with --nbd-unix",
                full.display(),
                full.as_os_str().len()
            )));
        }
        Ok(self)
    }
}

/// A running graph. Dropping it without [`Serving::stop`] also closes the exports.
pub struct Attachment {
    spec: AttachSpec,
    status: Status,
    listener: Arc<Listener>,
    // Fields drop in this order: exports before devices.
    loop_device: Option<LoopDevice>,
    mount: Option<export_file::Mount>,
    made_dir: Option<PathBuf>,
    run_dir: PathBuf,
    nbd: Option<export_nbd::Server>,
    device: Arc<dyn BlockDevice>,
    /// Error of the first failed flush of the device.
    lost: Arc<OnceLock<block::Error>>,
    cached: Option<(CachedDevice, Arc<ProcessCache>)>,
    stats: StatsHandle,
    lun: Option<Arc<OpenLun>>,
    settings: Settings,
}

impl Attachment {
    /// Builds the graph over an open volume and starts its exports.
    ///
    /// # Errors
    /// Those of the exports; exports that were started are closed again.
    pub fn start(
        spec: &AttachSpec,
        open: OpenedDevice,
        run_dir: &Path,
        settings: &Settings,
        cache: &Arc<ProcessCache>,
    ) -> Result<Attachment> {
        signals::stop_in_order();
        let listener = Listener::bind(run_dir, &spec.name)?;
        let lun = open.disk.lun().cloned();
        let sticky = StickyFlush::new(Arc::clone(&open.device));
        let lost = sticky.failure();
        let mut device: Arc<dyn BlockDevice> = Arc::new(sticky);
        let mut cached = None;
        if spec.cached {
            let over = cache.device(device)?;
            device = Arc::new(over.clone());
            cached = Some((over, Arc::clone(cache)));
        }
        let (device, stats) = Stats::new(device);
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let info = device.info();
        let mut attachment = Attachment {
            spec: spec.clone(),
            status: Status {
                cached: spec.cached,
                direct: !spec.cached,
                config: spec.config.clone(),
                ..Status::of(&spec.name, &spec.device, spec.threads, &open, info)
            },
            listener: Arc::new(listener),
            loop_device: None,
            mount: None,
            made_dir: None,
            run_dir: run_dir.to_owned(),
            nbd: None,
            device,
            lost,
            cached,
            stats,
            lun,
            settings: settings.clone(),
        };
        attachment.open_exports()?;
        Ok(attachment)
    }

    /// Starts those exports of the spec that are not running.
    fn open_exports(&mut self) -> Result<()> {
        let spec = self.spec.clone();
        if self.nbd.is_none() {
            self.start_nbd(&spec)?;
        }
        if self.mount.is_none() {
            self.start_fuse(&spec)?;
        }
        if self.loop_device.is_none() {
            self.start_loop(&spec)?;
        }
        Ok(())
    }

    fn start_nbd(&mut self, spec: &AttachSpec) -> Result<()> {
        let unix = spec
            .nbd_unix
            .iter()
            .map(|p| export_nbd::Listen::Unix(p.clone()));
        let tcp = spec.nbd.iter().map(|&a| export_nbd::Listen::Tcp(a));
        let listen: Vec<_> = unix.chain(tcp).collect();
        if listen.is_empty() {
            return Ok(());
        }
        let export = export_nbd::Export {
            name: spec.name.clone(),
            description: self.status.label.clone(),
            device: Arc::clone(&self.device),
            read_only: self.status.read_only,
        };
        let config = export_nbd::Config {
            listen,
            threads: spec.threads,
            tls: spec.tls.clone(),
            anonymous: spec.anonymous,
            ..export_nbd::Config::default()
        };
        let server = export_nbd::Server::start(config, vec![export])?;
        let uris = server.uris(&spec.name);
        self.status
            .exports
            .extend(uris.into_iter().map(|at| ExportAt { kind: "nbd", at }));
        let proven = spec.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if let (Some(address), true, false) = (spec.nbd, spec.anonymous, proven) {
            let whoever = if address.ip().is_loopback() {
                "any user of this machine"
            } else {
                "any client that can reach this machine"
            };
            let may = if self.status.read_only {
                "read"
            } else {
                "read and change"
            };
            let warning = format!(
                "--anonymous: {whoever} can {may} the unencrypted data at {address}; --tls-ca \
                 admits only clients with a certificate"
            );
            self.status.warn(warning);
        }
        self.nbd = Some(server);
        Ok(())
    }

    fn start_fuse(&mut self, spec: &AttachSpec) -> Result<()> {
        let Some(folder) = &spec.fuse else {
            return Ok(());
        };
        export_file::clear_dead(folder)?;
        // The default mount point is removed later even if an earlier, killed process made it.
        if folder.parent() == Some(&*self.run_dir) {
            std::fs::create_dir_all(folder).map_err(|e| Error::io("cannot create", folder, e))?;
            self.made_dir = Some(folder.clone());
        }
        let export = export_file::Export {
            name: spec.name.clone(),
            device: Arc::clone(&self.device),
            read_only: self.status.read_only,
        };
        let config = export_file::Config {
            threads: spec.threads,
            ..export_file::Config::new(folder.clone())
        };
        let mount = export_file::Mount::start(config, vec![export])?;
        let file = mount.path_of(&spec.name);
        self.mount = Some(mount);
        self.status.exports.push(ExportAt {
            kind: "fuse",
            at: file.display().to_string(),
        });
        Ok(())
    }

    fn start_loop(&mut self, spec: &AttachSpec) -> Result<()> {
        let Some(mount) = self.mount.as_ref().filter(|_| spec.loop_device) else {
            return Ok(());
        };
        let file = mount.path_of(&spec.name);
        let block = self.device.info().logical_block_size;
        let device = LoopDevice::attach(&file, block, self.status.read_only, true)?;
        let at = device.path().display().to_string();
        self.status.exports.push(ExportAt { kind: "loop", at });
        if !device.pass_discards(mount.holes().filter(|_| self.status.discards)) {
            let why = "the loop device does not pass discards: this kernel cannot distinguish them \
                       from zeroing (Linux 6.11 and later can); NBD passes them";
            self.status.warn(why);
        }
        self.loop_device = Some(device);
        Ok(())
    }

    /// Updates a copy of the status with the current state of the device.
    fn status_now(&self) -> Status {
        let mut status = self.status.clone();
        if let Some(error) = self.lost.get() {
            let lost = format!(
                "a flush failed, and all later flushes fail too: {error}; data written by clients \
                 may be lost; detach with --force, check the device and the data, and attach again"
            );
            status.warn(lost);
        }
        if let Some((cached, _)) = &self.cached {
            status.note_write_back(&[cached.volume()]);
        }
        status
    }

    /// Makes everything durable and wipes the cached pages.
    fn close(&self) -> Result<()> {
        self.flush()?;
        match &self.cached {
            Some((cached, _)) => Ok(cached.volume().close()?),
            None => Ok(()),
        }
    }

    /// Writes everything out, closes the exports, and writes out data that arrived in between.
    fn stop_in_order(&mut self) -> Result<()> {
        self.in_use()?;
        self.flush()?;
        self.close_exports(false)?;
        self.close()
    }

    /// Closes the exports even if they are in use, and writes out as much as possible.
    fn stop_by_force(&mut self) -> Result<()> {
        // Now, while a file system on the loop device can still write.
        if let Err(error) = self.flush() {
            tracing::warn!(volume = self.status.name, "cannot flush: {}", error.chain());
        }
        self.close_exports(true)?;
        self.close().map_err(|error| {
            let lost = self.cached.as_ref();
            let lost = lost.map(|(cached, _)| crate::cache::dirty_bytes(&[cached.volume()]));
            Error::data_lost(&self.status.name, lost, &error)
        })
    }

    fn close_exports(&mut self, force: bool) -> Result<()> {
        if let Some(device) = self.loop_device.take()
            && let Err((device, error)) = device.detach(force)
        {
            self.loop_device = Some(device);
            return Err(error.into());
        }
        self.status.exports.retain(|e| e.kind != "loop");
        if let Some(mount) = self.mount.take()
            && let Err(kept) = mount.unmount(force)
        {
            let (mount, error) = *kept;
            self.mount = Some(mount);
            return Err(error.into());
        }
        self.status.exports.retain(|e| e.kind != "fuse");
        if let Some(dir) = self.made_dir.take() {
            let _ = std::fs::remove_dir(dir);
        }
        self.status.exports.retain(|e| e.kind != "nbd");
        if let Some(server) = self.nbd.take() {
            server.shutdown()?;
        }
        Ok(())
    }
}

impl Serving for Attachment {
    fn status(&self) -> &Status {
        &self.status
    }

    fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    fn lun(&self) -> Option<&Arc<OpenLun>> {
        self.lun.as_ref()
    }

    fn answer(&self, ask: &ControlRequest) -> Result<serde_json::Value> {
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
                let none = || {
                    Error::NotFound(format!(
                        "{} is attached with --direct, which bypasses the cache",
                        self.status.name
                    ))
                };
                let (device, cache) = self.cached.as_ref().ok_or_else(none)?;
                let vnode = |path: Option<&str>| match path {
                    None => Ok(Arc::clone(device.vnode())),
                    Some(_) => Err(Error::Usage(format!(
                        "{} is a block device, which is cached as a single file; omit --file",
                        self.status.name
                    ))),
                };
                cache.answer(&[device.volume()], &vnode, ask)
            }
            ControlRequest::Cell(_) => Err(crate::cell::not_served(&self.status.name)),
            ControlRequest::Files(_) => Err(Error::NotFound(format!(
                "{} is exported as a block device; evfs does not manage a file system on it",
                self.status.name
            ))),
        }
    }

    fn in_use(&self) -> Result<()> {
        if let Some(device) = &self.loop_device {
            device.in_use()?;
        }
        if let Some(mount) = &self.mount {
            // The loop device is a user of the file, too.
            mount.in_use(self.loop_device.is_none())?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if let Some(device) = &self.loop_device {
            device.flush()?;
        }
        if let Some((cached, _)) = &self.cached {
            cached.volume().flush()?;
        }
        Ok(Blocking::open(&self.device)?.flush()?)
    }

    fn stop(&mut self, force: bool) -> Result<()> {
        if force {
            return self.stop_by_force();
        }
        let stopped = self.stop_in_order();
        if stopped.is_err()
            && let Err(error) = self.open_exports()
        {
            let volume = &self.status.name;
            tracing::error!(volume, "cannot reopen an export: {}", error.chain());
        }
        stopped
    }
}
