//! The listening end of the server, and the users whose connections it accepts.
//!
//! Like the NBD server on a loopback address, it serves only root and the user of the process.

use super::connection::Connection;
use crate::control::Name;
use crate::listen::Listen;
use crate::peer::{is_trusted_user, peer};
use crate::{Error, Result};
use export_nbd::Stranger;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The listening socket, and the right to have it.
pub(super) struct Endpoint {
    listener: Listener,
    /// Socket file to remove.
    file: Option<PathBuf>,
    _names: Vec<Name>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A connection that was accepted, or why it is closed; without a reason if its client is gone.
pub(super) type Accepted = std::result::Result<Connection, Option<String>>;

impl Endpoint {
    /// Takes the locks and listens; returns `None` if another process has one of the locks.
    pub(super) fn open(
        listen: &Listen,
        run_dir: &Path,
        locks: &[&'static str],
    ) -> Result<Option<Endpoint>> {
        let mut names = Vec::new();
        for lock in locks {
            let name = Name::take(run_dir, lock)
                .map_err(|e| Error::io("cannot lock the server in", run_dir, e))?;
            let Some(name) = name else {
                return Ok(None);
            };
            names.push(name);
        }
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
            _names: names,
        }))
    }

    /// Accepts a client of root or of this user.
    pub(super) fn accept(&self) -> io::Result<Accepted> {
        match &self.listener {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let uid = peer(&stream)?.uid;
                Ok(if is_trusted_user(uid) {
                    Ok(Connection::Unix(stream))
                } else {
                    Err(Some(format!("it belongs to user {uid}")))
                })
            }
            Listener::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(match export_nbd::check_own_user(&stream, address) {
                    Ok(()) => Ok(Connection::Tcp(stream)),
                    // Browsers open connections in advance, and close them unused.
                    Err(Stranger::Gone) => Err(None),
                    Err(stranger) => Err(Some(stranger.to_string())),
                })
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

/// Binds a socket that only this user can connect to. One that a killed process left is replaced;
/// one on which a process listens, which may have other settings, is not.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            if UnixStream::connect(path).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
        }
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    // Others may enter the directory; each client is also checked when it is accepted.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_replaced_only_if_no_process_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let first = bind(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        bind(&path).unwrap();
    }

    #[test]
    fn a_file_in_the_place_of_the_socket_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        std::fs::write(&path, "data").unwrap();
        assert!(Endpoint::open(&Listen::Unix(path.clone()), dir.path(), &[".a"]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn all_locks_are_needed() {
        let dir = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(dir.path().join("a.sock"));
        let open = |locks: &[&'static str]| Endpoint::open(&listen, dir.path(), locks).unwrap();
        let one = open(&[".b"]);
        assert!(one.is_some());
        assert!(open(&[".a", ".b"]).is_none());
        drop(one);
        // The lock that could be taken was released.
        assert!(open(&[".a", ".b"]).is_some());
    }
}
