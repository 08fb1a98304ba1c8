//! Clients that did not answer a callback break in time.
//!
//! Such a client may be alive: its answer was lost, and OpenAFS can take more than ten seconds to
//! send it again. It serves its files from the cache, and need not call the server before its
//! promises expire. The server therefore keeps telling it that they have ended. No change waits for
//! this.
//!
//! **Invariant:** a client whose promises were ended because it did not answer is told until it
//! answers, identifies itself again, or trusts no promise any more. At most [`WAITING_MAX`] clients
//! wait to be told; further ones are told when they call.

use retry::{Backoff, Jitter};
use rx::Connection;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pauses before the attempts to tell a client.
const PAUSES: Backoff = Backoff::new(
    Duration::from_secs(1),
    Duration::from_secs(60),
    Jitter::Equal,
);
/// Largest number of waiting clients: a client that never answers may have many ports.
const WAITING_MAX: usize = 1024;

/// Clients to be told that their promises have ended.
pub(crate) struct Resets<H> {
    queue: Mutex<Queue<H>>,
    changed: Condvar,
}

struct Queue<H> {
    /// Keyed by the time of the next attempt; the number makes the key unique.
    waiting: BTreeMap<(Instant, u64), Reset<H>>,
    added: u64,
    closed: bool,
}

/// Client to be told.
struct Reset<H> {
    host: Arc<H>,
    connection: Connection,
    /// Attempts so far.
    attempts: u32,
}

impl<H> Default for Resets<H> {
    fn default() -> Self {
        let queue = Queue {
            waiting: BTreeMap::new(),
            added: 0,
            closed: false,
        };
        Resets {
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        }
    }
}

impl<H> Resets<H> {
    fn queue(&self) -> MutexGuard<'_, Queue<H>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client whose promises have ended on the server.
    pub(crate) fn add(&self, host: Arc<H>, connection: Connection) {
        self.wait(Reset {
            host,
            connection,
            attempts: 0,
        });
    }

    fn wait(&self, reset: Reset<H>) {
        let mut queue = self.queue();
        let is_same = |other: &Reset<H>| Arc::ptr_eq(&other.host, &reset.host);
        if queue.closed || queue.waiting.len() >= WAITING_MAX || queue.waiting.values().any(is_same)
        {
            return;
        }
        queue.added += 1;
        let pause = PAUSES.pause(reset.attempts, queue.added);
        let key = (Instant::now() + pause, queue.added);
        queue.waiting.insert(key, reset);
        drop(queue);
        self.changed.notify_one();
    }

    /// Tells clients until [`Resets::close`]. A client to which `tell` returns false is told again.
    pub(crate) fn run(&self, tell: impl Fn(&H, &Connection) -> bool) {
        while let Some(mut reset) = self.next() {
            if !tell(&reset.host, &reset.connection) {
                reset.attempts += 1;
                self.wait(reset);
            }
        }
    }

    /// Waits for the next attempt that is due; returns `None` after [`Resets::close`].
    fn next(&self) -> Option<Reset<H>> {
        let mut queue = self.queue();
        while !queue.closed {
            let now = Instant::now();
            let at = queue.waiting.first_key_value().map(|((at, _), _)| *at);
            queue = match at {
                Some(at) if at <= now => return queue.waiting.pop_first().map(|(_, reset)| reset),
                Some(at) => {
                    let woken = self.changed.wait_timeout(queue, at - now);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.changed.wait(queue);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        None
    }

    /// Ends [`Resets::run`].
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        queue.waiting.clear();
        drop(queue);
        self.changed.notify_all();
    }
}
