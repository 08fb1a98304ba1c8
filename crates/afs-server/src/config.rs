//! Configuration of a server: settings and limits, each with its unit and reason.

use rx::{DebugAccess, DebugPolicy};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses and ports of the file service. Clients expect port 7000; 0 lets the system choose.
    pub file_service: Vec<SocketAddr>,
    /// Addresses and ports of the volume location service. Clients expect port 7003.
    pub location_service: Vec<SocketAddr>,
    /// Addresses of the file service announced to clients; clients must be able to reach them.
    /// [`crate::ADDRESSES_MAX`] at most.
    pub announced: Vec<Ipv4Addr>,
    /// Addresses that may call. Empty: all.
    pub allowed: Vec<Prefix>,
    /// Answer `rxdebug` in full to all permitted addresses, and not only over the loopback. Its
    /// answers reveal the addresses of clients, and are up to nine times as long as its questions,
    /// whose source address can be forged.
    pub rxdebug: bool,
    /// Permit changes by unauthenticated callers, subject to the access lists. With rxnull as the
    /// only security class, all callers are unauthenticated.
    pub anonymous_write: bool,
    /// Sockets on each port, each with one thread.
    pub sockets: usize,
    /// Threads that serve calls of the file service at each address, one call each.
    pub workers: usize,
    /// Lifetime of a promise in seconds. OpenAFS uses one to four hours. A longer lifetime saves
    /// calls, a shorter one limits how long a client that was unreachable during a change sees old
    /// data.
    pub promise_seconds: u32,
    /// Limit on promises, about 130 bytes each; one client may hold a sixteenth of them. Beyond it,
    /// files are returned without a promise and clients revalidate them.
    pub promises_max: usize,
    /// Limit on known clients. Beyond it, those that called least recently are forgotten.
    pub hosts_max: usize,
    /// Time that a client may take to answer a break or an identity query. An unreachable client
    /// delays a writer by this time once, or by twice of it if a call to it is already under way.
    /// Allows for several of the client's retransmissions on a network that loses a fifth of its
    /// packets.
    pub answer_time: Duration,
    /// Time after which the break of a promise made in the preceding seconds is repeated: longer
    /// than the reply with the promise takes to reach the client.
    pub tell_again: Duration,
    /// Limit on cached directory pages, in bytes.
    pub directory_bytes_max: usize,
    /// Limit on cache pages in transmission to clients, in bytes; beyond it, data is copied. A
    /// client that acknowledges nothing keeps its share until its call times out.
    pub lent_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            file_service: vec![(Ipv4Addr::LOCALHOST, afs_proto::fs::PORT).into()],
            location_service: vec![(Ipv4Addr::LOCALHOST, afs_proto::vl::PORT).into()],
            announced: vec![Ipv4Addr::LOCALHOST],
            allowed: Vec::new(),
            rxdebug: false,
            anonymous_write: false,
            sockets: 2,
            workers: 64,
            promise_seconds: 3600,
            promises_max: 1 << 20,
            hosts_max: 65_536,
            answer_time: Duration::from_secs(5),
            tell_again: Duration::from_secs(1),
            directory_bytes_max: 64 << 20,
            lent_bytes_max: 64 << 20,
        }
    }
}

impl Config {
    /// Checks whether an address may call.
    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        self.allowed.is_empty() || self.allowed.iter().any(|prefix| prefix.has(address))
    }

    /// Builds the policy for answers to `rxdebug`.
    pub(crate) fn questions(&self) -> DebugPolicy {
        let (config, machine) = (self.clone(), DebugPolicy::default());
        DebugPolicy::new(move |address| match config.allows(address) {
            false => DebugAccess::None,
            true if config.rxdebug => DebugAccess::Full,
            true => machine.of(address),
        })
    }
}

/// Address prefix such as `10.1.0.0/16`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// Checks whether the prefix contains an address.
    pub fn has(&self, address: IpAddr) -> bool {
        let begins = |mine: u128, theirs: u128, width: u8| {
            let rest = u32::from(width - self.bits);
            mine.checked_shr(rest) == theirs.checked_shr(rest)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(mine), IpAddr::V4(theirs)) => {
                begins(mine.to_bits().into(), theirs.to_bits().into(), 32)
            }
            (IpAddr::V6(mine), IpAddr::V6(theirs)) => begins(mine.to_bits(), theirs.to_bits(), 128),
            _ => false,
        }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Error of parsing a [`Prefix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPrefix;

impl std::fmt::Display for NoPrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not an address or a prefix such as 10.1.0.0/16")
    }
}

impl std::error::Error for NoPrefix {}

impl std::str::FromStr for Prefix {
    type Err = NoPrefix;

    fn from_str(text: &str) -> Result<Prefix, NoPrefix> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NoPrefix)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().map_err(|_| NoPrefix)?,
            None => width,
        };
        if bits <= width {
            Ok(Prefix { address, bits })
        } else {
            Err(NoPrefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_the_addresses_that_begin_with_it() {
        let has = |prefix: &str, address: &str| {
            let prefix: Prefix = prefix.parse().expect("a prefix");
            prefix.has(address.parse().expect("an address"))
        };
        assert!(has("10.1.0.0/16", "10.1.255.3") && !has("10.1.0.0/16", "10.2.0.1"));
        assert!(has("10.1.2.3", "10.1.2.3") && !has("10.1.2.3", "10.1.2.2"));
        assert!(has("0.0.0.0/0", "255.1.2.3") && !has("0.0.0.0/0", "::1"));
        assert!(has("::/0", "2001:db8::1") && has("2001:db8::/32", "2001:db8::1"));
        assert!(has("127.0.0.0/8", "::ffff:127.0.0.1"));
        for bad in [
            "",
            "10.1",
            "10.1.2.3/33",
            "::1/129",
            "10.0.0.0/-1",
            "a/8",
            "system:anyuser",
        ] {
            assert_eq!(bad.parse::<Prefix>(), Err(NoPrefix), "{bad}");
        }
    }
}
