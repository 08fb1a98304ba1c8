//! The file service (service 1 at port 7000; `src/fsint/afsint.xg`).
//!
//! Two procedures carry file data. Behind the arguments of `StoreData` come as many bytes as its
//! `length` says ([`Request::data_bytes`]). The reply to `FetchData` is a [`DataLength`], that many
//! bytes, and only then the results of the table: the status is that of the file when the last byte
//! was read.
//!
//! Positions and lengths of `FetchData` and `FetchData64` are signed in the definition, and unsigned
//! here: Linux sends `FetchData` up to 4 GiB.

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

/// Number of the service within Rx.
pub const SERVICE: u16 = 1;
/// UDP port of a file server.
pub const PORT: u16 = 7000;

/// Seconds that a lock holds unless it is extended (`AFS_LOCKWAIT`).
pub const LOCK_SECONDS: u32 = 300;

/// The statuses of the files of one call (`AFSBulkStats`).
pub type AfsBulkStats = List<AfsFetchStatus, FIDS_MAX>;
/// Protection identities of one call (`ViceIds`, `FLUSHMAX`).
pub type ViceIds = List<i32, 10>;
/// Addresses of one call (`IPAddrs`, `FLUSHMAX`).
pub type IpAddrs = List<Ipv4Addr, 10>;

enumeration! {
    /// How a file is to be locked.
    pub enum LockType: "lock type" {
        /// Shared.
        Read = 0,
        /// Exclusive.
        Write = 1,
        /// Not sent: `ExtendLock` has its own procedure.
        Extend = 2,
        /// Not sent: `ReleaseLock` has its own procedure.
        Release = 3,
    }
}

procedures! {
    'a;
    /// A call of the file service: the opcode and the arguments.
    pub enum Request<'a>;
    /// What a call gives back when it did not end with an [`Abort`](crate::Abort).
    pub enum Reply<'a>;

    /// Reads a file, or a directory's pages. The reply begins with a length of four bytes and the data.
    130 FetchData { fid: AfsFid, position: u32, length: u32 }
        => { status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Reads an access list; its text is that of [`crate::acl`].
    131 FetchACL { fid: AfsFid }
        => { access_list: Opaque<'a>, status: AfsFetchStatus, sync: AfsVolSync }
    /// Gives what is known of a file, and a promise to tell when that changes.
    132 FetchStatus { fid: AfsFid }
        => { status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Writes `length` bytes that follow the arguments. A file longer than `file_length` is cut to it
    /// first; clients change a length alone by storing no bytes at the new end.
    133 StoreData { fid: AfsFid, wanted: AfsStoreStatus, position: u32, length: u32, file_length: u32 }
        => { status: AfsFetchStatus, sync: AfsVolSync }
    /// Replaces a directory's access list.
    134 StoreACL { fid: AfsFid, access_list: Opaque<'a> }
        => { status: AfsFetchStatus, sync: AfsVolSync }
    /// Changes mode, owner, group or time.
    135 StoreStatus { fid: AfsFid, wanted: AfsStoreStatus }
        => { status: AfsFetchStatus, sync: AfsVolSync }
    /// Takes a name of a file away.
    136 RemoveFile { directory: AfsFid, name: Name<'a> }
        => { directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Makes an empty file.
    137 CreateFile { directory: AfsFid, name: Name<'a>, wanted: AfsStoreStatus }
        => { fid: AfsFid, status: AfsFetchStatus, directory_status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Gives a file or directory another name, maybe elsewhere; what had that name loses it.
    138 Rename { old_directory: AfsFid, old_name: Name<'a>, new_directory: AfsFid, new_name: Name<'a> }
        => { old_directory_status: AfsFetchStatus, new_directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Makes a symbolic link, or a mount point (mode 0644, contents `#volume.` or `%volume.`).
    139 Symlink { directory: AfsFid, name: Name<'a>, contents: Path<'a>, wanted: AfsStoreStatus }
        => { fid: AfsFid, status: AfsFetchStatus, directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Gives a file a further name.
    140 Link { directory: AfsFid, name: Name<'a>, existing: AfsFid }
        => { status: AfsFetchStatus, directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Makes an empty directory.
    141 MakeDir { directory: AfsFid, name: Name<'a>, wanted: AfsStoreStatus }
        => { fid: AfsFid, status: AfsFetchStatus, directory_status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Removes an empty directory.
    142 RemoveDir { directory: AfsFid, name: Name<'a> }
        => { directory_status: AfsFetchStatus, sync: AfsVolSync }
    /// Counts of 32 bits, for `scout` and `afsmonitor`.
    146 GetStatistics {}
        => { statistics: Box<ViceStatistics> }
    /// The caller no longer wants to hear of these files.
    147 GiveUpCallBacks { fids: AfsCbFids, callbacks: AfsCbs }
        => {}
    /// Where a volume is; the volume location service has taken its place.
    148 GetVolumeInfo { volume_name: Name<'a> }
        => { info: VolumeInfo }
    /// Quota and use of a volume, for `statfs`.
    149 GetVolumeStatus { volume: u32 }
        => { status: AfsFetchVolumeStatus, name: Name<'a>, offline_message: Message<'a>, motd: Message<'a> }
    /// Changes quota and messages of a volume; an empty string leaves what there is.
    150 SetVolumeStatus { volume: u32, wanted: AfsStoreVolumeStatus, name: Name<'a>, offline_message: Message<'a>, motd: Message<'a> }
        => {}
    /// The name of the volume at the root of the file space.
    151 GetRootVolume {}
        => { volume_name: Name<'a> }
    /// The server's clock; also how a client finds out that it answers.
    153 GetTime {}
        => { seconds: u32, microseconds: u32 }
    /// `FetchStatus` of several files; one that fails fails all.
    155 BulkStatus { fids: AfsCbFids }
        => { statuses: AfsBulkStats, callbacks: AfsCbs, sync: AfsVolSync }
    /// Locks a file for [`LOCK_SECONDS`].
    156 SetLock { fid: AfsFid, lock: LockType }
        => { sync: AfsVolSync }
    /// Lets a lock hold for another [`LOCK_SECONDS`].
    157 ExtendLock { fid: AfsFid }
        => { sync: AfsVolSync }
    /// Ends a lock.
    158 ReleaseLock { fid: AfsFid }
        => { sync: AfsVolSync }
    /// Finds a name in a directory, for clients that do not read directories (translators).
    161 Lookup { directory: AfsFid, name: Name<'a> }
        => { fid: AfsFid, status: AfsFetchStatus, directory_status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// Asks to forget which groups these users and addresses belong to.
    162 FlushCPS { ids: ViceIds, addresses: IpAddrs, spare1: i32 }
        => { spare2: i32, spare3: i32 }
    /// `FetchStatus` of several files; the error of one stands in its status.
    65536 InlineBulkStatus { fids: AfsCbFids }
        => { statuses: AfsBulkStats, callbacks: AfsCbs, sync: AfsVolSync }
    /// `FetchData` of large files. The reply begins with a length of eight bytes and the data.
    65537 FetchData64 { fid: AfsFid, position: u64, length: u64 }
        => { status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync }
    /// `StoreData` of large files.
    65538 StoreData64 { fid: AfsFid, wanted: AfsStoreStatus, position: u64, length: u64, file_length: u64 }
        => { status: AfsFetchStatus, sync: AfsVolSync }
    /// The caller forgets all promises; it is about to end.
    65539 GiveUpAllCallBacks {}
        => {}
    /// What the server is able to do (bits of [`crate::capability`]).
    65540 GetCapabilities {}
        => { capabilities: Capabilities }
    /// Counts of 64 bits, as many as the caller knows (their places are in [`stats64`]).
    65542 GetStatistics64 { version: i32 }
        => { statistics: List<u64, { stats64::COUNT }> }
}

impl Request<'_> {
    /// Bytes of file data that follow the arguments.
    pub fn data_bytes(&self) -> u64 {
        match self {
            Request::StoreData { length, .. } => u64::from(*length),
            Request::StoreData64 { length, .. } => *length,
            _ => 0,
        }
    }
}
