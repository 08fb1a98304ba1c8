//! Free clusters, and changes of the table.

use super::boot::{Boot, Width};
use crate::disk::{Disk, LONGEST};
use crate::error::{Error, Kind, Result};
use std::collections::{BTreeSet, HashSet};

/// Consecutive clusters: the first, and their number.
pub(super) type Extent = (u32, u32);

/// Free clusters of an open file system, one bit each in memory.
///
/// **Invariant:** a cluster in `freed` is in use for all others, on the device and in memory, until
/// the entry that refers to it is gone from the device.
pub(super) struct Space {
    /// Bits of clusters in use, by the number of the cluster less 2.
    used: Vec<u64>,
    free: u32,
    /// Index at which the next search begins.
    next: u32,
    /// Clusters of removed files.
    freed: Vec<Extent>,
    /// Clusters after which a shortened file ends.
    ends: Vec<u32>,
    /// Changed sectors, by their offset in a table.
    pub changed: BTreeSet<u64>,
    /// Clusters at the end of chains on the device that go on in memory.
    joins: BTreeSet<u32>,
    /// Ends of chains that are in memory only.
    new_ends: HashSet<u32>,
}

impl Space {
    /// Reads the table.
    pub fn read(boot: &Boot, disk: &mut Disk) -> Result<Space> {
        let mut space = Space {
            used: vec![0; boot.clusters.div_ceil(64) as usize],
            free: boot.clusters,
            next: 0,
            freed: Vec::new(),
            ends: Vec::new(),
            changed: BTreeSet::new(),
            joins: BTreeSet::new(),
            new_ends: HashSet::new(),
        };
        // A multiple of the length of every entry, and of the two entries of 12 bits in 3 bytes.
        let chunk = LONGEST as u64 / 3 / 4096 * 3 * 4096;
        let (mut at, mut cluster) = (0, 0);
        while at < boot.table_bytes && cluster < boot.clusters + 2 {
            let len = chunk.min(boot.table_bytes - at);
            let bytes = disk.bytes_once(boot.table_at + at, len as usize)?;
            let mut take = |value: u32| {
                if cluster >= 2 && cluster < boot.clusters + 2 && value != 0 {
                    space.set_used(cluster);
                }
                cluster += 1;
            };
            match boot.width {
                Width::Bits12 => bytes.chunks(3).for_each(|b| {
                    let b = [
                        b[0],
                        b.get(1).copied().unwrap_or(1),
                        b.get(2).copied().unwrap_or(1),
                    ];
                    let [one, two, three] = b.map(u32::from);
                    take(one | (two & 15) << 8);
                    take(two >> 4 | three << 4);
                }),
                Width::Bits16 => bytes
                    .as_chunks()
                    .0
                    .iter()
                    .for_each(|b| take(u16::from_le_bytes(*b).into())),
                Width::Bits32 => bytes
                    .as_chunks()
                    .0
                    .iter()
                    .for_each(|b| take(u32::from_le_bytes(*b) & 0x0fff_ffff)),
            }
            at += len;
        }
        Ok(space)
    }

    fn is_used(&self, cluster: u32) -> bool {
        let index = cluster - 2;
        self.used[index as usize / 64] >> (index % 64) & 1 != 0
    }

    fn set_used(&mut self, cluster: u32) {
        let index = cluster - 2;
        if !self.is_used(cluster) {
            self.used[index as usize / 64] |= 1 << (index % 64);
            self.free -= 1;
        }
    }

    /// Returns the number of clusters that are free now, or when the changes are on the device.
    pub fn free(&self) -> u64 {
        let freed = self.freed.iter().map(|(_, count)| u64::from(*count));
        u64::from(self.free) + freed.sum::<u64>()
    }

    /// Reports whether clusters become free when the changes are on the device.
    pub fn waits(&self) -> bool {
        !self.freed.is_empty() || !self.ends.is_empty()
    }

    /// Takes `count` clusters, if possible those from `near` on. The table does not change.
    ///
    /// # Errors
    /// [`Kind::NoSpace`]; nothing was taken.
    pub fn take(&mut self, boot: &Boot, count: u64, near: Option<u32>) -> Result<Vec<Extent>> {
        if u64::from(self.free) < count {
            return Err(Kind::NoSpace.into());
        }
        let total = boot.clusters;
        let near = near.map(|cluster| cluster.saturating_sub(2));
        let near = near.filter(|index| *index < total && !self.is_used(index + 2));
        let start = near.unwrap_or(self.next) % total;
        let (mut taken, mut left): (Vec<Extent>, u64) = (Vec::new(), count);
        let mut step = 0;
        while step < total && left > 0 {
            let index = (start + step) % total;
            if index.is_multiple_of(64) && self.used[index as usize / 64] == u64::MAX {
                step += 64.min(total - index);
                continue;
            }
            step += 1;
            if !self.is_used(index + 2) {
                self.set_used(index + 2);
                add(&mut taken, index + 2);
                self.next = (index + 1) % total;
                left -= 1;
            }
        }
        match left {
            0 => Ok(taken),
            _ => Err(Error::corrupt("the number of free clusters is wrong")),
        }
    }

    /// Frees clusters once the changes are on the device.
    pub fn free_later(&mut self, extents: impl IntoIterator<Item = Extent>) {
        self.freed.extend(extents);
    }

    /// Lets a file end after a cluster once the changes are on the device.
    pub fn end_later(&mut self, cluster: u32) {
        self.ends.push(cluster);
    }

    /// Links clusters, the first of them to the end of a chain, in memory.
    pub fn link(
        &mut self,
        boot: &Boot,
        disk: &mut Disk,
        last: Option<u32>,
        extents: &[Extent],
    ) -> Result<()> {
        let mut before = last;
        for cluster in extents
            .iter()
            .flat_map(|(first, count)| *first..*first + *count)
        {
            if let Some(before) = before {
                self.set(boot, disk, before, cluster)?;
            }
            before = Some(cluster);
        }
        if let Some(last) = last
            && !self.new_ends.remove(&last)
        {
            self.joins.insert(last);
        }
        match before {
            Some(end) => {
                self.new_ends.insert(end);
                self.set(boot, disk, end, u32::MAX)
            }
            None => Ok(()),
        }
    }

    /// Returns the sectors in which chains of the device go on.
    pub fn joined(&self, boot: &Boot) -> BTreeSet<u64> {
        let places = self.joins.iter().flat_map(|cluster| {
            let (at, len) = boot.width.place(*cluster);
            [at, at + len as u64 - 1]
        });
        places.map(|at| at - at % boot.sector).collect()
    }

    /// Lets the chains of the device end where they do now, in bytes of a table from `at` on: the
    /// entries of their new clusters are not on the device yet.
    pub fn without_joins(&self, boot: &Boot, at: u64, bytes: &mut [u8]) {
        let end = at + bytes.len() as u64;
        for cluster in &self.joins {
            let (place, len) = boot.width.place(*cluster);
            // The sectors of an entry in two are written at once.
            if place >= at && place + len as u64 <= end {
                let from = (place - at) as usize;
                boot.width
                    .put(*cluster, &mut bytes[from..from + len], u32::MAX);
            }
        }
    }

    /// Notes that the chains in memory are those on the device.
    pub fn are_joined(&mut self) {
        self.joins.clear();
        self.new_ends.clear();
    }

    /// Lets shortened files end, in memory. Reports whether there are any.
    pub fn end_chains(&mut self, boot: &Boot, disk: &mut Disk) -> Result<bool> {
        let ends = std::mem::take(&mut self.ends);
        for end in &ends {
            self.set(boot, disk, *end, u32::MAX)?;
        }
        Ok(!ends.is_empty())
    }

    /// Frees clusters, in memory.
    pub fn free_now(&mut self, boot: &Boot, disk: &mut Disk) -> Result<()> {
        for (first, count) in std::mem::take(&mut self.freed) {
            for cluster in first..first + count {
                self.set(boot, disk, cluster, 0)?;
                let index = cluster - 2;
                // Files of a damaged file system may share clusters.
                if self.is_used(cluster) {
                    self.used[index as usize / 64] &= !(1 << (index % 64));
                    self.free += 1;
                }
            }
        }
        Ok(())
    }

    /// Changes an entry of the table, in memory.
    fn set(&mut self, boot: &Boot, disk: &mut Disk, cluster: u32, value: u32) -> Result<()> {
        boot.offset(cluster)?;
        let (at, len) = boot.width.place(cluster);
        let mut raw = [0; 4];
        disk.read(boot.table_at + at, &mut raw[..len])?;
        boot.width.put(cluster, &mut raw[..len], value);
        disk.change(boot.table_at + at, &raw[..len])?;
        for byte in [at, at + len as u64 - 1] {
            self.changed.insert(byte - byte % boot.sector);
        }
        Ok(())
    }

    /// Returns the number of free clusters and the place of the next search, for the device.
    pub fn hints(&self) -> (u32, u32) {
        (self.free, self.next + 2)
    }
}

/// Adds a cluster to the end of a list.
pub(super) fn add(extents: &mut Vec<Extent>, cluster: u32) {
    match extents.last_mut() {
        Some((first, count)) if *first + *count == cluster => *count += 1,
        _ => extents.push((cluster, 1)),
    }
}

/// Splits a list after `count` clusters, and returns the rest.
pub(super) fn split(extents: &mut Vec<Extent>, count: u64) -> Vec<Extent> {
    let mut left = count;
    let mut rest = Vec::new();
    extents.retain_mut(|(first, len)| {
        let kept = left.min(u64::from(*len)) as u32;
        left -= u64::from(kept);
        if kept < *len {
            rest.push((*first + kept, *len - kept));
        }
        *len = kept;
        kept > 0
    });
    rest
}

/// Counts the clusters of a list.
pub(super) fn total(extents: &[Extent]) -> u64 {
    extents.iter().map(|(_, count)| u64::from(*count)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_after_any_cluster() {
        let mut extents = Vec::new();
        for cluster in [5, 6, 7, 20, 21, 9] {
            add(&mut extents, cluster);
        }
        assert_eq!(extents, [(5, 3), (20, 2), (9, 1)]);
        assert_eq!(split(&mut extents, 4), [(21, 1), (9, 1)]);
        assert_eq!(extents, [(5, 3), (20, 1)]);
        assert_eq!(split(&mut extents, 0), [(5, 3), (20, 1)]);
        assert_eq!(total(&extents), 0);
    }
}
