//! Sizes as text: one syntax for all options, arguments and settings.

/// Units, each with its power of two. The letters mean the same with `B`, with `iB` and alone.
const UNITS: [(char, u32); 5] = [('k', 10), ('m', 20), ('g', 30), ('t', 40), ('p', 50)];

/// Parses a size in bytes: a number with an optional unit. `64M`, `64MB` and `64MiB` all mean 64
/// times 2^20 bytes, in upper or lower case; a number with a unit may have decimals, like `1.5G`.
/// Parts of a byte are rounded down.
///
/// # Errors
/// A message, if the text is not a size, or the size exceeds `i64::MAX` bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let end = text.find(|c| !is_digit(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let behind_space = unit.strip_prefix(' ').filter(|unit| !unit.is_empty());
    let unit = behind_space.unwrap_or(unit);
    let invalid = || format!("`{text}` is not a size such as 512, 64M or 1.5G");
    let (whole, decimals) = match number.split_once('.') {
        Some((whole, decimals)) if !decimals.is_empty() => (whole, decimals),
        Some(_) => return Err(invalid()),
        None => (number, ""),
    };
    let Ok(whole) = whole.parse::<u64>() else {
        return Err(invalid());
    };
    let Some(shift) = shift_of(unit) else {
        return Err(format!(
            "`{text}` is not a size: unknown unit `{unit}`; use K, M, G or T, which are powers of \
             1024"
        ));
    };
    if shift == 0 && !decimals.is_empty() {
        return Err(format!(
            "`{text}` is not a size: a number of bytes has no decimals"
        ));
    }
    let bytes = fraction(decimals, shift)
        .ok_or_else(invalid)?
        .checked_add(u128::from(whole) << shift)
        .filter(|bytes| *bytes <= i64::MAX as u128);
    match bytes.map(u64::try_from) {
        Some(Ok(bytes)) => Ok(bytes),
        _ => Err(format!("`{text}` is too large")),
    }
}

/// Returns the power of two that a unit stands for.
fn shift_of(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(0);
    }
    let mut rest = unit.chars();
    let first = rest.next()?;
    let (_, shift) = UNITS.iter().find(|(letter, _)| *letter == first)?;
    matches!(rest.as_str(), "" | "b" | "ib").then_some(*shift)
}

/// Computes the bytes of the digits after a decimal point. Digits beyond the twelfth do not count.
fn fraction(decimals: &str, shift: u32) -> Option<u128> {
    if !decimals.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = &decimals[..decimals.len().min(12)];
    if digits.is_empty() {
        return Some(0);
    }
    let value: u128 = digits.parse().ok()?;
    Some((value << shift) / 10_u128.pow(digits.len() as u32))
}

/// Formats a size in the syntax of [`parse_size`], without loss: a whole number of the largest
/// possible unit.
pub fn size_text(bytes: u64) -> String {
    let units = UNITS.iter().rev();
    let mut whole = units.filter(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1_u64 << *shift));
    match whole.next() {
        Some((letter, shift)) => format!("{}{}iB", bytes >> shift, letter.to_ascii_uppercase()),
        None => bytes.to_string(),
    }
}

/// Formats bytes, or bytes per second, for people: rounded, in at most 8 characters.
pub fn short_size(bytes: f64) -> String {
    let mut value = bytes.max(0.0);
    let mut units = UNITS.iter().map(|(letter, _)| letter.to_ascii_uppercase());
    let mut unit = None;
    while value >= 1023.5
        && let Some(larger) = units.next()
    {
        value /= 1024.0;
        unit = Some(larger);
    }
    match unit {
        None => format!("{value:.0} B"),
        Some(unit) if value < 99.95 => format!("{value:.1} {unit}iB"),
        Some(unit) => format!("{value:.0} {unit}iB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_size_fits_into_eight_characters() {
        for (value, text) in [
            (0.0, "0 B"),
            (-1.0, "0 B"),
            (1023.0, "1023 B"),
            (1536.0, "1.5 KiB"),
            (1024.0 * 1023.4, "1023 KiB"),
            (1024.0 * 1023.6, "1.0 MiB"),
            (200.0 * 1048576.0, "200 MiB"),
            (3.0 * 1073741824.0, "3.0 GiB"),
        ] {
            assert_eq!(short_size(value), text);
        }
        for power in 0..60 {
            let text = short_size((1_u64 << power) as f64 * 0.9999);
            assert!(text.chars().count() <= 8, "{text}");
        }
    }

    #[test]
    fn a_unit_is_a_power_of_two_in_every_spelling() {
        for (letter, shift) in UNITS {
            let upper = letter.to_ascii_uppercase();
            for unit in [
                letter.to_string(),
                upper.to_string(),
                format!("{upper}B"),
                format!("{letter}b"),
                format!("{upper}iB"),
                format!(" {upper}iB"),
            ] {
                assert_eq!(parse_size(&format!("3{unit}")), Ok(3 << shift), "{unit}");
            }
        }
        for (text, bytes) in [("0", 0), ("512", 512), ("512B", 512), ("10G", 10 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
    }

    #[test]
    fn a_number_with_a_unit_has_decimals() {
        for (text, bytes) in [
            ("1.5G", 3 << 29),
            ("0.25K", 256),
            ("0.0001K", 0),
            ("1.50MiB", 3 << 19),
            ("2.999999999999999999K", 3071),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in [
            "",
            "G",
            "1.5",
            "1.",
            ".5G",
            "1..5G",
            "1.5.5G",
            "-1",
            "+1",
            "1E",
            "1KK",
            "1iB",
            "1 ",
            "1  G",
            "0x10",
            "1,5G",
            "8388608T",
            "99999999999999999999",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(parse_size("1X").unwrap_err().contains("powers of 1024"));
        assert!(parse_size("9999999T").unwrap_err().contains("too large"));
    }

    #[test]
    fn a_formatted_size_is_parsed_again() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (2 << 20, "2MiB"),
            (1536, "1536"),
            (1536 << 10, "1536KiB"),
            (1 << 50, "1PiB"),
        ] {
            assert_eq!(size_text(bytes), text);
            assert_eq!(parse_size(text), Ok(bytes));
        }
    }
}
