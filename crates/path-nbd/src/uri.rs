//! NBD URIs (`doc/uri.md` of the NetworkBlockDevice project).

use block::{Error, ErrorKind, Result};
use lunpath::percent_decode;
use std::fmt;
use std::path::PathBuf;
use url::Url;

/// Default port of NBD.
const PORT: u16 = 10809;

/// Address of an NBD server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// Host name or address without brackets, and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// An NBD URI: `nbd://HOST[:PORT]/EXPORT`, `nbds://...` with TLS, `nbd+unix:///EXPORT?socket=PATH`
/// or `nbds+unix://...`. With TLS, `tls-certificates=DIR` names a directory with `ca-cert.pem`
/// and, for servers that require a client certificate, `client-cert.pem` and `client-key.pem`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdUri {
    /// Address of the server.
    pub server: Server,
    /// Name of the export; empty selects the server's default.
    pub export: String,
    /// Use TLS.
    pub tls: bool,
    /// Certificate directory.
    pub certificates: Option<PathBuf>,
    text: String,
}

impl NbdUri {
    /// Checks whether `text` has the scheme of an NBD URI.
    pub fn is_one(text: &str) -> bool {
        ["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"]
            .iter()
            .any(|scheme| text.starts_with(scheme))
    }

    /// Parses a URI.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], with the problem and the expected form.
    pub fn parse(text: &str) -> Result<NbdUri> {
        let invalid = |why: &str| {
            let how = "an NBD URI is nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH \
                       (nbds for TLS)";
            Error::new(ErrorKind::Invalid, text, format!("{why}; {how}"))
        };
        let url = Url::parse(text).map_err(|e| invalid(&e.to_string()))?;
        let (tls, unix) = match url.scheme() {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(invalid("unknown scheme")),
        };
        let mut socket = None;
        let mut certificates = None;
        for (key, value) in url.query_pairs() {
            match &*key {
                "socket" if unix => socket = Some(PathBuf::from(&*value)),
                "tls-certificates" if tls => certificates = Some(PathBuf::from(&*value)),
                other => return Err(invalid(&format!("unexpected parameter `{other}`"))),
            }
        }
        let host = url.host_str().unwrap_or_default();
        let server = match socket {
            Some(path) if host.is_empty() => Server::Unix(path),
            Some(_) => return Err(invalid("a Unix socket takes no host")),
            None if unix => return Err(invalid("the socket is missing")),
            None if host.is_empty() => return Err(invalid("the host is missing")),
            None => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                Server::Tcp(host.to_owned(), url.port().unwrap_or(PORT))
            }
        };
        let path = url.path();
        let export = percent_decode(path.strip_prefix('/').unwrap_or(path))
            .ok_or_else(|| invalid("the export name is not UTF-8"))?;
        Ok(NbdUri {
            server,
            export,
            tls,
            certificates,
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form() {
        let tcp = NbdUri::parse("nbd://[::1]:2000/a%20b").unwrap();
        assert_eq!(tcp.server, Server::Tcp("::1".into(), 2000));
        assert_eq!((tcp.export.as_str(), tcp.tls), ("a b", false));
        let unix = NbdUri::parse("nbd+unix:///x?socket=/tmp/s%20s").unwrap();
        assert_eq!(unix.server, Server::Unix("/tmp/s s".into()));
        let plain = NbdUri::parse("nbds://disk.example").unwrap();
        assert_eq!(plain.server, Server::Tcp("disk.example".into(), PORT));
        assert_eq!((plain.export.as_str(), plain.tls), ("", true));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for bad in [
            "nbd:///x",
            "nbd+unix:///x",
            "nbd+unix://host/x?socket=/a",
            "nbd://h/?socket=/a",
            "nbd://h/%ff",
            "nbd://h:99999/",
            "http://h/",
            "",
        ] {
            let error = NbdUri::parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
