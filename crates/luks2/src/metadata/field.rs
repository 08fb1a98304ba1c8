//! Typed access to the fields of a JSON object, with the path of the object for messages.

use crate::error::{Error, Result, quoted};
use crate::json::{Json, Object};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// An object and its path in the document.
pub(crate) struct Fields<'a> {
    path: String,
    object: &'a Object,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(path: impl Into<String>, object: &'a Object) -> Fields<'a> {
        Fields {
            path: path.into(),
            object,
        }
    }

    pub(crate) fn inner(&self) -> &'a Object {
        self.object
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.object.get(key).is_some()
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::damaged(format!(
            "{}: {} is missing or not {expected}",
            self.path,
            quoted(key)
        ))
    }

    pub(crate) fn object(&self, key: &str) -> Result<Fields<'a>> {
        match self.object.get(key) {
            Some(Json::Object(object)) => {
                let path = match self.path.as_str() {
                    "header" => key.to_owned(),
                    path => format!("{path} {key}"),
                };
                Ok(Fields { path, object })
            }
            _ => Err(self.wrong(key, "an object")),
        }
    }

    /// Reads a string, which must not be empty: `cryptsetup` has required that since 2.4.
    pub(crate) fn str(&self, key: &str) -> Result<&'a str> {
        match self.object.get(key) {
            Some(Json::String(text)) if !text.as_str().is_empty() => Ok(text.as_str()),
            _ => Err(self.wrong(key, "a non-empty string")),
        }
    }

    /// Reads a 32-bit number, stored as a number.
    pub(crate) fn u32(&self, key: &str) -> Result<u32> {
        match self.object.get(key) {
            Some(Json::Number(spelt)) if spelt.bytes().all(|b| b.is_ascii_digit()) => spelt
                .parse()
                .map_err(|_| self.wrong(key, "a 32-bit number")),
            _ => Err(self.wrong(key, "a 32-bit number")),
        }
    }

    /// Reads an integer, stored as a number; `None` if it does not fit 32 bits. For fields of which
    /// `cryptsetup` checks only the type.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<u32>> {
        match self.object.get(key) {
            Some(Json::Number(spelt)) if !spelt.contains(['.', 'e', 'E']) => Ok(spelt.parse().ok()),
            _ => Err(self.wrong(key, "an integer")),
        }
    }

    /// Reads a 64-bit number, stored as a string of digits (LUKS2 specification, 3.1).
    pub(crate) fn u64(&self, key: &str) -> Result<u64> {
        decimal(self.str(key)?).ok_or_else(|| self.wrong(key, "a 64-bit number in a string"))
    }

    pub(crate) fn strings(&self, key: &str) -> Result<Vec<&'a str>> {
        let Some(Json::Array(values)) = self.object.get(key) else {
            return Err(self.wrong(key, "an array"));
        };
        values
            .iter()
            .map(|value| match value {
                Json::String(text) => Ok(text.as_str()),
                _ => Err(self.wrong(key, "an array of strings")),
            })
            .collect()
    }

    /// Reads an array of strings; empty if the field is missing.
    pub(crate) fn optional_strings(&self, key: &str) -> Result<Vec<&'a str>> {
        if self.has(key) {
            self.strings(key)
        } else {
            Ok(Vec::new())
        }
    }

    /// Reads an array of object names.
    pub(crate) fn numbers(&self, key: &str) -> Result<Vec<u32>> {
        self.strings(key)?
            .into_iter()
            .map(|name| {
                let number = decimal(name).and_then(|n| u32::try_from(n).ok());
                // An object has only one valid name, so "00" refers to no object.
                let number = number.filter(|n| n.to_string() == name);
                number.ok_or_else(|| self.wrong(key, "an array of numbers"))
            })
            .collect()
    }

    /// Decodes base64 (RFC 4648, 4, with padding).
    pub(crate) fn bytes(&self, key: &str) -> Result<Vec<u8>> {
        STANDARD
            .decode(self.str(key)?)
            .map_err(|_| self.wrong(key, "base64"))
    }
}

/// Parses a number of digits only: no sign, no space, not empty.
fn decimal(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

pub(crate) fn base64(bytes: &[u8]) -> Json {
    Json::string(STANDARD.encode(bytes))
}
