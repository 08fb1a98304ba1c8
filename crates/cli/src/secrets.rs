//! Sources of secrets: a descriptor, a file, a systemd credential, the terminal; never argv and
//! never the environment. `agent.rs` adds the agents of systemd.
//!
//! One trailing newline is removed from a passphrase from any source; a key file is used unchanged.

use secret::SecretBytes;
use stack::{Error, Result};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::fd::FromRawFd;
use std::path::Path;

/// Longest passphrase or key file, in bytes: cryptsetup's limit for key files.
const SECRET_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Reads a passphrase from descriptor `fd` to its end.
pub fn from_fd(fd: i32) -> Result<SecretBytes> {
    // SAFETY: fcntl with F_GETFD only checks whether the descriptor is open.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Error::Usage(format!(
            "--passphrase-fd {fd}: the file descriptor is not open"
        )));
    }
    // SAFETY: the descriptor is open and was passed to us for this; it is closed after reading,
    // except for standard input, which stays open for later readers.
    let file = unsafe { File::from_raw_fd(fd) };
    let read = read_all(&file, Path::new(&format!("/dev/fd/{fd}")));
    if fd == 0 {
        std::mem::forget(file);
    }
    read.map(strip_newline)
}

/// Reads a complete key file; `-` is standard input.
pub fn from_key_file(path: &Path) -> Result<SecretBytes> {
    if path.as_os_str() == "-" {
        return read_all(std::io::stdin().lock(), path);
    }
    let file = File::open(path).map_err(|e| Error::io("cannot open the key file", path, e))?;
    read_all(file, path)
}

/// Reads the systemd credential `evfs.NAME`, if the service has one.
pub fn from_credential(name: &str) -> Result<Option<SecretBytes>> {
    let Some(folder) = std::env::var_os("CREDENTIALS_DIRECTORY") else {
        return Ok(None);
    };
    let path = Path::new(&folder).join(format!("evfs.{name}"));
    match File::open(&path) {
        Ok(file) => read_all(file, &path).map(strip_newline).map(Some),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("cannot open the credential", &path, e)),
    }
}

/// Prompts for a passphrase at the terminal.
pub fn ask(prompt: &str) -> Result<SecretBytes> {
    ask_or(prompt, "use --passphrase-fd N or --key-file F")
}

/// Reports whether there is a terminal to ask at.
pub(crate) fn has_terminal() -> bool {
    std::io::stdin().is_terminal() || File::open("/dev/tty").is_ok()
}

fn ask_or(prompt: &str, instead: &str) -> Result<SecretBytes> {
    if !has_terminal() {
        return Err(Error::Usage(format!(
            "{prompt} is required, but there is no terminal to ask at; {instead}"
        )));
    }
    let text = rpassword::prompt_password(format!("{prompt}: "))
        .map_err(|e| Error::io("cannot read a passphrase from", Path::new("/dev/tty"), e))?;
    Ok(SecretBytes::from_slice(text.as_bytes()))
}

/// Prompts twice, for a new passphrase.
pub fn ask_new(prompt: &str) -> Result<SecretBytes> {
    let instead = "use --passphrase-fd N or --no-passphrase";
    let first = ask_or(prompt, instead)?;
    if first.is_empty() {
        return Err(Error::Usage("an empty passphrase protects nothing".into()));
    }
    if ask_or(&format!("{prompt}, again"), instead)? != first {
        return Err(Error::Usage(
            "the passphrases do not match; nothing was changed".into(),
        ));
    }
    Ok(first)
}

pub(crate) fn read_all(mut from: impl Read, path: &Path) -> Result<SecretBytes> {
    let mut held = SecretBytes::zeroed(4096);
    let mut len = 0;
    loop {
        if len == held.len() {
            if len >= SECRET_BYTES_MAX {
                return Err(Error::Usage(format!(
                    "{}: too large for a key file; the limit is {SECRET_BYTES_MAX} bytes",
                    path.display()
                )));
            }
            let mut larger = SecretBytes::zeroed(len * 2);
            larger[..len].copy_from_slice(&held);
            held = larger;
        }
        match from.read(&mut held[len..]) {
            Ok(0) => return Ok(held.truncated(len)),
            Ok(n) => len += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("cannot read", path, e)),
        }
    }
}

pub(crate) fn strip_newline(secret: SecretBytes) -> SecretBytes {
    match secret.strip_suffix(b"\n") {
        Some(rest) => secret.truncated(rest.len()),
        None => secret,
    }
}
