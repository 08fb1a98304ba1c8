//! Parsers of option values.

use std::time::Duration;

/// Parses a fraction between 0 and 1: `5%` or `0.05`.
pub fn part(text: &str) -> std::result::Result<f64, String> {
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().map(|v: f64| v / 100.0),
        None => text.parse(),
    };
    value
        .ok()
        .filter(|v| *v > 0.0 && *v < 1.0)
        .ok_or_else(|| format!("`{text}` is not a fraction between 0 and 1, such as 5%"))
}

/// Parses seconds: 0 for a single run of the work, at most an hour.
pub fn seconds(text: &str) -> std::result::Result<f64, String> {
    let value = text.parse::<f64>().ok();
    value
        .filter(|v| (0.0..=3600.0).contains(v))
        .ok_or_else(|| format!("`{text}` is not a number of seconds from 0 to 3600"))
}

/// Parses a time in seconds, minutes or hours: `90`, `10m`, `2h`; larger values are cut to 30 days.
pub fn duration(text: &str) -> std::result::Result<Duration, String> {
    let (number, factor) = match text.chars().last() {
        Some('h') => (&text[..text.len() - 1], 3600),
        Some('m') => (&text[..text.len() - 1], 60),
        Some('s') => (&text[..text.len() - 1], 1),
        _ => (text, 1),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a time such as 90 or 10m"))?;
    Ok(Duration::from_secs(
        number.saturating_mul(factor).min(30 * 86_400),
    ))
}

/// Formats a size as a person types it as the value of an option: `512M`.
pub fn size(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let fits = |(_, shift): &(&str, u32)| bytes > 0 && bytes.is_multiple_of(1u64 << *shift);
    match units.into_iter().find(fits) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_written_as_it_is_read() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (65_536, "64K"),
            (512 << 20, "512M"),
            (3 << 30, "3G"),
            (1 << 40, "1T"),
        ] {
            assert_eq!(size(bytes), text);
            assert_eq!(stack::parse_size(text), Ok(bytes));
        }
    }
}
