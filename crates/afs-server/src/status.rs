//! Conversion of inodes to AFS file statuses.

use crate::acl::Allowed;
use crate::fid;
use crate::volume::Volume;
use afs_proto::Fid;
use afs_proto::fs::{AfsFetchStatus, FileType};
use fs::{Attr, Time};

/// Builds the status of an inode. `length` is the fetchable length: of a directory, its pages.
pub(crate) fn of(
    volume: &Volume,
    attr: &Attr,
    length: u64,
    allowed: Allowed,
    lock_count: i32,
) -> AfsFetchStatus {
    let inode = &attr.inode;
    // The parent of a root is the root itself; `afsd.fuse` relies on it.
    let parent = volume.files.attr(inode.parent).ok();
    let parent = parent.as_ref().and_then(fid::of).unwrap_or(Fid {
        vnode: 0,
        unique: 0,
    });
    AfsFetchStatus {
        file_type: file_type(inode.kind),
        link_count: inode.links,
        length,
        data_version: inode.data_version,
        author: inode.uid,
        owner: inode.uid,
        caller_access: allowed.caller,
        anonymous_access: allowed.anybody,
        unix_mode_bits: inode.permissions,
        parent_vnode: parent.vnode,
        parent_unique: parent.unique,
        residency_mask: 1,
        client_mod_time: seconds(inode.modified),
        server_mod_time: seconds(inode.changed),
        group: inode.gid,
        sync_counter: 0,
        lock_count,
        error_code: afs_proto::Abort(0),
    }
}

fn file_type(kind: fs::FileType) -> FileType {
    match kind {
        fs::FileType::Directory => FileType::Directory,
        fs::FileType::Symlink => FileType::SymbolicLink,
        _ => FileType::File,
    }
}

/// Converts a time to an unsigned 32-bit Unix timestamp, valid from 1970 to 2106.
pub(crate) fn seconds(time: Time) -> u32 {
    u32::try_from(time.seconds.max(0)).unwrap_or(u32::MAX)
}
