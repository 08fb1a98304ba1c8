//! What can go wrong with a call of a client.

use afs_proto::{Abort, WireError};

/// What a call gives.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The server ended it with a code.
    #[error("the server said {0}")]
    Abort(Abort),
    /// It broke: the server went, or does not answer. Whether it was done is not known.
    #[error("the call broke: {0}")]
    Broken(#[source] rx::Error),
    /// The reply is none.
    #[error("the reply makes no sense: {0}")]
    Wire(#[from] WireError),
    /// A directory whose pages make no sense, or a reply with less data than it announced.
    #[error("the server sent {0}")]
    Nonsense(&'static str),
    /// A name of a path is not there.
    #[error("there is no {0:?}")]
    NoEntry(String),
}

impl Error {
    /// The server's code, if it gave one.
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
