//! Events that an endpoint reports to the application.

use crate::slab::Key;
use std::net::SocketAddr;

/// Handle of a call, valid for as long as the application owns the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) Key);

/// Handle of a connection, valid until the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) Key);

/// Codes of ABORT packets that Rx itself uses (OpenAFS, `src/rx/rx.h`).
pub mod code {
    /// The peer is dead, or has dropped the call.
    pub const CALL_DEAD: i32 = -1;
    /// The service or its security class does not exist.
    pub const INVALID_OPERATION: i32 = -2;
    /// The call took too long.
    pub const CALL_TIMEOUT: i32 = -3;
    /// A packet violates the protocol.
    pub const PROTOCOL_ERROR: i32 = -5;
    /// The application has abandoned the call.
    pub const USER_ABORT: i32 = -6;
    /// The server restarted and does not know the call; the client should retry.
    pub const RESTARTING: i32 = -100;
}

/// Reason for which a call ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The peer sent an ABORT with this code.
    #[error("the peer aborted the call with code {0}")]
    Aborted(i32),
    /// The peer was silent for too long; for [`Timeouts::refused`](crate::Timeouts::refused) if an
    /// ICMP error reported that its port is closed.
    #[error("the peer does not respond")]
    Dead,
    /// No data was received for too long.
    #[error("no data was received for too long")]
    Idle,
    /// The call took too long.
    #[error("the call took too long")]
    Hard,
    /// The client began another call on the same channel.
    #[error("the client started another call in its place")]
    Superseded,
    /// The server does not know the call: the server restarted, or a NAT mapping changed.
    #[error("the server no longer knows the call")]
    Forgotten,
    /// The peer violated the protocol.
    #[error("the peer violated the protocol")]
    Violation,
    /// A security class rejected the call.
    #[error("the security class aborted the call with code {0}")]
    Security(i32),
    /// The connection was closed.
    #[error("the connection was closed")]
    Closed,
}

/// A call begun by a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming {
    /// Handle of the call.
    pub call: CallId,
    /// Connection on which the call was made.
    pub connection: ConnectionId,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Service id that was called.
    pub service: u16,
    /// User status byte of the client's packets. A Linux client sends 1 to ask whether the server
    /// is an AuriStor server; answering as the service that was called denies it.
    pub user_status: u8,
}

/// Notification for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A client made a call; the application owns it until it finishes, aborts or releases it.
    Call(Incoming),
    /// Data or the end of the stream is available after a read returned nothing.
    Readable(CallId),
    /// Buffer space is available after a write was blocked.
    Writable(CallId),
    /// The call is over; the application still owns it and must call
    /// [`release`](crate::Endpoint::release).
    Ended {
        /// Handle of the call.
        call: CallId,
        /// Reason for the end.
        reason: End,
    },
    /// A channel of this connection became free, or the connection was closed, after a call could
    /// not be started.
    ChannelFree(ConnectionId),
    /// An incoming connection was dropped; its calls are over.
    Closed(ConnectionId),
    /// Packets of a request were received that are not kept yet
    /// ([`Config::keeps_requests`](crate::Config::keeps_requests)).
    Received(CallId),
    /// A client's call is over: its reply has arrived, or no one waits for it
    /// ([`Config::keeps_requests`](crate::Config::keeps_requests)).
    Over(CallId),
}
