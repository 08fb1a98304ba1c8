//! Files that another process has locked. The lock does not reveal its holder: it belongs to an open
//! file, which the rings of a killed process keep open until the kernel has torn them down. On a
//! busy machine that takes seconds, and a restart must not fail for it.

use super::Disk;
use crate::claim::Claim;
use crate::error::{Error, Result};
use block::Access;
use block::ErrorKind;
use path_file::{FileDevice, Options};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for a lock that no process is known to hold.
const TEARDOWN_PATIENCE: Duration = Duration::from_secs(15);

/// Opens a file or block device. For [`Access::ReadWrite`], readers of its content are in the way.
///
/// # Errors
/// Those of [`FileDevice::open`]. [`Error::Busy`] names the process that has the file locked, if
/// the claim on its content does.
pub(super) fn open(device: &Path, options: &Options, access: Access) -> Result<Arc<FileDevice>> {
    let end = Instant::now() + TEARDOWN_PATIENCE;
    let mut is_announced = false;
    loop {
        // Each attempt waits for a second.
        let error = match FileDevice::open(device, options) {
            Err(error) if error.kind() == ErrorKind::Busy => error,
            opened => return Ok(opened?),
        };
        if let Some(named) = claimed(device, access) {
            return Err(named);
        }
        if Instant::now() >= end || is_held(device) {
            return Err(error.into());
        }
        if !is_announced {
            tracing::warn!(
                name: "EVFS-0301",
                file = %device.display(),
                "another process has it open; waiting up to {} seconds until it is closed",
                TEARDOWN_PATIENCE.as_secs()
            );
            is_announced = true;
        }
    }
}

/// Finds the process that has a claim on the content of a file.
fn claimed(device: &Path, access: Access) -> Option<Error> {
    let options = Options {
        read_only: true,
        lock: path_file::Lock::None,
        ..Options::default()
    };
    let disk = Disk::from(FileDevice::open(device, &options).ok()?);
    let shown = device.display().to_string();
    Claim::refusal(&disk.content_now()?.uuid, &shown, access)
}

/// Reports whether a running process has a file locked, or the kernel uses a block device. Locks of
/// processes that this process may not trace stay hidden: those of other users from an ordinary
/// user, and those of most processes from a service of root that has dropped its capabilities.
fn is_held(device: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(device) else {
        return true;
    };
    if meta.file_type().is_block_device() && is_used_by_kernel(&meta) {
        return true;
    }
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let same = format!(" {major:02x}:{minor:02x}:{} ", meta.ino());
    // Each lock of an open file is a line `lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:5678 0 EOF`.
    let locks = |file: &Path| {
        let info = std::fs::read_to_string(file).unwrap_or_default();
        let mut lines = info.lines();
        lines.any(|line| line.starts_with("lock:") && line.contains(&same))
    };
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    entries(Path::new("/proc"))
        .filter(|process| process.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .flat_map(|process| entries(&process.path().join("fdinfo")))
        .any(|file| locks(&file.path()))
}

/// Reports whether a block device is mounted, or part of another device.
fn is_used_by_kernel(meta: &Metadata) -> bool {
    let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let number = format!("{major}:{minor}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // `36 35 98:0 /root /mnt ...`: the third field is the number of the device.
    let mounted = |line: &str| line.split(' ').nth(2) == Some(&number);
    let holders = std::fs::read_dir(format!("/sys/dev/block/{number}/holders"));
    mounts.lines().any(mounted) || holders.is_ok_and(|mut found| found.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use path_file::Lock;

    #[test]
    fn the_holder_of_a_lock_is_found_and_others_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        std::fs::write(&file, [0; 4096]).unwrap();
        let open = |lock| {
            let options = Options {
                lock,
                ..Options::default()
            };
            FileDevice::open(&file, &options).unwrap()
        };
        let unlocked = open(Lock::None);
        assert!(!is_held(&file), "open, but not locked");
        let locked = open(Lock::Exclusive);
        assert!(is_held(&file));
        drop(locked);
        assert!(!is_held(&file));
        drop(unlocked);
        assert!(is_held(&directory.path().join("b")), "no such file");
    }
}
