//! Errors of calls.

use rx_proto::{CallError, End, code};

/// Reason for which an operation on a call or a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The call is over.
    #[error("the call is over: {0}")]
    Ended(#[source] End),
    /// The port was closed.
    #[error("the port was closed")]
    Stopped,
    /// A write after the end of the written data.
    #[error("the end of the data was already written")]
    Finished,
    /// The peer sent fewer bytes than expected.
    #[error("the peer sent too few bytes")]
    Short,
    /// The peer sent more bytes than the caller accepts.
    #[error("the peer sent more than {0} bytes")]
    Long(usize),
    /// The connection has used up its call numbers; the caller has to make another one.
    #[error("the connection has used up its call numbers")]
    Exhausted,
    /// The operation timed out.
    #[error("timed out")]
    Late,
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Ended(end) => Error::Ended(end),
            // The port's handles end with their calls, so only a closed connection remains.
            CallError::Unknown => Error::Ended(End::Closed),
        }
    }
}

/// Code with which a server ends a call instead of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort(pub i32);

impl From<Error> for Abort {
    /// Returns the code for a call that failed by itself: it is sent only if the peer still has the
    /// call.
    fn from(error: Error) -> Abort {
        Abort(match error {
            Error::Short | Error::Long(_) => code::PROTOCOL_ERROR,
            Error::Stopped => code::RESTARTING,
            Error::Late => code::CALL_TIMEOUT,
            Error::Ended(_) | Error::Finished | Error::Exhausted => code::USER_ABORT,
        })
    }
}
