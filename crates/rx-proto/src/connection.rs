//! A connection: its peer and service, four channels, and serial numbers.
//!
//! A server remembers the number of the last call on each channel, which ensures that calls run at
//! most once: a packet of an older call is dropped, a packet of the last call is answered with the
//! way it ended.

use crate::call::Role;
use crate::config::Timeouts;
use crate::number::{CallNumber, Cid, Epoch, Seq, Serial};
use crate::packet::{CHANNELS, Header, PacketType, flag};
use crate::security::{PacketPlace, Security};
use crate::slab::Key;
use crate::time::Timestamp;
use crate::timers::TimerEntry;
use crate::transmit::Route;
use std::net::SocketAddr;

/// Lookup key of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub(crate) peer: SocketAddr,
    pub(crate) epoch: Epoch,
    /// Connection id without the channel bits.
    pub(crate) cid: Cid,
    pub(crate) role: Role,
}

/// Progress of the proof that the peer owns its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressValidation {
    /// The peer answered a challenge that no third party could see.
    Proven,
    /// The peer has to name a ping with a computed number; `pinged` is set once one was sent.
    Asked { pinged: bool },
    /// The peer named the computed number and has to name this one too.
    Again(Serial),
}

/// End of a channel's last call, for its late packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastCallEnd {
    /// No answer is sent.
    Nothing,
    /// At a server: the call was aborted with this code.
    Aborted(i32),
    /// At a client: the whole reply was received. The server is notified at `tell_at`, unless
    /// another call implies it before.
    Received { last: Seq, tell_at: Timestamp },
}

/// One of the four channels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Channel {
    pub(crate) call: Option<Key>,
    /// Number of the current call, or of the last one.
    pub(crate) number: CallNumber,
    pub(crate) last_end: LastCallEnd,
}

/// State of a connection.
pub(crate) struct Connection<P, D> {
    pub(crate) key: ConnectionKey,
    pub(crate) route: Route,
    pub(crate) path: Key,
    pub(crate) service: u16,
    pub(crate) security_index: u8,
    /// State of the security class; `None` for rxnull.
    pub(crate) security: Option<Box<dyn Security<P, D>>>,
    pub(crate) validation: AddressValidation,
    pub(crate) channels: [Channel; CHANNELS],
    /// Window that the peer advertised last, in packets.
    pub(crate) peer_window: u32,
    pub(crate) timeouts: Timeouts,
    serial: Serial,
    pub(crate) created: Timestamp,
    /// Time of the last use.
    pub(crate) active: Timestamp,
    pub(crate) timer_entry: TimerEntry,
    /// Whether a call could not be started because all channels were in use.
    pub(crate) channel_wanted: bool,
}

impl<P, D> Connection<P, D> {
    pub(crate) fn new(
        now: Timestamp,
        key: ConnectionKey,
        route: Route,
        path: Key,
        first_serial: Serial,
    ) -> Connection<P, D> {
        let channel = Channel {
            call: None,
            number: CallNumber(0),
            last_end: LastCallEnd::Nothing,
        };
        let nobody = AddressValidation::Asked { pinged: false };
        let client = key.role == Role::Client;
        Connection {
            key,
            route,
            path,
            service: 0,
            security_index: 0,
            security: None,
            validation: if client {
                AddressValidation::Proven
            } else {
                nobody
            },
            channels: [channel; CHANNELS],
            peer_window: crate::call::send::PEER_WINDOW_INITIAL,
            timeouts: Timeouts::default(),
            serial: first_serial,
            created: now,
            active: now,
            timer_entry: TimerEntry::new(),
            channel_wanted: false,
        }
    }

    pub(crate) fn is_server(&self) -> bool {
        self.key.role == Role::Server
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.validation == AddressValidation::Proven
    }

    /// Checks whether the peer has not answered at all yet.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.validation, AddressValidation::Asked { .. })
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.channels.iter().any(|c| c.call.is_some())
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = Key> {
        self.channels.iter().filter_map(|c| c.call)
    }

    /// Reserves `count` consecutive serial numbers and returns the first. None of them is 0, which
    /// means "no transmission" where a serial number is referenced.
    pub(crate) fn take_serials(&mut self, count: u32) -> Serial {
        let wraps = self.serial.plus(count.saturating_sub(1)).0 < self.serial.0;
        let first = if wraps || self.serial == Serial(0) {
            Serial(1)
        } else {
            self.serial
        };
        self.serial = first.plus(count);
        first
    }

    pub(crate) const fn next_serial(&self) -> Serial {
        self.serial
    }

    pub(crate) fn set_serial(&mut self, serial: Serial) {
        self.serial = serial;
    }

    /// Builds the header of a packet on a channel; the caller sets sequence and serial numbers.
    pub(crate) fn header(&self, kind: PacketType, channel: usize, number: CallNumber) -> Header {
        let client = self.key.role == Role::Client;
        Header {
            epoch: self.key.epoch,
            cid: self.key.cid.on_channel(channel),
            call_number: number,
            seq: Seq(0),
            serial: Serial(0),
            kind,
            flags: if client { flag::CLIENT_INITIATED } else { 0 },
            user_status: 0,
            security_index: self.security_index,
            checksum: 0,
            service: self.service,
        }
    }

    /// Returns the position of a packet for the security class.
    pub(crate) fn place(&self, header: &Header) -> PacketPlace {
        PacketPlace {
            epoch: header.epoch,
            cid: header.cid,
            call_number: header.call_number,
            seq: header.seq,
            from_client: header.has(flag::CLIENT_INITIATED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Shared;
    use crate::slab::Slab;

    fn connection(role: Role) -> Connection<Shared, Shared> {
        let peer = "192.0.2.1:7001".parse().unwrap();
        let key = ConnectionKey {
            peer,
            epoch: Epoch(1),
            cid: Cid(8),
            role,
        };
        let route = Route { peer, local: None };
        let now = Timestamp::from_nanos(0);
        Connection::new(now, key, route, Slab::new().insert(()), Serial(5))
    }

    #[test]
    fn serials_follow_one_another_and_skip_zero() {
        let mut connection = connection(Role::Client);
        assert_eq!(connection.take_serials(3), Serial(5));
        assert_eq!(connection.take_serials(1), Serial(8));
        connection.set_serial(Serial(u32::MAX - 1));
        assert_eq!(connection.take_serials(1), Serial(u32::MAX - 1));
        assert_eq!(connection.take_serials(1), Serial(u32::MAX));
        assert_eq!(connection.take_serials(1), Serial(1));
        // The serial numbers of a jumbogram do not wrap around zero.
        connection.set_serial(Serial(u32::MAX - 1));
        assert_eq!(connection.take_serials(4), Serial(1));
        connection.set_serial(Serial(u32::MAX - 3));
        assert_eq!(connection.take_serials(4), Serial(u32::MAX - 3));
        assert_eq!(connection.take_serials(1), Serial(1));
    }
}
