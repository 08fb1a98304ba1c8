//! The boot sector, and the table of clusters.

use crate::bytes::{le8, le16, le32, part};
use crate::disk::Disk;
use crate::error::{Error, Result};

const SECTOR: usize = 512;

/// Width of an entry of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Bits12,
    Bits16,
    Bits32,
}

impl Width {
    /// Returns the offset of a cluster's entry in the table, and its length in bytes. An entry of 12
    /// bits shares a byte with another.
    pub fn place(self, cluster: u32) -> (u64, usize) {
        let index = u64::from(cluster);
        match self {
            Width::Bits12 => (index + index / 2, 2),
            Width::Bits16 => (index * 2, 2),
            Width::Bits32 => (index * 4, 4),
        }
    }

    /// Changes the bytes of a cluster's entry.
    pub fn put(self, cluster: u32, bytes: &mut [u8], value: u32) {
        let len = bytes.len().min(4);
        let mut raw = [0; 4];
        raw[..len].copy_from_slice(&bytes[..len]);
        let old = u32::from_le_bytes(raw);
        let new = match self {
            Width::Bits12 if cluster % 2 == 1 => old & 0xf | (value & 0xfff) << 4,
            Width::Bits12 => old & 0xf000 | value & 0xfff,
            Width::Bits16 => value & 0xffff,
            Width::Bits32 => old & 0xf000_0000 | value & 0x0fff_ffff,
        };
        bytes[..len].copy_from_slice(&new.to_le_bytes()[..len]);
    }
}

/// Place of the root directory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Root {
    /// Offset and length on the device.
    Fixed(u64, u64),
    Cluster(u32),
}

/// Values of the boot sector, checked.
pub(super) struct Boot {
    pub width: Width,
    pub cluster_bytes: u64,
    /// Number of clusters.
    pub clusters: u32,
    /// Number of free clusters, as far as it is known.
    pub free: u32,
    pub root: Root,
    pub label: String,
    pub id: u32,
    /// Flags of the operating system, and their offset.
    state: u8,
    pub state_at: u64,
    /// Bytes of a sector of the format.
    pub sector: u64,
    /// The table in use.
    pub table_at: u64,
    pub table_bytes: u64,
    /// All tables that a change concerns.
    pub tables: Vec<u64>,
    /// Offset of the sector with the number of free clusters.
    pub info_at: Option<u64>,
    pub data_at: u64,
}

/// Reports whether the device begins with the boot sector of a FAT file system, and not with that of
/// another format or a partition table.
pub(crate) fn is_there(disk: &mut Disk) -> Result<bool> {
    if disk.size() < SECTOR as u64 {
        return Ok(false);
    }
    let b = &disk.bytes(0, SECTOR)?[..];
    let jumps = matches!(le8(b, 0)?, 0xe9 | 0xeb) && le16(b, 510)? == 0xaa55;
    let other = matches!(part(b, 3, 8)?, b"NTFS    " | b"EXFAT   " | b"-FVE-FS-");
    let sector = le16(b, 11)?;
    let sizes =
        (512..=4096).contains(&sector) && sector.is_power_of_two() && le8(b, 13)?.is_power_of_two();
    let counts = le16(b, 14)? > 0 && matches!(le8(b, 16)?, 1 | 2) && le8(b, 21)? >= 0xf0;
    Ok(jumps && !other && sizes && counts)
}

impl Boot {
    pub fn read(disk: &mut Disk) -> Result<Boot> {
        let b = &disk.bytes(0, SECTOR)?[..];
        let or = |short: u16, long: u32| if short != 0 { u32::from(short) } else { long };
        let sector = u64::from(le16(b, 11)?);
        let cluster_bytes = u64::from(le8(b, 13)?) * sector;
        let reserved = u64::from(le16(b, 14)?);
        let tables = u64::from(le8(b, 16)?);
        let root_entries = u64::from(le16(b, 17)?);
        let total = u64::from(or(le16(b, 19)?, le32(b, 32)?));
        let is_32 = le16(b, 22)? == 0;
        let table_sectors = u64::from(or(le16(b, 22)?, le32(b, 36)?));
        let root_sectors = (root_entries * 32).div_ceil(sector);
        let data_sector = reserved + tables * table_sectors + root_sectors;
        let damaged = || Error::corrupt("the boot sector contradicts itself");
        if total * sector > disk.size() {
            return Err(Error::corrupt("the device is too short for it"));
        }
        let data = total.checked_sub(data_sector).ok_or_else(damaged)?;
        let clusters = data * sector / cluster_bytes;
        if !is_32 && clusters >= 65_525 || clusters == 0 || clusters > 0x0fff_fff4 {
            return Err(damaged());
        }
        let width = match (is_32, clusters) {
            (true, _) => Width::Bits32,
            (false, 4085..) => Width::Bits16,
            (false, _) => Width::Bits12,
        };
        let bits = match width {
            Width::Bits12 => 12,
            Width::Bits16 => 16,
            Width::Bits32 => 32,
        };
        let table_bytes = table_sectors * sector;
        if (clusters + 2) * bits > table_bytes * 8 {
            return Err(damaged());
        }
        // Of two tables, FAT32 can have one in use.
        let (active, mirrored) = match (width, le16(b, 40)?) {
            (Width::Bits32, flags) if flags & 0x80 != 0 => (u64::from(flags & 0xf), false),
            _ => (0, true),
        };
        if active >= tables || (is_32 && le16(b, 42)? != 0) {
            return Err(damaged());
        }
        let root_at = (reserved + tables * table_sectors) * sector;
        let root = match width {
            Width::Bits32 => Root::Cluster(le32(b, 44)?),
            _ => Root::Fixed(root_at, root_entries * 32),
        };
        let more = if is_32 { 64 } else { 36 };
        let table = |index: u64| (reserved + index * table_sectors) * sector;
        let changed = if mirrored {
            0..tables
        } else {
            active..active + 1
        };
        let mut boot = Boot {
            width,
            cluster_bytes,
            clusters: clusters as u32,
            free: 0,
            root,
            label: String::new(),
            id: 0,
            state: le8(b, more + 1)?,
            state_at: more as u64 + 1,
            sector,
            table_at: table(active),
            table_bytes,
            tables: changed.map(table).collect(),
            info_at: None,
            data_at: data_sector * sector,
        };
        if le8(b, more + 2)? == 0x29 {
            boot.id = le32(b, more + 3)?;
            let label = String::from_utf8_lossy(part(b, more + 7, 11)?)
                .trim()
                .to_owned();
            if label != "NO NAME" {
                boot.label = label.chars().filter(|c| !c.is_control()).collect();
            }
        }
        if is_32 {
            let at = u64::from(le16(b, 48)?) * sector;
            let info = disk.bytes(at, SECTOR)?;
            let free = le32(&info, 488)?;
            if le32(&info, 484)? == 0x6141_7272 {
                boot.info_at = (at > 0 && at < boot.table_at).then_some(at);
                if free <= boot.clusters {
                    boot.free = free;
                }
            }
        }
        Ok(boot)
    }

    /// Fails if the file system was not unmounted.
    pub fn check_clean(&self, disk: &mut Disk) -> Result<()> {
        let clean = match self.clean_flag() {
            None => true,
            Some((at, bit)) => {
                let mut raw = [0];
                disk.read(self.table_at + at, &mut raw)?;
                raw[0] & bit != 0
            }
        };
        if clean && self.state & 1 == 0 {
            Ok(())
        } else {
            Err(Error::unsupported(
                "it was not unmounted, or is in use; unmount it, or run `fsck.vfat` on it",
            ))
        }
    }

    /// Returns the byte of the table and the bit in it that are set if the file system was unmounted.
    pub fn clean_flag(&self) -> Option<(u64, u8)> {
        match self.width {
            Width::Bits12 => None,
            Width::Bits16 => Some((3, 0x80)),
            Width::Bits32 => Some((7, 0x08)),
        }
    }

    /// Returns the offset of a cluster on the device.
    pub fn offset(&self, cluster: u32) -> Result<u64> {
        match cluster.checked_sub(2) {
            Some(index) if index < self.clusters => {
                Ok(self.data_at + u64::from(index) * self.cluster_bytes)
            }
            _ => Err(Error::corrupt(format!("cluster {cluster} does not exist"))),
        }
    }

    /// Returns the cluster at an offset on the device.
    pub fn cluster(&self, offset: u64) -> u32 {
        (offset.saturating_sub(self.data_at) / self.cluster_bytes + 2) as u32
    }

    /// Returns the first cluster of the file of an entry.
    pub fn first_cluster(&self, raw: &[u8; 32]) -> Result<u32> {
        let high = match self.width {
            Width::Bits32 => u32::from(le16(raw, 20)?),
            _ => 0,
        };
        Ok(high << 16 | u32::from(le16(raw, 26)?))
    }

    /// Returns a reader of the table.
    pub fn table(&self) -> Table<'_> {
        Table {
            boot: self,
            chunk: Vec::new(),
            at: u64::MAX,
        }
    }
}

/// Bytes of the table that are read at once.
const CHUNK: u64 = 4096;

/// Reader of the table, with the last part that it has read.
pub(super) struct Table<'a> {
    boot: &'a Boot,
    chunk: Vec<u8>,
    at: u64,
}

impl Table<'_> {
    fn byte(&mut self, disk: &mut Disk, at: u64) -> Result<u8> {
        let start = at - at % CHUNK;
        if start != self.at {
            let len = CHUNK.min(self.boot.table_bytes.saturating_sub(start));
            self.chunk = disk.bytes(self.boot.table_at + start, len as usize)?;
            self.at = start;
        }
        le8(&self.chunk, (at - start) as usize)
    }

    /// Returns the cluster after one; `None` at the end of a chain.
    pub fn next(&mut self, disk: &mut Disk, cluster: u32) -> Result<Option<u32>> {
        let (at, len) = self.boot.width.place(cluster);
        let end = match self.boot.width {
            Width::Bits12 => 0xff8,
            Width::Bits16 => 0xfff8,
            Width::Bits32 => 0x0fff_fff8,
        };
        let mut value = 0;
        for n in 0..len as u64 {
            value |= u32::from(self.byte(disk, at + n)?) << (8 * n);
        }
        let value = match self.boot.width {
            Width::Bits12 if cluster % 2 == 1 => value >> 4,
            Width::Bits12 => value & 0xfff,
            Width::Bits16 => value,
            Width::Bits32 => value & 0x0fff_ffff,
        };
        Ok((value < end).then_some(value))
    }
}
