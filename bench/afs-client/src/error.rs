//! Errors of a client's calls.

use afs_proto::{Abort, WireError};

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason for which a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The server ended the call with this code.
    #[error("the server returned {0}")]
    Abort(Abort),
    /// The call was interrupted: the server is down or does not answer. It is not known whether the
    /// call was executed.
    #[error("the call was interrupted: {0}")]
    Broken(#[source] rx::Error),
    /// The reply cannot be decoded.
    #[error("the reply is malformed: {0}")]
    Wire(#[from] WireError),
    /// An invalid directory, or a reply with less data than announced.
    #[error("the server sent {0}")]
    Nonsense(&'static str),
    /// A name of a path does not exist.
    #[error("no such file: {0:?}")]
    NoEntry(String),
}

impl Error {
    /// Returns the server's code, if the server ended the call.
    pub fn code(&self) -> Option<Abort> {
        match self {
            Error::Abort(code) => Some(*code),
            _ => None,
        }
    }
}

impl From<rx::Error> for Error {
    fn from(error: rx::Error) -> Error {
        match error {
            rx::Error::Ended(rx::End::Aborted(code)) => Error::Abort(Abort(code)),
            other => Error::Broken(other),
        }
    }
}
