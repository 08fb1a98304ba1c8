//! Errors of key pairs, with the remedy for each.

use std::io;
use std::path::{Path, PathBuf};

/// Result of an operation on key pairs.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of an operation on a key pair. It never contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No key of this name exists.
    #[error("there is no key `{name}` in {}; `evfs key list` shows what there is", dir.display())]
    NotFound {
        /// Requested name.
        name: String,
        /// Directory that was searched.
        dir: PathBuf,
    },
    /// The public half exists, the private half does not.
    #[error("of the key `{0}` only the public half is here; its private half is with its owner")]
    PublicOnly(String),
    /// The name is taken.
    #[error(
        "there is a key `{0}` already; choose another name (`evfs key list` shows the names that are taken)"
    )]
    Exists(String),
    /// A private half without a public half has this name.
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
    /// Other users can read a private key.
    #[error("{} can be read by others; `chmod 600` it, and think about making a new key", .0.display())]
    Permissions(PathBuf),
    /// The passphrase of a private key is wrong.
    #[error("wrong passphrase for the key `{0}`")]
    WrongPassphrase(String),
    /// No passphrase is available.
    #[error("no passphrase: {0}")]
    NoPassphrase(String),
    /// The key does not open an envelope that was meant for it.
    #[error(
        "the key pair does not open its keyslot: the envelope in the header is damaged or was made for another key"
    )]
    WrongKey,
    /// The kind of key is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// A file or text holds no usable key.
    #[error("{what} holds no key that can be used: {why}")]
    Malformed {
        /// The file or text.
        what: String,
        /// Reason.
        why: String,
    },
    /// A system call failed.
    #[error("{what} {}", path.display())]
    Io {
        /// The failed operation, as the beginning of a sentence.
        what: &'static str,
        /// Path of the operation.
        path: PathBuf,
        /// Error of the system.
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
