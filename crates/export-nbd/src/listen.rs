//! Listening sockets: made for their user alone, never taken from a live server, and what a dead
//! one left is cleared away.

use crate::socket::Raw;
use crate::{Error, Listen};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Socket buffers asked for, in bytes, so that a few replies of 64 KiB fit and one system call
/// takes or gives several; the system gives what it allows.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A listening socket.
pub(crate) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener, SocketAddr),
}

/// The file of a Unix socket; removed with this, if it is still the one that was made.
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

impl Listener {
    /// Begins to listen; accepts without blocking.
    pub(crate) fn open(listen: &Listen) -> Result<Listener, Error> {
        match listen {
            Listen::Tcp(address) => {
                let failed = |e| Error::io(format!("cannot listen on {address}"), e);
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let real = listener.local_addr().map_err(failed)?;
                Ok(Listener::Tcp(listener, real))
            }
            Listen::Unix(path) => {
                let (listener, file) = listen_unix(path)?;
                Ok(Listener::Unix(listener, file))
            }
        }
    }

    /// Where it listens, with the port that the system chose.
    pub(crate) fn address(&self) -> Listen {
        match self {
            Listener::Unix(_, file) => Listen::Unix(file.path.clone()),
            Listener::Tcp(_, address) => Listen::Tcp(*address),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(l, _) => l.as_fd(),
            Listener::Tcp(l, _) => l.as_fd(),
        }
    }

    /// The next connection, ready for a worker.
    pub(crate) fn accept(&self) -> io::Result<Raw> {
        let raw = match self {
            Listener::Unix(l, _) => {
                let stream = l.accept()?.0;
                stream.set_nonblocking(true)?;
                Raw::Unix(stream)
            }
            Listener::Tcp(l, _) => {
                let stream = l.accept()?.0;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                // A client whose machine is gone is found out within hours, not never.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                return Ok(Raw::Tcp(stream));
            }
        };
        // TCP tunes its buffers itself. Refused is fine.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&raw, SOCKET_BUFFER_BYTES);
        Ok(raw)
    }
}

/// A socket file for its user alone. What a dead server left is removed; anything else is not.
fn listen_unix(path: &Path) -> Result<(UnixListener, SocketFile), Error> {
    let failed = |e| Error::io(format!("cannot listen on {}", path.display()), e);
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            let why = io::Error::new(io::ErrorKind::AlreadyExists, "it is there, and no socket");
            return Err(failed(why));
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            _ => return Err(Error::Busy(path.display().to_string())),
        },
        Err(_) => {}
    }
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // Bound in a private folder and moved from there, so that it is never open to others for a
    // moment, without a change to the umask of other threads.
    let private = private_folder(folder).map_err(failed)?;
    let inside = private.join("s");
    let bound = UnixListener::bind(&inside).and_then(|listener| {
        fs::set_permissions(&inside, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        // A link, not a rename: it fails where somebody else was faster.
        fs::hard_link(&inside, path)?;
        let file = SocketFile {
            path: path.to_owned(),
            identity: identity(&inside)?,
        };
        Ok((listener, file))
    });
    let _ = fs::remove_file(&inside);
    let _ = fs::remove_dir(&private);
    bound.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => Error::Busy(path.display().to_string()),
        _ => failed(e),
    })
}

fn private_folder(folder: &Path) -> io::Result<PathBuf> {
    for number in 0..100 {
        // Short, because the path of a socket has 108 bytes at most.
        let path = folder.join(format!(".n{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
