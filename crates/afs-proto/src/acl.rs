//! Access lists as text: what `FetchACL` gives and `StoreACL` takes.
//!
//! ```text
//!   2                      entries that give rights
//!   1                      entries that take rights away
//!   system:anyuser  9      a name, and the sum of the rights in decimal digits
//!   system:administrators  127
//!   mallory  127
//! ```
//!
//! Servers write a tab between name and number, `fs setacl` a blank; any white space is read. The
//! number is written with its sign (the last right of a site is the sign's bit) and read with or
//! without. OpenAFS sends the zero byte at the end; it may be there.
//!
//! The form of DFS, which has more on the first line, is refused.

use crate::Rights;

/// Entries of a list at most (`ACL_MAXENTRIES`, `src/libacl/acl.h`).
pub const ENTRIES_MAX: usize = 20;
/// Bytes of a name at most: one less than `PR_MAXNAMELEN`.
pub const NAME_BYTES_MAX: usize = 63;
/// Bytes of the text at most (`AFSOPAQUEMAX`).
pub const TEXT_BYTES_MAX: usize = 1024;

/// An access list of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessList {
    positive: Vec<Entry>,
    negative: Vec<Entry>,
}

/// What one user or group may do, or may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// User or group.
    pub name: String,
    /// Its rights.
    pub rights: Rights,
}

/// Why something is not an access list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// The lines are not as they should be.
    #[error("line {0} of the access list makes no sense")]
    Line(usize),
    /// More entries than a server keeps.
    #[error("an access list has at most {ENTRIES_MAX} entries")]
    TooMany,
    /// A name that is empty, too long, or could not be told from what follows it.
    #[error("a name in an access list has 1 to {NAME_BYTES_MAX} bytes and no white space")]
    Name,
    /// Not UTF-8, or a zero byte that is not at the end.
    #[error("the access list is not text")]
    NotText,
    /// The text is longer than a call can carry.
    #[error("the access list's text is longer than {TEXT_BYTES_MAX} bytes")]
    TooLong,
}

impl AccessList {
    /// A list of entries that give rights, and entries that take them away again.
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

    /// Entries that give rights.
    pub fn positive(&self) -> &[Entry] {
        &self.positive
    }

    /// Entries that take rights away.
    pub fn negative(&self) -> &[Entry] {
        &self.negative
    }

    /// What somebody may do who is all that `is` says yes to.
    pub fn rights_of(&self, is: impl Fn(&str) -> bool) -> Rights {
        let sum = |entries: &[Entry]| {
            let his = entries.iter().filter(|entry| is(&entry.name));
            his.fold(Rights::NONE, |all, entry| all.or(entry.rights))
        };
        sum(&self.positive).without(sum(&self.negative))
    }

    /// Reads the text.
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

    /// Writes the text, with a zero byte at its end. Fails if it is too long for a call.
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

    /// Nothing but white space is left.
    fn end(mut self) -> Result<(), AclError> {
        let number = self.number + 1;
        match self.rest.all(|line| line.trim().is_empty()) {
            true => Ok(()),
            false => Err(AclError::Line(number)),
        }
    }
}
