//! Text forms of values, for arguments, messages and JSON.

use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;

/// Suggests the most similar of `known` (`; did you mean ...?`), or nothing if none is similar.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known
        .map(|k| (strsim::damerau_levenshtein(word, k), k))
        .min();
    match near {
        Some((distance, k)) if distance <= 3 => format!("; did you mean `{k}`?"),
        _ => String::new(),
    }
}

/// Serializes a path as a JSON string; bytes that are not UTF-8 are replaced.
pub(crate) fn path_as_text<S: serde::Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let text = path.as_ref().map(|path| path.display().to_string());
    text.serialize(serializer)
}

/// Converts an answer to JSON.
pub(crate) fn json_of<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("names and numbers become JSON")
}

/// Formats a UUID (RFC 9562, section 4).
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [0..8, 8..12, 12..16, 16..20, 20..32]
        .map(|part| hex[part].to_owned())
        .join("-")
}

/// Parses a size: a number with an optional binary unit (`K`, `M`, `G`, `T`, also `KiB`, ...).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size such as 10G"))?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => {
            return Err(format!(
                "unknown unit `{unit}`; use K, M, G or T (powers of 1024)"
            ));
        }
    };
    number
        .checked_mul(1 << shift)
        .filter(|&n| n <= i64::MAX as u64)
        .ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_with_a_binary_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64k", 65536),
            ("10G", 10 << 30),
            ("3MiB", 3 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for bad in ["", "G", "1.5G", "-1", "1P", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
