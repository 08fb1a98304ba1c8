//! Errors: a kind to match on and a message. No error contains key material; text from a header is
//! quoted and truncated.

use std::fmt;

/// Result of an operation on a header.
pub type Result<T> = std::result::Result<T, Error>;

/// Category of an error, for callers that act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device has no LUKS2 header.
    NotLuks,
    /// The header (or a backup) is damaged and no copy is intact.
    Damaged,
    /// The device is smaller than the header requires.
    DeviceTooSmall,
    /// A valid header uses a feature that EVFS does not support.
    Unsupported,
    /// The header exceeds a limit or requests something unsafe: a null cipher, excessive costs.
    Refused,
    /// The passphrase or key does not open the keyslot.
    WrongKey,
    /// There is no room for another keyslot, or for more metadata.
    NoSpace,
    /// The keyslot or token does not exist.
    NotFound,
    /// The keyslot or token number is in use.
    InUse,
    /// Removing this keyslot would leave no key that opens the volume.
    LastKeyslot,
    /// Another program changed the header after it was read.
    Changed,
    /// The caller has not read enough of the device: read [`crate::PREFIX_BYTES_MAX`] bytes, or the
    /// whole of a smaller device.
    NeedMore,
    /// An argument is not valid.
    InvalidArgument,
    /// The memory that the key derivation needs is not available.
    OutOfMemory,
}

/// An error of the LUKS2 format. Its message says what failed, why, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn damaged(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Damaged, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    pub(crate) fn refused(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Refused, message)
    }

    pub(crate) fn argument(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// Returns the category of the error, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Prefixes the message with `context`.
    pub(crate) fn within(self, context: impl fmt::Display) -> Error {
        Error {
            kind: self.kind,
            message: format!("{context}: {}", self.message),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Quotes and escapes text from a header for a message, truncated to 64 characters.
pub(crate) fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(64).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("{cut:?}{more}")
}
