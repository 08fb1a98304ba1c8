//! Parts that server and client of a control socket share: its path, the lock of its name, and
//! connections with a deadline.

use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest line that either side accepts, in bytes: a segment of a stream, as text.
const LINE_BYTES_MAX: u64 = 8 << 20;
/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the path of the control socket of the service `name`.
pub fn socket_path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.control"))
}

/// Ownership of a name: a lock that ends with the process.
pub(crate) struct Name {
    path: PathBuf,
    _lock: File,
}

impl Name {
    /// Takes the name; returns `None` if another process has it.
    pub(crate) fn take(run_dir: &Path, name: &str) -> io::Result<Option<Name>> {
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

/// A connection with a common deadline for all reads and writes.
pub(super) struct Until<'a> {
    stream: &'a UnixStream,
    end: Option<Instant>,
}

/// The time until a deadline.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`]: it has passed.
fn left(end: Option<Instant>) -> io::Result<Option<Duration>> {
    match end.map(|end| end.saturating_duration_since(Instant::now())) {
        Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

impl Until<'_> {
    /// Sets a deadline for all reads and writes; `None` for no limit.
    pub(super) fn new(stream: &UnixStream, end: Option<Instant>) -> Until<'_> {
        Until { stream, end }
    }

    /// Reads one line, with its terminator.
    pub(super) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        BufReader::new(self.take(LINE_BYTES_MAX)).read_line(&mut line)?;
        Ok(line)
    }
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(left(self.end)?)?;
        self.stream.read(into)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(left(self.end)?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reports whether an operation timed out.
pub(super) fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Connects to a socket. If its backlog is full, waits until `end`, but at most
/// [`CONNECT_TIMEOUT`].
pub(super) fn connect(path: &Path, end: Option<Instant>) -> io::Result<UnixStream> {
    let limit = left(end)?.map_or(CONNECT_TIMEOUT, |left| left.min(CONNECT_TIMEOUT));
    let kind = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}
