//! What can go wrong with a key pair, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// What an operation on key pairs gives.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a key pair. No secret is ever in one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such key.
    #[error("there is no key `{name}` in {}; `evfs key list` shows what there is", dir.display())]
    NotFound {
        /// Name that was asked for.
        name: String,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// The key is there, its private half is not.
    #[error("of the key `{0}` only the public half is here; its private half is with its owner")]
    PublicOnly(String),
    /// The name is taken.
    #[error(
        "there is a key `{0}` already; choose another name (`evfs key list` shows the names that are taken)"
    )]
    Exists(String),
    /// The name is taken by a private half alone.
    #[error(
        "of the key `{0}` only the private half is here, as when its making was broken off; `evfs key remove {0}` \
         keeps a backup of it and frees the name"
    )]
    HalfMade(String),
    /// The name cannot be a file name.
    #[error(
        "`{0}` cannot be the name of a key: letters, digits, `.`, `_` and `-`, at most 64, not beginning with `.` or `-`"
    )]
    BadName(String),
    /// The name would be taken for the number of a keyslot.
    #[error(
        "`{0}` cannot be the name of a new key: it is a number, and would be taken for the number of a keyslot; \
         choose one with a letter, like `key{0}`"
    )]
    NumberName(String),
    /// Others can read a private key.
    #[error("{} can be read by others; `chmod 600` it, and think about making a new key", .0.display())]
    Permissions(PathBuf),
    /// The passphrase of a private key is wrong.
    #[error("wrong passphrase for the key `{0}`")]
    WrongPassphrase(String),
    /// No passphrase could be had.
    #[error("no passphrase: {0}")]
    NoPassphrase(String),
    /// The key does not open an envelope that was meant for it.
    #[error(
        "the key pair does not open its keyslot: the envelope in the header is damaged or was made for another key"
    )]
    WrongKey,
    /// A kind of key that is refused.
    #[error("{0}")]
    Unsupported(String),
    /// A file that holds no key.
    #[error("{what} holds no key that can be used: {why}")]
    Malformed {
        /// Which file or text.
        what: String,
        /// Why not.
        why: String,
    },
    /// The system refuses.
    #[error("{what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io {
            what,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn malformed(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Malformed {
            what: what.into(),
            why: why.into(),
        }
    }
}
