//! One descriptor for queues that wait for the lower queue and for an event of their own.

use crate::{Error, Queue, Result};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

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
