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
