//! Errors while a server starts.

use std::io;
use std::net::SocketAddr;

/// Error while starting a server.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port cannot be opened.
    #[error("cannot listen at {address}")]
    Port {
        /// Address and port.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// What a killed server has left cannot be taken over, or cannot be left to another one.
    #[error("cannot continue a killed server, or leave what another one needs")]
    Left(#[source] io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A fileset cannot be opened.
    #[error(transparent)]
    Files(#[from] fs::Error),
}
