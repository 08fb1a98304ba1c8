//! The control socket of an attached volume: one line of JSON asks, one line of JSON answers.
//!
//! The socket lies in a directory that only its user can write to, and each side asks the kernel who the
//! other one is: a server answers its own user and root, and a client believes only them. The name belongs
//! to the process that holds the lock file `NAME.lock`; a socket without such a process is what a killed
//! one left. A question and its answer have one deadline, however the bytes trickle in.

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

/// Longest line either side accepts, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How long a server waits for a question, and for its answer to be taken.
const ASKER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client waits for a connection, and for what a server knows without asking its device.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client waits for other answers. That to a detach is waited for without end, because it comes
/// when everything is written out.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// What can be asked of an attached volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// What is attached, where, since when.
    Status,
    /// Counters of the data path.
    Stats,
    /// Whether a detach would find it in use.
    MayDetach,
    /// Flush, close the exports and end.
    Detach {
        /// Also when somebody uses them.
        force: bool,
    },
    /// Something about the LUN below.
    Lun(crate::lun::Ask),
    /// Something about the cache above.
    Cache(crate::cache::Ask),
    /// Something about the file system.
    Files(crate::filesystem::Ask),
    /// Something about the cell that is served.
    Cell(crate::cell::Ask),
}

/// Names the folder of control sockets.
const RUN_DIR: &str = "EVFS_RUN_DIR";

/// The folder of control sockets, made if it is missing.
///
/// # Errors
/// When it belongs to somebody else or others may enter it: a stranger's socket must not be able
/// to pose as a volume.
pub fn run_dir(dir: &Path) -> Result<PathBuf> {
    own_dir(dir, RUN_DIR)
}

/// A folder of this user alone, made if it is missing; `variable` sets what lies there.
///
/// # Errors
/// When it belongs to somebody else or others may enter it.
pub fn own_dir(dir: &Path, variable: &str) -> Result<PathBuf> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(|e| Error::io("cannot make the folder", dir, e))?;
    let meta = std::fs::symlink_metadata(dir).map_err(|e| Error::io("cannot look at", dir, e))?;
    match meta.uid() == me() && only_for_its_owner(&meta) {
        true => Ok(dir.to_owned()),
        false => Err(not_safe(dir, variable)),
    }
}

/// Whether there is such a directory, and what lies in it can be believed.
fn is_trusted(dir: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(dir) {
        Ok(meta) if is_trusted_user(meta.uid()) && only_for_its_owner(&meta) => Ok(true),
        Ok(_) => Err(not_safe(dir, RUN_DIR)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("cannot look at", dir, e)),
    }
}

fn only_for_its_owner(meta: &std::fs::Metadata) -> bool {
    meta.is_dir() && meta.permissions().mode() & 0o022 == 0
}

fn not_safe(dir: &Path, variable: &str) -> Error {
    Error::Unsafe {
        path: dir.to_owned(),
        detail: format!(
            "it must be a folder of this user that others cannot write to; make it one, or choose \
             another with {variable}"
        ),
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// This user, and root, who can be anybody.
fn is_trusted_user(uid: u32) -> bool {
    uid == me() || uid == 0
}

/// The process at the other end of a connection.
pub(crate) struct Peer {
    /// 0 for a process of another PID namespace.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// Returns who is at the other end, as the kernel says (`SO_PEERCRED`). rustix has no word for a process
/// without a number.
pub(crate) fn peer(socket: &impl AsFd) -> io::Result<Peer> {
    let peer = nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(Peer {
        pid: peer.pid(),
        uid: peer.uid(),
    })
}

/// A connection whose reads and writes end by one point in time.
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

    /// One line, with the characters at its end.
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

/// Whether an operation ended since its time was over.
fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Connects; waits no longer than [`STATUS_TIMEOUT`] where too many others do so, too.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let kind = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(STATUS_TIMEOUT))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Where the volume `name` listens.
pub fn socket_path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.control"))
}

/// Whether `name` can be the name of an attached volume, and so part of a file name.
pub fn valid_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&name.len())
        && name.chars().all(good)
        && !name.starts_with('.')
        && !name.starts_with('-')
}

/// Refuses a name that cannot be that of `what`.
pub(crate) fn check_name(name: &str, what: &str) -> Result<()> {
    match valid_name(name) {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "`{name}` cannot be the name of {what}: letters, digits, `.`, `_` and `-`, at most 64, not \
             beginning with `.` or `-`; choose one with --name"
        ))),
    }
}

/// The right to a name: a lock that ends with the process.
struct Name {
    path: PathBuf,
    _lock: File,
}

impl Name {
    /// Nothing if another process has it.
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
            // Its last holder may have removed it between the two calls: then it is no lock any more.
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
        // While it is locked still.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The listening end of a control socket; gives the name back when closed or dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    name: Mutex<Option<Name>>,
}

impl Listener {
    /// Takes the name.
    ///
    /// # Errors
    /// [`Error::Busy`] when a volume of this name is attached.
    pub fn bind(run_dir: &Path, name: &str) -> Result<Listener> {
        let path = socket_path(run_dir, name);
        let failed = |e| Error::io("cannot listen on", &path, e);
        let taken = || {
            Error::Busy(format!(
                "a volume named `{name}` is attached already; detach it, or give another --name"
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
            // The folder keeps others out already; the socket says so, too.
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

    /// Gives the name back.
    pub(crate) fn close(&self) {
        let mut name = self.name.lock().unwrap_or_else(|e| e.into_inner());
        if name.is_some() {
            let _ = std::fs::remove_file(&self.path);
            *name = None;
        }
    }

    /// The next connection that waits; nothing if it is somebody's who may not ask.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(false)?;
        let peer = peer(&stream)?;
        if !is_trusted_user(peer.uid) {
            tracing::warn!(uid = peer.uid, "a question of another user is not answered");
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

/// The asker, who waits.
pub struct Answer(UnixStream);

impl Answer {
    /// Reads the question; nothing when it was none, and the asker has been told so.
    pub(crate) fn to(stream: UnixStream) -> Option<(Ask, Answer)> {
        let end = Some(Instant::now() + ASKER_TIMEOUT);
        let stream_ref = &stream;
        let line = Until {
            stream: stream_ref,
            end,
        }
        .line();
        let answer = Answer(stream);
        match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
            Some(ask) => Some((ask, answer)),
            None => {
                answer.error(&Error::Failed("not a question this version knows".into()));
                None
            }
        }
    }

    /// Answers with a value.
    pub fn value(self, value: &impl Serialize) {
        self.send(serde_json::json!({ "ok": value }));
    }

    /// Answers that it did not work.
    pub fn error(self, why: &Error) {
        self.send(serde_json::json!({ "error": why.chain(), "code": why.exit_code() }));
    }

    fn send(self, value: Value) {
        let end = Some(Instant::now() + ASKER_TIMEOUT);
        let mut stream = Until {
            stream: &self.0,
            end,
        };
        // The asker may be gone; that is its own business.
        let _ = stream.write_all(format!("{value}\n").as_bytes());
    }
}

/// Asks the volume `name`.
///
/// # Errors
/// [`Error::NotFound`] when none of this name is attached, [`Error::Busy`] when it does not answer in time,
/// and what it answers.
pub fn ask(run_dir: &Path, name: &str, ask: &Ask) -> Result<Value> {
    let not_attached = || Error::NotFound(format!("no volume named `{name}` is attached"));
    if !valid_name(name) || !is_trusted(run_dir)? {
        return Err(not_attached());
    }
    let path = socket_path(run_dir, name);
    let stream = match connect(&path) {
        Ok(stream) => stream,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(not_attached()),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            // What a killed process left, unless another one is just about to listen there.
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
        Ask::Status | Ask::Stats => Some(STATUS_TIMEOUT),
        Ask::Detach { .. } => None,
        _ => Some(ANSWER_TIMEOUT),
    };
    let end = patience.map(|patience| Instant::now() + patience);
    let mut until = Until {
        stream: &stream,
        end,
    };
    let failed = |e: io::Error| match is_late(&e) {
        true => silent(name, (peer.pid != 0).then_some(peer.pid)),
        false => failed(e),
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
        "`{name}`{who} is not answering: its process is stopped, or waits for a device; try again, or \
         `evfs detach {name} --force` gives up what it waits for"
    ))
}

/// The names of attached volumes, sorted; none where the directory is not to be trusted.
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

/// Asks all that are attached for their status, at the same time, so that one that does not answer holds up
/// no other.
///
/// # Errors
/// The directory is not to be trusted.
pub fn statuses(run_dir: &Path) -> Result<Vec<(String, Result<Value>)>> {
    is_trusted(run_dir)?;
    Ok(statuses_of(run_dir, names(run_dir)))
}

fn statuses_of(run_dir: &Path, names: Vec<String>) -> Vec<(String, Result<Value>)> {
    let status = |name: &str| ask(run_dir, name, &Ask::Status);
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let start = |name: String| scope.spawn(move || (status(&name), name));
        let asked: Vec<_> = names.into_iter().map(start).collect();
        let answers = asked.into_iter().filter_map(|thread| thread.join().ok());
        answers.map(|(status, name)| (name, status)).collect()
    });
    all.retain(|(_, status)| !matches!(status, Err(Error::NotFound(_))));
    all
}

/// The first that is attached whose status is what is wanted.
pub fn find(run_dir: &Path, wanted: impl Fn(&Value) -> bool) -> Option<String> {
    find_other(run_dir, "", wanted)
}

/// The same, leaving one name out.
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
