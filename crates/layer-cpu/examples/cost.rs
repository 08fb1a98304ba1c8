//! Measures the cost of entering and leaving a layer: `cargo run --release -p evfs-layer-cpu
//! --example cost`.
//!
//! Runs three loops in turn: an empty one, one that enters a layer without accounting, and one with
//! accounting. Prints the nanoseconds for each pair of entering and leaving, as the minimum of all
//! rounds, which other load on the machine disturbs least. Accounting cannot be disabled within a
//! process, so its rounds run last.

use layer_cpu::Layer;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 30;
const TURNS: u32 = 1_000_000;

fn round(work: impl Fn()) -> f64 {
    let began = Instant::now();
    for _ in 0..TURNS {
        work();
    }
    began.elapsed().as_nanos() as f64 / f64::from(TURNS)
}

fn main() {
    let empty = || {
        black_box(Layer::Fs);
    };
    let entered = || {
        let within = layer_cpu::within(black_box(Layer::Fs));
        black_box(&within);
    };
    let (mut nothing, mut idle, mut counted) = (f64::MAX, f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        nothing = nothing.min(round(empty));
        idle = idle.min(round(entered));
    }
    layer_cpu::count();
    for _ in 0..3 {
        counted = counted.min(round(entered));
    }
    println!("an empty turn {nothing:.2} ns");
    println!("in and out of a layer, nobody counts: {idle:.2} ns");
    println!("in and out of a layer, counted: {counted:.0} ns");
}
