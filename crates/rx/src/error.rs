//! What can go wrong with a call.

use rx_proto::{CallError, End, code};

/// Why something cannot be done with a call or a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The call is over.
    #[error("the call is over: {0}")]
    Ended(#[source] End),
    /// The port was closed.
    #[error("the port was closed")]
    Stopped,
    /// What is to be written follows the end of what was written.
    #[error("the end was written already")]
    Finished,
    /// The peer sent fewer bytes than belong there.
    #[error("the peer sent too few bytes")]
    Short,
    /// The peer sent more bytes than the caller takes.
    #[error("the peer sent more than {0} bytes")]
    Long(usize),
    /// The connection has used up its numbers; another one has to be made.
    #[error("the connection has used up the numbers of calls")]
    Exhausted,
    /// What was waited for did not come within the time given.
    #[error("what was waited for did not come in time")]
    Late,
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Error {
        match error {
            CallError::Ended(end) => Error::Ended(end),
            // The port's handles end with their calls, so only a closed connection leaves this.
            CallError::Unknown => Error::Ended(End::Closed),
        }
    }
}

/// The code that a server ends a call with, in place of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort(pub i32);

impl From<Error> for Abort {
    /// For calls that fail by themselves: the peer is told only if it still has the call.
    fn from(error: Error) -> Abort {
        Abort(match error {
            Error::Short | Error::Long(_) => code::PROTOCOL_ERROR,
            Error::Stopped => code::RESTARTING,
            Error::Late => code::CALL_TIMEOUT,
            Error::Ended(_) | Error::Finished | Error::Exhausted => code::USER_ABORT,
        })
    }
}
