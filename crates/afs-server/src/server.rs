//! The server: its ports for both services, and its threads.

use crate::admin::Administration;
use crate::admission::AdmissionControl;
use crate::config::Config;
use crate::fs_service::FileService;
use crate::hosts::Client;
use crate::shared::{ACTIVE_SECONDS, Shared};
use crate::start_error::StartError;
use crate::stats::{Called, Counts};
use crate::survival::Survival;
use crate::vl::Location;
use crate::volume::Volumes;
use afs_proto::cb;
use cache::Cache;
use fs::Fs;
use rx::{Keep, Port, PortStats, Service, Settings};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of addresses of a server: the limit of OpenAFS's location service
/// (`VL_MAXIPADDRS_PERMH`).
pub const ADDRESSES_MAX: usize = 15;

/// Name of the server's threads.
pub const THREAD_NAME: &str = "afs-server";

/// Running file server. Dropping it stops the server after the calls in progress have ended.
pub struct Server {
    shared: Arc<Shared>,
    files: Arc<[Port]>,
    location: Vec<Port>,
    notifiers: Vec<JoinHandle<()>>,
}

/// Statistics of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerStats {
    /// Event counters.
    pub counts: Counts,
    /// Counters of the file service's procedures that were called.
    pub called: Vec<Called>,
    /// Number of known clients.
    pub clients: usize,
    /// Number of clients active within the last quarter of an hour.
    pub active_clients: usize,
    /// Number of promises.
    pub promises: usize,
    /// Statistics of the file service's ports.
    pub files: PortStats,
    /// Statistics of the volume location service's ports.
    pub location: PortStats,
}

impl Server {
    /// Starts a server for the filesets of a file system.
    ///
    /// # Errors
    /// A port is in use, a thread cannot be started, or a fileset cannot be opened.
    pub fn start(config: Config, fs: Arc<Fs>, cache: Arc<Cache>) -> Result<Server, StartError> {
        Server::start_with(config, fs, cache, None)
    }

    /// Starts a server like [`Server::start`], which another one can continue if this one is killed;
    /// or continues one that was killed.
    ///
    /// # Errors
    /// Those of [`Server::start`]; [`StartError::Left`].
    pub fn start_surviving(
        config: Config,
        fs: Arc<Fs>,
        cache: Arc<Cache>,
        survival: Survival,
    ) -> Result<Server, StartError> {
        Server::start_with(config, fs, cache, Some(survival))
    }

    fn start_with(
        config: Config,
        fs: Arc<Fs>,
        cache: Arc<Cache>,
        survival: Option<Survival>,
    ) -> Result<Server, StartError> {
        let keep = survival.as_ref().map(|survival| Arc::clone(&survival.keep));
        let shared = match survival {
            None => Shared::new(config, fs, cache)?,
            Some(survival) => Shared::surviving(config, fs, cache, survival)?,
        };
        let location = Service {
            id: afs_proto::vl::SERVICE,
            handler: Arc::new(Location {
                shared: Arc::clone(&shared),
                admission: AdmissionControl::new(LOCATION_WORKERS, Duration::ZERO),
            }),
        };
        let service = Service {
            id: afs_proto::fs::SERVICE,
            handler: Arc::new(FileService {
                shared: Arc::clone(&shared),
            }),
        };
        let config = &shared.config;
        let location = open(
            config,
            &config.location_service,
            LOCATION_WORKERS,
            &location,
            keep.as_ref(),
        )?;
        let files = &config.file_service;
        let files = open(config, files, config.workers, &service, keep.as_ref())?;
        let files: Arc<[Port]> = files.into();
        let start = |run: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
            let started = thread.spawn(move || run(&shared));
            started.map_err(StartError::Thread)
        };
        let resets = start(|shared| shared.hosts.run_resets())?;
        let repeats = start(|shared| shared.callback_retries.run(&shared.hosts));
        if repeats.is_err() {
            shared.hosts.close_resets();
        }
        let mut notifiers = vec![resets, repeats?];
        if shared.surviving.is_some() {
            let (of, ports) = (Arc::clone(&shared), Arc::clone(&files));
            let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
            let tell = move || {
                of.hosts
                    .tell(of.config.tell_again, |peer, local, timeouts| {
                        let covers = |port: &&Port| {
                            let ip = port.address().ip();
                            ip.is_unspecified() || local.is_none_or(|local| ip == local)
                        };
                        let port = ports.iter().find(covers).unwrap_or(&ports[0]);
                        match local {
                            Some(local) => port.connect_from(local, peer, cb::SERVICE, timeouts),
                            None => port.connect(peer, cb::SERVICE, timeouts),
                        }
                    });
            };
            notifiers.push(thread.spawn(tell).map_err(StartError::Thread)?);
        }
        Ok(Server {
            shared,
            files,
            location,
            notifiers,
        })
    }

    /// Returns administrative access to the served volumes.
    pub fn administration(&self) -> Administration {
        Administration::of(Arc::clone(&self.shared))
    }

    /// Returns the served volumes.
    pub fn volumes(&self) -> &Volumes {
        &self.shared.volumes
    }

    /// Returns the first address of the file service.
    pub fn file_service(&self) -> SocketAddr {
        self.files[0].address()
    }

    /// Returns the first address of the volume location service.
    pub fn location_service(&self) -> SocketAddr {
        self.location[0].address()
    }

    /// Collects the statistics.
    pub fn stats(&self) -> ServerStats {
        let shared = &self.shared;
        let (clients, active_clients) = shared.hosts.count(ACTIVE_SECONDS);
        ServerStats {
            counts: shared.counters.read(),
            called: shared.counters.called(),
            clients,
            active_clients,
            promises: shared.promises.count(),
            files: all_of(&self.files),
            location: all_of(&self.location),
        }
    }

    /// Lists at most `count` clients, the most recently active first, without a visit to every
    /// promise: their numbers of promises include expired ones that are not removed yet.
    pub fn recent_clients(&self, count: usize) -> Vec<Client> {
        self.shared.hosts.recent(count)
    }

    /// Lists the clients, the most recently active first. Visits every promise.
    pub fn clients(&self) -> Vec<Client> {
        let promises = self.shared.promises.by_client();
        let mut clients = self.shared.hosts.all();
        for client in &mut clients {
            client.promises = promises.get(&client.address).copied().unwrap_or_default();
        }
        clients
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.callback_retries.close();
        self.shared.hosts.close_resets();
        for thread in self.notifiers.drain(..) {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

/// Opens the ports of a service.
fn open(
    config: &Config,
    addresses: &[SocketAddr],
    workers: usize,
    service: &Service,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Vec<Port>, StartError> {
    let open = |&address: &SocketAddr| {
        let settings = Settings {
            listen: address,
            sockets: config.sockets,
            workers,
            thread_name: THREAD_NAME,
            keep: keep.map(|keep| (Arc::clone(keep), format!("rx-{}-{address}", service.id))),
            rx: rx::Config {
                questions: config.questions(),
                ..rx::Config::default()
            },
            ..Settings::default()
        };
        Port::open(&settings, vec![service.clone()])
            .map_err(|source| StartError::Port { address, source })
    };
    addresses.iter().map(open).collect()
}

/// Sums the statistics of several ports.
fn all_of(ports: &[Port]) -> PortStats {
    ports
        .iter()
        .map(Port::stats)
        .fold(PortStats::default(), |mut all, port| {
            all.sockets.extend(port.sockets);
            all.dropped += port.dropped;
            all.send_errors += port.send_errors;
            all.connections += port.connections;
            all.calls += port.calls;
            all
        })
}

/// Threads of the volume location service: its calls wait only for their requests.
const LOCATION_WORKERS: usize = 16;
