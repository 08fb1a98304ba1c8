//! Distribution of requests over the threads of a session.
//!
//! ```text
//!   leader ── receives, and serves in line ──► hands leadership over before it sleeps
//!   deputy ── wakes at intervals while leaders serve, and replaces one that is stuck
//!   followers ── sleep until they become leader or deputy
//! ```
//!
//! The number of leaders follows the requests ([`crate::demand`]): one while it polls, as another
//! one that sleeps in a read would be woken by each request for nothing, or while frequent requests
//! meet a single CPU, and otherwise two, or one for each client, up to all threads.
//!
//! **Invariant:** while a thread is neither serving nor a leader, a request that blocks delays
//! others only if no leader is idle, then by two intervals of the deputy ([`TICK`]) at most; and if
//! its thread announces that it is about to sleep (`block::about_to_sleep`), by the time to wake a
//! thread. A session with one thread serves one request after the other.
//!
//! A leader and the deputy share only numbers. In the leader's progress, a bit is set while the
//! leader serves in line. Clearing it has one winner, so leadership is never held twice: the leader
//! that finishes its request or hands leadership over, and the deputy that replaces it, all try to
//! do that. While a leader is idle there is nothing to watch, and the deputy sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Interval at which the deputy checks the leaders.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// Number of intervals in which a leader was idle all the time, after which the deputy sleeps until
/// none is.
const QUIET_TICKS: u32 = 8;

/// Bit of a progress: the thread serves a request as a leader.
const SERVES: u64 = 1;
/// Bit of a progress: a client waits for that request, whose reply is not sent yet.
const AWAITED: u64 = 2;
/// Distance between the numbers of two requests.
const REQUEST: u64 = 4;

/// A value in cache lines of its own, because another thread changes its neighbors.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// Roles of the threads of a session.
pub(crate) struct Leadership {
    /// Progress of each thread: [`SERVES`], [`AWAITED`], and the number of requests above them.
    progress: Vec<Apart<AtomicU64>>,
    /// Number of leaders that serve no request.
    idle: Apart<AtomicUsize>,
    /// Number of times that no leader was idle any longer.
    strained: AtomicU64,
    /// The deputy sleeps without a time limit, so the last idle leader wakes it before it serves a
    /// request.
    deputy_sleeps: AtomicBool,
    /// Number of leaders that are wanted; at least one.
    seats: AtomicUsize,
    /// Number of leaders that serve a request in line for which a client waits, and whose reply is
    /// not sent yet.
    busy: Apart<AtomicUsize>,
    ended: AtomicBool,
    roles: Mutex<Roles>,
    follower: Condvar,
    deputy: Condvar,
}

#[derive(Default)]
struct Roles {
    leaders: usize,
    has_deputy: bool,
    followers: usize,
}

/// A request that a leader serves in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    thread: usize,
    progress: u64,
}

/// Whether a client waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    Yes,
    No,
}

impl Leadership {
    /// Creates the roles for threads with the numbers up to `threads`.
    pub fn new(threads: usize) -> Leadership {
        Leadership {
            progress: (0..threads).map(|_| Apart::default()).collect(),
            idle: Apart::default(),
            strained: AtomicU64::new(0),
            deputy_sleeps: AtomicBool::new(false),
            seats: AtomicUsize::new(1),
            busy: Apart::default(),
            ended: AtomicBool::new(false),
            roles: Mutex::default(),
            follower: Condvar::new(),
            deputy: Condvar::new(),
        }
    }

    /// Waits until this thread is a leader. Returns false once the session has ended.
    pub fn follow(&self) -> bool {
        let mut roles = self.lock();
        loop {
            if self.ended.load(SeqCst) {
                return false;
            }
            if self.is_short(&roles) {
                roles.leaders += 1;
                self.idle.0.fetch_add(1, SeqCst);
                self.appoint(&roles);
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
                self.appoint(&roles);
                return true;
            }
        }
    }

    /// Begins to serve a request as a leader. Returns as well whether another leader serves one, if
    /// clients wait for both.
    pub fn begin(&self, thread: usize, kind: Awaited) -> (Turn, bool) {
        let busy = match kind {
            Awaited::Yes => self.busy.0.fetch_add(1, SeqCst),
            Awaited::No => 0,
        };
        let bits = match kind {
            Awaited::Yes => SERVES | AWAITED,
            Awaited::No => SERVES,
        };
        // Only this thread sets the bits.
        let progress = (self.progress[thread].0.load(SeqCst) + REQUEST) | bits;
        self.progress[thread].0.store(progress, SeqCst);
        if self.is_last_idle() && self.deputy_sleeps.load(SeqCst) {
            let _roles = self.lock();
            self.wake_deputy();
        }
        (Turn { thread, progress }, busy > 0)
    }

    /// Notes that the reply to a request is sent next. Returns the turn as it is from then on.
    pub fn answer(&self, turn: Turn) -> Turn {
        let (awaited, answered) = (turn.progress, turn.progress & !AWAITED);
        let progress = &self.progress[turn.thread].0;
        let noted = awaited != answered
            && progress
                .compare_exchange(awaited, answered, SeqCst, SeqCst)
                .is_ok();
        if !noted {
            return turn;
        }
        self.busy.0.fetch_sub(1, SeqCst);
        Turn {
            progress: answered,
            ..turn
        }
    }

    /// Ends the service of a request. Returns whether this thread is still a leader.
    pub fn finish(&self, turn: Turn) -> bool {
        let leads = self.settle(turn);
        if leads {
            self.idle.0.fetch_add(1, SeqCst);
        }
        leads
    }

    /// Lets another thread lead while this one serves a request, unless a leader is idle. Returns
    /// whether this thread leads no longer.
    pub fn hand_over(&self, turn: Turn) -> bool {
        let mut roles = self.lock();
        // A leader that begins to serve now hands over itself, as it finds none idle.
        if self.idle.0.load(SeqCst) > 0 {
            return false;
        }
        if self.settle(turn) {
            roles.leaders -= 1;
            self.appoint(&roles);
        }
        true
    }

    /// Adds a leader, as long as threads are left.
    pub fn add_seat(&self) {
        let roles = self.lock();
        let seats = self.seats.load(SeqCst);
        // A deputy remains, unless each thread has a seat.
        if seats < self.progress.len() {
            self.seats.store(seats + 1, SeqCst);
            self.appoint(&roles);
        }
    }

    /// Removes the seat of this idle leader, unless no other one is idle. Returns whether it did.
    pub fn leave_seat(&self) -> bool {
        let mut roles = self.lock();
        let seats = self.seats.load(SeqCst);
        let leaves = seats > 1 && self.idle.0.load(SeqCst) > 1;
        if leaves {
            self.seats.store(seats - 1, SeqCst);
            roles.leaders -= 1;
            // The other one may have begun to serve since.
            if self.is_last_idle() {
                self.wake_deputy();
            }
        }
        leaves
    }

    /// Returns the number of leaders that are wanted.
    pub fn seats(&self) -> usize {
        self.seats.load(SeqCst)
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

    /// Counts a leader that is idle no longer. Returns whether none is.
    fn is_last_idle(&self) -> bool {
        let is_last = self.idle.0.fetch_sub(1, SeqCst) == 1;
        if is_last {
            self.strained.fetch_add(1, SeqCst);
        }
        is_last
    }

    /// Makes the deputy watch; called with the lock held.
    fn wake_deputy(&self) {
        self.deputy_sleeps.store(false, SeqCst);
        self.deputy.notify_one();
    }

    fn settle(&self, turn: Turn) -> bool {
        let (serves, done) = (turn.progress, turn.progress & !(SERVES | AWAITED));
        let progress = &self.progress[turn.thread].0;
        let settled = progress.compare_exchange(serves, done, SeqCst, SeqCst);
        if settled.is_ok() && serves & AWAITED != 0 {
            self.busy.0.fetch_sub(1, SeqCst);
        }
        settled.is_ok()
    }

    /// Reports whether a leader is missing.
    fn is_short(&self, roles: &Roles) -> bool {
        roles.leaders < self.seats.load(SeqCst)
    }

    /// Wakes a thread for a role that is vacant.
    fn appoint(&self, roles: &Roles) {
        let vacant = self.is_short(roles) || !roles.has_deputy;
        if roles.followers > 0 {
            if vacant {
                self.follower.notify_one();
            }
        } else if self.is_short(roles) && roles.has_deputy {
            self.wake_deputy();
        }
    }

    /// Watches the leaders until one is missing, or this thread has replaced one (true).
    fn watch<'a>(&self, mut roles: MutexGuard<'a, Roles>) -> (MutexGuard<'a, Roles>, bool) {
        let progress = || self.progress.iter().map(|thread| thread.0.load(SeqCst));
        let mut last: Vec<u64> = progress().collect();
        let (mut strained, mut quiet) = (self.strained.load(SeqCst), 0);
        let goes_on = |roles: &Roles| !self.is_short(roles) && !self.ended.load(SeqCst);
        let has_idle = || self.idle.0.load(SeqCst) > 0;
        while goes_on(&roles) {
            let waited = self.deputy.wait_timeout(roles, TICK);
            let timeout;
            (roles, timeout) = waited.expect("no panic under this lock");
            if !goes_on(&roles) {
                break;
            }
            if timeout.timed_out() && !has_idle() && self.replace_stuck(&last) {
                self.idle.0.fetch_add(1, SeqCst);
                return (roles, true);
            }
            let now = self.strained.load(SeqCst);
            quiet = if now == strained && has_idle() {
                quiet + 1
            } else {
                0
            };
            strained = now;
            if quiet >= QUIET_TICKS {
                quiet = 0;
                self.deputy_sleeps.store(true, SeqCst);
                // Either the last idle leader sees the flag, or this thread sees that none is.
                if has_idle() {
                    let sleeps = |_: &mut Roles| self.deputy_sleeps.load(SeqCst);
                    let waited = self.deputy.wait_while(roles, sleeps);
                    roles = waited.expect("no panic under this lock");
                }
                self.deputy_sleeps.store(false, SeqCst);
            }
            last.clear();
            last.extend(progress());
        }
        (roles, false)
    }

    /// Takes the place of a leader that still serves the same request as one interval ago.
    fn replace_stuck(&self, last: &[u64]) -> bool {
        let mut serving = last.iter().enumerate().filter(|(_, last)| !is_idle(last));
        serving.any(|(thread, &last)| {
            // It may have been answered since.
            let progress = self.progress[thread].0.load(SeqCst);
            progress | AWAITED == last | AWAITED && self.settle(Turn { thread, progress })
        })
    }

    fn lock(&self) -> MutexGuard<'_, Roles> {
        self.roles.lock().expect("no panic under this lock")
    }
}

fn is_idle(progress: &u64) -> bool {
    progress & SERVES == 0
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
            let leadership = Leadership::new(THREADS);
            let (stuck, leaders) = (AtomicBool::new(true), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (leadership, stuck, leaders) = (&leadership, &stuck, &leaders);
                    scope.spawn(move || {
                        assert!(leadership.follow());
                        leaders.fetch_add(1, SeqCst);
                        let turn = leadership.begin(thread, Awaited::Yes).0;
                        if announces {
                            assert!(leadership.hand_over(turn));
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
    fn an_idle_leader_is_enough() {
        let leadership = Leadership::new(3);
        leadership.add_seat();
        assert!(leadership.follow() && leadership.follow());
        let first = leadership.begin(0, Awaited::Yes).0;
        assert!(!leadership.hand_over(first), "the other one receives");
        assert!(!leadership.leave_seat(), "none would receive");
        let second = leadership.begin(1, Awaited::Yes).0;
        assert!(leadership.hand_over(second), "no one else receives");
        assert!(leadership.follow(), "a leader is missing");
        assert!(!leadership.finish(second));
        assert!(leadership.finish(first));
    }

    /// The client may send the next request while this thread is still returning from the reply.
    #[test]
    fn a_request_that_is_answered_does_not_count_as_one_at_the_same_time() {
        let leadership = Leadership::new(3);
        leadership.add_seat();
        assert!(leadership.follow() && leadership.follow());
        let (first, with_others) = leadership.begin(0, Awaited::Yes);
        assert!(!with_others);
        assert!(leadership.begin(1, Awaited::Yes).1, "both are served");
        let first = leadership.answer(first);
        assert!(
            leadership.begin(2, Awaited::Yes).1,
            "the second one is not answered"
        );
        assert!(leadership.finish(first), "it still led");

        let leadership = Leadership::new(3);
        let (first, _) = leadership.begin(0, Awaited::Yes);
        let first = leadership.answer(first);
        assert_eq!(leadership.answer(first), first, "an answer counts once");
        assert!(!leadership.begin(1, Awaited::Yes).1);
        // Neither the end nor a new leader counts it again.
        assert!(leadership.finish(first));
        assert_eq!(leadership.busy.0.load(SeqCst), 1);
    }

    #[test]
    fn a_deputy_that_sleeps_wakes_up_for_a_request() {
        let leadership = Leadership::new(2);
        assert!(leadership.follow());
        std::thread::scope(|scope| {
            let deputy = scope.spawn(|| leadership.follow());
            wait_until("the deputy sleeps", || {
                leadership.deputy_sleeps.load(SeqCst)
            });
            let turn = leadership.begin(0, Awaited::No).0;
            assert!(deputy.join().unwrap(), "it replaces the leader");
            assert!(!leadership.finish(turn));
        });
    }

    #[test]
    fn no_more_threads_lead_than_have_seats_and_none_is_forgotten() {
        const THREADS: usize = 5;
        const TURNS: usize = 20_000;
        for seats in [1, 3, THREADS] {
            let leadership = Leadership::new(THREADS);
            (1..seats).for_each(|_| leadership.add_seat());
            let (leading, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let lead = |thread: usize| {
                let mut i = thread;
                loop {
                    let others = leading.fetch_add(1, SeqCst);
                    assert!(others < seats, "{others} others lead");
                    leading.fetch_sub(1, SeqCst);
                    i += 7;
                    let awaited = [Awaited::Yes, Awaited::No][i % 2];
                    let (mut turn, _) = leadership.begin(thread, awaited);
                    if i % 4 < 2 {
                        turn = leadership.answer(turn);
                    }
                    match i % 100 {
                        0 => std::thread::sleep(3 * TICK),
                        n if n % 3 == 0 => drop(leadership.hand_over(turn)),
                        _ => {}
                    }
                    if done.fetch_add(1, SeqCst) >= TURNS {
                        leadership.end();
                    }
                    if !leadership.finish(turn) || leadership.has_ended() {
                        return;
                    }
                    if i % 50 == 1 && leadership.leave_seat() {
                        return leadership.add_seat();
                    }
                }
            };
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (leadership, lead) = (&leadership, &lead);
                    scope.spawn(move || {
                        while leadership.follow() {
                            lead(thread);
                        }
                    });
                }
            });
            assert!(done.load(SeqCst) >= TURNS);
            assert_eq!(leadership.busy.0.load(SeqCst), 0);
            // Threads that ended as leaders were idle.
            let leaders = leadership.lock().leaders;
            assert_eq!(leadership.idle.0.load(SeqCst), leaders);
        }
    }
}
