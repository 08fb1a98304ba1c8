//! State shared by the threads of a LUN: paths with their counters, the failover log, and the
//! mailbox through which the control plane notifies each queue.

use crate::access::PortAccess;
use crate::policy::Nanos;
use crate::trace::Recorder;
use block::Waker;
use lunpath::{Access, Connection, Lunpath};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of lunpaths of one LUN (as in HP-UX 11i v3).
pub const PATHS_MAX: usize = 32;
/// Maximum number of entries in the failover log.
const LOG_ENTRIES: usize = 256;
/// Number of I/Os of one queue that are recorded for advice.
const RECORDS: usize = 16_384;
/// Number of latency buckets: two for each power of two of microseconds, up to 2^24 (16 s).
const BUCKETS: usize = 50;
/// Number of size classes: up to 4 KiB, 16 KiB, 128 KiB, and larger.
const SIZES: usize = 4;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Monotonic clock of a LUN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now(self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }
}

/// Administrative state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Admin {
    Enabled,
    Disabled,
    Removed,
}

/// State of a lunpath, with the names of HP-UX and two additional states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathState {
    /// No queue of the LUN is open.
    Unopen,
    /// Carries I/O.
    Active,
    /// Its target port is not optimized: carries I/O only if no other path does, or none at all
    /// now.
    Standby,
    /// Silent with I/O outstanding; carries none as long as another path does.
    Suspect,
    /// No connection; attempts to connect are in progress.
    Failed,
    /// Answers again, and is observed before it is used.
    Recovering,
    /// Answered as another LUN; carries nothing until it is proven to lead to this one, or accepted
    /// with `replace-wwid`.
    AuthFailed,
    /// Disabled by the administrator.
    Disabled,
}

/// Counters of a path (`scsimgr get_stat`).
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) offline_events: AtomicU64,
    pub(crate) online_events: AtomicU64,
    pub(crate) suspect_events: AtomicU64,
    pub(crate) late_answers: AtomicU64,
}

/// Latency histogram of one queue on one path. Only that queue writes to it.
#[derive(Debug)]
pub(crate) struct Latencies([[[AtomicU64; BUCKETS]; SIZES]; 2]);

impl Latencies {
    pub(crate) fn new() -> Latencies {
        Latencies(std::array::from_fn(|_| {
            std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)))
        }))
    }

    pub(crate) fn add(&self, write: bool, bytes: u64, took: Nanos) {
        let size = match bytes {
            0..=4096 => 0,
            4097..=16384 => 1,
            16385..=131_072 => 2,
            _ => 3,
        };
        let cell = &self.0[usize::from(write)][size][bucket(took)];
        cell.store(cell.load(Relaxed) + 1, Relaxed);
    }

    /// Creates empty counts to add to.
    pub(crate) fn none() -> [u64; BUCKETS] {
        [0; BUCKETS]
    }

    /// Adds the counts per bucket, over all operations and sizes.
    pub(crate) fn sum(&self, into: &mut [u64; BUCKETS]) {
        for cells in self.0.iter().flatten() {
            for (to, cell) in into.iter_mut().zip(cells) {
                *to += cell.load(Relaxed);
            }
        }
    }

    fn clear(&self) {
        for cell in self.0.iter().flatten().flatten() {
            cell.store(0, Relaxed);
        }
    }
}

fn bucket(took: Nanos) -> usize {
    let micros = (took / 1000).max(1);
    let log = micros.ilog2() as usize;
    let half = match log {
        0 => 0,
        _ => (micros >> (log - 1)) as usize & 1,
    };
    (log * 2 + half).min(BUCKETS - 1)
}

/// Computes the upper bound of a bucket in nanoseconds.
fn upper(bucket: usize) -> Nanos {
    let (log, half) = (bucket / 2, bucket as u64 % 2);
    ((1u64 << log) + ((half + 1) << log) / 2) * 1000
}

/// Computes the given quantile (`share`) of the latency in nanoseconds; 0 without samples.
pub(crate) fn quantile(counts: &[u64; BUCKETS], share: f64) -> Nanos {
    let total: u64 = counts.iter().sum();
    let wanted = (total as f64 * share).ceil() as u64;
    let mut seen = 0;
    for (at, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= wanted && *count > 0 {
            return upper(at);
        }
    }
    0
}

/// A target port, shared by the paths that use it.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) in_flight: AtomicU32,
}

/// Recent losses of a path.
#[derive(Debug, Default)]
struct Flaps {
    score: f64,
    /// Time at which the score begins to decay.
    at: Nanos,
    /// Time at which the last loss was counted.
    counted: Option<Nanos>,
}

/// Reason why a path was refused (AUTH_FAILED).
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// It showed other blocks, not just another description: only a nonce clears it.
    pub(crate) other_blocks: bool,
}

impl Refusal {
    /// Creates a refusal because of the target's description.
    pub(crate) fn described(why: String) -> Refusal {
        Refusal {
            why,
            other_blocks: false,
        }
    }
}

/// Backoff before a refused path is examined again; doubled with each refusal, up to
/// [`EXAMINE_LAST`].
const EXAMINE_FIRST: Nanos = 1_000_000_000;
const EXAMINE_LAST: Nanos = 60_000_000_000;

/// Half-life of the weight of a flap, in nanoseconds.
const FLAP_HALF_LIFE: f64 = 10e9;
/// Number of flaps without a penalty.
const FLAP_FREE: f64 = 3.0;

/// A lunpath, as seen by all queues of its LUN.
pub(crate) struct SharedPath {
    pub(crate) id: usize,
    pub(crate) path: Arc<dyn Lunpath>,
    /// Legacy name, `cXtYdZ`.
    pub(crate) legacy: String,
    pub(crate) port: Arc<Port>,
    pub(crate) cell: AtomicU32,
    pub(crate) in_flight: AtomicU32,
    pub(crate) bytes_in_flight: AtomicU64,
    /// Takes no writes: its target refuses them, or does not provide the durability that the LUN
    /// promises.
    pub(crate) read_only: AtomicBool,
    pub(crate) access: PortAccess,
    /// The path was proven to lead to this LUN.
    pub(crate) proven: AtomicBool,
    pub(crate) recovering: AtomicBool,
    /// The most recent event of the path is a lost connection or a failed attempt to connect.
    pub(crate) failing: AtomicBool,
    /// A queue was opened without its connection, which took too long. No new queue waits for it
    /// until a connection is made.
    pub(crate) late: AtomicBool,
    /// Number of failed connection attempts in total, and since the last success; and time of the
    /// next attempt, for all queues.
    pub(crate) failures: AtomicU64,
    pub(crate) tries: AtomicU32,
    pub(crate) next_try: AtomicU64,
    /// Number of queues that have a connection, and of those that suspect it.
    pub(crate) links_up: AtomicU32,
    pub(crate) links_suspect: AtomicU32,
    /// Number of completed writes, and how many of them a flush has covered.
    pub(crate) written: AtomicU64,
    pub(crate) flushed: AtomicU64,
    /// Completed writes were not flushed when the connection was lost, and no other path can flush
    /// them.
    pub(crate) lost_writes: AtomicBool,
    pub(crate) counters: Counters,
    /// Serializes admissions.
    pub(crate) admission: Mutex<()>,
    admin: AtomicU8,
    /// Reason why the last connection was lost or could not be made.
    trouble: Mutex<Option<String>>,
    refused: Mutex<Option<Refusal>>,
    is_refused: AtomicBool,
    /// Number of refusals, time of the next examination, and whether one is running.
    refusals: AtomicU32,
    examine_at: AtomicU64,
    pub(crate) examined: AtomicBool,
    flaps: Mutex<Flaps>,
    /// Until this time, it carries nothing that another path can carry.
    held_until: AtomicU64,
    latencies: Mutex<Vec<Arc<Latencies>>>,
}

impl SharedPath {
    pub(crate) fn new(
        id: usize,
        path: Arc<dyn Lunpath>,
        legacy: String,
        port: Arc<Port>,
    ) -> SharedPath {
        SharedPath {
            id,
            path,
            legacy,
            port,
            cell: AtomicU32::new(u32::MAX),
            in_flight: AtomicU32::new(0),
            bytes_in_flight: AtomicU64::new(0),
            read_only: AtomicBool::new(false),
            access: PortAccess::new(),
            proven: AtomicBool::new(false),
            recovering: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            late: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            tries: AtomicU32::new(0),
            next_try: AtomicU64::new(0),
            links_up: AtomicU32::new(0),
            links_suspect: AtomicU32::new(0),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            lost_writes: AtomicBool::new(false),
            counters: Counters::default(),
            admission: Mutex::new(()),
            admin: AtomicU8::new(Admin::Enabled as u8),
            trouble: Mutex::new(None),
            refused: Mutex::new(None),
            is_refused: AtomicBool::new(false),
            refusals: AtomicU32::new(0),
            examine_at: AtomicU64::new(0),
            examined: AtomicBool::new(false),
            flaps: Mutex::new(Flaps::default()),
            held_until: AtomicU64::new(0),
            latencies: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn admin(&self) -> Admin {
        match self.admin.load(Acquire) {
            0 => Admin::Enabled,
            1 => Admin::Disabled,
            _ => Admin::Removed,
        }
    }

    pub(crate) fn set_admin(&self, admin: Admin) {
        self.admin.store(admin as u8, Release);
    }

    /// Checks whether it may carry I/O, as far as its administrative state and identity permit.
    pub(crate) fn eligible(&self) -> bool {
        self.admin() == Admin::Enabled && !self.is_refused.load(Acquire)
    }

    pub(crate) fn refuse(&self, refusal: Refusal, now: Nanos) {
        let times = self.refusals.fetch_add(1, Relaxed).min(16);
        let pause = (EXAMINE_FIRST << times).min(EXAMINE_LAST);
        self.examine_at.store(now + pause, Relaxed);
        self.proven.store(false, Release);
        *lock(&self.refused) = Some(refusal);
        self.is_refused.store(true, Release);
    }

    /// Lifts a refusal.
    pub(crate) fn accept(&self) {
        *lock(&self.refused) = None;
        self.is_refused.store(false, Release);
    }

    /// Records that it has no connection, and why; the next success clears it.
    pub(crate) fn fails(&self, why: String) {
        self.failing.store(true, Relaxed);
        *lock(&self.trouble) = Some(why);
    }

    /// Records a successful connection attempt.
    pub(crate) fn answers(&self) {
        self.tries.store(0, Relaxed);
        self.next_try.store(0, Relaxed);
        self.late.store(false, Relaxed);
        self.failing.store(false, Relaxed);
    }

    /// Records that queues no longer wait for its connection, which is still in progress.
    pub(crate) fn is_late(&self, why: &str) {
        self.late.store(true, Relaxed);
        lock(&self.trouble).get_or_insert_with(|| why.to_owned());
    }

    /// Checks whether a new queue that has another connection waits for this one.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.failing.load(Relaxed) && !self.late.load(Relaxed)
    }

    /// Explains why it carries no I/O.
    pub(crate) fn why(&self, state: PathState) -> Option<String> {
        match state {
            PathState::AuthFailed => self.refusal().map(|r| r.why),
            PathState::Failed | PathState::Recovering => lock(&self.trouble).clone(),
            _ => None,
        }
    }

    pub(crate) fn refusal(&self) -> Option<Refusal> {
        lock(&self.refused).clone()
    }

    /// Checks whether it is refused and due for examination.
    pub(crate) fn to_examine(&self, now: Nanos) -> bool {
        self.admin() == Admin::Enabled
            && self.is_refused.load(Acquire)
            && self.examine_at.load(Relaxed) <= now
    }

    pub(crate) fn state(&self, queues: usize) -> PathState {
        let up = self.links_up.load(Relaxed);
        let access = self.access.get();
        match self.admin() {
            Admin::Disabled | Admin::Removed => PathState::Disabled,
            Admin::Enabled if self.is_refused.load(Acquire) => PathState::AuthFailed,
            Admin::Enabled if self.recovering.load(Relaxed) => PathState::Recovering,
            Admin::Enabled if queues > 0 && self.failing.load(Relaxed) => PathState::Failed,
            Admin::Enabled if self.links_suspect.load(Relaxed) > 0 => PathState::Suspect,
            Admin::Enabled if queues > 0 && !access.carries() => PathState::Standby,
            Admin::Enabled if up > 0 && access != Access::Optimized => PathState::Standby,
            Admin::Enabled if up > 0 => PathState::Active,
            Admin::Enabled if queues == 0 => PathState::Unopen,
            Admin::Enabled => PathState::Failed,
        }
    }

    /// Counts the loss of a connection that began at `since`, and holds the path back if there were
    /// many losses. A loss noticed by several threads counts once. Returns whether it was counted.
    pub(crate) fn flapped(&self, since: Nanos, longest: u32, now: Nanos) -> bool {
        let mut flaps = lock(&self.flaps);
        if flaps.counted.is_some_and(|counted| since <= counted) {
            return false;
        }
        // A higher score would only outlast the longest penalty.
        let most = FLAP_FREE + 1.0 + f64::from(longest.max(1)).log2();
        flaps.score = (decayed(&flaps, now) + 1.0).min(most);
        flaps.counted = Some(now);
        let penalty = penalty(flaps.score, longest);
        flaps.at = now + (penalty * 1e9) as Nanos;
        self.held_until.store(flaps.at, Relaxed);
        true
    }

    /// Checks whether the path is held back because of its losses.
    pub(crate) fn held_back(&self, now: Nanos) -> bool {
        now < self.held_until.load(Relaxed)
    }

    /// Computes the seconds for which a path that answers again is held back because of its losses.
    pub(crate) fn penalty_secs(&self, longest: u32, now: Nanos) -> f64 {
        penalty(decayed(&lock(&self.flaps), now), longest)
    }

    pub(crate) fn new_latencies(&self) -> Arc<Latencies> {
        let latencies = Arc::new(Latencies::new());
        lock(&self.latencies).push(Arc::clone(&latencies));
        latencies
    }

    pub(crate) fn latency_counts(&self) -> [u64; BUCKETS] {
        let mut counts = [0; BUCKETS];
        lock(&self.latencies)
            .iter()
            .for_each(|l| l.sum(&mut counts));
        counts
    }

    pub(crate) fn clear_counters(&self) {
        let c = &self.counters;
        for counter in [
            &c.reads,
            &c.writes,
            &c.bytes_read,
            &c.bytes_written,
            &c.failures,
            &c.retried,
            &c.timeouts,
            &c.busy,
            &c.offline_events,
            &c.online_events,
            &c.suspect_events,
            &c.late_answers,
        ] {
            counter.store(0, Relaxed);
        }
        lock(&self.latencies).iter().for_each(|l| l.clear());
    }
}

fn penalty(score: f64, longest: u32) -> f64 {
    let over = score - FLAP_FREE;
    if over > 0.0 {
        over.exp2().min(longest.into())
    } else {
        0.0
    }
}

fn decayed(flaps: &Flaps, now: Nanos) -> f64 {
    flaps.score * (-(now.saturating_sub(flaps.at) as f64) / FLAP_HALF_LIFE).exp2()
}

/// An event of a path.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// Number in the log, starting at 1.
    pub id: u64,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// Name of the path.
    pub path: String,
    /// Description of the event.
    pub what: String,
    /// Number of I/Os that were moved to another path.
    pub moved: u64,
    /// Longest time one of them took, from submission to completion, in microseconds.
    pub stall_us: u64,
}

/// The failover log.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<(u64, VecDeque<Event>)>);

impl Log {
    pub(crate) fn add(&self, path: &str, what: String, moved: u64) -> u64 {
        let mut log = lock(&self.0);
        log.0 += 1;
        let id = log.0;
        let at_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_millis() as u64);
        log.1.push_back(Event {
            id,
            at_ms,
            path: path.to_owned(),
            what,
            moved,
            stall_us: 0,
        });
        if log.1.len() > LOG_ENTRIES {
            log.1.pop_front();
        }
        id
    }

    /// Counts an I/O moved to another path.
    pub(crate) fn moved(&self, id: u64) {
        let mut log = lock(&self.0);
        if let Some(event) = log.1.iter_mut().find(|e| e.id == id) {
            event.moved += 1;
        }
    }

    /// Records the duration of an I/O that event `id` moved.
    pub(crate) fn stalled(&self, id: u64, took: Nanos) {
        let mut log = lock(&self.0);
        if let Some(event) = log.1.iter_mut().find(|e| e.id == id) {
            event.stall_us = event.stall_us.max(took / 1000);
        }
    }

    pub(crate) fn list(&self) -> Vec<Event> {
        lock(&self.0).1.iter().cloned().collect()
    }
}

/// A waiting I/O.
#[derive(Debug, Clone, Serialize)]
pub struct WaitingIo {
    /// Operation: `read`, `write`, ...
    pub op: String,
    /// Offset on the LUN in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Milliseconds since submission.
    pub age_ms: u64,
    /// Reason for the wait.
    pub why: &'static str,
}

pub(crate) enum QueueMessage {
    /// A connection proven to lead to this LUN.
    Connected(usize, Box<dyn Connection>),
    /// The path is disabled, removed or refused: close its connection.
    Drop(usize),
    /// Paths or attributes changed, or a lost write was settled: check again.
    Recheck,
}

/// States of a link, shared between a queue and the monitor.
pub(crate) const LINK_DOWN: u8 = 0;
pub(crate) const LINK_CONNECTING: u8 = 1;
pub(crate) const LINK_UP: u8 = 2;

/// State shared by a queue and the control plane.
pub(crate) struct QueueShared {
    pub(crate) id: u64,
    /// The only path it may use, for a legacy name without multipathing.
    pub(crate) only: Option<usize>,
    pub(crate) links: [AtomicU8; PATHS_MAX],
    /// Number of consecutive failed attempts, and time of the next one.
    pub(crate) tries: [AtomicU32; PATHS_MAX],
    pub(crate) next_try: [AtomicU64; PATHS_MAX],
    pub(crate) waiting: AtomicU32,
    pub(crate) held: AtomicU32,
    /// Waiting I/Os as of the queue's last tick.
    pub(crate) shown: Mutex<Vec<WaitingIo>>,
    pub(crate) recorder: Mutex<Recorder>,
    pub(crate) waker: Waker,
    messages: Mutex<Vec<QueueMessage>>,
}

impl QueueShared {
    pub(crate) fn new(id: u64, only: Option<usize>) -> std::io::Result<QueueShared> {
        Ok(QueueShared {
            id,
            only,
            links: std::array::from_fn(|_| AtomicU8::new(LINK_DOWN)),
            tries: std::array::from_fn(|_| AtomicU32::new(0)),
            next_try: std::array::from_fn(|_| AtomicU64::new(0)),
            waiting: AtomicU32::new(0),
            held: AtomicU32::new(0),
            shown: Mutex::new(Vec::new()),
            recorder: Mutex::new(Recorder::new(RECORDS)),
            waker: Waker::new()?,
            messages: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn post(&self, mail: QueueMessage) {
        lock(&self.messages).push(mail);
        self.waker.wake();
    }

    pub(crate) fn take_messages(&self) -> Vec<QueueMessage> {
        if !self.waker.take() {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_counts_once_and_many_hold_the_path_back_for_longer_each_time() {
        const SEC: Nanos = 1_000_000_000;
        let spec = path_file::FilePath::new("none".into(), path_file::Options::default());
        let port = Arc::new(Port {
            name: String::new(),
            index: 0,
            in_flight: AtomicU32::new(0),
        });
        let path = SharedPath::new(0, Arc::new(spec), String::new(), port);
        let mut now = SEC;
        let mut waits = Vec::new();
        for _ in 0..12 {
            assert!(path.flapped(now, 30, now + 1));
            assert!(
                !path.flapped(now, 30, now + 2),
                "another thread's view of it"
            );
            now += 2;
            let began = now;
            while path.held_back(now) {
                now += SEC / 10;
            }
            waits.push((now - began).div_ceil(SEC));
        }
        assert!(waits[..3].iter().all(|w| *w == 0), "{waits:?}");
        assert!(waits.is_sorted() && waits[11] >= 30, "{waits:?}");
        // A path that stayed up for long has no penalty left.
        now += 120 * SEC;
        assert!(path.flapped(now, 30, now + 1) && !path.held_back(now + 2));
    }

    #[test]
    fn a_bucket_holds_what_its_edge_says() {
        for took in (1..2_000_000_000u64).step_by(777_777) {
            let at = bucket(took);
            assert!(took <= upper(at).max(1000), "{took} in bucket {at}");
        }
        let mut counts = [0; BUCKETS];
        counts[bucket(100_000)] = 999;
        counts[bucket(9_000_000)] = 1;
        assert!(quantile(&counts, 0.5) < 200_000);
        assert!(quantile(&counts, 0.9999) >= 9_000_000);
    }
}
