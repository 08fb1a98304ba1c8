//! What is exported, and where.

use block::BlockDevice;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A device under a name.
#[derive(Clone)]
pub struct Export {
    /// Name that clients ask for; the empty name means the first export. At most 4096 bytes.
    pub name: String,
    /// Words for a person who lists exports. At most 4096 bytes.
    pub description: String,
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Refuse writes whatever the device says.
    pub read_only: bool,
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A socket file, made for its user alone (0600), and removed when the server stops.
    Unix(PathBuf),
    /// A TCP address; port 0 lets the system choose.
    Tcp(SocketAddr),
}

/// Certificates of this server and of its clients, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// This server's certificate and what leads to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Only clients with a certificate of this authority are served.
    pub client_ca: Option<PathBuf>,
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Worker threads; each takes [`crate::WORKER_MEMORY_BYTES`] at most.
    pub threads: usize,
    /// TLS. With it, clients that do not ask for TLS are told nothing but that it is required
    /// ("FORCEDTLS" of the protocol document).
    pub tls: Option<Tls>,
    /// Serve Unix sockets without TLS although there are certificates for TCP: the socket file is
    /// for its user alone.
    pub plain_unix: bool,
    /// Connections at a time, over all workers; more are closed at once. 256 is eight times what
    /// the largest client here opens (32 connections).
    pub max_connections: usize,
    /// Requests of one connection in flight; more wait in its socket. 128 is what a queue of a
    /// disk takes.
    pub max_requests: usize,
    /// How long a client may take from connecting to its choice of an export.
    pub handshake_timeout: Duration,
    /// How long a client that holds the memory for a request of the largest kind may go without
    /// sending or taking a byte before it is cut off, so that others get that memory.
    pub stall_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: Vec::new(),
            threads: 1,
            tls: None,
            plain_unix: true,
            max_connections: 256,
            max_requests: 128,
            handshake_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// What a server has done, summed over its workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections at the moment.
    pub connections: usize,
    /// Connections that were accepted so far.
    pub accepted: u64,
    /// Connections that were closed because there were too many.
    pub turned_away: u64,
    /// Connections that were cut off: not NBD, a limit, a time-out, an error of the socket.
    pub cut_off: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Bytes of data sent to clients.
    pub read_bytes: u64,
    /// Bytes of data taken from clients.
    pub written_bytes: u64,
}
