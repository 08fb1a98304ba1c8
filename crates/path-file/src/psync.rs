//! I/O by system calls in the calling thread, for systems that forbid io_uring.

use crate::sys::Sys;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Results of completed operations that have not been drained yet.
#[derive(Default)]
pub(crate) struct Psync {
    results: Vec<(u64, i32)>,
}

impl Psync {
    /// Executes the operation; always accepts it.
    pub(crate) fn execute(&mut self, file: &File, index: u64, sys: &Sys<'_>) -> bool {
        self.results.push((index, carry_out(file.as_raw_fd(), sys)));
        true
    }

    /// Moves the results to the end of `out`.
    pub(crate) fn drain(&mut self, out: &mut Vec<(u64, i32)>) {
        out.append(&mut self.results);
    }
}

/// Executes an operation. Returns the result in the form of io_uring: a byte count, or a negative
/// errno.
fn carry_out(fd: i32, sys: &Sys<'_>) -> i32 {
    let flags = |fua: bool| if fua { libc::RWF_DSYNC } else { 0 };
    // SAFETY: the descriptor is open; the buffers belong to a job that is held until its result has
    // been settled, and the calls return before that.
    let result = unsafe {
        match *sys {
            Sys::Read { offset, ptr, len } => {
                libc::pread(fd, ptr.cast(), len as usize, offset as libc::off_t)
            }
            Sys::Write {
                offset,
                ptr,
                len,
                fua,
            } => {
                let iov = libc::iovec {
                    iov_base: ptr.cast_mut().cast(),
                    iov_len: len as usize,
                };
                libc::pwritev2(fd, &iov, 1, offset as libc::off_t, flags(fua))
            }
            Sys::ReadV { offset, iov } => {
                libc::preadv(fd, iov.as_ptr(), iov.len() as i32, offset as libc::off_t)
            }
            Sys::WriteV { offset, iov, fua } => libc::pwritev2(
                fd,
                iov.as_ptr(),
                iov.len() as i32,
                offset as libc::off_t,
                flags(fua),
            ),
            Sys::Sync => libc::fdatasync(fd) as isize,
            Sys::Fallocate { offset, len, mode } => {
                libc::fallocate(fd, mode, offset as libc::off_t, len as libc::off_t) as isize
            }
        }
    };
    if result >= 0 {
        return result as i32;
    }
    -std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}
