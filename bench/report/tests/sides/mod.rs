//! Sides of studies, and whole studies of them.
#![allow(dead_code, reason = "each program uses a part of it")]

use bench_core::Target;
use bench_load::{Extent, Job};
use bench_study::{Journal, Side, Study, StudyPlan, journal_path, study};
use std::ops::ControlFlow;
use std::path::Path;

pub fn job(name: &str, set: &[(&str, &str)]) -> Job {
    let mut job = Job::named(name, Extent::Quick).unwrap();
    set.iter()
        .for_each(|(key, value)| job.set(key, value).unwrap());
    job
}

/// Returns the sides of the study of the example `long_study`.
pub fn long_sides() -> [Side; 2] {
    let set = [("millis", "20")];
    ["a", "b"].map(|name| Side::new(name, Target::machine(), job("dhrystone", &set)))
}

pub fn short() -> StudyPlan {
    StudyPlan {
        pairs: 2,
        max_pairs: 2,
        ..StudyPlan::default()
    }
}

/// Runs a study to its end.
pub fn whole(folder: &Path, sides: &[Side], plan: &StudyPlan) -> Study {
    let path = journal_path(folder, sides[0].job.entry().name);
    let mut journal = Journal::open(&path).unwrap();
    study(
        sides,
        plan,
        &mut journal,
        &mut |_| ControlFlow::Continue(()),
    )
    .unwrap()
}
