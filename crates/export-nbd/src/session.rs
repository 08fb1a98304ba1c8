//! Sessions that clients name, and their end: what `docs/protocol/nbd-fence.md` promises.
//!
//! A connection holds its [`Session`], and so does every request that came by it until the device
//! has answered. A session that nobody holds any more is therefore at its end: nothing of it is being
//! carried out, and there is no socket left from which more could come.

use crate::worker::Hub;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How long a fence waits for the device.
const FENCE_PATIENCE: Duration = Duration::from_secs(4);
/// Keys that are remembered; the oldest makes room.
const REMEMBERED_MAX: usize = 65_536;

/// What connections and requests of one key hold.
pub(crate) struct Session {
    hub: Arc<Hub>,
    key: u64,
    fenced: AtomicBool,
}

impl Session {
    /// Whether its connections have to be closed.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.hub.sessions.forget(self.key);
        if self.is_fenced() {
            self.hub.wake_workers();
        }
    }
}

/// A fence on its way.
pub(crate) struct Fence {
    key: u64,
    until: Instant,
    /// This server has had a session of that key. Of one it has never heard of it can promise
    /// nothing: that may run on another server, over the same disk.
    known: bool,
}

/// The sessions of a server.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<State>);

#[derive(Default)]
struct State {
    /// Sessions that somebody holds.
    live: HashMap<u64, Weak<Session>>,
    fenced: Remembered,
    /// Keys of sessions there were.
    known: Remembered,
}

/// Keys that are remembered, as many as [`REMEMBERED_MAX`].
#[derive(Default)]
struct Remembered {
    keys: HashSet<u64>,
    /// The same, the oldest first.
    order: VecDeque<u64>,
}

impl Remembered {
    fn add(&mut self, key: u64) {
        if !self.keys.insert(key) {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }

    fn has(&self, key: u64) -> bool {
        self.keys.contains(&key)
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Forgets a session, unless another of the same key has begun.
    fn forget(&self, key: u64) {
        let mut state = self.lock();
        if state.live.get(&key).is_some_and(|s| s.strong_count() == 0) {
            state.live.remove(&key);
        }
    }

    /// How a fence went; `None` while it may still go well.
    pub(crate) fn outcome(&self, fence: &Fence) -> Option<bool> {
        match self.lock().live.contains_key(&fence.key) {
            false => Some(fence.known),
            true => (Instant::now() >= fence.until).then_some(false),
        }
    }
}

impl Hub {
    /// The session of a key, for one more connection; `None` when the key is fenced.
    pub(crate) fn session(self: &Arc<Hub>, key: u64) -> Option<Arc<Session>> {
        let mut state = self.sessions.lock();
        if state.fenced.has(key) {
            return None;
        }
        state.known.add(key);
        let held = state.live.get(&key).and_then(Weak::upgrade);
        Some(held.unwrap_or_else(|| {
            let session = Arc::new(Session {
                hub: Arc::clone(self),
                key,
                fenced: AtomicBool::new(false),
            });
            state.live.insert(key, Arc::downgrade(&session));
            session
        }))
    }

    /// Lets no connection begin under the key any more, and has the workers close those there are.
    pub(crate) fn fence(&self, key: u64) -> Fence {
        let mut state = self.sessions.lock();
        state.fenced.add(key);
        let known = state.known.has(key);
        let session = state.live.get(&key).and_then(Weak::upgrade);
        // The last holder may be this one, and its end takes the lock.
        drop(state);
        if let Some(session) = session {
            session.fenced.store(true, Ordering::SeqCst);
            self.wake_workers();
        }
        Fence {
            key,
            until: Instant::now() + FENCE_PATIENCE,
            known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> Arc<Hub> {
        Arc::new(Hub::new(Vec::new(), None, 1))
    }

    #[test]
    fn a_fence_waits_for_every_holder_and_no_longer() {
        let hub = hub();
        let one = hub.session(7).unwrap();
        let two = hub.session(7).unwrap();
        let fence = hub.fence(7);
        assert!(one.is_fenced() && two.is_fenced() && hub.session(7).is_none());
        drop(one);
        assert_eq!(hub.sessions.outcome(&fence), None);
        drop(two);
        assert_eq!(hub.sessions.outcome(&fence), Some(true));
        assert_eq!(hub.sessions.outcome(&hub.fence(8)), Some(false), "unknown");
        assert!(hub.session(8).is_none() && hub.session(9).is_some());
    }

    #[test]
    fn a_fence_fails_when_its_time_is_over_and_may_be_tried_again() {
        let hub = hub();
        let session = hub.session(7).unwrap();
        let late = Fence {
            until: Instant::now(),
            ..hub.fence(7)
        };
        assert_eq!(hub.sessions.outcome(&late), Some(false));
        drop(session);
        assert_eq!(hub.sessions.outcome(&hub.fence(7)), Some(true));
    }

    #[test]
    fn fenced_keys_are_bounded_and_the_oldest_goes() {
        let hub = hub();
        for key in 0..=REMEMBERED_MAX as u64 {
            hub.fence(key);
            hub.fence(key);
        }
        assert!(hub.session(0).is_some() && hub.session(1).is_none());
        let state = hub.sessions.lock();
        assert_eq!(
            (state.fenced.keys.len(), state.fenced.order.len()),
            (REMEMBERED_MAX, REMEMBERED_MAX)
        );
    }
}
