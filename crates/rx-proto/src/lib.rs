//! Rx, the remote procedure call protocol of AFS: client and server side, without I/O.
//!
//! ```text
//!   Endpoint::handle_input(now, route, datagram) ─┐    ┌─► poll_transmit(now, batch) ──► socket
//!   Endpoint::handle_timeout(now) ────────────────┼────┼─► poll_event() ──► application
//!   connect, start, write, read, finish, abort ───┘    └─► poll_timeout() ──► clock
//! ```
//!
//! **Invariant:** a request runs at most once. Its bytes and those of the reply arrive complete and
//! in order, or the call ends with a reason. Payloads are never copied: sent data is referenced
//! until it is acknowledged, received data until it is read. Memory used on behalf of
//! unauthenticated peers is bounded by [`Config`], and a spoofed packet causes at most one small
//! packet to be sent to the spoofed address.
//!
//! # Example
//!
//! A client sends a request of four bytes to a server:
//!
//! ```
//! use rx_proto::{Config, Connect, Endpoint, Event, Read, Route, Service, Shared, Timeouts};
//! use rx_proto::{Timestamp, Transmit};
//!
//! let route = |port| Route { peer: ([192, 0, 2, 1], port).into(), local: None };
//! let mut client: Endpoint<Shared, Shared> = Endpoint::new(Config::default(), [1; 32]);
//! let mut server: Endpoint<Shared, Shared> = Endpoint::new(Config::default(), [2; 32]);
//! server.serve(Service { id: 1, classes: vec![0] });
//! let now = Timestamp::from_nanos(1);
//!
//! let (service, timeouts, security) = (1, Timeouts::default(), None);
//! let connect = Connect { route: route(7000), service, timeouts, security };
//! let connection = client.connect(now, connect);
//! let call = client.start(now, connection)?;
//! client.write(now, call, Shared::from(&b"ping"[..])).expect("there is room");
//! client.finish(now, call)?;
//!
//! // A driver sends the datagrams of one side through a socket to the other.
//! let carry = |from: &mut Endpoint<Shared, Shared>, to: &mut Endpoint<Shared, Shared>, port| {
//!     let mut batch = Transmit::new(1);
//!     while from.poll_transmit(now, &mut batch) {
//!         for datagram in batch.datagrams() {
//!             to.handle_input(now, route(port), Shared::from(datagram));
//!         }
//!     }
//! };
//! let mut request = None;
//! while request.is_none() {
//!     carry(&mut client, &mut server, 7001);
//!     carry(&mut server, &mut client, 7000);
//!     while let Some(event) = server.poll_event() {
//!         if let Event::Call(incoming) = event {
//!             request = Some(server.read(now, incoming.call)?);
//!         }
//!     }
//! }
//! assert!(matches!(request, Some(Read::Data(bytes)) if bytes.as_ref() == b"ping"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Deliberately absent: sockets, clocks, random numbers (the caller passes a seed), threads, the
//! encoding of arguments (XDR), rxkad (56-bit keys), multicast, coalescing of small writes.
//!
//! `docs/protocol/rx.md` describes the protocol as implemented, with the source of every number.

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
pub use config::{Config, DebugAccess, DebugPolicy, Timeouts};
pub use endpoint::{CallError, Connect, Endpoint, Host, Read, Service, StartError, WriteError};
pub use endpoint::{CallPlace, KeptCall, KeptConnection};
pub use event::{CallId, ConnectionId, End, Event, Incoming, code};
pub use number::{CallNumber, Cid, Epoch, Seq, Serial};
pub use packet::{
    CHANNELS, DataPacket, DataPackets, HEADER_BYTES, Header, JUMBO_HEADER_BYTES, PACKET_DATA_BYTES,
    PacketType, flag,
};
pub use payload::{Datagram, Payload, Shared};
pub use security::{Acceptor, PacketPlace, RXNULL, Sealed, Security, SecurityError};
pub use stats::{PACKET_TYPES, Stats};
pub use time::Timestamp;
pub use transmit::{Part, Route, SEGMENTS_MAX, Transmit};
