//! Configuration of a server: exports, addresses, TLS and limits.

use block::BlockDevice;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A device exported under a name.
#[derive(Clone)]
pub struct Export {
    /// Name that clients request; the empty name selects the first export.
    pub name: String,
    /// Description for users who list the exports.
    pub description: String,
    /// The exported device.
    pub device: Arc<dyn BlockDevice>,
    /// Refuse writes even if the device accepts them.
    pub read_only: bool,
}

/// Listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A socket file that only its user can access (mode 0600).
    Unix(PathBuf),
    /// A TCP address; port 0 lets the system choose.
    Tcp(SocketAddr),
}

/// Certificates for TCP connections, all in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// This server's certificate and its chain.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// If set, only clients with a certificate of this authority are served.
    pub client_ca: Option<PathBuf>,
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses to listen on.
    pub listen: Vec<Listen>,
    /// Number of worker threads.
    pub threads: usize,
    /// TLS for all TCP connections.
    pub tls: Option<Tls>,
    /// Serve TCP clients without authentication. Otherwise a TCP client needs a certificate of
    /// [`Tls::client_ca`], or a socket on this machine that belongs to root or to the user of this
    /// process.
    pub anonymous: bool,
    /// Limits of connections.
    pub limits: Limits,
}

/// Limits of connections in number and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections that have chosen an export, over all workers.
    pub connections: usize,
    /// Maximum number of these from one address of another machine.
    pub connections_per_address: usize,
    /// Maximum number of connections that have not chosen an export; a further one replaces the
    /// oldest.
    pub strangers: usize,
    /// Maximum time until a connection has chosen an export, including TLS.
    pub handshake: Duration,
    /// Maximum time that a payload or a reply may stall after it has begun.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 256,
            connections_per_address: 128,
            strangers: 128,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(30),
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: Vec::new(),
            threads: 1,
            tls: None,
            anonymous: false,
            limits: Limits::default(),
        }
    }
}
