//! Access to the page: a login token that is valid once, and the cookie of browsers that used one.
//!
//! The token is in a file that only its user can read. A browser receives it in the fragment of an
//! address, which it sends to no server, and the login page posts it. The cookie stays in memory,
//! here and in the browser, and is valid until the server ends. Both are kept as
//! [`SecretBytes`]; the program's allocator zeroes the buffers of files, requests and addresses that
//! they pass through.

use crate::control::{self, Name};
use crate::listen::Listen;
use crate::paths::is_trusted;
use crate::state_file::read_up_to;
use crate::{Error, Result, Settings};
use secret::SecretBytes;
use serde::{Deserialize, Serialize};
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
/// File that leads a browser to the page with the next token, in the same directory.
const REDIRECT: &str = ".web.login.html";
/// Limit of the file with the token, in bytes.
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
    #[serde(with = "token")]
    token: SecretBytes,
}

/// The form of a token in its file: text.
mod token {
    use secret::SecretBytes;
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(token: &SecretBytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(std::str::from_utf8(token).map_err(S::Error::custom)?)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SecretBytes, D::Error> {
        // Borrowed from the content of the file, so that there is no other copy.
        let text = <&str>::deserialize(from)?;
        if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(D::Error::custom("the token is not hexadecimal"));
        }
        Ok(SecretBytes::from_slice(text.as_bytes()))
    }
}

impl Invitation {
    fn new(at: &Listen, token: SecretBytes) -> Invitation {
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
        let token = String::from_utf8_lossy(&self.token);
        match self.address {
            Some(address) if forwarded.is_none() => format!("http://{address}/login#{token}"),
            _ => format!("http://127.0.0.1:{port}/login#{token}"),
        }
    }

    /// Writes a page that leads a browser to [`Self::url`], and returns its path. Only the user can
    /// read it, while arguments of a browser, such as an address, are visible to all users. It is
    /// removed by the next login, and at the end of the server.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn redirect(&self, settings: &Settings, forwarded: Option<u16>) -> Result<PathBuf> {
        let path = settings.run_dir().join(REDIRECT);
        let url = self.url(forwarded);
        let page = format!(
            "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>EVFS</title>\n\
             <meta name=\"referrer\" content=\"no-referrer\">\n\
             <meta http-equiv=\"refresh\" content=\"0; url={url}\">\n"
        );
        replace(&path, page.as_bytes())?;
        Ok(path)
    }
}

/// Replaces a file, which only the user can read.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    // A file that a killed process left may have another mode.
    let _ = std::fs::remove_file(&new);
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&new);
    let written = file.and_then(|mut file| file.write_all(content));
    written
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(|e| Error::io("cannot write", path, e))
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
        for name in [FILE, REDIRECT] {
            let _ = std::fs::remove_file(self.run_dir.join(name));
        }
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
        let _ = std::fs::remove_file(self.run_dir.join(REDIRECT));
        Ok(Some(String::from_utf8_lossy(&secrets.session).into_owned()))
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
        let invitation = Invitation::new(at, SecretBytes::from_slice(login));
        let bytes = serde_json::to_vec(&invitation);
        let bytes = bytes.map_err(|e| Error::io("cannot write", &path, e.into()))?;
        replace(&path, &bytes)
    }

    fn secrets(&self) -> MutexGuard<'_, Option<Secrets>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a secret. Its text is what tokens and cookies contain, so that form is compared.
fn random() -> SecretBytes {
    let bytes = SecretBytes::random(SECRET_BYTES);
    let mut text = SecretBytes::zeroed(2 * SECRET_BYTES);
    for (digits, byte) in text.chunks_exact_mut(2).zip(bytes.iter()) {
        digits.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    text
}

/// Converts a number below 16 to its digit.
fn digit(value: u8) -> u8 {
    // Without a table, whose access would depend on the secret.
    value + if value < 10 { b'0' } else { b'a' - 10 }
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
        assert!(
            first
                .token
                .iter()
                .all(|digit| b"0123456789abcdef".contains(digit))
        );
        let mut wrong = first.token.to_vec();
        wrong[63] ^= 1;
        for token in [&wrong[..], b"", &first.token[..63]] {
            assert_eq!(access.log_in(token).unwrap(), None);
        }
        let cookie = access.log_in(&first.token).unwrap().unwrap();
        let token = std::str::from_utf8(&first.token).unwrap();
        assert!(access.admits(&cookie) && !access.admits(token));
        assert_eq!(access.log_in(&first.token).unwrap(), None);
        let second = invited(dir.path());
        assert_ne!(second.token, first.token);
        let again = access.log_in(&second.token).unwrap();
        assert_eq!(again.as_ref(), Some(&cookie));
        access.close();
        assert!(!dir.path().join(FILE).exists());
        assert!(!access.admits(&cookie));
    }

    #[test]
    fn a_token_that_is_not_hexadecimal_is_refused() {
        let file = |token: &str| {
            let text = format!(r#"{{"address":null,"socket":null,"pid":1,"token":"{token}"}}"#);
            serde_json::from_slice::<Invitation>(text.as_bytes())
        };
        assert_eq!(file("0af9").unwrap().token[..], *b"0af9");
        assert!(file("0\\u0022>").is_err() && file("<script>").is_err());
    }

    #[test]
    fn every_number_below_16_has_its_digit() {
        let digits: Vec<u8> = (0..16).map(digit).collect();
        assert_eq!(digits, b"0123456789abcdef");
    }

    #[test]
    fn an_address_has_the_port_of_the_browsers_side() {
        let at = |at: &Listen| Invitation::new(at, SecretBytes::from_slice(b"t"));
        let tcp = at(&Listen::Tcp("[::1]:9000".parse().unwrap()));
        assert_eq!(tcp.url(None), "http://[::1]:9000/login#t");
        assert_eq!(tcp.url(Some(7000)), "http://127.0.0.1:7000/login#t");
        let unix = at(&Listen::Unix("/run/evfs/w.sock".into()));
        assert_eq!(unix.url(None), "http://127.0.0.1:9465/login#t");
        assert_eq!(unix.port(Some(7000)), 7000);
    }
}
