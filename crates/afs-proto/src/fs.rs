//! The file service (service 1 at port 7000; `src/fsint/afsint.xg`).
//!
//! Two procedures carry file data. The arguments of `StoreData` are followed by `length` bytes of
//! data ([`Request::data_bytes`]). The reply to `FetchData` is a [`DataLength`], the data, and only
//! then the results of the table: the status is that of the file when its last byte was read.
//!
//! Positions and lengths of `FetchData` and `FetchData64` are signed in the definition, and
//! unsigned here: Linux uses `FetchData` up to 4 GiB.

mod data;
mod statistics;
mod status;
mod volume;

pub use data::DataLength;
pub use statistics::{DiskName, ViceDisk, ViceStatistics, stats64};
pub use status::{AfsFetchStatus, AfsStoreStatus, FileType};
pub use volume::{AfsFetchVolumeStatus, AfsStoreVolumeStatus, ViceVolumeType, VolumeInfo};

use crate::types::{FIDS_MAX, Message};
use crate::xdr::{List, Xdr};
use crate::{AfsCallBack, AfsCbFids, AfsCbs, AfsFid, AfsVolSync, Capabilities, Name, Opaque, Path};
use std::net::Ipv4Addr;

/// Rx service number.
pub const SERVICE: u16 = 1;
/// UDP port of a file server.
pub const PORT: u16 = 7000;

/// Lifetime of a lock in seconds unless it is extended (`AFS_LOCKWAIT`).
pub const LOCK_SECONDS: u32 = 300;

/// File statuses of one call (`AFSBulkStats`).
pub type AfsBulkStats = List<AfsFetchStatus, FIDS_MAX>;
/// Protection IDs of one call (`ViceIds`, `FLUSHMAX`).
pub type ViceIds = List<i32, 10>;
/// Addresses of one call (`IPAddrs`, `FLUSHMAX`).
pub type IpAddrs = List<Ipv4Addr, 10>;

enumeration! {
    /// Mode of a file lock.
    pub enum LockType: "lock type" {
        /// Shared.
        Read = 0,
        /// Exclusive.
        Write = 1,
        /// Never sent: `ExtendLock` is a procedure of its own.
        Extend = 2,
        /// Never sent: `ReleaseLock` is a procedure of its own.
        Release = 3,
    }
}

procedures! {
    'a;
    /// Call of the file service: opcode and arguments.
    pub enum Request<'a>;
    /// Results of a call that did not end with an [`Abort`](crate::Abort).
    pub enum Reply<'a>;

    /// Reads a file, or a directory's pages. The reply begins with a four-byte length and the data.
    130 FetchData { fid: AfsFid, position: u32, length: u32 }
        => { status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Fetches an access list in the text form of [`crate::acl`].
    131 FetchACL { fid: AfsFid }
        => { access_list: Opaque<'a>, status: AfsFetchStatus, sync: AfsVolSync }
    /// Fetches the status of a file, and a promise to notify the client of changes.
    132 FetchStatus { fid: AfsFid }
        => { status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Writes the `length` bytes that follow the arguments. A file longer than `file_length` is
    /// truncated to it first; clients change only the length by storing 0 bytes at the new end.
    133 StoreData { fid: AfsFid, wanted: AfsStoreStatus, position: u32, length: u32, file_length: u32 }
        => { status: AfsFetchStatus, sync: AfsVolSync }
    /// Replaces a directory's access list.
    134 StoreACL { fid: AfsFid, access_list: Opaque<'a> }
        => { status: AfsFetchStatus, sync: AfsVolSync }
    /// Changes mode, owner, group or modification time.
    135 StoreStatus { fid: AfsFid, wanted: AfsStoreStatus }
        => { status: AfsFetchStatus, sync: AfsVolSync }
    /// Removes one name of a file.
    136 RemoveFile { directory: AfsFid, name: Name<'a> }
        => { directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Creates an empty file.
    137 CreateFile { directory: AfsFid, name: Name<'a>, wanted: AfsStoreStatus }
        => { fid: AfsFid, status: AfsFetchStatus, directory_status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Renames a file or directory, possibly into another directory; an existing target is
    /// replaced.
    138 Rename { old_directory: AfsFid, old_name: Name<'a>, new_directory: AfsFid, new_name: Name<'a> }
        => { old_directory_status: AfsFetchStatus, new_directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Creates a symbolic link, or a mount point (mode 0644, contents `#volume.` or `%volume.`).
    139 Symlink { directory: AfsFid, name: Name<'a>, contents: Path<'a>, wanted: AfsStoreStatus }
        => { fid: AfsFid, status: AfsFetchStatus, directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Adds a name to a file (hard link).
    140 Link { directory: AfsFid, name: Name<'a>, existing: AfsFid }
        => { status: AfsFetchStatus, directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Creates an empty directory.
    141 MakeDir { directory: AfsFid, name: Name<'a>, wanted: AfsStoreStatus }
        => { fid: AfsFid, status: AfsFetchStatus, directory_status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Removes an empty directory.
    142 RemoveDir { directory: AfsFid, name: Name<'a> }
        => { directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Fetches 32-bit counters, for `scout` and `afsmonitor`.
    146 GetStatistics {}
        => { statistics: Box<ViceStatistics> }
    /// Releases the caller's promises for these files.
    147 GiveUpCallBacks { fids: AfsCbFids, callbacks: AfsCbs }
        => {}
    /// Looks up the location of a volume; superseded by the volume location service.
    148 GetVolumeInfo { volume_name: Name<'a> }
        => { info: VolumeInfo }
    /// Fetches quota and usage of a volume, for `statfs`.
    149 GetVolumeStatus { volume: u32 }
        => { status: AfsFetchVolumeStatus, name: Name<'a>, offline_message: Message<'a>, motd: Message<'a> }
    /// Changes quota and messages of a volume; an empty string leaves the current one.
    150 SetVolumeStatus { volume: u32, wanted: AfsStoreVolumeStatus, name: Name<'a>, offline_message: Message<'a>, motd: Message<'a> }
        => {}
    /// Queries the name of the volume at the root of the file space.
    151 GetRootVolume {}
        => { volume_name: Name<'a> }
    /// Queries the server's time; clients also use it as a liveness probe.
    153 GetTime {}
        => { seconds: u32, microseconds: u32 }
    /// `FetchStatus` of several files; the failure of one fails the call.
    155 BulkStatus { fids: AfsCbFids }
        => { statuses: AfsBulkStats, callbacks: AfsCbs, sync: AfsVolSync }
    /// Locks a file for [`LOCK_SECONDS`].
    156 SetLock { fid: AfsFid, lock: LockType }
        => { sync: AfsVolSync }
    /// Extends a lock by another [`LOCK_SECONDS`].
    157 ExtendLock { fid: AfsFid }
        => { sync: AfsVolSync }
    /// Releases a lock.
    158 ReleaseLock { fid: AfsFid }
        => { sync: AfsVolSync }
    /// Looks up a name in a directory, for clients that do not read directories (translators).
    161 Lookup { directory: AfsFid, name: Name<'a> }
        => { fid: AfsFid, status: AfsFetchStatus, directory_status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Discards the cached group memberships of these users and addresses.
    162 FlushCPS { ids: ViceIds, addresses: IpAddrs, spare1: i32 }
        => { spare2: i32, spare3: i32 }
    /// `FetchStatus` of several files; the error of each is in its status.
    65536 InlineBulkStatus { fids: AfsCbFids }
        => { statuses: AfsBulkStats, callbacks: AfsCbs, sync: AfsVolSync }
    /// `FetchData` of large files. The reply begins with an eight-byte length and the data.
    65537 FetchData64 { fid: AfsFid, position: u64, length: u64 }
        => { status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// `StoreData` of large files.
    65538 StoreData64 { fid: AfsFid, wanted: AfsStoreStatus, position: u64, length: u64, file_length: u64 }
        => { status: AfsFetchStatus, sync: AfsVolSync }
    /// Releases all of the caller's promises, before it terminates.
    65539 GiveUpAllCallBacks {}
        => {}
    /// Queries the server's capabilities (bits of [`crate::capability`]).
    65540 GetCapabilities {}
        => { capabilities: Capabilities }
    /// Fetches the 64-bit counters that the caller's version knows (indices in [`stats64`]).
    65542 GetStatistics64 { version: i32 }
        => { statistics: List<u64, { stats64::COUNT }> }
}

impl Request<'_> {
    /// Returns the number of file data bytes that follow the arguments.
    pub fn data_bytes(&self) -> u64 {
        match self {
            Request::StoreData { length, .. } => u64::from(*length),
            Request::StoreData64 { length, .. } => *length,
            _ => 0,
        }
    }
}
