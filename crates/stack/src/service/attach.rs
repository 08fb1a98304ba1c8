//! An attached volume: the graph from a file to its exports.
//!
//! ```text
//!   FileDevice ── CryptDevice ── StickyFlush ── CachedDevice ── Stats ──┬── NBD server
//!                                                                       └── FUSE ── loop device
//! ```

use super::health::State;
use super::status::{ExportAt, Status};
use super::{Built, Closing, Graph, Tree, check_mount_point};
use crate::cache::ProcessCache;
use crate::control::{FsRequest, GrowRequest, Run, check_name};
use crate::filesystem::grow::{self, Layers, Upper};
use crate::text::uuid_bytes;
use crate::volume::OpenedDevice;
use crate::{Error, Result, Settings, Succession};
use ::cache::{CachedDevice, Vnode, Volume};
use block::{BlockDevice, Blocking, Stats, StickyFlush};
use export_file::loopdev::LoopDevice;
use export_file::{Users, WhenBusy};
use serde_json::Value;
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
    /// Let another process continue the exports if this one dies.
    pub survives: bool,
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
            survives: false,
            config: None,
        }
    }

    /// Validates the fields and fills in the default export: an NBD socket in the directory of
    /// control sockets.
    pub fn complete(self, run_dir: &Path) -> Result<AttachSpec> {
        self.check()?;
        let spec = self.with_default_export(run_dir);
        spec.check_socket()?;
        Ok(spec)
    }

    /// Fills in the default export.
    pub(super) fn with_default_export(mut self, run_dir: &Path) -> AttachSpec {
        if self.loop_device && self.fuse.is_none() {
            self.fuse = Some(run_dir.join(format!("{}.fuse", self.name)));
        }
        if self.nbd.is_none() && self.nbd_unix.is_none() && self.fuse.is_none() {
            self.nbd_unix = Some(run_dir.join(format!("{}.nbd", self.name)));
        }
        self
    }

    fn check(&self) -> Result<()> {
        check_name(&self.name, "an attached volume")?;
        if let Some(folder) = &self.fuse {
            check_mount_point(folder)?;
        }
        Ok(())
    }

    fn check_socket(&self) -> Result<()> {
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
        Ok(())
    }
}

/// Builds the graph over an open volume.
pub(super) fn build(
    spec: &AttachSpec,
    open: &OpenedDevice,
    run_dir: &Path,
    settings: &Settings,
    cache: &ProcessCache,
) -> Result<Built> {
    let succession = settings.succession().cloned();
    let sticky = StickyFlush::new(Arc::clone(&open.device));
    if let Some(succession) = &succession {
        succession.keep_failure(&sticky)?;
    }
    let lost = sticky.failure();
    let mut device: Arc<dyn BlockDevice> = Arc::new(sticky);
    let mut cached = None;
    if spec.cached {
        let over = match &succession {
            None => cache.device(device)?,
            Some(succession) => surviving_device(cache, device, open, succession)?,
        };
        device = Arc::new(over.clone());
        cached = Some(over);
    }
    let (device, stats) = Stats::new(device);
    let status = Status {
        cached: spec.cached,
        direct: !spec.cached,
        config: spec.config.clone(),
        ..Status::of(&spec.name, &spec.device, spec.threads, open, device.info())
    };
    let graph = AttachGraph {
        spec: spec.clone(),
        loop_device: None,
        mount: None,
        made_dir: None,
        run_dir: run_dir.to_owned(),
        nbd: None,
        device: Arc::new(device),
        succession,
        lost,
        cached,
    };
    Ok(Built {
        graph: Box::new(graph),
        status,
        stats,
    })
}

/// Puts a volume behind a cache whose dirty pages a successor finds, with those of a predecessor.
fn surviving_device(
    cache: &ProcessCache,
    device: Arc<dyn BlockDevice>,
    open: &OpenedDevice,
    succession: &Succession,
) -> Result<CachedDevice> {
    let uuid = open.cipher.as_ref().and_then(|c| uuid_bytes(&c.uuid));
    let uuid = uuid.ok_or_else(|| {
        Error::Usage(String::from(
            "--survive needs a volume with a UUID in its header; omit --survive",
        ))
    })?;
    let cache = cache.cache()?;
    let cached = CachedDevice::known_by(uuid, &cache, device)?;
    succession.adopt_device(&cache, &cached)?;
    Ok(cached)
}

struct AttachGraph {
    spec: AttachSpec,
    // Fields drop in this order: exports before devices.
    loop_device: Option<LoopDevice>,
    mount: Option<export_file::Mount>,
    made_dir: Option<PathBuf>,
    run_dir: PathBuf,
    nbd: Option<export_nbd::Server>,
    device: Arc<dyn BlockDevice>,
    /// State for a process that continues the exports; `None` if they end with this one.
    succession: Option<Arc<Succession>>,
    /// Error of the first failed flush of the device.
    lost: Arc<OnceLock<block::Error>>,
    cached: Option<CachedDevice>,
}

impl AttachGraph {
    fn start_nbd(&mut self, status: &mut Status) -> Result<()> {
        let spec = &self.spec;
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
            description: status.label.clone(),
            device: Arc::clone(&self.device),
            read_only: status.read_only,
        };
        let config = export_nbd::Config {
            listen,
            threads: spec.threads,
            tls: spec.tls.clone(),
            anonymous: spec.anonymous,
            ..export_nbd::Config::default()
        };
        let keep = self
            .succession
            .clone()
            .map(|all| all as Arc<dyn export_nbd::Keep>);
        let server = export_nbd::Server::start_kept(config, vec![export], keep)?;
        let uris = server.uris(&spec.name);
        status
            .exports
            .extend(uris.into_iter().map(|at| ExportAt::new("nbd", at)));
        let proven = spec.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if let (Some(address), true, false) = (spec.nbd, spec.anonymous, proven) {
            let whoever = if address.ip().is_loopback() {
                "any user of this machine"
            } else {
                "any client that can reach this machine"
            };
            let may = if status.read_only {
                "read"
            } else {
                "read and change"
            };
            let warning = format!(
                "--anonymous: {whoever} can {may} the unencrypted data at {address}; --tls-ca \
                 admits only clients with a certificate"
            );
            status.warn(warning);
        }
        self.nbd = Some(server);
        Ok(())
    }

    fn start_fuse(&mut self, status: &mut Status) -> Result<()> {
        let spec = &self.spec;
        let Some(folder) = &spec.fuse else {
            return Ok(());
        };
        // An access to a mount that is to be continued would wait for this process.
        let continues = self.succession.as_ref().is_some_and(|s| s.has_mount());
        if !continues {
            export_file::clear_dead(folder)?;
        }
        // The default mount point is removed later even if an earlier, killed process made it.
        if folder.parent() == Some(&*self.run_dir) {
            if !continues {
                std::fs::create_dir_all(folder)
                    .map_err(|e| Error::io("cannot create", folder, e))?;
            }
            self.made_dir = Some(folder.clone());
        }
        let export = export_file::Export {
            name: spec.name.clone(),
            device: Arc::clone(&self.device),
            read_only: status.read_only,
        };
        let config = export_file::Config {
            threads: spec.threads,
            ..export_file::Config::new(folder.clone())
        };
        let mount = match &self.succession {
            None => export_file::Mount::start(config, vec![export])?,
            Some(succession) => {
                let mount = succession.mount_file(config, export);
                if let Err(Error::Fuse(error)) = &mount {
                    // Also if no later server can continue.
                    self.flush()?;
                    succession.failed(error)?;
                }
                mount?
            }
        };
        let file = mount.path_of(&spec.name);
        self.mount = Some(mount);
        let at = file.display().to_string();
        status.exports.push(ExportAt::new("fuse", at));
        Ok(())
    }

    fn start_loop(&mut self, status: &mut Status) -> Result<()> {
        let Some(mount) = self.mount.as_ref().filter(|_| self.spec.loop_device) else {
            return Ok(());
        };
        let name = &self.spec.name;
        let block = self.device.info().logical_block_size;
        let device = match &self.succession {
            None => LoopDevice::attach(&mount.path_of(name), block, status.read_only)?,
            Some(succession) => succession.loop_device(mount, name, (block, status.read_only))?,
        };
        let at = device.path().display().to_string();
        status.exports.push(ExportAt::new("loop", at));
        if !device.pass_discards(mount.holes().filter(|_| status.discards)) {
            let why = "the loop device does not pass discards: this kernel cannot distinguish them \
                       from zeroing (Linux 6.11 and later can); NBD passes them";
            status.warn(why);
        }
        self.loop_device = Some(device);
        Ok(())
    }

    /// Makes the exports as large as the device has become. Returns what their users have to do.
    fn update_sizes(&self) -> Result<Vec<String>> {
        let name = &self.spec.name;
        self.device.update_size()?;
        let mut notes = Vec::new();
        if let Some(mount) = &self.mount {
            mount.update_sizes()?;
        }
        if let Some(device) = &self.loop_device {
            device.update_size()?;
        }
        if self.nbd.is_some() {
            notes.push(format!(
                "NBD clients of `{name}` use the new size once they connect again"
            ));
        }
        notes.push(format!(
            "a file system in `{name}` grows by its own tools, such as resize2fs"
        ));
        Ok(notes)
    }

    fn cached_device(&self) -> Result<&CachedDevice> {
        self.cached.as_ref().ok_or_else(|| {
            Error::NotFound(format!(
                "{} is attached with --direct, which bypasses the cache",
                self.spec.name
            ))
        })
    }
}

impl Graph for AttachGraph {
    fn open_exports(&mut self, status: &mut Status) -> Result<()> {
        if self.nbd.is_none() {
            self.start_nbd(status)?;
        }
        if self.mount.is_none() {
            self.start_fuse(status)?;
        }
        if self.loop_device.is_none() {
            self.start_loop(status)?;
        }
        match &self.succession {
            Some(succession) => succession.mounted(),
            None => Ok(()),
        }
    }

    fn in_use(&self) -> Result<()> {
        if let Some(device) = &self.loop_device {
            device.in_use()?;
        }
        if let Some(mount) = &self.mount {
            // The loop device is a user of the file within the kernel.
            mount.in_use(match self.loop_device {
                Some(_) => Users::Processes,
                None => Users::All,
            })?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if let Some(device) = &self.loop_device {
            device.flush()?;
        }
        if let Some(cached) = &self.cached {
            cached.volume().flush()?;
        }
        Ok(Blocking::open(&self.device)?.flush()?)
    }

    fn close_exports(&mut self, status: &mut Status, closing: Closing) -> Result<()> {
        let force = closing == Closing::ByForce;
        // Now, while a file system on the loop device can still write.
        if force && let Err(error) = self.flush() {
            tracing::warn!(
                name: "EVFS-0811",
                volume = self.spec.name, "cannot flush: {}", error.chain()
            );
        }
        if let Some(device) = self.loop_device.take()
            && let Err((device, error)) = device.detach(force)
        {
            self.loop_device = Some(device);
            return Err(error.into());
        }
        status.exports.retain(|e| e.kind != "loop");
        if let Some(mount) = self.mount.take()
            && let Err(kept) = mount.unmount(WhenBusy::detach_if(force))
        {
            let (mount, error) = *kept;
            self.mount = Some(mount);
            return Err(error.into());
        }
        status.exports.retain(|e| e.kind != "fuse");
        if let Some(dir) = self.made_dir.take() {
            let _ = std::fs::remove_dir(dir);
        }
        status.exports.retain(|e| e.kind != "nbd");
        if let Some(server) = self.nbd.take() {
            server.shutdown()?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.flush()?;
        match &self.cached {
            Some(cached) => Ok(cached.volume().close()?),
            None => Ok(()),
        }
    }

    fn update(&self, status: &mut Status) {
        if let Some(error) = self.lost.get() {
            let lost = format!(
                "a flush failed, and all later flushes fail too: {error}; data written by clients \
                 may be lost; detach with --force, check the device and the data, and attach again"
            );
            status.warn_of(State::Failing, lost);
        }
    }

    fn trees(&self) -> Vec<Tree> {
        let cached = self.cached.iter();
        let tree = cached.map(|device| Tree {
            name: self.spec.name.clone(),
            pages: Arc::clone(device.volume()),
            fileset: None,
        });
        tree.collect()
    }

    fn cached(&self) -> Result<Vec<Arc<Volume>>> {
        Ok(vec![Arc::clone(self.cached_device()?.volume())])
    }

    fn vnode(&self, path: Option<&str>) -> Result<Arc<Vnode>> {
        match path {
            None => Ok(Arc::clone(self.cached_device()?.vnode())),
            Some(_) => Err(Error::Usage(format!(
                "{} is a block device, which is cached as a single file; omit --file",
                self.spec.name
            ))),
        }
    }

    fn grow(&self, layers: &Layers<'_>, ask: &GrowRequest, run: Run) -> Result<Value> {
        grow::answer(layers, &Upper::Others(&|| self.update_sizes()), ask, run)
    }

    fn files(&self, _request: &FsRequest, _run: Run) -> Result<Value> {
        Err(Error::NotFound(format!(
            "{} is exported as a block device; evfs does not manage a file system on it",
            self.spec.name
        )))
    }
}
