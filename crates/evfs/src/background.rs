//! `--background`: the command goes on in a child once it is ready, and the caller gets the
//! answer it would have seen and its exit code.
//!
//! The fork comes first, while the process has one thread; the child keeps the terminal until it
//! has asked its questions, and lets go of it when it is ready.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// The child's side: whom to tell that it is ready.
pub struct Ready(File);

/// Which side of the fork this is.
pub enum Side {
    /// The caller, with what the child said.
    Parent(u8),
    /// The process that goes on.
    Child(Ready),
}

/// Splits off a child. Must be called while the process has a single thread.
pub fn split() -> std::io::Result<Side> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: pipe2 just made both, and nobody else knows them.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: no other thread exists, so the child may go on as any program.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            drop(read);
            Ok(Side::Child(Ready(File::from(write))))
        }
        pid => {
            drop(write);
            Ok(Side::Parent(wait_for(pid, File::from(read))))
        }
    }
}

/// Waits until the child is ready or has ended, and prints what it had to say.
fn wait_for(pid: i32, mut read: File) -> u8 {
    let mut said = Vec::new();
    let _ = read.read_to_end(&mut said);
    if let [b'+', text @ ..] = said.as_slice() {
        let _ = std::io::stdout().write_all(text);
        return 0;
    }
    let mut status = 0;
    // SAFETY: `pid` is our child and `status` has room.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    let code = if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    };
    code as u8
}

impl Ready {
    /// Leaves the terminal and tells the caller what to print.
    pub fn tell(mut self, text: &str) {
        // SAFETY: setsid, open and dup2 touch only this process's session and descriptors 0 to 2;
        // failure leaves them as they were, which is harmless.
        unsafe {
            libc::setsid();
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if null >= 0 {
                for fd in 0..3 {
                    libc::dup2(null, fd);
                }
                libc::close(null);
            }
        }
        let _ = self.0.write_all(format!("+{text}\n").as_bytes());
    }
}
