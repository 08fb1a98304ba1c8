//! The endpoint: all connections and calls of one UDP socket, without the socket.
//!
//! ```text
//!   datagrams ──► handle_input ─┐                       ┌─► poll_transmit ──► datagrams
//!   clock ──► handle_timeout ───┼─► connections, calls ─┼─► poll_event ──► application
//!   application ──► verbs ──────┘                       └─► poll_timeout ──► clock
//! ```
//!
//! | file | content |
//! |---|---|
//! | `api.rs` | operations for the application |
//! | `input.rs` | dispatch of a datagram to its connection and call |
//! | `arrival.rs` | effect of a packet on its call |
//! | `output.rs` | selection of the next packets to send |
//! | `clock.rs` | timer expiry |
//! | `services.rs` | services and security classes |
//! | `tables.rs` | connections and paths by address |
//! | `connections.rs` | creation and removal of connections and paths |
//! | `continuation.rs` | calls continued after another server was killed |
//! | `address_validation.rs` | proof of peer addresses |
//! | `hosts.rs` | limits per host |
//! | `calls.rs` | start and end of calls; notifications for the application |
//! | `debug_requests.rs` | DEBUG and VERSION packets |

mod address_validation;
mod api;
mod arrival;
mod calls;
mod clock;
mod connections;
mod continuation;
mod control;
mod debug_requests;
mod hosts;
mod input;
mod output;
mod services;
mod tables;
#[cfg(test)]
mod wrap_tests;

pub use api::{CallError, Connect, Read, StartError, WriteError};
pub use continuation::{CallPlace, KeptCall, KeptConnection};
pub use hosts::Host;
pub use services::Service;

use crate::call::Call;
use crate::config::Config;
use crate::event::Event;
use crate::number::Epoch;
use crate::payload::{Datagram, Payload};
use crate::secret::Secret;
use crate::slab::{Key, Slab};
use crate::stats::Stats;
use crate::time::Timestamp;
use crate::timers::{Timer, Timers};
use address_validation::Proofs;
use control::{Control, Strays};
use hosts::Hosts;
use services::Services;
use std::collections::VecDeque;
use tables::{ConnectionTable, PathTable};

/// Client and server side of Rx on one port.
///
/// `P` is the type of references to sent data, `D` that of received data.
///
/// **Contract.** After mutations (input, timeout, verbs) drain [`poll_event`](Endpoint::poll_event)
/// and handle the events, then drain [`poll_transmit`](Endpoint::poll_transmit), then call
/// [`poll_timeout`](Endpoint::poll_timeout). It is cheaper and faster to pass in all datagrams that
/// have arrived first: one acknowledgement then covers all of them and the data read, a reply that
/// is written immediately makes it superfluous, and opened windows are filled immediately. Moments
/// (`now`) never go backwards. A peer's packets must always be passed to the same endpoint: with
/// several sockets on one port, the kernel ensures that.
///
/// **Ownership of a call.** The application owns a call from [`Event::Call`] or
/// [`start`](Endpoint::start) until it releases the call: a server with
/// [`finish`](Endpoint::finish) after its reply, a client by reading to [`Read::End`], and either
/// with [`abort`](Endpoint::abort) or [`release`](Endpoint::release). Data that a server wrote
/// before `finish` is still delivered.
pub struct Endpoint<P, D> {
    config: Config,
    secret: Secret,
    epoch: Epoch,
    services: Services<P, D>,

    connections: ConnectionTable<P, D>,
    proofs: Proofs,
    paths: PathTable,
    hosts: Hosts,

    calls: Slab<Call<P, D>>,
    /// Number of incoming calls, and bytes received and not read over all calls.
    calls_in: usize,
    held_bytes: usize,

    timers: Timers,
    /// Calls with data to send.
    ready: VecDeque<Key>,
    control: VecDeque<Control>,
    strays: Strays,
    notices: VecDeque<PendingEvent>,
    stats: Stats,
}

/// Pending notification for the application.
#[derive(Debug, Clone, Copy)]
enum PendingEvent {
    /// The call has notifications.
    Call(Key),
    Event(Event),
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Creates an endpoint without services. Every endpoint needs a fresh `seed` from a good source
    /// of randomness: unpredictable serial numbers prevent third parties from answering on behalf
    /// of a peer.
    pub fn new(config: Config, seed: [u8; 32]) -> Endpoint<P, D> {
        let mut secret = Secret::new(&seed);
        let config = config.checked();
        Endpoint {
            epoch: Epoch::random(secret.next()),
            services: Services::new(),
            connections: ConnectionTable::new(secret.table()),
            hosts: Hosts::new(secret.table()),
            proofs: Proofs::new(secret.table()),
            paths: PathTable::new(secret.table()),
            calls: Slab::new(),
            calls_in: 0,
            held_bytes: 0,
            timers: Timers::default(),
            ready: VecDeque::new(),
            control: VecDeque::new(),
            strays: Strays::new(config.stray_answers_per_second),
            notices: VecDeque::new(),
            stats: Stats::default(),
            secret,
            config,
        }
    }

    /// Returns the next event, if any.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(notice) = self.notices.pop_front() {
            match notice {
                PendingEvent::Event(event) => return Some(event),
                PendingEvent::Call(call) => {
                    if let Some(event) = self.next_event(call) {
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    /// Returns the time for the next [`handle_timeout`](Endpoint::handle_timeout). There may be
    /// nothing to do by then.
    pub fn poll_timeout(&mut self) -> Option<Timestamp> {
        // Short calls end long before their first deadline.
        while let Some((at, timer)) = self.timers.first() {
            let exists = match timer {
                Timer::Call(call) => self.calls.get(call).is_some(),
                Timer::Connection(connection) => self.connections.get(connection).is_some(),
                Timer::Path(path) => self.paths.get(path).is_some(),
            };
            if exists {
                return Some(at);
            }
            self.timers.pop(at);
        }
        None
    }

    /// Returns the epoch of the connections made here: packets from servers to this endpoint carry
    /// it, and no others do.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the counters.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the current number of connections, of both roles.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns the current number of calls, of both roles, including those whose reply is still
    /// being delivered.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Returns the current value limited by
    /// [`Config::receive_bytes_max`](crate::Config::receive_bytes_max).
    pub const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Returns the current value limited by
    /// [`Config::send_bytes_max`](crate::Config::send_bytes_max).
    pub const fn unacknowledged_bytes(&self) -> u64 {
        self.hosts.all_unacknowledged()
    }
}
