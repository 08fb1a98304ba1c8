//! What there is to be seen of a LUN and its paths.

use crate::state::{Event, PathState, SharedPath, quantile};
use serde::Serialize;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A LUN, as `evfs lun show` prints it.
#[derive(Debug, Clone, Serialize)]
pub struct LunStatus {
    /// Persistent name.
    pub name: String,
    /// World-wide ID.
    pub wwid: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Vendor.
    pub vendor: String,
    /// Product.
    pub product: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// `online`, `limited` (some paths fail) or `offline`.
    pub health: &'static str,
    /// `load_bal_policy`.
    pub policy: String,
    /// Queues that are open.
    pub queues: usize,
    /// I/Os that wait for a path.
    pub waiting: u32,
    /// Writes that wait for an older one which a lost path left unanswered.
    pub held: u32,
    /// Such older writes.
    pub lost_writes: usize,
    /// Its paths.
    pub paths: Vec<PathStatus>,
    /// What happened to them.
    pub log: Vec<Event>,
}

/// A path, as `evfs lun show` prints it.
#[derive(Debug, Clone, Serialize)]
pub struct PathStatus {
    /// Address.
    pub name: String,
    /// Legacy name.
    pub legacy: String,
    /// `file`, `nbd` or `iscsi`.
    pub transport: &'static str,
    /// Target port.
    pub port: String,
    /// State.
    pub state: PathState,
    /// Why it is refused, or has failed.
    pub why: Option<String>,
    /// Access that its target port gives (ALUA): `optimized`, `non_optimized`, `standby`,
    /// `unavailable` or `transitioning`.
    pub access: &'static str,
    /// I/Os in flight.
    pub in_flight: u32,
    /// Reads that ended well.
    pub reads: u64,
    /// Writes that ended well.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// I/Os that ended with an error.
    pub failures: u64,
    /// I/Os that went another way.
    pub retried: u64,
    /// I/Os that took too long.
    pub timeouts: u64,
    /// Answers "try again".
    pub busy: u64,
    /// Times its connection was lost.
    pub offline_events: u64,
    /// Times it was connected.
    pub online_events: u64,
    /// Times it was suspected.
    pub suspect_events: u64,
    /// Answers that came after their request had gone another way.
    pub late_answers: u64,
    /// Median latency in microseconds.
    pub p50_us: u64,
    /// 99 of 100 were no slower.
    pub p99_us: u64,
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
    }
}

/// Health of a LUN (`scsimgr`, `ioscan -P health`). `heeded`: what ports give counts.
pub(crate) fn health(paths: &[PathStatus], heeded: bool) -> &'static str {
    let works = |p: &PathStatus| {
        matches!(
            p.state,
            PathState::Active | PathState::Standby | PathState::Unopen
        )
    };
    // While nobody has it open, nobody hears of a change either.
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
