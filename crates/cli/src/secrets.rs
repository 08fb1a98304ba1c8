//! Sources of secrets: a descriptor, a file, a systemd credential, the terminal; never argv and
//! never the environment. `agent.rs` adds the agents of systemd.
//!
//! One trailing newline is removed from a passphrase from any source; a key file is used unchanged.

use crate::terminal::HiddenTerminal;
use secret::SecretBytes;
use stack::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, FromRawFd};
use std::path::Path;

/// Longest passphrase or key file, in bytes: cryptsetup's limit for key files.
const SECRET_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Reads a passphrase from descriptor `fd` to its end; from a terminal one line, which is not
/// shown.
pub fn from_fd(fd: i32) -> Result<SecretBytes> {
    with_fd(fd, |file, path| {
        if file.is_terminal() {
            hidden(file, path, |terminal| terminal.ask("Passphrase"))
        } else {
            read_all(file, path).map(strip_newline)
        }
    })
}

/// Reads a new passphrase from descriptor `fd` like [`from_fd`]; from a terminal twice.
pub fn new_from_fd(fd: i32, prompt: &str) -> Result<SecretBytes> {
    with_fd(fd, |file, path| {
        if file.is_terminal() {
            ask_twice(file, path, prompt)
        } else {
            let secret = strip_newline(read_all(file, path)?);
            not_empty(&secret)?;
            Ok(secret)
        }
    })
}

fn not_empty(new: &SecretBytes) -> Result<()> {
    new.check().map_err(|e| Error::Usage(e.to_string()))
}

fn with_fd(fd: i32, read: impl FnOnce(&File, &Path) -> Result<SecretBytes>) -> Result<SecretBytes> {
    // SAFETY: fcntl with F_GETFD only checks whether the descriptor is open.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Error::Usage(format!(
            "the file descriptor {fd} for the passphrase is not open; redirect a file or pipe to it"
        )));
    }
    // SAFETY: the descriptor is open and was passed to us for this; it is closed after reading,
    // except for the standard streams, which are used later.
    let file = unsafe { File::from_raw_fd(fd) };
    let secret = read(&file, Path::new(&format!("/dev/fd/{fd}")));
    if fd <= 2 {
        std::mem::forget(file);
    }
    secret
}

/// Reads a complete key file; `-` is standard input. A terminal is refused, because it would show
/// the key.
pub fn from_key_file(path: &Path) -> Result<SecretBytes> {
    let shown = |path: &Path| {
        Error::Usage(format!(
            "the key file {} is a terminal, which would show the key; use --passphrase-fd 0 to \
             type a passphrase",
            path.display()
        ))
    };
    if path.as_os_str() == "-" {
        let stdin = io::stdin().lock();
        return if stdin.is_terminal() {
            Err(shown(path))
        } else {
            read_all(stdin, path)
        };
    }
    let file = File::open(path).map_err(|e| Error::io("cannot open the key file", path, e))?;
    if file.is_terminal() {
        return Err(shown(path));
    }
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

/// Prompts for a passphrase at the terminal, which does not show it.
pub fn ask(prompt: &str) -> Result<SecretBytes> {
    ask_or(prompt, "use --passphrase-fd N or --key-file F")
}

/// Prompts for a passphrase like [`ask`]. `instead` names the options to use without a terminal.
pub fn ask_or(prompt: &str, instead: &str) -> Result<SecretBytes> {
    let (terminal, path) = terminal(prompt, instead)?;
    hidden(&terminal, path, |hidden| hidden.ask(prompt))
}

/// Reports whether there is a terminal to ask at.
pub(crate) fn has_terminal() -> bool {
    io::stdin().is_terminal() || File::open("/dev/tty").is_ok()
}

/// Prompts twice, for a new passphrase. `instead` names the options to use without a terminal.
pub fn ask_new(prompt: &str, instead: &str) -> Result<SecretBytes> {
    let (terminal, path) = terminal(prompt, instead)?;
    ask_twice(&terminal, path, prompt)
}

fn ask_twice(terminal: &File, path: &Path, prompt: &str) -> Result<SecretBytes> {
    let again = format!("{prompt}, again");
    let mut is_same = false;
    let first = hidden(terminal, path, |hidden| {
        let first = hidden.ask(prompt)?;
        is_same = first.is_empty() || hidden.ask(&again)? == first;
        Ok(first)
    })?;
    not_empty(&first)?;
    if !is_same {
        return Err(Error::Usage(
            "the passphrases do not match; nothing was changed".into(),
        ));
    }
    Ok(first)
}

/// Opens the terminal of the process: the controlling one, or standard input.
fn terminal(prompt: &str, instead: &str) -> Result<(File, &'static Path)> {
    let path = Path::new("/dev/tty");
    let failed = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(terminal) => return Ok((terminal, path)),
        Err(error) => error,
    };
    if !io::stdin().is_terminal() {
        return Err(Error::Usage(format!(
            "no {}: there is no terminal to ask at; {instead}",
            clause(prompt)
        )));
    }
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let stdin = stdin.map_err(|_| Error::io("cannot open", path, failed))?;
    Ok((File::from(stdin), Path::new("/dev/stdin")))
}

/// Converts a prompt to a clause: its last line, with a lowercase beginning. Other lines repeat an
/// earlier mistake.
pub(crate) fn clause(prompt: &str) -> String {
    let mut rest = prompt.lines().last().unwrap_or_default().chars();
    let first = rest.next().map(|c| c.to_lowercase().to_string());
    first.unwrap_or_default() + rest.as_str()
}

/// Turns off the echo of a terminal while `ask` asks.
fn hidden<T>(
    terminal: &File,
    path: &Path,
    ask: impl FnOnce(&HiddenTerminal<'_>) -> io::Result<T>,
) -> Result<T> {
    let asked = HiddenTerminal::begin(terminal).and_then(|hidden| ask(&hidden));
    asked.map_err(|e| Error::io("cannot read a passphrase from", path, e))
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
