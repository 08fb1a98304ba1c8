//! The tests: runs `cargo nextest` as configured in `.config/nextest.toml`, then reports retried
//! tests and the reasons.

use crate::Outcome;
use std::path::Path;
use std::process::Command;

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

/// Runs the tests that `args` select (all of them if it is empty) and prints each retry.
///
/// # Errors
/// A test failed, or more than [`RETRIES_MAX`] tests needed a second attempt.
pub fn run(root: &Path, args: &[String]) -> Outcome {
    let junit = root.join("target/nextest/default/junit.xml");
    let _ = std::fs::remove_file(&junit);
    let outcome = crate::run(
        Command::new(env!("CARGO"))
            .args(["nextest", "run", "--workspace", "--release"])
            .args(args)
            .env(runner_variable(), root.join("xtask/isolated"))
            .current_dir(root),
    );
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
    fn no_report_means_no_retries() {
        assert_eq!(retried("").unwrap(), []);
        assert!(retried("<testsuites>").is_err());
    }
}
