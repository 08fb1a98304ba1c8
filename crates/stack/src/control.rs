//! The control socket of an attached volume: one line of JSON asks, one line of JSON answers.
//!
//! The socket lies in a folder that only its user can enter (0700), so whoever can connect may
//! ask. A socket nobody listens on is what a killed process left; it is removed when seen.

use crate::{Error, Result, exit};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest line either side accepts, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How long a client waits for an answer. That to a detach is waited for without end, because it comes
/// when everything is written out.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// What can be asked of an attached volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// What is attached, where, since when.
    Status,
    /// Counters of the data path.
    Stats,
    /// Flush, close the exports and end.
    Detach {
        /// Also when somebody uses them.
        force: bool,
    },
    /// Something about the LUN below.
    Lun(crate::lun::Ask),
    /// Something about the cache above.
    Cache(crate::cache::Ask),
    /// Something about the file system.
    Files(crate::filesystem::Ask),
    /// Something about the cell that is served.
    Cell(crate::cell::Ask),
}

/// The folder of control sockets, made if it is missing.
///
/// # Errors
/// When it belongs to somebody else or others may enter it: a stranger's socket must not be able
/// to pose as a volume.
pub fn run_dir(dir: &Path) -> Result<PathBuf> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(|e| Error::io("cannot make the folder", dir, e))?;
    let meta = std::fs::symlink_metadata(dir).map_err(|e| Error::io("cannot look at", dir, e))?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != me || meta.permissions().mode() & 0o022 != 0 {
        return Err(Error::Unsafe {
            path: dir.to_owned(),
            detail: "it must be a folder of this user that others cannot write to; \
                     remove it, or set EVFS_RUN_DIR to another"
                .into(),
        });
    }
    Ok(dir.to_owned())
}

/// Where the volume `name` listens.
pub fn socket_path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.control"))
}

/// Whether `name` can be the name of an attached volume, and so part of a file name.
pub fn valid_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&name.len())
        && name.chars().all(good)
        && !name.starts_with('.')
        && !name.starts_with('-')
}

/// Refuses a name that cannot be that of `what`.
pub(crate) fn check_name(name: &str, what: &str) -> Result<()> {
    match valid_name(name) {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "`{name}` cannot be the name of {what}: letters, digits, `.`, `_` and `-`, at most 64, not \
             beginning with `.` or `-`; choose one with --name"
        ))),
    }
}

/// The listening end of a control socket; removes its file when dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Takes the name.
    ///
    /// # Errors
    /// [`Error::Busy`] when a volume of this name is attached.
    pub fn bind(run_dir: &Path, name: &str) -> Result<Listener> {
        let path = socket_path(run_dir, name);
        if UnixStream::connect(&path).is_ok() {
            return Err(Error::Busy(format!(
                "a volume named `{name}` is attached already; detach it, or give another --name"
            )));
        }
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .and_then(|listener| {
                // The folder keeps others out already; the socket says so, too.
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
                Ok(listener)
            })
            .map_err(|e| Error::io("cannot listen on", &path, e))?;
        Ok(Listener { listener, path })
    }

    /// Waits for the next question; `None` when it was none, and the asker has been told so.
    pub fn accept(&self) -> std::io::Result<Option<(Ask, Answer)>> {
        let (stream, _) = self.listener.accept()?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        let mut line = String::new();
        let read = BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line);
        let answer = Answer(stream);
        match read.ok().and_then(|_| serde_json::from_str(&line).ok()) {
            Some(ask) => Ok(Some((ask, answer))),
            None => {
                answer.error(&Error::Failed("not a question this version knows".into()));
                Ok(None)
            }
        }
    }
}

impl std::os::fd::AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The asker, who waits.
pub struct Answer(UnixStream);

impl Answer {
    /// Answers with a value.
    pub fn value(self, value: &impl Serialize) {
        self.send(serde_json::json!({ "ok": value }));
    }

    /// Answers that it did not work.
    pub fn error(self, why: &Error) {
        self.send(serde_json::json!({ "error": why.to_string(), "code": why.exit_code() }));
    }

    fn send(mut self, value: serde_json::Value) {
        // The asker may be gone; that is its own business.
        let _ = writeln!(self.0, "{value}");
    }
}

/// Asks the volume `name`.
///
/// # Errors
/// [`Error::NotFound`] when none of this name is attached, and what it answers.
pub fn ask(run_dir: &Path, name: &str, ask: &Ask) -> Result<serde_json::Value> {
    let not_attached = || Error::NotFound(format!("no volume named `{name}` is attached"));
    if !valid_name(name) {
        return Err(not_attached());
    }
    let path = socket_path(run_dir, name);
    let mut stream = UnixStream::connect(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => not_attached(),
        std::io::ErrorKind::ConnectionRefused => {
            let _ = std::fs::remove_file(&path);
            not_attached()
        }
        _ => Error::io("cannot reach", &path, e),
    })?;
    let failed = |e| Error::io("no answer from", &path, e);
    let patience = match ask {
        Ask::Detach { .. } => None,
        _ => Some(ANSWER_TIMEOUT),
    };
    stream.set_read_timeout(patience).map_err(failed)?;
    let question = serde_json::to_string(ask).expect("an enum becomes JSON");
    writeln!(stream, "{question}").map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX))
        .read_line(&mut line)
        .map_err(failed)?;
    let mut answer: serde_json::Value = serde_json::from_str(&line).map_err(|_| {
        Error::Busy(format!(
            "the process that serves `{name}` ended without an answer"
        ))
    })?;
    let Some(why) = answer.get("error").and_then(|e| e.as_str()) else {
        return Ok(answer["ok"].take());
    };
    let why = why.to_owned();
    Err(match answer["code"].as_u64().map(|code| code as u8) {
        Some(exit::NOT_FOUND) => Error::NotFound(why),
        Some(exit::BUSY) => Error::Busy(why),
        Some(exit::USAGE) => Error::Usage(why),
        _ => Error::Failed(why),
    })
}

/// The names of attached volumes, sorted.
pub fn names(run_dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(run_dir) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(".control")?.to_owned()))
        .collect();
    names.sort();
    names
}
