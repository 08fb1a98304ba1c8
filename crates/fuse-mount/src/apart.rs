//! Work apart from this process: in a child process, or in a thread that shares less than usual.

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::UnshareFlags;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Lowest number of a descriptor that is no standard stream.
const FIRST_OPENED: libc::c_uint = 3;

/// Gives this thread its own copy of what `flags` name, which ends with it.
pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: a thread with a table of descriptors of its own must neither use nor close those of
    // others by number: the callers use none.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Runs `work`, which waits for a server in this process, in a child process that has the standard
/// streams as its only descriptors. `work` opens what it needs.
///
/// If this process is killed, the kernel cannot end a thread that waits for its server before the
/// request is answered. Such a thread would keep the descriptors of the session, so that the request
/// never failed, and the memory, in which the kernel has rings with the lock of the device, so that no
/// successor could begin. The child has neither. It is killed with this process, so it makes no system
/// call once a successor has begun, and at most waits for the end of one.
///
/// If the system refuses another process, `work` runs in this one.
///
/// # Errors
/// That of `work`; `EIO` if the child was killed.
///
/// # Safety
/// The child is a copy of one thread of perhaps many, so `work` makes only system calls: it neither
/// allocates memory, nor takes a lock, nor panics.
pub unsafe fn apart(work: impl FnOnce() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    // No handler of a signal runs in the child, where its descriptors are others.
    let signals = Blocked::new();
    let this = getpid();
    // Like fork(2), but the end of the child is no SIGCHLD, which the program may ignore, and with it the
    // result. SAFETY: the child makes only system calls, as the caller promises.
    match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
        -1 => {
            drop(signals);
            work()
        }
        0 => {
            // SAFETY: closes descriptors of the child, which uses none of them.
            unsafe { libc::syscall(libc::SYS_close_range, FIRST_OPENED, libc::c_uint::MAX, 0) };
            let code = dies_with(this).and_then(|()| work());
            let code = code.map_or_else(Errno::raw_os_error, |()| 0);
            // SAFETY: ends the child, and runs nothing of what the program has set up for its end.
            unsafe { libc::_exit(code) }
        }
        child => {
            drop(signals);
            wait(child as libc::pid_t)
        }
    }
}

/// Lets the kernel kill this process when its parent dies.
fn dies_with(parent: Pid) -> rustix::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) {
        Ok(())
    } else {
        Err(Errno::OWNERDEAD)
    }
}

/// Waits for a child, and returns its result.
fn wait(child: libc::pid_t) -> rustix::io::Result<()> {
    let mut status = 0;
    // SAFETY: `status` has room, and the process is a child.
    while unsafe { libc::waitpid(child, &mut status, libc::__WALL) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
    }
    match libc::WEXITSTATUS(status) {
        _ if !libc::WIFEXITED(status) => Err(Errno::IO),
        0 => Ok(()),
        code => Err(Errno::from_raw_os_error(code)),
    }
}

/// Blocks all signals of this thread until it is dropped.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new() -> Blocked {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the sets are plain memory, of which any content is one, and which the calls fill.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Blocked(before.assume_init())
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Unmounts like umount(2). The last unmount of such a mount waits for its server.
pub(crate) fn unmount(at: &Path, flags: UnmountFlags) -> rustix::io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    // SAFETY: one system call.
    unsafe { apart(|| rustix::mount::unmount(&*at, flags)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_apart_has_no_descriptors_and_its_result_arrives() {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: one system call each.
        let (is_open, fails) = unsafe {
            (
                apart(|| rustix::io::fcntl_getfd(&file).map(drop)),
                apart(|| Err(Errno::NOTEMPTY)),
            )
        };
        assert_eq!((is_open, fails), (Err(Errno::BADF), Err(Errno::NOTEMPTY)));
        // SAFETY: only system calls.
        let killed = unsafe { apart(|| rustix::process::kill_process(getpid(), Signal::KILL)) };
        assert_eq!(killed, Err(Errno::IO));
        rustix::io::fcntl_getfd(&file).unwrap();
    }
}
