//! The server as its owner sees it: start, addresses, statistics, stop.

use crate::hub::Hub;
use crate::listen::Listener;
use crate::{Config, Error, Export, Listen, Stats, engine, tls, worker};
use nbd_proto::{TlsPolicy, constants::NAME_BYTES_MAX};
use rustix::event::{PollFd, PollFlags, poll};
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long [`Server::shutdown`] waits for clients to take their last replies.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);
/// Pause when the system has no descriptors for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running server. Dropping it stops it.
pub struct Server {
    addresses: Vec<Listen>,
    hub: Arc<Hub>,
    threads: Vec<JoinHandle<block::Result<()>>>,
}

impl Server {
    /// Opens a queue on each export for each worker, and listens.
    ///
    /// # Errors
    /// [`Error::Insecure`], [`Error::Busy`], [`Error::Certificate`], [`Error::Config`], and what
    /// devices and system say. Nothing is left behind.
    pub fn start(config: Config, exports: Vec<Export>) -> Result<Server, Error> {
        check(&config, &exports)?;
        let tls = config.tls.as_ref().map(tls::config).transpose()?;
        let listeners: Vec<Listener> = config
            .listen
            .iter()
            .map(Listener::open)
            .collect::<Result<_, _>>()?;
        let hub = Hub::new(config, exports, tls).map_err(|e| Error::io("an eventfd", e))?;
        let mut server = Server {
            addresses: listeners.iter().map(Listener::address).collect(),
            hub: Arc::new(hub),
            threads: Vec::new(),
        };
        for number in 0..server.hub.workers.len() {
            server.start_worker(number)?;
        }
        let hub = Arc::clone(&server.hub);
        let acceptor = move || {
            accept(&listeners, &hub);
            Ok(())
        };
        server.spawn("nbd-accept".into(), acceptor)?;
        Ok(server)
    }

    fn start_worker(&mut self, number: usize) -> Result<(), Error> {
        // A queue belongs to the thread that opens it, so the thread says how that went.
        let (opened, outcome) = mpsc::channel();
        let hub = Arc::clone(&self.hub);
        self.spawn(format!("nbd-{number}"), move || {
            worker::run(&hub, &hub.workers[number], opened)
        })?;
        match outcome.recv() {
            Ok(opened) => opened.map_err(Error::from),
            Err(_) => Err(Error::Worker),
        }
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() -> block::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        let thread = thread::Builder::new().name(name).spawn(run);
        self.threads
            .push(thread.map_err(|e| Error::io("cannot start a thread", e))?);
        Ok(())
    }

    /// Where it listens, with the ports that the system chose.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// URIs of an export, as the NBD URI specification writes them: one for each address.
    pub fn uris(&self, export: &str) -> Vec<String> {
        let export = escaped(export.as_bytes());
        let uri = |listen: &Listen| {
            let s = if self.hub.policy(listen) == TlsPolicy::Required {
                "s"
            } else {
                ""
            };
            match listen {
                Listen::Unix(path) => {
                    let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                    let path = escaped(path.as_os_str().as_bytes());
                    format!("nbd{s}+unix:///{export}?socket={path}")
                }
                Listen::Tcp(address) => format!("nbd{s}://{address}/{export}"),
            }
        };
        self.addresses.iter().map(uri).collect()
    }

    /// Connections at the moment.
    pub fn connections(&self) -> usize {
        self.hub.connections()
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.hub.stats()
    }

    /// [`Server::shutdown_within`] five seconds.
    ///
    /// # Errors
    /// As there.
    pub fn shutdown(self) -> Result<(), Error> {
        self.shutdown_within(SHUTDOWN_PATIENCE)
    }

    /// Stops: no more connections, new requests end in ESHUTDOWN, those in flight are carried out
    /// and answered, each device is flushed, all connections are closed and the socket files
    /// removed.
    ///
    /// `patience` is how long to wait for clients to take their replies; zero for not at all. What
    /// the devices have begun is waited for in any case.
    ///
    /// # Errors
    /// When the last flush or a worker failed.
    pub fn shutdown_within(mut self, patience: Duration) -> Result<(), Error> {
        self.stop(patience)
    }

    fn stop(&mut self, patience: Duration) -> Result<(), Error> {
        self.hub.stop(patience);
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            let one = match thread.join() {
                Ok(ended) => ended.map_err(Error::from),
                Err(_) => Err(Error::Worker),
            };
            outcome = outcome.and(one);
        }
        outcome
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(e) = self.stop(Duration::ZERO) {
            tracing::error!("an NBD server did not stop cleanly: {e}");
        }
    }
}

fn check(config: &Config, exports: &[Export]) -> Result<(), Error> {
    for listen in &config.listen {
        if let Listen::Tcp(address) = listen
            && !address.ip().is_loopback()
            && config.tls.is_none()
        {
            return Err(Error::Insecure(*address));
        }
    }
    for (index, export) in exports.iter().enumerate() {
        let refuse = |why: &str| {
            let name: String = export.name.chars().take(64).collect();
            Err(Error::Config(format!("export `{name}`: {why}")))
        };
        if export.name.len() > NAME_BYTES_MAX || export.description.len() > NAME_BYTES_MAX {
            return refuse("name and description have 4096 bytes at most");
        }
        if exports[..index].iter().any(|e| e.name == export.name) {
            return refuse("there are two of that name");
        }
        engine::check(export.device.info())?;
    }
    Ok(())
}

impl Hub {
    fn policy(&self, listen: &Listen) -> TlsPolicy {
        let plain = match listen {
            Listen::Unix(_) => self.config.plain_unix,
            Listen::Tcp(_) => false,
        };
        if self.tls.is_none() || plain {
            TlsPolicy::Never
        } else {
            TlsPolicy::Required
        }
    }
}

/// Accepts connections and deals them out to the workers, until the hub stops. The listening
/// sockets are closed, and their files removed, when it returns.
fn accept(listeners: &[Listener], hub: &Hub) {
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(hub.stop_fd(), PollFlags::IN)];
        let watched = listeners.iter().map(Listener::fd);
        fds.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let polled = poll(&mut fds, None);
        if hub.is_stopping() {
            return;
        }
        if polled.is_err_and(|e| e != rustix::io::Errno::INTR) {
            tracing::error!("the NBD server cannot wait for connections");
            thread::sleep(ACCEPT_PAUSE);
        }
        for listener in listeners {
            match listener.accept() {
                Ok(raw) => {
                    hub.accepted.fetch_add(1, Relaxed);
                    let room = hub.connections() < hub.config.max_connections;
                    match hub.least_loaded() {
                        Some(worker) if room => {
                            worker.give(raw, hub.policy(&listener.address()));
                        }
                        _ => {
                            hub.turned_away.fetch_add(1, Relaxed);
                            tracing::warn!("an NBD connection was closed: there are too many");
                        }
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    // No descriptors left, most likely: wait for some to come free.
                    tracing::warn!("a connection could not be accepted: {e}");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// Percent-encoding of what is not unreserved in a URI, nor a slash.
fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
