//! Addresses of the metrics and the web page: a loopback address, or a socket in the directory of
//! control sockets. Other addresses are refused, because both reveal names of volumes, files and
//! clients' load.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Address of a server of metrics, of the web page, or of both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// Loopback address.
    Tcp(SocketAddr),
}

/// Description of valid addresses.
const VALID: &str = "empty, a loopback address with a port of at least 1024, such as \
                     127.0.0.1:9464, or the name of a socket in `run.dir`, such as metrics.sock";

/// First port that needs no privilege, which a server has dropped when it listens.
const PORTS_BEGIN: u16 = 1024;

/// End of the name of a socket, which distinguishes it from other files of the directory.
const SUFFIX: &str = ".sock";

impl Listen {
    /// Parses an address; an empty text is none.
    ///
    /// # Errors
    /// A description of valid addresses.
    pub fn parse(text: &str) -> Result<Option<Listen>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let listen = match text.parse::<SocketAddr>() {
            Ok(at) if at.ip().is_loopback() && at.port() >= PORTS_BEGIN => Some(Listen::Tcp(at)),
            Ok(_) => None,
            Err(_) => is_socket(Path::new(text)).then(|| Listen::Unix(text.into())),
        };
        listen.map(Some).ok_or_else(|| VALID.into())
    }

    /// Resolves the name of a socket in `run_dir`.
    ///
    /// # Errors
    /// It is in another directory.
    pub fn within(self, run_dir: &Path) -> Result<Listen, String> {
        match self {
            Listen::Unix(path) if path.parent() == Some(Path::new("")) => {
                Ok(Listen::Unix(run_dir.join(path)))
            }
            Listen::Unix(path) if path.parent() != Some(run_dir) => Err(VALID.into()),
            listen => Ok(listen),
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Unix(path) => path.display().fmt(f),
            Listen::Tcp(address) => address.fmt(f),
        }
    }
}

/// Reports whether a path names a socket: a name alone, or a complete path.
fn is_socket(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_named = name
        .and_then(|name| name.strip_suffix(SUFFIX))
        .is_some_and(|stem| !stem.is_empty() && !stem.starts_with('.') && !stem.contains(' '));
    is_named && (path.is_absolute() || path.components().count() == 1)
}
