//! Errors of key pairs, with the remedy for each.

use std::io;
use std::path::{Path, PathBuf};

/// Result of an operation on key pairs.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of an operation on a key pair. It never contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No key of this name exists.
    #[error("no key `{name}` in {}; `evfs key list` lists the keys", dir.display())]
    NotFound {
        /// Requested name.
        name: String,
        /// Directory that was searched.
        dir: PathBuf,
    },
    /// The public half exists, the private half does not.
    #[error("only the public half of the key `{0}` is stored here; its owner has the private half")]
    PublicOnly(String),
    /// The name is taken.
    #[error(
        "the key `{0}` already exists; choose another name (`evfs key list` lists the names in use)"
    )]
    Exists(String),
    /// A private half without a public half has this name.
    #[error(
        "only the private half of the key `{0}` exists: its creation was interrupted; `evfs key \
         remove {0}` keeps a backup of it and frees the name"
    )]
    HalfMade(String),
    /// The name cannot be a file name.
    #[error(
        "invalid key name `{0}`; use at most 64 letters, digits, `.`, `_` and `-`, not beginning \
         with `.` or `-`"
    )]
    BadName(String),
    /// The name would be taken for the number of a keyslot.
    #[error(
        "invalid name `{0}` for a new key: a number would be read as the number of a keyslot; \
         choose a name with a letter, such as `key{0}`"
    )]
    NumberName(String),
    /// The name would be taken for a public key.
    #[error(
        "invalid name for a new key: `{0}` is a public key; `evfs key import {0} --name NAME` \
         stores it under a name"
    )]
    PublicName(String),
    /// Other users can read a private key.
    #[error("{} can be read by other users; `chmod 600` it, and consider replacing the key", .0.display())]
    Permissions(PathBuf),
    /// The passphrase of a private key is wrong.
    #[error("wrong passphrase for the key `{0}`")]
    WrongPassphrase(String),
    /// No passphrase is available.
    #[error("{0}")]
    NoPassphrase(String),
    /// The key does not open an envelope that was meant for it.
    #[error(
        "the key pair does not open its keyslot: the encrypted secret in the header is damaged or \
         meant for another key"
    )]
    WrongKey,
    /// A stream is damaged at its start, or encrypted to another key.
    #[error(
        "the stream is not encrypted to this key; name the key whose public half it was sent to"
    )]
    NotForKey,
    /// The kind of key is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// A file or text holds no usable key.
    #[error("{what} holds no usable key: {why}")]
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
