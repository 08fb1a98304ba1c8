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

/// Describes a mistake in TOML on one line, with the number of the line at fault.
pub(crate) fn toml_mistake(text: &str, error: &toml::de::Error) -> String {
    let lines = error.message().lines().map(str::trim);
    let message = lines.collect::<Vec<_>>().join(", ");
    // A list of all known keys says less than a suggestion.
    let message = match message.split_once(", expected one of ") {
        Some((unknown, _)) if unknown.starts_with("unknown field") => unknown.to_owned(),
        _ => wrong_type(&message).unwrap_or(message),
    };
    match error.span() {
        Some(span) => {
            let before = text.bytes().take(span.start);
            let number = before.filter(|byte| *byte == b'\n').count() + 1;
            format!("line {number}: {message}")
        }
        None => message,
    }
}

/// Rewords the parser's message about a value of the wrong type, if it is one.
fn wrong_type(message: &str) -> Option<String> {
    let types = message.strip_prefix("invalid type: ")?;
    let (found, expected) = types.rsplit_once(", expected ")?;
    let expected = match expected {
        "path string" | "a string" | "a borrowed string" => "text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list in brackets",
        "a map" => "a table",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        other => other.strip_prefix("struct ").map_or(other, |_| "a table"),
    };
    Some(format!("expected {expected}, not {found}"))
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

/// Parses a UUID.
pub(crate) fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_hex = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then_some(())?;
    u128::from_str_radix(&digits, 16)
        .ok()
        .map(u128::to_be_bytes)
}

/// Formats a UUID (RFC 9562, section 4).
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [0..8, 8..12, 12..16, 16..20, 20..32]
        .map(|part| hex[part].to_owned())
        .join("-")
}

/// Formats a time as `2026-01-31 23:59:59Z`.
pub fn utc(seconds: i64) -> String {
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, date) = date_of(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the year, the month and the date of a day, counted from 1 January 1970.
pub(crate) fn date_of(day: i64) -> (i64, u32, u32) {
    // Years begin in March here, so that a leap day is the last one; an era has 400 years.
    let day = day + 719_468;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month as u32, date as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[test]
    fn a_day_has_its_date() {
        for (day, date) in [
            (-1, (1969, 12, 31)),
            (0, (1970, 1, 1)),
            (11_015, (2000, 2, 28)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_453, (2025, 12, 31)),
        ] {
            assert_eq!(date_of(day), date);
        }
    }

    #[test]
    fn a_uuid_is_read_as_it_is_written() {
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb, 0xc, 0xd, 0xe, 0xff];
        let text = uuid_text(&uuid);
        assert_eq!(uuid_bytes(&text), Some(uuid));
        assert_eq!(uuid_bytes(&text.to_uppercase()), Some(uuid));
        for wrong in ["", "x", &text[1..], "+0010203-0405-0607-0809-0a0b0c0d0eff"] {
            assert_eq!(uuid_bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_time_is_shown_as_a_date() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_767_225_599, "2025-12-31 23:59:59Z"),
            (-1, "1969-12-31 23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only the errors matter")]
    struct File {
        size: u32,
        name: Option<String>,
    }

    #[test]
    fn a_mistake_in_toml_is_one_line_with_its_place() {
        for (text, said) in [
            ("size = 1\nsiez = 2\n", "line 2: unknown field `siez`"),
            ("size = 1\n\nname = [\n", "line "),
            (
                "name = 'a'\nsize = 'b'\n",
                "line 2: expected a whole number, not string \"b\"",
            ),
            (
                "size = 1\nname = 2\n",
                "line 2: expected text in quotes, not integer `2`",
            ),
        ] {
            let error = toml::from_str::<File>(text).unwrap_err();
            let mistake = toml_mistake(text, &error);
            assert!(mistake.starts_with(said), "{mistake}");
            assert!(
                !mistake.contains('\n') && !mistake.contains("expected one of"),
                "{mistake}"
            );
        }
    }
}
