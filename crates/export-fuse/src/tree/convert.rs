//! Conversions between the types of `fs` and those of the protocol.

use fs::{Attr, FileType};
use fuse_mount::fuse_proto::{self, SetTime, Time};

/// Size in bytes that a directory reports for each entry.
const DIRECTORY_ENTRY_BYTES: u64 = 32;

pub(super) fn attr(attr: &Attr) -> fuse_proto::Attr {
    let inode = &attr.inode;
    let size = match inode.kind {
        // As in other file systems, the size of a directory reflects its number of entries.
        FileType::Directory => inode.entries.saturating_mul(DIRECTORY_ENTRY_BYTES),
        _ => inode.size,
    };
    fuse_proto::Attr {
        ino: attr.ino,
        size,
        blocks: inode.blocks * (fs::BLOCK_BYTES / 512),
        atime: time(inode.accessed),
        mtime: time(inode.modified),
        ctime: time(inode.changed),
        btime: Some(time(inode.created)),
        mode: inode.kind.mode_bits() | inode.permissions & 0o7777,
        nlink: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        blksize: fs::BLOCK_BYTES as u32,
        flags: 0,
    }
}

/// Attributes of a regular file that no longer exists.
pub(super) fn removed_file(ino: u64) -> fuse_proto::Attr {
    fuse_proto::Attr {
        ino,
        mode: FileType::File.mode_bits(),
        ..fuse_proto::Attr::default()
    }
}

fn time(time: fs::Time) -> Time {
    Time {
        seconds: time.seconds,
        nanos: time.nanos,
    }
}

pub(super) fn set_time(time: SetTime) -> fs::SetTime {
    match time {
        SetTime::Now => fs::SetTime::Now,
        SetTime::At(time) => exact_time(time),
    }
}

pub(super) fn exact_time(time: Time) -> fs::SetTime {
    fs::SetTime::To(fs::Time {
        seconds: time.seconds,
        nanos: time.nanos,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_both_ways() {
        let before = Time {
            seconds: -5,
            nanos: 700_000_000,
        };
        let fs::SetTime::To(kept) = set_time(SetTime::At(before)) else {
            panic!("it is no other time");
        };
        assert_eq!((kept.seconds, kept.nanos), (-5, 700_000_000));
        assert_eq!(time(kept), before);
    }
}
