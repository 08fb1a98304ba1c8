//! `--background`: once it is ready, the command continues in a child process; the caller prints
//! the child's output and returns its exit code.
//!
//! The process forks while it has a single thread. The child keeps the terminal until it has asked
//! its questions. When it is ready it closes the terminal and every descriptor that its caller left
//! open: a long-running process must not hold a lock, or a pipe whose reader waits for its end.

use crate::descriptor::{about, is_own, outlives_caller};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The child's connection to its caller, to report that it is ready.
pub struct Ready {
    caller: File,
    inherited: Vec<Inherited>,
}

/// A descriptor that the caller left open.
struct Inherited {
    fd: i32,
    device: libc::dev_t,
    inode: libc::ino_t,
}

/// Whether this process is the child of a fork by [`split`].
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Reports whether this process continues a command whose caller prints its output. Process IDs
/// cannot tell: caller and child may have the same one, each in its own namespace.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Side of the fork.
pub enum Side {
    /// The caller, with the exit code from the child.
    Parent(u8),
    /// The process that continues.
    Child(Ready),
}

/// Forks a child. Must be called while the process has a single thread.
pub fn split() -> std::io::Result<Side> {
    let inherited = inherited();
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: pipe2 just created both, and no other code knows them.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: no other thread exists, so the child may continue like any program.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            IS_CHILD.store(true, Ordering::Relaxed);
            drop(read);
            Ok(Side::Child(Ready {
                caller: File::from(write),
                inherited,
            }))
        }
        pid => {
            drop(write);
            Ok(Side::Parent(wait_for(pid, File::from(read))))
        }
    }
}

/// Collects the open descriptors other than 0 to 2. A key may still be read from one of them.
fn inherited() -> Vec<Inherited> {
    let listed = std::fs::read_dir("/proc/self/fd");
    let numbers = listed.into_iter().flatten().flatten();
    numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2 && !is_own(*fd))
        .filter_map(Inherited::of)
        .collect()
}

impl Inherited {
    fn of(fd: i32) -> Option<Inherited> {
        about(fd).map(|about| Inherited {
            fd,
            device: about.st_dev,
            inode: about.st_ino,
        })
    }

    /// Closes the descriptor, unless it was closed already and its number now belongs to another
    /// file.
    fn close(&self) {
        let now = Inherited::of(self.fd);
        if now.is_some_and(|now| (now.device, now.inode) == (self.device, self.inode)) {
            // SAFETY: no object in this process owns a descriptor that its caller left open, except
            // for secrets that arrive by a descriptor, which is closed once they are read.
            unsafe { libc::close(self.fd) };
        }
    }
}

/// Waits until the child is ready or has ended, and prints its output.
fn wait_for(pid: i32, mut read: File) -> u8 {
    let mut said = Vec::new();
    let _ = read.read_to_end(&mut said);
    if let [b'+', text @ ..] = said.as_slice() {
        cli::output::changed();
        let mut out = std::io::stdout().lock();
        cli::output::written(out.write_all(text).and_then(|()| out.flush()));
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
    /// Detaches from the terminal, except for a standard error that is not a terminal, and sends
    /// the caller the text to print, which may be empty.
    pub fn report_ready(mut self, text: &str) {
        self.detach();
        let end = if text.is_empty() { "" } else { "\n" };
        let _ = self.caller.write_all(format!("+{text}{end}").as_bytes());
    }

    /// Detaches from the terminal and from the caller, for which another process answers.
    pub fn leave_to_another(self) {
        self.detach();
    }

    fn detach(&self) {
        let keeps_stderr = outlives_caller(2);
        if !keeps_stderr {
            crate::log::detach_from_stderr();
        }
        // SAFETY: setsid, open and dup2 touch only this process's session and descriptors 0 to 2;
        // failure leaves them as they were, which is harmless.
        unsafe {
            libc::setsid();
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if null >= 0 {
                let last = if keeps_stderr { 1 } else { 2 };
                for fd in 0..=last {
                    libc::dup2(null, fd);
                }
                libc::close(null);
            }
        }
        self.inherited.iter().for_each(Inherited::close);
    }
}
