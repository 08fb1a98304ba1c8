//! Stores through pointers are never lost while their pages are evicted, flushed, read, written,
//! mapped and unmapped; and the hunt that verifies this finds the losses of two schemes known to be
//! unsound.
//!
//! `EVFS_RACE_SECONDS=600 cargo test --release -p evfs-cache --test window_race` hunts for longer,
//! and `cargo run --release -p evfs-cache --example window_race -- --seconds 600` also reports its
//! progress.

mod common;
mod race;

use common::setting;
use race::real::Real;
use race::small::{Flaw, Small};
use race::{Counts, Ground, Until, hunt};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Longest wait for an expected loss or event.
const DEADLINE: Duration = Duration::from_secs(120);

fn seed() -> u64 {
    let seed = setting("EVFS_SEED", u64::from(std::process::id()));
    eprintln!("run again with EVFS_SEED={seed}");
    seed
}

/// Hunts until each kind of event has happened, which a busy machine may take longer for. Each hunt
/// has a ground of its own, which `make` makes from the seed: its slots have to be zero.
fn loses_nothing<G: Ground>(make: impl Fn(u64) -> G) {
    let seed = seed();
    let time = Duration::from_secs(setting("EVFS_RACE_SECONDS", 5));
    let begin = Instant::now();
    for attempt in 0.. {
        let seed = seed + attempt;
        let counts = hunt(&make(seed), time, Until::Time, seed, &mut |_| {});
        assert_eq!(counts.wrong(), 0, "{counts:?}");
        let happened = [&counts.stores, &counts.writes, &counts.evictions];
        if happened.iter().all(|count| count.load(Relaxed) > 0) {
            return;
        }
        assert!(begin.elapsed() < DEADLINE, "{counts:?}");
    }
}

fn finds(flaw: Flaw) {
    let ground = Small::new(Some(flaw));
    let counts = hunt(
        &ground,
        DEADLINE,
        Until::FirstFinding,
        seed(),
        &mut |_: &Counts| {},
    );
    assert!(counts.wrong() > 0, "{flaw:?} went unnoticed: {counts:?}");
}

#[test]
fn the_cache_loses_no_store() {
    loses_nothing(Real::new);
}

#[test]
fn the_small_cache_loses_no_store() {
    loses_nothing(|_| Small::new(None));
}

#[test]
fn copying_out_before_revoking_loses_stores() {
    finds(Flaw::CopyThenRevoke);
}

#[test]
fn lifting_a_protection_without_the_latch_loses_stores() {
    finds(Flaw::UnlatchedStore);
}
