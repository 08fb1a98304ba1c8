//! The server end of a control socket.

use super::protocol::{ControlRequest, answer_to_line};
use super::socket::{Name, Until, connect, is_late, socket_path};
use crate::peer::{is_trusted_user, peer};
use crate::{Error, Result};
use serde_json::Value;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time limit for receiving a request, and for sending the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The listening end of a control socket; releases the name when closed or dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// The socket stays when this is dropped: it is a predecessor's, and the next successor may need
    /// it.
    stays: bool,
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
        match connect(&path, None) {
            Ok(_) => return Err(taken()),
            Err(e) if is_late(&e) => return Err(taken()),
            Err(_) => {}
        }
        let _ = std::fs::remove_file(&path);
        let bound = UnixListener::bind(&path).and_then(|listener| {
            // Others may enter the directory; each client is also checked when it is accepted.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = bound.map_err(failed)?;
        Ok(Listener {
            listener,
            path,
            stays: false,
            name: Mutex::new(Some(own)),
        })
    }

    /// Takes the name again, whose socket a predecessor has left. Only `close` removes the socket.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn continued(run_dir: &Path, name: &str, socket: OwnedFd) -> Result<Listener> {
        let path = socket_path(run_dir, name);
        let failed = |e| Error::io("cannot listen on", &path, e);
        let own = Name::take(run_dir, name).map_err(failed)?;
        let own =
            own.ok_or_else(|| Error::Busy(format!("another process has the name `{name}`")))?;
        Ok(Listener {
            listener: UnixListener::from(socket),
            path,
            stays: true,
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
            tracing::warn!(
                name: "EVFS-0803",
                uid = peer.uid, "rejected a request from another user"
            );
            return Ok(None);
        }
        Ok(Some(stream))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.stays {
            self.close();
        }
    }
}

/// Connection of a client that waits for an answer.
pub(crate) struct PendingReply(UnixStream);

impl PendingReply {
    /// Reads the request; returns `None` after an invalid one has been answered with an error.
    pub(crate) fn to(stream: UnixStream) -> Option<(ControlRequest, PendingReply)> {
        let line = Until::new(&stream, Some(Instant::now() + CLIENT_TIMEOUT)).line();
        let reply = PendingReply(stream);
        match line.ok().and_then(|line| ControlRequest::from_line(&line)) {
            Some(request) => Some((request, reply)),
            None => {
                reply.send(Err(Error::Failed(
                    "this version of evfs does not know the request".into(),
                )));
                None
            }
        }
    }

    /// Sends the answer.
    pub(crate) fn send(self, answer: Result<Value>) {
        let line = answer_to_line(answer.as_ref());
        let mut stream = Until::new(&self.0, Some(Instant::now() + CLIENT_TIMEOUT));
        // The client may have closed the connection; that is not an error of the service.
        let _ = stream.write_all(line.as_bytes());
    }
}
