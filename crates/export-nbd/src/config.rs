//! What is exported, and where.

use block::BlockDevice;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

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
    /// Connections at a time, over all workers; more are closed at once.
    pub max_connections: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: Vec::new(),
            threads: 1,
            tls: None,
            max_connections: 256,
        }
    }
}
