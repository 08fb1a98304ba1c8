//! `evfs bench` as a user runs it: every workload, a comparison that is killed and resumed, the
//! regression gate, environments and suites.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use tests::{Ran, Sandbox, wait_until};

/// Small parameters; each workload uses those that it has.
const FILES: &[&str] = &["threads=1,2", "file=256k", "number=20", "transactions=20"];
const OTHERS: &[&str] = &["millis=5", "exchanges=20", "passes=1", "pages=8"];
const LISTS: &[&str] = &["users=1,8", "lines=20", "records=16k,64k"];

/// Returns a command with parameters, and two pairs of runs.
fn short<'a>(args: &[&'a str], sets: &[&[&'a str]]) -> Vec<&'a str> {
    let mut all = args.to_vec();
    all.extend(["--quick", "--runs", "2"]);
    for set in sets.iter().copied().flatten() {
        all.extend(["--set", set]);
    }
    all
}

fn journal_runs(path: &Path) -> usize {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with("{\"run\""))
        .count()
}

#[test]
fn every_workload_runs_by_its_name() {
    let s = Sandbox::new();
    let names = s.json(&["bench", "list"]);
    let names = names["workloads"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.len() >= 15, "{names:?}");
    fs::create_dir(s.path("here")).unwrap();
    // These need a device, a program, mount commands, or lists of numbers; they have tests of their
    // own.
    let apart = ["devmix", "fio", "mounts", "build", "sweep", "scriptmix"];
    let mut args = vec!["bench", "run"];
    args.extend(names.iter().filter(|name| !apart.contains(name)));
    args.extend(["--target", "here", "--out", "out"]);
    let ran = s.run(&short(&args, &[FILES, OTHERS])).ok();
    for name in names.iter().filter(|name| !apart.contains(name)) {
        assert!(
            ran.stdout.contains(&format!("## {name} on ")),
            "{}",
            ran.stdout
        );
        assert!(journal_runs(&s.path(&format!("out/{name}.jsonl"))) >= 2);
    }
    for file in ["result.json", "cells.csv", "report.txt", "report.html"] {
        assert!(s.path("out").join(file).exists(), "{file}");
    }
    assert_eq!(fs::read_dir(s.path("here")).unwrap().count(), 0);
    let devices = ["bench", "run", "devmix", "--size", "8M"];
    s.run(&short(&devices, &[&["requests=64"]])).ok();
    let unknown = s.run(&["bench", "run", "iozone"]).code(2);
    assert!(unknown.stderr.contains("seqrand"), "{}", unknown.stderr);
}

#[test]
fn a_run_in_a_temporary_folder_goes_on_in_another_one() {
    let s = Sandbox::new();
    let args = short(&["bench", "run", "nfsbasic", "--out", "out"], &[]);
    for sessions in 1..=2 {
        s.run(&args).ok();
        let result = fs::read(s.path("out/result.json")).unwrap();
        let result: Value = serde_json::from_slice(&result).unwrap();
        let study = &result["studies"][0];
        assert_eq!(study["sessions"].as_array().unwrap().len(), sessions);
    }
}

#[test]
fn a_comparison_that_is_killed_goes_on_with_the_same_command() {
    let s = Sandbox::new();
    for folder in ["one", "two"] {
        fs::create_dir(s.path(folder)).unwrap();
    }
    let args = [
        "bench",
        "compare",
        "one",
        "two",
        "--workload",
        "nfsbasic",
        "--quick",
        "--runs",
        "100",
        "--out",
        "out",
    ];
    let journal = s.path("out/nfsbasic.jsonl");
    let mut child = s
        .evfs()
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a few runs", || journal_runs(&journal) >= 10);
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = journal_runs(&journal);
    let report = s.run(&["bench", "report", "out"]).ok();
    assert!(report.stdout.contains("INCOMPLETE"), "{}", report.stdout);

    // The budget applies to a session; this one ends after a block.
    let mut again = args.to_vec();
    again.extend(["--budget", "1s"]);
    s.run(&again).ok();
    assert!(journal_runs(&journal) > kept);
    let result: Value =
        serde_json::from_slice(&fs::read(s.path("out/result.json")).unwrap()).unwrap();
    let study = &result["studies"][0];
    assert_eq!(study["sessions"].as_array().unwrap().len(), 2);
    let runs = study["runs"].as_array().unwrap();
    let counts: Vec<usize> = runs
        .iter()
        .map(|side| side.as_array().unwrap().len())
        .collect();
    assert!(counts.iter().sum::<usize>() == journal_runs(&journal) && counts.len() == 3);

    // Another study cannot use the same directory.
    let mut other = args.to_vec();
    other.extend(["--seed", "2"]);
    let refused = s.run(&other).code(2);
    assert!(refused.stderr.contains("--out"), "{}", refused.stderr);
}

/// Returns a line of the journal with every first figure of the second side a hundred times as
/// expensive, more than a disturbance of the measurement hides.
fn spoilt(line: &str) -> String {
    let mut value: Value = serde_json::from_str(line).unwrap();
    if value["run"]["arm"] == 1 {
        for phase in value["run"]["run"]["sample"]["phases"]
            .as_array_mut()
            .unwrap()
        {
            let spent = phase["cells"][0]["spent"].as_f64().unwrap();
            phase["cells"][0]["spent"] = Value::from(spent * 100.0);
        }
    }
    format!("{value}\n")
}

#[test]
fn the_gate_closes_where_something_became_worse() {
    let s = Sandbox::new();
    let args = [
        "bench",
        "compare",
        "clear",
        "encrypted-256",
        "--workload",
        "rand-read",
        "--size",
        "8M",
        "--runs",
        "6",
        "--seconds",
        "0.02",
        "--out",
        "old",
    ];
    s.run(&args).ok();
    let text = fs::read_to_string(s.path("old/devmix.jsonl")).unwrap();
    fs::create_dir(s.path("new")).unwrap();
    let worse: String = text.lines().map(spoilt).collect();
    fs::write(s.path("new/devmix.jsonl"), worse).unwrap();
    s.json(&["bench", "diff", "old", "old"]);
    let closed = s.run(&["bench", "diff", "old", "new"]).code(26);
    assert!(
        closed.stdout.contains("WORSE devmix encrypted-256 / clear"),
        "{}",
        closed.stdout
    );
    s.run(&["bench", "diff", "new", "old"]).ok();

    let browser = s.path("xdg-open");
    fs::write(&browser, "#!/bin/sh\necho \"$1\" > shown\n").unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let report = |path: &Path| {
        let mut command = s.evfs();
        Ran::of(
            command
                .args(["bench", "report", "old", "--open"])
                .env("PATH", path),
        )
    };
    report(&s.path(".")).ok();
    let shown = fs::read_to_string(s.path("shown")).unwrap();
    assert!(shown.ends_with("old/report.html\n"), "{shown}");
    let none = report(&s.path("old")).code(1);
    assert!(none.stderr.contains("xdg-open"), "{}", none.stderr);
}

#[test]
fn environments_are_compared_with_the_first() {
    let s = Sandbox::new();
    let args = [
        "bench",
        "run",
        "dhrystone",
        "--env",
        "idle",
        "--env",
        "loaded",
    ];
    let ran = s.run(&short(&args, &[&["millis=5"]])).ok();
    assert!(
        ran.stdout.contains("dhrystone: loaded against idle"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout.contains("environment idle / loaded"),
        "{}",
        ran.stdout
    );
    let unknown = s
        .run(&["bench", "run", "dhrystone", "--env", "busy"])
        .code(2);
    assert!(
        unknown.stderr.contains("partitioned-loaded"),
        "{}",
        unknown.stderr
    );
}

#[test]
fn a_suite_prints_what_was_published_beside_what_is_measured() {
    let s = Sandbox::new();
    for folder in ["one", "two"] {
        fs::create_dir(s.path(folder)).unwrap();
    }
    let args = [
        "bench",
        "compare",
        "one",
        "two",
        "--suite",
        "evfs-2006",
        "--out",
        "out",
    ];
    let ran = s.run(&short(&args, &[FILES])).ok();
    assert!(ran.stdout.contains("## evfs-2006"), "{}", ran.stdout);
    for text in [
        "random write, 2 threads",
        "of clear -19 %",
        "Figure 28: PostMark",
    ] {
        assert!(ran.stdout.contains(text), "{text}: {}", ran.stdout);
    }
    // Comparisons between 128 and 256 bits, and between tunings, cannot use two sides of a user's
    // choice.
    assert!(
        ran.stdout.contains("9 of 66 lines are not measured"),
        "{}",
        ran.stdout
    );
    let page = fs::read_to_string(s.path("out/report.html")).unwrap();
    assert!(page.contains("a little more than double"));
    let wrong = s
        .run(&["bench", "run", "evfs-2006", "--target", "one"])
        .code(2);
    assert!(wrong.stderr.contains("--suite"), "{}", wrong.stderr);
    // The suite measures mounts, but the sides have no mount commands: the rest is measured, and
    // the command fails.
    let args = [
        "bench",
        "compare",
        "one",
        "two",
        "--suite",
        "ufc-2007",
        "--no-control",
    ];
    let ran = s.run(&short(&args, &[FILES, OTHERS, LISTS]));
    assert!(!ran.status.success());
    assert!(
        ran.stderr.contains("skipped ufc-2007.mount"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stdout.contains("Mixed mode application"),
        "{}",
        ran.stdout
    );
}
