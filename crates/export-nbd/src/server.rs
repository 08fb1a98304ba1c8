//! Public interface of the server: start, addresses, stop.

use crate::admission::Admission;
use crate::connection::{Kept, Newcomer};
use crate::hub::Hub;
use crate::kept::{self, Keep};
use crate::peer::{self, Stranger};
use crate::socket::{Pipe, Raw};
use crate::worker::{Inbox, Worker};
use crate::{Config, Error, Export, Listen, tls};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A running server, stopped when it is dropped.
pub struct Server {
    addresses: Vec<Listen>,
    tls: bool,
    hub: Arc<Hub>,
    threads: Vec<JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

enum Listener {
    Unix(UnixListener),
    /// `own_user`: accept only sockets of root and of this process' user.
    Tcp {
        listener: TcpListener,
        own_user: bool,
    },
}

impl Listener {
    fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        match self {
            Listener::Unix(l) => l.as_fd(),
            Listener::Tcp { listener, .. } => listener.as_fd(),
        }
    }

    /// Accepts the next client; `None` for a client that is refused.
    fn accept(&self) -> io::Result<Option<(Raw, Option<IpAddr>)>> {
        let (raw, address) = match self {
            Listener::Unix(l) => (Raw::Unix(l.accept()?.0), None),
            Listener::Tcp { listener, own_user } => {
                let (stream, peer) = listener.accept()?;
                if *own_user && !is_own(&stream, peer) {
                    return Ok(None);
                }
                stream.set_nodelay(true)?;
                (Raw::Tcp(stream), Some(peer.ip()))
            }
        };
        match &raw {
            Raw::Unix(s) => s.set_nonblocking(true)?,
            Raw::Tcp(s) => s.set_nonblocking(true)?,
        }
        // Room for a few large replies, so that one writev takes all of them. A refusal does no
        // harm.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&raw, SOCKET_BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&raw, SOCKET_BUFFER_BYTES);
        Ok(Some((raw, address)))
    }
}

/// Checks whether the peer is a socket of root or of this process' user.
fn is_own(stream: &TcpStream, address: std::net::SocketAddr) -> bool {
    match peer::check_own_user(stream, address) {
        Ok(()) => true,
        Err(Stranger::User(uid)) => {
            tracing::warn!(
                name: "EVFS-0501",
                "refused an NBD client of user {uid}: without client certificates, only root and \
                 the user of this process are served"
            );
            false
        }
        Err(why) => {
            tracing::warn!(name: "EVFS-0501", "refused an NBD client: {why}");
            false
        }
    }
}

/// Requested size of the socket buffers, in bytes; the system may set less.
const SOCKET_BUFFER_BYTES: usize = 2 << 20;

impl Server {
    /// Starts the server: opens a queue on each export for each worker, and listens.
    ///
    /// # Errors
    /// [`Error::Insecure`], [`Error::Busy`], [`Error::Certificate`], and errors of devices and
    /// system. A failed start releases everything.
    pub fn start(config: Config, exports: Vec<Export>) -> Result<Server, Error> {
        Server::start_kept(config, exports, None)
    }

    /// As [`Server::start`]; leaves the connections to a successor, and continues those of a
    /// predecessor with the same configuration over the same devices. Connections with TLS end.
    ///
    /// # Errors
    /// As [`Server::start`]; what the predecessor left is damaged; TCP, and Linux is older than 6.9.
    /// A failed start leaves everything that the predecessor left, for the next attempt.
    pub fn start_kept(
        config: Config,
        exports: Vec<Export>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Server, Error> {
        for listen in &config.listen {
            let Listen::Tcp(address) = listen else {
                continue;
            };
            if address.ip().is_loopback() {
                continue;
            }
            match &config.tls {
                None => return Err(Error::Insecure(*address)),
                Some(tls) if tls.client_ca.is_none() && !config.anonymous => {
                    return Err(Error::Anonymous(*address));
                }
                Some(_) => {}
            }
        }
        let tls = config.tls.as_ref().map(tls::config).transpose()?;
        let door = Admission::new(config.limits.clone());
        let threads = config.threads.max(1);
        let places = config.limits.connections + 2 * config.limits.strangers.max(1);
        let kept = keep.as_ref().map(|keep| {
            let kept = kept::Kept::new(Arc::clone(keep), places, threads);
            kept.map_err(|e| Error::io("cannot leave connections to a successor", e))
        });
        let kept = kept.transpose()?;
        // A connection stays with its worker.
        let threads = kept.as_ref().map_or(threads, |kept| kept.workers());
        let limits = config.limits.clone();
        let hub = Arc::new(Hub::new(exports, tls, door, limits, kept));
        let mut server = Server {
            addresses: Vec::new(),
            tls: config.tls.is_some(),
            hub,
            threads: Vec::new(),
            sockets: Vec::new(),
        };
        match server.open(&config, threads, keep.as_deref()) {
            Ok(()) => Ok(server),
            Err(e) => {
                if keep.is_some_and(|keep| keep.is_successor()) {
                    // To stop would close the connections, which the next successor may continue.
                    std::mem::forget(server);
                }
                Err(e)
            }
        }
    }

    /// Listens and starts the threads.
    fn open(
        &mut self,
        config: &Config,
        threads: usize,
        keep: Option<&dyn Keep>,
    ) -> Result<(), Error> {
        let tcp = |listen: &Listen| matches!(listen, Listen::Tcp(_));
        if keep.is_some() && config.listen.iter().any(tcp) {
            survival::sockets::can_count_tcp().map_err(|e| {
                Error::io(
                    "cannot leave TCP connections to a successor before Linux 6.9",
                    e,
                )
            })?;
        }
        if let Some(keep) = keep {
            let kept = self.hub.sessions.keep(keep);
            kept.map_err(|e| Error::io("cannot leave the keys of sessions to a successor", e))?;
        }
        let proven = config
            .tls
            .as_ref()
            .is_some_and(|tls| tls.client_ca.is_some());
        let own_user = !proven && !config.anonymous;
        let mut left = keep.map_or(Vec::new(), |keep| keep.take("nbd-listen"));
        left.reverse();
        let mut listeners = Vec::new();
        for listen in &config.listen {
            listeners.push(match left.pop() {
                None => self.listen(listen, own_user)?,
                Some(socket) => self.listen_on(listen, socket, own_user),
            });
        }
        if let Some(keep) = keep {
            let sockets: Vec<_> = listeners.iter().map(Listener::fd).collect();
            let kept = keep.keep("nbd-listen", &sockets);
            kept.map_err(|e| Error::io("cannot leave a socket to a successor", e))?;
        }
        let mut wakers = Vec::new();
        for number in 0..threads {
            let (inbox, worker) = Worker::new(number, Arc::clone(&self.hub))
                .map_err(|e| Error::io("cannot create a worker", e))?;
            wakers.push(inbox);
            // A queue belongs to the thread that opens it, so the thread reports the result.
            let (opened, outcome) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new()
                .name(format!("nbd-{number}"))
                .spawn(move || worker.run(&opened))
                .map_err(|e| Error::io("cannot start a thread", e))?;
            self.threads.push(thread);
            match outcome.recv() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return Err(e.into()),
                Err(_) => {
                    return Err(Error::io(
                        "a worker ended during startup",
                        io::ErrorKind::Other.into(),
                    ));
                }
            }
        }
        let acceptor = {
            let hub = Arc::clone(&self.hub);
            move || accept(&listeners, &wakers, &hub)
        };
        let thread = std::thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(acceptor);
        self.threads
            .push(thread.map_err(|e| Error::io("cannot start a thread", e))?);
        Ok(())
    }

    fn listen(&mut self, listen: &Listen, own_user: bool) -> Result<Listener, Error> {
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)
                    .and_then(|l| l.set_nonblocking(true).map(|()| l))
                    .map_err(|e| Error::io(format!("cannot listen on {address}"), e))?;
                let real = listener.local_addr().unwrap_or(*address);
                self.addresses.push(Listen::Tcp(real));
                Ok(Listener::Tcp { listener, own_user })
            }
            Listen::Unix(path) => {
                let listener = listen_unix(path)?;
                self.sockets.push(path.clone());
                self.addresses.push(Listen::Unix(path.clone()));
                Ok(Listener::Unix(listener))
            }
        }
    }

    /// Listens on the socket of a predecessor.
    fn listen_on(&mut self, listen: &Listen, socket: OwnedFd, own_user: bool) -> Listener {
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::from(socket);
                let real = listener.local_addr().unwrap_or(*address);
                self.addresses.push(Listen::Tcp(real));
                Listener::Tcp { listener, own_user }
            }
            Listen::Unix(path) => {
                self.sockets.push(path.clone());
                self.addresses.push(Listen::Unix(path.clone()));
                Listener::Unix(UnixListener::from(socket))
            }
        }
    }

    /// Returns the listening addresses, with the ports that the system chose.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// Returns the URIs of an export, in the format of the NBD URI specification.
    pub fn uris(&self, export: &str) -> Vec<String> {
        let uri = |listen: &Listen| match listen {
            Listen::Unix(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("nbd+unix:///{export}?socket={}", path.display())
            }
            Listen::Tcp(address) => {
                let scheme = if self.tls { "nbds" } else { "nbd" };
                format!("{scheme}://{address}/{export}")
            }
        };
        self.addresses.iter().map(uri).collect()
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.hub.door().open()
    }

    /// Finishes the requests in flight, closes all connections and waits for the threads.
    ///
    /// # Errors
    /// If a worker panicked.
    pub fn shutdown(mut self) -> Result<(), Error> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.hub.stop();
        let mut failed = false;
        for thread in self.threads.drain(..) {
            failed |= thread.join().is_err();
        }
        for socket in self.sockets.drain(..) {
            let _ = std::fs::remove_file(socket);
        }
        if failed {
            Err(Error::io(
                "a worker ended unexpectedly",
                io::ErrorKind::Other.into(),
            ))
        } else {
            Ok(())
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Creates a socket file that only its user can access. Removes the socket of a dead server, but no
/// other file.
fn listen_unix(path: &Path) -> Result<UnixListener, Error> {
    let failed = |e| Error::io(format!("cannot listen on {}", path.display()), e);
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(Error::NotASocket(path.display().to_string()));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(Error::Busy(path.display().to_string()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // Bound in a private directory and moved, so that other users can never open it in between.
    let private = tempdir_in(folder).map_err(failed)?;
    let inside = private.join("s");
    // Bound through the directory's descriptor, as the longer name may exceed the limit for sockets
    // by one byte.
    let bind = || {
        let private = std::fs::File::open(&private)?;
        UnixListener::bind(format!("/proc/self/fd/{}/s", private.as_raw_fd()))
    };
    let bound = bind().and_then(|listener| {
        std::fs::set_permissions(&inside, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&inside, path)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let _ = std::fs::remove_file(&inside);
    let _ = std::fs::remove_dir(&private);
    bound.map_err(failed)
}

fn tempdir_in(folder: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    for number in 0..100 {
        let path = folder.join(format!(".nbd{}-{number}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Leaves a new connection to a successor, if connections are to be continued.
fn keep_connection(hub: &Hub, raw: &Raw) -> io::Result<Option<Kept>> {
    let Some(kept) = &hub.kept else {
        return Ok(None);
    };
    let pipe = match raw {
        Raw::Unix(_) => Some(Pipe::new()?),
        Raw::Tcp(_) => None,
    };
    let (place, areas) = kept
        .open(raw, pipe.as_ref())?
        .ok_or_else(|| io::Error::other("the table for a successor is full"))?;
    Ok(Some(Kept(Some(Box::new((place, areas, pipe))))))
}

/// Accepts connections and distributes them round-robin to the workers.
fn accept(listeners: &[Listener], workers: &[Inbox], hub: &Hub) {
    let mut next = 0;
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(hub.stop_fd(), PollFlags::IN)];
        fds.extend(
            listeners
                .iter()
                .map(|l| PollFd::from_borrowed_fd(l.fd(), PollFlags::IN)),
        );
        if poll(&mut fds, None).is_err_and(|e| e != rustix::io::Errno::INTR) || hub.is_stopping() {
            return;
        }
        for listener in listeners {
            match listener.accept() {
                Ok(None) => {}
                Ok(Some((raw, address))) => {
                    let Some((guest, pushed)) = hub.door().admit(address) else {
                        tracing::warn!(
                            name: "EVFS-0502",
                            "refused an NBD client: too many connections are open"
                        );
                        continue;
                    };
                    let kept = match keep_connection(hub, &raw) {
                        Ok(kept) => kept,
                        Err(e) => {
                            tracing::warn!(
                                name: "EVFS-0505",
                                "cannot accept an NBD connection: {e}"
                            );
                            continue;
                        }
                    };
                    let mut newcomer = Some(Newcomer {
                        raw,
                        slot: guest,
                        kept,
                    });
                    // A worker that has lost its devices refuses connections; another one accepts.
                    for _ in 0..workers.len() {
                        let number = next % workers.len();
                        let worker = &workers[number];
                        next += 1;
                        let kept = newcomer.as_mut().and_then(|n| n.kept.as_mut());
                        if let Some(kept) = kept.and_then(|kept| kept.0.as_mut()) {
                            kept.0.assign(number);
                        }
                        newcomer = newcomer.and_then(|newcomer| worker.push(newcomer).err());
                        if newcomer.is_none() {
                            break;
                        }
                    }
                    if newcomer.is_some() {
                        tracing::error!(
                            name: "EVFS-0504",
                            "refused an NBD client: every worker has lost its device queue"
                        );
                    }
                    if pushed {
                        hub.wakers.wake_all();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    // Most likely no descriptors are left: wait until some are closed.
                    tracing::warn!(name: "EVFS-0505", "cannot accept an NBD connection: {e}");
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::in_memory::InMemory;
    use block_testing::Mem;
    use std::io::Read;

    #[test]
    fn connections_stay_with_as_many_workers_as_before() {
        let keep = Arc::new(InMemory::default());
        let new = |workers| kept::Kept::new(Arc::clone(&keep) as _, 3, workers).unwrap();
        assert_eq!(new(2).workers(), 2);
        keep.succeed();
        assert_eq!(new(5).workers(), 2);
        drop(keep.lose("nbd-table"));
        assert_eq!(new(5).workers(), 5);
    }

    #[test]
    fn a_successor_that_cannot_start_leaves_everything_for_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let keep = Arc::new(InMemory::default());
        let start = || {
            let config = Config {
                listen: vec![Listen::Unix(path.clone())],
                threads: 1,
                ..Config::default()
            };
            let export = Export {
                name: "e".into(),
                description: String::new(),
                device: Arc::new(Mem::new(1 << 20, 512)),
                read_only: false,
            };
            Server::start_kept(config, vec![export], Some(Arc::clone(&keep) as _))
        };
        let first = start().unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        client.read_exact(&mut [0; 18]).unwrap();
        std::mem::forget(first);

        keep.succeed();
        let buffers = keep.lose("nbd-worker-0");
        assert!(start().is_err());
        assert!(path.exists());
        for name in ["nbd-listen", "nbd-table", "nbd-keys", "nbd-0"] {
            assert!(!keep.take(name).is_empty(), "{name}");
        }
        client.set_nonblocking(true).unwrap();
        let waits = client.read(&mut [0]).unwrap_err();
        assert_eq!(waits.kind(), io::ErrorKind::WouldBlock);

        let buffers: Vec<_> = buffers.iter().map(AsFd::as_fd).collect();
        keep.keep("nbd-worker-0", &buffers).unwrap();
        start().unwrap().shutdown().unwrap();
        assert!(!path.exists());
    }
}
