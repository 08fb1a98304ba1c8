//! What one host has of us, of which each has a share: connections, calls, bytes that it did not
//! acknowledge.
//!
//! A share lives as long as a path to the host or a call of it.

use crate::secret::Keyed;
use crate::slab::{Key, Slab};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// What counts as one host: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// The address.
    V4([u8; 4]),
    /// The first half of the address.
    V6([u16; 4]),
}

impl Host {
    /// The host of an address.
    pub fn of(peer: SocketAddr) -> Host {
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => Host::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Host::V6([a, b, c, d])
            }
        }
    }
}

/// What a host has.
#[derive(Debug)]
struct Share {
    host: Host,
    /// Paths and calls that refer to this.
    users: usize,
    connections: usize,
    calls: usize,
    unacknowledged: u64,
}

/// The shares of all hosts, and the bytes that all have not acknowledged.
#[derive(Debug)]
pub(super) struct Hosts {
    shares: Slab<Share>,
    by_host: HashMap<Host, Key, Keyed>,
    unacknowledged: u64,
}

impl Hosts {
    pub(super) fn new(hasher: Keyed) -> Hosts {
        Hosts {
            shares: Slab::new(),
            by_host: HashMap::with_hasher(hasher),
            unacknowledged: 0,
        }
    }

    /// Connections that a host made, of which it may have none.
    pub(super) fn connections(&self, host: Host) -> usize {
        let share = self
            .by_host
            .get(&host)
            .and_then(|key| self.shares.get(*key));
        share.map_or(0, |share| share.connections)
    }

    /// The share of a new path.
    pub(super) fn share(&mut self, host: Host) -> Key {
        let shares = &mut self.shares;
        let key = *self.by_host.entry(host).or_insert_with(|| {
            shares.insert(Share {
                host,
                users: 0,
                connections: 0,
                calls: 0,
                unacknowledged: 0,
            })
        });
        self.join(key);
        key
    }

    /// A call refers to a share.
    pub(super) fn join(&mut self, share: Key) {
        if let Some(share) = self.shares.get_mut(share) {
            share.users += 1;
        }
    }

    /// A path or a call refers to a share no more.
    pub(super) fn leave(&mut self, key: Key) {
        let Some(share) = self.shares.get_mut(key) else {
            return;
        };
        share.users -= 1;
        if share.users == 0 {
            let host = share.host;
            self.shares.remove(key);
            self.by_host.remove(&host);
        }
    }

    pub(super) fn connected(&mut self, share: Key) {
        if let Some(share) = self.shares.get_mut(share) {
            share.connections += 1;
        }
    }

    pub(super) fn disconnected(&mut self, share: Key) {
        if let Some(share) = self.shares.get_mut(share) {
            share.connections -= 1;
        }
    }

    /// Calls of a host whose address is proven.
    pub(super) fn calls(&self, share: Key) -> usize {
        self.shares.get(share).map_or(0, |share| share.calls)
    }

    pub(super) fn called(&mut self, share: Key) {
        if let Some(share) = self.shares.get_mut(share) {
            share.calls += 1;
        }
    }

    pub(super) fn call_over(&mut self, share: Key) {
        if let Some(share) = self.shares.get_mut(share) {
            share.calls -= 1;
        }
    }

    /// Bytes were written to a call.
    pub(super) fn wrote(&mut self, share: Key, bytes: u64) {
        self.unacknowledged += bytes;
        if let Some(share) = self.shares.get_mut(share) {
            share.unacknowledged += bytes;
        }
    }

    /// Bytes that were written are let go.
    pub(super) fn released(&mut self, share: Key, bytes: u64) {
        self.unacknowledged -= bytes;
        if let Some(share) = self.shares.get_mut(share) {
            share.unacknowledged -= bytes;
        }
    }

    /// Bytes written and not acknowledged, of one host and of all.
    pub(super) fn unacknowledged(&self, share: Key) -> (u64, u64) {
        let own = self.shares.get(share).map_or(0, |s| s.unacknowledged);
        (own, self.unacknowledged)
    }

    /// The same of all.
    pub(super) const fn all_unacknowledged(&self) -> u64 {
        self.unacknowledged
    }
}
