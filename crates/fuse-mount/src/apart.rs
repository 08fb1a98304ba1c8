//! Threads that share less than usual with the others.

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::thread::UnshareFlags;
use std::path::Path;

/// Lowest number of a descriptor that is no standard stream.
const FIRST_OPENED: libc::c_uint = 3;

/// Gives this thread its own copy of what `flags` name, which ends with it.
pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: a thread with a table of descriptors of its own must neither use nor close those of
    // others by number: `leave_descriptors` closes its copies of them, and its callers use none.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Gives this thread a table of descriptors of its own, which holds the standard streams only.
///
/// A thread that waits for the server of this process must have no descriptor of its session: if the
/// process is killed, the kernel ends the request only once the last of them is closed, and the
/// thread only once its request has ended. The caller uses no descriptor of other threads.
pub(crate) fn leave_descriptors() -> rustix::io::Result<()> {
    unshare(UnshareFlags::FS | UnshareFlags::FILES)?;
    let (first, last) = (FIRST_OPENED, libc::c_uint::MAX);
    // SAFETY: closes only copies of this thread, which uses none of them.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        // No kernel without this call forwards a sync(2).
        _ => Err(Errno::NOSYS),
    }
}

/// Unmounts like umount(2). The last unmount of such a mount waits for its server.
pub(crate) fn unmount(at: &Path, flags: UnmountFlags) -> rustix::io::Result<()> {
    let unmount = || {
        // Where this is not allowed, there is no such mount of this process either.
        let _ = leave_descriptors();
        rustix::mount::unmount(at, flags)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("fuse-unmount".into());
        match thread.spawn_scoped(scope, unmount) {
            // The message of a panic has been printed by its hook.
            Ok(thread) => thread.join().unwrap_or(Err(Errno::IO)),
            Err(_) => rustix::mount::unmount(at, flags),
        }
    })
}
