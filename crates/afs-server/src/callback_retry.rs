//! Repetition of callback breaks.
//!
//! A client receives the reply that grants a promise and the call that breaks it on two
//! connections, and may process the call first. Linux (6.1 and 6.12, `fs/afs/callback.c`) ignores a
//! break of a promise that it does not hold yet, accepts the promise afterwards, and serves the old
//! file until the promise expires. The server therefore repeats a break shortly after a promise was
//! made, when the reply must have arrived. The change does not wait for the repeat.
//!
//! **Invariant:** each break passed to [`CallbackRetries::add`] is repeated once after the last
//! time it was added, unless all promises of the client have ended by then.

use crate::breaks::{CallbackBreaks, CallbackRetry};
use crate::hosts::Hosts;
use afs_proto::AfsFid;
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Breaks to be repeated.
pub(crate) struct CallbackRetries {
    after: Duration,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Ordered by time. An element is stale if its time differs from the one in `due`: the break
    /// was added again.
    waiting: VecDeque<(Instant, CallbackRetry)>,
    /// Time of each repeat. Keyed by the address of the `Host` in memory, which is unique while an
    /// element of `waiting` refers to it.
    due: HashMap<(usize, AfsFid), Instant>,
    closed: bool,
}

impl CallbackRetries {
    /// Creates a queue that repeats each break after `after`.
    pub(crate) fn new(after: Duration) -> CallbackRetries {
        CallbackRetries {
            after,
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Schedules the repetition of breaks that were just sent.
    pub(crate) fn add(&self, repeats: Vec<CallbackRetry>) {
        if repeats.is_empty() {
            return;
        }
        let mut queue = self.queue();
        let at = Instant::now() + self.after;
        for repeat in repeats {
            queue.due.insert(repeat.key(), at);
            queue.waiting.push_back((at, repeat));
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Sends due breaks until [`CallbackRetries::close`].
    pub(crate) fn run(&self, hosts: &Hosts) {
        while let Some(breaks) = self.next() {
            breaks.notify_all(hosts);
        }
    }

    /// Waits for the next due breaks; returns `None` after [`CallbackRetries::close`].
    fn next(&self) -> Option<CallbackBreaks> {
        let mut queue = self.queue();
        loop {
            if queue.closed {
                return None;
            }
            let now = Instant::now();
            let breaks = queue.take(now);
            if !breaks.is_empty() {
                return Some(breaks);
            }
            queue = match queue.waiting.front() {
                Some((at, _)) => {
                    let time = at.saturating_duration_since(now);
                    let woken = self.changed.wait_timeout(queue, time);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.changed.wait(queue);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    /// Ends [`CallbackRetries::run`].
    pub(crate) fn close(&self) {
        self.queue().closed = true;
        self.changed.notify_all();
    }
}

impl Queue {
    /// Removes and returns the due breaks.
    fn take(&mut self, now: Instant) -> CallbackBreaks {
        let mut breaks = CallbackBreaks::default();
        while let Some((at, repeat)) = self.waiting.pop_front_if(|(at, _)| *at <= now) {
            if self.due.get(&repeat.key()) == Some(&at) {
                self.due.remove(&repeat.key());
                breaks.add(&repeat.host, repeat.era, repeat.fid);
            }
        }
        breaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Host;
    use std::sync::Arc;

    #[test]
    fn what_is_added_again_waits_again_and_is_repeated_once() {
        let again = CallbackRetries::new(Duration::ZERO);
        let host = Host::known();
        let repeat = |vnode| CallbackRetry {
            host: Arc::clone(&host),
            era: 0,
            fid: AfsFid {
                volume: 1,
                vnode,
                unique: 1,
            },
        };
        again.add(vec![repeat(1), repeat(3)]);
        let between = Instant::now();
        while Instant::now() == between {}
        again.add(vec![repeat(1)]);
        let mut queue = again.queue();
        assert_eq!(queue.take(between).count(), 1);
        assert_eq!(queue.take(Instant::now()).count(), 1);
        assert!(queue.take(Instant::now()).is_empty());
        assert!(queue.due.is_empty());
    }

    #[test]
    fn closing_ends_the_wait() {
        let again = CallbackRetries::new(Duration::from_secs(3600));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| again.next().is_none());
            again.close();
            assert!(waits.join().expect("no panic"));
        });
    }
}
