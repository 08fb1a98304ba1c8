//! What an endpoint tells the application.

use crate::slab::Key;
use std::net::SocketAddr;

/// A call, for as long as the application has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) Key);

/// A connection, until it is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) Key);

/// Codes of ABORT packets that Rx itself uses (OpenAFS, `src/rx/rx.h`).
pub mod code {
    /// The peer is gone, or forgot the call.
    pub const CALL_DEAD: i32 = -1;
    /// The service or its security class does not exist.
    pub const INVALID_OPERATION: i32 = -2;
    /// The call took too long.
    pub const CALL_TIMEOUT: i32 = -3;
    /// A packet that cannot be.
    pub const PROTOCOL_ERROR: i32 = -5;
    /// The application does not want the call any more.
    pub const USER_ABORT: i32 = -6;
    /// The server began anew and does not know the call; it is to be tried again.
    pub const RESTARTING: i32 = -100;
}

/// Why a call ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The peer said so.
    #[error("the peer ended the call with code {0}")]
    Aborted(i32),
    /// The peer was silent for too long; for [`Timeouts::refused`](crate::Timeouts::refused) if the
    /// network said that nothing listens there.
    #[error("the peer is silent")]
    Dead,
    /// No data came for too long.
    #[error("no data came for too long")]
    Idle,
    /// The call took too long.
    #[error("the call took too long")]
    Hard,
    /// The client began another call in its place.
    #[error("the client began another call in its place")]
    Superseded,
    /// The server does not know the call any more: it, or a translated address, began anew.
    #[error("the server does not know the call any more")]
    Forgotten,
    /// The peer sent what cannot be.
    #[error("the peer broke the protocol")]
    Violation,
    /// A security class refused something.
    #[error("the security class ended the call with code {0}")]
    Security(i32),
    /// Its connection was closed.
    #[error("the connection was closed")]
    Closed,
}

/// A call that a client began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming {
    /// The call.
    pub call: CallId,
    /// Its connection.
    pub connection: ConnectionId,
    /// Who called.
    pub peer: SocketAddr,
    /// Which service.
    pub service: u16,
    /// The application's byte in the client's packets; 1 from Linux asks whether the server is one of
    /// AuriStor's, which is denied by answering as the service that was called.
    pub user_status: u8,
}

/// Something the application should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A client calls; the application has the call until it finishes, aborts or releases it.
    Call(Incoming),
    /// There is something to read, or the end was reached, after a read found nothing.
    Readable(CallId),
    /// There is room to write again, after a write found none.
    Writable(CallId),
    /// The call is over; the application still has it, and gives it back with
    /// [`release`](crate::Endpoint::release).
    Ended {
        /// Which.
        call: CallId,
        /// Why.
        reason: End,
    },
    /// A channel of this connection became free, or the connection was closed, after a call could not
    /// be started.
    ChannelFree(ConnectionId),
    /// A connection that a client made is forgotten; its calls are over.
    Closed(ConnectionId),
}
