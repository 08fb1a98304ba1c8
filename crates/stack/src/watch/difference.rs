//! Differences of two readings of a service: rates and percentiles.
//!
//! A value that cannot be computed is absent: without an earlier reading, after a restart, and if a
//! counter has decreased because it was reset.

use super::reading::{
    CacheCounters, CellCounters, FileCounters, IoCounters, PathCounters, Reading,
};
use super::sample::{
    CacheSample, CellSample, ClientSample, FileSample, IoRates, PathSample, ServiceSample,
    TransferRates,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Two readings of the same run of a service.
#[derive(Clone, Copy)]
pub(super) struct Interval<'a> {
    before: Option<(&'a Reading, f64)>,
    after: &'a Reading,
}

impl<'a> Interval<'a> {
    /// Compares `after` with `before`, which was read the given number of seconds earlier. A
    /// reading of another run of the service is not compared.
    pub(super) fn new(before: Option<(&'a Reading, f64)>, after: &'a Reading) -> Interval<'a> {
        let comparable = |(reading, seconds): &(&Reading, f64)| {
            *seconds > 0.0 && run_of(reading) == run_of(after)
        };
        Interval {
            before: before.filter(comparable),
            after,
        }
    }

    /// Returns the length in seconds, if there are two readings.
    fn seconds(&self) -> Option<f64> {
        self.before.map(|(_, seconds)| seconds)
    }

    /// Finds a part of the earlier reading.
    fn earlier<T: 'a>(&self, find: impl Fn(&'a Reading) -> Option<&'a T>) -> Option<(&'a T, f64)> {
        let (reading, seconds) = self.before?;
        Some((find(reading)?, seconds))
    }

    /// Computes the state and the rates of the service.
    pub(super) fn service(&self, name: &str) -> ServiceSample {
        let status = &self.after.status;
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        let texts = |list: &Value, of: fn(&Value) -> &Value| -> Vec<String> {
            let all = list.as_array().into_iter().flatten();
            all.filter_map(|value| of(value).as_str().map(str::to_owned))
                .collect()
        };
        let space = &status["space"];
        let io = self.io();
        let of = |op: &str| {
            let counters = |reading: &'a Reading| reading.io.iter().find(|io| io.op == op);
            Some((self.earlier(counters)?, counters(self.after)?))
        };
        ServiceSample {
            name: name.to_owned(),
            kind: kind_of(status),
            state: state_of(status),
            reasons: texts(&status["health"]["reasons"], |reason| reason),
            error: None,
            device: text("device"),
            exports: texts(&status["exports"], |export| &export["at"]),
            epoch: status["cluster"]["epoch"].as_u64(),
            lease_ms: status["cluster"]["lease_ms"].as_u64(),
            pid: status["pid"].as_u64(),
            uptime_seconds: status["uptime_seconds"].as_u64(),
            size_bytes: status["size"].as_u64(),
            available_bytes: space["available_bytes"].as_u64(),
            filesystem_bytes: space["size_bytes"].as_u64(),
            dirty_bytes: status["write_back"]["dirty_bytes"].as_u64(),
            oldest_dirty_ms: status["write_back"]["oldest_dirty_ms"].as_u64(),
            interval_seconds: self.seconds(),
            total: of("read").zip(of("write")).and_then(|(read, write)| {
                let (((read_before, seconds), read), ((write_before, _), write)) = (read, write);
                io_rates(&sum(read_before, write_before), &sum(read, write), seconds)
            }),
            io,
        }
    }

    fn io(&self) -> BTreeMap<String, IoRates> {
        let rates = |after: &'a IoCounters| {
            let same = |reading: &'a Reading| reading.io.iter().find(|io| io.op == after.op);
            let (before, seconds) = self.earlier(same)?;
            Some((after.op.clone(), io_rates(before, after, seconds)?))
        };
        self.after.io.iter().filter_map(rates).collect()
    }

    /// Returns the state and the rates of the paths of its LUN.
    pub(super) fn paths(&self, service: &str) -> Vec<PathSample> {
        let of = |after: &'a PathCounters| {
            let same = |reading: &'a Reading| {
                let mut paths = reading.paths.iter();
                paths.find(|path| path.path == after.path)
            };
            let before = self.earlier(same);
            PathSample {
                service: service.to_owned(),
                lun: after.lun.clone(),
                path: after.path.clone(),
                state: after.state.clone(),
                why: after.why.clone(),
                in_flight: after.in_flight,
                waiting: after.waiting,
                losses: after.losses,
                rates: before.and_then(|(before, seconds)| path_rates(before, after, seconds)),
            }
        };
        self.after.paths.iter().map(of).collect()
    }

    /// Returns the state and the rates of the cache of its process, without the list of services.
    pub(super) fn cache(&self) -> Option<CacheSample> {
        let after = self.after.cache.as_ref()?;
        let before = self.earlier(|reading| reading.cache.as_ref());
        let before = before.filter(|(before, _)| before.pid == after.pid);
        let rate = |of: fn(&CacheCounters) -> u64| per_second(before, after, of);
        let reads = rate(|c| c.hits + c.misses + c.joins);
        Some(CacheSample {
            pid: after.pid,
            services: Vec::new(),
            used_bytes: after.used_bytes,
            max_bytes: after.max_bytes,
            dirty_bytes: after.dirty_bytes,
            oldest_dirty_ms: after.oldest_dirty_ms,
            hit_ratio: ratio(rate(|c| c.hits), reads),
            reads_per_second: reads,
            misses_per_second: rate(|c| c.misses),
            writes_per_second: rate(|c| c.writes),
            read_ahead_per_second: rate(|c| c.read_ahead),
            wasted_per_second: rate(|c| c.read_ahead_wasted),
            evicted_per_second: rate(|c| c.evicted),
            throttled_share: rate(|c| c.throttled_ms).map(|ms| ms / 1e3),
        })
    }

    /// Returns the state and the rates of the leading files.
    pub(super) fn files(&self, service: &str) -> Vec<FileSample> {
        let of = |after: &'a FileCounters| {
            let same = |reading: &'a Reading| {
                let mut files = reading.files.iter();
                files.find(|file| (&file.tree, file.file) == (&after.tree, after.file))
            };
            let before = self.earlier(same);
            let rate = |of: fn(&FileCounters) -> u64| per_second(before, after, of);
            let reads = rate(|f| f.hits + f.misses + f.joins);
            FileSample {
                service: service.to_owned(),
                tree: after.tree.clone(),
                file: after.file,
                path: after.path.clone(),
                size_bytes: after.size,
                cached_bytes: after.cached_bytes,
                dirty_bytes: after.dirty_bytes,
                oldest_dirty_ms: after.oldest_dirty_ms,
                hit_ratio: ratio(rate(|f| f.hits), reads),
                reads_per_second: reads,
                writes_per_second: rate(|f| f.writes),
            }
        };
        self.after.files.iter().map(of).collect()
    }

    /// Computes the state and the rates of its cell.
    pub(super) fn cell(&self, service: &str) -> Option<CellSample> {
        let after = self.after.cell.as_ref()?;
        let before = self.earlier(|reading| reading.cell.as_ref());
        let rate = |of: fn(&CellCounters) -> u64| per_second(before, after, of);
        let cell = self.after.status["cell"].as_str().unwrap_or(service);
        Some(CellSample {
            service: service.to_owned(),
            cell: cell.to_owned(),
            clients: after.clients,
            active_clients: after.active_clients,
            promises: after.promises,
            calls_per_second: rate(|c| c.calls),
            errors_per_second: rate(|c| c.errors),
            breaks_per_second: rate(|c| c.breaks),
            fetched_bytes_per_second: rate(|c| c.fetched_bytes),
            stored_bytes_per_second: rate(|c| c.stored_bytes),
            procedures: before.map_or_else(Vec::new, |(before, seconds)| {
                procedures(before, after, seconds)
            }),
        })
    }

    /// Returns the clients of its cell.
    pub(super) fn clients(&self, service: &str) -> Vec<ClientSample> {
        let recent = self.after.cell.iter().flat_map(|cell| &cell.recent);
        let shown = recent.map(|client| ClientSample {
            service: service.to_owned(),
            address: client.address.clone(),
            state: client.state.clone(),
            promises: client.promises,
            heard_seconds_ago: client.heard_seconds_ago,
        });
        shown.collect()
    }
}

/// Identifies a run of a service: its process, and the time of its start.
fn run_of(reading: &Reading) -> (&Value, &Value) {
    (&reading.status["pid"], &reading.status["since"])
}

fn kind_of(status: &Value) -> &'static str {
    let is_mount = status["fileset"].is_string() || status["format"].is_string();
    match (status["cell"].is_string(), is_mount) {
        (true, _) => "cell",
        (false, true) => "mount",
        (false, false) => "volume",
    }
}

fn state_of(status: &Value) -> String {
    let state = status["health"]["state"].as_str();
    state.unwrap_or("ok").to_owned()
}

/// Computes the rate of a counter; `None` without an earlier value, and if it has decreased.
fn per_second<T>(before: Option<(&T, f64)>, after: &T, of: fn(&T) -> u64) -> Option<f64> {
    let (before, seconds) = before?;
    Some(of(after).checked_sub(of(before))? as f64 / seconds)
}

fn ratio(part: Option<f64>, all: Option<f64>) -> Option<f64> {
    let (part, all) = part.zip(all)?;
    // The counters are read one after the other, so the part may be ahead.
    (all > 0.0).then(|| (part / all).min(1.0))
}

/// Adds up the counters of two kinds of requests.
fn sum(one: &IoCounters, other: &IoCounters) -> IoCounters {
    let mut buckets: BTreeMap<u64, u64> = one.latencies.iter().copied().collect();
    for (bound, count) in &other.latencies {
        *buckets.entry(*bound).or_default() += count;
    }
    IoCounters {
        op: String::new(),
        requests: one.requests + other.requests,
        bytes: one.bytes + other.bytes,
        errors: one.errors + other.errors,
        total_ns: one.total_ns.wrapping_add(other.total_ns),
        latencies: buckets.into_iter().collect(),
    }
}

fn io_rates(before: &IoCounters, after: &IoCounters, seconds: f64) -> Option<IoRates> {
    let rate = |of: fn(&IoCounters) -> u64| per_second(Some((before, seconds)), after, of);
    let new = new_requests(&before.latencies, &after.latencies)?;
    let count: u64 = new.iter().map(|(_, count)| count).sum();
    // The sum of latencies may wrap around.
    let total = after.total_ns.wrapping_sub(before.total_ns);
    Some(IoRates {
        requests_per_second: rate(|io| io.requests)?,
        bytes_per_second: rate(|io| io.bytes)?,
        errors_per_second: rate(|io| io.errors)?,
        mean_ns: total.checked_div(count),
        p50_ns: percentile(&new, 50),
        p99_ns: percentile(&new, 99),
    })
}

fn path_rates(before: &PathCounters, after: &PathCounters, seconds: f64) -> Option<TransferRates> {
    let rate = |of: fn(&PathCounters) -> u64| per_second(Some((before, seconds)), after, of);
    let new = new_requests(&before.latencies, &after.latencies)?;
    Some(TransferRates {
        reads_per_second: rate(|path| path.reads)?,
        writes_per_second: rate(|path| path.writes)?,
        read_bytes_per_second: rate(|path| path.bytes_read)?,
        written_bytes_per_second: rate(|path| path.bytes_written)?,
        errors_per_second: rate(|path| path.errors)?,
        retries_per_second: rate(|path| path.retries)?,
        p50_ns: percentile(&new, 50),
        p99_ns: percentile(&new, 99),
    })
}

fn procedures(before: &CellCounters, after: &CellCounters, seconds: f64) -> Vec<(String, f64)> {
    let earlier: BTreeMap<&str, u64> = before
        .procedures
        .iter()
        .map(|(name, calls)| (name.as_str(), *calls))
        .collect();
    let rate = |(name, calls): &(String, u64)| {
        let before = earlier.get(name.as_str()).copied().unwrap_or(0);
        let new = calls.checked_sub(before).filter(|new| *new > 0)?;
        Some((name.clone(), new as f64 / seconds))
    };
    let mut called: Vec<_> = after.procedures.iter().filter_map(rate).collect();
    called.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    called
}

/// Subtracts two histograms; `None` if a bucket has lost requests.
fn new_requests(before: &[(u64, u64)], after: &[(u64, u64)]) -> Option<Vec<(u64, u64)>> {
    let mut new: BTreeMap<u64, u64> = after.iter().copied().collect();
    for (bound, count) in before {
        let left = new.get_mut(bound)?;
        *left = left.checked_sub(*count)?;
    }
    Some(new.into_iter().filter(|(_, count)| *count > 0).collect())
}

/// Estimates the latency that `per_cent` of the requests did not exceed, as the upper bound of its
/// bucket.
fn percentile(buckets: &[(u64, u64)], per_cent: u64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let rank = (u128::from(total) * u128::from(per_cent)).div_ceil(100);
    let mut seen = 0;
    let reaches = |(_, count): &&(u64, u64)| {
        seen += u128::from(*count);
        seen >= rank
    };
    buckets.iter().find(reaches).map(|(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::reading::ClientCounters;
    use serde_json::json;

    fn io(op: &str, requests: u64, latencies: &[(u64, u64)]) -> IoCounters {
        IoCounters {
            op: op.into(),
            requests,
            bytes: requests * 4096,
            errors: requests / 10,
            total_ns: latencies.iter().map(|(bound, count)| bound * count).sum(),
            latencies: latencies.to_vec(),
        }
    }

    fn reading(since: u64, io: Vec<IoCounters>) -> Reading {
        Reading {
            status: json!({
                "pid": 7, "since": since, "device": "disk.img", "size": 1 << 20,
                "health": { "state": "degraded", "reasons": ["a path failed"] },
                "exports": [{ "kind": "nbd", "at": "/run/disk.nbd" }],
                "space": { "size_bytes": 100, "available_bytes": 40 },
                "write_back": { "dirty_bytes": 8192, "oldest_dirty_ms": 30 },
            }),
            io,
            ..Reading::default()
        }
    }

    #[test]
    fn rates_and_percentiles_are_those_of_the_interval_alone() {
        // A slow past does not show in the percentiles of a fast interval.
        let before = reading(1, vec![io("read", 1000, &[(1_000_000, 1000)])]);
        let after = io("read", 1200, &[(1000, 198), (1_000_000, 1002)]);
        let after = reading(1, vec![after]);
        let sample = Interval::new(Some((&before, 2.0)), &after).service("disk");
        let read = sample.io["read"];
        assert_eq!(read.requests_per_second, 100.0);
        assert_eq!(read.bytes_per_second, 409_600.0);
        assert_eq!(read.errors_per_second, 10.0);
        assert_eq!((read.p50_ns, read.p99_ns), (Some(1000), Some(1000)));
        assert_eq!(read.mean_ns, Some((198 * 1000 + 2 * 1_000_000) / 200));
        assert_eq!(sample.interval_seconds, Some(2.0));
        // Without writes there is no sum of reads and writes.
        assert_eq!(sample.total, None);
        let state = (sample.state.as_str(), sample.kind, sample.dirty_bytes);
        assert_eq!(state, ("degraded", "volume", Some(8192)));
        assert_eq!(sample.exports, ["/run/disk.nbd"]);
        let space = (sample.available_bytes, sample.filesystem_bytes);
        assert_eq!(space, (Some(40), Some(100)));
    }

    #[test]
    fn reads_and_writes_are_also_shown_together() {
        let ops = |reads: u64, writes: u64| {
            let read = io("read", reads, &[(1000, reads)]);
            let write = io("write", writes, &[(1000, 1), (9000, writes - 1)]);
            vec![read, write]
        };
        let (before, after) = (reading(1, ops(10, 10)), reading(1, ops(70, 50)));
        let sample = Interval::new(Some((&before, 1.0)), &after).service("disk");
        let total = sample.total.unwrap();
        assert_eq!(total.requests_per_second, 100.0);
        assert_eq!((total.p50_ns, total.p99_ns), (Some(1000), Some(9000)));
    }

    #[test]
    fn an_interval_without_requests_has_rates_but_no_percentiles() {
        let same = reading(1, vec![io("read", 5, &[(1000, 5)])]);
        let sample = Interval::new(Some((&same, 1.0)), &same).service("disk");
        let read = sample.io["read"];
        assert_eq!(read.requests_per_second, 0.0);
        assert_eq!((read.p50_ns, read.p99_ns, read.mean_ns), (None, None, None));
    }

    #[test]
    fn after_a_restart_or_a_reset_there_are_no_rates() {
        let before = reading(1, vec![io("read", 100, &[(1000, 100)])]);
        let none = |before: Option<(&Reading, f64)>, after: &Reading| {
            let sample = Interval::new(before, after).service("disk");
            assert!(sample.io.is_empty(), "{sample:?}");
            sample.interval_seconds
        };
        let later = reading(1, vec![io("read", 200, &[(1000, 200)])]);
        assert_eq!(none(None, &later), None);
        assert_eq!(none(Some((&before, 0.0)), &later), None);
        // Another run has larger counters by chance.
        let restarted = reading(2, vec![io("read", 200, &[(1000, 200)])]);
        assert_eq!(none(Some((&before, 1.0)), &restarted), None);
        // The same run, but the counters have decreased, or a bucket has.
        let reset = reading(1, vec![io("read", 3, &[(1000, 3)])]);
        assert_eq!(none(Some((&before, 1.0)), &reset), Some(1.0));
        let moved = reading(1, vec![io("read", 200, &[(2000, 200)])]);
        assert_eq!(none(Some((&before, 1.0)), &moved), Some(1.0));
    }

    #[test]
    fn a_path_has_rates_unless_it_is_new_or_was_reset() {
        let path = |name: &str, reads: u64| PathCounters {
            lun: "disk1".into(),
            path: name.into(),
            state: "active".into(),
            reads,
            bytes_read: reads * 512,
            latencies: vec![(5000, reads)],
            ..PathCounters::default()
        };
        let with = |paths: Vec<PathCounters>| Reading {
            paths,
            ..reading(1, Vec::new())
        };
        let before = with(vec![path("a", 10), path("b", 10)]);
        let after = with(vec![path("a", 30), path("b", 4), path("c", 5)]);
        let paths = Interval::new(Some((&before, 2.0)), &after).paths("disk");
        let rates = paths[0].rates.unwrap();
        assert_eq!((rates.reads_per_second, rates.p99_ns), (10.0, Some(5000)));
        assert_eq!(rates.read_bytes_per_second, 5120.0);
        assert_eq!((paths[1].rates, paths[2].rates), (None, None));
    }

    #[test]
    fn the_hit_ratio_is_that_of_the_interval() {
        let with = |hits: u64, misses: u64, pid: u32| Reading {
            cache: Some(CacheCounters {
                pid,
                hits,
                misses,
                throttled_ms: hits,
                ..CacheCounters::default()
            }),
            ..reading(1, Vec::new())
        };
        let before = with(1000, 0, 7);
        let of = |after: &Reading| Interval::new(Some((&before, 1.0)), after).cache().unwrap();
        let cache = of(&with(1030, 10, 7));
        assert_eq!(cache.hit_ratio, Some(0.75));
        assert_eq!(cache.reads_per_second, Some(40.0));
        assert_eq!(cache.throttled_share, Some(0.03));
        let idle = of(&with(1000, 0, 7));
        assert_eq!((idle.hit_ratio, idle.reads_per_second), (None, Some(0.0)));
        assert_eq!(of(&with(2000, 0, 8)).reads_per_second, None);
        assert_eq!(Interval::new(None, &reading(1, Vec::new())).cache(), None);
    }

    #[test]
    fn files_are_compared_by_tree_and_number() {
        let file = |tree: &str, hits: u64| FileCounters {
            tree: tree.into(),
            file: 3,
            hits,
            writes: hits / 2,
            ..FileCounters::default()
        };
        let with = |files: Vec<FileCounters>| Reading {
            files,
            ..reading(1, Vec::new())
        };
        let before = with(vec![file("a", 10), file("b", 100)]);
        let after = with(vec![file("a", 20), file("c", 5)]);
        let files = Interval::new(Some((&before, 1.0)), &after).files("m");
        assert_eq!(files[0].reads_per_second, Some(10.0));
        assert_eq!(files[0].writes_per_second, Some(5.0));
        assert_eq!(files[0].hit_ratio, Some(1.0));
        assert_eq!(files[1].reads_per_second, None);
    }

    #[test]
    fn a_cell_shows_the_procedures_of_the_interval() {
        let with = |calls: u64, procedures: &[(&str, u64)]| {
            let own = procedures.iter().map(|(name, n)| ((*name).to_owned(), *n));
            let mut reading = reading(1, Vec::new());
            reading.status["cell"] = "example.org".into();
            reading.cell = Some(CellCounters {
                calls,
                procedures: own.collect(),
                recent: vec![ClientCounters {
                    address: "10.0.0.1:7001".into(),
                    ..ClientCounters::default()
                }],
                ..CellCounters::default()
            });
            reading
        };
        let before = with(10, &[("FetchData64", 4), ("GetTime", 6)]);
        let after = with(
            30,
            &[("FetchData64", 8), ("GetTime", 6), ("StoreData64", 16)],
        );
        let interval = Interval::new(Some((&before, 2.0)), &after);
        let cell = interval.cell("cell").unwrap();
        assert_eq!(cell.cell, "example.org");
        assert_eq!(cell.calls_per_second, Some(10.0));
        let called = [("StoreData64", 8.0), ("FetchData64", 2.0)];
        let called = called.map(|(name, rate)| (name.to_owned(), rate));
        assert_eq!(cell.procedures, called);
        assert_eq!(interval.clients("cell")[0].address, "10.0.0.1:7001");
        assert_eq!(interval.service("cell").kind, "cell");
    }

    #[test]
    fn a_percentile_is_the_bound_of_the_bucket_that_reaches_it() {
        assert_eq!(percentile(&[], 99), None);
        assert_eq!(percentile(&[(8, 1)], 50), Some(8));
        assert_eq!(percentile(&[(8, 50), (16, 50)], 50), Some(8));
        assert_eq!(percentile(&[(8, 49), (16, 51)], 50), Some(16));
        assert_eq!(percentile(&[(8, 99), (16, 1)], 99), Some(8));
        assert_eq!(percentile(&[(8, 98), (16, 2)], 99), Some(16));
    }
}
