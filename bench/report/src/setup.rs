//! The conditions of a study as rows of text: the machine, the sides, the plan. The first row of
//! each table is its header.

use bench_core::Environment;
use bench_study::{Caches, SideFacts, Study};
use serde_json::Value;

/// Lists the properties of the machine that affect the figures.
pub(crate) fn machine(of: &Environment) -> Vec<Vec<String>> {
    let number = |n: Option<u32>| n.map(|n| n.to_string());
    let flags = Some(of.cpu_flags.join(", ")).filter(|flags| !flags.is_empty());
    let build = if of.optimised {
        format!("evfs {}, optimized", of.version)
    } else {
        format!(
            "evfs {}, not optimized: its figures are meaningless",
            of.version
        )
    };
    let all = [
        ("measured from", Some(of.started())),
        ("CPU", of.cpu_model.clone()),
        ("CPUs that the benchmark may use", number(of.cpus_allowed)),
        ("CPUs online", number(of.cpus_online)),
        ("CPU features", flags),
        ("frequency governor", of.cpu_governor.clone()),
        ("memory", of.memory()),
        ("huge pages", of.huge_pages.clone()),
        (
            "kernel",
            Some(format!("Linux {} {}", of.kernel, of.architecture)),
        ),
        ("clock", of.clock_source.clone()),
        (
            "load average at the start",
            of.load_average.map(|load| format!("{load:.2}")),
        ),
        ("program", Some(build)),
    ];
    let mut rows = vec![row(&["property", "value"])];
    let known = all
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    rows.extend(known.map(|(name, value)| row(&[name, &value])));
    rows
}

/// Lists the properties and parameters of the sides, a column per side. Properties that no side has
/// are omitted.
pub(crate) fn sides(study: &Study) -> Vec<Vec<String>> {
    let mut head = vec!["parameter".to_owned()];
    head.extend(study.sides.iter().map(|side| side.name.clone()));
    let mut rows = vec![head];
    for (name, of) in PROPERTIES {
        let cells: Vec<Option<String>> = study.sides.iter().map(of).collect();
        if cells.iter().any(Option::is_some) {
            let shown = cells.into_iter().map(|cell| cell.unwrap_or("-".into()));
            rows.push(std::iter::once((*name).to_owned()).chain(shown).collect());
        }
    }
    let Some(first) = study.sides.first() else {
        return rows;
    };
    let all: Vec<Vec<(String, Value)>> = study.sides.iter().map(|s| s.job.parameters()).collect();
    for (name, _) in first.job.parameters() {
        let of = |side: &Vec<(String, Value)>| {
            let found = side.iter().find(|(other, _)| *other == name);
            found.map_or_else(|| "-".to_owned(), |(_, value)| plain(value))
        };
        let cells: Vec<String> = all.iter().map(of).collect();
        rows.push(std::iter::once(name.clone()).chain(cells).collect());
    }
    rows
}

/// A property of a side.
type Property = (&'static str, fn(&SideFacts) -> Option<String>);

/// Properties of a side beside the parameters of its job.
const PROPERTIES: &[Property] = &[
    ("target", |side| Some(side.target.clone())),
    ("cipher", |side| side.facts.cipher.clone()),
    ("implementation of the cipher", |side| {
        side.facts.cipher_kernel.clone()
    }),
    ("bypasses the page cache", |side| {
        side.facts.direct.map(|direct| yes(direct).to_owned())
    }),
    ("environment", |side| Some(side.surroundings.to_string())),
    ("guest", |side| {
        side.facts.guest.as_ref().map(|g| g.to_string())
    }),
    ("note", |side| side.facts.note.clone()),
    ("before each run", |side| side.before.clone()),
    ("after each run", |side| side.after.clone()),
];

/// Lists the parameters of the plan.
pub(crate) fn plan(study: &Study) -> Vec<Vec<String>> {
    let plan = &study.plan;
    let counted = study.runs.first().into_iter().flatten();
    let runs = counted.filter(|run| !run.warm_up).count();
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let caches = match plan.caches {
        Caches::AsTheyAre => "as left by earlier runs",
        Caches::Dropped => "dropped before each run",
    };
    let mut rows = vec![row(&["parameter", "value"])];
    for (name, value) in [
        ("runs of each side that count", runs.to_string()),
        ("planned pairs", plan.pairs.to_string()),
        ("most pairs", plan.max_pairs.to_string()),
        ("repetitions of the work in a run", study.times.to_string()),
        ("shortest run", format!("{:?}", plan.min_wall)),
        ("difference that does not matter", percent(plan.theta)),
        ("narrow enough interval", percent(plan.width)),
        ("budget", format!("{:?}", plan.budget)),
        ("control", yes(plan.control).to_owned()),
        ("warm-up block", yes(plan.discard_first).to_owned()),
        ("caches", caches.to_owned()),
        ("CPU by layer", yes(plan.layers).to_owned()),
        ("seed", plan.seed.to_string()),
    ] {
        rows.push(row(&[name, &value]));
    }
    rows
}

fn row(cells: &[&str; 2]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Formats the value of a parameter without the marks of JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_rows_only_for_what_is_known() {
        let of = Environment {
            kernel: "6.1".into(),
            memory_mib: Some(2048),
            optimised: true,
            ..Environment::default()
        };
        let text = machine(&of).concat().join(" ");
        assert!(text.contains("memory 2.0 GiB"), "{text}");
        assert!(text.contains("1970-01-01 00:00 UTC"), "{text}");
        assert!(
            !text.contains("CPU features") && !text.contains("clock"),
            "{text}"
        );
    }

    #[test]
    fn parameters_are_shown_without_the_marks_of_json() {
        let value = serde_json::json!(["seq-read", 65536, true]);
        assert_eq!(plain(&value), "seq-read, 65536, true");
        assert_eq!(plain(&Value::Null), "-");
    }
}
