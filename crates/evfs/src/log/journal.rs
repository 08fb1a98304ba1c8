//! The journal of systemd, by its native protocol: a datagram with the fields of an entry.
//!
//! A field is `NAME=VALUE` and a line feed, or, if the value has line feeds, `NAME`, a line feed,
//! the length of the value in 64 bits, the value, and a line feed
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).

use super::entry::Entry;
use super::{datagrams, severity};
use serde_json::Value;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Longest value, in bytes. An entry that fits into a datagram needs no file in memory.
const VALUE_BYTES_MAX: usize = 16 << 10;
/// Most fields of an event that are sent.
const FIELDS_MAX: usize = 8;
/// Longest name of a field, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A connection to the journal.
pub struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// Prepares to send to the socket `path`; returns `None` if it does not exist.
    pub fn open(path: &Path) -> Option<Journal> {
        use std::os::unix::fs::FileTypeExt;
        let is_socket = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_socket());
        Some(Journal {
            socket: is_socket.then(datagrams).flatten()?,
            path: path.to_owned(),
        })
    }

    /// Sends an entry.
    ///
    /// # Errors
    /// The journal is full, or has ended.
    pub fn send(&self, entry: &Entry) -> io::Result<()> {
        // Connects by path each time, as the journal may restart.
        self.socket.send_to(&encode(entry), &self.path).map(drop)
    }
}

/// Encodes an entry.
fn encode(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    let priority = severity(entry.level()).to_string();
    let facility = (libc::LOG_DAEMON >> 3).to_string();
    add(&mut out, "MESSAGE", &entry.summary());
    add(&mut out, "PRIORITY", &priority);
    add(&mut out, "SYSLOG_FACILITY", &facility);
    add(&mut out, "SYSLOG_IDENTIFIER", "evfs");
    add(&mut out, "EVFS_MODULE", entry.target());
    if let Some(code) = entry.code() {
        add(&mut out, "EVFS_EVENT", code);
    }
    if let Some((file, line)) = entry.source() {
        add(&mut out, "CODE_FILE", file);
        add(&mut out, "CODE_LINE", &line.to_string());
    }
    for (name, value) in entry.fields().iter().take(FIELDS_MAX) {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        add(&mut out, &field_name(name), &value);
    }
    out
}

fn add(out: &mut Vec<u8>, name: &str, value: &str) {
    let value = shortened(value).as_bytes();
    out.extend(name.as_bytes());
    if value.contains(&b'\n') {
        out.push(b'\n');
        out.extend((value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend(value);
    out.push(b'\n');
}

/// Cuts a value that is too long.
fn shortened(value: &str) -> &str {
    let mut end = value.len().min(VALUE_BYTES_MAX);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value.get(..end).unwrap_or_default()
}

/// Forms the name of a field in the journal, which consists of upper-case letters, digits and
/// underscores.
fn field_name(name: &str) -> String {
    let upper = name.chars().map(|c| match c.to_ascii_uppercase() {
        c if c.is_ascii_alphanumeric() => c,
        _ => '_',
    });
    let mut field: String = "EVFS_".chars().chain(upper).collect();
    field.truncate(NAME_BYTES_MAX);
    field
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::entry;
    use super::*;

    #[test]
    fn an_entry_has_its_code_and_its_fields() {
        let entry = entry(|| {
            let why = "one\ntwo";
            tracing::warn!(name: "EVFS-0405", path = "nbd://a/x", why, "the connection is lost");
        });
        let encoded = encode(&entry);
        let text = String::from_utf8_lossy(&encoded);
        for field in [
            "MESSAGE=EVFS-0405 the connection is lost path=\"nbd://a/x\" why=\"one\\ntwo\"\n",
            "PRIORITY=4\n",
            "SYSLOG_FACILITY=3\n",
            "SYSLOG_IDENTIFIER=evfs\n",
            "EVFS_EVENT=EVFS-0405\n",
            "EVFS_PATH=nbd://a/x\n",
        ] {
            assert!(text.contains(field), "{field} in {text}");
        }
        let binary = b"EVFS_WHY\n\x07\0\0\0\0\0\0\0one\ntwo\n";
        assert!(encoded.windows(binary.len()).any(|part| part == binary));
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let long = "é".repeat(VALUE_BYTES_MAX);
        assert_eq!(shortened(&long).len(), VALUE_BYTES_MAX);
        let odd = format!("x{long}");
        assert_eq!(shortened(&odd).len(), VALUE_BYTES_MAX - 1);
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn names_of_fields_have_the_characters_that_the_journal_accepts() {
        assert_eq!(field_name("volume"), "EVFS_VOLUME");
        assert_eq!(field_name("log.file-1"), "EVFS_LOG_FILE_1");
        assert_eq!(field_name(&"x".repeat(100)).len(), NAME_BYTES_MAX);
    }
}
