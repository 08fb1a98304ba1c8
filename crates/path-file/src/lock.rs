//! The two locks of a file: the open lock, held while it is in use, and the header lock that is
//! shared with `cryptsetup`.

use crate::Lock;
use block::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

/// Where `cryptsetup` keeps its lock files for block devices (`lib/utils_device_locking.c`).
const CRYPTSETUP_LOCKS: &str = "/run/cryptsetup";
/// How long the open lock is waited for. A process that was killed has it a moment longer: the
/// kernel takes its rings down, and with them their files, after it is gone.
const OPEN_LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How long a header change of somebody else may take before we give up.
const HEADER_LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Takes the open lock on an open file. It goes when the last descriptor of the opening is closed,
/// also when the process is killed.
pub(crate) fn take_open_lock(file: &File, name: &str, lock: Lock) -> Result<()> {
    let kind = match lock {
        Lock::Exclusive => libc::F_WRLCK,
        Lock::Shared => libc::F_RDLCK,
        Lock::None => return Ok(()),
    };
    // SAFETY: an all-zero flock is a valid value: from the start, to the end, process 0, as
    // open-file-description locks ask for.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = kind as libc::c_short;
    whole.l_whence = libc::SEEK_SET as libc::c_short;
    let taken = [libc::EAGAIN, libc::EACCES];
    let locked = patiently(&taken, || {
        // SAFETY: the descriptor is open, and `whole` lives through the call.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &whole) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    });
    locked.map_err(|source| match is_one_of(&source, &taken) {
        true => busy(name),
        false => Error::from_io(name, source).detail("cannot be locked"),
    })
}

/// Tries again for a moment what fails with one of `taken`: the kernel takes the rings of a process down after
/// the process has ended, and with them the last hold on the file.
pub(crate) fn patiently<T>(
    taken: &[i32],
    mut attempt: impl FnMut() -> std::io::Result<T>,
) -> std::io::Result<T> {
    let end = Instant::now() + OPEN_LOCK_PATIENCE;
    loop {
        match attempt() {
            Err(e) if is_one_of(&e, taken) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

fn is_one_of(error: &std::io::Error, codes: &[i32]) -> bool {
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}

/// Gives the open lock up at once. Closing the file does so too, but a ring may hold the file for a
/// moment longer than we do.
pub(crate) fn drop_open_lock(file: &File) {
    // SAFETY: as in `take_open_lock`; the kernel only reads the value.
    unsafe {
        let mut whole: libc::flock = std::mem::zeroed();
        whole.l_type = libc::F_UNLCK as libc::c_short;
        whole.l_whence = libc::SEEK_SET as libc::c_short;
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &whole);
    }
}

/// The error for a file that somebody else has.
pub(crate) fn busy(name: &str) -> Error {
    Error::new(
        ErrorKind::Busy,
        name,
        "another process has it open; `evfs status` lists attached volumes, `evfs detach NAME` lets one go",
    )
}

/// The header lock, held until this is dropped.
#[derive(Debug)]
pub struct HeaderGuard {
    _file: OwnedFd,
}

/// Takes the lock that `cryptsetup` takes around reading and changing a header: `flock` on the file
/// itself, for a block device on a file of its own.
///
/// The file is the one that is open, whatever has its name by now: it is opened anew by its descriptor, so that
/// locks of two threads of this process exclude each other as well.
pub(crate) fn header_lock(open: &File, name: &str, exclusive: bool) -> Result<HeaderGuard> {
    let io = |e: rustix::io::Errno| Error::from_io(name, e.into()).detail("the header lock");
    let meta = open.metadata().map_err(|e| Error::from_io(name, e))?;
    let file = if meta.file_type().is_block_device() {
        let made = std::fs::DirBuilder::new()
            .mode(0o700)
            .create(CRYPTSETUP_LOCKS);
        if let Err(e) = made
            && e.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(Error::from_io(CRYPTSETUP_LOCKS, e).detail("the folder of header locks"));
        }
        let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
        let lock = format!("{CRYPTSETUP_LOCKS}/L_{major}:{minor}");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::open(lock, flags, Mode::RUSR | Mode::WUSR).map_err(io)?
    } else {
        let same = format!("/proc/self/fd/{}", open.as_raw_fd());
        rustix::fs::open(same, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(io)?
    };
    let operation = match exclusive {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    let end = Instant::now() + HEADER_LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(&file, operation) {
            Ok(()) => return Ok(HeaderGuard { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let why = "another program is changing the header; try again when it is done";
                return Err(Error::new(ErrorKind::Busy, name, why));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(io(e)),
        }
    }
}
