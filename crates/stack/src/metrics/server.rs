//! The server of the metrics: HTTP on a loopback address or a Unix socket.
//!
//! One process of each directory of control sockets has the address, and answers for all services
//! there; when it ends, another one takes its place. A client receives one answer. Limits: the
//! number of clients, the size of a request, the time of a client, and the share of a CPU that
//! scrapes take.
//!
//! Like the NBD server on a loopback address, it serves only root and the user of the process.

use crate::control::Name;
use crate::listen::Listen;
use crate::peer::{is_trusted_user, peer};
use crate::{Error, Result};
use block::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clients served concurrently.
const CLIENTS_MAX: usize = 4;
/// Time limit of a client, from its connection to the end of the answer.
const CLIENT_TIME: Duration = Duration::from_secs(5);
/// Longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Time between attempts to listen.
const RETRY: Duration = Duration::from_secs(2);
/// Time between two warnings about refused clients.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// An answer is reused until its collection took at most this share of the time: one percent.
const COST_SHARE: u32 = 100;
/// Bounds of the time for which an answer is reused.
const REUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Collects the metrics, as text.
pub(crate) type Scrape = Box<dyn Fn() -> String + Send + Sync>;

/// The server; dropping it closes its socket.
pub(crate) struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    listen: Listen,
    run_dir: PathBuf,
    answers: Answers,
    waker: Waker,
    stops: AtomicBool,
    clients: AtomicUsize,
}

impl Server {
    /// Starts the thread that listens, as soon as no other process of `run_dir` does.
    ///
    /// # Errors
    /// The system has no descriptor or thread left.
    pub(crate) fn start(listen: Listen, run_dir: &Path, scrape: Scrape) -> Result<Server> {
        let failed = |e: io::Error| Error::Failed(format!("cannot serve metrics: {e}"));
        let shared = Arc::new(Shared {
            listen,
            run_dir: run_dir.to_owned(),
            answers: Answers::new(scrape),
            waker: Waker::new().map_err(failed)?,
            stops: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("evfs-metrics".into())
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

impl Shared {
    /// Listens until the server stops. An error is reported once, until listening succeeds.
    fn run(self: &Arc<Shared>) {
        let mut is_reported = false;
        while !self.stops.load(SeqCst) {
            match Endpoint::open(&self.listen, &self.run_dir) {
                Ok(Some(endpoint)) => {
                    is_reported = false;
                    self.serve(&endpoint);
                }
                // Another process answers.
                Ok(None) => {}
                Err(error) if is_reported => drop(error),
                Err(error) => {
                    is_reported = true;
                    tracing::warn!(
                        name: "EVFS-0901",
                        address = %self.listen,
                        "cannot serve metrics: {}",
                        error.chain()
                    );
                }
            }
            self.wait(None, Some(RETRY));
        }
    }

    /// Accepts clients until the server stops or the socket fails.
    fn serve(self: &Arc<Shared>, endpoint: &Endpoint) {
        let mut refusals = Refusals::default();
        while !self.stops.load(SeqCst) {
            self.wait(Some(endpoint.as_fd()), None);
            match endpoint.accept() {
                Ok(Ok(stream)) => self.begin(stream, &mut refusals),
                Ok(Err(why)) => refusals.warn(&why),
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

    /// Answers a client on a thread of its own.
    fn begin(self: &Arc<Shared>, stream: Stream, refusals: &mut Refusals) {
        /// Counts a client that is served.
        struct Served(Arc<Shared>);
        impl Drop for Served {
            fn drop(&mut self) {
                self.0.clients.fetch_sub(1, SeqCst);
            }
        }
        let served = Served(Arc::clone(self));
        if self.clients.fetch_add(1, SeqCst) >= CLIENTS_MAX {
            refusals.warn("too many connections are open");
            return;
        }
        let answer = move || {
            let served = served;
            let mut client = Client::new(stream);
            let _ = client.answer(&served.0.answers);
        };
        let thread = std::thread::Builder::new().name("evfs-scrape".into());
        if let Err(e) = thread.spawn(answer) {
            refusals.warn(&format!("cannot start a thread: {e}"));
        }
    }
}

/// Warnings about refused clients, which a stranger must not be able to repeat without limit.
#[derive(Default)]
struct Refusals(Option<Instant>);

impl Refusals {
    fn warn(&mut self, why: &str) {
        let now = Instant::now();
        if self.0.is_some_and(|last| now - last < WARN_EVERY) {
            return;
        }
        self.0 = Some(now);
        tracing::warn!(name: "EVFS-0902", "refused a client of the metrics: {why}");
    }
}

/// The listening socket, and the right to have it.
struct Endpoint {
    listener: Listener,
    /// Socket file to remove.
    file: Option<PathBuf>,
    _name: Name,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Endpoint {
    /// Listens; returns `None` if another process of the directory does.
    fn open(listen: &Listen, run_dir: &Path) -> Result<Option<Endpoint>> {
        // No service has a name that begins with a period.
        let name = Name::take(run_dir, ".metrics")
            .map_err(|e| Error::io("cannot lock the metrics in", run_dir, e))?;
        let Some(name) = name else {
            return Ok(None);
        };
        let (listener, file) = match listen {
            Listen::Unix(path) => {
                let bound = bind(path).map_err(|e| Error::io("cannot listen on", path, e))?;
                (Listener::Unix(bound), Some(path.clone()))
            }
            Listen::Tcp(address) => {
                let bound = TcpListener::bind(address).and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    Ok(listener)
                });
                let failed = |e| Error::Failed(format!("cannot listen on {address}: {e}"));
                (Listener::Tcp(bound.map_err(failed)?), None)
            }
        };
        Ok(Some(Endpoint {
            listener,
            file,
            _name: name,
        }))
    }

    /// Accepts a client, or returns why it is refused.
    fn accept(&self) -> io::Result<std::result::Result<Stream, String>> {
        match &self.listener {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let uid = peer(&stream)?.uid;
                Ok(if is_trusted_user(uid) {
                    Ok(Stream::Unix(stream))
                } else {
                    Err(format!("it belongs to user {uid}"))
                })
            }
            Listener::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let own = export_nbd::check_own_user(&stream, address);
                Ok(own.map(|()| Stream::Tcp(stream)).map_err(|e| e.to_string()))
            }
        }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Binds a socket that only this user can connect to. One that a killed process left is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    // The directory already excludes other users; this repeats it for the socket.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A connection.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Limits the time of the next operation.
    fn limit(&self, time: Duration) -> io::Result<()> {
        let time = Some(time);
        match self {
            Stream::Unix(stream) => {
                stream.set_read_timeout(time)?;
                stream.set_write_timeout(time)
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(time)?;
                stream.set_write_timeout(time)
            }
        }
    }
}

/// A client, with a deadline for all of its reads and writes.
struct Client {
    stream: Stream,
    end: Instant,
}

impl Read for Client {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        match &mut self.stream {
            Stream::Unix(stream) => stream.read(into),
            Stream::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        match &mut self.stream {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Client {
    fn new(stream: Stream) -> Client {
        Client {
            stream,
            end: Instant::now() + CLIENT_TIME,
        }
    }

    fn limit(&self) -> io::Result<()> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => self.stream.limit(left),
        }
    }

    /// Reads a request and answers it.
    fn answer(&mut self, answers: &Answers) -> io::Result<()> {
        let (status, body) = match self.head()?.as_deref().map(asked) {
            Some(Asked::Metrics { with_body }) => {
                let text = answers.current();
                let length = text.len();
                self.write_all(response("200 OK", length).as_bytes())?;
                return if with_body {
                    self.write_all(text.as_bytes())
                } else {
                    Ok(())
                };
            }
            Some(Asked::Elsewhere) => ("404 Not Found", "metrics are at /metrics\n"),
            Some(Asked::OtherMethod) => ("405 Method Not Allowed", "only GET is allowed\n"),
            Some(Asked::Garbage) | None => ("400 Bad Request", "not a request of HTTP\n"),
        };
        let text = response(status, body.len()) + body;
        self.write_all(text.as_bytes())
    }

    /// Reads the head of a request; returns `None` if it is too long or incomplete.
    fn head(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut head = Vec::new();
        let mut part = [0; 1024];
        while head.len() < REQUEST_BYTES_MAX {
            let len = self.read(&mut part)?;
            head.extend_from_slice(part.get(..len).unwrap_or_default());
            let ends = |end: &[u8]| head.windows(end.len()).any(|window| window == end);
            if ends(b"\r\n\r\n") || ends(b"\n\n") {
                return Ok(Some(head));
            }
            if len == 0 {
                break;
            }
        }
        Ok(None)
    }
}

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Metrics { with_body: bool },
    Elsewhere,
    OtherMethod,
    Garbage,
}

/// Parses the first line of a request.
fn asked(head: &[u8]) -> Asked {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = std::str::from_utf8(line).unwrap_or_default().trim_end();
    let words: Vec<&str> = words.split(' ').collect();
    let [method, target, version] = words[..] else {
        return Asked::Garbage;
    };
    if !version.starts_with("HTTP/1.") {
        return Asked::Garbage;
    }
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => Asked::Metrics {
            with_body: method == "GET",
        },
        ("GET" | "HEAD", _) => Asked::Elsewhere,
        _ => Asked::OtherMethod,
    }
}

fn response(status: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

/// The answers, which are reused for a time in proportion to their cost.
struct Answers {
    scrape: Scrape,
    last: Mutex<Option<Answer>>,
}

struct Answer {
    text: Arc<str>,
    until: Instant,
}

impl Answers {
    fn new(scrape: Scrape) -> Answers {
        Answers {
            scrape,
            last: Mutex::default(),
        }
    }

    /// Returns the last answer if it is recent enough, or collects a new one.
    fn current(&self) -> Arc<str> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        if let Some(answer) = &*last
            && began < answer.until
        {
            return Arc::clone(&answer.text);
        }
        let text: Arc<str> = (self.scrape)().into();
        let reuse = (began.elapsed() * COST_SHARE).clamp(REUSE.0, REUSE.1);
        *last = Some(Answer {
            text: Arc::clone(&text),
            until: Instant::now() + reuse,
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(listen: Listen, run_dir: &Path) -> Server {
        Server::start(listen, run_dir, Box::new(|| String::from("evfs_test 1\n"))).unwrap()
    }

    /// Sends a request and returns the answer.
    fn get(path: &Path, request: &[u8]) -> io::Result<String> {
        let mut stream = UnixStream::connect(path)?;
        stream.write_all(request)?;
        // The server may have answered and closed the connection before it read all.
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

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn requests_are_parsed_and_garbage_is_refused() {
        let metrics = |with_body| Asked::Metrics { with_body };
        for (line, expected) in [
            ("GET /metrics HTTP/1.1", metrics(true)),
            ("GET /metrics?x=1 HTTP/1.0", metrics(true)),
            ("HEAD /metrics HTTP/1.1", metrics(false)),
            ("GET / HTTP/1.1", Asked::Elsewhere),
            ("GET /metrics/x HTTP/1.1", Asked::Elsewhere),
            ("POST /metrics HTTP/1.1", Asked::OtherMethod),
            ("GET /metrics HTTP/2", Asked::Garbage),
            ("GET /metrics", Asked::Garbage),
            ("", Asked::Garbage),
            ("a b c d", Asked::Garbage),
        ] {
            assert_eq!(
                asked(format!("{line}\r\n\r\n").as_bytes()),
                expected,
                "{line}"
            );
        }
        assert_eq!(asked(b"\xff\xfe \x00 HTTP/1.1\r\n"), Asked::Garbage);
    }

    #[test]
    fn a_client_gets_the_metrics_whatever_others_send() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let server = served(Listen::Unix(path.clone()), dir.path());
        let good = until(|| get(&path, GET).ok());
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n"), "{good}");
        assert!(good.ends_with("\r\n\r\nevfs_test 1\n"), "{good}");
        for garbage in [
            &b""[..],
            b"\0\0\0\0",
            b"GET",
            b"NBDMAGICIHAVEOPT",
            &[b'x'; 3 * REQUEST_BYTES_MAX],
        ] {
            let answer = get(&path, garbage).unwrap_or_default();
            assert!(!answer.contains("evfs_test"), "{answer}");
        }
        let elsewhere = get(&path, b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(elsewhere.starts_with("HTTP/1.1 404"), "{elsewhere}");
        let head = get(&path, b"HEAD /metrics HTTP/1.1\r\n\r\n").unwrap();
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        until(|| {
            get(&path, GET)
                .ok()
                .filter(|a| a.ends_with("evfs_test 1\n"))
        });
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn silent_clients_are_bounded_in_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let _server = served(Listen::Unix(path.clone()), dir.path());
        until(|| get(&path, GET).ok());
        let silent: Vec<_> = (0..CLIENTS_MAX)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        // The next client is closed without an answer, and served once the others are gone.
        until(|| {
            let answer = get(&path, GET).unwrap_or_default();
            answer.is_empty().then_some(())
        });
        drop(silent);
        until(|| get(&path, GET).ok().filter(|a| a.contains("200 OK")));
    }

    #[test]
    fn one_process_of_a_directory_listens_and_another_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        // As a killed process leaves it.
        drop(UnixListener::bind(&path).unwrap());
        let first = served(Listen::Unix(path.clone()), dir.path());
        until(|| get(&path, GET).ok());
        assert!(
            Endpoint::open(&Listen::Unix(path.clone()), dir.path())
                .unwrap()
                .is_none()
        );
        let second = Server::start(
            Listen::Unix(path.clone()),
            dir.path(),
            Box::new(|| String::from("evfs_second 1\n")),
        );
        drop(first);
        until(|| get(&path, GET).ok().filter(|a| a.contains("evfs_second")));
        drop(second);
    }

    #[test]
    fn an_answer_is_reused_while_it_is_recent() {
        let scrapes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&scrapes);
        let answers = Answers::new(Box::new(move || counted.fetch_add(1, SeqCst).to_string()));
        let first = answers.current();
        assert_eq!(answers.current(), first);
        std::thread::sleep(REUSE.0 * 2);
        let later = answers.current();
        assert!(scrapes.load(SeqCst) >= 2 && later != first);
    }

    #[test]
    fn a_file_in_the_place_of_the_socket_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        std::fs::write(&path, "data").unwrap();
        assert!(Endpoint::open(&Listen::Unix(path.clone()), dir.path()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }
}
