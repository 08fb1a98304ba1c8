//! Distribution of requests over the threads of a session.
//!
//! ```text
//!   leader ── receives, and serves in line ──► hands leadership over before it sleeps
//!   deputy ── wakes at intervals while the leader serves, and replaces a leader that is stuck
//!   followers ── sleep until they become leader or deputy
//! ```
//!
//! One thread receives, because a second one that waits for requests would be woken by each of them
//! for nothing. **Invariant:** while requests arrive and a thread is neither serving nor the
//! leader, a request that blocks delays others by two intervals of the deputy ([`TICK`]) at most,
//! and if its thread announces that it is about to sleep (`block::about_to_sleep`), by the time to
//! wake a thread. A session with one thread serves one request after the other.
//!
//! The leader and the deputy share only the number `progress`. It is odd while the leader serves in
//! line. Each change of it has one winner, so leadership is never held twice: the leader that
//! finishes its request or hands leadership over, and the deputy that replaces it, all try to make
//! the same odd number even.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Interval at which the deputy checks the leader.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// Number of intervals without a request after which the deputy sleeps until the next one.
const QUIET_TICKS: u32 = 8;

/// Roles of the threads of a session.
#[derive(Default)]
pub(crate) struct Leadership {
    progress: AtomicU64,
    /// The deputy sleeps without a time limit, so the leader wakes it before it serves a request.
    deputy_sleeps: AtomicBool,
    ended: AtomicBool,
    roles: Mutex<Roles>,
    follower: Condvar,
    deputy: Condvar,
}

#[derive(Default)]
struct Roles {
    has_leader: bool,
    has_deputy: bool,
    followers: usize,
}

/// A request that the leader serves in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn(u64);

impl Leadership {
    /// Waits until this thread is the leader. Returns false once the session has ended.
    pub fn follow(&self) -> bool {
        let mut roles = self.lock();
        loop {
            if self.ended.load(SeqCst) {
                return false;
            }
            if !roles.has_leader {
                roles.has_leader = true;
                self.appoint_deputy(&roles);
                return true;
            }
            if roles.has_deputy {
                roles.followers += 1;
                roles = self.follower.wait(roles).expect("no panic under this lock");
                roles.followers -= 1;
                continue;
            }
            roles.has_deputy = true;
            let replaced;
            (roles, replaced) = self.watch(roles);
            roles.has_deputy = false;
            if replaced {
                self.appoint_deputy(&roles);
                return true;
            }
        }
    }

    /// Begins to serve a request as the leader.
    pub fn begin(&self) -> Turn {
        let turn = self.progress.fetch_add(1, SeqCst) + 1;
        if self.deputy_sleeps.load(SeqCst) {
            let _roles = self.lock();
            self.deputy_sleeps.store(false, SeqCst);
            self.deputy.notify_one();
        }
        Turn(turn)
    }

    /// Ends the service of a request. Returns whether this thread is still the leader.
    pub fn finish(&self, turn: Turn) -> bool {
        self.settle(turn)
    }

    /// Lets another thread lead while this one serves a request, unless another does already.
    pub fn hand_over(&self, turn: Turn) {
        if !self.settle(turn) {
            return;
        }
        let mut roles = self.lock();
        roles.has_leader = false;
        if roles.followers > 0 {
            self.follower.notify_one();
        } else if roles.has_deputy {
            self.deputy_sleeps.store(false, SeqCst);
            self.deputy.notify_one();
        }
    }

    /// Ends the session: no thread waits any longer.
    pub fn end(&self) {
        let _roles = self.lock();
        self.ended.store(true, SeqCst);
        self.deputy_sleeps.store(false, SeqCst);
        self.follower.notify_all();
        self.deputy.notify_all();
    }

    /// Reports whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    fn settle(&self, Turn(turn): Turn) -> bool {
        let even = turn + 1;
        let settled = self.progress.compare_exchange(turn, even, SeqCst, SeqCst);
        settled.is_ok()
    }

    fn appoint_deputy(&self, roles: &Roles) {
        if !roles.has_deputy && roles.followers > 0 {
            self.follower.notify_one();
        }
    }

    /// Watches the leader until there is none, or this thread has replaced it (true).
    fn watch<'a>(&self, mut roles: MutexGuard<'a, Roles>) -> (MutexGuard<'a, Roles>, bool) {
        let (mut last, mut quiet) = (self.progress.load(SeqCst), 0);
        while roles.has_leader && !self.ended.load(SeqCst) {
            let waited = self.deputy.wait_timeout(roles, TICK);
            let timeout;
            (roles, timeout) = waited.expect("no panic under this lock");
            let now = self.progress.load(SeqCst);
            let is_stuck = now == last && now % 2 == 1 && timeout.timed_out();
            if is_stuck && roles.has_leader && self.settle(Turn(now)) {
                return (roles, true);
            }
            quiet = if now == last && now % 2 == 0 {
                quiet + 1
            } else {
                0
            };
            last = now;
            if quiet < QUIET_TICKS || !roles.has_leader || self.ended.load(SeqCst) {
                continue;
            }
            quiet = 0;
            self.deputy_sleeps.store(true, SeqCst);
            // Either the leader sees the flag, or this thread sees the request that it serves.
            if self.progress.load(SeqCst) == now {
                let sleeps = |_: &mut Roles| self.deputy_sleeps.load(SeqCst);
                let waited = self.deputy.wait_while(roles, sleeps);
                roles = waited.expect("no panic under this lock");
            }
            self.deputy_sleeps.store(false, SeqCst);
            last = self.progress.load(SeqCst);
        }
        (roles, false)
    }

    fn lock(&self) -> MutexGuard<'_, Roles> {
        self.roles.lock().expect("no panic under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < end, "waited in vain until {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_leader_that_hands_over_or_is_stuck_is_replaced_by_every_other_thread_in_turn() {
        const THREADS: usize = 6;
        for announces in [true, false] {
            let leadership = Leadership::default();
            let (stuck, leaders) = (AtomicBool::new(true), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        assert!(leadership.follow());
                        leaders.fetch_add(1, SeqCst);
                        let turn = leadership.begin();
                        if announces {
                            leadership.hand_over(turn);
                        }
                        while stuck.load(SeqCst) {
                            std::thread::sleep(TICK);
                        }
                        assert!(!leadership.finish(turn) || leaders.load(SeqCst) == THREADS);
                    });
                }
                wait_until("each thread has led", || leaders.load(SeqCst) == THREADS);
                stuck.store(false, SeqCst);
            });
            assert!(!leadership.has_ended());
        }
    }

    #[test]
    fn a_deputy_that_sleeps_wakes_up_for_a_request() {
        let leadership = Leadership::default();
        assert!(leadership.follow());
        std::thread::scope(|scope| {
            let deputy = scope.spawn(|| leadership.follow());
            wait_until("the deputy sleeps", || {
                leadership.deputy_sleeps.load(SeqCst)
            });
            let turn = leadership.begin();
            assert!(deputy.join().unwrap(), "it replaces the leader");
            assert!(!leadership.finish(turn));
        });
    }

    #[test]
    fn at_most_one_thread_leads_and_none_is_forgotten() {
        const THREADS: usize = 5;
        let leadership = Leadership::default();
        let (leading, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (leadership, leading, done) = (&leadership, &leading, &done);
                scope.spawn(move || {
                    let mut i = thread;
                    while leadership.follow() {
                        let mut leads = true;
                        while leads {
                            assert_eq!(leading.fetch_add(1, SeqCst), 0, "two threads lead");
                            leading.fetch_sub(1, SeqCst);
                            let turn = leadership.begin();
                            i += 1;
                            match i % 3 {
                                0 => leadership.hand_over(turn),
                                1 if i % 100 == 1 => std::thread::sleep(3 * TICK),
                                _ => {}
                            }
                            leads = leadership.finish(turn);
                            if done.fetch_add(1, SeqCst) >= 20_000 {
                                leadership.end();
                                return;
                            }
                        }
                    }
                });
            }
        });
        assert!(leadership.has_ended() && done.load(SeqCst) >= 20_000);
    }
}
