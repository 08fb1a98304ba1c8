//! The endpoint: all connections and calls of one UDP socket, without the socket.
//!
//! ```text
//!   datagrams ──► handle_input ─┐                       ┌─► poll_transmit ──► datagrams
//!   clock ──► handle_timeout ───┼─► connections, calls ─┼─► poll_event ──► application
//!   application ──► verbs ──────┘                       └─► poll_timeout ──► clock
//! ```
//!
//! | file | what |
//! |---|---|
//! | `verbs.rs` | what the application asks for |
//! | `input.rs` | from a datagram to its connection and call |
//! | `arrival.rs` | what a packet does to its call |
//! | `output.rs` | what is sent next |
//! | `clock.rs` | what time brings |
//! | `connections.rs` | connections and paths come and go |
//! | `reach.rs` | peers prove their addresses |
//! | `hosts.rs` | what one host has of us |
//! | `calls.rs` | calls begin and end; what the application is told |
//! | `questions.rs` | DEBUG and VERSION packets |

mod arrival;
mod calls;
mod clock;
mod connections;
mod control;
mod hosts;
mod input;
mod output;
mod questions;
mod reach;
mod verbs;
#[cfg(test)]
mod wrap_tests;

pub use connections::Service;
pub use hosts::Host;
pub use verbs::{CallError, Connect, Read, StartError, WriteError};

use crate::call::Call;
use crate::config::Config;
use crate::connection::{Connection, ConnectionKey};
use crate::event::Event;
use crate::packet::EPOCH_RANDOM;
use crate::path::Path;
use crate::payload::{Datagram, Payload};
use crate::secret::{Keyed, Secret};
use crate::security::Acceptor;
use crate::slab::{Key, Slab};
use crate::stats::Stats;
use crate::time::Timestamp;
use crate::timers::{Timer, Timers};
use control::{Control, Strays};
use hosts::Hosts;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// Both sides of Rx on one port: calls that others make of us, and calls that we make of them.
///
/// `P` refers to what is sent, `D` to what was received.
///
/// **Contract.** After mutations (input, timeout, verbs) drain [`poll_event`](Endpoint::poll_event)
/// and do what the events ask for, then drain [`poll_transmit`](Endpoint::poll_transmit), then ask
/// [`poll_timeout`](Endpoint::poll_timeout). It costs less, and goes faster, to hand in all datagrams
/// that have arrived first: one acknowledgement then speaks for all of them and for what was read, a
/// reply that is written at once makes it superfluous, and windows that were opened are filled at
/// once. Moments (`now`) never go backwards. A peer's packets must always come to the same endpoint:
/// with several sockets on one port, the kernel sees to it.
///
/// **Of a call.** The application has a call from [`Event::Call`] or [`start`](Endpoint::start) on,
/// until it gives it back: a server with [`finish`](Endpoint::finish) after its reply, a client by
/// reading to the [`Read::End`], and either with [`abort`](Endpoint::abort) or
/// [`release`](Endpoint::release). What a server wrote before `finish` is still delivered.
pub struct Endpoint<P, D> {
    config: Config,
    secret: Secret,
    epoch: u32,
    services: Vec<Service>,
    acceptors: Vec<Box<dyn Acceptor<P, D>>>,

    connections: Slab<Connection<P, D>>,
    by_key: HashMap<ConnectionKey, Key, Keyed>,
    /// The connection found last: datagrams come in runs.
    recent: Option<(ConnectionKey, Key)>,
    hosts: Hosts,
    /// Connections that others made, and where the next look for an idle one begins.
    connections_in: usize,
    sweep: usize,
    /// Connections whose peer has not answered yet, oldest first, with some that have.
    unproven: VecDeque<Key>,
    unproven_count: usize,
    /// What the numbers of pings to them are computed with, and until when two are asked for.
    proofs: Keyed,
    doubts_until: Timestamp,
    paths: Slab<Path>,
    by_peer: HashMap<SocketAddr, Key, Keyed>,

    calls: Slab<Call<P, D>>,
    /// Calls of others, and, in all calls, bytes received and not read.
    calls_in: usize,
    held_bytes: usize,

    timers: Timers,
    /// Calls that have something to send.
    ready: VecDeque<Key>,
    control: VecDeque<Control>,
    strays: Strays,
    notices: VecDeque<Notice>,
    stats: Stats,
}

/// Something that the application will be told.
#[derive(Debug, Clone, Copy)]
enum Notice {
    /// This call has news.
    Call(Key),
    Event(Event),
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// An endpoint that serves nothing yet. `seed` is fresh for each and from a good source: that its
    /// serial numbers cannot be guessed keeps strangers from answering in the name of others.
    pub fn new(config: Config, seed: [u8; 32]) -> Endpoint<P, D> {
        let mut secret = Secret::new(&seed);
        let config = config.checked();
        Endpoint {
            epoch: secret.next() | EPOCH_RANDOM,
            services: Vec::new(),
            acceptors: Vec::new(),
            connections: Slab::new(),
            by_key: HashMap::with_hasher(secret.table()),
            recent: None,
            hosts: Hosts::new(secret.table()),
            connections_in: 0,
            sweep: 0,
            unproven: VecDeque::new(),
            unproven_count: 0,
            proofs: secret.table(),
            doubts_until: Timestamp::from_nanos(0),
            paths: Slab::new(),
            by_peer: HashMap::with_hasher(secret.table()),
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

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(notice) = self.notices.pop_front() {
            match notice {
                Notice::Event(event) => return Some(event),
                Notice::Call(call) => {
                    if let Some(event) = self.next_news(call) {
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    /// When [`handle_timeout`](Endpoint::handle_timeout) is to be called next. It may turn out that
    /// there is nothing to do then.
    pub fn poll_timeout(&mut self) -> Option<Timestamp> {
        // Short calls are over long before their first deadline.
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

    /// The epoch of the connections made here: what comes back on them names it, and nothing that is
    /// not for this endpoint does.
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// What passed through.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Connections at the moment, of both roles.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Calls at the moment, of both roles, with those whose reply is still being delivered.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// What [`Config::receive_bytes_max`](crate::Config::receive_bytes_max) limits, at the moment.
    pub const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// What [`Config::send_bytes_max`](crate::Config::send_bytes_max) limits, at the moment.
    pub const fn unacknowledged_bytes(&self) -> u64 {
        self.hosts.all_unacknowledged()
    }
}
