//! The server: accepts clients, and passes their requests to its sites.
//!
//! One process of each directory of control sockets has an address, and answers for all services
//! there; when it ends, another one takes its place.

use super::Site;
use super::connection::Connection;
use super::endpoint::Endpoint;
use super::message::{Method, Request, Response, Status};
use crate::listen::Listen;
use crate::{Error, Result};
use block::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clients served concurrently. A browser opens several connections at once.
const CLIENTS_MAX: usize = 16;
/// Threads of clients, at most; some of them end, because their client was dropped.
const THREADS_MAX: usize = 2 * CLIENTS_MAX;
/// Time between attempts to listen.
const RETRY: Duration = Duration::from_secs(2);
/// Time between two warnings about refused clients.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// A running server; dropping it closes its socket.
pub(crate) struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    listen: Listen,
    run_dir: PathBuf,
    sites: Vec<Box<dyn Site>>,
    waker: Waker,
    stops: AtomicBool,
    clients: Mutex<Clients>,
}

/// The connected clients.
#[derive(Default)]
struct Clients {
    /// Number of clients, each with a thread.
    threads: usize,
    /// Number of the next client.
    next: u64,
    /// Clients for which the server waits: they send a request, or receive a response. The smallest
    /// number connected first.
    awaited: BTreeMap<u64, Arc<Connection>>,
}

impl Server {
    /// Starts a server for each address of these sites. A server that cannot be started is only
    /// reported: services do not depend on it.
    pub(crate) fn start_all(sites: Vec<(Listen, Box<dyn Site>)>, run_dir: &Path) -> Vec<Server> {
        let mut by_address: Vec<(Listen, Vec<Box<dyn Site>>)> = Vec::new();
        for (listen, site) in sites {
            match by_address.iter_mut().find(|(at, _)| *at == listen) {
                Some((_, others)) => others.push(site),
                None => by_address.push((listen, vec![site])),
            }
        }
        let start = |(listen, sites)| match Server::start(listen, run_dir, sites) {
            Ok(server) => Some(server),
            Err(error) => {
                tracing::warn!(name: "EVFS-0901", "{}", error.chain());
                None
            }
        };
        by_address.into_iter().filter_map(start).collect()
    }

    /// Starts the thread that listens, as soon as no other process of `run_dir` does.
    ///
    /// # Errors
    /// The system has no descriptor or thread left.
    pub(crate) fn start(
        listen: Listen,
        run_dir: &Path,
        sites: Vec<Box<dyn Site>>,
    ) -> Result<Server> {
        let what = names(&sites);
        let failed = |e: io::Error| Error::Failed(format!("cannot serve {what}: {e}"));
        let shared = Arc::new(Shared {
            listen,
            run_dir: run_dir.to_owned(),
            sites,
            waker: Waker::new().map_err(failed)?,
            stops: AtomicBool::new(false),
            clients: Mutex::default(),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("evfs-http".into())
            .spawn(move || own.run())
            .map_err(failed)?;
        Ok(Server {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stops.store(true, SeqCst);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

/// Lists the contents of sites.
fn names(sites: &[Box<dyn Site>]) -> String {
    let names: Vec<&str> = sites.iter().map(|site| site.what()).collect();
    names.join(" and ")
}

impl Shared {
    /// Listens until the server stops. An error is reported once, until listening succeeds.
    fn run(self: &Arc<Shared>) {
        let mut is_reported = false;
        while !self.stops.load(SeqCst) {
            match self.open() {
                Ok(Some(endpoint)) => {
                    is_reported = false;
                    self.serve(&endpoint);
                    self.sites.iter().for_each(|site| site.close());
                }
                // Another process answers.
                Ok(None) => {}
                Err(error) if is_reported => drop(error),
                Err(error) => {
                    is_reported = true;
                    tracing::warn!(
                        name: "EVFS-0901",
                        address = %self.listen,
                        "cannot serve {}: {}",
                        names(&self.sites),
                        error.chain()
                    );
                }
            }
            self.wait(None, Some(RETRY));
        }
    }

    /// Listens and opens the sites; returns `None` if another process serves one of them.
    fn open(&self) -> Result<Option<Endpoint>> {
        let locks: Vec<&'static str> = self.sites.iter().map(|site| site.lock()).collect();
        let Some(endpoint) = Endpoint::open(&self.listen, &self.run_dir, &locks)? else {
            return Ok(None);
        };
        for (at, site) in self.sites.iter().enumerate() {
            if let Err(error) = site.open(&self.listen) {
                self.sites.iter().take(at).for_each(|site| site.close());
                return Err(error);
            }
        }
        Ok(Some(endpoint))
    }

    /// Accepts clients until the server stops.
    fn serve(self: &Arc<Shared>, endpoint: &Endpoint) {
        let mut refusals = Refusals::new(names(&self.sites));
        while !self.stops.load(SeqCst) {
            self.wait(Some(endpoint.as_fd()), None);
            match endpoint.accept() {
                Ok(Ok(connection)) => self.begin(connection, &mut refusals),
                Ok(Err(Some(why))) => refusals.warn(&why),
                Ok(Err(None)) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // A client that has closed its connection, or no descriptor is left.
                Err(_) => self.wait(None, Some(RETRY / 10)),
            }
        }
    }

    /// Waits for `fd`, the end of `time`, or the stop of the server.
    fn wait(&self, fd: Option<BorrowedFd<'_>>, time: Option<Duration>) {
        if self.stops.load(SeqCst) {
            return;
        }
        let watched = fd.into_iter().chain([self.waker.as_fd()]);
        let mut fds: Vec<PollFd<'_>> = watched
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = time.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        // A failure only shortens the wait.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Serves a client on a thread of its own.
    fn begin(self: &Arc<Shared>, connection: Connection, refusals: &mut Refusals) {
        let connection = Arc::new(connection);
        let Some(number) = self.clients().admit(&connection) else {
            refusals.warn("too many connections are open");
            return;
        };
        let client = Client {
            server: Arc::clone(self),
            connection,
            number,
        };
        let thread = std::thread::Builder::new().name("evfs-client".into());
        // Without a thread, the client is dropped, which counts it out.
        if let Err(e) = thread.spawn(move || client.serve()) {
            refusals.warn(&format!("cannot start a thread: {e}"));
        }
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request.
    fn answer(&self, request: &Request) -> Response {
        let answered = self.sites.iter().find_map(|site| site.answer(request));
        answered.unwrap_or_else(|| match request.method {
            Method::Get | Method::Head => {
                Response::text(Status::NotFound, "there is nothing at this path\n")
            }
            Method::Post | Method::Other => Response::only("GET, HEAD"),
        })
    }
}

impl Clients {
    /// Counts a new client and returns its number. Drops the slowest of too many clients; returns
    /// `None` if too many are being answered.
    fn admit(&mut self, connection: &Arc<Connection>) -> Option<u64> {
        if self.threads >= CLIENTS_MAX {
            let (_, slowest) = self.awaited.pop_first()?;
            slowest.close();
        }
        if self.threads >= THREADS_MAX {
            return None;
        }
        self.threads += 1;
        self.next += 1;
        self.awaited.insert(self.next, Arc::clone(connection));
        Some(self.next)
    }
}

/// A client that is served; dropping it closes its connection.
struct Client {
    server: Arc<Shared>,
    connection: Arc<Connection>,
    number: u64,
}

impl Client {
    /// Reads a request and answers it. A client that fails or is dropped gets no answer.
    fn serve(&self) {
        let request = self.connection.request();
        // While it is being answered, the server does not wait for it.
        self.server.clients().awaited.remove(&self.number);
        let (response, method) = match request {
            Ok(Ok(request)) => (self.server.answer(&request), request.method),
            Ok(Err(status)) => {
                let line = "this request cannot be served\n";
                (Response::text(status, line), Method::Get)
            }
            Err(_) => return,
        };
        let connection = Arc::clone(&self.connection);
        let mut clients = self.server.clients();
        clients.awaited.insert(self.number, connection);
        drop(clients);
        let _ = self.connection.respond(&response, method);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut clients = self.server.clients();
        clients.threads -= 1;
        clients.awaited.remove(&self.number);
    }
}

/// Warnings about refused clients, which a stranger must not be able to repeat without limit.
struct Refusals {
    what: String,
    last: Option<Instant>,
}

impl Refusals {
    fn new(what: String) -> Refusals {
        Refusals { what, last: None }
    }

    fn warn(&mut self, why: &str) {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < WARN_EVERY) {
            return;
        }
        self.last = Some(now);
        tracing::warn!(name: "EVFS-0902", "refused a client of {}: {why}", self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::HEAD_BYTES_MAX;
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    /// A site that answers `/one` with a text.
    struct One(&'static str);

    impl Site for One {
        fn what(&self) -> &'static str {
            "a test"
        }

        fn lock(&self) -> &'static str {
            ".test"
        }

        fn answer(&self, request: &Request) -> Option<Response> {
            (request.path == "/one").then(|| Response::text(Status::Ok, self.0))
        }
    }

    fn served(path: &Path, text: &'static str) -> Server {
        let listen = Listen::Unix(path.to_owned());
        Server::start(listen, path.parent().unwrap(), vec![Box::new(One(text))]).unwrap()
    }

    /// Sends a request and returns the answer.
    fn get(path: &Path, request: &[u8]) -> io::Result<String> {
        let mut stream = UnixStream::connect(path)?;
        // The server may answer and close the connection before it has read all.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    fn until<T>(mut get: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(found) = get() {
                return found;
            }
            assert!(Instant::now() < end, "waited in vain");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    const GET: &[u8] = b"GET /one HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn a_client_gets_its_answer_whatever_others_send() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let server = served(&path, "text 1\n");
        let good = until(|| get(&path, GET).ok());
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n"), "{good}");
        assert!(good.ends_with("\r\n\r\ntext 1\n"), "{good}");
        for garbage in [
            &b""[..],
            b"\0\0\0\0",
            b"GET",
            b"NBDMAGICIHAVEOPT",
            &[b'x'; 3 * HEAD_BYTES_MAX],
        ] {
            let answer = get(&path, garbage).unwrap_or_default();
            assert!(!answer.contains("text 1"), "{answer}");
        }
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST / HTTP/1.1\r\n\r\n", "405"),
            ("BREW / HTTP/1.1\r\n\r\n", "405"),
            ("GET / HTTP/3\r\n\r\n", "400"),
        ] {
            let answer = get(&path, request.as_bytes()).unwrap();
            assert_eq!(answer.get(9..12), Some(status), "{request}: {answer}");
        }
        let head = get(&path, b"HEAD /one HTTP/1.1\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        until(|| get(&path, GET).ok().filter(|a| a.ends_with("text 1\n")));
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn slow_clients_exclude_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let server = served(&path, "text 1\n");
        until(|| get(&path, GET).ok());
        let connect = |_| UnixStream::connect(&path).unwrap();
        let silent: Vec<_> = (0..3 * CLIENTS_MAX).map(connect).collect();
        // All of them are still open here, and none has sent anything.
        until(|| get(&path, GET).ok().filter(|a| a.contains("200 OK")));
        drop(silent);
        until(|| (server.shared.clients().threads == 0).then_some(()));
        assert!(server.shared.clients().awaited.is_empty());
    }

    #[test]
    fn only_clients_that_the_server_waits_for_are_dropped() {
        let pair = || {
            let (client, server) = UnixStream::pair().unwrap();
            (client, Arc::new(Connection::Unix(server)))
        };
        let mut clients = Clients::default();
        let mut open: Vec<UnixStream> = Vec::new();
        for number in 1..=CLIENTS_MAX as u64 {
            let (client, connection) = pair();
            assert_eq!(clients.admit(&connection), Some(number));
            open.push(client);
        }
        // All but two are being answered; the older one of these two is dropped.
        clients.awaited.retain(|number, _| [7, 9].contains(number));
        assert!(clients.admit(&pair().1).is_some());
        let mut closed = open.remove(6);
        assert_eq!(closed.read(&mut [0]).unwrap(), 0);
        let left: Vec<u64> = clients.awaited.keys().copied().collect();
        assert_eq!(left, [9, CLIENTS_MAX as u64 + 1]);
        clients.awaited.clear();
        assert_eq!(clients.admit(&pair().1), None);
    }

    #[test]
    fn one_process_of_a_directory_listens_and_another_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        // As a killed process leaves it.
        drop(UnixListener::bind(&path).unwrap());
        let first = served(&path, "first\n");
        until(|| get(&path, GET).ok().filter(|a| a.contains("first")));
        let second = served(&path, "second\n");
        drop(first);
        until(|| get(&path, GET).ok().filter(|a| a.contains("second")));
        drop(second);
    }

    #[test]
    fn sites_with_one_address_share_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| Listen::Unix(dir.path().join(name));
        let site = |listen| (listen, Box::new(One("text\n")) as Box<dyn Site>);
        let sites = vec![site(at("a.sock")), site(at("b.sock")), site(at("a.sock"))];
        let servers = Server::start_all(sites, dir.path());
        let counts: Vec<usize> = servers.iter().map(|s| s.shared.sites.len()).collect();
        assert_eq!(counts, [2, 1]);
    }
}
