//! A server: its two ports, and what its threads share.

use crate::callback::Promises;
use crate::config::Config;
use crate::error::{DENIED, Fault, Outcome};
use crate::fs_service::FileService;
use crate::hosts::Hosts;
use crate::locks::Locks;
use crate::stats::{Counters, Counts};
use crate::vl::Location;
use crate::volume::Volumes;
use afs_proto::gather::REQUEST_BYTES_MAX;
use afs_proto::{Abort, Uuid, WireError};
use cache::Cache;
use fs::Fs;
use rx::{Bytes, Call, Port, PortStats, Service, Settings};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant, SystemTime};

/// Seconds within which a client that was heard of counts as active.
pub(crate) const ACTIVE_SECONDS: u32 = 900;

/// A file server that runs. It stops when it is dropped: calls that are being served come to their
/// end first.
pub struct Server {
    shared: Arc<Shared>,
    files: Port,
    location: Port,
}

/// What all calls use.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) identity: Uuid,
    pub(crate) volumes: Volumes,
    pub(crate) hosts: Hosts,
    pub(crate) promises: Promises,
    pub(crate) locks: Locks,
    pub(crate) counters: Counters,
    /// Bytes of the cache that are on their way to clients.
    pub(crate) lent: Arc<AtomicUsize>,
    pub(crate) started: SystemTime,
}

/// How a server does.
#[derive(Debug, Clone, Default)]
pub struct ServerStats {
    /// What it has done.
    pub counts: Counts,
    /// Clients that it knows.
    pub clients: usize,
    /// Of them, those that it has heard of within the last quarter of an hour.
    pub active_clients: usize,
    /// Promises to tell of changes.
    pub promises: usize,
    /// The port of the file service.
    pub files: PortStats,
    /// The port of the volume location service.
    pub location: PortStats,
}

impl Server {
    /// Serves the filesets of a file system.
    ///
    /// # Errors
    /// A port that is taken; a fileset that cannot be opened.
    pub fn start(config: Config, fs: Arc<Fs>, cache: Arc<Cache>) -> io::Result<Server> {
        let volumes = Volumes::open(Arc::clone(&fs), cache, &config)
            .map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
        let shared = Arc::new(Shared {
            identity: identity(&fs),
            hosts: Hosts::new(identity(&fs), &config),
            promises: Promises::new(&config),
            volumes,
            locks: Locks::default(),
            counters: Counters::default(),
            lent: Arc::default(),
            started: SystemTime::now(),
            config,
        });
        let config = &shared.config;
        let open = |listen, id, workers, handler| {
            let settings = Settings {
                listen,
                sockets: config.sockets,
                workers,
                ..Settings::default()
            };
            Port::open(&settings, vec![Service { id, handler }])
        };
        let location = Arc::new(Location {
            shared: Arc::clone(&shared),
        });
        let service = Arc::new(FileService {
            shared: Arc::clone(&shared),
        });
        Ok(Server {
            location: open(
                config.location_service,
                afs_proto::vl::SERVICE,
                LOCATION_WORKERS,
                location,
            )?,
            files: open(
                config.file_service,
                afs_proto::fs::SERVICE,
                config.workers,
                service,
            )?,
            shared,
        })
    }

    /// The volumes that it serves.
    pub fn volumes(&self) -> &Volumes {
        &self.shared.volumes
    }

    /// Where the file service listens.
    pub fn file_service(&self) -> SocketAddr {
        self.files.address()
    }

    /// Where the volume location service listens.
    pub fn location_service(&self) -> SocketAddr {
        self.location.address()
    }

    /// How it does.
    pub fn stats(&self) -> ServerStats {
        let shared = &self.shared;
        let (clients, active_clients) = shared.hosts.count(ACTIVE_SECONDS);
        ServerStats {
            counts: shared.counters.read(),
            clients,
            active_clients,
            promises: shared.promises.count(),
            files: self.files.stats(),
            location: self.location.stats(),
        }
    }
}

/// Calls of the volume location service at a time: they wait for nothing but their requests.
const LOCATION_WORKERS: usize = 16;

impl Shared {
    /// Refuses those who may not call at all.
    pub(crate) fn check_allowed(&self, call: &Call) -> Outcome<()> {
        let allowed = &self.config.allowed;
        let address = call.peer().ip();
        match allowed.is_empty() || allowed.iter().any(|prefix| prefix.has(address)) {
            true => Ok(()),
            false => Err(DENIED),
        }
    }

    /// Seconds of 1970 and what is beyond them.
    pub(crate) fn clock(&self) -> Duration {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap_or_default()
    }
}

/// The identity of the server of a file system: made from that of the file system, so that it stays.
fn identity(fs: &Fs) -> Uuid {
    Uuid(fs.superblock().uuid)
}

/// Time within which a request has to come, without the data that follows it: two packets, and some
/// retransmissions of them. A thread waits for it.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// Receives a request: bytes that begin with one, as `parse` finds. File data may follow in them, and in
/// the call.
pub(crate) fn receive(
    call: &mut Call,
    parse: impl Fn(&[u8]) -> afs_proto::Result<()>,
) -> Outcome<Bytes> {
    let is_whole = |bytes: &[u8]| match parse(bytes) {
        Ok(()) => Ok(true),
        Err(WireError::Incomplete) => Ok(false),
        Err(error) => Err(error),
    };
    let deadline = Some(Instant::now() + REQUEST_TIME);
    let first = call
        .read_by(deadline)?
        .ok_or(Fault::Code(Abort::RXGEN_DECODE))?;
    if is_whole(first.as_ref())? {
        return Ok(first);
    }
    let mut held = first.as_ref().to_vec();
    loop {
        let piece = call.read_by(deadline)?.ok_or(WireError::Incomplete)?;
        held.extend_from_slice(piece.as_ref());
        if is_whole(&held)? {
            return Ok(held.into());
        }
        if held.len() > REQUEST_BYTES_MAX {
            let (what, length, max) = ("a message", held.len(), REQUEST_BYTES_MAX);
            return Err(WireError::TooLong { what, length, max }.into());
        }
    }
}
