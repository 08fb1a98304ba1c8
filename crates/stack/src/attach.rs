//! An attached volume: the graph from a file to its exports, and its orderly end.
//!
//! ```text
//!   FileDevice ── CryptDevice ── CachedDevice ── Stats ──┬── NBD server
//!                                                        └── FUSE folder ── loop device
//! ```

use crate::cache::ProcessCache;
use crate::control::{Ask, Listener, valid_name};
use crate::device::OpenLun;
use crate::{Error, Result, Settings, volume::Open};
use block::{BlockDevice, Blocking, Stats, StatsHandle};
use cache::CachedDevice;
use export_fuse::loopdev::LoopDevice;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

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
        if !valid_name(&self.name) {
            return Err(Error::Usage(format!(
                "`{}` cannot be the name of an attached volume: letters, digits, `.`, `_` and `-`, \
                 at most 64, not beginning with `.` or `-`; choose one with --name",
                self.name
            )));
        }
        if self.loop_device && self.fuse.is_none() {
            self.fuse = Some(run_dir.join(format!("{}.fuse", self.name)));
        }
        if self.nbd.is_none() && self.nbd_unix.is_none() && self.fuse.is_none() {
            self.nbd_unix = Some(run_dir.join(format!("{}.nbd", self.name)));
        }
        Ok(self)
    }
}

/// One way by which an attached volume is given out.
#[derive(Debug, Clone, Serialize)]
pub struct ExportAt {
    /// `nbd`, `fuse` or `loop`.
    pub kind: &'static str,
    /// URI or path.
    pub at: String,
}

/// What `evfs status` shows of an attached volume.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Name of the attached volume.
    pub name: String,
    /// File, disk or LUN, as it was named.
    pub device: String,
    /// Name of the LUN, if it is one.
    pub lun: Option<String>,
    /// UUID in the header.
    pub uuid: String,
    /// Label in the header.
    pub label: String,
    /// Bytes of data.
    pub size: u64,
    /// Bytes enciphered together.
    pub sector_size: u32,
    /// 128 or 256.
    pub key_bits: u32,
    /// Cipher kernel at work.
    pub kernel: String,
    /// Keyslot that opened it.
    pub keyslot: u32,
    /// Role of the key that opened it.
    pub role: String,
    /// Writes are refused.
    pub read_only: bool,
    /// Discards are passed on.
    pub discards: bool,
    /// The page cache below is passed by.
    pub direct: bool,
    /// Pages are kept in the cache of the process.
    pub cached: bool,
    /// Threads of each export.
    pub threads: usize,
    /// Process that serves it.
    pub pid: u32,
    /// Seconds since 1970 when it was attached.
    pub since: u64,
    /// Where it is given out.
    pub exports: Vec<ExportAt>,
    /// Configuration file it came from.
    pub config: Option<PathBuf>,
    /// What its user should know.
    pub warning: Option<String>,
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
        let mut device: Arc<dyn BlockDevice> = Arc::new(open.device);
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
                name: spec.name.clone(),
                device: spec.device.display().to_string(),
                lun: lun.as_ref().map(|l| l.lun().name().to_owned()),
                uuid: open.uuid,
                label: open.label,
                size: info.size,
                sector_size: open.sector_size,
                key_bits: open.key_bits,
                kernel: open.kernel.to_string(),
                keyslot: open.keyslot,
                role: open.role.to_string(),
                read_only: info.read_only,
                discards: info.discard,
                direct: open.direct,
                cached: spec.cached,
                threads: spec.threads,
                pid: std::process::id(),
                since: SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |d| d.as_secs()),
                exports: Vec::new(),
                config: spec.config.clone(),
                warning: open.warning,
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

    /// Name of the volume.
    pub fn name(&self) -> &str {
        &self.status.name
    }

    /// What `evfs status` shows.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Where questions come in.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Answers a question.
    ///
    /// # Errors
    /// What was asked for cannot be done.
    pub fn answer(&self, ask: &Ask) -> Result<serde_json::Value> {
        let value = match ask {
            Ask::Stats => serde_json::to_value(self.stats.snapshot()),
            Ask::Status | Ask::Detach => serde_json::to_value(&self.status),
            Ask::Lun(ask) => {
                let none = || Error::NotFound(format!("{} is not on a LUN", self.status.name));
                let lun = self.lun.as_ref().ok_or_else(none)?;
                return crate::lun::answer(lun.lun(), ask, &self.settings);
            }
            Ask::Cache(ask) => {
                let none = || {
                    Error::NotFound(format!(
                        "{} is attached with --direct: nothing of it is cached",
                        self.status.name
                    ))
                };
                let (device, cache) = self.cached.as_ref().ok_or_else(none)?;
                return cache.answer(device, ask);
            }
        };
        Ok(value.expect("counters and names become JSON"))
    }

    /// Closes the exports, makes everything durable and lets the device go.
    ///
    /// With `force` an export that is in use is taken away from its users; without it the volume
    /// stays attached and the error says who holds it.
    ///
    /// # Errors
    /// The attachment comes back with the error when it is still in use.
    pub fn stop(mut self, force: bool) -> std::result::Result<(), (Box<Attachment>, Error)> {
        if let (true, Some(lun)) = (force, &self.lun) {
            lun.lun().hurry();
        }
        if let Err(error) = self.close_exports(force) {
            return Err((Box::new(self), error));
        }
        match self.flush() {
            Ok(()) => Ok(()),
            Err(error) if force => {
                tracing::error!(volume = self.status.name, "the last flush failed: {error}");
                Ok(())
            }
            Err(error) => Err((Box::new(self), error.into())),
        }
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
