//! The child process of a keeper, and the signals that the keeper passes on.

use crate::How;
use crate::link::Link;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Signals that are passed on.
const PASSED_ON: [i32; 6] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// The signals to pass on, as messages.
pub(crate) struct Signals {
    arrived: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals, and makes them readable.
    pub fn block() -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the sets are plain memory, which sigemptyset and sigprocmask fill; signalfd returns
        // a new descriptor or -1.
        let arrived = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in PASSED_ON {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if arrived < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd just created it, and sigprocmask filled the set.
        unsafe {
            Ok(Signals {
                arrived: OwnedFd::from_raw_fd(arrived),
                before: before.assume_init(),
            })
        }
    }

    /// Restores the signals, in the child.
    pub fn unblock(self) {
        // SAFETY: the set is the one that the process had.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }

    /// Takes the next signal that a process sent; those of the terminal reach the child as well.
    fn take(&self) -> Option<i32> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` has room for one record, which is plain memory.
        let read = unsafe { libc::read(self.arrived.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read != size as isize {
            return None;
        }
        // SAFETY: the kernel has filled it.
        let info = unsafe { info.assume_init() };
        let by_process = info.ssi_code <= 0;
        by_process.then_some(info.ssi_signo as i32)
    }
}

/// What happens to a keeper.
pub(crate) enum Event {
    /// The time is over.
    Late,
    Message,
    Signal(i32),
    Ended(How),
}

/// The server.
pub(crate) struct Child {
    pid: Pid,
    ended: OwnedFd,
}

/// Forks. `None`: this is the child, which is asked to stop in order when the parent dies.
pub(crate) fn fork() -> io::Result<Option<Child>> {
    let parent = rustix::process::getpid();
    // SAFETY: the process has one thread, so the child may continue like any program.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            if rustix::process::getppid() != Some(parent) {
                std::process::exit(1);
            }
            Ok(None)
        }
        pid => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::Other)?;
            let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
            Ok(Some(Child { pid, ended }))
        }
    }
}

/// The server, and what a keeper waits for beside it.
pub(crate) struct Present<'a> {
    pub child: &'a Child,
    pub link: &'a Link,
    pub signals: &'a Signals,
    /// Earlier servers of which a thread is left.
    pub lingering: &'a mut Vec<Child>,
}

impl Present<'_> {
    /// Waits for an event, at most until a time.
    pub fn event(&mut self, until: Option<Instant>) -> io::Result<Event> {
        loop {
            let mut polled = vec![
                PollFd::new(&self.child.ended, PollFlags::IN),
                PollFd::new(&self.signals.arrived, PollFlags::IN),
                PollFd::new(self.link, PollFlags::IN),
            ];
            let others = self.lingering.iter();
            polled.extend(others.map(|child| PollFd::new(&child.ended, PollFlags::IN)));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec::try_from(left).unwrap_or_default());
            match poll(&mut polled, left.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(0) => return Ok(Event::Late),
                ready => ready?,
            };
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut others = ready[3..].iter();
            self.lingering.retain(|child| {
                let has_ended = others.next() == Some(&true);
                // Its end is known already.
                !(has_ended && child.reap().is_ok())
            });
            if ready[0] {
                return self.child.reap().map(Event::Ended);
            }
            if ready[1]
                && let Some(signal) = self.signals.take()
            {
                return Ok(Event::Signal(signal));
            }
            if ready[2] {
                return Ok(Event::Message);
            }
        }
    }
}

impl Child {
    /// Waits for its end for a time.
    pub fn ends_within(&self, time: Duration) -> io::Result<Option<How>> {
        let time = Timespec::try_from(time).unwrap_or_default();
        let mut polled = [PollFd::new(&self.ended, PollFlags::IN)];
        match poll(&mut polled, Some(&time))? {
            0 => Ok(None),
            _ => self.reap().map(Some),
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: it is a child that was not reaped, so its number belongs to no other process.
        unsafe { libc::kill(self.pid.as_raw_nonzero().get(), signal) };
    }

    fn reap(&self) -> io::Result<How> {
        let mut status = 0;
        loop {
            // SAFETY: `status` has room, and the process is a child.
            let pid = unsafe { libc::waitpid(self.pid.as_raw_nonzero().get(), &mut status, 0) };
            let error = io::Error::last_os_error();
            match pid {
                -1 if error.kind() == io::ErrorKind::Interrupted => {}
                -1 => return Err(error),
                _ if libc::WIFEXITED(status) => {
                    return Ok(How::Code(libc::WEXITSTATUS(status) as u8));
                }
                _ => return Ok(How::Signal(libc::WTERMSIG(status) as u8)),
            }
        }
    }
}
