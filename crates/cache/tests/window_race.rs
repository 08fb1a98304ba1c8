//! Stores through pointers are never lost while their pages are evicted, flushed, read and written;
//! and the hunt that says so finds the losses of two schemes known to be unsound.
//!
//! `cargo run --release -p cache --example window_race -- --seconds 600` hunts for longer.

#[allow(dead_code, reason = "tests/window.rs uses more of it")]
mod small;
#[path = "small/race.rs"]
mod race;

use small::Flaw;
use race::{Counts, hunt};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Longest wait for a loss that is bound to come.
const DEADLINE: Duration = Duration::from_secs(120);

fn seed() -> u64 {
    let given = std::env::var("EVFS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("run again with EVFS_SEED={seed}");
    seed
}

fn finds(flaw: Flaw) {
    let counts = hunt(Some(flaw), DEADLINE, true, seed(), &mut |_| {});
    assert!(counts.wrong() > 0, "{flaw:?} went unnoticed: {counts:?}");
}

#[test]
fn no_store_is_lost() {
    let mut enough = |_: &Counts| {};
    let counts = hunt(None, Duration::from_secs(5), false, seed(), &mut enough);
    assert_eq!(counts.wrong(), 0, "{counts:?}");
    assert!(counts.stores.load(Relaxed) > 0 && counts.evictions.load(Relaxed) > 0);
}

#[test]
fn copying_out_before_revoking_loses_stores() {
    finds(Flaw::CopyThenRevoke);
}

#[test]
fn lifting_a_protection_without_the_latch_loses_stores() {
    finds(Flaw::UnlatchedStore);
}
