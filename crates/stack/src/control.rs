//! The control socket of a service: a request is one line of JSON, and so is its answer.
//!
//! The socket is in a directory that only its user can write to, and each side obtains the
//! credentials of its peer from the kernel: a server answers its own user and root, and a client
//! trusts only them. A name belongs to the process that holds the lock file `NAME.lock`; a socket
//! without such a process was left behind by a killed one. Deadlines limit an exchange as a whole,
//! however slowly the bytes arrive.

use crate::{Error, Result, exit};
use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longest line that either side accepts, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Time limit of a server for receiving a request, and for sending the answer.
const ASKER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a client for a connection, and for answers that need no I/O on the device.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a client for other answers, except that to a detach: it has no limit, because it
/// comes after everything is written out.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Control requests to a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlRequest {
    /// Report the status: name, device, exports, start time.
    Status,
    /// Read the counters of the data path.
    Stats,
    /// Check whether a detach would fail because of users.
    MayDetach,
    /// Flush, close the exports and end.
    Detach {
        /// Close the exports even if they are in use.
        force: bool,
    },
    /// A request about the underlying LUN.
    Lun(crate::lun::LunRequest),
    /// A request about the cache.
    Cache(crate::cache::CacheRequest),
    /// A request about the file system.
    Files(crate::filesystem::FsRequest),
    /// A request about the cell.
    Cell(crate::cell::CellRequest),
}

/// Variable that sets the directory of control sockets.
const RUN_DIR: &str = "EVFS_RUN_DIR";

/// Ensures that the directory of control sockets exists and is safe, and returns its path.
///
/// # Errors
/// It belongs to another user, or others can write to it: they could place a socket there that
/// poses as a volume.
pub fn run_dir(dir: &Path) -> Result<PathBuf> {
    own_dir(dir, RUN_DIR)
}

/// Ensures that a directory exists, and that only this user can write to it. `variable` is the
/// environment variable that sets its path, for the error.
///
/// # Errors
/// It belongs to another user, or others can write to it.
pub fn own_dir(dir: &Path, variable: &str) -> Result<PathBuf> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(|e| Error::io("cannot create the directory", dir, e))?;
    let meta = std::fs::symlink_metadata(dir).map_err(|e| Error::io("cannot access", dir, e))?;
    if meta.uid() == me() && only_for_its_owner(&meta) {
        Ok(dir.to_owned())
    } else {
        Err(not_safe(dir, variable))
    }
}

/// Checks whether the directory exists and its contents can be trusted.
fn is_trusted(dir: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(dir) {
        Ok(meta) if is_trusted_user(meta.uid()) && only_for_its_owner(&meta) => Ok(true),
        Ok(_) => Err(not_safe(dir, RUN_DIR)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("cannot access", dir, e)),
    }
}

fn only_for_its_owner(meta: &std::fs::Metadata) -> bool {
    meta.is_dir() && meta.permissions().mode() & 0o022 == 0
}

fn not_safe(dir: &Path, variable: &str) -> Error {
    Error::Unsafe {
        path: dir.to_owned(),
        detail: format!(
            "it must be a directory that belongs to this user and that others cannot write to; \
             change its owner and mode, or choose another with {variable}"
        ),
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reports whether `uid` is this user or root, which can act as any user.
fn is_trusted_user(uid: u32) -> bool {
    uid == me() || uid == 0
}

/// The process at the other end of a connection.
pub(crate) struct Peer {
    /// Process ID; 0 for a process of another PID namespace.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// Gets the credentials of the peer from the kernel (`SO_PEERCRED`). rustix cannot represent a peer
/// without a process ID.
pub(crate) fn peer(socket: &impl AsFd) -> io::Result<Peer> {
    let peer = nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(Peer {
        pid: peer.pid(),
        uid: peer.uid(),
    })
}

/// A connection with a common deadline for all reads and writes.
struct Until<'a> {
    stream: &'a UnixStream,
    end: Option<Instant>,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self
            .end
            .map(|end| end.saturating_duration_since(Instant::now()))
        {
            Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }

    /// Reads one line, with its terminator.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        BufReader::new(self.take(LINE_BYTES_MAX)).read_line(&mut line)?;
        Ok(line)
    }
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reports whether an operation timed out.
fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Connects to a socket; waits at most [`STATUS_TIMEOUT`] if its backlog is full.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let kind = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(STATUS_TIMEOUT))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Returns the path of the control socket of the service `name`.
pub fn socket_path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.control"))
}

/// Reports whether `name` is valid for a service, and therefore as part of a file name.
pub fn valid_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&name.len())
        && name.chars().all(good)
        && !name.starts_with('.')
        && !name.starts_with('-')
}

/// Refuses an invalid name for `what`.
pub(crate) fn check_name(name: &str, what: &str) -> Result<()> {
    if valid_name(name) {
        Ok(())
    } else {
        Err(Error::Usage(format!(
            "`{name}` is not a valid name for {what}: use at most 64 letters, digits, `.`, `_` and \
             `-`, and do not begin with `.` or `-`; set a name with --name"
        )))
    }
}

/// Ownership of a name: a lock that ends with the process.
struct Name {
    path: PathBuf,
    _lock: File,
}

impl Name {
    /// Takes the name; returns `None` if another process has it.
    fn take(run_dir: &Path, name: &str) -> io::Result<Option<Name>> {
        let path = run_dir.join(format!("{name}.lock"));
        loop {
            let mut file = std::fs::OpenOptions::new();
            file.read(true).write(true).create(true).truncate(false);
            let file = file.mode(0o600).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
            // The last owner may have removed the file between the calls, which makes its lock
            // void.
            let same = |there: std::fs::Metadata| Ok(there.ino() == file.metadata()?.ino());
            if std::fs::symlink_metadata(&path)
                .and_then(same)
                .unwrap_or(false)
            {
                return Ok(Some(Name { path, _lock: file }));
            }
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // Removes the file while it is still locked.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The listening end of a control socket; releases the name when closed or dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    name: Mutex<Option<Name>>,
}

impl Listener {
    /// Takes the name and listens on its socket.
    ///
    /// # Errors
    /// [`Error::Busy`] if a service of this name exists.
    pub fn bind(run_dir: &Path, name: &str) -> Result<Listener> {
        let path = socket_path(run_dir, name);
        let failed = |e| Error::io("cannot listen on", &path, e);
        let taken = || {
            Error::Busy(format!(
                "a volume named `{name}` is already attached; detach it, or pass another --name"
            ))
        };
        let own = Name::take(run_dir, name)
            .map_err(failed)?
            .ok_or_else(taken)?;
        // A process of an older version holds no lock.
        match connect(&path) {
            Ok(_) => return Err(taken()),
            Err(e) if is_late(&e) => return Err(taken()),
            Err(_) => {}
        }
        let _ = std::fs::remove_file(&path);
        let bound = UnixListener::bind(&path).and_then(|listener| {
            // The directory already excludes other users; this repeats it for the socket.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = bound.map_err(failed)?;
        Ok(Listener {
            listener,
            path,
            name: Mutex::new(Some(own)),
        })
    }

    /// Stops listening and releases the name.
    pub(crate) fn close(&self) {
        let mut name = self.name.lock().unwrap_or_else(|e| e.into_inner());
        if name.is_some() {
            let _ = std::fs::remove_file(&self.path);
            *name = None;
        }
    }

    /// Accepts the next connection; returns `None` if its user may not send requests.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(false)?;
        let peer = peer(&stream)?;
        if !is_trusted_user(peer.uid) {
            tracing::warn!(uid = peer.uid, "rejected a request from another user");
            return Ok(None);
        }
        Ok(Some(stream))
    }
}

impl std::os::fd::AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connection of a client that waits for an answer.
pub struct PendingReply(UnixStream);

impl PendingReply {
    /// Reads the request; returns `None` after an invalid one has been answered with an error.
    pub(crate) fn to(stream: UnixStream) -> Option<(ControlRequest, PendingReply)> {
        let end = Some(Instant::now() + ASKER_TIMEOUT);
        let stream_ref = &stream;
        let line = Until {
            stream: stream_ref,
            end,
        }
        .line();
        let answer = PendingReply(stream);
        match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
            Some(ask) => Some((ask, answer)),
            None => {
                answer.error(&Error::Failed(
                    "this version of evfs does not know the request".into(),
                ));
                None
            }
        }
    }

    /// Sends `value` as the answer.
    pub fn value(self, value: &impl Serialize) {
        self.send(serde_json::json!({ "ok": value }));
    }

    /// Sends an error as the answer.
    pub fn error(self, why: &Error) {
        self.send(serde_json::json!({ "error": why.chain(), "code": why.exit_code() }));
    }

    fn send(self, value: Value) {
        let end = Some(Instant::now() + ASKER_TIMEOUT);
        let mut stream = Until {
            stream: &self.0,
            end,
        };
        // The client may have closed the connection; that is not an error of the service.
        let _ = stream.write_all(format!("{value}\n").as_bytes());
    }
}

/// Sends a request to the service `name` and returns its answer.
///
/// # Errors
/// [`Error::NotFound`] if there is no such service, [`Error::Busy`] if it does not answer in time,
/// and errors that it answers.
pub fn send_request(run_dir: &Path, name: &str, ask: &ControlRequest) -> Result<Value> {
    let not_attached = || Error::NotFound(format!("no volume named `{name}` is attached"));
    if !valid_name(name) || !is_trusted(run_dir)? {
        return Err(not_attached());
    }
    let path = socket_path(run_dir, name);
    let stream = match connect(&path) {
        Ok(stream) => stream,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(not_attached()),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            // Left by a killed process, unless another one is about to listen there.
            if let Ok(Some(_name)) = Name::take(run_dir, name) {
                let _ = std::fs::remove_file(&path);
            }
            return Err(not_attached());
        }
        Err(e) if is_late(&e) => return Err(silent(name, None)),
        Err(e) => return Err(Error::io("cannot reach", &path, e)),
    };
    let failed = |e| Error::io("no answer from", &path, e);
    let peer = peer(&stream).map_err(failed)?;
    if !is_trusted_user(peer.uid) {
        return Err(Error::Unsafe {
            path,
            detail: format!("a process of user {} listens there", peer.uid),
        });
    }
    let patience = match ask {
        ControlRequest::Status | ControlRequest::Stats => Some(STATUS_TIMEOUT),
        ControlRequest::Detach { .. } => None,
        _ => Some(ANSWER_TIMEOUT),
    };
    let end = patience.map(|patience| Instant::now() + patience);
    let mut until = Until {
        stream: &stream,
        end,
    };
    let failed = |e: io::Error| {
        if is_late(&e) {
            silent(name, (peer.pid != 0).then_some(peer.pid))
        } else {
            failed(e)
        }
    };
    let question = serde_json::to_string(ask).expect("an enum becomes JSON");
    let asked = until.write_all(format!("{question}\n").as_bytes());
    asked.map_err(failed)?;
    let line = until.line().map_err(failed)?;
    let mut answer: Value = serde_json::from_str(&line).map_err(|_| {
        Error::Busy(format!(
            "the process that serves `{name}` ended without an answer"
        ))
    })?;
    let Some(why) = answer.get("error").and_then(|e| e.as_str()) else {
        return Ok(answer["ok"].take());
    };
    let why = why.to_owned();
    Err(match answer["code"].as_u64().map(|code| code as u8) {
        Some(exit::NOT_FOUND) => Error::NotFound(why),
        Some(exit::BUSY) => Error::Busy(why),
        Some(exit::USAGE) => Error::Usage(why),
        Some(exit::DATA_LOST) => Error::DataLost(why),
        _ => Error::Failed(why),
    })
}

fn silent(name: &str, pid: Option<i32>) -> Error {
    let who = pid.map_or(String::new(), |pid| format!(" (process {pid})"));
    Error::Busy(format!(
        "`{name}`{who} is not answering: its process is stopped, or waits for a device; try again, \
         or abandon the wait with `evfs detach {name} --force`"
    ))
}

/// Lists the names of all services, sorted; none if the directory is not safe.
pub fn names(run_dir: &Path) -> Vec<String> {
    let trusted = is_trusted(run_dir).unwrap_or_else(|error| {
        tracing::warn!("{error}");
        false
    });
    let Some(entries) = trusted.then(|| std::fs::read_dir(run_dir).ok()).flatten() else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(".control")?.to_owned()))
        .collect();
    names.sort();
    names
}

/// Collects the status of every service. They are queried concurrently, so that one without an
/// answer delays no other.
///
/// # Errors
/// The directory is not safe.
pub fn statuses(run_dir: &Path) -> Result<Vec<(String, Result<Value>)>> {
    is_trusted(run_dir)?;
    Ok(statuses_of(run_dir, names(run_dir)))
}

fn statuses_of(run_dir: &Path, names: Vec<String>) -> Vec<(String, Result<Value>)> {
    let status = |name: &str| send_request(run_dir, name, &ControlRequest::Status);
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let start = |name: String| scope.spawn(move || (status(&name), name));
        let asked: Vec<_> = names.into_iter().map(start).collect();
        let answers = asked.into_iter().filter_map(|thread| thread.join().ok());
        answers.map(|(status, name)| (name, status)).collect()
    });
    all.retain(|(_, status)| !matches!(status, Err(Error::NotFound(_))));
    all
}

/// Finds the first service whose status satisfies `wanted`.
pub fn find(run_dir: &Path, wanted: impl Fn(&Value) -> bool) -> Option<String> {
    find_other(run_dir, "", wanted)
}

/// Same as [`find`], except for the service `but`.
pub(crate) fn find_other(
    run_dir: &Path,
    but: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Option<String> {
    let mut names = names(run_dir);
    names.retain(|name| name != but);
    let is_it = |(name, status): (String, Result<Value>)| wanted(&status.ok()?).then_some(name);
    statuses_of(run_dir, names).into_iter().find_map(is_it)
}
