//! Errors of starting and stopping a server.

use std::io;

/// An error of the NBD server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A TCP address that other machines can reach, without TLS.
    #[error(
        "{0} is reachable from other machines, and NBD without TLS is not encrypted; set a \
         certificate (--tls-cert, --tls-key), or listen on 127.0.0.1 or a Unix socket"
    )]
    Insecure(std::net::SocketAddr),
    /// A TCP address that other machines can reach, without client authentication.
    #[error(
        "{0} is reachable from other machines, and its clients are not authenticated; set the CA \
         of their certificates (--tls-ca), or use --anonymous to serve the decrypted data to \
         every client"
    )]
    Anonymous(std::net::SocketAddr),
    /// Another server listens at the address.
    #[error("{0} is in use by another server")]
    Busy(String),
    /// Another kind of file exists at the path of the socket.
    #[error("{0} exists and is not a socket; remove it, or choose another path for the socket")]
    NotASocket(String),
    /// A certificate or key is unusable.
    #[error("{path}: {why}")]
    Certificate {
        /// Path of the file.
        path: String,
        /// Reason why it is unusable.
        why: String,
    },
    /// A device failed to open a queue.
    #[error(transparent)]
    Device(#[from] block::Error),
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// The failed operation.
        what: String,
        /// Error of the system.
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

    /// Reports whether the configuration is at fault.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::Insecure(_) | Error::Anonymous(_) | Error::NotASocket(_)
        )
    }

    /// Reports whether a required resource is in use.
    pub fn is_busy(&self) -> bool {
        match self {
            Error::Busy(_) => true,
            Error::Io { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            _ => false,
        }
    }
}
