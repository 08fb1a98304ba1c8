//! Cost of path selection: nanoseconds for `select`, `started` and `completed` together, for each
//! policy on 2, 8 and 32 paths.
//!
//! `cargo run --release -p evfs-multipath --example select_cost`

use multipath::policy::{Io, Outcome, PathView, Policy, Selector};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u64 = 2_000_000;
const DEPTH: u64 = 32;
/// Virtual time between two choices, in nanoseconds.
const STEP: u64 = 10_000;

fn main() {
    println!(
        "{:24} {:>8} {:>8} {:>8}",
        "ns per I/O", "2 paths", "8 paths", "32 paths"
    );
    for policy in Policy::ALL {
        print!("{policy:24}");
        for paths in [2, 8, 32] {
            print!(" {:8.1}", cost(policy, paths));
        }
        println!();
    }
}

fn cost(policy: Policy, paths: usize) -> f64 {
    let mut views = vec![PathView::idle(); paths];
    let mut selector = Selector::new(policy, paths, Some(0));
    let io = Io {
        write: false,
        bytes: 4096,
    };
    let mut flying = [None; DEPTH as usize];
    let start = Instant::now();
    for i in 0..ROUNDS {
        let now = i * STEP;
        let slot = &mut flying[(i % DEPTH) as usize];
        if let Some((path, sent)) = slot.take() {
            selector.completed(path, io, sent, now, Outcome::Succeeded);
            let view: &mut PathView = &mut views[path];
            view.in_flight -= 1;
            view.bytes_in_flight -= u64::from(io.bytes);
        }
        if let Some(path) = selector.select(black_box(&views), io, now) {
            selector.started(path, io, now);
            views[path].in_flight += 1;
            views[path].bytes_in_flight += u64::from(io.bytes);
            *slot = Some((path, now));
        }
    }
    start.elapsed().as_nanos() as f64 / ROUNDS as f64
}
