//! Tests of suites against their reports and against simulated runs.

use super::table::shown;
use super::*;
use bench_core::record::{Phase, PhaseFigure, Record};
use bench_core::result::Run;
use bench_core::{End, Facts};
use bench_study::{STUDY_SCHEMA, SideFacts, Study, StudyPlan};

fn all_parts() -> impl Iterator<Item = (&'static Suite, &'static Part)> {
    SUITES
        .iter()
        .flat_map(|suite| suite.parts.iter().map(move |part| (suite, part)))
}

#[test]
fn every_part_can_be_run_and_has_a_name_of_its_own() {
    let mut keys = std::collections::HashSet::new();
    for (suite, part) in all_parts() {
        for extent in [Extent::Quick, Extent::Standard, Extent::Faithful] {
            part.job(extent).unwrap();
        }
        for columns in part.columns {
            assert!(keys.insert(suite.key(part, columns)), "{}", part.title);
            let environments = columns.surroundings().unwrap();
            assert_eq!(environments.len() == 2, suite.axis == Axis::Environments);
            let sides = columns.sides.len();
            assert!(sides == 2 || sides == 0, "{}", part.title);
            // Each column needs a definition.
            let said = [!environments.is_empty(), sides == 2, columns.choice];
            assert!(said.contains(&true), "{}", part.title);
        }
        for row in part.rows {
            if let Published::Values(values, _) = row.published {
                assert_eq!(values.len(), part.columns.len(), "{}", row.label);
            }
        }
    }
    assert_eq!(SUITES.len(), 4);
    assert!(Suite::named("ifs-1990").is_some() && Suite::named("mailmix").is_none());
}

/// Checks changes against those printed in the report of 1990, by table, line and mode.
#[test]
fn published_changes_are_those_the_report_prints() {
    let printed = [
        ("table-2", "Dhrystone", [1.00, 1.80]),
        ("table-3", "system call, wall", [96.60, 129.38]),
        ("table-3", "create/delete 1 KB, wall", [-38.59, 67.91]),
        ("table-3", "create/delete 10 MB, wall", [89.70, 146.36]),
        ("table-4", "wall", [97.10, 124.41]),
        ("table-6", "test 1", [6.49, 7.99]),
        ("table-6", "test 4", [1.83, -5.73]),
        ("table-6", "test 5b", [-3.47, -0.13]),
        ("table-6", "test 9", [22.56, 4.61]),
    ];
    for (table, label, changes) in printed {
        let suite = Suite::named("ifs-1990").unwrap();
        let part = suite.parts.iter().find(|part| part.name == table).unwrap();
        let row = part.rows.iter().find(|row| row.label == label).unwrap();
        let Published::Values(values, _) = row.published else {
            panic!("{label} has values");
        };
        for ([idle, loaded], change) in values.iter().zip(changes) {
            let own = (loaded / idle - 1.0) * 100.0;
            assert!(
                (own - change).abs() < 0.0051,
                "{label}: {own}, printed {change}"
            );
        }
    }
}

/// Creates a study of two sides with constant figures, each a name and a rate or a cost.
fn study(part: &str, phases: &[(&str, [(PhaseFigure, PhaseFigure); 1])]) -> Study {
    let record = |second: bool| Record {
        phases: phases
            .iter()
            .map(|(name, cells)| Phase {
                name: (*name).to_owned(),
                cells: cells
                    .iter()
                    .map(|(a, b)| if second { b } else { a })
                    .chain([&PhaseFigure::cost("CPU", "s", 1.0, 1.0)])
                    .cloned()
                    .collect(),
                ..Phase::default()
            })
            .collect(),
        ..Record::default()
    };
    let runs = |second: bool| {
        let run = |n: u32| Run {
            block: n / 2,
            half: n % 2,
            position: 0,
            warm_up: false,
            sample: record(second),
        };
        (0..6).map(run).collect::<Vec<_>>()
    };
    let side = |name: &str| SideFacts {
        name: name.to_owned(),
        target: "here".to_owned(),
        job: Job::named("nfsbasic", Extent::Quick).unwrap(),
        facts: Facts::default(),
        before: None,
        after: None,
        surroundings: RunEnvironment::default(),
    };
    Study {
        schema: STUDY_SCHEMA.to_owned(),
        workload: "nfsbasic".to_owned(),
        sides: vec![side("a"), side("b")],
        plan: StudyPlan {
            part: Some(part.to_owned()),
            control: false,
            ..StudyPlan::default()
        },
        sessions: Vec::new(),
        times: 1,
        runs: vec![runs(false), runs(true)],
        end: Some(End::Complete),
        failure: None,
        extended: false,
    }
}

fn find<'a>(shown: &'a [Shown], label: &str, columns: &str) -> &'a Line {
    let mut lines = shown.iter().flat_map(|shown| &shown.lines);
    lines
        .find(|line| line.label == label && line.columns == columns)
        .unwrap_or_else(|| panic!("no line {label}"))
}

#[test]
fn a_rate_here_is_turned_where_the_report_has_a_time() {
    let rate = |value| PhaseFigure::rate("5a: write 1048576 byte file", "MiB/s", value, 1.0);
    let studies = [study(
        "ifs-1990.table-6.shared",
        &[("nfsbasic", [(rate(100.0), rate(50.0))])],
    )];
    let all = shown(&studies);
    assert_eq!(all.len(), 1);
    let line = find(&all, "test 5a", "shared");
    let measured = line.measured.as_ref().unwrap();
    // Half the rate is twice the time.
    assert!((measured.change - 100.0).abs() < 1e-9, "{measured:?}");
    assert_eq!(measured.interval.map(|(low, high)| low <= high), Some(true));
    assert!((line.published_change.unwrap() + 6.01).abs() < 0.01);
    // Lines that were not measured have no values.
    assert!(find(&all, "test 5a", "partitioned").measured.is_none());
    assert!(find(&all, "test 5b", "shared").measured.is_none());
    let text = text(&all[0]);
    assert!(text.contains("137.58 / 129.31 s") && text.contains("are not measured"));
}

#[test]
fn a_line_for_each_number_of_threads_and_one_for_a_mean() {
    let rate = |value| PhaseFigure::rate("parent", "MiB/s", value, 1.0);
    let one = ("random-write, 1 thread", [(rate(100.0), rate(90.0))]);
    let ten = ("random-write, 10 threads", [(rate(100.0), rate(70.0))]);
    let parts = ["evfs-2006.figures-8-10", "ufc-2007.iozone-scale"];
    let studies = parts.map(|part| study(part, &[one.clone(), ten.clone()]));
    let all = shown(&studies);
    let change = |label: &str| {
        let line = find(&all, label, "");
        line.measured.as_ref().unwrap().change
    };
    assert!((change("random write, 1 thread") + 10.0).abs() < 1e-9);
    assert!((change("random write, 10 threads") + 30.0).abs() < 1e-9);
    let mean = ((0.9 * 0.7_f64).sqrt() - 1.0) * 100.0;
    assert!((change("parent sees, mean of phases") - mean).abs() < 1e-9);
}
