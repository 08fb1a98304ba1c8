//! Services: attached volumes, mounted file systems and served cells. All have one life cycle:
//!
//! ```text
//!   ServiceSpec ── start ──▶ Service: status, control requests, flush ── stop ──▶ closed
//! ```
//!
//! A [`Service`] is a graph of devices with exports above them, a control socket, and the locks of
//! its DEVICE. Only the graph depends on the kind of the service. A process runs its services in
//! the main loop, [`serve`].
//!
//! **Invariant:** a stop makes data durable, closes the exports, makes durable what arrived in
//! between, and closes the device; the locks come last. A stop without force that fails opens the
//! exports again.

mod attach;
mod cell;
mod counters;
mod foreign_mount;
mod health;
mod hub;
mod jobs;
mod mount;
mod mount_point;
mod recurring;
mod schedule;
mod scrape;
mod scrubs;
mod spec;
mod status;
#[cfg(test)]
mod tests;

use crate::cache::{ProcessCache, dirty_bytes};
use crate::cell::not_served;
use crate::control::{
    CacheRequest, CellRequest, FsRequest, GrowRequest, Listener, LunRequest, Run, WatchRequest,
};
use crate::filesystem::Target;
use crate::filesystem::grow::Layers;
use crate::metrics::Samples;
use crate::volume::OpenedDevice;
use crate::watch::{CellCounters, Reading};
use crate::{Error, Result, Settings, lun, signals};
use ::cache::{Vnode, Volume};
use ::fs::Fileset;
use block::StatsHandle;
use serde_json::Value;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use attach::AttachSpec;
pub use cell::ServeSpec;
pub use health::{Health, State};
pub use hub::{Ended, Hub, Reload, serve};
pub use mount::{MountSpec, sync_timeout};
pub use schedule::KeepSnapshots;
pub use scrubs::ScheduledScrub;
pub use spec::ServiceSpec;
pub use status::{CipherStatus, ClusterStatus, ExportAt, Space, Status, WriteBack, set_log_place};

/// Devices and exports of a service. Dropping it also closes the exports.
trait Graph: Send + Sync {
    /// Starts those exports that are not open, and adds them to the status.
    ///
    /// # Errors
    /// Those of the exports.
    fn open_exports(&mut self, status: &mut Status) -> Result<()>;

    /// Checks whether the exports can be closed without disturbing a user.
    ///
    /// # Errors
    /// [`Error::Busy`], naming the user.
    fn in_use(&self) -> Result<()>;

    /// Makes acknowledged data durable.
    ///
    /// # Errors
    /// Not everything could be written; nothing is discarded.
    fn flush(&self) -> Result<()>;

    /// Closes the exports; by force, even if they are in use.
    ///
    /// # Errors
    /// An export cannot be closed; those that are still open can be used as before.
    fn close_exports(&mut self, status: &mut Status, closing: Closing) -> Result<()>;

    /// Makes everything durable, wipes the cached pages and closes the file system, after the
    /// exports have been closed.
    ///
    /// # Errors
    /// Not everything could be written; nothing is discarded.
    fn close(&mut self) -> Result<()>;

    /// A descriptor that becomes readable when the export has ended by itself.
    fn ended(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reports whether the export has ended by itself.
    fn has_ended(&self) -> bool {
        false
    }

    /// Updates a copy of the status with the current state of the device.
    fn update(&self, status: &mut Status);

    /// Adds the metrics that only this kind of service has.
    fn add_samples(&self, _to: &mut Samples) {}

    /// The state and the counters of the cell, with at most `clients` of its clients.
    fn cell_counters(&self, _clients: usize) -> Option<CellCounters> {
        None
    }

    /// Lists the files in the cache by the tree that they are in.
    fn trees(&self) -> Vec<Tree> {
        Vec::new()
    }

    /// The cached volumes.
    ///
    /// # Errors
    /// The service has none.
    fn cached(&self) -> Result<Vec<Arc<Volume>>>;

    /// Looks up the vnode of a file, or of a volume without `path`.
    ///
    /// # Errors
    /// There is no such file.
    fn vnode(&self, path: Option<&str>) -> Result<Arc<Vnode>>;

    /// Grows the layers below, and then the file system or the exports.
    ///
    /// # Errors
    /// Those of [`Layers::grow`]; the service cannot grow.
    fn grow(&self, layers: &Layers<'_>, ask: &GrowRequest, run: Run) -> Result<Value>;

    /// Answers a request to the file system.
    ///
    /// # Errors
    /// The request cannot be fulfilled.
    fn files(&self, request: &FsRequest, run: Run) -> Result<Value>;

    /// Answers a request to the cell. `status` returns the current status.
    ///
    /// # Errors
    /// The request cannot be fulfilled.
    fn cell(
        &self,
        _request: &CellRequest,
        _run: Run,
        status: &dyn Fn() -> Status,
    ) -> Result<Value> {
        Err(not_served(&status().name))
    }
}

/// The cached files of a fileset, or of a block device.
struct Tree {
    /// Name of the fileset or the device.
    name: String,
    pages: Arc<Volume>,
    /// The fileset, in which files have names.
    fileset: Option<Fileset>,
}

/// Manner in which a service is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// Only if no export is in use and all data can be written.
    InOrder,
    /// In any case. Data that cannot be written is discarded.
    ByForce,
}

impl Closing {
    fn by_force_if(forced: bool) -> Closing {
        if forced {
            Closing::ByForce
        } else {
            Closing::InOrder
        }
    }
}

/// A graph without exports, and its status.
struct Built {
    graph: Box<dyn Graph>,
    status: Status,
    stats: StatsHandle,
}

/// A running service. Dropping it without a stop also closes its exports.
pub struct Service {
    status: Status,
    listener: Arc<Listener>,
    graph: Box<dyn Graph>,
    stats: StatsHandle,
    cache: Arc<ProcessCache>,
    /// The DEVICE. Dropped last, with its locks.
    open: OpenedDevice,
    /// Held during a grow.
    growing: Mutex<()>,
    settings: Settings,
}

impl Service {
    /// Opens the DEVICE of `spec`, which is `target`, builds the graph and starts the exports.
    ///
    /// # Errors
    /// The device cannot be opened or holds other data; the name is taken; those of the exports.
    /// Exports that were started are closed again, but a successor leaves them for the next one.
    pub fn start(
        spec: &ServiceSpec,
        target: &Target<'_>,
        run_dir: &Path,
        cache: &Arc<ProcessCache>,
    ) -> Result<Service> {
        let open = spec.open(target)?;
        signals::stop_in_order();
        let settings = target.settings;
        let listener = match settings.succession() {
            None => Listener::bind(run_dir, spec.name())?,
            Some(succession) => succession.listener(run_dir, spec.name())?,
        };
        let built = match spec {
            ServiceSpec::Attach(spec) => attach::build(spec, &open, run_dir, settings, cache)?,
            ServiceSpec::Mount(spec) => match foreign_mount::build(spec, &open, cache)? {
                Some(built) => built,
                None => mount::build(spec, &open, settings, cache)?,
            },
            ServiceSpec::Serve(spec) => cell::build(spec, &open, run_dir, settings, cache)?,
        };
        let mut service = Service {
            status: built.status,
            listener: Arc::new(listener),
            graph: built.graph,
            stats: built.stats,
            cache: Arc::clone(cache),
            open,
            growing: Mutex::default(),
            settings: settings.clone(),
        };
        service.status.note_succession(settings);
        match service.graph.open_exports(&mut service.status) {
            Ok(()) => Ok(service),
            Err(e) => {
                if settings.is_successor() {
                    // To close them would end what the next successor may continue.
                    std::mem::forget(service);
                }
                Err(e)
            }
        }
    }

    /// Makes everything durable before another server takes over.
    ///
    /// # Errors
    /// Its users would notice; not everything could be written.
    fn prepare_restart(&self) -> Result<Value> {
        let name = &self.status.name;
        if self.settings.succession().is_none() {
            return Err(Error::Usage(format!(
                "{name} was started without --survive, so a restart would disturb its users; \
                 `evfs detach {name}` ends it"
            )));
        }
        self.graph.flush()?;
        Ok(Value::Null)
    }

    /// Returns the status as of the start.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Returns the current status.
    fn status_now(&self) -> Status {
        let mut status = self.status.clone();
        status.note_progress(&self.stats.snapshot());
        status.size = self.open.device.info().size;
        self.graph.update(&mut status);
        if let Ok(volumes) = self.graph.cached() {
            status.note_write_back(&refs(&volumes));
        }
        status
    }

    /// Returns a descriptor that becomes readable when the export has ended by itself, for example
    /// by a manual unmount, and the service must be stopped. `None` for exports that never do.
    fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.graph.ended()
    }

    /// Reports whether the export has ended by itself, and was not opened again.
    fn has_ended(&self) -> bool {
        self.graph.has_ended()
    }

    /// Checks whether the exports can be closed without disturbing a user.
    fn in_use(&self) -> Result<()> {
        self.graph.in_use()
    }

    /// Makes acknowledged data durable.
    fn flush(&self) -> Result<()> {
        self.graph.flush()
    }

    /// Adds the metrics of the service, except those of its status, and of its process.
    fn add_samples(&self, to: &mut Samples) {
        scrape::of_io(&self.status.name, &self.stats, to);
        scrape::of_cache(&self.cache, to);
        self.graph.add_samples(to);
    }

    /// Reads the counters of the service and of its process, without its status and its LUN.
    fn reading(&self, wanted: &WatchRequest) -> Reading {
        Reading {
            io: counters::of_io(&self.stats),
            cache: counters::of_cache(&self.cache),
            files: counters::of_files(&self.graph.trees(), wanted),
            cell: self.graph.cell_counters(wanted.clients),
            ..Reading::default()
        }
    }

    /// Answers a request about the underlying LUN.
    fn lun(&self, request: &LunRequest) -> Result<Value> {
        let lun = self.open.disk.lun().map(|lun| &**lun);
        lun::answer(&self.status.name, lun, request, &self.settings)
    }

    /// Answers a request about the cache.
    fn cache(&self, request: &CacheRequest) -> Result<Value> {
        let volumes = self.graph.cached()?;
        let vnode = |path: Option<&str>| self.graph.vnode(path);
        self.cache.answer(&refs(&volumes), &vnode, request)
    }

    /// Grows the device, the volume and the file system.
    fn grow(&self, ask: &GrowRequest, run: Run) -> Result<Value> {
        let _alone = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let layers = Layers::of(&self.status.name, &self.open);
        self.graph.grow(&layers, ask, run)
    }

    /// Answers a request about the file system.
    fn files(&self, request: &FsRequest, run: Run) -> Result<Value> {
        self.graph.files(request, run)
    }

    /// Answers a request about the cell.
    fn cell(&self, request: &CellRequest, run: Run) -> Result<Value> {
        self.graph.cell(request, run, &|| self.status_now())
    }

    /// Makes everything durable and closes the exports. The device is closed on drop.
    ///
    /// Unless it is stopped by force, an error leaves everything as it was.
    ///
    /// # Errors
    /// The service is still in use, or not all data could be written. [`Error::DataLost`] means
    /// that it has ended nevertheless.
    fn stop(&mut self, closing: Closing) -> Result<()> {
        if closing == Closing::ByForce {
            return self.stop_by_force();
        }
        let stopped = self.stop_in_order();
        if stopped.is_err()
            && let Err(error) = self.graph.open_exports(&mut self.status)
        {
            let volume = &self.status.name;
            tracing::error!(
                name: "EVFS-0810",
                volume, "cannot reopen an export: {}", error.chain()
            );
        }
        stopped
    }

    fn stop_in_order(&mut self) -> Result<()> {
        self.graph.in_use()?;
        self.graph.flush()?;
        self.graph
            .close_exports(&mut self.status, Closing::InOrder)?;
        self.graph.close()?;
        if let crate::device::Disk::File(file) = &self.open.disk {
            file.file().end_in_order();
        }
        Ok(())
    }

    fn stop_by_force(&mut self) -> Result<()> {
        self.graph
            .close_exports(&mut self.status, Closing::ByForce)?;
        self.graph.close().map_err(|error| {
            let lost = self.graph.cached().ok();
            let lost = lost.map(|volumes| dirty_bytes(&refs(&volumes)));
            Error::data_lost(&self.status.name, lost, &error)
        })
    }
}

fn refs(volumes: &[Arc<Volume>]) -> Vec<&Volume> {
    volumes.iter().map(|volume| &**volume).collect()
}

/// Checks whether `folder` is a directory to mount on.
fn check_mount_point(folder: &Path) -> Result<()> {
    match std::fs::metadata(folder) {
        Ok(meta) if !meta.is_dir() => {
            let why = format!(
                "cannot mount at {}: not a directory; choose a directory",
                folder.display()
            );
            Err(Error::Usage(why))
        }
        // The stale mount of a killed process answers no request; it is removed later.
        Err(e) if fuse_mount::server_died(&e) => Ok(()),
        Err(e) => Err(Error::io("cannot mount at", folder, e)),
        Ok(_) => Ok(()),
    }
}
