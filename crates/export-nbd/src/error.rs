//! Why a server does not start or stop.

use std::io;

/// An error of the NBD server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A TCP address that others can reach, without TLS.
    #[error(
        "{0} can be reached from other machines, and NBD carries clear data: give a certificate (--tls-cert, --tls-key), or listen on 127.0.0.1 or a Unix socket"
    )]
    Insecure(std::net::SocketAddr),
    /// A TCP address that others can reach, and no proof of who they are.
    #[error(
        "{0} can be reached from other machines, and the clients prove nothing: give the authority of their certificates (--tls-ca), or --anonymous to serve the data in the clear to whoever connects"
    )]
    Anonymous(std::net::SocketAddr),
    /// Somebody listens there already.
    #[error("{0} is in use by another server")]
    Busy(String),
    /// Something lies where the socket file is to be.
    #[error("{0} exists and is no socket: remove it, or name another file for the socket")]
    NotASocket(String),
    /// A certificate or key cannot be used.
    #[error("{path}: {why}")]
    Certificate {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A device refuses a queue.
    #[error(transparent)]
    Device(#[from] block::Error),
    /// The system refuses.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Error {
        Error::Io {
            what: what.into(),
            source,
        }
    }

    /// Whether the configuration is what is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::Insecure(_) | Error::Anonymous(_) | Error::NotASocket(_)
        )
    }

    /// Whether somebody else holds what is needed.
    pub fn is_busy(&self) -> bool {
        match self {
            Error::Busy(_) => true,
            Error::Io { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            _ => false,
        }
    }
}
