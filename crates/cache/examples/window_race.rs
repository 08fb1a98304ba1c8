//! Hunts for lost stores for a given time, and prints the counters.
//!
//! `cargo run --release -p evfs-cache --example window_race -- --seconds 600`

#[path = "../tests/race/mod.rs"]
mod race;

use clap::{Parser, ValueEnum};
use race::real::Real;
use race::small::{Flaw, Small};
use race::{Counts, Ground, Until, hunt};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Hunt for lost stores through mappings")]
struct Args {
    /// Duration of the hunt in seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Hunt in a small cache with this flaw instead of the real cache, to verify that the hunt
    /// finds it
    #[arg(long, value_enum)]
    flaw: Option<Broken>,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Broken {
    /// The evictor copies a page out before it removes the page from the mappings
    CopyThenRevoke,
    /// A protection is lifted after the latch is released
    UnlatchedStore,
}

impl From<Broken> for Flaw {
    fn from(broken: Broken) -> Flaw {
        match broken {
            Broken::CopyThenRevoke => Flaw::CopyThenRevoke,
            Broken::UnlatchedStore => Flaw::UnlatchedStore,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let (start, time) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut next = Duration::from_secs(10);
    let mut look = |counts: &Counts| {
        if start.elapsed() >= next {
            next += Duration::from_secs(10);
            print(start.elapsed(), counts);
        }
    };
    let ground: Box<dyn Ground> = match args.flaw {
        Some(flaw) => Box::new(Small::new(Some(flaw.into()))),
        None => Box::new(Real::new(args.seed)),
    };
    let counts = hunt(&*ground, time, Until::Time, args.seed, &mut look);
    print(start.elapsed(), &counts);
    match counts.wrong() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn print(time: Duration, counts: &Counts) {
    println!(
        "{:4} s: {} stores in {} mappings, {} writes, {} reads, {} evictions, {} flushes: {} lost, {} backwards",
        time.as_secs(),
        counts.stores.load(Relaxed),
        counts.mappings.load(Relaxed),
        counts.writes.load(Relaxed),
        counts.reads.load(Relaxed),
        counts.evictions.load(Relaxed),
        counts.flushes.load(Relaxed),
        counts.lost.load(Relaxed),
        counts.backwards.load(Relaxed),
    );
}
