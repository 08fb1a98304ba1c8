//! Conversions between the types of `fs` and those of `fuser`.

use fs::{Attr, FileType, SetTime, Time};
use fuser::{FileAttr, Generation, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn attr(attr: &Attr) -> FileAttr {
    let inode = &attr.inode;
    let size = match inode.kind {
        // As in other file systems, the size of a directory reflects its number of entries.
        FileType::Directory => inode.entries.saturating_mul(DIRECTORY_ENTRY_BYTES),
        _ => inode.size,
    };
    FileAttr {
        ino: INodeNo(attr.ino),
        size,
        blocks: inode.blocks * (fs::BLOCK_BYTES / 512),
        atime: time(inode.accessed),
        mtime: time(inode.modified),
        ctime: time(inode.changed),
        crtime: time(inode.created),
        kind: kind(inode.kind),
        perm: inode.permissions as u16,
        nlink: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        flags: 0,
        blksize: fs::BLOCK_BYTES as u32,
    }
}

/// Size in bytes that a directory reports for each entry.
const DIRECTORY_ENTRY_BYTES: u64 = 32;

/// Creates the attributes of a negative entry: the name does not exist, and the kernel may cache
/// that.
pub(super) fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 0,
    }
}

pub(super) fn generation(attr: &Attr) -> Generation {
    Generation(attr.inode.generation.into())
}

pub(super) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::File => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
    }
}

fn time(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(time.nanos.into());
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds >= 0 {
        UNIX_EPOCH.checked_add(seconds)
    } else {
        UNIX_EPOCH.checked_sub(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Time {
                seconds: since.as_secs() as i64,
                nanos: since.subsec_nanos(),
            },
            // `fuser` subtracts both the seconds and the nanoseconds from 1970, although the kernel
            // counts nanoseconds forward from the second.
            Err(before) => Time {
                seconds: -(before.duration().as_secs() as i64),
                nanos: before.duration().subsec_nanos(),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_both_ways() {
        // Result of `fuser` for the kernel's second -5 and nanosecond 700 000 000.
        let from_fuser = UNIX_EPOCH - Duration::new(5, 700_000_000);
        let expected = Time {
            seconds: -5,
            nanos: 700_000_000,
        };
        assert_eq!(
            set_time(TimeOrNow::SpecificTime(from_fuser)),
            SetTime::To(expected)
        );
        let shown = time(expected);
        assert_eq!(
            UNIX_EPOCH.duration_since(shown).unwrap(),
            Duration::from_millis(4300)
        );
    }

    #[test]
    fn a_time_that_the_system_cannot_say_is_no_panic() {
        let far = Time {
            seconds: i64::MIN,
            nanos: 999_999_999,
        };
        let _ = time(far);
        let far = Time {
            seconds: i64::MAX,
            nanos: 999_999_999,
        };
        let _ = time(far);
    }
}
