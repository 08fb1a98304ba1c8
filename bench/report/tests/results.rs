//! Results on disk: a result that was damaged is refused.

mod sides;

use bench_core::{Error, Target};
use bench_report::{Results, write};
use bench_study::{Side, Study};
use sides::{job, short, whole};

#[test]
fn a_result_that_does_not_hold_together_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let job = job("dhrystone", &[("millis", "1")]);
    let sides = ["a", "b"].map(|name| Side::new(name, Target::machine(), job.clone()));
    let whole = whole(dir.path(), &sides, &short());
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
