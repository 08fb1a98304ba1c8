//! `devmix`, modeled on HP's Disk Bench: small requests on a raw device, many of them in flight;
//! measures IOPS by request size, queue depth and number of threads.
//!
//! Each point of the grid issues the same number of requests through `bench_core::engine`: every
//! record of a span, sequentially or in random order, without the page cache if the device bypasses
//! it. Writes end with a flush, which is timed. The source of the original is not public; its
//! behavior is known from the report that used it.
//!
//! Without a rate the loop is closed: a thread submits its next request when one has completed, so
//! latencies are service times. With a rate, requests are due at fixed times, and the headline is
//! the 99th percentile of the time from due to completion.

use bench_core::engine;
use bench_core::engine::{STAMP_EVERY, Sample};
use bench_core::target::Target;
use bench_core::{Carried, Error, Result, Spec, Workload};
use block::BlockDevice;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// Maximum number of points of a grid.
const POINTS_MAX: usize = 10_000;

/// The grid. Every combination is a point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Access patterns.
    pub patterns: Vec<Workload>,
    /// Request sizes in bytes.
    pub blocks: Vec<u32>,
    /// Whether requests of all sizes are mixed, instead of one point per size. Each begins at a
    /// multiple of the largest size.
    #[serde(default)]
    pub mixed: bool,
    /// Requests in flight per thread.
    pub depths: Vec<u32>,
    /// Numbers of threads.
    pub threads: Vec<u32>,
    /// Requests per point, all threads together, at least as many as are in flight.
    pub requests: u64,
    /// Bytes used from the start of the device; 0: the whole device.
    pub span: u64,
    /// Requests per second of all threads together, at times fixed beforehand; 0: closed loop.
    pub rate: u32,
    /// Whether reads check the data written by the preparation or by a run. Sides over the same
    /// bytes, such as a clear and an encrypted stack, cannot read each other's data.
    pub verify: bool,
    /// Seed of the orders and the data.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            patterns: Workload::ALL.to_vec(),
            blocks: vec![2048, 4096, 8192, 65536],
            mixed: false,
            depths: vec![1, 8, 32],
            threads: vec![1, 4],
            requests: 20_000,
            span: 0,
            rate: 0,
            verify: false,
            seed: 1,
        }
    }
}

/// A measured point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Specification of the point.
    pub spec: Spec,
    /// Measurements.
    pub sample: Sample,
    /// I/O carried by each path.
    pub paths: Vec<Carried>,
}

impl Config {
    /// Lists the points in the order of measurement.
    ///
    /// # Errors
    /// [`Error::Spec`] for an empty grid, more than 10,000 points, or sizes that cannot be
    /// verified.
    pub fn points(&self) -> Result<Vec<Spec>> {
        let lengths = [
            self.patterns.len(),
            self.blocks.len(),
            self.depths.len(),
            self.threads.len(),
        ];
        let count: usize = lengths.iter().product();
        if !(1..=POINTS_MAX).contains(&count) || self.requests == 0 {
            return Err(Error::Spec(format!(
                "{count} combinations of {} requests; must be 1 to {POINTS_MAX} combinations of \
                 at least 1 request",
                self.requests
            )));
        }
        let fits =
            |block: &u32| block.is_multiple_of(STAMP_EVERY) || STAMP_EVERY.is_multiple_of(*block);
        if self.verify && !self.blocks.iter().all(fits) {
            return Err(Error::Spec(format!(
                "verify=true needs blocks that are multiples or divisors of {STAMP_EVERY} bytes"
            )));
        }
        let largest: Vec<u32> = self.blocks.iter().copied().max().into_iter().collect();
        let blocks = if self.mixed { &largest } else { &self.blocks };
        let mut points = Vec::with_capacity(count);
        for &workload in &self.patterns {
            for &block in blocks {
                for &threads in &self.threads {
                    for &depth in &self.depths {
                        points.push(self.spec(workload, block, threads, depth));
                    }
                }
            }
        }
        Ok(points)
    }

    fn spec(&self, workload: Workload, block: u32, threads: u32, depth: u32) -> Spec {
        let records = self.requests.div_ceil(u64::from(threads.max(1)));
        Spec {
            workload,
            block,
            sizes: if self.mixed {
                self.blocks.clone()
            } else {
                Vec::new()
            },
            threads,
            depth,
            bytes_per_thread: Some(records.max(u64::from(depth)) * u64::from(block)),
            passes: 1,
            span: (self.span > 0).then_some(self.span),
            rate: (self.rate > 0).then_some(self.rate),
            verify: self.verify && !workload.writes(),
            seed: self.seed,
        }
    }

    /// Sets the passes of a point such that it reaches its number of requests even on a small
    /// device.
    fn fit(&self, spec: &mut Spec, device: &dyn BlockDevice) -> Result<()> {
        let once = spec.layout(device.info())?;
        let records = u64::from(once.records) * u64::from(spec.threads);
        let passes = self.requests.div_ceil(records.max(1));
        spec.passes = u32::try_from(passes.max(1)).unwrap_or(u32::MAX);
        Ok(())
    }
}

/// Measures one point on the target's device.
pub fn point(target: &Target, config: &Config, mut spec: Spec) -> Result<Point> {
    let device = target.block()?;
    config.fit(&mut spec, device)?;
    let carried = RefCell::new(Vec::new());
    let edge = || {
        carried.borrow_mut().push(target.carried());
        target.edge()
    };
    let sample = engine::run_between(&target.name, device, &spec, &edge)?;
    let mut looks = carried.into_inner().into_iter();
    let before = looks.next().unwrap_or_default();
    let paths = Carried::between(&before, looks.next().unwrap_or_default());
    Ok(Point {
        spec,
        sample,
        paths,
    })
}

/// Writes all data that the points will read, so that no read hits a hole and no write allocates.
///
/// # Errors
/// [`Error::Device`] for an error of the device; [`Error::Spec`] for a read-only device.
pub fn prepare(target: &Target, config: &Config) -> Result<()> {
    let device = target.block()?;
    let info = device.info();
    let size = match config.span {
        0 => info.size,
        span => span.min(info.size),
    };
    let block = info.max_transfer.min(1 << 20);
    let fill = Spec {
        workload: Workload::SeqWrite,
        block,
        depth: 4,
        bytes_per_thread: None,
        span: Some(size),
        seed: config.seed,
        ..Spec::default()
    };
    engine::run_between(&target.name, device, &fill, &|| target.edge()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Mem;
    use std::sync::Arc;

    #[test]
    fn every_point_does_its_requests_on_a_small_device_too() {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(1 << 20, 512));
        let config = Config {
            blocks: vec![4096, 16384],
            depths: vec![1, 4],
            threads: vec![1, 2],
            requests: 1000,
            ..Config::default()
        };
        let target = Target::device("mem", device);
        prepare(&target, &config).unwrap();
        let specs = config.points().unwrap().into_iter();
        let points: Vec<Point> = specs
            .map(|spec| point(&target, &config, spec).unwrap())
            .collect();
        assert_eq!(points.len(), 4 * 2 * 2 * 2);
        for point in &points {
            let (spec, sample) = (&point.spec, &point.sample);
            // Whole passes: at least the requested number, and less than a pass more.
            let pass = sample.requests / u64::from(spec.passes);
            assert!(sample.requests >= 1000 && sample.requests < 1000 + pass);
            assert_eq!(sample.bytes, sample.requests * u64::from(spec.block));
        }
    }

    #[test]
    fn sizes_in_progress_at_once_are_drawn_evenly_and_the_same_in_every_run() {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
        let config = Config {
            patterns: vec![Workload::RandRead, Workload::RandWrite],
            blocks: vec![4096, 8192, 16384],
            mixed: true,
            depths: vec![8],
            threads: vec![2],
            requests: 3000,
            verify: true,
            ..Config::default()
        };
        let target = Target::device("mem", device);
        prepare(&target, &config).unwrap();
        let specs = config.points().unwrap();
        assert_eq!(specs.len(), 2);
        for spec in specs {
            let once = point(&target, &config, spec.clone()).unwrap().sample;
            let again = point(&target, &config, spec).unwrap().sample;
            assert_eq!(once.requests, 3000);
            assert_eq!((once.requests, once.bytes), (again.requests, again.bytes));
            // A third of each size: the mean is 9557 bytes, with a standard error of 93 over 3000
            // draws.
            let mean = once.bytes as f64 / 3000.0;
            assert!((mean - 9557.0).abs() < 465.0, "{mean}");
        }
        // A size that is not a multiple of the device's block size is refused.
        let odd = Spec {
            sizes: vec![4096, 1000],
            block: 4096,
            ..Spec::default()
        };
        assert!(odd.layout(target.block().unwrap().info()).is_err());
    }

    #[test]
    fn an_empty_grid_and_a_huge_one_are_refused() {
        for config in [
            Config {
                depths: Vec::new(),
                ..Config::default()
            },
            Config {
                requests: 0,
                ..Config::default()
            },
            Config {
                blocks: vec![512; 5000],
                ..Config::default()
            },
        ] {
            assert!(matches!(config.points(), Err(Error::Spec(_))));
        }
    }
}
