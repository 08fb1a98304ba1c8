//! The two locks of a file: the open lock, held while the file is in use, and the header lock,
//! shared with `cryptsetup`.

use crate::Lock;
use block::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

/// Directory of `cryptsetup`'s lock files for block devices (`lib/utils_device_locking.c`).
const CRYPTSETUP_LOCKS: &str = "/run/cryptsetup";
/// How long to wait for the open lock. A killed process may hold it a moment longer: the kernel
/// tears down its rings, and with them their files, after the process has ended. A caller that
/// knows that no process holds the lock tries again: on a busy machine that takes seconds.
const OPEN_LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait for a header change by another program.
const HEADER_LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// First byte of the part of the lock that the open file description of a device has, if another one
/// has the rest. No file is that long.
const DEVICE_PART: libc::off_t = 1 << 62;
/// How long a successor waits for the last request of its predecessor.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(15);

/// Takes the open lock on an open file. It is released when the last descriptor of the open file
/// description is closed, also when the process is killed.
pub(crate) fn take_open_lock(file: &File, name: &str, lock: Lock) -> Result<()> {
    take(file.as_raw_fd(), name, lock, (0, 0), OPEN_LOCK_PATIENCE)
}

/// Opens a file again, to have its lock. A block device is then in use for the kernel.
pub(crate) fn holder_of(file: &File, name: &str, lock: Lock) -> Result<OwnedFd> {
    let is_writer = lock == Lock::Exclusive;
    let mut flags = if is_writer {
        OFlags::RDWR
    } else {
        OFlags::RDONLY
    };
    let meta = file.metadata().map_err(|e| Error::from_io(name, e))?;
    flags.set(
        OFlags::EXCL,
        is_writer && meta.file_type().is_block_device(),
    );
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(same, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Error::from_io(name, e.into()).detail("cannot be opened again"))
}

/// Takes the open lock by two open file descriptions of a file: `holder` has all but the part of the
/// device, or has it already. The device has its part once the rings of its predecessor are gone.
pub(crate) fn take_apart(file: &File, holder: &OwnedFd, name: &str, lock: Lock) -> Result<()> {
    let rest = (0, DEVICE_PART);
    take(holder.as_raw_fd(), name, lock, rest, OPEN_LOCK_PATIENCE)?;
    let own = (DEVICE_PART, 0);
    take(file.as_raw_fd(), name, lock, own, PREDECESSOR_PATIENCE)
}

/// Takes a lock on a range, given by its first byte and its length (0: to the end).
fn take(
    file: RawFd,
    name: &str,
    lock: Lock,
    (start, len): (libc::off_t, libc::off_t),
    patience: Duration,
) -> Result<()> {
    let kind = match lock {
        Lock::Exclusive => libc::F_WRLCK,
        Lock::Shared => libc::F_RDLCK,
        Lock::None => return Ok(()),
    };
    // SAFETY: an all-zero flock is a valid value; process 0 is what open-file-description locks
    // require.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    (range.l_start, range.l_len) = (start, len);
    let taken = [libc::EAGAIN, libc::EACCES];
    let locked = within(patience, &taken, || {
        // SAFETY: the descriptor is open, and `range` lives through the call.
        match unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &range) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    });
    locked.map_err(|source| {
        if is_one_of(&source, &taken) {
            busy(name)
        } else {
            Error::from_io(name, source).detail("cannot be locked")
        }
    })
}

/// Retries for a moment while `attempt` fails with one of `taken`: the kernel tears down the rings
/// of a process after it has ended, and with them its last reference to the file.
pub(crate) fn patiently<T>(
    taken: &[i32],
    attempt: impl FnMut() -> std::io::Result<T>,
) -> std::io::Result<T> {
    within(OPEN_LOCK_PATIENCE, taken, attempt)
}

fn within<T>(
    patience: Duration,
    taken: &[i32],
    mut attempt: impl FnMut() -> std::io::Result<T>,
) -> std::io::Result<T> {
    let end = Instant::now() + patience;
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

/// Releases the open lock at once. Closing the file does so too, but a ring may hold the file for a
/// moment longer.
pub(crate) fn drop_open_lock(file: &impl AsRawFd) {
    // SAFETY: as in `take_open_lock`; the kernel only reads the value.
    unsafe {
        let mut whole: libc::flock = std::mem::zeroed();
        whole.l_type = libc::F_UNLCK as libc::c_short;
        whole.l_whence = libc::SEEK_SET as libc::c_short;
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &whole);
    }
}

/// Creates the error for a file that another process has open.
pub(crate) fn busy(name: &str) -> Error {
    Error::new(
        ErrorKind::Busy,
        name,
        "another process has it open; `evfs status` lists attached volumes, `evfs detach NAME` \
         releases one",
    )
}

/// Other holders that a lock admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Other holders may share the lock: for a reader.
    Shared,
    /// No other holder: for a writer.
    Exclusive,
}

/// Header lock, released on drop.
#[derive(Debug)]
pub struct HeaderGuard {
    _file: OwnedFd,
}

/// Takes the lock that `cryptsetup` takes around reading and changing a header: `flock` on the file
/// itself, or for a block device on a separate lock file.
///
/// The locked file is the open one, whatever file has its name now: it is reopened through its
/// descriptor, so that the locks of two threads of this process exclude each other as well.
pub(crate) fn header_lock(open: &File, name: &str, sharing: Sharing) -> Result<HeaderGuard> {
    let io =
        |e: rustix::io::Errno| Error::from_io(name, e.into()).detail("cannot take the header lock");
    let meta = open.metadata().map_err(|e| Error::from_io(name, e))?;
    let file = if meta.file_type().is_block_device() {
        let made = std::fs::DirBuilder::new()
            .mode(0o700)
            .create(CRYPTSETUP_LOCKS);
        if let Err(e) = made
            && e.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(Error::from_io(CRYPTSETUP_LOCKS, e)
                .detail("cannot create the directory of header locks"));
        }
        let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
        let lock = format!("{CRYPTSETUP_LOCKS}/L_{major}:{minor}");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::open(lock, flags, Mode::RUSR | Mode::WUSR).map_err(io)?
    } else {
        let same = format!("/proc/self/fd/{}", open.as_raw_fd());
        rustix::fs::open(same, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(io)?
    };
    let operation = match sharing {
        Sharing::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Sharing::Shared => FlockOperation::NonBlockingLockShared,
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
