//! What can go wrong above the crates below, with the exit code of each.

use std::io;
use std::path::{Path, PathBuf};

/// What a verb gives.
pub type Result<T> = std::result::Result<T, Error>;

/// An error as an administrator meets it: what failed, why, what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device or path below failed.
    #[error(transparent)]
    Block(#[from] block::Error),
    /// A device that is to be written to can only be read.
    #[error("{source}; it can be read: {how} opens it as it is")]
    OnlyRead {
        /// What the device says.
        source: block::Error,
        /// The option for that.
        how: &'static str,
    },
    /// The volume: header, keys, roles.
    #[error(transparent)]
    Volume(#[from] crypt::Error),
    /// A user's key pair.
    #[error(transparent)]
    Key(#[from] keyring::Error),
    /// The NBD server.
    #[error(transparent)]
    Nbd(#[from] export_nbd::Error),
    /// The mounted folder or the loop device.
    #[error(transparent)]
    Fuse(#[from] export_fuse::Error),
    /// The file system.
    #[error("{what}: {source}")]
    Files {
        /// What was tried, with what.
        what: String,
        /// What the file system says.
        source: fs::Error,
    },
    /// A file system that has to be written to before it can be, on a device that takes nothing.
    #[error(
        "{what}: {source}; what it lies on is full: remove files there, or make it larger, and try again. \
         Until then --read-only shows what is there"
    )]
    NoRoom {
        /// What was tried, with what.
        what: String,
        /// What the file system says.
        source: fs::Error,
    },
    /// The cell.
    #[error(transparent)]
    Cell(#[from] afs_server::AdminError),
    /// A file system that is damaged beyond what a repair can mend.
    #[error("{what} cannot be opened even to be repaired; only a backup helps: {source}")]
    BeyondRepair {
        /// What it is.
        what: String,
        /// What the file system says.
        source: fs::Error,
    },
    /// There is no object of this name.
    #[error("{0}")]
    NotFound(String),
    /// Somebody holds what is needed.
    #[error("{0}")]
    Busy(String),
    /// A configuration file, an environment variable or a combination of flags makes no sense.
    #[error("{place}: {detail}")]
    Config {
        /// File or variable.
        place: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The command line asks for something that cannot be; clap could not know.
    #[error("{0}")]
    Usage(String),
    /// A destructive command met something that it would destroy.
    #[error("{device} is not empty: it holds {found}; --force overwrites it {kept}")]
    WouldDestroy {
        /// The device.
        device: String,
        /// What is there, in words.
        found: String,
        /// What is left of it afterwards.
        kept: Left,
    },
    /// A volume is not what this machine knows, or its seal does not hold.
    #[error("{0}")]
    Untrusted(String),
    /// A path that cannot be trusted.
    #[error("{} is not safe to use: {detail}", path.display())]
    Unsafe {
        /// The path.
        path: PathBuf,
        /// Why, and what to do.
        detail: String,
    },
    /// A system call on a path failed.
    #[error("{what} {}", path.display())]
    Io {
        /// What was tried, as the beginning of a sentence.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What was acknowledged had to be given up.
    #[error("{0}")]
    DataLost(String),
    /// An error of one of several things that were to be done.
    #[error("{place}: {source}")]
    Within {
        /// Which one.
        place: String,
        /// What went wrong with it.
        source: Box<Error>,
    },
    /// Anything else, said in full.
    #[error("{0}")]
    Failed(String),
}

/// What a command that overwrites leaves of what was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// A backup of all that it overwrites.
    All,
    /// A backup of so many bytes from the start.
    Head(u64),
    /// Nothing.
    Nothing,
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Left::All => f.write_str("and keeps a backup of what it overwrites"),
            Left::Head(bytes) => write!(
                f,
                "for good, and keeps a backup of no more than its first {} MiB",
                bytes >> 20
            ),
            Left::Nothing => f.write_str("for good"),
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

    /// A failed system call on `path`.
    pub fn io(what: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io {
            what,
            path: path.to_owned(),
            source,
        }
    }

    /// `name` has ended by force, and this many bytes of it were given up, or an unknown number.
    pub(crate) fn data_lost(name: &str, bytes: Option<u64>, why: &Error) -> Error {
        let lost = match bytes.filter(|bytes| *bytes > 0) {
            Some(bytes) => format!("{bytes} bytes that were acknowledged and not flushed are lost"),
            None => "what was acknowledged since the last flush may be lost".into(),
        };
        Error::DataLost(format!(
            "{name} was detached by force, and {lost}: {}",
            why.chain()
        ))
    }

    /// An error of the file system, with what was tried.
    pub(crate) fn files(what: impl Into<String>) -> impl FnOnce(fs::Error) -> Error {
        let what = what.into();
        move |source| Error::Files { what, source }
    }

    /// Whether the command would do it with `--force`, as the error says.
    pub fn wants_force(&self) -> bool {
        matches!(self, Error::WouldDestroy { .. }) || self.to_string().contains("--force")
    }

    /// The error and its sources, each once.
    pub fn chain(&self) -> String {
        let mut message = without_number(&self.to_string());
        let mut source = std::error::Error::source(self);
        while let Some(e) = source {
            let text = without_number(&e.to_string());
            if !says(&message, &text, e) {
                message = format!("{message}: {text}");
            }
            source = e.source();
        }
        message
    }

    /// The exit code of the program. The table is part of the interface: see the guide.
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

/// Whether a message says already what its source does, in the same words or in ours.
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

/// Text of the system without its ` (os error N)`, which tells a reader nothing that the words do not.
pub fn without_number(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut parts = text.split(MARK);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-');
        clean.push_str(rest.strip_prefix(')').unwrap_or(rest));
    }
    clean
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
        | keyring::Error::NoPassphrase(_)
        | keyring::Error::Exists(_)
        | keyring::Error::HalfMade(_) => exit::USAGE,
        keyring::Error::Io { source, .. } => of_io(source),
        _ => exit::FAILURE,
    }
}

/// Exit codes, as documented.
pub mod exit {
    /// All went well.
    pub const OK: u8 = 0;
    /// Failed; the message says why.
    pub const FAILURE: u8 = 1;
    /// The command line or the configuration makes no sense.
    pub const USAGE: u8 = 2;
    /// No such key, device, keyslot, attached volume or fileset.
    pub const NOT_FOUND: u8 = 10;
    /// Held by somebody else.
    pub const BUSY: u8 = 11;
    /// The key, passphrase or key file does not open the volume.
    pub const WRONG_KEY: u8 = 12;
    /// The key is right, its role does not allow this.
    pub const ROLE_REFUSES: u8 = 13;
    /// The seal of the header does not hold, or the volume is not the one that this machine knows.
    pub const UNTRUSTED: u8 = 14;
    /// The header is damaged, and `evfs volume repair` can mend it; or the file system, and `evfs fsck`
    /// can say more.
    pub const REPAIRABLE: u8 = 20;
    /// The header, or the file system, is damaged beyond repair; restore a backup.
    pub const NOT_REPAIRABLE: u8 = 21;
    /// A check ran and found errors.
    pub const CHECK_FOUND_ERRORS: u8 = 26;
    /// Acknowledged data could not be written and were given up, as `--force` or a signal asked.
    pub const DATA_LOST: u8 = 30;
    /// Stopped by INT.
    pub const INTERRUPTED: u8 = 130;
    /// Stopped by TERM.
    pub const TERMINATED: u8 = 143;
}
