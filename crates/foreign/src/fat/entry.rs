//! The 32 bytes of an entry of a directory.

use super::clock;
use crate::tree::Time;

pub(super) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Time {
        seconds: since.as_secs() as i64,
        nanos: since.subsec_nanos(),
    }
}

/// Sets the time of the last change in an entry.
pub(super) fn set_modified(raw: &mut [u8; 32], time: Time) {
    let (date, of_day, _) = clock::encode(time);
    raw[22..24].copy_from_slice(&of_day.to_le_bytes());
    raw[24..26].copy_from_slice(&date.to_le_bytes());
}

pub(super) fn set_accessed(raw: &mut [u8; 32], time: Time) {
    raw[18..20].copy_from_slice(&clock::encode(time).0.to_le_bytes());
}

pub(super) fn set_first(raw: &mut [u8; 32], cluster: u32) {
    raw[20..22].copy_from_slice(&((cluster >> 16) as u16).to_le_bytes());
    raw[26..28].copy_from_slice(&(cluster as u16).to_le_bytes());
}

/// Creates an entry.
pub(super) fn new_entry(short: &[u8; 11], attributes: u8) -> [u8; 32] {
    let (mut raw, time) = ([0; 32], now());
    let (date, of_day, hundredths) = clock::encode(time);
    raw[..11].copy_from_slice(short);
    raw[11] = attributes;
    raw[13] = hundredths;
    raw[14..16].copy_from_slice(&of_day.to_le_bytes());
    raw[16..18].copy_from_slice(&date.to_le_bytes());
    set_accessed(&mut raw, time);
    set_modified(&mut raw, time);
    raw
}
