//! A path as all threads of a LUN share it: its state, its counters, and the limits on its use.

use crate::access::PortAccess;
use crate::attributes::Attributes;
use crate::flaps::Flaps;
use crate::latency::{BUCKETS, Latencies};
use crate::policy::Nanos;
use crate::refusal::{Refusal, Refusals};
use crate::sync::lock;
use lunpath::{Access, Lunpath};
use retry::{Backoff, Breaker, Jitter, random_seed};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Maximum number of lunpaths of one LUN (as in HP-UX 11i v3).
pub const PATHS_MAX: usize = 32;

/// Pauses between attempts to connect.
const RECONNECT: Backoff = Backoff::new(
    Duration::from_millis(20),
    Duration::from_secs(1),
    Jitter::Equal,
);

/// Administrative state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Admin {
    Enabled,
    Disabled,
    Removed,
}

/// State of a lunpath, with the names of HP-UX and two additional states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
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

/// A target port, shared by the paths that use it.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) in_flight: AtomicU32,
}

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
    /// Number of failed connection attempts in total, and those since the last connection of any
    /// queue.
    pub(crate) failures: AtomicU64,
    pub(crate) attempts: Breaker,
    /// For the pauses of this path.
    pub(crate) seed: u64,
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
    pub(crate) refusals: Refusals,
    pub(crate) flaps: Flaps,
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
            attempts: Breaker::default(),
            seed: random_seed(),
            links_up: AtomicU32::new(0),
            links_suspect: AtomicU32::new(0),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            lost_writes: AtomicBool::new(false),
            counters: Counters::default(),
            admission: Mutex::new(()),
            admin: AtomicU8::new(Admin::Enabled as u8),
            trouble: Mutex::new(None),
            refusals: Refusals::default(),
            flaps: Flaps::default(),
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
        self.admin() == Admin::Enabled && !self.refusals.holds()
    }

    /// Checks whether a queue may have a link on it; `only` is the only path of the queue.
    pub(crate) fn wants_link(&self, only: Option<usize>) -> bool {
        self.admin() == Admin::Enabled && self.eligible() && only.is_none_or(|o| o == self.id)
    }

    pub(crate) fn refuse(&self, refusal: Refusal, now: Nanos) {
        self.proven.store(false, Release);
        self.refusals.add(refusal, now, self.seed);
    }

    /// Counts a lost connection or a failed attempt to connect: of this path, or of it in one queue.
    pub(crate) fn delay(&self, attempts: &Breaker, now: Nanos) {
        attempts.failed(Duration::from_nanos(now), &RECONNECT, self.seed);
    }

    /// Reports whether the limits permit another I/O on it.
    pub(crate) fn is_below(&self, limits: &Attributes) -> bool {
        let port = limits.tport_max_qdepth;
        self.in_flight.load(Relaxed) < limits.max_q_depth
            && (port == 0 || self.port.in_flight.load(Relaxed) < port)
    }

    /// Records that it has no connection, and why; the next success clears it.
    pub(crate) fn fails(&self, why: String) {
        self.failing.store(true, Relaxed);
        *lock(&self.trouble) = Some(why);
    }

    /// Records a successful connection attempt.
    pub(crate) fn answers(&self) {
        self.attempts.succeeded();
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
            PathState::AuthFailed => self.refusals.current().map(|r| r.why),
            PathState::Failed | PathState::Recovering => lock(&self.trouble).clone(),
            _ => None,
        }
    }

    /// Checks whether it is refused and due for examination.
    pub(crate) fn to_examine(&self, now: Nanos) -> bool {
        self.admin() == Admin::Enabled && self.refusals.is_due(now)
    }

    pub(crate) fn state(&self, queues: usize) -> PathState {
        let up = self.links_up.load(Relaxed);
        let access = self.access.get();
        match self.admin() {
            Admin::Disabled | Admin::Removed => PathState::Disabled,
            Admin::Enabled if self.refusals.holds() => PathState::AuthFailed,
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

#[cfg(test)]
mod tests {
    use super::*;
    use path_nbd::{NbdPath, NbdUri, Options};

    #[test]
    fn clients_that_lose_a_server_together_connect_one_after_another() {
        const CLIENTS: usize = 1000;
        const LOST: Nanos = 1_000_000_000;
        let uri = NbdUri::parse("nbd://127.0.0.1/e").unwrap();
        let port = Arc::new(Port {
            name: String::new(),
            index: 0,
            in_flight: AtomicU32::new(0),
        });
        // The first attempts are made from 10 to 20 ms after the loss.
        let mut parts = [0; 10];
        for _ in 0..CLIENTS {
            let path = Arc::new(NbdPath::new(uri.clone(), Options::default()));
            let client = SharedPath::new(0, path, String::new(), Arc::clone(&port));
            client.delay(&client.attempts, LOST);
            let after = client.attempts.until() - Duration::from_nanos(LOST);
            parts[after.as_millis() as usize - 10] += 1;
        }
        assert!(parts.iter().all(|n| (50..150).contains(n)), "{parts:?}");
    }
}
