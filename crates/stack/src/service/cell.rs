//! A served cell: the graph from a DEVICE to the ports of a file server.
//!
//! ```text
//!   FileDevice ── CryptDevice ── Stats ── Fs ── Files, in cache ── volumes ── ports 7000 and 7003
//! ```

use super::counters;
use super::health::State;
use super::jobs::Jobs;
use super::scrape;
use super::status::{ExportAt, Status};
use super::{Built, Closing, Graph, Tree};
use crate::cache::ProcessCache;
use crate::cell::{
    self, ShownCell, ShownClient, ShownPort, ShownProcedure, ShownServer, ShownServerStats,
};
use crate::cell_record::{Record, cell_serv_db, check_addresses};
use crate::control::{self, CellRequest, FsRequest, GrowRequest, Run, check_name};
use crate::filesystem::grow::{self, Layers, Upper};
use crate::filesystem::{execute, open_counted, resolve, transfer};
use crate::metrics::Samples;
use crate::succession::Succession;
use crate::text::{json_of, uuid_text};
use crate::volume::OpenedDevice;
use crate::watch::CellCounters;
use crate::{Error, Result, Settings};
use ::cache::{FileId, Vnode};
use ::fs::Fs;
use afs_server::{Client, Config, Prefix, Server, StartError, Volume};
use block::Access;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most sockets per port, each with a thread: one per CPU, but no more than clients can keep busy.
const SOCKETS_MAX: usize = 8;

/// Number of clients listed, the most recently active first; that many fit into an answer.
const CLIENTS_SHOWN: usize = 4000;

/// The cell to serve, and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeSpec {
    pub device: PathBuf,
    /// Name of the service; part of file names.
    pub name: String,
    /// Addresses to listen at; if empty, those stored with the cell.
    pub listen: Vec<Ipv4Addr>,
    /// Addresses announced to clients; if empty, those listened at.
    pub announce: Vec<Ipv4Addr>,
    /// Source addresses that may call; if empty, all.
    pub allow: Vec<Prefix>,
    /// Answer `rxdebug` in full to all of `allow`, not only over the loopback interface.
    pub rxdebug: bool,
    /// Let unauthenticated clients make the changes that access lists allow them.
    pub anonymous_write: bool,
    /// Calls served concurrently; `None` for the server's default.
    pub threads: Option<usize>,
    /// Pass discards to the device.
    pub allow_discards: bool,
    /// Let another process continue the server if this one dies.
    pub survives: bool,
    /// Configuration file that defines the service.
    pub config: Option<PathBuf>,
}

impl ServeSpec {
    /// Creates a spec with defaults, named after the device's file name without extension.
    pub fn new(device: &Path) -> ServeSpec {
        ServeSpec {
            device: device.to_owned(),
            name: crate::device::default_name(device),
            listen: Vec::new(),
            announce: Vec::new(),
            allow: Vec::new(),
            rxdebug: false,
            anonymous_write: false,
            threads: None,
            allow_discards: false,
            survives: false,
            config: None,
        }
    }

    /// Validates the fields before a device is opened.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self) -> Result<()> {
        check_name(&self.name, "a served cell")?;
        check_addresses(&self.listen, &self.announce)
    }
}

/// Builds the graph over an open DEVICE, up to its file system.
pub(super) fn build(
    spec: &ServeSpec,
    open: &OpenedDevice,
    run_dir: &Path,
    settings: &Settings,
    cache: &Arc<ProcessCache>,
) -> Result<Built> {
    let name = spec.device.display().to_string();
    let (fs, device, stats) = open_counted(open, &name, settings, Access::ReadWrite)?;
    if let Some(succession) = settings.succession() {
        succession.check_adopted(&fs)?;
    }
    let record = Record::of(&fs, &name)?;
    let first_of = |given: &[Ipv4Addr], or: &[Ipv4Addr]| match given {
        [] => or.to_vec(),
        given => given.to_vec(),
    };
    let listen = first_of(&spec.listen, &record.listen);
    let announced = first_of(&spec.announce, &listen);
    check_addresses(&listen, &announced)?;
    let config = config(spec, &listen, &announced, settings);
    let superblock = fs.superblock();
    let mut status = Status {
        uuid: uuid_text(&superblock.uuid),
        label: superblock.label,
        cell: Some(record.name.clone()),
        config: spec.config.clone(),
        ..Status::of(
            &spec.name,
            &spec.device,
            config.workers,
            open,
            device.info(),
        )
    };
    if let Some(warning) = warning(spec, &listen) {
        status.warn(warning);
    }
    let graph = CellGraph {
        spec: spec.clone(),
        run_dir: run_dir.to_owned(),
        record,
        listen,
        announced,
        config: Some(config),
        cache: Arc::clone(cache),
        succession: settings.succession().cloned(),
        server: None,
        volumes: Vec::new(),
        jobs: Jobs::default(),
        fs: Some(Arc::new(fs)),
    };
    Ok(Built {
        graph: Box::new(graph),
        status,
        stats,
    })
}

struct CellGraph {
    spec: ServeSpec,
    run_dir: PathBuf,
    record: Record,
    listen: Vec<Ipv4Addr>,
    announced: Vec<Ipv4Addr>,
    /// Configuration of the server, until it is started. A failed stop does not start it again: the
    /// cache may still have pages of its volumes, which a new server would open a second time.
    config: Option<Config>,
    cache: Arc<ProcessCache>,
    /// What another process needs to continue the server; `None` if it ends with this one.
    succession: Option<Arc<Succession>>,
    // Fields drop in this order: the ports before the files, the files before the file system.
    server: Option<Server>,
    /// Volumes whose files are still to be closed after the server has stopped.
    volumes: Vec<Arc<Volume>>,
    jobs: Jobs,
    fs: Option<Arc<Fs>>,
}

impl CellGraph {
    fn server(&self) -> Result<&Server> {
        self.server.as_ref().ok_or_else(|| self.ending())
    }

    fn fs(&self) -> Result<&Arc<Fs>> {
        self.fs.as_ref().ok_or_else(|| self.ending())
    }

    fn ending(&self) -> Error {
        Error::Failed(format!("{} is being stopped", self.spec.name))
    }

    /// Describes the cell while it is served.
    fn shown(&self, server: &Server, clients: bool, status: Status) -> ShownCell {
        let shown_clients = || -> Vec<ShownClient> {
            let all = server.clients();
            all.iter().take(CLIENTS_SHOWN).map(of_client).collect()
        };
        ShownCell {
            cell: self.record.name.clone(),
            served: true,
            listen: self.listen.clone(),
            cellservdb: cell_serv_db(&self.record.name, &self.announced),
            volumes: cell::volumes(&server.administration()),
            server: Some(ShownServer {
                name: status.name,
                device: status.device,
                pid: status.pid,
                since: status.since,
                threads: status.threads,
                read_only: status.read_only,
                warning: status.warning,
                announced: self.announced.clone(),
                allowed: self.spec.allow.iter().map(Prefix::to_string).collect(),
                anonymous_write: self.spec.anonymous_write,
                stats: of_server(server),
                clients: clients.then(shown_clients),
            }),
        }
    }

    /// Builds the error for failed write-back, given its source.
    fn not_written(&self) -> impl FnOnce(::fs::Error) -> Error + use<> {
        Error::files(format!(
            "cannot write back {} (--force discards unwritten data)",
            self.spec.name
        ))
    }
}

impl Graph for CellGraph {
    fn open_exports(&mut self, status: &mut Status) -> Result<()> {
        let Some(config) = self.config.take() else {
            return Ok(());
        };
        let fs = Arc::clone(self.fs()?);
        let cache = self.cache.cache()?;
        let started = match &self.succession {
            None => Server::start(config, fs, cache),
            Some(succession) => {
                let survival = succession.of_cell(&fs, &cache)?;
                Server::start_surviving(config, fs, cache, survival)
            }
        };
        let server = started.map_err(|error| not_started(&self.spec, error, &self.run_dir))?;
        if let Some(succession) = &self.succession {
            succession.serving()?;
        }
        let at = |address: &Ipv4Addr| ExportAt::new("afs", address.to_string());
        status.exports = self.listen.iter().map(at).collect();
        self.server = Some(server);
        Ok(())
    }

    fn in_use(&self) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let failed = || self.not_written();
        if let Some(server) = &self.server {
            let all = server.volumes().all();
            all.iter()
                .try_for_each(|volume| volume.files.sync().map_err(failed()))?;
        }
        match &self.fs {
            Some(fs) => fs.commit().map_err(failed()),
            None => Ok(()),
        }
    }

    /// Closes the ports after the calls in progress have ended.
    fn close_exports(&mut self, _status: &mut Status, _closing: Closing) -> Result<()> {
        if let Some(server) = self.server.take() {
            self.volumes = server.volumes().all();
            drop(server);
            if let Some(succession) = &self.succession {
                succession.close_ports()?;
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.jobs.stop();
        while let Some(volume) = self.volumes.last() {
            volume.files.close().map_err(self.not_written())?;
            self.volumes.pop();
        }
        if let Some(fs) = &self.fs {
            fs.finish().map_err(self.not_written())?;
            if Arc::strong_count(fs) > 1 {
                tracing::error!(
                    name: "EVFS-0708",
                    name = self.spec.name,
                    "the device stays in use: the server still holds the file system"
                );
            }
        }
        self.fs = None;
        Ok(())
    }

    fn update(&self, status: &mut Status) {
        if let Some(why) = self.fs.as_ref().and_then(|fs| fs.read_only_because()) {
            status.read_only = true;
            let warning = format!("{why}; detach, check the device, and serve again");
            status.warn_of(State::ReadOnly, warning);
        }
        status.note_fs(self.fs.as_deref());
        self.jobs.note(status);
    }

    fn add_samples(&self, to: &mut Samples) {
        if let Some(server) = &self.server {
            scrape::of_cell(&self.spec.name, &server.stats(), to);
        }
    }

    fn cell_counters(&self, clients: usize) -> Option<CellCounters> {
        let server = self.server.as_ref()?;
        Some(counters::of_cell(server, clients))
    }

    fn trees(&self) -> Vec<Tree> {
        let all = self.server.iter().flat_map(|s| s.volumes().all());
        let tree = all.map(|volume| Tree {
            name: volume.name.clone(),
            pages: Arc::clone(volume.files.volume()),
            fileset: Some(volume.files.fileset().clone()),
        });
        tree.collect()
    }

    fn cached(&self) -> Result<Vec<Arc<::cache::Volume>>> {
        let all = match &self.server {
            Some(server) => server.volumes().all(),
            None => self.volumes.clone(),
        };
        let pages = |volume: &Arc<Volume>| Arc::clone(volume.files.volume());
        Ok(all.iter().map(pages).collect())
    }

    fn vnode(&self, path: Option<&str>) -> Result<Arc<Vnode>> {
        let usage = || {
            Error::Usage(format!(
                "{} is a cell; select a file in it with --file VOLUME/PATH",
                self.spec.name
            ))
        };
        // The path begins with the volume.
        let (volume, path) = path
            .and_then(|path| path.split_once('/'))
            .ok_or_else(usage)?;
        let volume = self.server()?.administration().volume(volume)?;
        let attr = resolve(volume.files.fileset(), path)?;
        if attr.inode.kind != ::fs::FileType::File {
            return Err(Error::Usage(format!("{path} is not a regular file")));
        }
        let pages = volume.files.volume();
        Ok(pages.vnode(FileId(attr.ino), attr.inode.size))
    }

    fn grow(&self, layers: &Layers<'_>, ask: &GrowRequest, run: Run) -> Result<Value> {
        grow::answer(layers, &Upper::FileSystem(self.fs()?), ask, run)
    }

    fn files(&self, request: &FsRequest, run: Run) -> Result<Value> {
        let server = self.server()?;
        let is_volume = |name: &str| server.volumes().find(name.as_bytes()).is_some();
        match request {
            FsRequest::Remove { name, .. } | FsRequest::Rename { from: name, .. }
                if is_volume(name) =>
            {
                return Err(Error::Busy(format!(
                    "`{name}` is served as a volume; `evfs cell volume remove` removes it, and \
                     only filesets that are not served can be renamed"
                )));
            }
            _ => {}
        }
        let sync = || {
            let failed = || Error::files(format!("cannot write back {}", self.spec.name));
            let all = server.volumes().all();
            all.iter()
                .try_for_each(|volume| volume.files.sync().map_err(failed()))
        };
        let answer = match request {
            FsRequest::Transfer(ask) => {
                let cache = self.cache.cache()?;
                json_of(&transfer::answer(self.fs()?, ask, run, &cache)?)
            }
            FsRequest::Job(ask) => {
                let of = (self.fs()?, self.spec.name.as_str());
                self.jobs.answer(of, None, ask, run)?
            }
            request => execute(self.fs()?, request, run, &sync, None)?,
        };
        if run == Run::Real && request.changes() {
            // Clients see the changed volumes.
            server.administration().refresh()?;
        }
        Ok(answer)
    }

    fn cell(&self, request: &CellRequest, run: Run, status: &dyn Fn() -> Status) -> Result<Value> {
        let server = self.server()?;
        match request {
            CellRequest::Status { clients } => Ok(json_of(&self.shown(server, *clients, status()))),
            other => cell::execute(&self.record, &server.administration(), other, run),
        }
    }
}

fn config(
    spec: &ServeSpec,
    listen: &[Ipv4Addr],
    announced: &[Ipv4Addr],
    settings: &Settings,
) -> Config {
    let at = |port: u16| -> Vec<SocketAddr> { listen.iter().map(|a| (*a, port).into()).collect() };
    let defaults = Config::default();
    Config {
        file_service: at(afs_proto::fs::PORT),
        location_service: at(afs_proto::vl::PORT),
        announced: announced.to_vec(),
        allowed: spec.allow.clone(),
        rxdebug: spec.rxdebug,
        anonymous_write: spec.anonymous_write,
        sockets: settings.threads().min(SOCKETS_MAX),
        workers: spec.threads.unwrap_or(defaults.workers),
        ..defaults
    }
}

/// Warns if clients that prove no identity have access from other machines.
fn warning(spec: &ServeSpec, listen: &[Ipv4Addr]) -> Option<String> {
    let beyond = listen.iter().any(|address| !address.is_loopback());
    if !beyond || !spec.allow.is_empty() && !spec.anonymous_write {
        return None;
    }
    let may = if spec.anonymous_write {
        "read and change"
    } else {
        "read"
    };
    let whose = if spec.allow.is_empty() {
        "any host that can reach this machine (--allow PREFIX limits the addresses)"
    } else {
        "any host that sends packets with an address of --allow, which can be forged,"
    };
    Some(format!(
        "clients are not authenticated, and traffic is not encrypted: {whose} can {may} the data \
         that access lists open to addresses or to system:anyuser; a tunnel such as WireGuard \
         authenticates and encrypts"
    ))
}

fn not_started(spec: &ServeSpec, error: StartError, run_dir: &Path) -> Error {
    let (address, source) = match error {
        StartError::Files(error) => {
            let device = spec.device.display();
            return Error::files(format!("cannot open the volumes of {device}"))(error);
        }
        StartError::Port { address, source } => (address, source),
        StartError::Thread(source) => {
            return Error::Failed(format!("cannot start a thread of the server: {source}"));
        }
        StartError::Left(source) => {
            return Error::Failed(format!("the cell cannot be continued: {source}"));
        }
    };
    match source.kind() {
        std::io::ErrorKind::AddrInUse => Error::Busy(match taken_by(address, spec, run_dir) {
            Some(name) => format!(
                "{address} is in use: `{name}` is served there; stop it with `evfs detach {name}`, \
                 or choose another address with --listen ADDRESS"
            ),
            None => format!(
                "port {} at {} is in use by another program (`ss -ulpn` shows which); stop it, or \
                 choose another address of this machine with --listen",
                address.port(),
                address.ip()
            ),
        }),
        std::io::ErrorKind::AddrNotAvailable => Error::NotFound(format!(
            "{} is not an address of this machine; `ip address` lists its addresses; behind NAT, \
             pass the inner address with --listen and the outer one with --announce",
            address.ip()
        )),
        _ => Error::Failed(format!("cannot listen on {address}: {source}")),
    }
}

/// Finds the service of this user, other than this one, that serves a cell at `address`.
fn taken_by(address: SocketAddr, spec: &ServeSpec, run_dir: &Path) -> Option<String> {
    let unspecified = Ipv4Addr::UNSPECIFIED.to_string();
    let wanted = address.ip().to_string();
    let is_there = |status: &Value| {
        let mut exports = status["exports"].as_array().into_iter().flatten();
        exports.any(|export| {
            let at = export["at"].as_str().unwrap_or_default();
            let same = at == wanted || at == unspecified || wanted == unspecified;
            export["kind"] == "afs" && same
        })
    };
    // Our own control socket does not answer requests yet.
    control::find_other(run_dir, &spec.name, is_there)
}

fn of_client(client: &Client) -> ShownClient {
    ShownClient {
        address: client.address.ip(),
        port: client.address.port(),
        uuid: client.uuid.map(|uuid| uuid_text(&uuid.0)),
        state: counters::word_of_client(client.state),
        promises: client.promises,
        heard_seconds_ago: client.silent_seconds,
    }
}

fn of_server(server: &Server) -> ShownServerStats {
    let stats = server.stats();
    let procedures = stats.called.iter().map(|called| {
        let row = ShownProcedure {
            calls: called.calls,
            errors: called.aborts,
        };
        (called.procedure.to_owned(), json_of(&row))
    });
    ShownServerStats {
        clients: stats.clients,
        active_clients: stats.active_clients,
        promises: stats.promises,
        calls: stats.counts.calls,
        errors: stats.counts.aborts,
        callbacks_broken: stats.counts.breaks,
        fetched_bytes: stats.counts.fetched_bytes,
        stored_bytes: stats.counts.stored_bytes,
        procedures: procedures.collect(),
        files: of_port(&stats.files),
        location: of_port(&stats.location),
    }
}

fn of_port(port: &rx::PortStats) -> ShownPort {
    let sum = |of: &dyn Fn(&rx::Stats) -> u64| -> u64 { port.sockets.iter().map(of).sum() };
    ShownPort {
        connections: port.connections,
        calls_now: port.calls,
        datagrams_in: sum(&|s| s.datagrams_in),
        datagrams_out: sum(&|s| s.datagrams_out),
        bytes_in: sum(&|s| s.bytes_in),
        bytes_out: sum(&|s| s.bytes_out),
        dropped_datagrams: port.dropped,
        malformed: sum(&|s| s.malformed),
        stray: sum(&|s| s.stray),
        jumbograms_in: sum(&|s| s.jumbograms_in),
        jumbograms_out: sum(&|s| s.jumbograms_out),
        resent_packets: sum(&|s| s.resent),
        lost_packets: sum(&|s| s.lost),
        duplicate_packets: sum(&|s| s.duplicates),
        refused_connections: sum(&|s| s.connections_refused),
        busy: sum(&|s| s.busy),
        send_errors: port.send_errors,
    }
}
