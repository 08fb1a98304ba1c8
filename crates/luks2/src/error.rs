//! Errors: a kind to match on and a sentence to read. No error carries key material, and text
//! that came from a header is quoted and cut short.

use std::fmt;

/// What this crate gives.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, for a caller that has to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No LUKS2 header is here.
    NotLuks,
    /// The header (or a backup) is damaged and no copy is whole.
    Damaged,
    /// The device is smaller than the header says it must be.
    DeviceTooSmall,
    /// A valid header that asks for something EVFS does not do.
    Unsupported,
    /// A header that breaks a limit or asks for something unsafe: null cipher, absurd costs.
    Refused,
    /// The passphrase or key does not open the keyslot.
    WrongKey,
    /// No room for another keyslot, or for more metadata.
    NoSpace,
    /// No such keyslot or token.
    NotFound,
    /// The keyslot or token number is taken.
    InUse,
    /// Removing this keyslot would leave nobody able to open the volume.
    LastKeyslot,
    /// Somebody else changed the header since it was read.
    Changed,
    /// The caller has not read enough of the device yet: read
    /// [`crate::PREFIX_BYTES_MAX`] bytes, or the whole of a smaller device.
    NeedMore,
    /// An argument of the caller makes no sense.
    InvalidArgument,
    /// The memory that key derivation asks for is not there.
    OutOfMemory,
}

/// An error of the LUKS2 format, with what failed, why, and what to do next.
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

    /// What went wrong, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with a sentence before it.
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

/// Text from a header, fit for a message: quoted, escaped, at most 64 characters.
pub(crate) fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(64).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("{cut:?}{more}")
}
