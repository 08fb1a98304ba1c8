//! The samples of a scrape, which processes exchange as JSON.

use super::families::Family;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// Bounds of the histogram's buckets: powers of two of nanoseconds, from 4 microseconds to 17
/// seconds. They are a subset of the bounds of [`block::Stats`], so that every bucket is exact.
const POWERS: std::ops::RangeInclusive<u32> = 12..=34;

/// Values of all families at a time.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Samples(BTreeMap<String, Vec<Sample>>);

/// One value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Part of the name after that of the family, for histograms.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) suffix: String,
    /// Names and values of the labels.
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

impl Samples {
    /// Adds a value.
    pub(crate) fn add(&mut self, family: &Family, labels: &[(&str, &str)], value: f64) {
        self.push(family, "", labels, value);
    }

    /// Adds a count or a number of bytes.
    pub(crate) fn count(&mut self, family: &Family, labels: &[(&str, &str)], value: u64) {
        // Exact up to 2^53; Prometheus has no other numbers.
        self.push(family, "", labels, value as f64);
    }

    /// Adds a histogram of latencies from the non-empty buckets of [`block::StatsHandle`], and their
    /// sum.
    pub(crate) fn histogram(
        &mut self,
        family: &Family,
        labels: &[(&str, &str)],
        filled: &[(u64, u64)],
        sum_ns: u64,
    ) {
        let mut filled = filled.iter().peekable();
        let mut seen = 0_u64;
        for power in POWERS {
            let bound = 1_u64 << power;
            while let Some((_, count)) = filled.next_if(|(upper, _)| *upper <= bound) {
                seen += count;
            }
            let bound = seconds(bound).to_string();
            let labels = [labels, &[("le", &*bound)]].concat();
            self.push(family, "_bucket", &labels, seen as f64);
        }
        let all = seen + filled.map(|(_, count)| count).sum::<u64>();
        let last = [labels, &[("le", "+Inf")]].concat();
        self.push(family, "_bucket", &last, all as f64);
        self.push(family, "_sum", labels, seconds(sum_ns));
        self.push(family, "_count", labels, all as f64);
    }

    fn push(&mut self, family: &Family, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let sample = Sample {
            suffix: suffix.to_owned(),
            labels: labels.iter().map(own).collect(),
            value,
        };
        let samples = self.0.entry(family.name.to_owned()).or_default();
        samples.push(sample);
    }

    /// Combines the samples of services and processes. A scrape with two values of one series is
    /// refused as a whole, so only the first of them stays.
    pub(crate) fn merged(parts: impl IntoIterator<Item = Samples>) -> Samples {
        let mut all = Samples::default();
        for part in parts {
            for (name, samples) in part.0 {
                all.0.entry(name).or_default().extend(samples);
            }
        }
        for samples in all.0.values_mut() {
            let mut known = HashSet::new();
            samples.retain(|s| known.insert((s.suffix.clone(), s.labels.clone())));
        }
        all
    }

    /// Returns the samples of a family.
    pub(crate) fn of(&self, family: &Family) -> &[Sample] {
        self.0.get(family.name).map_or(&[], Vec::as_slice)
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::super::families::{BUILD_INFO, IO_LATENCY, IO_REQUESTS};
    use super::*;

    fn value(samples: &Samples, suffix: &str, le: Option<&str>) -> Option<f64> {
        let is_it = |s: &&Sample| {
            let bound = s.labels.iter().find(|(name, _)| name == "le");
            s.suffix == suffix && bound.map(|(_, value)| value.as_str()) == le
        };
        Some(samples.of(IO_LATENCY).iter().find(is_it)?.value)
    }

    #[test]
    fn buckets_are_cumulative_and_complete() {
        let mut samples = Samples::default();
        // 1 below the first bound, 2 at 8 microseconds, 4 later than the last bound.
        let filled = [(1000, 1), (8192, 2), (u64::MAX, 4)];
        samples.histogram(IO_LATENCY, &[("op", "read")], &filled, 2_500_000_000);
        assert_eq!(value(&samples, "_bucket", Some("0.000004096")), Some(1.0));
        assert_eq!(value(&samples, "_bucket", Some("0.000008192")), Some(3.0));
        assert_eq!(value(&samples, "_bucket", Some("17.179869184")), Some(3.0));
        assert_eq!(value(&samples, "_bucket", Some("+Inf")), Some(7.0));
        assert_eq!(value(&samples, "_count", None), Some(7.0));
        assert_eq!(value(&samples, "_sum", None), Some(2.5));
        assert!(
            samples.of(IO_LATENCY)[0]
                .labels
                .contains(&("op".into(), "read".into()))
        );
    }

    #[test]
    fn a_series_has_one_value_after_a_merge() {
        let mut one = Samples::default();
        one.count(IO_REQUESTS, &[("volume", "a")], 1);
        let mut two = Samples::default();
        two.count(IO_REQUESTS, &[("volume", "a")], 2);
        two.count(IO_REQUESTS, &[("volume", "b")], 3);
        two.add(BUILD_INFO, &[], 1.0);
        let all = Samples::merged([one, two]);
        let values: Vec<f64> = all.of(IO_REQUESTS).iter().map(|s| s.value).collect();
        assert_eq!(values, [1.0, 3.0]);
        assert_eq!(all.of(BUILD_INFO).len(), 1);
    }

    #[test]
    fn samples_survive_the_control_protocol() {
        let mut samples = Samples::default();
        samples.histogram(IO_LATENCY, &[("op", "a\"\n")], &[(5000, 1)], 5000);
        let line = serde_json::to_string(&samples).unwrap();
        let back: Samples = serde_json::from_str(&line).unwrap();
        assert_eq!(back.of(IO_LATENCY), samples.of(IO_LATENCY));
    }
}
