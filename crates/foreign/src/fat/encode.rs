//! New names: the long one, and the eight and three characters that go with it.

use super::name::{checksum, short_name};
use crate::error::{Error, Kind, Result};

/// Most UTF-16 units of a long name.
const UNITS_MAX: usize = 255;
/// Units in an entry.
const UNITS: usize = 13;
/// Offsets of the units in an entry.
const PLACES: [usize; UNITS] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
/// Highest number behind a tilde.
const NUMBER_MAX: u32 = 999_999;

/// Name of a file to be created.
pub(super) struct NewName {
    /// The name without the dots at its end, which the format does not store.
    pub text: String,
    units: Vec<u16>,
}

/// Removes the dots at the end of a name, as all users of the format do.
pub(super) fn without_dots(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|b| *b != b'.').map_or(0, |at| at + 1);
    &name[..end]
}

impl NewName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Kind::NameTooLong`]; [`Kind::Invalid`] for characters that the format does not have.
    pub fn of(name: &[u8]) -> Result<NewName> {
        let name = without_dots(name);
        if name.is_empty() {
            return Err(Kind::NotFound.into());
        }
        let invalid = || Error::new(Kind::Invalid, "FAT does not store this name");
        let text = std::str::from_utf8(name).map_err(|_| invalid())?;
        let bad = |c: char| c < ' ' || "*?<>|\":/\\".contains(c);
        if text.contains(bad) || text.ends_with(' ') {
            return Err(invalid());
        }
        let units: Vec<u16> = text.encode_utf16().collect();
        if units.len() > UNITS_MAX {
            return Err(Kind::NameTooLong.into());
        }
        Ok(NewName {
            text: text.to_owned(),
            units,
        })
    }

    /// Returns the short name, if it is all that the name needs.
    fn exact(&self) -> Option<[u8; 11]> {
        let (base, extension) = match self.text.split_once('.') {
            Some((base, extension)) => (base, extension),
            None => (&*self.text, ""),
        };
        let fits = |part: &str, most: usize| {
            part.len() <= most && part.bytes().all(|b| is_short(b) && !b.is_ascii_lowercase())
        };
        let dot = self.text.contains('.');
        if base.is_empty() || (dot && extension.is_empty()) {
            return None;
        }
        (fits(base, 8) && fits(extension, 3)).then(|| join(base.as_bytes(), extension.as_bytes()))
    }

    /// Returns a short name that `is_used` does not report, and the number of entries that the name
    /// needs.
    ///
    /// # Errors
    /// [`Kind::Exists`] if all short names are in use.
    pub fn short(&self, is_used: impl Fn(&[u8; 11]) -> bool) -> Result<([u8; 11], usize)> {
        if let Some(exact) = self.exact() {
            return Ok((exact, 1));
        }
        let entries = 1 + self.units.len().div_ceil(UNITS);
        let trimmed = self.text.trim_start_matches(['.', ' ']);
        let (base, extension) = match trimmed.rsplit_once('.') {
            Some((base, extension)) => (base, extension),
            None => (trimmed, ""),
        };
        let squeeze = |part: &str, most: usize| -> Vec<u8> {
            let kept = part.chars().filter(|c| !" .".contains(*c));
            let kept = kept.map(|c| match u8::try_from(c) {
                Ok(b) if is_short(b) => b.to_ascii_uppercase(),
                _ => b'_',
            });
            kept.take(most).collect()
        };
        let (mut base, extension) = (squeeze(base, 8), squeeze(extension, 3));
        if base.is_empty() {
            base.push(b'_');
        }
        for number in 1..=NUMBER_MAX {
            let tail = format!("~{number}");
            let mut numbered = base[..base.len().min(8 - tail.len())].to_vec();
            numbered.extend(tail.bytes());
            let short = join(&numbered, &extension);
            if !is_used(&short) {
                return Ok((short, entries));
            }
        }
        Err(Kind::Exists.into())
    }

    /// Returns the entries of the long name in their order on the device.
    pub fn long_entries(&self, short: &[u8; 11]) -> Vec<[u8; 32]> {
        if self.exact().is_some() {
            return Vec::new();
        }
        let sum = checksum(short);
        let count = self.units.len().div_ceil(UNITS);
        let entry = |index: usize| {
            let mut raw = [0xff; 32];
            let last = if index + 1 == count { 0x40 } else { 0 };
            raw[0] = (index + 1) as u8 | last;
            (raw[11], raw[12], raw[13]) = (super::LONG_NAME, 0, sum);
            raw[26..28].fill(0);
            let units = &self.units[index * UNITS..];
            for (n, place) in PLACES.into_iter().enumerate() {
                let unit = match n.cmp(&units.len()) {
                    std::cmp::Ordering::Less => units[n],
                    std::cmp::Ordering::Equal => 0,
                    std::cmp::Ordering::Greater => 0xffff,
                };
                raw[place..place + 2].copy_from_slice(&unit.to_le_bytes());
            }
            raw
        };
        (0..count).rev().map(entry).collect()
    }
}

/// Reports whether a short name may have this character, in either case.
fn is_short(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'()-@^_`{}~".contains(&b)
}

fn join(base: &[u8], extension: &[u8]) -> [u8; 11] {
    let mut short = [b' '; 11];
    short[..base.len()].copy_from_slice(base);
    short[8..8 + extension.len()].copy_from_slice(extension);
    short
}

/// Reports whether two names are the same one to the format, which ignores case.
pub(super) fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.is_ascii() && other.is_ascii() {
        return one.eq_ignore_ascii_case(other);
    }
    let lower = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
    lower(one) == lower(other)
}

/// Returns the text of an entry's short name in upper case.
pub(super) fn upper_short(raw: &[u8; 32]) -> Vec<u8> {
    let mut raw = *raw;
    raw[12] = 0;
    short_name(&raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short_of(name: &str, used: &[&[u8; 11]]) -> (String, usize) {
        let name = NewName::of(name.as_bytes()).expect("a name");
        let (short, count) = name.short(|s| used.contains(&s)).expect("a short name");
        (String::from_utf8_lossy(&short).into_owned(), count)
    }

    #[test]
    fn names_in_upper_case_need_one_entry_and_others_a_long_name() {
        assert_eq!(short_of("README.TXT", &[]), ("README  TXT".into(), 1));
        assert_eq!(short_of("readme.txt", &[]), ("README~1TXT".into(), 2));
        assert_eq!(
            short_of("A long name.tar.gz", &[b"ALONGN~1GZ "]),
            ("ALONGN~2GZ ".into(), 3)
        );
        assert_eq!(short_of("äöü", &[]), ("___~1      ".into(), 2));
        assert_eq!(short_of(".profile", &[]), ("PROFIL~1   ".into(), 2));
        assert_eq!(short_of("A.", &[]), ("A          ".into(), 1));
    }

    #[test]
    fn names_that_the_format_does_not_store_are_refused() {
        let kind = |name: &[u8]| NewName::of(name).err().map(|e| e.kind());
        assert_eq!(kind(b"a:b"), Some(Kind::Invalid));
        assert_eq!(kind(b"a "), Some(Kind::Invalid));
        assert_eq!(kind(b"\xff"), Some(Kind::Invalid));
        assert_eq!(kind(b"..."), Some(Kind::NotFound));
        assert_eq!(kind("ä".repeat(255).as_bytes()), None);
        assert_eq!(kind("n".repeat(256).as_bytes()), Some(Kind::NameTooLong));
    }
}
