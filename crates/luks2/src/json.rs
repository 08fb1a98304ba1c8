//! The JSON of a LUKS2 header, with its spelling preserved.
//!
//! Why a separate parser: every program that changes a keyslot rewrites the header, and fields that
//! the writer does not know must be preserved exactly. So the order of keys, the spelling of
//! numbers and the escapes of strings are kept; only white space between values is dropped. The
//! text is also untrusted: excessive depth or number of values, and duplicate keys (of which
//! `json-c` silently takes the last) are refused while parsing.
//!
//! **Invariant:** [`parse`] of `Json::encode` returns an equal value.
//!
//! Out of scope: numbers as machine types (the reader of a field chooses one), white space, and any
//! extension of RFC 8259.

use crate::error::{Error, Result, quoted};
use std::collections::HashSet;

/// Deepest nesting, as in `json-c` (`JSON_TOKENER_DEFAULT_DEPTH`). Real headers need 6.
const DEPTH_MAX: usize = 32;

/// Maximum number of values in one header. A token with 1,024 envelopes has under 10,000; a value
/// takes about 64 bytes of memory, so a hostile 4 MiB header takes at most 16 MiB.
const VALUES_MAX: usize = 1 << 18;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    /// The number with its original spelling.
    Number(String),
    String(Text),
    Array(Vec<Json>),
    Object(Object),
}

/// A JSON string: its value, and its spelling if that differs from the one this writer uses.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    value: String,
    raw: Option<Box<str>>,
}

/// A JSON object, with members in their original order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Object {
    members: Vec<(Text, Json)>,
}

impl Json {
    pub(crate) fn string(value: impl Into<String>) -> Json {
        Json::String(Text::new(value))
    }

    /// Creates a 32-bit number; 64-bit ones are strings in LUKS2, see [`Json::u64`].
    pub(crate) fn u32(value: u32) -> Json {
        Json::Number(value.to_string())
    }

    /// Creates a 64-bit number, stored as a decimal string (LUKS2 specification, 3.1).
    pub(crate) fn u64(value: u64) -> Json {
        Json::string(value.to_string())
    }

    /// Creates an array of object names, such as the `keyslots` of a digest.
    pub(crate) fn names(names: &[u32]) -> Json {
        Json::Array(names.iter().map(|n| Json::string(n.to_string())).collect())
    }

    #[cfg(test)]
    pub(crate) fn encode(&self) -> String {
        let mut out = String::new();
        self.encode_into(&mut out);
        out
    }

    /// Appends the compact text, as `json-c` writes it with `PLAIN | NOSLASHESCAPE`.
    fn encode_into(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(true) => out.push_str("true"),
            Json::Bool(false) => out.push_str("false"),
            Json::Number(spelt) => out.push_str(spelt),
            Json::String(text) => text.encode_into(out),
            Json::Array(values) => {
                out.push('[');
                for (i, value) in values.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    value.encode_into(out);
                }
                out.push(']');
            }
            Json::Object(object) => object.encode_into(out),
        }
    }

    /// Appends the text with sorted keys and one spelling per string: the same for equal values.
    pub(crate) fn canonical_into(&self, out: &mut String) {
        match self {
            Json::String(text) => escape_into(&text.value, out),
            Json::Array(values) => {
                out.push('[');
                for (i, value) in values.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    value.canonical_into(out);
                }
                out.push(']');
            }
            Json::Object(object) => {
                let mut members: Vec<_> = object.members.iter().collect();
                members.sort_by(|(a, _), (b, _)| a.value.cmp(&b.value));
                out.push('{');
                for (i, (key, value)) in members.into_iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    escape_into(&key.value, out);
                    out.push(':');
                    value.canonical_into(out);
                }
                out.push('}');
            }
            other => other.encode_into(out),
        }
    }
}

impl Text {
    pub(crate) fn new(value: impl Into<String>) -> Text {
        Text {
            value: value.into(),
            raw: None,
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.value
    }

    fn encode_into(&self, out: &mut String) {
        match &self.raw {
            Some(raw) => {
                out.push('"');
                out.push_str(raw);
                out.push('"');
            }
            None => escape_into(&self.value, out),
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.value == other.value
    }
}

fn escape_into(value: &str, out: &mut String) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

impl Object {
    pub(crate) fn new() -> Object {
        Object::default()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        self.members
            .iter()
            .find(|(k, _)| k.value == key)
            .map(|(_, v)| v)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Json> {
        self.members
            .iter_mut()
            .find(|(k, _)| k.value == key)
            .map(|(_, v)| v)
    }

    /// Looks up the value under `key` if it is an object.
    pub(crate) fn object_mut(&mut self, key: &str) -> Option<&mut Object> {
        match self.get_mut(key) {
            Some(Json::Object(object)) => Some(object),
            _ => None,
        }
    }

    /// Replaces the value in place, or appends it.
    pub(crate) fn set(&mut self, key: &str, value: Json) {
        match self.get_mut(key) {
            Some(place) => *place = value,
            None => self.members.push((Text::new(key), value)),
        }
    }

    pub(crate) fn with(mut self, key: &str, value: Json) -> Object {
        self.set(key, value);
        self
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Json> {
        let at = self.members.iter().position(|(k, _)| k.value == key)?;
        Some(self.members.remove(at).1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.members.iter().map(|(k, v)| (k.value.as_str(), v))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Json> {
        self.members.iter_mut().map(|(_, v)| v)
    }

    pub(crate) fn encode(&self) -> String {
        let mut out = String::new();
        self.encode_into(&mut out);
        out
    }

    fn encode_into(&self, out: &mut String) {
        out.push('{');
        for (i, (key, value)) in self.members.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            key.encode_into(out);
            out.push(':');
            value.encode_into(out);
        }
        out.push('}');
    }
}

/// Parses the value that `text` starts with; returns it and the length of its text.
///
/// # Errors
/// [`crate::ErrorKind::Damaged`] if the text is not JSON; [`crate::ErrorKind::Refused`] for JSON
/// beyond the limits, with a duplicate key or with U+0000 (which ends a string for users of
/// `json-c`, so that they would read a different value).
pub(crate) fn parse(text: &str) -> Result<(Json, usize)> {
    let mut parser = Parser {
        text,
        at: 0,
        values: 0,
    };
    let value = parser.value(0)?;
    Ok((value, parser.at))
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    values: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn bad(&self, expected: &str) -> Error {
        Error::damaged(format!("JSON: {expected} expected at byte {}", self.at))
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, what: &str) -> Result<()> {
        if self.peek() != Some(byte) {
            return Err(self.bad(what));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Json> {
        if depth > DEPTH_MAX {
            return Err(Error::refused(format!(
                "JSON: nested deeper than {DEPTH_MAX}"
            )));
        }
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(Error::refused(format!(
                "JSON: more than {VALUES_MAX} values"
            )));
        }
        match self.peek() {
            Some(b'{') => self.object(depth).map(Json::Object),
            Some(b'[') => self.array(depth).map(Json::Array),
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number().map(Json::Number),
            _ => self.literal(),
        }
    }

    fn literal(&mut self) -> Result<Json> {
        for (word, value) in [
            ("true", Json::Bool(true)),
            ("false", Json::Bool(false)),
            ("null", Json::Null),
        ] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.bad("a value"))
    }

    fn object(&mut self, depth: usize) -> Result<Object> {
        self.expect(b'{', "'{'")?;
        let mut members: Vec<(Text, Json)> = Vec::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Object { members });
        }
        loop {
            self.skip_space();
            let key = self.string()?;
            self.skip_space();
            self.expect(b':', "':'")?;
            self.skip_space();
            members.push((key, self.value(depth + 1)?));
            self.skip_space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.expect(b'}', "',' or '}'")?;
            break;
        }
        let mut seen = HashSet::with_capacity(members.len());
        match members.iter().find(|(key, _)| !seen.insert(key.as_str())) {
            Some((twice, _)) => Err(Error::refused(format!(
                "JSON: duplicate key {}",
                quoted(&twice.value)
            ))),
            None => Ok(Object { members }),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Vec<Json>> {
        self.expect(b'[', "'['")?;
        let mut values = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(values);
        }
        loop {
            self.skip_space();
            values.push(self.value(depth + 1)?);
            self.skip_space();
            if self.peek() == Some(b',') {
                self.at += 1;
                continue;
            }
            self.expect(b']', "',' or ']'")?;
            return Ok(values);
        }
    }

    fn number(&mut self) -> Result<String> {
        let from = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1, // RFC 8259, 6: no leading zeros
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(self.text.get(from..self.at).unwrap_or_default().to_owned())
    }

    fn digits(&mut self) -> Result<()> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.bad("a digit"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<Text> {
        self.expect(b'"', "a string")?;
        let from = self.at;
        let mut value = String::new();
        loop {
            let plain = self.rest();
            let stop = plain
                .find(|c| c == '"' || c == '\\' || c < ' ')
                .unwrap_or(plain.len());
            value.push_str(plain.get(..stop).unwrap_or_default());
            self.at += stop;
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => value.push(self.escape()?),
                _ => return Err(self.bad("the end of a string")),
            }
        }
        let raw = self.text.get(from..self.at).unwrap_or_default();
        self.at += 1;
        let mut ours = String::with_capacity(raw.len() + 2);
        escape_into(&value, &mut ours);
        let same = ours.get(1..ours.len() - 1) == Some(raw);
        Ok(Text {
            value,
            raw: (!same).then(|| raw.into()),
        })
    }

    fn escape(&mut self) -> Result<char> {
        self.expect(b'\\', "an escape")?;
        let c = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.bad("an escape")),
        };
        self.at += 1;
        Ok(c)
    }

    fn unicode_escape(&mut self) -> Result<char> {
        let first = self.hex4()?;
        let code = match first {
            0 => return Err(Error::refused("JSON: U+0000 in a string")),
            0xd800..=0xdbff => {
                self.expect(b'\\', "the second half of a surrogate pair")?;
                self.expect(b'u', "the second half of a surrogate pair")?;
                let second = self.hex4()?;
                let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400);
                let low = low.ok_or_else(|| self.bad("the second half of a surrogate pair"))?;
                0x1_0000 + ((first - 0xd800) << 10) + low
            }
            other => other,
        };
        char::from_u32(code).ok_or_else(|| self.bad("a whole surrogate pair"))
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self
            .rest()
            .get(..4)
            .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
        let code = code.ok_or_else(|| self.bad("four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn kind(text: &str) -> ErrorKind {
        parse(text).expect_err(text).kind()
    }

    #[test]
    fn gives_back_order_numbers_and_escapes_as_they_stood() {
        for text in [
            r#"{"z":1,"a":[1.50,-0,2E+3,12345678901234567890],"m":{}}"#,
            r#"{"a":"\/\u00e9\ud83d\ude00é😀\n\u001f"}"#,
            r#"[null,true,false,[],{"":""}]"#,
        ] {
            let (value, len) = parse(text).expect("valid");
            assert_eq!((value.encode().as_str(), len), (text, text.len()));
        }
    }

    #[test]
    fn white_space_goes_and_the_length_stops_at_the_value() {
        let (value, len) = parse("{ \"a\" :\n[ 1 ,\t2 ] }\0\0").expect("valid");
        assert_eq!((value.encode().as_str(), len), (r#"{"a":[1,2]}"#, 19));
    }

    #[test]
    fn escapes_are_read() {
        let (value, _) = parse(r#""\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t""#).expect("valid");
        assert_eq!(value, Json::string("é😀\"\\/\u{8}\u{c}\n\r\t"));
    }

    #[test]
    fn rejects_what_is_no_json() {
        for text in [
            "",
            "{",
            "}",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{'a':1}",
            "[01]",
            "-",
            "1.",
            "1e",
            "+1",
            ".5",
            "nul",
            "NaN",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\udc00\"",
            "\"open",
            "{\"a\":1,}",
            "[1 2]",
            "/**/1",
        ] {
            assert_eq!(kind(text), ErrorKind::Damaged, "{text}");
        }
    }

    #[test]
    fn refuses_duplicate_keys_however_they_are_spelt() {
        assert_eq!(kind(r#"{"a":1,"b":2,"a":3}"#), ErrorKind::Refused);
        assert_eq!(kind(r#"{"a":1,"\u0061":3}"#), ErrorKind::Refused);
    }

    #[test]
    fn refuses_nul_depth_and_number_of_values() {
        assert_eq!(kind(r#""a\u0000b""#), ErrorKind::Refused);
        assert_eq!(kind(&"[".repeat(40_000)), ErrorKind::Refused);
        assert_eq!(
            kind(&format!("[{}0]", "0,".repeat(VALUES_MAX))),
            ErrorKind::Refused
        );
        let deep = format!("{}{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        assert!(parse(&deep).is_ok());
    }

    #[test]
    fn canonical_text_ignores_order_and_spelling() {
        let text = |s: &str| {
            let mut out = String::new();
            parse(s).expect("valid").0.canonical_into(&mut out);
            out
        };
        assert_eq!(
            text(r#"{"b":[1, 2],"a":"\u0041"}"#),
            text(r#"{"a":"A","b":[1,2]}"#)
        );
    }
}
