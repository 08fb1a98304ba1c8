//! Text of login and text PDUs: `key=value` pairs, each terminated by a zero byte (section 6.1).

use crate::{Result, broken};

/// Maximum length of the text over all PDUs of one exchange, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a key in bytes (section 6.1).
const KEY_BYTES_MAX: usize = 63;

/// Appends a pair.
pub(crate) fn push(out: &mut Vec<u8>, key: &str, value: &str) {
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
    out.extend_from_slice(value.as_bytes());
    out.push(0);
}

/// Parses the pairs in order.
pub(crate) fn pairs(bytes: &[u8]) -> Result<Vec<(&str, &str)>> {
    let mut found = Vec::new();
    for item in bytes.split(|b| *b == 0).filter(|item| !item.is_empty()) {
        let Ok(item) = std::str::from_utf8(item) else {
            return broken("text that is not UTF-8");
        };
        match item.split_once('=') {
            Some((key, value)) if !key.is_empty() && key.len() <= KEY_BYTES_MAX => {
                found.push((key, value));
            }
            _ => return broken("text without a key"),
        }
    }
    Ok(found)
}

/// Decodes a binary value, `0x...` or `0b...` in base64 (section 6.1), of at most `max` bytes.
pub(crate) fn binary(value: &str, max: usize) -> Option<Vec<u8>> {
    let (prefix, digits) = value.split_at_checked(2)?;
    let bytes = match prefix {
        "0x" | "0X" => from_hex(digits)?,
        "0b" | "0B" => from_base64(digits)?,
        _ => return None,
    };
    (!bytes.is_empty() && bytes.len() <= max).then_some(bytes)
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |b: &u8| {
        char::from(*b)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    let values: Vec<u8> = digits.bytes().map(|b| digit(&b)).collect::<Option<_>>()?;
    // An odd number of digits has an implied leading zero.
    let (first, rest) = values.split_at_checked(values.len() % 2)?;
    let pair = |pair: &[u8]| pair.iter().fold(0, |all, d| all << 4 | d);
    Some(
        first
            .iter()
            .copied()
            .chain(rest.chunks(2).map(pair))
            .collect(),
    )
}

fn from_base64(digits: &str) -> Option<Vec<u8>> {
    let value = |b: u8| match b {
        b'A'..=b'Z' => Some(b - b'A'),
        b'a'..=b'z' => Some(b - b'a' + 26),
        b'0'..=b'9' => Some(b - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0u32);
    for byte in digits.trim_end_matches('=').bytes() {
        bits = bits << 6 | u32::from(value(byte)?);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held & 0xff) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(out)
}

/// Parses a number: decimal or `0x...`.
pub(crate) fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or(value.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_back() {
        let mut out = Vec::new();
        push(&mut out, "A", "b");
        push(&mut out, "C", "d=e");
        assert_eq!(out, b"A=b\0C=d=e\0");
        assert_eq!(pairs(&out).unwrap(), [("A", "b"), ("C", "d=e")]);
        assert!(pairs(b"novalue\0").is_err() && pairs(b"=x\0").is_err());
        assert!(pairs(b"a=\xff\0").is_err() && pairs(&[b'k'; 100]).is_err());
    }

    #[test]
    fn binary_values_are_hex_or_base64() {
        assert_eq!(binary("0x0a1B", 16).unwrap(), [0x0a, 0x1b]);
        assert_eq!(binary("0xabc", 16).unwrap(), [0x0a, 0xbc]);
        assert_eq!(binary("0bZm9vYmE=", 16).unwrap(), b"fooba");
        for bad in ["", "0x", "0xzz", "0b!", "12", "0x001122", "\u{e9}\u{e9}"] {
            assert_eq!(binary(bad, 2), None, "{bad}");
        }
        assert_eq!(
            (number("262144"), number("0x10"), number("-1")),
            (Some(262_144), Some(16), None)
        );
    }
}
