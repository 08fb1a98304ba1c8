//! Runs a study that a test kills before its end.
//!
//! ```text
//!   long_study DIRECTORY
//! ```

#[path = "../tests/sides/mod.rs"]
mod sides;

use bench_study::StudyPlan;
use std::path::Path;

fn main() {
    let directory = std::env::args_os().nth(1).expect("which directory?");
    let plan = StudyPlan {
        pairs: 500,
        max_pairs: 500,
        ..StudyPlan::default()
    };
    sides::whole(Path::new(&directory), &sides::long_sides(), &plan);
}
