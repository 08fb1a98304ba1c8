//! Per-file attributes that override the settings of the cache.

use crate::tunables::{Error, ErrorKind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Attributes of one file, common to all of its open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Age in milliseconds at which a dirty page is written back; `None`: the cache's setting.
    pub sync_ms: Option<u32>,
    /// Load whole clusters of 64 KiB in the background where a read misses.
    pub large_page: bool,
    /// NUMA node whose memory the pages should be placed in.
    pub numa_node: Option<u32>,
    /// Do not read ahead.
    pub no_read_ahead: bool,
    /// Drop pages once they have been used: behind the reader, and after write-behind.
    pub no_cache: bool,
    /// When written pages are sent to the pager; `None`: the cache's setting.
    pub flush_behind: Option<FlushBehind>,
}

/// When the pages of a sequential write are sent to the pager; the values of `fcache_fb_policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlushBehind {
    /// When they are due by age, or there are too many.
    #[default]
    None = 0,
    /// Soon, by the background thread.
    Background = 1,
    /// At once, by the writer.
    Inline = 2,
}

impl FlushBehind {
    /// Converts a number to its policy; [`FlushBehind::None`] for an unknown one.
    pub(crate) fn of(number: u8) -> FlushBehind {
        match number {
            1 => FlushBehind::Background,
            2 => FlushBehind::Inline,
            _ => FlushBehind::None,
        }
    }
}

/// The attributes that [`Attributes::with`] accepts: name, values, effect.
pub const ATTRIBUTES: [(&str, &str, &str); 6] = [
    (
        "sync_interval",
        "MS|default",
        "age at which a dirty page is written back",
    ),
    ("large_page", "yes|no", "load whole clusters of 64 KiB"),
    (
        "numa_node",
        "N|none",
        "NUMA node on which the pages are allocated",
    ),
    ("read_ahead", "yes|no", "read ahead of sequential readers"),
    ("no_cache", "yes|no", "drop pages once they have been used"),
    (
        "flush_behind",
        "0|1|2|default",
        "write back sequential writes: 0 when due by age, 1 in the background, 2 at once",
    ),
];

impl Attributes {
    /// Returns these attributes with `changes` (name, value) applied: all of them, or an error.
    ///
    /// # Errors
    /// No attribute has the name, or the value is not valid for it.
    pub fn with<'a>(
        mut self,
        changes: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Attributes, Error> {
        for (name, value) in changes {
            let known = ATTRIBUTES.iter().find(|(key, ..)| *key == name);
            let Some((_, give, _)) = known else {
                let names: Vec<&str> = ATTRIBUTES.iter().map(|(key, ..)| *key).collect();
                let next = format!("choose one of {}", names.join(", "));
                let why = "unknown file attribute";
                return Err(Error::new(ErrorKind::UnknownName, name, why, next));
            };
            self.change(name, value).ok_or_else(|| {
                let what = format!("{name}={value}");
                let why = "invalid value";
                Error::new(ErrorKind::Syntax, what, why, format!("expected {give}"))
            })?;
        }
        Ok(self)
    }

    /// Formats each attribute's value in the syntax of [`Attributes::with`], with its name.
    pub fn values(&self) -> [(&'static str, String); ATTRIBUTES.len()] {
        let yes = |flag| String::from(if flag { "yes" } else { "no" });
        let or = |number: Option<u32>, word: &str| number.map_or(word.into(), |n| n.to_string());
        let values = [
            or(self.sync_ms, "default"),
            yes(self.large_page),
            or(self.numa_node, "none"),
            yes(!self.no_read_ahead),
            yes(self.no_cache),
            or(self.flush_behind.map(|f| f as u32), "default"),
        ];
        let mut names = ATTRIBUTES.iter().map(|(name, ..)| *name);
        values.map(|value| (names.next().expect("each value has a name"), value))
    }

    fn change(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "sync_interval" => self.sync_ms = number_or(value, "default")?,
            "large_page" => self.large_page = flag(value)?,
            "numa_node" => self.numa_node = number_or(value, "none")?,
            "read_ahead" => self.no_read_ahead = !flag(value)?,
            "no_cache" => self.no_cache = flag(value)?,
            _ => {
                let number: Option<u32> = number_or(value, "default")?;
                let policy = |n| (n <= 2).then(|| FlushBehind::of(n as u8));
                self.flush_behind = match number {
                    None => None,
                    Some(n) => Some(policy(n)?),
                };
            }
        }
        Some(())
    }
}

/// The attributes of a file that is in use. Those that every access needs are read without a lock.
#[derive(Default)]
pub(crate) struct SharedAttributes {
    all: Mutex<Attributes>,
    /// The bits [`NO_READ_AHEAD`] to [`LARGE_PAGE`].
    quick: AtomicU8,
}

const NO_READ_AHEAD: u8 = 1;
const NO_CACHE: u8 = 2;
/// The file has its own flush-behind policy, in the two bits above.
const FLUSH_BEHIND: u8 = 4;
const FLUSH_BEHIND_SHIFT: u32 = 3;
const LARGE_PAGE: u8 = 32;

impl SharedAttributes {
    pub(crate) fn get(&self) -> Attributes {
        *self.all.lock().expect("no panic under this lock")
    }

    pub(crate) fn set(&self, attributes: Attributes) {
        let mut all = self.all.lock().expect("no panic under this lock");
        *all = attributes;
        let mut quick = 0;
        if attributes.no_read_ahead {
            quick |= NO_READ_AHEAD;
        }
        if attributes.no_cache {
            quick |= NO_CACHE;
        }
        if attributes.large_page {
            quick |= LARGE_PAGE;
        }
        if let Some(policy) = attributes.flush_behind {
            quick |= FLUSH_BEHIND | (policy as u8) << FLUSH_BEHIND_SHIFT;
        }
        self.quick.store(quick, Relaxed);
    }

    /// Checks whether pages may be read ahead.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.quick.load(Relaxed) & NO_READ_AHEAD == 0
    }

    /// Checks whether pages are loaded in whole clusters.
    pub(crate) fn has_large_pages(&self) -> bool {
        self.quick.load(Relaxed) & LARGE_PAGE != 0
    }

    /// Checks whether pages are dropped after use.
    #[inline]
    pub(crate) fn drops_behind(&self) -> bool {
        self.quick.load(Relaxed) & NO_CACHE != 0
    }

    /// Returns the file's own flush-behind policy, if it has one.
    pub(crate) fn flush_behind(&self) -> Option<FlushBehind> {
        let quick = self.quick.load(Relaxed);
        let own = quick & FLUSH_BEHIND != 0;
        own.then(|| FlushBehind::of(quick >> FLUSH_BEHIND_SHIFT & 3))
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "no" => Some(false),
        "yes" => Some(true),
        _ => None,
    }
}

/// Parses a number, or returns `Some(None)` for the word that stands for no number.
fn number_or(value: &str, word: &str) -> Option<Option<u32>> {
    if value == word {
        return Some(None);
    }
    value.parse().ok().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_set_and_what_is_wrong_is_refused() {
        let set = [
            ("sync_interval", "50"),
            ("no_cache", "yes"),
            ("flush_behind", "2"),
        ];
        let attributes = Attributes::default().with(set).unwrap();
        assert_eq!(attributes.sync_ms, Some(50));
        assert_eq!(attributes.flush_behind, Some(FlushBehind::Inline));
        let values = attributes.values();
        let pairs = values.iter().map(|(name, value)| (*name, value.as_str()));
        assert_eq!(Attributes::default().with(pairs).unwrap(), attributes);
        assert_eq!(
            attributes
                .with([("sync_interval", "default"), ("no_cache", "no")])
                .and_then(|a| a.with([("flush_behind", "default")])),
            Ok(Attributes::default())
        );
        for wrong in [
            ("speed", "1"),
            ("no_cache", "1"),
            ("flush_behind", "3"),
            ("sync_interval", "-1"),
        ] {
            let error = Attributes::default().with([wrong]).unwrap_err();
            assert!(error.to_string().contains(wrong.0), "{error}");
        }
    }
}
