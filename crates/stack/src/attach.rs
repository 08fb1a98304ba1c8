//! An attached volume: the graph from a file to its exports, and its orderly end.
//!
//! ```text
//!   FileDevice ── CryptDevice ── CachedDevice ── Stats ──┬── NBD server
//!                                                        └── FUSE folder ── loop device
//! ```

use crate::cache::ProcessCache;
use crate::control::{Ask, Listener, check_name};
use crate::device::OpenLun;
use crate::serve::{Kept, Serving};
use crate::status::{ExportAt, Status};
use crate::{Error, Result, Settings, volume::Open};
use block::{BlockDevice, Blocking, Stats, StatsHandle};
use cache::CachedDevice;
use export_fuse::loopdev::LoopDevice;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to attach, and how to give it out.
#[derive(Debug, Clone)]
pub struct AttachSpec {
    /// The file or disk that holds the volume.
    pub device: PathBuf,
    /// Name of the attached volume; part of file names.
    pub name: String,
    /// NBD over TCP.
    pub nbd: Option<SocketAddr>,
    /// NBD over a Unix socket.
    pub nbd_unix: Option<PathBuf>,
    /// Certificates for NBD over TCP.
    pub tls: Option<export_nbd::Tls>,
    /// Folder to mount with one file, the volume.
    pub fuse: Option<PathBuf>,
    /// Make a loop device of the file in the folder.
    pub loop_device: bool,
    /// Threads that serve each export.
    pub threads: usize,
    /// Refuse writes.
    pub read_only: bool,
    /// Pass discards on.
    pub allow_discards: bool,
    /// Keep pages in the cache of the process.
    pub cached: bool,
    /// The configuration file that this came from.
    pub config: Option<PathBuf>,
}

impl AttachSpec {
    /// A spec with defaults for `device`: its file name without extension is the name.
    pub fn new(device: &Path, threads: usize) -> AttachSpec {
        AttachSpec {
            device: device.to_owned(),
            name: crate::device::default_name(device),
            nbd: None,
            nbd_unix: None,
            tls: None,
            fuse: None,
            loop_device: false,
            threads,
            read_only: false,
            allow_discards: false,
            cached: true,
            config: None,
        }
    }

    /// Checks what the fields mean together, and fills in the default export: an NBD socket in
    /// the folder of control sockets.
    pub fn complete(mut self, run_dir: &Path) -> Result<AttachSpec> {
        check_name(&self.name, "an attached volume")?;
        if self.loop_device && self.fuse.is_none() {
            self.fuse = Some(run_dir.join(format!("{}.fuse", self.name)));
        }
        if self.nbd.is_none() && self.nbd_unix.is_none() && self.fuse.is_none() {
            self.nbd_unix = Some(run_dir.join(format!("{}.nbd", self.name)));
        }
        Ok(self)
    }
}

/// A running graph. Dropping it without [`Attachment::stop`] closes the exports all the same.
pub struct Attachment {
    status: Status,
    listener: Listener,
    // Exports before devices: fields are dropped in this order.
    loop_device: Option<LoopDevice>,
    mount: Option<export_fuse::Mount>,
    made_dir: Option<PathBuf>,
    nbd: Option<export_nbd::Server>,
    device: Arc<dyn BlockDevice>,
    cached: Option<(CachedDevice, Arc<ProcessCache>)>,
    stats: StatsHandle,
    lun: Option<Arc<OpenLun>>,
    settings: Settings,
}

impl Attachment {
    /// Builds the graph over an open volume and starts its exports.
    ///
    /// # Errors
    /// Those of the exports; what had started is closed again.
    pub fn start(
        spec: &AttachSpec,
        open: Open,
        run_dir: &Path,
        settings: &Settings,
        cache: &Arc<ProcessCache>,
    ) -> Result<Attachment> {
        let listener = Listener::bind(run_dir, &spec.name)?;
        let lun = open.disk.lun().cloned();
        let mut device = Arc::clone(&open.device);
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
            status: Status {
                cached: spec.cached,
                config: spec.config.clone(),
                ..Status::of(&spec.name, &spec.device, spec.threads, &open, info)
            },
            listener,
            loop_device: None,
            mount: None,
            made_dir: None,
            nbd: None,
            device,
            cached,
            stats,
            lun,
            settings: settings.clone(),
        };
        attachment.start_nbd(spec)?;
        attachment.start_fuse(spec)?;
        Ok(attachment)
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
            ..export_nbd::Config::default()
        };
        let server = export_nbd::Server::start(config, vec![export])?;
        let uris = server.uris(&spec.name);
        self.status
            .exports
            .extend(uris.into_iter().map(|at| ExportAt { kind: "nbd", at }));
        self.nbd = Some(server);
        Ok(())
    }

    fn start_fuse(&mut self, spec: &AttachSpec) -> Result<()> {
        let Some(folder) = &spec.fuse else {
            return Ok(());
        };
        if !folder.exists() {
            std::fs::create_dir_all(folder).map_err(|e| Error::io("cannot make", folder, e))?;
            self.made_dir = Some(folder.clone());
        }
        let export = export_fuse::Export {
            name: spec.name.clone(),
            device: Arc::clone(&self.device),
            read_only: self.status.read_only,
        };
        let config = export_fuse::Config {
            threads: spec.threads,
            ..export_fuse::Config::new(folder.clone())
        };
        let mount = export_fuse::Mount::start(config, vec![export])?;
        let file = mount.path_of(&spec.name);
        self.mount = Some(mount);
        self.status.exports.push(ExportAt {
            kind: "fuse",
            at: file.display().to_string(),
        });
        if spec.loop_device {
            let block = self.device.info().logical_block_size;
            let device = LoopDevice::attach(&file, block, self.status.read_only, true)?;
            let at = device.path().display().to_string();
            self.status.exports.push(ExportAt { kind: "loop", at });
            self.loop_device = Some(device);
        }
        Ok(())
    }

    /// Makes everything durable, and wipes what the cache has of it.
    fn flush(&self) -> block::Result<()> {
        if let Some((cached, _)) = &self.cached {
            cached.volume().close()?;
        }
        Blocking::open(&self.device)?.flush()
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

    fn listener(&self) -> &Listener {
        &self.listener
    }

    fn answer(&self, ask: &Ask) -> Result<serde_json::Value> {
        match ask {
            Ask::Stats => {
                Ok(serde_json::to_value(self.stats.snapshot()).expect("counters become JSON"))
            }
            Ask::Status | Ask::Detach { .. } => Ok(self.status.to_value()),
            Ask::Lun(ask) => {
                crate::lun::answer(&self.status.name, self.lun.as_deref(), ask, &self.settings)
            }
            Ask::Cache(ask) => {
                let none = || {
                    Error::NotFound(format!(
                        "{} is attached with --direct: nothing of it is cached",
                        self.status.name
                    ))
                };
                let (device, cache) = self.cached.as_ref().ok_or_else(none)?;
                let vnode = |path: Option<&str>| match path {
                    None => Ok(Arc::clone(device.vnode())),
                    Some(_) => Err(Error::Usage(format!(
                        "{} is a block device: all of it is one file, leave --file away",
                        self.status.name
                    ))),
                };
                cache.answer(&[device.volume()], &vnode, ask)
            }
            Ask::Cell(_) => Err(crate::cell::not_served(&self.status.name)),
            Ask::Files(_) => Err(Error::NotFound(format!(
                "{} is given out as a block device; what file system is on it is for others to know",
                self.status.name
            ))),
        }
    }

    fn stop(mut self: Box<Self>, force: bool) -> std::result::Result<(), Kept> {
        if let (true, Some(lun)) = (force, &self.lun) {
            lun.lun().hurry();
        }
        if let Err(error) = self.close_exports(force) {
            return Err(Kept {
                serving: Some(self),
                error,
            });
        }
        match self.flush() {
            Ok(()) => Ok(()),
            Err(error) if force => {
                tracing::error!(volume = self.status.name, "the last flush failed: {error}");
                Ok(())
            }
            Err(error) => Err(Kept {
                serving: Some(self),
                error: error.into(),
            }),
        }
    }
}
