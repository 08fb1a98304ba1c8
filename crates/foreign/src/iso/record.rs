//! Records of directories.

use crate::bytes::{le8, le32, part};
use crate::error::{Error, Result};
use crate::tree::Time;

/// Bytes of a block, and of a sector of a directory.
pub(super) const SECTOR: u64 = 2048;

/// Fields of a record, before its name.
const FIELDS_BYTES: usize = 33;

/// A record of a directory.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub len: u8,
    first_block: u32,
    bytes: u32,
    pub flags: u8,
    pub time: Time,
    pub name: Vec<u8>,
    /// Bytes for extensions.
    pub system_use: Vec<u8>,
}

impl Record {
    /// Parses the record at the start of the bytes, which is at an offset of the device.
    pub fn parse(b: &[u8], at: u64) -> Result<Record> {
        let damaged = || Error::corrupt(format!("the record of a file at byte {at} is damaged"));
        let len = le8(b, 0)?;
        let name_len = usize::from(le8(b, 32)?);
        let b = b.get(..usize::from(len)).ok_or_else(damaged)?;
        if name_len == 0 || FIELDS_BYTES + name_len > b.len() {
            return Err(damaged());
        }
        if le8(b, 26)? != 0 || le8(b, 27)? != 0 {
            return Err(Error::unsupported("a file is interleaved"));
        }
        let rest = (FIELDS_BYTES + name_len).next_multiple_of(2);
        Ok(Record {
            len,
            // A record with extended attributes has them before its content.
            first_block: le32(b, 2)?.saturating_add(u32::from(le8(b, 1)?)),
            bytes: le32(b, 10)?,
            flags: le8(b, 25)?,
            time: short_time(part(b, 18, 7)?),
            name: part(b, FIELDS_BYTES, name_len)?.to_vec(),
            system_use: b.get(rest..).unwrap_or_default().to_vec(),
        })
    }

    /// Returns the permissions of a file without Rock Ridge, as the kernel does: a program has no
    /// period in its name.
    pub fn permissions(&self) -> u32 {
        let end = self.name.iter().position(|b| matches!(b, b'.' | b';'));
        match end.and_then(|end| self.name.get(end)) {
            Some(b'.') => 0o444,
            _ => 0o555,
        }
    }

    /// Returns the offset of the content on the device, and its length.
    pub fn extent(&self, device_bytes: u64) -> Result<(u64, u64)> {
        let (at, len) = (u64::from(self.first_block) * SECTOR, u64::from(self.bytes));
        if len > 0 && at + len > device_bytes {
            return Err(Error::corrupt("a file lies behind the end of the device"));
        }
        Ok((at, len))
    }
}

/// Decodes a time of seven bytes: years since 1900, month, day, hour, minute, second, and the
/// difference to UTC in quarters of an hour.
pub(super) fn short_time(b: &[u8]) -> Time {
    let &[year, month, day, hour, minute, second, zone] = b else {
        return Time::default();
    };
    let date = (i64::from(year) + 1900, i64::from(month), i64::from(day));
    let clock = (i64::from(hour), i64::from(minute), i64::from(second));
    time(date, clock, zone.cast_signed())
}

/// Decodes a time of seventeen bytes: the same as digits, with hundredths of a second.
pub(super) fn long_time(b: &[u8]) -> Time {
    let number = |at: usize, len: usize| -> i64 {
        let digits = b
            .get(at..at + len)
            .and_then(|d| std::str::from_utf8(d).ok());
        digits.and_then(|d| d.parse().ok()).unwrap_or(0)
    };
    let zone = b.get(16).copied().unwrap_or(0).cast_signed();
    let date = (number(0, 4), number(4, 2), number(6, 2));
    time(date, (number(8, 2), number(10, 2), number(12, 2)), zone)
}

/// Seconds since 1970 of a time of a zone.
fn time((year, month, day): (i64, i64, i64), clock: (i64, i64, i64), zone: i8) -> Time {
    if month == 0 {
        return Time::default();
    }
    // The days of a year that begins in March, so that a leap day is the last one.
    let years = if month > 2 { year } else { year - 1 };
    let months = (month + 9) % 12;
    let days = years * 365 + years.div_euclid(4) - years.div_euclid(100)
        + years.div_euclid(400)
        + (months * 306 + 5) / 10
        + day
        - 1
        - 719_468;
    let (hour, minute, second) = clock;
    let zone = if (-52..=52).contains(&zone) {
        i64::from(zone)
    } else {
        0
    };
    Time {
        seconds: days * 86_400 + hour * 3600 + minute * 60 + second - zone * 900,
        nanos: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_1970_in_utc() {
        assert_eq!(short_time(&[70, 1, 1, 0, 0, 0, 0]).seconds, 0);
        assert_eq!(short_time(&[100, 2, 29, 12, 0, 1, 4]).seconds, 951_822_001);
        assert_eq!(short_time(&[126, 3, 1, 0, 0, 0, 0]).seconds, 1_772_323_200);
        assert_eq!(long_time(b"2000022912000100\x04").seconds, 951_822_001);
        assert_eq!(short_time(&[0, 0, 0, 0, 0, 0, 0]), Time::default());
    }
}
