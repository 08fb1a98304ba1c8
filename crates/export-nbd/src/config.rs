//! What is exported, and where.

use block::BlockDevice;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A device under a name.
#[derive(Clone)]
pub struct Export {
    /// Name that clients ask for; the empty name means the first export.
    pub name: String,
    /// Words for a person who lists exports.
    pub description: String,
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Refuse writes whatever the device says.
    pub read_only: bool,
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A socket file, made for its user alone (0600).
    Unix(PathBuf),
    /// A TCP address; port 0 lets the system choose.
    Tcp(SocketAddr),
}

/// Certificates of TCP clients and of this server, all PEM.
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
    /// Worker threads.
    pub threads: usize,
    /// TLS on all TCP connections.
    pub tls: Option<Tls>,
    /// Serve TCP clients that prove nothing about themselves. Without it a TCP client needs a
    /// certificate of [`Tls::client_ca`], or comes from this machine and its socket belongs to root
    /// or to the user of this process.
    pub anonymous: bool,
    /// What connections may take of numbers and of time.
    pub limits: Limits,
}

/// What connections may take of numbers and of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections that have chosen an export, over all workers.
    pub connections: usize,
    /// As many of them from one address of another machine.
    pub connections_per_address: usize,
    /// Connections that have not chosen one yet; one more takes the place of the oldest.
    pub strangers: usize,
    /// How long a connection may take until it has chosen an export, TLS included.
    pub handshake: Duration,
    /// How long a payload or a reply that has begun may stand still.
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
