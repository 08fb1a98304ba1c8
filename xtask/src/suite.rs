//! The tests: runs `cargo nextest` as configured in `.config/nextest.toml`, then reports retried
//! tests and the reasons.

mod selection;

use crate::{Outcome, cargo, cargo_in};
use selection::Selection;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Profile of nextest with the tests that need neither root nor a peer.
pub const PLAIN: &str = "plain";

/// Examples that tests start. The others are only linted.
const EXAMPLES: [&str; 8] = [
    "call_vlserver",
    "die_registered",
    "large_calls",
    "long_study",
    "rbd_writer",
    "survivor",
    "test_server",
    "touch_page",
];

/// Packages whose tests run in a full check even if they have passed as a development build: they
/// depend on what the compiler makes of them, or do more in a full check.
const AGAIN: [&str; 8] = [
    "evfs-block",
    "evfs-cache",
    "evfs-crypt",
    "evfs-fs",
    "evfs-path-file",
    "evfs-secret",
    "evfs-survival",
    "evfs-xts",
];

/// Operations of each test of the file system against its model, in a run of all tests.
const OPERATIONS: &str = "15000";

/// Power cuts of each test of the file system that has them, in a run of all tests.
const CUTS: &str = "400";

/// Maximum number of retried tests before the check fails.
const RETRIES_MAX: usize = 3;

/// Maximum lines of a failed attempt's output that are shown, from the panic message on.
const REASON_LINES: usize = 12;

/// A test that failed and then passed.
#[derive(Debug, PartialEq, Eq)]
struct Retried {
    test: String,
    reason: String,
}

/// Builds the tests and the programs that they start.
///
/// It is one command, because Cargo would build most crates twice for two: the features of a
/// dependency are those that the packages of a command ask for together.
pub fn build(root: &Path, profile: &[&str]) -> Outcome {
    let targets = ["build", "--workspace", "--bins", "--tests"];
    let examples = EXAMPLES.map(|name| ["--example", name]);
    cargo(root, &[&targets[..], &examples.concat(), profile].concat())
}

/// Builds the tests of the profile [`PLAIN`], and the programs that they start. As examples are
/// among these, both commands ask for the same features of dependencies.
pub fn build_plain(root: &Path) -> Outcome {
    let examples = EXAMPLES.map(|name| ["--example", name]).concat();
    let programs = ["build", "--workspace", "--bins"];
    cargo(root, &[&programs[..], &examples].concat())?;
    let selection = Selection::plain(root)?;
    let tests = ["test", "--workspace", "--no-run", "--quiet"];
    cargo(root, &[&tests[..], &selection.args()].concat())
}

/// Runs the tests that `args` select (all of them if it is empty) and prints each retry.
///
/// # Errors
/// A test failed, or more than [`RETRIES_MAX`] tests needed a second attempt.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let plain = args.iter().any(|arg| arg == PLAIN);
    let profile = if plain { PLAIN } else { "default" };
    let junit = root.join(format!("target/nextest/{profile}/junit.xml"));
    let _ = std::fs::remove_file(&junit);
    let mut command = nextest(root, "run");
    if plain {
        command.args(Selection::plain(root)?.args());
    } else {
        command.arg("--tests");
        command
            .env("EVFS_OPERATIONS", OPERATIONS)
            .env("EVFS_CUTS", CUTS);
    }
    let outcome = crate::run(command.args(args));
    let report = std::fs::read_to_string(&junit).unwrap_or_default();
    let retried = retried(&report).map_err(|e| format!("{junit:?}: {e}"))?;
    for test in &retried {
        println!("tried twice: {}\n{}\n", test.test, test.reason);
    }
    println!("{} tests were tried twice", retried.len());
    outcome?;
    match retried.len() {
        0..=RETRIES_MAX => Ok(()),
        more => Err(format!(
            "{more} tests needed a second try, more than {RETRIES_MAX}: mend them"
        )),
    }
}

/// Returns the filter of the tests that the profile [`PLAIN`] leaves out, and of those of [`AGAIN`].
///
/// # Errors
/// As [`selection::filter`].
pub fn not_plain(root: &Path) -> Result<String, String> {
    let plain = selection::filter(root)?;
    let again = AGAIN.map(|package| format!("package({package})"));
    Ok(format!("not ({plain}) | {}", again.join(" | ")))
}

/// Returns the command that runs the tests of the workspace; the caller adds filters.
pub fn command(root: &Path) -> Command {
    let mut command = nextest(root, "run");
    command.arg("--tests");
    command
}

/// Returns a command of nextest; the caller selects targets.
fn nextest(root: &Path, verb: &str) -> Command {
    let mut command = cargo_in(root);
    command
        .args(["nextest", verb, "--workspace"])
        .env(runner_variable(), root.join("xtask/isolated"));
    command
}

/// Lists the tests that the profile [`PLAIN`] leaves out, as text, and writes their names to a file.
pub fn left_out(root: &Path) -> Result<String, String> {
    let selection = Selection::plain(root)?;
    let output = nextest(root, "list")
        .args(selection.args())
        .args(["--profile", PLAIN])
        .args(["--message-format", "json"])
        .output()
        .map_err(|e| format!("cargo nextest list: {e}"))?;
    let listed: Value = serde_json::from_slice(&output.stdout).map_err(|e| {
        let why = String::from_utf8_lossy(&output.stderr);
        format!("cargo nextest list: {e}: {why}")
    })?;
    let mut left_out = unmatched(&listed);
    left_out.extend(selection.left_out.into_iter().map(|id| (id, Vec::new())));
    let mut text = String::from("\nnot run, because they need root or a peer:\n");
    let mut all = String::new();
    for (suite, names) in &left_out {
        if names.is_empty() {
            text += &format!("    {suite}: the whole suite\n");
            all += &format!("{suite}\n");
        } else {
            text += &format!("    {suite}: {}\n", names.join(", "));
        }
        for name in names {
            all += &format!("{suite} {name}\n");
        }
    }
    let file = root.join("target/not-run.txt");
    std::fs::write(&file, all).map_err(|e| format!("{}: {e}", file.display()))?;
    let suites = left_out.values().filter(|names| names.is_empty()).count();
    let names: usize = left_out.values().map(Vec::len).sum();
    Ok(text + &format!("{suites} suites, and {names} tests of others\n"))
}

/// Finds the suites of a listing that are left out whole (no names) or in part.
fn unmatched(listed: &Value) -> BTreeMap<String, Vec<String>> {
    let suites = listed["rust-suites"].as_object().into_iter().flatten();
    suites
        .filter_map(|(id, suite)| {
            if suite["status"] != "listed" {
                return Some((id.clone(), Vec::new()));
            }
            let cases = suite["testcases"].as_object().into_iter().flatten();
            let names: Vec<String> = cases
                .filter(|(_, case)| case["filter-match"]["status"] != "matches")
                .map(|(name, _)| name.clone())
                .collect();
            (!names.is_empty()).then(|| (id.clone(), names))
        })
        .collect()
}

/// Returns the variable with the test runner of this platform for cargo and nextest.
fn runner_variable() -> String {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let triple = triple.to_uppercase().replace('-', "_");
    format!("CARGO_TARGET_{triple}_RUNNER")
}

/// Finds the tests of a JUnit report that failed first and then passed.
fn retried(report: &str) -> Result<Vec<Retried>, roxmltree::Error> {
    if report.is_empty() {
        return Ok(Vec::new());
    }
    let document = roxmltree::Document::parse(report)?;
    let cases = document
        .descendants()
        .filter(|node| node.has_tag_name("testcase"));
    let retried = cases.filter_map(|case| {
        let failure = case
            .children()
            .find(|node| node.has_tag_name("flakyFailure"))?;
        let name = |attribute| case.attribute(attribute).unwrap_or_default();
        Some(Retried {
            test: format!("{} {}", name("classname"), name("name")),
            reason: reason(failure),
        })
    });
    Ok(retried.collect())
}

/// Extracts the panic message of a failed attempt, or the end of its output.
fn reason(failure: roxmltree::Node) -> String {
    let message = failure.attribute("message").unwrap_or_default();
    let printed: String = failure
        .descendants()
        .filter(|node| node.has_tag_name("system-out") || node.has_tag_name("system-err"))
        .filter_map(|node| node.text())
        .collect();
    let lines: Vec<&str> = printed.lines().collect();
    let panic = lines.iter().position(|line| line.contains("panicked at"));
    let from = panic.unwrap_or(lines.len().saturating_sub(REASON_LINES));
    let shown = lines.iter().skip(from).take(REASON_LINES).copied();
    std::iter::once(message)
        .chain(shown)
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_is_reported_with_the_reason_of_the_first_failure() {
        let report = r#"<testsuites><testsuite name="rx">
            <testcase name="passes" classname="rx::calls"/>
            <testcase name="waits" classname="rx::calls">
              <flakyFailure message="thread panicked" type="test failure">
                <system-err>noise
thread 'waits' panicked at calls.rs:7:
no answer</system-err>
              </flakyFailure>
            </testcase>
            <testcase name="fails" classname="rx::calls"><failure message="x"/></testcase>
            </testsuite></testsuites>"#;
        let found = retried(report).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].test, "rx::calls waits");
        assert!(found[0].reason.contains("no answer"), "{found:?}");
        assert!(!found[0].reason.contains("noise"), "{found:?}");
    }

    #[test]
    fn what_a_profile_leaves_out_is_named() {
        let listed = serde_json::json!({ "rust-suites": {
            "tests::luns": { "status": "skipped-default-filter", "testcases": {} },
            "rx::calls": { "status": "listed", "testcases": {
                "needs_root::a": { "filter-match": { "status": "mismatch" } },
                "b": { "filter-match": { "status": "matches" } },
            } },
            "xts": { "status": "listed", "testcases": {
                "c": { "filter-match": { "status": "matches" } },
            } },
        } });
        let found = unmatched(&listed);
        let expected = [
            ("rx::calls".to_owned(), vec!["needs_root::a".to_owned()]),
            ("tests::luns".to_owned(), Vec::new()),
        ];
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn no_report_means_no_retries() {
        assert_eq!(retried("").unwrap(), []);
        assert!(retried("<testsuites>").is_err());
    }
}
