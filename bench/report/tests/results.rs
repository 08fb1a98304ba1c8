//! Results on disk: a result that was damaged is refused.

use bench_core::{Error, Facts, Result, Target};
use bench_load::{Extent, Job, RunEnvironment};
use bench_report::{Results, write};
use bench_study::{Journal, Side, Step, Study, StudyPlan, study};
use std::ops::ControlFlow;
use std::path::Path;

/// Creates sides of a CPU study whose runs take a millisecond.
fn sides(names: &[&str]) -> Vec<Side> {
    let side = |name: &&str| Side {
        name: (*name).to_owned(),
        target: Target::machine(),
        again: None,
        job: {
            let mut job = Job::named("dhrystone", Extent::Quick).unwrap();
            job.set("millis", "1").unwrap();
            job
        },
        facts: Facts::default(),
        before: None,
        after: None,
        surroundings: RunEnvironment::default(),
    };
    names.iter().map(side).collect()
}

fn plan() -> StudyPlan {
    StudyPlan {
        pairs: 2,
        max_pairs: 2,
        ..StudyPlan::default()
    }
}

/// Runs the study until `new_runs` new runs have finished.
fn until(path: &Path, sides: &[Side], plan: &StudyPlan, new_runs: u32) -> Result<Study> {
    let mut journal = Journal::open(path)?;
    let mut made = 0;
    study(sides, plan, &mut journal, &mut |step| {
        if let Step::Ran { replayed, .. } = step {
            made += u32::from(!replayed);
        }
        if made >= new_runs {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}

#[test]
fn a_result_that_does_not_hold_together_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let whole = until(&dir.path().join("a.jsonl"), &sides(&["a", "b"]), &plan(), 9).unwrap();
    let path = dir.path().join("result.json");
    let read = |study: Study| {
        write(&Results::of(vec![study]), dir.path()).unwrap();
        Results::read(&path)
    };
    assert_eq!(
        read(whole.clone()).unwrap().studies[..],
        *std::slice::from_ref(&whole)
    );
    // A study that was killed before its first line does not prevent reading the others.
    std::fs::write(dir.path().join("b.jsonl"), "").unwrap();
    assert_eq!(
        Results::read(dir.path()).unwrap().studies[..],
        *std::slice::from_ref(&whole)
    );
    let text = std::fs::read_to_string(&path).unwrap();
    let mut stored: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (field, value) in [
        ("sides", serde_json::json!([])),
        ("runs", serde_json::json!([])),
        ("runs", serde_json::json!([[]])),
        ("schema", serde_json::json!("evfs-lab-study/0")),
    ] {
        let kept = stored["studies"][0][field].take();
        stored["studies"][0][field] = value.clone();
        std::fs::write(&path, stored.to_string()).unwrap();
        let refused = Results::read(&path);
        assert!(
            matches!(refused, Err(Error::Format(_))),
            "{field} = {value}: {refused:?}"
        );
        stored["studies"][0][field] = kept;
    }
}
