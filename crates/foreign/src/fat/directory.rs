//! Entries of a directory in memory, for searches and changes.

use super::boot;
use super::encode::{NewName, is_same, upper_short};
use super::name::{LongName, short_name};
use super::{DIRECTORY, DIRECTORY_BYTES_MAX, ENTRY_BYTES, Fat, LABEL, LONG_NAME};
use crate::disk::Disk;
use crate::error::{Error, Kind, Result};
use crate::tree::{Node, ROOT};
use std::collections::HashSet;

/// First byte of an unused entry.
pub(super) const UNUSED: u8 = 0xe5;

/// All entries of a directory with their places.
pub(super) struct Listing {
    dir: u64,
    entries: Vec<(u64, [u8; 32])>,
    /// Whether it can become longer.
    pub grows: bool,
}

/// A name that was found.
#[derive(Debug, Clone)]
pub(super) struct Named {
    /// Place of the directory.
    pub dir: u64,
    /// Places of the entries of its long name.
    pub long: Vec<u64>,
    /// Place of its short one.
    pub place: u64,
    pub raw: [u8; 32],
    pub text: Vec<u8>,
}

impl Named {
    /// Returns the places of all its entries, the short one last.
    pub fn places(&self) -> Vec<u64> {
        let long = self.long.iter().copied();
        long.chain([self.place]).collect()
    }

    pub fn is_dir(&self) -> bool {
        self.raw[11] & DIRECTORY != 0
    }
}

impl Listing {
    /// Reads a directory.
    pub fn read(fat: &Fat, disk: &mut Disk, place: Node) -> Result<Listing> {
        if place != ROOT && fat.raw(disk, place)?[11] & DIRECTORY == 0 {
            return Err(Kind::NotDirectory.into());
        }
        let mut entries = Vec::new();
        for (at, len) in fat.runs(disk, place)?.iter().copied() {
            let mut from = 0;
            while from < len {
                // A fixed root and a run of clusters are at most as long as a directory.
                let part = (len - from).min(1 << 16);
                let bytes = disk.bytes(at + from, part as usize)?;
                let chunks = bytes.as_chunks::<32>().0.iter();
                let places = (at + from..).step_by(ENTRY_BYTES as usize);
                entries.extend(places.zip(chunks.copied()));
                from += part;
            }
        }
        let fixed = place == ROOT && matches!(fat.boot.root, boot::Root::Fixed(..));
        let bytes = entries.len() as u64 * ENTRY_BYTES;
        let grows = !fixed && bytes + fat.boot.cluster_bytes <= DIRECTORY_BYTES_MAX;
        Ok(Listing {
            dir: place,
            entries,
            grows,
        })
    }

    /// Calls `take` with each name until it returns false.
    fn each(&self, mut take: impl FnMut(Named) -> bool) {
        let mut long = (LongName::default(), Vec::new());
        for (place, raw) in &self.entries {
            if raw[0] == 0 {
                return;
            }
            if raw[0] == UNUSED {
                long = Default::default();
                continue;
            }
            if raw[11] & 0x3f == LONG_NAME {
                if raw[0] & 0x40 != 0 {
                    long.1.clear();
                }
                long.0.add(raw);
                long.1.push(*place);
                continue;
            }
            let (name, places) = std::mem::take(&mut long);
            let name = name.finish(raw);
            if raw[11] & LABEL != 0 || raw[0] == b'.' {
                continue;
            }
            let named = Named {
                dir: self.dir,
                long: if name.is_some() { places } else { Vec::new() },
                place: *place,
                raw: *raw,
                text: name.unwrap_or_else(|| short_name(raw)),
            };
            if !take(named) {
                return;
            }
        }
    }

    /// Finds a name, in any case or in its short form.
    pub fn find(&self, name: &[u8]) -> Option<Named> {
        let mut found = None;
        self.each(|named| {
            if is_same(&named.text, name) || is_same(&upper_short(&named.raw), name) {
                found = Some(named);
            }
            found.is_none()
        });
        found
    }

    pub fn is_empty(&self) -> bool {
        let mut empty = true;
        self.each(|_| {
            empty = false;
            false
        });
        empty
    }

    /// Chooses the short form of a new name, and returns its entries without the attributes.
    ///
    /// # Errors
    /// As [`NewName::short`].
    pub fn entries_of(&self, name: &NewName) -> Result<(Vec<[u8; 32]>, [u8; 11])> {
        let mut used = HashSet::new();
        self.each(|named| {
            used.insert(upper_short(&named.raw));
            used.insert(named.text.to_ascii_uppercase());
            true
        });
        let (short, _) = name.short(|short| {
            let mut raw = [0; 32];
            raw[..11].copy_from_slice(short);
            used.contains(&short_name(&raw))
        })?;
        Ok((name.long_entries(&short), short))
    }

    /// Finds `count` unused entries in a row, if possible so that the last is in the sector of
    /// `near`, of `unit` bytes. Also returns the entry that has to become the end of the names.
    pub fn unused(
        &self,
        count: usize,
        near: Option<(u64, u64)>,
    ) -> Option<(Vec<u64>, Option<u64>)> {
        let end = self.entries.iter().position(|(_, raw)| raw[0] == 0);
        let end = end.unwrap_or(self.entries.len());
        let (mut run, mut first) = (0, None);
        for (index, (place, raw)) in self.entries.iter().enumerate() {
            if index < end && raw[0] != UNUSED {
                run = 0;
                continue;
            }
            run += 1;
            if run < count {
                continue;
            }
            let start = index + 1 - count;
            if start > end {
                break;
            }
            let after = self.entries.get(index + 1);
            let after = after.filter(|(_, raw)| index + 1 > end && raw[0] != 0);
            let places = self.entries[start..=index].iter().map(|(place, _)| *place);
            let found = (places.collect(), after.map(|(place, _)| *place));
            if near.is_none_or(|(sector, unit)| place / unit == sector / unit) {
                return Some(found);
            }
            first.get_or_insert(found);
        }
        first
    }
}

/// Reads entries.
pub(super) fn entries_at(disk: &mut Disk, places: &[u64]) -> Result<Vec<[u8; 32]>> {
    let read = |place: &u64| {
        let mut raw = [0; 32];
        disk.read(*place, &mut raw).map(|()| raw)
    };
    places.iter().map(read).collect()
}

/// The error for a name that does not exist.
pub(super) fn missing() -> Error {
    Kind::NotFound.into()
}
