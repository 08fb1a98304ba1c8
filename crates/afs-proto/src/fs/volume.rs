//! Volume status in the file service.

use crate::xdr::{Reader, Xdr};

enumeration! {
    /// Access mode of a volume (`ViceVolumeType`).
    pub enum ViceVolumeType: "volume type" {
        /// Read-only: a replica or a backup.
        ReadOnly = 0,
        /// Read-write.
        ReadWrite = 1,
    }
}

structure! {
    /// State, quota and usage of a volume (`AFSFetchVolumeStatus`, same as `VolumeStatus`): 12
    /// words.
    pub struct AfsFetchVolumeStatus {
        /// Volume number.
        volume: u32,
        /// Number of the read-write volume that this is a replica or backup of.
        parent: u32,
        /// The volume is available.
        online: bool,
        /// The volume is intended to be in use.
        in_service: bool,
        /// The volume was found consistent.
        blessed: bool,
        /// The volume needs salvaging.
        needs_salvage: bool,
        /// Access mode.
        kind: ViceVolumeType,
        /// Reserved space in KiB; unused.
        min_quota: i32,
        /// Quota in KiB; 0 for no limit.
        max_quota: i32,
        /// Space used in KiB.
        blocks_in_use: i32,
        /// Free space of the partition in KiB.
        partition_blocks_available: i32,
        /// Capacity of the partition in KiB.
        partition_max_blocks: i32,
    }
}

/// Changes requested to a volume (`AFSStoreVolumeStatus`): 3 words, the first of which is the mask
/// of valid fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AfsStoreVolumeStatus {
    /// Reserved space in KiB (`AFS_SETMINQUOTA`).
    pub min_quota: Option<i32>,
    /// Quota in KiB (`AFS_SETMAXQUOTA`).
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
    /// Location of a volume as reported by the file service (`VolumeInfo`): 16 words.
    pub struct VolumeInfo {
        /// Volume number.
        volume: u32,
        /// Volume type: index of this volume's number in `types`.
        kind: i32,
        /// Volume numbers by type: read-write, replica, backup, two reserved.
        types: [u32; 5],
        /// Number of valid elements of `servers`.
        server_count: u32,
        /// IPv4 addresses of the volume's servers, first byte in the most significant position.
        servers: [u32; 8],
    }
}
