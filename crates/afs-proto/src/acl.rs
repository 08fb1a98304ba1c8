//! Access lists in the text form of `FetchACL` and `StoreACL`.
//!
//! ```text
//!   2                      count of positive entries (grant rights)
//!   1                      count of negative entries (revoke rights)
//!   system:anyuser  9      a name, and the bit mask of the rights in decimal digits
//!   system:administrators  127
//!   mallory  127
//! ```
//!
//! Servers write a tab between name and number, `fs setacl` a blank; any white space is accepted.
//! The number is written as signed (the topmost site-defined right is the sign bit) and accepted
//! with or without a sign. OpenAFS sends a terminating zero byte; it is optional.
//!
//! The DFS form, which has additional fields on the first line, is refused.

use crate::Rights;

/// Maximum number of entries of a list (`ACL_MAXENTRIES`, `src/libacl/acl.h`).
pub const ENTRIES_MAX: usize = 20;
/// Longest name, in bytes: one less than `PR_MAXNAMELEN`.
pub const NAME_BYTES_MAX: usize = 63;
/// Longest text, in bytes (`AFSOPAQUEMAX`).
pub const TEXT_BYTES_MAX: usize = 1024;

/// Access list of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessList {
    positive: Vec<Entry>,
    negative: Vec<Entry>,
}

/// Rights granted to, or revoked from, one user or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the user or group.
    pub name: String,
    /// Rights that the entry grants or revokes.
    pub rights: Rights,
}

/// Error in an access list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// Malformed line; lines are counted from 1.
    #[error("line {0} of the access list is malformed")]
    Line(usize),
    /// More entries than a server stores.
    #[error("an access list has at most {ENTRIES_MAX} entries")]
    TooMany,
    /// Name that is empty, too long, or contains white space or a zero byte.
    #[error("a name in an access list has 1 to {NAME_BYTES_MAX} bytes and no white space")]
    Name,
    /// Not UTF-8, or a zero byte before the end.
    #[error("the access list is not text")]
    NotText,
    /// Text longer than a call can carry.
    #[error("the access list's text is longer than {TEXT_BYTES_MAX} bytes")]
    TooLong,
}

impl AccessList {
    /// Creates a list from entries that grant rights and entries that revoke them.
    pub fn new(positive: Vec<Entry>, negative: Vec<Entry>) -> Result<AccessList, AclError> {
        if positive.len() + negative.len() > ENTRIES_MAX {
            return Err(AclError::TooMany);
        }
        let sound = |entry: &Entry| {
            (1..=NAME_BYTES_MAX).contains(&entry.name.len())
                && !entry
                    .name
                    .contains(|c: char| c.is_whitespace() || c == '\0')
        };
        if !positive.iter().chain(&negative).all(sound) {
            return Err(AclError::Name);
        }
        Ok(AccessList { positive, negative })
    }

    /// Returns the entries that grant rights.
    pub fn positive(&self) -> &[Entry] {
        &self.positive
    }

    /// Returns the entries that revoke rights.
    pub fn negative(&self) -> &[Entry] {
        &self.negative
    }

    /// Computes the effective rights of a caller to whom the names accepted by `is` apply.
    pub fn rights_of(&self, is: impl Fn(&str) -> bool) -> Rights {
        let sum = |entries: &[Entry]| {
            let his = entries.iter().filter(|entry| is(&entry.name));
            his.fold(Rights::NONE, |all, entry| all.or(entry.rights))
        };
        sum(&self.positive).without(sum(&self.negative))
    }

    /// Parses the text form.
    pub fn parse(bytes: &[u8]) -> Result<AccessList, AclError> {
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(AclError::TooLong);
        }
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|_| AclError::NotText)?;
        if text.contains('\0') {
            return Err(AclError::NotText);
        }
        let mut lines = Lines {
            rest: text.lines(),
            number: 0,
        };
        let (positive, negative) = (lines.count()?, lines.count()?);
        if positive.saturating_add(negative) > ENTRIES_MAX {
            return Err(AclError::TooMany);
        }
        let mut entries = |count| (0..count).map(|_| lines.entry()).collect::<Result<_, _>>();
        let (positive, negative) = (entries(positive)?, entries(negative)?);
        lines.end()?;
        AccessList::new(positive, negative)
    }

    /// Formats the list as text with a terminating zero byte. Fails if it is too long for a call.
    pub fn to_text(&self) -> Result<Vec<u8>, AclError> {
        use std::fmt::Write;
        let mut text = format!("{}\n{}\n", self.positive.len(), self.negative.len());
        for Entry { name, rights } in self.positive.iter().chain(&self.negative) {
            let _ = writeln!(text, "{name}\t{}", rights.0.cast_signed());
        }
        text.push('\0');
        if text.len() > TEXT_BYTES_MAX {
            return Err(AclError::TooLong);
        }
        Ok(text.into_bytes())
    }
}

struct Lines<'a> {
    rest: std::str::Lines<'a>,
    number: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<&'a str, AclError> {
        self.number += 1;
        self.rest.next().ok_or(AclError::Line(self.number))
    }

    fn count(&mut self) -> Result<usize, AclError> {
        let line = self.next()?;
        line.trim().parse().map_err(|_| AclError::Line(self.number))
    }

    fn entry(&mut self) -> Result<Entry, AclError> {
        let mut words = self.next()?.split_whitespace();
        let bad = AclError::Line(self.number);
        let (name, rights) = words.next().zip(words.next()).ok_or(bad)?;
        let rights = match rights.parse::<i32>() {
            Ok(signed) => signed.cast_unsigned(),
            Err(_) => rights.parse().map_err(|_| bad)?,
        };
        if words.next().is_some() {
            return Err(bad);
        }
        let (name, rights) = (name.into(), Rights(rights));
        Ok(Entry { name, rights })
    }

    /// Fails unless the remaining lines are blank.
    fn end(mut self) -> Result<(), AclError> {
        let number = self.number + 1;
        if self.rest.all(|line| line.trim().is_empty()) {
            Ok(())
        } else {
            Err(AclError::Line(number))
        }
    }
}
