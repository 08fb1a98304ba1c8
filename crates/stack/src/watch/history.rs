//! Values of recent samples, for curves.

use super::sample::{CacheSample, CellSample, PathSample, Sample, ServiceSample};
use std::collections::{BTreeMap, VecDeque};

/// A value that is followed over time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// Bytes per second that a service reads.
    Read(String),
    /// Bytes per second that a service writes.
    Write(String),
    /// 99th percentile of the latency of a service's reads and writes, in nanoseconds.
    Latency(String),
    /// Bytes per second on a path of a service.
    Path(String, String),
    /// Hit ratio of a process's cache, from 0 to 1.
    HitRatio(u32),
    /// Pages per second that are read through a process's cache.
    PageReads(u32),
    /// Pages per second that are written through a process's cache.
    PageWrites(u32),
    /// Calls per second to a cell.
    Calls(String),
}

/// The most recent values of all series. A value that a sample does not have is a gap.
#[derive(Debug)]
pub struct History {
    samples_max: usize,
    series: BTreeMap<Series, VecDeque<Option<f64>>>,
}

impl History {
    /// Creates a history that keeps the values of this number of samples.
    pub fn new(samples_max: usize) -> History {
        History {
            samples_max,
            series: BTreeMap::new(),
        }
    }

    /// Adds the values of a sample. A series without a value in any kept sample is forgotten.
    pub fn record(&mut self, sample: &Sample) {
        let mut values = BTreeMap::new();
        sample
            .services
            .iter()
            .for_each(|s| of_service(s, &mut values));
        sample
            .paths
            .iter()
            .for_each(|path| of_path(path, &mut values));
        sample.caches.iter().for_each(|c| of_cache(c, &mut values));
        sample
            .cells
            .iter()
            .for_each(|cell| of_cell(cell, &mut values));
        for (series, known) in &mut self.series {
            known.push_back(values.remove(series).flatten());
        }
        for (series, value) in values {
            self.series.insert(series, VecDeque::from([value]));
        }
        for known in self.series.values_mut() {
            while known.len() > self.samples_max {
                known.pop_front();
            }
        }
        self.series
            .retain(|_, known| known.iter().any(Option::is_some));
    }

    /// Returns the last `count` values of a series, the oldest first, or fewer.
    pub fn last(&self, series: &Series, count: usize) -> Vec<Option<f64>> {
        let known = self.series.get(series);
        known.map_or_else(Vec::new, |known| {
            let skipped = known.len().saturating_sub(count);
            known.iter().skip(skipped).copied().collect()
        })
    }
}

type Values = BTreeMap<Series, Option<f64>>;

fn of_service(service: &ServiceSample, to: &mut Values) {
    let bytes = |op: &str| service.io.get(op).map(|rates| rates.bytes_per_second);
    let slow = service.total.and_then(|total| total.p99_ns);
    let name = || service.name.clone();
    to.insert(Series::Read(name()), bytes("read"));
    to.insert(Series::Write(name()), bytes("write"));
    to.insert(Series::Latency(name()), slow.map(|ns| ns as f64));
}

fn of_path(path: &PathSample, to: &mut Values) {
    let bytes = path
        .rates
        .map(|rates| rates.read_bytes_per_second + rates.written_bytes_per_second);
    let series = Series::Path(path.service.clone(), path.path.clone());
    to.insert(series, bytes);
}

fn of_cache(cache: &CacheSample, to: &mut Values) {
    to.insert(Series::HitRatio(cache.pid), cache.hit_ratio);
    to.insert(Series::PageReads(cache.pid), cache.reads_per_second);
    to.insert(Series::PageWrites(cache.pid), cache.writes_per_second);
}

fn of_cell(cell: &CellSample, to: &mut Values) {
    let series = Series::Calls(cell.service.clone());
    to.insert(series, cell.calls_per_second);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::IoRates;

    fn sample(services: &[(&str, f64)]) -> Sample {
        let service = |(name, bytes): &(&str, f64)| {
            let rates = IoRates {
                bytes_per_second: *bytes,
                ..IoRates::default()
            };
            ServiceSample {
                name: (*name).to_owned(),
                io: BTreeMap::from([("read".to_owned(), rates)]),
                ..ServiceSample::default()
            }
        };
        Sample {
            services: services.iter().map(service).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn a_series_has_gaps_and_is_forgotten_when_only_gaps_are_left() {
        let mut history = History::new(3);
        let a = Series::Read("a".into());
        history.record(&sample(&[("a", 1.0)]));
        history.record(&sample(&[("b", 7.0)]));
        history.record(&sample(&[("a", 2.0), ("b", 8.0)]));
        assert_eq!(history.last(&a, 9), [Some(1.0), None, Some(2.0)]);
        assert_eq!(history.last(&a, 2), [None, Some(2.0)]);
        // The oldest value makes room.
        history.record(&sample(&[]));
        assert_eq!(history.last(&a, 9), [None, Some(2.0), None]);
        history.record(&sample(&[]));
        history.record(&sample(&[]));
        assert!(history.last(&a, 9).is_empty());
        assert!(history.series.is_empty(), "{history:?}");
    }

    #[test]
    fn an_absent_latency_starts_no_series() {
        let mut history = History::new(3);
        history.record(&sample(&[("a", 1.0)]));
        assert!(history.last(&Series::Latency("a".into()), 9).is_empty());
        assert_eq!(history.series.len(), 1);
    }
}
