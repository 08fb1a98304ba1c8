//! What a server is told, and its limits, each with its unit and reason.

use rx::{Answers, Questions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses and ports of the file service. Clients look for it at port 7000; 0 lets the system
    /// choose.
    pub file_service: Vec<SocketAddr>,
    /// Addresses and ports of the volume location service: port 7003.
    pub location_service: Vec<SocketAddr>,
    /// Addresses that clients are told to find the file service at: those they can reach,
    /// [`crate::ADDRESSES_MAX`] at most.
    pub announced: Vec<Ipv4Addr>,
    /// Who may call at all. Empty: everybody.
    pub allowed: Vec<Prefix>,
    /// Whether `rxdebug` is answered in full to all who may call, and not only over the loopback. Its answers
    /// show the addresses of clients, and are up to nine times as long as its questions, whose senders can
    /// be forged.
    pub rxdebug: bool,
    /// Whether those whom nobody vouches for may change anything, where the access lists let them.
    /// Nobody is vouched for as long as rxnull is the only class there is.
    pub anonymous_write: bool,
    /// Sockets on each port, each with a thread.
    pub sockets: usize,
    /// Calls of the file service that are served at a time at each address, each by a thread.
    pub workers: usize,
    /// How long a promise holds, in seconds. OpenAFS gives one to four hours. Longer saves calls, and
    /// shorter bounds what a client sees that could not be reached when a file changed.
    pub promise_seconds: u32,
    /// Promises at once, about 130 bytes each; one client has a sixteenth of them. Beyond, files come without
    /// one, and clients ask again.
    pub promises_max: usize,
    /// Clients at once. Beyond, the one that was not heard of for longest is forgotten.
    pub hosts_max: usize,
    /// How long a client may take to answer that it heard of a change, or who it is: what a dead one
    /// costs a writer, once, or twice that if others tell it something already. Some of its
    /// retransmissions, on a network that loses a fifth.
    pub answer_time: Duration,
    /// Time after which a client is told of a change again that it was promised to hear of in the seconds
    /// before: longer than the answer with the promise takes to reach it.
    pub tell_again: Duration,
    /// Bytes of directories' pages that are kept.
    pub directory_bytes_max: usize,
    /// Bytes of the cache that may be on their way to clients; beyond, data is copied. A client that
    /// acknowledges nothing keeps its share until it is given up.
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
    /// Whether an address may call at all.
    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        self.allowed.is_empty() || self.allowed.iter().any(|prefix| prefix.has(address))
    }

    /// Who is answered `rxdebug`.
    pub(crate) fn questions(&self) -> Questions {
        let (config, machine) = (self.clone(), Questions::default());
        Questions::new(move |address| match config.allows(address) {
            false => Answers::None,
            true if config.rxdebug => Answers::Full,
            true => machine.of(address),
        })
    }
}

/// The addresses that begin with the same bits: `10.1.0.0/16`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// Whether an address is one of them.
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

/// Why something is not a [`Prefix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPrefix;

impl std::fmt::Display for NoPrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("neither an address nor a prefix such as 10.1.0.0/16")
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
        match bits <= width {
            true => Ok(Prefix { address, bits }),
            false => Err(NoPrefix),
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
