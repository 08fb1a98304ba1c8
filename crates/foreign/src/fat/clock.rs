//! Dates and times of day, which are taken for UTC.

use crate::tree::Time;

/// First and last second that an entry can have.
const FIRST: i64 = 315_532_800;
const LAST: i64 = 4_354_819_198;

/// Days between 0000-03-01 and 1970-01-01.
const DAYS_BEFORE: i64 = 719_468;

/// Decodes a date and a time of day.
pub(super) fn decode(date: u16, clock: u16, hundredths: u8) -> Time {
    let (year, month, day) = (date >> 9, date >> 5 & 15, date & 31);
    if month == 0 || day == 0 {
        return Time::default();
    }
    let (year, month) = (i64::from(year) + 1980, i64::from(month));
    let years = if month > 2 { year } else { year - 1 };
    let months = (month + 9) % 12;
    let days = years * 365 + years / 4 - years / 100
        + years / 400
        + (months * 306 + 5) / 10
        + i64::from(day)
        - 1
        - DAYS_BEFORE;
    let (hour, minute, second) = (clock >> 11, clock >> 5 & 63, (clock & 31) * 2);
    let of_day = i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second);
    Time {
        seconds: days * 86_400 + of_day + i64::from(hundredths / 100),
        nanos: u32::from(hundredths % 100) * 10_000_000,
    }
}

/// Encodes a time as a date, a time of day in units of two seconds, and the hundredths of a second
/// after it. A time that the format does not have becomes the nearest one.
pub(super) fn encode(time: Time) -> (u16, u16, u8) {
    let seconds = time.seconds.clamp(FIRST, LAST);
    let (days, of_day) = (seconds / 86_400 + DAYS_BEFORE, seconds % 86_400);
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let date = (year - 1980) << 9 | month << 5 | day;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let clock = hour << 11 | minute << 5 | (second / 2);
    let hundredths = seconds % 2 * 100 + i64::from(time.nanos / 10_000_000);
    (date as u16, clock as u16, hundredths as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_1970() {
        let date = |y: u16, m: u16, d: u16| (y - 1980) << 9 | m << 5 | d;
        assert_eq!(decode(date(1980, 1, 1), 0, 0).seconds, FIRST);
        let later = decode(date(2024, 2, 29), 12 << 11 | 30 << 5 | 5, 150);
        assert_eq!((later.seconds, later.nanos), (1_709_209_811, 500_000_000));
        assert_eq!(decode(0, 0, 0), Time::default());
    }

    #[test]
    fn encoded_times_are_decoded_to_themselves() {
        let mut seconds = FIRST;
        while seconds <= LAST {
            let time = Time {
                seconds,
                nanos: 370_000_000,
            };
            let (date, clock, hundredths) = encode(time);
            assert_eq!(decode(date, clock, hundredths), time);
            seconds += 86_400 * 13 + 12_345;
        }
        let nearest = |seconds| {
            let (date, clock, _) = encode(Time { seconds, nanos: 0 });
            decode(date, clock, 0).seconds
        };
        assert_eq!(nearest(0), FIRST);
        assert_eq!(nearest(i64::MAX), LAST);
    }
}
