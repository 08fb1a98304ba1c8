//! The settings of the file cache, with the names of HP-UX 11i v3 where that has an equivalent.
//!
//! One table holds the name, unit, default, bounds and rationale of each setting; parsing,
//! printing, checking and documentation are derived from it. The syntax of values is that of
//! filecache_max(5), `70%` of physical memory, a size or `default`, but a size is one of
//! [`block::parse_size`]: `64M`, `64MB` and `64MiB` are the same, while HP-UX tells K = 1000 from
//! KB = 1024. Sizes are rounded down to a page. A value is stored as specified, and converted to
//! bytes when it is resolved against a memory size. A set of changes is applied completely or not
//! at all, so that the order of settings does not matter.
//!
//! This module stores and checks values. It does not know how much memory the machine has, nor
//! whether it is available.

mod table;
#[cfg(test)]
mod tests;

pub use table::{Name, TUNABLES, Tunable, Unit};

use std::fmt;

/// Sizes are multiples of this number of bytes.
pub const PAGE: u64 = 4096;
/// A value as specified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Percent of memory, or of the quantity that the setting's text names.
    Percent(u64),
    /// Bytes, a multiple of a page.
    Bytes(u64),
    /// A number in the setting's own unit.
    Number(u64),
}

impl fmt::Display for Value {
    /// Formats the value as `set` accepts it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Percent(percent) => write!(f, "{percent}%"),
            Value::Bytes(n) => f.write_str(&block::size_text(*n)),
            Value::Number(n) => write!(f, "{n}"),
        }
    }
}

/// Kind of a rejected setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// No setting has this name.
    UnknownName,
    /// The value cannot be parsed.
    Syntax,
    /// The value is out of bounds.
    OutOfBounds,
    /// Two settings contradict one another.
    Conflict,
}

/// A rejected setting: the setting, the reason, and the next step for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Kind of the error, for matching.
    pub kind: ErrorKind,
    what: String,
    why: String,
    next: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.next)
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        what: impl Into<String>,
        why: impl Into<String>,
        next: impl Into<String>,
    ) -> Error {
        Error {
            kind,
            what: what.into(),
            why: why.into(),
            next: next.into(),
        }
    }
}

/// The settings as specified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunables([Value; TUNABLES.len()]);

/// The settings as used by the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Bytes in pages that are kept under memory pressure.
    pub filecache_min: u64,
    /// Limit of bytes in pages; at least `filecache_min`.
    pub filecache_max: u64,
    /// Limit of bytes in mapped pages.
    pub mapped_max: u64,
    /// Bytes of `filecache_max` reserved for metadata.
    pub metadata_max: u64,
    /// Percent of the cache for all sequential accesses.
    pub seqlimit_system: u8,
    /// Percent of the cache for sequential accesses to one file.
    pub seqlimit_file: u8,
    /// Number of a [`FlushBehind`](crate::FlushBehind) policy: 0, 1 or 2.
    pub fb_policy: u8,
    /// Dirty bytes above which background write-back starts.
    pub dirty_background: u64,
    /// Dirty bytes above which writers are throttled; at least `dirty_background`.
    pub dirty_limit: u64,
    /// Maximum age of a dirty page in milliseconds.
    pub sync_interval_ms: u64,
    /// Bytes of the largest read-ahead window.
    pub read_ahead_max: u64,
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables(TUNABLES.map(|tunable| {
            parse(&tunable, tunable.default).expect("the table's defaults are tested")
        }))
    }
}

impl Tunables {
    /// Returns these settings with another value, which may be outside the bounds of the table.
    /// Bytes are rounded down to whole pages.
    pub(crate) fn with_value(mut self, name: Name, value: Value) -> Tunables {
        self.0[name as usize] = match value {
            Value::Bytes(bytes) => Value::Bytes(round(bytes)),
            other => other,
        };
        self
    }

    /// Resolves the settings for known `filecache_min` and `filecache_max` in bytes.
    pub(crate) fn effective(&self, min: u64, max: u64, memory: u64) -> Settings {
        let plain = |name| self.plain(name);
        let of_max = |name| share(max, plain(name));
        let mapped = self.memory(Name::MappedMax, memory);
        Settings {
            filecache_min: min,
            filecache_max: max,
            mapped_max: mapped.unwrap_or(memory),
            metadata_max: of_max(Name::MetadataShare),
            seqlimit_system: plain(Name::SeqlimitSystem) as u8,
            seqlimit_file: plain(Name::SeqlimitFile) as u8,
            fb_policy: plain(Name::FbPolicy) as u8,
            dirty_background: of_max(Name::DirtyBackground),
            dirty_limit: of_max(Name::DirtyLimit),
            sync_interval_ms: plain(Name::SyncIntervalMs),
            read_ahead_max: plain(Name::ReadAheadMax),
        }
    }

    /// Returns the value of a setting, as specified.
    pub fn get(&self, name: Name) -> Value {
        self.0[name as usize]
    }

    /// Iterates over all settings, each with its row of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Tunable, Value)> + '_ {
        TUNABLES.iter().zip(self.0.iter().copied())
    }

    /// Returns these settings with `changes` (name, value) applied, resolved against `memory`
    /// bytes; on an error, nothing is changed.
    pub fn with<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, &'a str)>,
        memory: u64,
    ) -> Result<(Tunables, Settings), Error> {
        let mut changed = self.clone();
        for (name, value) in changes {
            let tunable = find(name)?;
            changed.0[tunable.name as usize] = parse(tunable, value)?;
        }
        let settings = changed.resolve(memory)?;
        Ok((changed, settings))
    }

    /// Resolves the settings for a machine with `memory` bytes. A percentage below the
    /// lower bound is raised to it; a size below it was rejected when it was set.
    pub fn resolve(&self, memory: u64) -> Result<Settings, Error> {
        let max = self.memory(Name::FilecacheMax, memory)?;
        let min = self.memory(Name::FilecacheMin, memory)?;
        if min > max {
            return Err(conflict(
                self.given(Name::FilecacheMin),
                format!(
                    "{} are more than {} ({})",
                    block::size_text(min),
                    self.given(Name::FilecacheMax),
                    block::size_text(max)
                ),
                "lower filecache_min or raise filecache_max, both in one command if need be",
            ));
        }
        let plain = |name| self.plain(name);
        if plain(Name::DirtyBackground) > plain(Name::DirtyLimit) {
            return Err(conflict(
                self.given(Name::DirtyBackground),
                format!(
                    "writers would be throttled first, at {}",
                    self.given(Name::DirtyLimit)
                ),
                "lower dirty_background or raise dirty_limit, both in one command if need be",
            ));
        }
        self.memory(Name::MappedMax, memory)?;
        Ok(self.effective(min, max, memory))
    }

    fn plain(&self, name: Name) -> u64 {
        match self.get(name) {
            Value::Percent(n) | Value::Bytes(n) | Value::Number(n) => n,
        }
    }

    /// Formats the setting as `name=value`.
    fn given(&self, name: Name) -> String {
        format!("{}={}", TUNABLES[name as usize].text, self.get(name))
    }

    /// Computes the bytes of a memory setting.
    fn memory(&self, name: Name, memory: u64) -> Result<u64, Error> {
        let Unit::Memory { least, most } = TUNABLES[name as usize].unit else {
            unreachable!("a setting of memory");
        };
        let bytes = match self.get(name) {
            Value::Percent(percent) => share(memory, percent).max(least),
            Value::Bytes(bytes) | Value::Number(bytes) => bytes,
        };
        let ceiling = share(memory, most);
        if bytes > ceiling {
            return Err(Error {
                kind: ErrorKind::OutOfBounds,
                what: self.given(name),
                why: format!(
                    "{} are more than {most}% of the {} of memory",
                    block::size_text(bytes),
                    block::size_text(memory)
                ),
                next: format!("give at most {} or {most}%", block::size_text(ceiling)),
            });
        }
        Ok(bytes)
    }
}

/// Computes the most bytes that a memory setting can mean on a machine with `memory` bytes.
pub(crate) fn largest(name: Name, memory: u64) -> u64 {
    match TUNABLES[name as usize].unit {
        Unit::Memory { most, .. } => share(memory, most),
        Unit::Bytes { most, .. } | Unit::Percent { most, .. } | Unit::Number { most, .. } => most,
    }
}

/// Computes `percent` percent of `bytes`, in whole pages.
fn share(bytes: u64, percent: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(percent) / 100;
    round(u64::try_from(part).expect("percentages are at most 100"))
}

fn round(bytes: u64) -> u64 {
    bytes / PAGE * PAGE
}

fn conflict(what: String, why: String, next: &str) -> Error {
    Error {
        kind: ErrorKind::Conflict,
        what,
        why,
        next: next.into(),
    }
}

fn find(name: &str) -> Result<&'static Tunable, Error> {
    TUNABLES.iter().find(|t| t.text == name).ok_or_else(|| {
        let names: Vec<&str> = TUNABLES.iter().map(|t| t.text).collect();
        Error {
            kind: ErrorKind::UnknownName,
            what: name.into(),
            why: "unknown cache setting".into(),
            next: format!("choose one of {}", names.join(", ")),
        }
    })
}

/// Parses a value of a setting, and checks the bounds that do not depend on the machine.
fn parse(tunable: &Tunable, text: &str) -> Result<Value, Error> {
    let text = if text == "default" {
        tunable.default
    } else {
        text
    };
    let value = match tunable.unit {
        Unit::Memory { .. } => percent(text)
            .map(Value::Percent)
            .or_else(|| bytes(text).map(Value::Bytes)),
        Unit::Bytes { .. } => bytes(text).map(Value::Bytes),
        Unit::Percent { .. } => percent(text).or_else(|| number(text)).map(Value::Percent),
        Unit::Number { .. } => number(text).map(Value::Number),
    };
    let refused = |kind, why: &str| Error {
        kind,
        what: format!("{}={text}", tunable.text),
        why: why.into(),
        next: format!("expected {}", tunable.unit),
    };
    let value = value.ok_or_else(|| refused(ErrorKind::Syntax, "invalid value"))?;
    if within(tunable.unit, value) {
        Ok(value)
    } else {
        Err(refused(ErrorKind::OutOfBounds, "out of bounds"))
    }
}

fn within(unit: Unit, value: Value) -> bool {
    match (unit, value) {
        (Unit::Memory { most, .. }, Value::Percent(n)) => (1..=most).contains(&n),
        (Unit::Memory { least, .. }, Value::Bytes(n)) => n >= least,
        (
            Unit::Bytes { least, most }
            | Unit::Percent { least, most }
            | Unit::Number { least, most },
            Value::Bytes(n) | Value::Percent(n) | Value::Number(n),
        ) => (least..=most).contains(&n),
        (Unit::Memory { .. }, Value::Number(_)) => false,
    }
}

/// Parses a number that consists only of digits.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn percent(text: &str) -> Option<u64> {
    number(text.strip_suffix('%')?)
}

fn bytes(text: &str) -> Option<u64> {
    block::parse_size(text).ok().map(round)
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SIZES: &str = "a size such as 64M or 1.5G";
        let size = block::size_text;
        match self {
            Unit::Memory { least, most } => {
                write!(
                    f,
                    "1% to {most}% of memory, or {SIZES}, from {}",
                    size(*least)
                )
            }
            Unit::Bytes { least, most } => {
                write!(f, "{SIZES}, from {} to {}", size(*least), size(*most))
            }
            Unit::Percent { least, most } => write!(f, "{least} to {most} percent"),
            Unit::Number { least, most } => write!(f, "a number from {least} to {most}"),
        }
    }
}
