//! The kernel's requests to make everything durable, each answered within a time limit.
//!
//! ```text
//!   SYNCFS ──► waiting ──► a thread syncs ──► answer
//!                 └───── time limit ──► ETIMEDOUT, and the sync continues
//! ```
//!
//! sync(2) of any process waits for all file systems, one after the other, and cannot be
//! interrupted: a device that does not answer must not block it indefinitely. No thread that serves
//! the mount waits for a sync. **Invariant:** a request succeeds only if a sync that began after its
//! arrival has succeeded.

use fuse_mount::{Errno, Reply};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The requests, and the two threads that serve them, which start with the first one.
pub(super) struct Syncs {
    shared: Arc<Shared>,
    limit: Duration,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests that arrived since the sync in progress began.
    waiting: Vec<Pending>,
    /// Requests that the sync in progress serves.
    served: Vec<Pending>,
    has_started: bool,
    is_over: bool,
}

struct Pending {
    reply: Reply<'static>,
    until: Instant,
}

impl Syncs {
    /// Creates the place for requests, each of which is answered within `limit`.
    pub fn new(limit: Duration) -> Syncs {
        let shared = Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Syncs {
            shared: Arc::new(shared),
            limit,
        }
    }

    /// Answers a request once `sync` has returned, which another thread calls.
    pub fn request(&self, reply: Reply<'_>, sync: impl Fn() -> Result<(), Errno> + Send + 'static) {
        let mut state = self.shared.lock();
        if !state.has_started {
            if let Err(error) = self.start(sync) {
                tracing::warn!(name: "EVFS-0806", "cannot start a thread: {error}; a sync fails");
                return reply.error(Errno::IO);
            }
            state.has_started = true;
        }
        state.waiting.push(Pending {
            reply: reply.detach(),
            until: Instant::now() + self.limit,
        });
        drop(state);
        self.shared.changed.notify_all();
    }

    fn start(&self, sync: impl Fn() -> Result<(), Errno> + Send + 'static) -> std::io::Result<()> {
        let (shared, limit) = (Arc::clone(&self.shared), self.limit);
        let timer = std::thread::Builder::new().name("fuse-sync-limit".into());
        timer.spawn(move || shared.end_late_ones(limit))?;
        let shared = Arc::clone(&self.shared);
        let syncer = std::thread::Builder::new().name("fuse-sync".into());
        syncer.spawn(move || shared.run(sync))?;
        Ok(())
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs whenever requests wait.
    fn run(&self, sync: impl Fn() -> Result<(), Errno>) {
        let mut state = self.lock();
        while !state.is_over {
            if state.waiting.is_empty() {
                let changed = self.changed.wait(state);
                state = changed.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.served = std::mem::take(&mut state.waiting);
            drop(state);
            let result = sync();
            state = self.lock();
            for served in state.served.drain(..) {
                served.reply.result(result);
            }
        }
    }

    /// Answers the requests whose time is over.
    fn end_late_ones(&self, limit: Duration) {
        let mut state = self.lock();
        while !state.is_over {
            let now = Instant::now();
            let state_now = &mut *state;
            let late: Vec<_> = [&mut state_now.waiting, &mut state_now.served]
                .into_iter()
                .flat_map(|requests| requests.extract_if(.., |request| request.until <= now))
                .collect();
            if !late.is_empty() {
                tracing::warn!(
                    name: "EVFS-0606",
                    "a sync failed: the device has not taken all data within {} s; check the \
                     device, or mount with a longer --sync-timeout",
                    limit.as_secs()
                );
            }
            for request in late {
                request.reply.error(Errno::TIMEDOUT);
            }
            let all = state_now.waiting.iter().chain(&state_now.served);
            state = match all.map(|request| request.until).min() {
                Some(next) => {
                    let left = next.saturating_duration_since(Instant::now());
                    let changed = self.changed.wait_timeout(state, left);
                    changed.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let changed = self.changed.wait(state);
                    changed.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::sync::mpsc;

    /// Sends a request; its answer can be read.
    fn ask(syncs: &Syncs, sync: impl Fn() -> Result<(), Errno> + Send + 'static) -> PipeReader {
        let (from, to) = std::io::pipe().unwrap();
        syncs.request(Reply::over(to.into(), 7), sync);
        from
    }

    /// Waits for the error number of an answer.
    fn answer(mut from: PipeReader) -> i32 {
        let mut reply = [0; 16];
        from.read_exact(&mut reply).unwrap();
        i32::from_ne_bytes(reply[4..8].try_into().unwrap())
    }

    fn unused() -> Result<(), Errno> {
        unreachable!("the function of the first request serves all")
    }

    #[test]
    fn a_request_waits_for_a_sync_that_began_after_it() {
        let syncs = Syncs::new(Duration::from_secs(3600));
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel();
        let sync = move || {
            begun.send(()).unwrap();
            ends.recv().unwrap()
        };
        let first = ask(&syncs, sync);
        begins.recv().unwrap();
        let second = ask(&syncs, unused);
        let third = ask(&syncs, unused);
        end.send(Err(Errno::NOSPC)).unwrap();
        assert_eq!(answer(first), -libc::ENOSPC);
        begins.recv().unwrap();
        end.send(Ok(())).unwrap();
        assert_eq!((answer(second), answer(third)), (0, 0));
        assert!(begins.try_recv().is_err(), "one sync serves both");
    }

    #[test]
    fn a_sync_that_does_not_end_is_an_error_and_a_later_one_counts_again() {
        let mut syncs = Syncs::new(Duration::from_millis(1));
        let (end, ends) = mpsc::channel();
        let stuck = ask(&syncs, move || ends.recv().unwrap());
        let behind = ask(&syncs, unused);
        assert_eq!(
            (answer(stuck), answer(behind)),
            (-libc::ETIMEDOUT, -libc::ETIMEDOUT)
        );
        syncs.limit = Duration::from_secs(3600);
        let last = ask(&syncs, unused);
        end.send(Ok(())).unwrap();
        end.send(Ok(())).unwrap();
        assert_eq!(answer(last), 0);
    }
}
