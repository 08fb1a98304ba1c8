//! The two system interfaces that have no safe form: cloning a FUSE descriptor, and handing a
//! descriptor on to a child.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `FUSE_DEV_IOC_CLONE`, `_IOR(229, 0, uint32_t)` of <linux/fuse.h>
const FUSE_DEV_IOC_CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);

/// Makes `fresh`, a new opening of `/dev/fuse`, another queue of the mount that `session` serves.
pub(crate) fn clone_session(session: &OwnedFd, fresh: &OwnedFd) -> io::Result<()> {
    let number = session.as_raw_fd() as u32;
    // SAFETY: despite its direction the request reads a u32 with the number of a descriptor, and
    // writes nothing; `Setter` passes the address of a u32 that lives through the call.
    unsafe {
        let clone = rustix::ioctl::Setter::<FUSE_DEV_IOC_CLONE, u32>::new(number);
        Ok(rustix::ioctl::ioctl(fresh, clone)?)
    }
}

/// Lets the program that `command` starts inherit `fd` under its number.
pub(crate) fn inherit(command: &mut Command, fd: OwnedFd) {
    let keep_open = move || {
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: between fork and exec only a system call is made, which is async-signal-safe; nothing
    // is allocated and no lock is taken.
    unsafe { command.pre_exec(keep_open) };
}
