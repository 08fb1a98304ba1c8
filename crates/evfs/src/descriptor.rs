//! Descriptors of this process: their origin and identity, and the kind of a standard error.

use keeper::is_executed;

/// Reads the type, device and inode of a descriptor.
pub fn about(fd: i32) -> Option<libc::stat> {
    // SAFETY: a struct of plain integers, for which zeros are valid.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` has room, and fstat accepts any number.
    (unsafe { libc::fstat(fd, &raw mut about) } == 0).then_some(about)
}

/// Reports whether this program opened the descriptor: those of its caller were left open by
/// execve(2), and those of this program would not be.
pub fn is_own(fd: i32) -> bool {
    // SAFETY: F_GETFD only reads the flags of a number, which may be any.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC != 0
}

/// Reports whether a descriptor is the stream to the journal with which systemd started this
/// process.
pub fn is_journal(fd: i32) -> bool {
    about(fd).is_some_and(|about| {
        let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        journal == format!("{}:{}", about.st_dev, about.st_ino)
    })
}

fn is_null(about: &libc::stat) -> bool {
    about.st_rdev == libc::makedev(1, 3)
}

/// Reports whether a descriptor is suitable for output from the background: a file, a device that
/// is not a terminal, or the journal of systemd. The reader of a pipe or a socket waits for its
/// end. A server that another program continues has /dev/null in the place of such a descriptor.
pub fn outlives_caller(fd: i32) -> bool {
    let Some(about) = about(fd) else {
        return false;
    };
    match about.st_mode & libc::S_IFMT {
        libc::S_IFREG => true,
        libc::S_IFCHR if is_executed() && is_null(&about) => false,
        // SAFETY: isatty accepts any number.
        libc::S_IFCHR => unsafe { libc::isatty(fd) == 0 },
        libc::S_IFSOCK => is_journal(fd),
        _ => false,
    }
}
