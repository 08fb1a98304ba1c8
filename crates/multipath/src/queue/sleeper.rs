//! The descriptors for which a queue's thread waits: links, the mailbox, and a timer.

use rustix::event::{Timespec, epoll};
use rustix::io;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Timer interval while I/O is in flight.
pub(super) const TICK: Duration = Duration::from_millis(5);

const EVENT_MAIL: u64 = u64::MAX;
const EVENT_TIMER: u64 = u64::MAX - 1;

pub(super) struct Sleeper {
    epoll: OwnedFd,
    timer: OwnedFd,
    timer_runs: bool,
}

impl Sleeper {
    pub(super) fn new(mailbox: BorrowedFd<'_>) -> io::Result<Sleeper> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let sleeper = Sleeper {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            timer: rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?,
            timer_runs: false,
        };
        sleeper.add(mailbox, EVENT_MAIL)?;
        sleeper.add(sleeper.timer.as_fd(), EVENT_TIMER)?;
        Ok(sleeper)
    }

    fn add(&self, fd: BorrowedFd<'_>, event: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(event);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)
    }

    /// Adds the descriptor of the link on `path`.
    pub(super) fn add_link(&self, path: usize, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.add(fd, path as u64)
    }

    /// Removes the descriptor of a link.
    pub(super) fn remove_link(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Starts or stops the timer.
    pub(super) fn set_timer_runs(&mut self, runs: bool) {
        if runs == self.timer_runs {
            return;
        }
        let every = Timespec {
            tv_sec: 0,
            tv_nsec: if runs { TICK.subsec_nanos().into() } else { 0 },
        };
        let spec = Itimerspec {
            it_interval: every,
            it_value: every,
        };
        let flags = TimerfdTimerFlags::empty();
        if rustix::time::timerfd_settime(&self.timer, flags, &spec).is_ok() {
            self.timer_runs = runs;
        }
    }

    /// Blocks until a link is ready, mail arrives or the timer expires, or for `time`. Calls
    /// `ready` with the path of each link that is ready. A timer that expires while the queue is
    /// not `busy` is stopped.
    pub(super) fn sleep(
        &mut self,
        time: Duration,
        busy: bool,
        mut ready: impl FnMut(usize),
    ) -> io::Result<()> {
        let timeout = Timespec::try_from(time).ok();
        let mut space = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 16];
        let events = match epoll::wait(&self.epoll, &mut space[..], timeout.as_ref()) {
            Ok(count) => &space[..count],
            Err(io::Errno::INTR) => &[],
            Err(e) => return Err(e),
        };
        for event in events {
            let data = event.data;
            match data.u64() {
                EVENT_MAIL => {}
                EVENT_TIMER => {
                    let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                    if !busy {
                        self.set_timer_runs(false);
                    }
                }
                path => ready(path as usize),
            }
        }
        Ok(())
    }

    /// Returns a descriptor that is readable when any of them is.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
