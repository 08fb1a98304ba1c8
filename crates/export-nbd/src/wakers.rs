//! Waking the workers.

use block::Waker;
use std::sync::{Arc, Mutex};

/// Wakers of all workers of a server.
#[derive(Default)]
pub(crate) struct Wakers(Mutex<Vec<Arc<Waker>>>);

impl Wakers {
    /// Adds a worker and returns its waker.
    pub(crate) fn add(&self) -> std::io::Result<Arc<Waker>> {
        let waker = Arc::new(Waker::new()?);
        let mut all = self.0.lock().expect("no panic under this lock");
        all.push(Arc::clone(&waker));
        Ok(waker)
    }

    /// Wakes all workers to check their connections.
    pub(crate) fn wake_all(&self) {
        let all = self.0.lock().expect("no panic under this lock");
        all.iter().for_each(|waker| waker.wake());
    }
}
