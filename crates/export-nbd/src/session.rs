//! Sessions with keys chosen by clients, and their fences, as `docs/protocol/nbd-fence.md`
//! specifies.
//!
//! A connection holds its [`Session`], and so does each of its requests until the device has
//! answered. A session without holders has therefore ended: none of its requests is being carried
//! out, and no socket is left from which more could arrive.
//!
//! **Invariant:** a key that had a session is remembered until [`KEY_AGE`] after the session's end,
//! fenced or not. A client that invents keys cannot displace those: when the table is full, new
//! sessions are refused.

mod keys;

use crate::kept::Keep;
use crate::wakers::Wakers;
use keys::Keys;
use nbd_proto::FenceResult;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How long a fence waits for the device.
const FENCE_PATIENCE: Duration = Duration::from_secs(4);
/// How long the key of an ended session is remembered: far longer than a connection can be delayed.
const KEY_AGE: Duration = Duration::from_secs(3600);
/// Maximum number of remembered keys of sessions.
const KEYS_MAX: usize = 65_536;
/// Maximum number of these from clients at one address of another machine.
const KEYS_PER_CLIENT: usize = KEYS_MAX / 4;
/// Maximum number of remembered fenced keys without a session; the oldest is dropped first.
const UNKNOWN_MAX: usize = 4096;

/// Session of one key, held by its connections and requests.
pub(crate) struct Session {
    sessions: Arc<Sessions>,
    key: u64,
    fenced: AtomicBool,
}

impl Session {
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Reports whether its connections have to be closed.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sessions.end(self.key, Instant::now());
        if self.is_fenced() {
            self.sessions.wakers.wake_all();
        }
    }
}

/// A fence in progress.
pub(crate) struct Fence {
    key: u64,
    until: Instant,
    /// This server has had a session with the key. For an unknown key it can promise nothing: the
    /// session may run on another server over the same disk.
    known: bool,
}

/// The sessions of a server.
pub(crate) struct Sessions {
    state: Mutex<State>,
    /// The workers, which close connections and continue negotiations when a fence begins or ends.
    wakers: Arc<Wakers>,
}

#[derive(Default)]
struct State {
    known: HashMap<u64, Known>,
    /// Number of known keys by the address of their client.
    by_client: HashMap<IpAddr, usize>,
    /// Keys in the order in which their sessions ended. If a session has restarted since, its entry
    /// in `known` has another end time, or none.
    ended: VecDeque<(Instant, u64)>,
    /// Fenced keys that had no session.
    unknown: Unknown,
    /// The same for a successor, if there can be one.
    keys: Option<Keys>,
}

/// A key that had a session.
struct Known {
    session: Weak<Session>,
    client: Option<IpAddr>,
    fenced: bool,
    ended: Option<Instant>,
    /// Its entry in the table for a successor.
    entry: Option<u32>,
}

#[derive(Default)]
struct Unknown {
    /// With the entry in the table for a successor.
    keys: HashMap<u64, Option<u32>>,
    /// The same keys, oldest first.
    order: VecDeque<u64>,
}

impl Unknown {
    fn add(&mut self, key: u64, saved: &mut Option<Keys>) {
        if self.keys.contains_key(&key) {
            return;
        }
        if self.order.len() >= UNKNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            forget(saved, self.keys.remove(&oldest).flatten());
        }
        let entry = saved.as_mut().and_then(|s| s.add(key, None, (true, false)));
        self.order.push_back(key);
        self.keys.insert(key, entry);
    }
}

/// Removes an entry from the table for a successor.
fn forget(keys: &mut Option<Keys>, entry: Option<u32>) {
    if let (Some(keys), Some(entry)) = (keys, entry) {
        keys.remove(entry);
    }
}

impl State {
    /// Leaves the present state of a key to a successor.
    fn save(&self, known: &Known) {
        if let (Some(keys), Some(entry)) = (&self.keys, known.entry) {
            keys.set(entry, (known.fenced, true));
        }
    }

    /// Removes keys whose sessions ended more than [`KEY_AGE`] ago.
    fn forget_old(&mut self, now: Instant) {
        while let Some(&(ended, key)) = self.ended.front()
            && now.duration_since(ended) >= KEY_AGE
        {
            self.ended.pop_front();
            if self.known.get(&key).is_none_or(|k| k.ended != Some(ended)) {
                continue;
            }
            let known = self.known.remove(&key);
            forget(&mut self.keys, known.as_ref().and_then(|known| known.entry));
            let client = known.and_then(|known| known.client);
            if let Some(client) = client
                && let Some(count) = self.by_client.get_mut(&client)
            {
                *count -= 1;
                if *count == 0 {
                    self.by_client.remove(&client);
                }
            }
        }
    }

    /// Checks for room for one more key of this client, and counts the key if there is.
    fn has_room(&mut self, client: Option<IpAddr>) -> bool {
        if self.known.len() >= KEYS_MAX {
            return false;
        }
        let Some(client) = client else { return true };
        let count = self.by_client.entry(client).or_default();
        *count += 1;
        let has = *count <= KEYS_PER_CLIENT;
        *count -= usize::from(!has);
        has
    }
}

impl Sessions {
    pub(crate) fn new(wakers: Arc<Wakers>) -> Sessions {
        let state = Mutex::default();
        Sessions { state, wakers }
    }

    /// Leaves the keys to a successor, and remembers those of a predecessor.
    ///
    /// # Errors
    /// The system has no memory; the keys of the predecessor are missing.
    pub(crate) fn keep(&self, keep: &dyn Keep) -> std::io::Result<()> {
        let (keys, mut saved) = Keys::new(keep)?;
        saved.sort_by_key(|one| one.since);
        let mut state = self.lock();
        for one in saved {
            if !one.had_session {
                state.unknown.order.push_back(one.key);
                state.unknown.keys.insert(one.key, Some(one.entry));
                continue;
            }
            if let Some(client) = one.client {
                *state.by_client.entry(client).or_default() += 1;
            }
            // Its connections, if they are continued, join again.
            let known = Known {
                session: Weak::new(),
                client: one.client,
                fenced: one.fenced,
                ended: Some(one.since),
                entry: Some(one.entry),
            };
            state.known.insert(one.key, known);
            state.ended.push_back((one.since, one.key));
        }
        state.keys = Some(keys);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Records the end of a session, unless another one of the same key has begun.
    fn end(&self, key: u64, now: Instant) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(known) = state.known.get_mut(&key)
            && known.session.strong_count() == 0
        {
            known.ended = Some(now);
            state.ended.push_back((now, key));
            if let Some(known) = state.known.get(&key) {
                state.save(known);
            }
        }
    }

    /// Returns the result of a fence; `None` while it may still succeed.
    pub(crate) fn outcome(&self, fence: &Fence) -> Option<FenceResult> {
        let state = self.lock();
        let live = |known: &Known| known.ended.is_none();
        if state.known.get(&fence.key).is_some_and(live) {
            (Instant::now() >= fence.until).then_some(FenceResult::Unconfirmed)
        } else if fence.known {
            Some(FenceResult::Ended)
        } else {
            Some(FenceResult::Unconfirmed)
        }
    }

    /// Returns the session of a key, for one more connection of this client.
    ///
    /// # Errors
    /// The reason why the session is refused.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: u64,
        client: Option<IpAddr>,
    ) -> Result<Arc<Session>, &'static str> {
        self.join_at(key, client, Instant::now())
    }

    fn join_at(
        self: &Arc<Self>,
        key: u64,
        client: Option<IpAddr>,
        now: Instant,
    ) -> Result<Arc<Session>, &'static str> {
        let fenced = "its session was fenced before it began";
        let mut guard = self.lock();
        let state = &mut *guard;
        state.forget_old(now);
        if state.unknown.keys.contains_key(&key) {
            return Err(fenced);
        }
        if let Some(known) = state.known.get(&key) {
            if known.fenced {
                return Err(fenced);
            }
            if let Some(session) = known.session.upgrade() {
                return Ok(session);
            }
        } else if !state.has_room(client) {
            return Err("the session table is full");
        }
        let session = Arc::new(Session {
            sessions: Arc::clone(self),
            key,
            fenced: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&session);
        let keys = &mut state.keys;
        let known = state.known.entry(key).or_insert_with(|| Known {
            session: Weak::new(),
            client,
            fenced: false,
            ended: None,
            entry: keys
                .as_mut()
                .and_then(|keys| keys.add(key, client, (false, true))),
        });
        known.session = weak;
        known.ended = None;
        Ok(session)
    }

    /// Refuses further connections with the key, and has the workers close existing ones.
    pub(crate) fn fence(&self, key: u64) -> Fence {
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(known) = state.known.get_mut(&key) {
            known.fenced = true;
        }
        let session = match state.known.get(&key) {
            Some(known) => {
                state.save(known);
                Some(known.session.upgrade())
            }
            None => {
                state.unknown.add(key, &mut state.keys);
                None
            }
        };
        // This may be the last holder, and dropping the session takes the lock.
        drop(guard);
        let known = session.is_some();
        if let Some(Some(session)) = session {
            session.fenced.store(true, Ordering::SeqCst);
            self.wakers.wake_all();
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
    use crate::kept::in_memory::InMemory;

    #[test]
    fn a_successor_refuses_what_was_fenced_and_knows_what_had_a_session() {
        let (all, client) = (sessions(), Some(IpAddr::from([192, 0, 2, 1])));
        let left = InMemory::default();
        all.keep(&left).unwrap();
        let (live, fenced) = (all.join(1, client).unwrap(), all.join(2, None).unwrap());
        drop(all.join(3, None).unwrap());
        all.fence(2);
        all.fence(4);
        for generation in 0..3 {
            left.succeed();
            let next = sessions();
            next.keep(&left).unwrap();
            assert!(next.join(2, None).is_err() && next.join(4, None).is_err());
            assert_eq!(next.lock().by_client.len(), 1);
            let again = next.join(1, client).unwrap();
            let fence = next.fence(3);
            assert_eq!(next.outcome(&fence), Some(FenceResult::Ended));
            assert!(next.join(3, None).is_err());
            let fence = next.fence(4);
            assert_eq!(next.outcome(&fence), Some(FenceResult::Unconfirmed));
            assert!(next.join(100 + generation, None).is_ok());
            drop(again);
        }
        drop((live, fenced));
    }

    fn sessions() -> Arc<Sessions> {
        Arc::new(Sessions::new(Arc::default()))
    }

    #[test]
    fn a_fence_waits_for_every_holder_and_no_longer() {
        let all = sessions();
        let one = all.join(7, None).unwrap();
        let two = all.join(7, None).unwrap();
        let fence = all.fence(7);
        assert!(one.is_fenced() && two.is_fenced() && all.join(7, None).is_err());
        drop(one);
        assert_eq!(all.outcome(&fence), None);
        drop(two);
        assert_eq!(all.outcome(&fence), Some(FenceResult::Ended));
        assert_eq!(
            all.outcome(&all.fence(8)),
            Some(FenceResult::Unconfirmed),
            "unknown"
        );
        assert!(all.join(8, None).is_err() && all.join(9, None).is_ok());
    }

    #[test]
    fn a_fence_fails_when_its_time_is_over_and_may_be_tried_again() {
        let all = sessions();
        let session = all.join(7, None).unwrap();
        let late = Fence {
            until: Instant::now(),
            ..all.fence(7)
        };
        assert_eq!(all.outcome(&late), Some(FenceResult::Unconfirmed));
        drop(session);
        assert_eq!(all.outcome(&all.fence(7)), Some(FenceResult::Ended));
    }

    #[test]
    fn invented_keys_push_out_neither_a_fence_nor_a_session() {
        let all = sessions();
        let live = all.join(1, None).unwrap();
        drop(all.join(2, None).unwrap());
        assert_eq!(all.outcome(&all.fence(2)), Some(FenceResult::Ended));
        for key in 0..2 * KEYS_MAX as u64 {
            all.fence(1 << 40 | key);
        }
        assert!(all.join(2, None).is_err(), "it is fenced still");
        drop(live);
        assert_eq!(
            all.outcome(&all.fence(1)),
            Some(FenceResult::Ended),
            "known"
        );
        let unknown = &all.lock().unknown;
        assert_eq!(
            (unknown.keys.len(), unknown.order.len()),
            (UNKNOWN_MAX, UNKNOWN_MAX)
        );
    }

    #[test]
    fn keys_are_forgotten_by_age_alone_and_where_none_can_be_new_sessions_are_refused() {
        let all = sessions();
        let client = Some(IpAddr::from([192, 0, 2, 1]));
        let now = Instant::now();
        for key in 0..KEYS_PER_CLIENT as u64 {
            drop(all.join_at(key, client, now).unwrap());
        }
        assert!(
            all.join_at(1 << 40, client, now).is_err(),
            "one client's share"
        );
        let other = all.join_at(1 << 40, None, now).unwrap();
        for key in KEYS_PER_CLIENT as u64..KEYS_MAX as u64 - 1 {
            drop(all.join_at(key, None, now).unwrap());
        }
        assert!(all.join_at(1 << 41, None, now).is_err(), "it is full");
        assert!(all.join_at(5, client, now).is_ok(), "it is known");
        let later = Instant::now() + KEY_AGE;
        drop(all.join_at(1 << 41, client, later).unwrap());
        let left: Vec<u64> = all.lock().known.keys().copied().collect();
        assert!(left.len() == 2 && left.contains(&(1 << 40)), "{left:?}");
        drop(other);
    }
}
