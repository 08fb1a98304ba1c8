//! Waking the workers.

use rustix::event::EventfdFlags;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Event descriptors of all workers of a server.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<Vec<Arc<OwnedFd>>>);

impl Wakes {
    /// Adds a worker and returns its descriptor, which is readable once the worker was woken.
    pub(crate) fn add(&self) -> Arc<OwnedFd> {
        let wake = Arc::new(eventfd());
        let mut all = self.0.lock().expect("no panic under this lock");
        all.push(Arc::clone(&wake));
        wake
    }

    /// Wakes all workers to check their connections.
    pub(crate) fn wake_all(&self) {
        for fd in self.0.lock().expect("no panic under this lock").iter() {
            wake(fd);
        }
    }
}

/// Creates an event descriptor.
pub(crate) fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .expect("the system gives an eventfd")
}

/// Makes an event descriptor readable.
pub(crate) fn wake(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
