//! Waiting of a session's thread for its pager, for other sessions, and for a time.

use block::{Error, Result, Waker};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Descriptors that a session's thread sleeps on.
pub(super) struct Sleeper {
    /// Is set by other sessions.
    pub(super) waker: Arc<Waker>,
    timer: OwnedFd,
    /// Readable when the pager's queue, the waker or the timer is.
    all: OwnedFd,
    /// The volume's name, for errors.
    name: String,
}

impl Sleeper {
    /// Creates the descriptors of a session whose pager's queue signals completions on `queue`.
    pub(super) fn new(
        name: &str,
        waker: Arc<Waker>,
        queue: Option<BorrowedFd<'_>>,
    ) -> Result<Sleeper> {
        let failed = |e: rustix::io::Errno| Error::from_io(name, e.into());
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let fds = [Some(waker.as_fd()), Some(timer.as_fd()), queue];
        for (tag, fd) in fds.into_iter().enumerate() {
            if let Some(fd) = fd {
                let data = epoll::EventData::new_u64(tag as u64);
                epoll::add(&all, fd, data, epoll::EventFlags::IN).map_err(failed)?;
            }
        }
        Ok(Sleeper {
            waker,
            timer,
            all,
            name: name.to_owned(),
        })
    }

    /// Returns a descriptor that is readable when an event may have happened.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Blocks until a descriptor signals that an event may have happened.
    pub(super) fn sleep(&self, until: Option<Instant>) -> Result<()> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(timespec);
        let all = PollFd::new(&self.all, PollFlags::IN);
        match poll(&mut [all], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::from_io(&self.name, e.into())),
        }
    }

    /// Makes the timer readable after this time, and unreadable until then.
    pub(super) fn arm(&self, due: Duration) {
        let setting = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            // A zero value would disarm the timer.
            it_value: timespec(due.max(Duration::from_nanos(1))),
        };
        let flags = TimerfdTimerFlags::empty();
        // Setting a valid timer cannot fail.
        let _ = rustix::time::timerfd_settime(&self.timer, flags, &setting);
    }

    /// Makes the timer unreadable.
    pub(super) fn reset(&self) {
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
