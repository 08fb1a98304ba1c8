//! Addresses of peers as words of a table.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Words of an address.
pub const WORDS: usize = 5;

/// Bits of the last word, above the port and 16 bits that are the caller's.
const IS_V4: u64 = 1 << 32;
const HAS_LOCAL: u64 = 1 << 33;

/// Returns the words for the address of a peer, and the local one that it uses. Bits 16 to 31 of the
/// last word are zero; the caller may use them.
pub fn to_words(peer: SocketAddr, local: Option<IpAddr>) -> [u64; WORDS] {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let (own, to) = (bits(peer.ip()), local.map_or(0, bits));
    let mut last = u64::from(peer.port());
    last |= if peer.is_ipv4() { IS_V4 } else { 0 };
    last |= if local.is_some() { HAS_LOCAL } else { 0 };
    [
        (own >> 64) as u64,
        own as u64,
        (to >> 64) as u64,
        to as u64,
        last,
    ]
}

/// Returns the addresses that words are of; any words are of some.
pub fn from_words(words: &[u64; WORDS]) -> (SocketAddr, Option<IpAddr>) {
    let last = words[4];
    let address = |high: u64, low: u64| {
        let address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        if last & IS_V4 != 0 {
            IpAddr::V6(address).to_canonical()
        } else {
            address.into()
        }
    };
    let local = (last & HAS_LOCAL != 0).then(|| address(words[2], words[3]));
    let peer = SocketAddr::new(address(words[0], words[1]), last as u16);
    (peer, local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_whatever_the_caller_adds() {
        for (peer, local) in [
            ("192.0.2.1:7001", Some("192.0.2.9")),
            ("192.0.2.1:7001", None),
            ("[2001:db8::1]:65535", Some("::1")),
            ("[::ffff:192.0.2.1]:1", None),
        ] {
            let given = (
                peer.parse().unwrap(),
                local.map(|local| local.parse().unwrap()),
            );
            let mut words = to_words(given.0, given.1);
            assert_eq!(from_words(&words), given);
            words[4] |= 0xffff << 16;
            assert_eq!(from_words(&words), given);
        }
    }
}
