//! Proof that peers own their addresses.
//!
//! The first packet of an unknown peer creates a connection that only challenges: it sends a ping,
//! only in response to a packet, with a serial number that no third party can know. Until the ping
//! is answered, nothing is acknowledged, no call is shown to the application, and little data is
//! held. So a spoofed packet causes one packet of at most 65 bytes to the spoofed address, and a
//! request that was delayed in the network until its connection was forgotten is not run again: its
//! client does not answer for finished calls. OpenAFS challenges in the same way
//! (`rxi_CheckConnReach`), once a minute per peer.
//!
//! ```text
//!   nothing ── DATA ──► asked ── right answer ──────────────────────────────► proven
//!      │                  │                                                     ▲
//!      │                  └── right answer, in doubt ──► asked again ── answer ─┘
//!      └── right answer ────────────────────────────────────▲
//! ```
//!
//! **The first number is computed, not random:** a keyed hash of peer, connection, call and time.
//! It is the same however often a peer causes a ping, and it is still recognized after the
//! connection was evicted: a flood of spoofed packets delays genuine peers by a retransmission, and
//! blocks none.
//!
//! **In doubtful cases a second, random number is required:** after a wrong answer, so that an
//! attacker has to guess sixty bits; after a connection was forgotten while answers to its pings
//! could still be in flight; and if the connection is no longer known.

use super::Endpoint;
use super::tables::ConnectionTable;
use crate::ack::{Ack, AckOut, Reason};
use crate::connection::{AddressValidation, Connection, ConnectionKey};
use crate::event::code;
use crate::number::{CallNumber, Seq, Serial};
use crate::packet::{HEADER_BYTES, Header, PacketType, flag};
use crate::payload::{Datagram, Payload};
use crate::secret::Keyed;
use crate::slab::Key;
use crate::time::Timestamp;
use crate::transmit::Route;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Duration;

/// Length of a time period; the numbers of the current and the previous period are valid. Covers
/// several retransmissions, and is far less than the time for which a connection is remembered.
const PERIOD: Duration = Duration::from_secs(16);

/// Time for which a wrong answer causes doubt: one unnoticed guess a minute needs 2^29 minutes.
const DOUBT: Duration = Duration::from_secs(60);

/// Computes the number of the first ping for a call of a peer: above 0 and below 2^30.
fn number(
    secret: &Keyed,
    key: &ConnectionKey,
    channel: usize,
    call: CallNumber,
    at: u64,
) -> Serial {
    let hash = secret.hash_one((key, channel, call.0, at));
    Serial(u32::try_from(hash >> 34).unwrap_or(0).max(1))
}

fn period(now: Timestamp) -> u64 {
    now.as_nanos() / crate::time::nanos(PERIOD)
}

/// Parses the ping number that an answer names.
fn answer(datagram: &[u8]) -> Option<Serial> {
    let ack = datagram.get(HEADER_BYTES..).and_then(Ack::parse)?;
    (ack.reason == Some(Reason::PingResponse)).then_some(ack.serial)
}

/// Proofs of all unproven peers.
pub(super) struct Proofs {
    /// Connections whose peer has not answered yet, oldest first; may contain some that have.
    queue: VecDeque<Key>,
    /// Number of connections whose peer has not answered yet.
    unproven: usize,
    /// Hasher for the numbers of pings.
    numbers: Keyed,
    /// Time until which two answers are required.
    doubts_until: Timestamp,
}

impl Proofs {
    pub(super) fn new(numbers: Keyed) -> Proofs {
        Proofs {
            queue: VecDeque::new(),
            unproven: 0,
            numbers,
            doubts_until: Timestamp::from_nanos(0),
        }
    }

    /// Returns the number of connections whose peer has not answered yet.
    pub(super) const fn unproven(&self) -> usize {
        self.unproven
    }

    /// Adds a new connection.
    pub(super) fn asked(&mut self, connection: Key) {
        self.queue.push_back(connection);
        self.unproven += 1;
    }

    /// Records that a connection's peer has answered, or that the connection was removed.
    pub(super) fn settled<P, D>(&mut self, connection: &Connection<P, D>) {
        self.unproven -= usize::from(connection.is_asked());
    }

    /// Finds the oldest connection whose peer has not answered yet.
    pub(super) fn oldest<P, D>(&mut self, connections: &ConnectionTable<P, D>) -> Option<Key> {
        while let Some(oldest) = self.queue.front() {
            if connections.get(*oldest).is_some_and(Connection::is_asked) {
                return Some(*oldest);
            }
            self.queue.pop_front();
        }
        None
    }

    /// Checks whether `serial` is the number of a recent ping for the call of `header`.
    fn is_right(
        &self,
        now: Timestamp,
        key: &ConnectionKey,
        header: &Header,
        serial: Serial,
    ) -> bool {
        let latest = period(now);
        let (channel, call) = (header.channel(), header.call_number);
        [latest, latest.wrapping_sub(1)]
            .iter()
            .any(|at| number(&self.numbers, key, channel, call, *at) == serial)
    }

    /// Requires two answers of unproven peers for a while.
    fn doubt(&mut self, now: Timestamp, time: Duration) {
        self.doubts_until = self.doubts_until.max(now + time);
    }

    /// Returns the serial number for a ping on a connection.
    pub(super) fn ping_serial<P, D>(
        &self,
        now: Timestamp,
        connection: &mut Connection<P, D>,
        header: &Header,
    ) -> Serial {
        match &mut connection.validation {
            AddressValidation::Proven => connection.take_serials(1),
            AddressValidation::Again(serial) => *serial,
            AddressValidation::Asked { pinged } => {
                *pinged = true;
                let (channel, call) = (header.channel(), header.call_number);
                number(&self.numbers, &connection.key, channel, call, period(now))
            }
        }
    }
}

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Handles the removal of a proven peer's connection. If the connection is young, late copies
    /// of its first packet and of its answer could pass for a new one.
    pub(super) fn forgets(&mut self, now: Timestamp, created: Timestamp) {
        if now.since(created) < self.config.reach_time + 2 * PERIOD {
            self.proofs.doubt(now, 2 * PERIOD);
        }
    }

    /// Handles an ACK packet of an unproven peer: only the answer to our ping counts.
    pub(super) fn handle_unvalidated_ack(
        &mut self,
        now: Timestamp,
        connection: Key,
        header: &Header,
        datagram: &[u8],
    ) {
        let Some(c) = self.connections.get(connection) else {
            return;
        };
        let Some(serial) = answer(datagram) else {
            return self.stats.stray += 1;
        };
        let (key, reach) = (c.key, c.validation);
        let right = self.proofs.is_right(now, &key, header, serial);
        match reach {
            AddressValidation::Proven => {}
            AddressValidation::Again(asked) if asked == serial => {
                self.believe(now, connection, header, serial)
            }
            AddressValidation::Asked { pinged: true }
                if right && now < self.proofs.doubts_until =>
            {
                self.challenge_again(connection, header, serial);
            }
            AddressValidation::Asked { pinged: true } if right => {
                self.believe(now, connection, header, serial);
            }
            // A copy of the first answer.
            AddressValidation::Again(_) if right => {}
            AddressValidation::Again(_) | AddressValidation::Asked { .. } => {
                self.stats.not_genuine += 1;
                self.proofs.doubt(now, DOUBT);
            }
        }
    }

    /// Handles an ACK packet of an unknown connection. Returns the ping number that it answers, as
    /// a packet of an evicted connection does.
    pub(super) fn handle_unknown_ack(
        &mut self,
        now: Timestamp,
        key: &ConnectionKey,
        route: Route,
        header: &Header,
        datagram: &[u8],
    ) -> Option<Serial> {
        let is_ack = header.kind == PacketType::Ack;
        let Some(serial) = answer(datagram).filter(|_| is_ack) else {
            self.stats.stray += 1;
            if is_ack {
                // The rest of a call from before our start. If its client has sent everything, it
                // would wait until silence exceeds the dead time. Only an abort notifies all
                // clients: some treat any other answer as a sign of life (OpenAFS,
                // `rxi_ReceiveServerCall`).
                let code = code::RESTARTING.to_be_bytes();
                self.answer_stray(now, route, header, PacketType::Abort, &code);
            }
            return None;
        };
        if !self.proofs.is_right(now, key, header, serial) {
            self.stats.not_genuine += 1;
            self.proofs.doubt(now, DOUBT);
            return None;
        }
        Some(serial)
    }

    /// Handles a right answer.
    fn believe(&mut self, now: Timestamp, connection: Key, header: &Header, serial: Serial) {
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        c.set_serial(serial.next());
        let slot = c.channels.get(header.channel());
        if let Some(call) = slot.and_then(|slot| slot.call) {
            self.pong(now, call, serial);
        }
        self.mark_validated(now, connection);
    }

    /// Requires a second answer from a peer that answered right, and keeps its connection.
    pub(super) fn challenge_again(&mut self, connection: Key, header: &Header, serial: Serial) {
        // Above the first, as later serial numbers are, and still below 2^31.
        let again = Serial(serial.0 + 1 + (self.secret.next() >> 3));
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        self.proofs.settled(c);
        c.validation = AddressValidation::Again(again);
        let mut ping = c.header(PacketType::Ack, header.channel(), header.call_number);
        ping.flags |= flag::REQUEST_ACK | flag::SLOW_START_OK;
        ping.serial = again;
        let jumbo = self.config.jumbo_packets;
        let path = self.paths.get(c.path);
        let ack = AckOut {
            first: Seq(1),
            previous: Seq(0),
            serial: Serial(0),
            reason: Reason::Ping,
            takes: path.map_or([0; 4], |path| path.takes(1, jumbo)),
        };
        let mut body = Vec::new();
        ack.encode(std::iter::empty(), &mut body);
        let route = c.route;
        self.stats.pings += 1;
        self.queue(route, &ping, &body);
    }
}
