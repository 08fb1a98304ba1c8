//! The metrics of services: samples from their status and from the counters of their layers.

use super::health::State;
use super::status::Status;
use crate::cache::ProcessCache;
use crate::control::{self, ControlRequest};
use crate::device::OpenLun;
use crate::metrics::{self, Samples};
use crate::{Error, Result};
use afs_server::ServerStats;
use block::StatsHandle;
use multipath::PathState;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

/// Adds the samples of a status.
pub(super) fn of_status(status: &Status, to: &mut Samples) {
    let volume = ("volume", &*status.name);
    let is_mount = status.fileset.is_some() || status.format.is_some();
    let kind = match (&status.cell, is_mount) {
        (Some(_), _) => "cell",
        (None, true) => "mount",
        (None, false) => "volume",
    };
    let role = status.cipher.as_ref().map_or("", |cipher| &*cipher.role);
    let info = [
        volume,
        ("kind", kind),
        ("device", &*status.device),
        ("role", role),
    ];
    to.count(metrics::SERVICE_UP, &[volume], 1);
    to.count(metrics::SERVICE_INFO, &info, 1);
    for state in State::ALL {
        let labels = [volume, ("state", state.word())];
        let is_it = u64::from(state == status.health.state);
        to.count(metrics::SERVICE_STATE, &labels, is_it);
    }
    to.count(metrics::START_TIME, &[volume], status.since);
    for export in &status.exports {
        let labels = [volume, ("kind", export.kind), ("at", &*export.at)];
        to.count(metrics::EXPORT_INFO, &labels, 1);
    }
    if let Some(cluster) = &status.cluster {
        let labels = [volume, ("machine", &*cluster.machine)];
        to.count(metrics::CLUSTER_EPOCH, &labels, cluster.epoch);
        to.add(
            metrics::CLUSTER_LEASE,
            &labels,
            cluster.lease_ms as f64 / 1e3,
        );
    }
    to.count(metrics::SIZE, &[volume], status.size);
    to.count(metrics::READ_ONLY, &[volume], u64::from(status.read_only));
    if let Some(space) = &status.space {
        to.count(metrics::FS_SIZE, &[volume], space.size_bytes);
        to.count(metrics::FS_FREE, &[volume], space.free_bytes);
        to.count(metrics::FS_AVAILABLE, &[volume], space.available_bytes);
        let mismatches = space.checksum_mismatches;
        to.count(metrics::FS_MISMATCHES, &[volume], mismatches);
    }
    if let Some(write_back) = &status.write_back {
        let age = write_back.oldest_dirty_ms.unwrap_or(0) as f64 / 1e3;
        let is_failing = u64::from(write_back.error.is_some());
        to.count(metrics::DIRTY, &[volume], write_back.dirty_bytes);
        to.add(metrics::DIRTY_AGE, &[volume], age);
        to.count(metrics::WRITE_BACK_FAILING, &[volume], is_failing);
    }
}

/// Adds the counters of the device under a service.
pub(super) fn of_io(name: &str, stats: &StatsHandle, to: &mut Samples) {
    for read in stats.histograms() {
        let op = read.kind.to_string();
        let labels = [("volume", name), ("op", &*op)];
        to.count(metrics::IO_REQUESTS, &labels, read.stats.requests);
        to.count(metrics::IO_BYTES, &labels, read.stats.bytes);
        to.count(metrics::IO_ERRORS, &labels, read.stats.errors);
        let sum = read.stats.total_ns;
        to.histogram(metrics::IO_LATENCY, &labels, &read.latencies, sum);
    }
}

/// Adds the state and the counters of the paths of a LUN.
pub(super) fn of_lun(name: &str, lun: &OpenLun, to: &mut Samples) {
    let status = lun.lun().status();
    let lun = [("volume", name), ("lun", &*status.name)];
    to.count(metrics::LUN_WAITING, &lun, u64::from(status.waiting));
    for path in &status.paths {
        let labels = [lun[0], lun[1], ("path", &*path.name)];
        let with = |more: (&'static str, &'static str)| [&labels[..], &[more]].concat();
        let state = with(("state", word_of(path.state)));
        to.count(metrics::PATH_STATE, &state, 1);
        for (op, requests, bytes) in [
            ("read", path.reads, path.bytes_read),
            ("write", path.writes, path.bytes_written),
        ] {
            let labels = with(("op", op));
            to.count(metrics::PATH_REQUESTS, &labels, requests);
            to.count(metrics::PATH_BYTES, &labels, bytes);
        }
        to.count(metrics::PATH_ERRORS, &labels, path.failures);
        to.count(metrics::PATH_RETRIES, &labels, path.retried);
        to.count(metrics::PATH_LOSSES, &labels, path.offline_events);
        to.count(metrics::PATH_IN_FLIGHT, &labels, u64::from(path.in_flight));
    }
}

/// Names the state of a path as `evfs lun show` does.
pub(super) fn word_of(state: PathState) -> &'static str {
    match state {
        PathState::Unopen => "unopen",
        PathState::Active => "active",
        PathState::Standby => "standby",
        PathState::Suspect => "suspect",
        PathState::Failed => "failed",
        PathState::Recovering => "recovering",
        PathState::AuthFailed => "auth_failed",
        PathState::Disabled => "disabled",
    }
}

/// Adds the counters of the cache of this process, which its services share.
pub(super) fn of_cache(cache: &ProcessCache, to: &mut Samples) {
    let Some(stats) = cache.stats() else {
        return;
    };
    let pid = std::process::id().to_string();
    let pid = ("pid", &*pid);
    let counts = &stats.counts;
    for (result, count) in [
        ("hit", counts.hits),
        ("miss", counts.misses),
        ("join", counts.joins),
    ] {
        to.count(metrics::CACHE_READS, &[pid, ("result", result)], count);
    }
    to.count(metrics::CACHE_WRITES, &[pid], counts.writes);
    for (result, count) in [
        ("loaded", counts.read_ahead),
        ("used", counts.read_ahead_used),
        ("wasted", counts.read_ahead_wasted),
    ] {
        to.count(metrics::CACHE_READ_AHEAD, &[pid, ("result", result)], count);
    }
    for (reason, count) in [
        ("limit", counts.evicted_limit),
        ("pressure", counts.evicted_pressure),
        ("stealback", counts.evicted_stealback),
    ] {
        to.count(metrics::CACHE_EVICTED, &[pid, ("reason", reason)], count);
    }
    to.count(metrics::CACHE_USED, &[pid], stats.used_bytes);
    to.count(metrics::CACHE_MAX, &[pid], stats.max_bytes);
    to.count(metrics::CACHE_DIRTY, &[pid], stats.dirty_bytes);
    let throttled = counts.throttled_ms as f64 / 1e3;
    to.add(metrics::CACHE_THROTTLED, &[pid], throttled);
}

/// Adds the counters of a cell.
pub(super) fn of_cell(name: &str, stats: &ServerStats, to: &mut Samples) {
    let volume = ("volume", name);
    to.count(metrics::CELL_CLIENTS, &[volume], stats.clients as u64);
    to.count(metrics::CELL_ACTIVE, &[volume], stats.active_clients as u64);
    to.count(metrics::CELL_PROMISES, &[volume], stats.promises as u64);
    for called in &stats.called {
        let labels = [volume, ("procedure", called.procedure)];
        to.count(metrics::CELL_CALLS, &labels, called.calls);
        to.count(metrics::CELL_ERRORS, &labels, called.aborts);
    }
    let counts = &stats.counts;
    to.count(metrics::CELL_BREAKS, &[volume], counts.breaks);
    to.count(metrics::CELL_FETCHED, &[volume], counts.fetched_bytes);
    to.count(metrics::CELL_STORED, &[volume], counts.stored_bytes);
}

/// Formats the metrics of all services of a directory. `own` are the names and samples of those of
/// this process; the others are queried concurrently, with a time limit.
pub(super) fn text(run_dir: &Path, own: Vec<(String, Samples)>, began: Instant) -> String {
    let mut others = control::names(run_dir);
    others.retain(|name| own.iter().all(|(own, _)| own != name));
    let answers = control::concurrently(others, |name| {
        control::send_request(run_dir, name, &ControlRequest::Metrics)
    });
    let mut parts: Vec<Samples> = own.into_iter().map(|(_, samples)| samples).collect();
    parts.extend(answers.into_iter().filter_map(of_other));
    let mut process = Samples::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    process.count(metrics::BUILD_INFO, &version, 1);
    let duration = began.elapsed().as_secs_f64();
    process.add(metrics::SCRAPE_DURATION, &[], duration);
    parts.push(process);
    metrics::text(&Samples::merged(parts))
}

/// Reads the samples in the answer of another process. A service without a valid answer is down.
fn of_other((name, answer): (String, Result<Value>)) -> Option<Samples> {
    let samples = match answer {
        // It has ended since.
        Err(Error::NotFound(_)) => return None,
        Err(_) => None,
        Ok(value) => serde_json::from_value(value).ok(),
    };
    Some(samples.unwrap_or_else(|| {
        let mut down = Samples::default();
        down.count(metrics::SERVICE_UP, &[("volume", &*name)], 0);
        down
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_does_not_answer_is_down_and_one_that_ended_is_absent() {
        let of = |answer| of_other(("disk".into(), answer));
        assert!(of(Err(Error::NotFound("ended".into()))).is_none());
        for answer in [Err(Error::Busy("stopped".into())), Ok(Value::Bool(true))] {
            let text = metrics::text(&of(answer).unwrap());
            assert!(
                text.contains("\nevfs_service_up{volume=\"disk\"} 0\n"),
                "{text}"
            );
        }
        let mut samples = Samples::default();
        samples.count(metrics::SIZE, &[("volume", "disk")], 7);
        let answer = serde_json::to_value(&samples).unwrap();
        let text = metrics::text(&of(Ok(answer)).unwrap());
        assert!(
            text.contains("evfs_volume_size_bytes{volume=\"disk\"} 7\n"),
            "{text}"
        );
    }

    #[test]
    fn states_of_paths_have_the_names_of_their_json() {
        for state in [
            PathState::Unopen,
            PathState::Active,
            PathState::Standby,
            PathState::Suspect,
            PathState::Failed,
            PathState::Recovering,
            PathState::AuthFailed,
            PathState::Disabled,
        ] {
            assert_eq!(serde_json::to_value(state).unwrap(), word_of(state));
        }
    }
}
