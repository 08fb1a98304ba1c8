//! Persistent reservations (SPC-4, sections 5.12, 6.15 and 6.16).

use crate::bytes::{put, u32_at, u64_at};

/// The data of PERSISTENT RESERVE OUT: the key that the nexus has, and the one that the action is
/// about (to register, or to preempt).
pub fn reserve_out(key: u64, action_key: u64) -> [u8; 24] {
    let mut out = [0; 24];
    put(&mut out, 0, &key.to_be_bytes());
    put(&mut out, 8, &action_key.to_be_bytes());
    out
}

/// The keys that are registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Counts registrations and preemptions.
    pub generation: u32,
    /// One for each registration; keys may be equal.
    pub keys: Vec<u64>,
}

/// READ KEYS. `None`: cut before the first key.
pub fn parse_keys(data: &[u8]) -> Option<Keys> {
    let len = usize::try_from(u32_at(data, 4)?).ok()?;
    let all = data.get(8..)?;
    let entries = all.get(..len).unwrap_or(all).chunks_exact(8);
    Some(Keys {
        generation: u32_at(data, 0)?,
        keys: entries.filter_map(|entry| u64_at(entry, 0)).collect(),
    })
}

/// A reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Key of the holder.
    pub key: u64,
    /// Type; 5 is write exclusive, registrants only.
    pub kind: u8,
}

/// READ RESERVATION. The outer `None`: cut; the inner: nobody holds one.
pub fn parse_reservation(data: &[u8]) -> Option<Option<Reservation>> {
    if u32_at(data, 4)? < 16 {
        return Some(None);
    }
    Some(Some(Reservation {
        key: u64_at(data, 8)?,
        kind: data.get(21)? & 0x0f,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_reservations_are_read() {
        let mut data = vec![0, 0, 0, 7, 0, 0, 0, 16];
        data.extend(5u64.to_be_bytes());
        data.extend(6u64.to_be_bytes());
        let keys = parse_keys(&data).unwrap();
        assert_eq!((keys.generation, keys.keys), (7, vec![5, 6]));
        assert_eq!(parse_keys(&data[..20]).unwrap().keys, [5]);
        assert_eq!(parse_keys(&data[..7]), None);
        assert_eq!(parse_reservation(&[0; 8]), Some(None));
        data.truncate(16);
        data.extend([0, 0, 0, 0, 0, 0x05, 0, 0]);
        let expected = Reservation { key: 5, kind: 5 };
        assert_eq!(parse_reservation(&data), Some(Some(expected)));
        assert_eq!(
            reserve_out(1, 2)[..16],
            [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]
        );
    }
}
