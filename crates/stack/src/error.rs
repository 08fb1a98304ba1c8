//! Errors of this crate and of the crates that it composes, with an exit code for each.

pub use block::without_number;
use std::io;
use std::path::{Path, PathBuf};

/// Result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error as shown to an administrator: what failed, why, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device or path failed.
    #[error(transparent)]
    Block(#[from] block::Error),
    /// A device that is to be opened for writing can only be read.
    #[error("{source}; it is readable: open it with {how}")]
    OnlyRead {
        /// Error of the device.
        source: block::Error,
        /// Option that opens the device for reading.
        how: &'static str,
    },
    /// Error of an encrypted volume: header, keys, roles.
    #[error(transparent)]
    Volume(#[from] crypt::Error),
    /// Error of a user's key pair.
    #[error(transparent)]
    Key(#[from] keyring::Error),
    /// Error of the NBD server.
    #[error(transparent)]
    Nbd(#[from] export_nbd::Error),
    /// Error of a FUSE mount or a loop device.
    #[error(transparent)]
    Fuse(#[from] fuse_mount::Error),
    /// Error of the file system.
    #[error("{what}: {source}")]
    Files {
        /// The failed operation and its object.
        what: String,
        /// Error of the file system.
        source: fs::Error,
    },
    /// A file system that needs a write before it can be used, on a device without free space.
    #[error(
        "{what}: {source}; the storage it is on is full: remove files there, or enlarge it, and \
         try again; until then, use --read-only"
    )]
    NoRoom {
        /// The failed operation and its object.
        what: String,
        /// Error of the file system.
        source: fs::Error,
    },
    /// Error of an administrative operation on a cell.
    #[error(transparent)]
    Cell(#[from] afs_server::AdminError),
    /// A file system is damaged beyond repair.
    #[error("{what} is damaged beyond repair; restore a backup: {source}")]
    BeyondRepair {
        /// The damaged object.
        what: String,
        /// Error of the file system.
        source: fs::Error,
    },
    /// No object has the name.
    #[error("{0}")]
    NotFound(String),
    /// A resource is in use.
    #[error("{0}")]
    Busy(String),
    /// A configuration file, an environment variable or a combination of options is invalid.
    #[error("{place}: {detail}")]
    Config {
        /// File or variable.
        place: String,
        /// Problem and remedy.
        detail: String,
    },
    /// The command line asks for something impossible that clap cannot detect.
    #[error("{0}")]
    Usage(String),
    /// A destructive command found data that it would destroy.
    #[error("{device} is not empty: found {found}; --force overwrites it {kept}")]
    WouldDestroy {
        device: String,
        /// Description of the data found.
        found: String,
        /// Backup of that data afterwards.
        kept: Left,
    },
    /// A volume differs from the record in the trust store, or its seal is broken.
    #[error("{0}")]
    Untrusted(String),
    /// A path is not safe to use.
    #[error("{} is not safe to use: {detail}", path.display())]
    Unsafe {
        path: PathBuf,
        /// Reason and remedy.
        detail: String,
    },
    /// A system call on a path failed.
    #[error("{what} {}", path.display())]
    Io {
        /// The failed operation, as the beginning of a sentence.
        what: &'static str,
        /// Path of the operation.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Acknowledged data was discarded.
    #[error("{0}")]
    DataLost(String),
    /// Failure of one of several objects.
    #[error("{place}: {source}")]
    Within {
        /// The object.
        place: String,
        /// Its error.
        source: Box<Error>,
    },
    /// Any other error, described in full.
    #[error("{0}")]
    Failed(String),
}

/// Backup that a command keeps of the data it overwrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// All of that data.
    All,
    /// This number of bytes from the start of the device.
    Head(u64),
    /// None.
    Nothing,
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Left::All => f.write_str("and keeps a backup of the overwritten data"),
            Left::Head(bytes) => write!(
                f,
                "permanently, except for a backup of its first {} MiB",
                bytes >> 20
            ),
            Left::Nothing => f.write_str("permanently"),
        }
    }
}

impl Error {
    pub(crate) fn config(path: &Path, detail: String) -> Error {
        Error::Config {
            place: path.display().to_string(),
            detail,
        }
    }

    /// Creates the error of a failed system call on `path`.
    pub fn io(what: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io {
            what,
            path: path.to_owned(),
            source,
        }
    }

    /// Creates the error of a forced detach of `name` that discarded `bytes` bytes; `None` if the
    /// number is unknown.
    pub(crate) fn data_lost(name: &str, bytes: Option<u64>, why: &Error) -> Error {
        let lost = match bytes.filter(|bytes| *bytes > 0) {
            Some(bytes) => format!("{bytes} acknowledged but unflushed bytes are lost"),
            None => "data acknowledged since the last flush may be lost".into(),
        };
        Error::DataLost(format!(
            "{name} was detached by force, and {lost}: {}",
            why.chain()
        ))
    }

    /// Converts an error of the file system, adding the failed operation.
    pub fn files(what: impl Into<String>) -> impl FnOnce(fs::Error) -> Error {
        let what = what.into();
        move |source| Error::Files { what, source }
    }

    /// Reports whether the error suggests to repeat the command with `--force`.
    pub fn wants_force(&self) -> bool {
        matches!(self, Error::WouldDestroy { .. }) || self.to_string().contains("--force")
    }

    /// Joins the message with those of all sources, without repetitions.
    pub fn chain(&self) -> String {
        let mut message = without_number(&self.to_string());
        let mut source = std::error::Error::source(self);
        while let Some(e) = source {
            let text = without_number(e.to_string().trim_end());
            if !says(&message, &text, e) {
                message = format!("{message}: {text}");
            }
            source = e.source();
        }
        message
    }

    /// Returns the exit code of the program. The codes are part of the interface; the guide lists
    /// them.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Block(e) | Error::OnlyRead { source: e, .. } => of_block(e),
            Error::Volume(e) => of_volume(e),
            Error::Key(e) => of_key(e),
            Error::Files { source, .. } => of_files(source),
            Error::Cell(e) => of_cell(e),
            Error::Within { source, .. } => source.exit_code(),
            Error::BeyondRepair { .. } => exit::NOT_REPAIRABLE,
            Error::DataLost(_) => exit::DATA_LOST,
            Error::NotFound(_) => exit::NOT_FOUND,
            Error::Busy(_) => exit::BUSY,
            Error::Untrusted(_) => exit::UNTRUSTED,
            Error::Fuse(e) if e.is_busy() => exit::BUSY,
            Error::Nbd(e) if e.is_busy() => exit::BUSY,
            Error::Nbd(e) if e.is_usage() => exit::USAGE,
            Error::Nbd(export_nbd::Error::Io { source, .. }) => of_io(source),
            Error::Usage(_) | Error::Config { .. } | Error::WouldDestroy { .. } => exit::USAGE,
            Error::Io { source, .. } => of_io(source),
            _ => exit::FAILURE,
        }
    }
}

/// Reports whether `message` already contains that of its source, literally or as an error kind.
fn says(message: &str, text: &str, source: &(dyn std::error::Error + 'static)) -> bool {
    let message = message.to_lowercase();
    let errno = source
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::raw_os_error);
    let kind = errno.map(block::ErrorKind::from_errno);
    let in_our_words = |kind: block::ErrorKind| {
        kind != block::ErrorKind::Io && message.contains(&kind.to_string())
    };
    message.contains(&text.to_lowercase()) || kind.is_some_and(in_our_words)
}

fn of_io(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        io::ErrorKind::AlreadyExists => exit::USAGE,
        _ => exit::FAILURE,
    }
}

fn of_block(error: &block::Error) -> u8 {
    match error.kind() {
        _ if error.errno() == libc::EEXIST => exit::USAGE,
        block::ErrorKind::Busy | block::ErrorKind::NotNow => exit::BUSY,
        block::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::FAILURE,
    }
}

fn of_files(error: &fs::Error) -> u8 {
    match error.kind() {
        fs::Kind::NotFound => exit::NOT_FOUND,
        fs::Kind::Busy => exit::BUSY,
        fs::Kind::Corrupt => exit::REPAIRABLE,
        fs::Kind::Invalid | fs::Kind::Exists => exit::USAGE,
        _ => exit::FAILURE,
    }
}

fn of_cell(error: &afs_server::AdminError) -> u8 {
    use afs_server::AdminError as E;
    match error {
        E::NotFound(_) => exit::NOT_FOUND,
        E::Refused(_) => exit::USAGE,
        E::Files { source, .. } => of_files(source),
        E::Call { .. } => exit::FAILURE,
    }
}

fn of_volume(error: &crypt::Error) -> u8 {
    use crypt::HeaderErrorKind as K;
    match error {
        crypt::Error::Block(e) => of_block(e),
        crypt::Error::Key(e) => of_key(e),
        crypt::Error::Header { source, .. } => match source.kind() {
            K::Damaged => exit::NOT_REPAIRABLE,
            K::WrongKey => exit::WRONG_KEY,
            K::NotFound | K::NotLuks => exit::NOT_FOUND,
            K::Changed => exit::BUSY,
            _ => exit::FAILURE,
        },
        crypt::Error::WrongKey(_) | crypt::Error::Erased(_) => exit::WRONG_KEY,
        crypt::Error::Exists(_) | crypt::Error::Ambiguous(_) => exit::USAGE,
        crypt::Error::RoleRefuses { .. } => exit::ROLE_REFUSES,
        crypt::Error::SealBroken { .. } => exit::UNTRUSTED,
        crypt::Error::NeedsRepair(_) => exit::REPAIRABLE,
        crypt::Error::NoSuchKey(_) => exit::NOT_FOUND,
        _ => exit::FAILURE,
    }
}

fn of_key(error: &keyring::Error) -> u8 {
    match error {
        keyring::Error::NotFound { .. } | keyring::Error::PublicOnly(_) => exit::NOT_FOUND,
        keyring::Error::WrongPassphrase(_) | keyring::Error::WrongKey => exit::WRONG_KEY,
        keyring::Error::BadName(_)
        | keyring::Error::NumberName(_)
        | keyring::Error::PublicName(_)
        | keyring::Error::NoPassphrase(_)
        | keyring::Error::Exists(_)
        | keyring::Error::HalfMade(_) => exit::USAGE,
        keyring::Error::Io { source, .. } => of_io(source),
        _ => exit::FAILURE,
    }
}

/// Exit codes, as documented in the guide.
pub mod exit {
    /// Success.
    pub const OK: u8 = 0;
    /// Failed; the message says why.
    pub const FAILURE: u8 = 1;
    /// The command line or the configuration is invalid.
    pub const USAGE: u8 = 2;
    /// No such key, device, keyslot, attached volume or fileset.
    pub const NOT_FOUND: u8 = 10;
    /// In use by another process or machine.
    pub const BUSY: u8 = 11;
    /// The key, passphrase or key file does not open the volume.
    pub const WRONG_KEY: u8 = 12;
    /// The key is right, but its role does not allow the operation.
    pub const ROLE_REFUSES: u8 = 13;
    /// The seal of the header is broken, or the volume differs from the record in the trust store.
    pub const UNTRUSTED: u8 = 14;
    /// The header is damaged and `evfs volume repair` can repair it, or the file system is and
    /// `evfs fsck` reports details.
    pub const REPAIRABLE: u8 = 20;
    /// The header, or the file system, is damaged beyond repair; restore a backup.
    pub const NOT_REPAIRABLE: u8 = 21;
    /// A check ran and found errors.
    pub const CHECK_FOUND_ERRORS: u8 = 26;
    /// A check ran and found warnings, but no errors.
    pub const CHECK_FOUND_WARNINGS: u8 = 27;
    /// Acknowledged data was discarded because it could not be written and `--force` or a signal
    /// ended the service.
    pub const DATA_LOST: u8 = 30;
    /// Stopped by SIGINT.
    pub const INTERRUPTED: u8 = 130;
    /// Stopped by SIGTERM.
    pub const TERMINATED: u8 = 143;

    /// All codes with their meanings, for manual pages. The page `docs/guide/exit-codes.md` has the
    /// same rows, and adds examples.
    pub const TABLE: &[(&str, &str)] = &[
        ("0", "success"),
        ("1", "failure; the message says why"),
        (
            "2",
            "the command line or the configuration is invalid or incomplete",
        ),
        ("10", "no such object"),
        ("11", "busy or locked"),
        ("12", "wrong key"),
        (
            "13",
            "the key is right, but its role does not allow the operation",
        ),
        (
            "14",
            "the seal of the header is invalid, or the volume is not the one that this machine \
             knows",
        ),
        (
            "20",
            "the header is damaged and `evfs volume repair` can repair it, or the file system is \
             damaged and `evfs fsck` reports details",
        ),
        (
            "21",
            "the header, or the file system, is damaged beyond repair",
        ),
        ("26", "a check ran and found errors"),
        ("27", "a check ran and found warnings, but no errors"),
        (
            "30",
            "detached by `--force` or a signal; acknowledged data could not be written and is lost",
        ),
        (
            "128 + n",
            "stopped by signal n: 129 HUP, 130 INT, 131 QUIT, 143 TERM",
        ),
    ];
}

#[cfg(test)]
mod tests {
    use super::exit;

    #[test]
    fn the_guide_lists_the_same_exit_codes() {
        let page = include_str!("../../../docs/guide/exit-codes.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
        let rows = rows.map(|row| row.split(" |").map(str::trim).collect::<Vec<_>>());
        let listed: Vec<(String, String)> = rows
            .filter(|cells| cells[0] != "code")
            .map(|cells| (cells[0].to_owned(), cells[1].to_owned()))
            .collect();
        let table = exit::TABLE.iter();
        let table: Vec<(String, String)> = table
            .map(|(code, meaning)| (code.to_string(), meaning.to_string()))
            .collect();
        assert_eq!(listed, table);
    }

    #[test]
    fn every_exit_code_is_in_the_table() {
        let in_table = |code: u8| {
            exit::TABLE
                .iter()
                .any(|(text, _)| *text == code.to_string())
        };
        for code in [
            exit::OK,
            exit::FAILURE,
            exit::USAGE,
            exit::NOT_FOUND,
            exit::BUSY,
            exit::WRONG_KEY,
            exit::ROLE_REFUSES,
            exit::UNTRUSTED,
            exit::REPAIRABLE,
            exit::NOT_REPAIRABLE,
            exit::CHECK_FOUND_ERRORS,
            exit::CHECK_FOUND_WARNINGS,
            exit::DATA_LOST,
        ] {
            assert!(in_table(code), "{code}");
        }
        assert_eq!((exit::INTERRUPTED, exit::TERMINATED), (130, 143));
    }
}
