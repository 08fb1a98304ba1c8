//! Descriptors on which the callers of queues sleep: one that another thread makes readable, and
//! one for a lower queue and an event of the caller's own.

use crate::{Error, Queue, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

/// A descriptor that any thread makes readable to wake the thread that polls it.
///
/// No wake-up is lost if the waking thread changes its condition before [`Waker::wake`], and the
/// woken thread checks it after [`Waker::take`].
pub struct Waker {
    fd: OwnedFd,
    set: AtomicBool,
}

impl Waker {
    /// Creates a waker that is not set.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> std::io::Result<Waker> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Waker {
            fd: eventfd(0, flags)?,
            set: AtomicBool::new(false),
        })
    }

    /// Makes the descriptor readable. A system call only if it is not.
    pub fn wake(&self) {
        if !self.set.swap(true, SeqCst) {
            // The counter cannot overflow: it is written once for each time it is read.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Reports whether the waker was set since the last call, and resets it. A system call only if
    /// it was. Only one thread may call this.
    pub fn take(&self) -> bool {
        if !self.set.load(SeqCst) {
            return false;
        }
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        self.set.swap(false, SeqCst)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Epoll descriptor that is readable when the lower queue's descriptor or a second one is. Linux
/// nests at most five epoll descriptors, and a cached export of a LUN with iSCSI paths uses all
/// five: worker, cache, flushes, LUN, path.
pub struct WaitPair(OwnedFd);

impl WaitPair {
    /// Creates a descriptor for the queue `lower` and the descriptor `own`.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(lower: &dyn Queue, own: BorrowedFd<'_>) -> Result<WaitPair> {
        let failed = |e: rustix::io::Errno| Error::from_io(&lower.info().name, e.into());
        let pair = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for fd in [Some(own), lower.wait_fd()].into_iter().flatten() {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&pair, fd, data, epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(WaitPair(pair))
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sleeps until one of the descriptors is readable, or until `until`. May return early.
    ///
    /// # Errors
    /// The system call fails; `name` is the name of the device in the message.
    pub fn sleep(&self, until: Option<Instant>, name: &str) -> Result<()> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::from_io(name, e.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(waker: &Waker) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(waker, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    #[test]
    fn a_wake_is_readable_until_it_is_taken_once() {
        let waker = Waker::new().unwrap();
        assert!(!waker.take() && !readable(&waker));
        waker.wake();
        waker.wake();
        assert!(readable(&waker));
        assert!(waker.take() && !readable(&waker));
        assert!(!waker.take());
    }
}
