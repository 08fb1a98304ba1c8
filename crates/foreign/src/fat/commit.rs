//! The order in which changes reach the device.
//!
//! ```text
//!   content, directories ┃ new chains ┃ joins ┃ entries ┃ moved ┃ replaced ┃ ends ┃ frees
//! ```
//!
//! `┃` is a flush of the device, a join the link from a chain on the device to new clusters.
//! **Invariant:** on the device, an entry refers to clusters that are in use and hold its content, and
//! each file has an entry. So a power cut at any time leaves at worst clusters without an entry, a
//! file as short as at its last commit, or two names of a file that was being renamed: its old entry
//! stays until the new one is there. `fsck.vfat` makes the second of them an empty file. A file that
//! was replaced stays as long, so that for a moment two files can have one name.

use super::boot::Boot;
use super::space::Space;
use crate::disk::Disk;
use crate::error::Result;
use std::collections::{BTreeSet, HashMap};

/// Longest write of sectors, in bytes.
const WRITE_BYTES: usize = 256 << 10;

/// Changes that are in memory only.
pub(super) struct Pending {
    /// Changed sectors of directories.
    sectors: BTreeSet<u64>,
    /// Old entries that stay at their places until the new ones are on the device: those of files
    /// that have moved, and, until these are gone, those of replaced files.
    kept: [HashMap<u64, [u8; 32]>; 2],
    /// Whether something was written since the last flush.
    written: bool,
    /// Whether the device says that the file system is in use.
    marked: bool,
}

impl Pending {
    pub fn new() -> Pending {
        Pending {
            sectors: BTreeSet::new(),
            kept: Default::default(),
            written: false,
            marked: false,
        }
    }

    /// Changes an entry of a directory, in memory.
    pub fn set_entry(&mut self, disk: &mut Disk, place: u64, raw: &[u8]) -> Result<()> {
        disk.change(place, raw)?;
        let unit = disk.unit();
        self.sectors.insert(place - place % unit);
        Ok(())
    }

    /// Lets the old entry of a file that has moved stay on the device until the new one is there.
    pub fn keep_moved(&mut self, place: u64, raw: [u8; 32]) {
        self.kept[0].insert(place, raw);
    }

    /// Lets the entry of a replaced file stay until those of files that have moved are gone.
    pub fn keep_replaced(&mut self, place: u64, raw: [u8; 32]) {
        self.kept[1].insert(place, raw);
    }

    /// Reports whether an entry stays at one of these places.
    pub fn keeps<'a>(&self, mut places: impl Iterator<Item = &'a u64>) -> bool {
        places.any(|place| self.kept.iter().any(|kept| kept.contains_key(place)))
    }

    /// Writes a new directory, to which no entry refers on the device.
    pub fn write_unused(
        &mut self,
        boot: &Boot,
        disk: &mut Disk,
        at: u64,
        bytes: &[u8],
    ) -> Result<()> {
        self.mark(boot, disk)?;
        self.written = true;
        disk.write(at, bytes)?;
        disk.change(at, bytes)
    }

    /// Notes that content was written.
    pub fn content_written(&mut self) {
        self.written = true;
    }

    /// Says on the device that the file system is in use, before its first change.
    pub fn mark(&mut self, boot: &Boot, disk: &mut Disk) -> Result<()> {
        if !self.marked {
            set_state(boot, disk, true)?;
            disk.flush()?;
            self.marked = true;
        }
        Ok(())
    }

    /// Says on the device that the file system is complete, after a commit.
    pub fn unmark(&mut self, boot: &Boot, disk: &mut Disk) -> Result<()> {
        if self.marked {
            disk.flush()?;
            set_state(boot, disk, false)?;
            disk.flush()?;
            disk.settle();
            self.marked = false;
        }
        Ok(())
    }

    /// Writes all changes to the device.
    pub fn commit(&mut self, boot: &Boot, disk: &mut Disk, space: &mut Space) -> Result<()> {
        let tables = !space.changed.is_empty();
        let entries = !self.sectors.is_empty();
        if !(tables || entries || self.written || space.waits()) {
            return Ok(());
        }
        self.mark(boot, disk)?;
        disk.flush()?;
        self.written = false;
        if tables {
            let joined = space.joined(boot);
            write_tables(boot, disk, &space.changed, |at, bytes| {
                space.without_joins(boot, at, bytes);
            })?;
            disk.flush()?;
            if !joined.is_empty() {
                write_tables(boot, disk, &joined, |_, _| {})?;
                disk.flush()?;
            }
            space.changed.clear();
            space.are_joined();
        }
        if entries {
            let unit = disk.unit();
            self.write_entries(disk, &self.sectors)?;
            for part in 0..self.kept.len() {
                let kept = std::mem::take(&mut self.kept[part]);
                let sectors = kept.keys().map(|place| place - place % unit).collect();
                let written = self.write_entries(disk, &sectors);
                if written.is_err() {
                    self.kept[part] = kept;
                }
                written?;
            }
            self.sectors.clear();
        }
        if space.waits() {
            if space.end_chains(boot, disk)? {
                write_tables(boot, disk, &space.changed, |_, _| {})?;
                disk.flush()?;
            }
            space.free_now(boot, disk)?;
            write_tables(boot, disk, &space.changed, |_, _| {})?;
            space.changed.clear();
        }
        write_hints(boot, disk, space)?;
        disk.settle();
        Ok(())
    }
}

impl Pending {
    /// Writes sectors of directories but for the old entries, and waits for them.
    fn write_entries(&self, disk: &mut Disk, sectors: &BTreeSet<u64>) -> Result<()> {
        if sectors.is_empty() {
            return Ok(());
        }
        write_runs(disk, sectors, disk.unit(), 0, |disk, at, bytes| {
            disk.read(at, bytes)?;
            let end = at + bytes.len() as u64;
            for (place, raw) in self.kept.iter().flatten() {
                if (at..end).contains(place) {
                    let from = (place - at) as usize;
                    bytes[from..from + 32].copy_from_slice(raw);
                }
            }
            Ok(())
        })?;
        disk.flush()
    }
}

/// Writes sectors of all tables. `change` receives the offset in the table.
fn write_tables(
    boot: &Boot,
    disk: &mut Disk,
    sectors: &BTreeSet<u64>,
    change: impl Fn(u64, &mut [u8]),
) -> Result<()> {
    for table in &boot.tables {
        write_runs(disk, sectors, boot.sector, *table, |disk, at, bytes| {
            disk.read(boot.table_at + (at - table), bytes)?;
            change(at - table, bytes);
            Ok(())
        })?;
    }
    Ok(())
}

/// Writes sectors, those that follow one another together. `fill` receives the offset on the device.
fn write_runs(
    disk: &mut Disk,
    sectors: &BTreeSet<u64>,
    unit: u64,
    base: u64,
    fill: impl Fn(&mut Disk, u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut sectors = sectors.iter().copied().peekable();
    while let Some(first) = sectors.next() {
        let mut end = first + unit;
        while end - first < WRITE_BYTES as u64 && sectors.next_if_eq(&end).is_some() {
            end += unit;
        }
        let mut bytes = vec![0; (end - first) as usize];
        fill(disk, base + first, &mut bytes)?;
        disk.write(base + first, &bytes)?;
    }
    Ok(())
}

/// Writes the number of free clusters, which is a hint.
fn write_hints(boot: &Boot, disk: &mut Disk, space: &Space) -> Result<()> {
    let Some(at) = boot.info_at else {
        return Ok(());
    };
    let (free, next) = space.hints();
    let mut raw = [0; 8];
    raw[..4].copy_from_slice(&free.to_le_bytes());
    raw[4..].copy_from_slice(&next.to_le_bytes());
    change_now(disk, boot, at + 488, &raw)
}

/// Sets or clears the flags of a file system in use.
fn set_state(boot: &Boot, disk: &mut Disk, in_use: bool) -> Result<()> {
    let with = |raw: u8, bit: u8, set: bool| if set { raw | bit } else { raw & !bit };
    let mut raw = [0];
    disk.read(boot.state_at, &mut raw)?;
    change_now(disk, boot, boot.state_at, &[with(raw[0], 1, in_use)])?;
    if let Some((at, bit)) = boot.clean_flag() {
        // The sector as it is on the device: new links in memory have to wait for their turn.
        let mut sector = disk.bytes_once(boot.table_at, boot.sector as usize)?;
        let flags = with(sector[at as usize], bit, !in_use);
        sector[at as usize] = flags;
        disk.change(boot.table_at + at, &[flags])?;
        for table in &boot.tables {
            disk.write(*table, &sector)?;
        }
    }
    Ok(())
}

/// Changes bytes within a sector, in memory and on the device.
fn change_now(disk: &mut Disk, boot: &Boot, at: u64, bytes: &[u8]) -> Result<()> {
    disk.change(at, bytes)?;
    let mut sector = vec![0; boot.sector as usize];
    let start = at - at % boot.sector;
    disk.read(start, &mut sector)?;
    disk.write(start, &sector)
}
