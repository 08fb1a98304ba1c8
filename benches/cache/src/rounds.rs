//! Interleaved runs of variants, and the statistics of their rounds.

use block_testing::Random;

/// A variant under comparison: its name, and a run that returns its cost.
pub struct Arm<'a> {
    pub name: String,
    /// Index of the variant it is compared with.
    pub against: usize,
    run: Box<dyn FnMut(u64) -> f64 + 'a>,
}

impl<'a> Arm<'a> {
    pub fn new(
        name: impl Into<String>,
        against: usize,
        run: impl FnMut(u64) -> f64 + 'a,
    ) -> Arm<'a> {
        Arm {
            name: name.into(),
            against,
            run: Box::new(run),
        }
    }
}

/// A median and its confidence interval.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// Runs every variant once per round, in alternating order; returns each variant's costs by round.
pub fn interleave(arms: &mut [Arm<'_>], rounds: usize) -> Vec<Vec<f64>> {
    in_turns(arms.len(), rounds, |at, round| (arms[at].run)(round))
}

/// Runs variants by index like [`interleave`]. The first round is discarded.
pub fn in_turns<C: Clone>(
    count: usize,
    rounds: usize,
    mut run: impl FnMut(usize, u64) -> C,
) -> Vec<Vec<C>> {
    let mut costs = vec![Vec::with_capacity(rounds); count];
    for round in 0..=rounds {
        for step in 0..count {
            let step = if round % 2 == 0 {
                step
            } else {
                count - 1 - step
            };
            let at = (step + round / 2) % count;
            let cost = run(at, round as u64);
            if round > 0 {
                costs[at].push(cost);
            }
        }
    }
    costs
}

/// Estimates the median of values, with the interval that contains 95 % of the medians of 10,000
/// resamples.
pub fn estimate(values: &[f64]) -> Estimate {
    let mut random = Random::new(1);
    let mut medians: Vec<f64> = (0..10_000)
        .map(|_| {
            let draw = |_| values[random.below(values.len() as u64) as usize];
            median(&mut Vec::from_iter((0..values.len()).map(draw)))
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    Estimate {
        median: median(&mut values.to_vec()),
        low: medians[249],
        high: medians[9749],
    }
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// Returns the CPU time of this thread in nanoseconds.
pub fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `work` in `threads` threads that start together; returns the mean of their results.
pub fn in_threads(threads: usize, work: impl Fn(usize, &dyn Fn()) -> f64 + Sync) -> f64 {
    let barrier = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        let (barrier, work) = (&barrier, &work);
        let run = |thread| {
            scope.spawn(move || {
                work(thread, &|| {
                    barrier.wait();
                })
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        let costs = running.into_iter().map(|t| t.join().expect("no panic"));
        costs.sum::<f64>() / threads as f64
    })
}
