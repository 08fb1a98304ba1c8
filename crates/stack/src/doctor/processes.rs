//! The running services: whether they answer, what they warn about, and their version.

use super::subjects::Subject;
use super::{Finding, Running, ids, quoted};
use crate::Error;
use serde_json::Value;
use std::path::PathBuf;

/// Checks the running services, or those of the subjects if the user has named some.
pub(super) fn check(running: &[Running], subjects: &[Subject], names: &[PathBuf]) -> Vec<Finding> {
    let is_subject = |service: &str| {
        let serves = |s: &Subject| s.served.as_ref().is_some_and(|(name, _)| name == service);
        let is_named = names.iter().any(|name| name.as_os_str() == service);
        names.is_empty() || is_named || subjects.iter().any(serves)
    };
    let mut findings = Vec::new();
    for (name, status) in running.iter().filter(|(name, _)| is_subject(name)) {
        let found = match status {
            Ok(status) => of_status(name, status, crate::VERSION),
            Err(error) => vec![silent(name, error)],
        };
        findings.extend(found.into_iter().map(|f| f.on(name)));
    }
    findings
}

fn silent(name: &str, error: &Error) -> Finding {
    if matches!(error, Error::NotFound(_)) {
        return Finding::note(ids::LEFTOVER, "the socket of a killed process is left")
            .why("the process was killed, or the machine lost power")
            .remedy("the next command removes the socket; start the service again if it is needed")
            .command("evfs status");
    }
    Finding::error(ids::ANSWER, "the service does not answer")
        .why(error.chain())
        .remedy("wait for its device, or end it; --force gives up data that is in memory only")
        .command(format!("evfs detach {} --force", quoted(name)))
}

/// Judges a service of a program of this `version`.
fn of_status(name: &str, status: &Value, version: &str) -> Vec<Finding> {
    let name = quoted(name);
    let mut findings = vec![match status["version"].as_str() {
        Some(runs) if runs == version => Finding::ok(
            ids::VERSION,
            format!("the service runs this version ({runs})"),
        ),
        runs => {
            let runs = runs.unwrap_or("an earlier version that does not report its number");
            let what = format!("the service runs {runs}, and this program is {version}");
            Finding::warning(ids::VERSION, what)
                .why("corrections of the installed version take effect after a restart")
                .remedy("detach it, and start it again")
                .command(format!("evfs detach {name}"))
        }
    }];
    if status["in_use_record"] == "lost" {
        let found = Finding::error(ids::WARNING, "another machine has taken the volume over")
            .why("all I/O is refused, because two writers would destroy the data")
            .remedy("detach it here")
            .command(format!("evfs detach {name} --force"));
        findings.push(found);
    }
    let is_failing = status["write_back"]["state"] == "failing";
    match status["warning"].as_str() {
        Some(warning) if is_failing => {
            let found = Finding::error(ids::WARNING, warning)
                .why("acknowledged data is in memory only")
                .remedy("free space under the volume, or repair its storage");
            findings.push(found);
        }
        Some(warning) => findings.push(Finding::warning(ids::WARNING, warning)),
        None => findings.push(Finding::ok(ids::WARNING, "the service warns about nothing")),
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity::{self, Error as Bad, Note, Ok as Fine, Warning};
    use serde_json::json;

    #[test]
    fn old_versions_and_warnings_are_found() {
        let judged = |status: Value| -> Vec<(&'static str, Severity)> {
            let found = of_status("a", &status, "2.0.0");
            found.iter().map(|f| (f.id, f.severity)).collect()
        };
        assert_eq!(
            judged(json!({ "version": "2.0.0" })),
            [(ids::VERSION, Fine), (ids::WARNING, Fine)]
        );
        assert_eq!(
            judged(json!({ "version": "1.0.0", "warning": "x" })),
            [(ids::VERSION, Warning), (ids::WARNING, Warning)]
        );
        assert_eq!(judged(json!({}))[0], (ids::VERSION, Warning));
        let failing = json!({ "warning": "x", "write_back": { "state": "failing" } });
        assert_eq!(judged(failing)[1], (ids::WARNING, Bad));
        assert_eq!(judged(json!({ "in_use_record": "lost" }))[1].1, Bad);
    }

    #[test]
    fn a_killed_process_is_noted_and_a_silent_one_an_error() {
        let gone = silent("a", &Error::NotFound("gone".into()));
        assert_eq!((gone.id, gone.severity), (ids::LEFTOVER, Note));
        let stuck = silent("a", &Error::Busy("no answer".into()));
        assert_eq!((stuck.id, stuck.severity), (ids::ANSWER, Bad));
    }
}
