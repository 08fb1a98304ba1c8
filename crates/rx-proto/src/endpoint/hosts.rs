//! Resources used per host: connections, calls, unacknowledged bytes.
//!
//! A share exists as long as a path to the host or a call of it.

use crate::secret::Keyed;
use crate::slab::{Key, Slab};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Unit of accounting: an IPv4 address, or an IPv6 /64 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// IPv4 address.
    V4([u8; 4]),
    /// First 64 bits of an IPv6 address.
    V6([u16; 4]),
}

impl Host {
    /// Returns the host of an address.
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

/// Resources used by one host.
#[derive(Debug)]
struct Share {
    host: Host,
    /// Number of paths and calls that refer to this share.
    users: usize,
    connections: usize,
    calls: usize,
    unacknowledged: u64,
}

/// Shares of all hosts, and the total of unacknowledged bytes.
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

    /// Returns the number of incoming connections of a host, which may have no share.
    pub(super) fn connections(&self, host: Host) -> usize {
        let share = self
            .by_host
            .get(&host)
            .and_then(|key| self.shares.get(*key));
        share.map_or(0, |share| share.connections)
    }

    /// Returns the share for a new path, with a reference added.
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

    /// Adds the reference of a call.
    pub(super) fn join(&mut self, share: Key) {
        if let Some(share) = self.shares.get_mut(share) {
            share.users += 1;
        }
    }

    /// Drops the reference of a path or a call.
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

    /// Returns the number of calls of a host with a proven address.
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

    /// Records bytes written to a call.
    pub(super) fn wrote(&mut self, share: Key, bytes: u64) {
        self.unacknowledged += bytes;
        if let Some(share) = self.shares.get_mut(share) {
            share.unacknowledged += bytes;
        }
    }

    /// Records the release of written bytes.
    pub(super) fn released(&mut self, share: Key, bytes: u64) {
        self.unacknowledged -= bytes;
        if let Some(share) = self.shares.get_mut(share) {
            share.unacknowledged -= bytes;
        }
    }

    /// Returns the bytes written and not acknowledged, of one host and of all.
    pub(super) fn unacknowledged(&self, share: Key) -> (u64, u64) {
        let own = self.shares.get(share).map_or(0, |s| s.unacknowledged);
        (own, self.unacknowledged)
    }

    /// Returns the bytes written and not acknowledged, of all hosts.
    pub(super) const fn all_unacknowledged(&self) -> u64 {
        self.unacknowledged
    }
}
