//! Rx, the remote procedure call protocol of AFS, both sides, without any input or output.
//!
//! ```text
//!   Endpoint::handle_input(now, route, datagram) ─┐    ┌─► poll_transmit(now, batch) ──► socket
//!   Endpoint::handle_timeout(now) ────────────────┼────┼─► poll_event() ──► application
//!   connect, start, write, read, finish, abort ───┘    └─► poll_timeout() ──► clock
//! ```
//!
//! **Invariant:** a request runs at most once, and its bytes and those of the reply arrive whole and in
//! order, or the call ends with a reason. No payload is copied: what is sent is referred to until it
//! arrived, what was received until it is read. Whatever strangers send costs no more memory than
//! [`Config`] says, and brings nobody who did not ask for it more than one small packet for each of
//! theirs.
//!
//! Absent on purpose: sockets, clocks, random numbers (a seed is given), threads, the encoding of
//! arguments (XDR), rxkad (56-bit keys), multicast, the merging of small writes.
//!
//! The protocol as it is implemented, with the source of every number, is in `docs/protocol/rx.md`.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation
    )
)]

mod ack;
mod call;
mod config;
mod congestion;
mod connection;
mod debug;
mod endpoint;
mod event;
mod jumbo;
mod number;
mod pacing;
mod packet;
mod path;
mod payload;
mod rtt;
mod secret;
mod security;
mod slab;
mod stats;
mod time;
mod timers;
mod transmit;

pub use ack::{ACK_BYTES_MIN, Ack, AckOut, Reason, Trailer};
pub use config::{Answers, Config, Questions, Timeouts};
pub use endpoint::{CallError, Connect, Endpoint, Host, Read, Service, StartError, WriteError};
pub use event::{CallId, ConnectionId, End, Event, Incoming, code};
pub use number::{CallNumber, Seq, Serial};
pub use packet::{
    CHANNELS, DataPacket, DataPackets, HEADER_BYTES, Header, JUMBO_HEADER_BYTES, PACKET_DATA_BYTES,
    PacketType, flag,
};
pub use payload::{Datagram, Payload, Shared};
pub use security::{Acceptor, PacketPlace, RXNULL, Sealed, Security, SecurityError};
pub use stats::{PACKET_TYPES, Stats};
pub use time::Timestamp;
pub use transmit::{Part, Route, SEGMENTS_MAX, Transmit};
