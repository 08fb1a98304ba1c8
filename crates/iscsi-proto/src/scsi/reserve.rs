//! Persistent reservations (SPC-4, sections 5.12, 6.15 and 6.16).

use crate::bytes::{put, u32_at, u64_at};

/// Builds the parameter data of PERSISTENT RESERVE OUT: the key registered for this nexus, and the
/// service action key (to register or to preempt).
pub fn reserve_out(key: u64, action_key: u64) -> [u8; 24] {
    let mut out = [0; 24];
    put(&mut out, 0, &key.to_be_bytes());
    put(&mut out, 8, &action_key.to_be_bytes());
    out
}

/// Registered reservation keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Generation counter; registrations and preemptions increment it.
    pub generation: u32,
    /// One key per registration; keys may repeat.
    pub keys: Vec<u64>,
}

/// Parses READ KEYS data. Returns `None` if it is truncated before the first key.
pub fn parse_keys(data: &[u8]) -> Option<Keys> {
    let len = usize::try_from(u32_at(data, 4)?).ok()?;
    let all = data.get(8..)?;
    let entries = all.get(..len).unwrap_or(all).chunks_exact(8);
    Some(Keys {
        generation: u32_at(data, 0)?,
        keys: entries.filter_map(|entry| u64_at(entry, 0)).collect(),
    })
}

/// Current persistent reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Key of the reservation holder.
    pub key: u64,
    /// Reservation type; 5 is Write Exclusive, Registrants Only.
    pub kind: u8,
}

/// Parses READ RESERVATION data. The outer `None` means truncated data; the inner `None` means that
/// no reservation is held.
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
