//! Status of a LUN and its paths.

use crate::latency::{filled, quantile};
use crate::log::Event;
use crate::path::{PathState, SharedPath};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Status of a LUN, as printed by `evfs lun show`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LunStatus {
    /// Persistent name, `diskN`.
    pub name: String,
    /// World-wide ID, if the target reports one.
    pub wwid: Option<String>,
    /// Serial number, if the target reports one.
    pub serial: Option<String>,
    /// Vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Size in bytes.
    pub size: u64,
    /// Size of a logical block in bytes.
    pub block_size: u32,
    /// `online`, `limited` (some paths fail) or `offline`.
    pub health: &'static str,
    /// Value of `load_bal_policy`.
    pub policy: String,
    /// Number of open queues.
    pub queues: usize,
    /// Number of I/Os that wait for a path.
    pub waiting: u32,
    /// Number of writes that wait for an older write which a lost path left unanswered.
    pub held: u32,
    /// Number of such older writes.
    pub lost_writes: usize,
    /// Paths of the LUN, except removed ones.
    pub paths: Vec<PathStatus>,
    /// Failover log of the paths.
    pub log: Vec<Event>,
}

/// Status of a path, as printed by `evfs lun show`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PathStatus {
    /// Address of the path.
    pub name: String,
    /// Legacy name, `cXtYdZ`.
    pub legacy: String,
    /// `file`, `nbd`, `iscsi` or `rbd`.
    pub transport: &'static str,
    /// Target port.
    pub port: String,
    /// Current state.
    pub state: PathState,
    /// Reason why it is refused or has failed, or why its I/O waits.
    pub why: Option<String>,
    /// Access state of its target port (ALUA): `optimized`, `non_optimized`, `standby`,
    /// `unavailable` or `transitioning`.
    pub access: &'static str,
    /// Number of I/Os in flight.
    pub in_flight: u32,
    /// Number of successful reads.
    pub reads: u64,
    /// Number of successful writes.
    pub writes: u64,
    /// Bytes of successful reads.
    pub bytes_read: u64,
    /// Bytes of successful writes.
    pub bytes_written: u64,
    /// Number of failed I/Os.
    pub failures: u64,
    /// Number of I/Os that were queued again.
    pub retried: u64,
    /// Number of timeouts.
    pub timeouts: u64,
    /// Number of "not now" responses.
    pub busy: u64,
    /// Number of lost connections.
    pub offline_events: u64,
    /// Number of established connections.
    pub online_events: u64,
    /// Number of times it became suspect.
    pub suspect_events: u64,
    /// Number of responses that arrived after their request had been taken back.
    pub late_answers: u64,
    /// Median latency in microseconds.
    pub p50_us: u64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: u64,
    /// Non-empty buckets of the latencies in ascending order: upper bound in nanoseconds, and number
    /// of I/Os.
    #[serde(skip)]
    pub latencies: Vec<(u64, u64)>,
}

pub(crate) fn path_status(path: &SharedPath, queues: usize) -> PathStatus {
    let c = &path.counters;
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    let counts = path.latency_counts();
    let state = path.state(queues);
    PathStatus {
        name: path.path.name().to_owned(),
        legacy: path.legacy.clone(),
        transport: path.path.transport().name(),
        port: path.port.name.clone(),
        state,
        why: path.why(state),
        access: path.access.get().name(),
        in_flight: path.in_flight.load(Relaxed),
        reads: get(&c.reads),
        writes: get(&c.writes),
        bytes_read: get(&c.bytes_read),
        bytes_written: get(&c.bytes_written),
        failures: get(&c.failures),
        retried: get(&c.retried),
        timeouts: get(&c.timeouts),
        busy: get(&c.busy),
        offline_events: get(&c.offline_events),
        online_events: get(&c.online_events),
        suspect_events: get(&c.suspect_events),
        late_answers: get(&c.late_answers),
        p50_us: quantile(&counts, 0.5) / 1000,
        p99_us: quantile(&counts, 0.99) / 1000,
        latencies: filled(&counts),
    }
}

/// Returns the health of a LUN (`scsimgr`, `ioscan -P health`). `heeded`: access states count.
pub(crate) fn health(paths: &[PathStatus], heeded: bool) -> &'static str {
    let works = |p: &PathStatus| {
        matches!(
            p.state,
            PathState::Active | PathState::Standby | PathState::Unopen
        )
    };
    // While the LUN is not open, its access states are not updated.
    let carries = |p: &PathStatus| {
        let access = !heeded || matches!(p.access, "optimized" | "non_optimized");
        works(p) && (access || p.state == PathState::Unopen)
    };
    if !paths.iter().any(carries) {
        "offline"
    } else if paths.iter().all(works) {
        "online"
    } else {
        "limited"
    }
}
