//! Access to the page: a login token that is valid once, and the cookie of browsers that used one.
//!
//! The token is in a file that only its user can read. A browser receives it in the fragment of an
//! address, which it sends to no server, and the login page posts it. The cookie stays in memory,
//! here and in the browser, and is valid until the server ends.

use crate::control::{self, Name};
use crate::listen::Listen;
use crate::paths::is_trusted;
use crate::state_file::read_up_to;
use crate::{Error, Result, Settings};
use secret::SecretBytes;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// Name of the lock in the directory of control sockets.
pub(super) const LOCK: &str = ".web";
/// File with the next token, in the same directory.
const FILE: &str = ".web.token";
/// Limit of that file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// Length of a token and of a cookie, in bytes.
const SECRET_BYTES: usize = 32;
/// Time limit for the start of a server. One that takes the place of another tries every two
/// seconds.
const START_TIME: Duration = Duration::from_secs(3);
/// Port in the address of a page on a socket, unless another one is forwarded to it.
const PORT: u16 = 9465;

/// The address of the page, with a token for one login.
#[derive(Serialize, Deserialize)]
pub struct Invitation {
    /// Loopback address, unless the page is on a socket.
    pub address: Option<SocketAddr>,
    /// Path of the socket, unless the page is on a loopback address.
    pub socket: Option<PathBuf>,
    /// ID of the process that serves it.
    pub pid: u32,
    token: String,
}

impl Invitation {
    fn new(at: &Listen, token: String) -> Invitation {
        let (address, socket) = match at {
            Listen::Tcp(address) => (Some(*address), None),
            Listen::Unix(path) => (None, Some(path.clone())),
        };
        Invitation {
            address,
            socket,
            pid: std::process::id(),
            token,
        }
    }

    /// Returns the port at which a browser finds the page. `forwarded` is a port that another
    /// program forwards to it.
    pub fn port(&self, forwarded: Option<u16>) -> u16 {
        let own = self.address.map(|address| address.port());
        forwarded.or(own).unwrap_or(PORT)
    }

    /// Formats the address that logs a browser in. The token is in the fragment, which a browser
    /// does not send.
    pub fn url(&self, forwarded: Option<u16>) -> String {
        let port = self.port(forwarded);
        let token = &self.token;
        match self.address {
            Some(address) if forwarded.is_none() => format!("http://{address}/login#{token}"),
            _ => format!("http://127.0.0.1:{port}/login#{token}"),
        }
    }
}

/// Reads the address of the page that a process of this user serves, with the next token. Waits a
/// short time for a process that has just been started, or takes the place of another one.
///
/// # Errors
/// [`Error::NotFound`] if no process serves it.
pub fn invitation(settings: &Settings) -> Result<Invitation> {
    let run_dir = settings.run_dir();
    let end = Instant::now() + START_TIME;
    loop {
        if is_trusted(&run_dir)?
            && let Some(invitation) = read(&run_dir)?
        {
            return Ok(invitation);
        }
        let may_come = settings.web_listen().is_some() && !control::names(&run_dir).is_empty();
        if !may_come || Instant::now() > end {
            return Err(not_served(settings));
        }
        std::thread::sleep(START_TIME / 60);
    }
}

/// Reads the file of the process that serves the page; returns `None` if there is none. The file of
/// a killed process is removed.
fn read(run_dir: &Path) -> Result<Option<Invitation>> {
    let path = run_dir.join(FILE);
    let failed = |e| Error::io("cannot read", &path, e);
    let bytes = match read_up_to(&path, FILE_BYTES_MAX) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(failed)?,
    };
    if let Some(_unserved) = Name::take(run_dir, LOCK).map_err(failed)? {
        let _ = std::fs::remove_file(&path);
        return Ok(None);
    }
    let invitation = serde_json::from_slice(&bytes);
    invitation.map(Some).map_err(|e| failed(e.into()))
}

fn not_served(settings: &Settings) -> Error {
    let why = if settings.web_listen().is_none() {
        "the setting `web.listen` is empty; set it, for example to 127.0.0.1:9465, and start the \
         services again"
    } else {
        "no service runs that was started with the setting `web.listen`; `evfs status` lists the \
         running ones"
    };
    Error::NotFound(format!("no web page is served: {why}"))
}

/// The secrets of a server.
pub(super) struct Access {
    run_dir: PathBuf,
    secrets: Mutex<Option<Secrets>>,
}

struct Secrets {
    at: Listen,
    /// Token of the next login.
    login: SecretBytes,
    /// Value of the cookie.
    session: SecretBytes,
}

impl Access {
    /// Creates the access to a page that is not served yet: none.
    pub(super) fn new(run_dir: &Path) -> Access {
        Access {
            run_dir: run_dir.to_owned(),
            secrets: Mutex::default(),
        }
    }

    /// Creates the secrets, and writes the first token to its file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn open(&self, at: &Listen) -> Result<()> {
        let secrets = Secrets {
            at: at.clone(),
            login: random(),
            session: random(),
        };
        self.write(at, &secrets.login)?;
        *self.secrets() = Some(secrets);
        Ok(())
    }

    /// Forgets the secrets, and removes the file.
    pub(super) fn close(&self) {
        let _ = std::fs::remove_file(self.run_dir.join(FILE));
        *self.secrets() = None;
    }

    /// Exchanges a token for the value of the cookie, and writes another token to the file. Returns
    /// `None` if the token is not the valid one.
    ///
    /// # Errors
    /// The file cannot be written; the token stays valid.
    pub(super) fn log_in(&self, token: &[u8]) -> Result<Option<String>> {
        let mut secrets = self.secrets();
        let Some(secrets) = secrets.as_mut().filter(|s| is_equal(&s.login, token)) else {
            return Ok(None);
        };
        let next = random();
        self.write(&secrets.at, &next)?;
        secrets.login = next;
        Ok(Some(text(&secrets.session)))
    }

    /// Reports whether a cookie is valid.
    pub(super) fn admits(&self, cookie: &str) -> bool {
        let secrets = self.secrets();
        let session = secrets.as_ref().map(|secrets| &secrets.session);
        session.is_some_and(|session| is_equal(session, cookie.as_bytes()))
    }

    /// Replaces the file.
    fn write(&self, at: &Listen, login: &SecretBytes) -> Result<()> {
        let path = self.run_dir.join(FILE);
        let failed = |e| Error::io("cannot write", &path, e);
        let invitation = Invitation::new(at, text(login));
        let bytes = serde_json::to_vec(&invitation).map_err(|e| failed(e.into()))?;
        let new = path.with_extension("new");
        // A file that a killed process left may have another mode.
        let _ = std::fs::remove_file(&new);
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&new);
        let written = file.and_then(|mut file| file.write_all(&bytes));
        written
            .and_then(|()| std::fs::rename(&new, &path))
            .map_err(failed)
    }

    fn secrets(&self) -> MutexGuard<'_, Option<Secrets>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a secret. Its text is what tokens and cookies contain, so that form is compared.
fn random() -> SecretBytes {
    let bytes = SecretBytes::random(SECRET_BYTES);
    let mut digits = String::with_capacity(2 * SECRET_BYTES);
    for byte in bytes.iter() {
        let _ = write!(digits, "{byte:02x}");
    }
    SecretBytes::from_slice(digits.as_bytes())
}

fn text(secret: &SecretBytes) -> String {
    String::from_utf8_lossy(secret).into_owned()
}

/// Compares in constant time.
fn is_equal(secret: &SecretBytes, given: &[u8]) -> bool {
    secret[..].ct_eq(given).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn invited(dir: &Path) -> Invitation {
        serde_json::from_slice(&std::fs::read(dir.join(FILE)).unwrap()).unwrap()
    }

    #[test]
    fn a_token_is_valid_once_and_its_file_is_for_the_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let access = Access::new(dir.path());
        let at = Listen::Tcp("127.0.0.1:9465".parse().unwrap());
        assert!(!access.admits(""));
        access.open(&at).unwrap();
        let mode = std::fs::metadata(dir.path().join(FILE)).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        let first = invited(dir.path());
        assert_eq!(first.token.len(), 64);
        let mut wrong = first.token.clone().into_bytes();
        wrong[63] ^= 1;
        for token in [&wrong[..], b"", &first.token.as_bytes()[..63]] {
            assert_eq!(access.log_in(token).unwrap(), None);
        }
        let cookie = access.log_in(first.token.as_bytes()).unwrap().unwrap();
        assert!(access.admits(&cookie) && !access.admits(&first.token));
        assert_eq!(access.log_in(first.token.as_bytes()).unwrap(), None);
        let second = invited(dir.path());
        assert_ne!(second.token, first.token);
        let again = access.log_in(second.token.as_bytes()).unwrap();
        assert_eq!(again.as_ref(), Some(&cookie));
        access.close();
        assert!(!dir.path().join(FILE).exists());
        assert!(!access.admits(&cookie));
    }

    #[test]
    fn an_address_has_the_port_of_the_browsers_side() {
        let at = |at: &Listen| Invitation::new(at, "t".into());
        let tcp = at(&Listen::Tcp("[::1]:9000".parse().unwrap()));
        assert_eq!(tcp.url(None), "http://[::1]:9000/login#t");
        assert_eq!(tcp.url(Some(7000)), "http://127.0.0.1:7000/login#t");
        let unix = at(&Listen::Unix("/run/evfs/w.sock".into()));
        assert_eq!(unix.url(None), "http://127.0.0.1:9465/login#t");
        assert_eq!(unix.port(Some(7000)), 7000);
    }
}
