//! Volumes, as the file service describes them.

use crate::xdr::{Reader, Xdr};

enumeration! {
    /// Whether a volume can be written (`ViceVolumeType`).
    pub enum ViceVolumeType: "volume type" {
        /// Read only: a replica, or a backup.
        ReadOnly = 0,
        /// The one that is written.
        ReadWrite = 1,
    }
}

structure! {
    /// State, quota and use of a volume (`AFSFetchVolumeStatus`, the same as `VolumeStatus`): 12 words.
    pub struct AfsFetchVolumeStatus {
        /// Volume.
        volume: u32,
        /// The volume that is written, of which this is a replica or backup.
        parent: u32,
        /// Can be used.
        online: bool,
        /// Is meant to be used.
        in_service: bool,
        /// Was found sound.
        blessed: bool,
        /// Has to be repaired.
        needs_salvage: bool,
        /// Whether it can be written.
        kind: ViceVolumeType,
        /// Room that is reserved for it, in KiB; not used.
        min_quota: i32,
        /// Room that it may take, in KiB; 0 for no limit.
        max_quota: i32,
        /// Room that it takes, in KiB.
        blocks_in_use: i32,
        /// Room that is free on its partition, in KiB.
        partition_blocks_available: i32,
        /// Room of its partition, in KiB.
        partition_max_blocks: i32,
    }
}

/// What is to be changed of a volume (`AFSStoreVolumeStatus`): 3 words, the first saying which of the
/// others count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AfsStoreVolumeStatus {
    /// Room that is reserved for it, in KiB (`AFS_SETMINQUOTA`).
    pub min_quota: Option<i32>,
    /// Room that it may take, in KiB (`AFS_SETMAXQUOTA`).
    pub max_quota: Option<i32>,
}

const SETMINQUOTA: u32 = 1;
const SETMAXQUOTA: u32 = 2;

impl<'a> Xdr<'a> for AfsStoreVolumeStatus {
    fn read(from: &mut Reader<'a>) -> crate::Result<Self> {
        let mask = u32::read(from)?;
        let [min, max] = <[i32; 2]>::read(from)?;
        Ok(AfsStoreVolumeStatus {
            min_quota: (mask & SETMINQUOTA != 0).then_some(min),
            max_quota: (mask & SETMAXQUOTA != 0).then_some(max),
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        let bit = |bit: u32, value: Option<i32>| value.map_or(0, |_| bit);
        (bit(SETMINQUOTA, self.min_quota) | bit(SETMAXQUOTA, self.max_quota)).write(to);
        [self.min_quota.unwrap_or(0), self.max_quota.unwrap_or(0)].write(to);
    }
}

structure! {
    /// Where a volume is, by the file service (`VolumeInfo`): 16 words.
    pub struct VolumeInfo {
        /// Volume.
        volume: u32,
        /// Its type: the place of its own number among `types`.
        kind: i32,
        /// The volumes of each type: written, replica, backup, two spare.
        types: [u32; 5],
        /// How many of `servers` count.
        server_count: u32,
        /// Addresses of servers that have it, the first byte the most significant.
        servers: [u32; 8],
    }
}
