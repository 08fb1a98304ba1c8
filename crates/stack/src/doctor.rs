//! Checks of this machine, of the configuration and of volumes, for `evfs doctor`.
//!
//! **Invariant:** a check changes nothing: no file, no lock file, no socket of a killed process, no
//! entry of a registry. It takes only the shared header lock of a regular file, which leaves no
//! trace. A check that cannot be done is a note that says so, and never counts as passed.
//!
//! Each module returns [`Finding`]s. Those that parse or judge take text, numbers or paths, so that
//! tests pass their own.

mod backups;
mod clock;
mod configuration;
mod header;
pub mod ids;
mod machine;
mod permissions;
mod processes;
mod routes;
mod space;
mod subjects;

use crate::config::{ConfigFile, ServiceTable};
use crate::control;
use crate::trust::TrustStore;
use crate::{Result, Settings, exit};
pub use ids::ALL as IDS;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Result of a check, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing to report.
    Ok,
    /// Worth knowing; nothing has to be done. Also a check that could not be done.
    Note,
    /// Something may fail, or is weaker than it could be.
    Warning,
    /// Something has failed, or does so at the next occasion.
    Error,
}

impl Severity {
    /// Returns the word that stands for it in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A fact that a check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// Stable identifier, `AREA.CHECK`; one of [`IDS`].
    pub id: &'static str,
    /// Area of the check, the first part of the identifier.
    pub area: &'static str,
    /// Volume, LUN, service, file or directory; `None` for the machine as a whole.
    pub object: Option<String>,
    /// Result of the check.
    pub severity: Severity,
    /// Whether the check was done.
    pub checked: bool,
    /// The fact.
    pub what: String,
    /// Its cause or consequence.
    pub why: Option<String>,
    /// Advice.
    pub remedy: Option<String>,
    /// Command that carries out the advice.
    pub command: Option<String>,
}

impl Finding {
    /// Creates a finding of the check `id`, one of [`IDS`].
    pub fn new(id: &'static str, severity: Severity, what: impl Into<String>) -> Finding {
        Finding {
            id,
            area: id.split('.').next().unwrap_or(id),
            object: None,
            severity,
            checked: true,
            what: what.into(),
            why: None,
            remedy: None,
            command: None,
        }
    }

    /// The check passed.
    pub fn ok(id: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(id, Severity::Ok, what)
    }

    /// Worth knowing.
    pub fn note(id: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(id, Severity::Note, what)
    }

    /// Something may fail.
    pub fn warning(id: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(id, Severity::Warning, what)
    }

    /// Something has failed, or does so at the next occasion.
    pub fn error(id: &'static str, what: impl Into<String>) -> Finding {
        Finding::new(id, Severity::Error, what)
    }

    /// A check that could not be done, and the reason.
    pub fn unchecked(id: &'static str, what: &str, why: impl Into<String>) -> Finding {
        Finding {
            checked: false,
            why: Some(why.into()),
            ..Finding::note(id, format!("not checked: {what}"))
        }
    }

    /// Adds the object of the check.
    pub fn on(self, object: impl Into<String>) -> Finding {
        Finding {
            object: Some(object.into()),
            ..self
        }
    }

    /// Adds the cause or consequence.
    pub fn why(self, why: impl Into<String>) -> Finding {
        Finding {
            why: Some(why.into()),
            ..self
        }
    }

    /// Adds advice.
    pub fn remedy(self, remedy: impl Into<String>) -> Finding {
        Finding {
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// Adds the command that carries out the advice.
    pub fn command(self, command: impl Into<String>) -> Finding {
        Finding {
            command: Some(command.into()),
            ..self
        }
    }
}

/// Number of findings of each severity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Tally {
    /// Findings that are ok.
    pub ok: usize,
    /// Notes, including the checks that could not be done.
    pub notes: usize,
    /// Number of warnings.
    pub warnings: usize,
    /// Number of errors.
    pub errors: usize,
    /// Checks that could not be done.
    pub unchecked: usize,
}

/// All findings, grouped by area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    /// Sorts the findings by area; within an area they keep their order.
    fn of(mut findings: Vec<Finding>) -> Report {
        let place = |finding: &Finding| ids::AREAS.iter().position(|area| *area == finding.area);
        findings.sort_by_key(place);
        Report { findings }
    }

    /// Counts the findings.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for finding in &self.findings {
            match finding.severity {
                Severity::Ok => tally.ok += 1,
                Severity::Note => tally.notes += 1,
                Severity::Warning => tally.warnings += 1,
                Severity::Error => tally.errors += 1,
            }
            tally.unchecked += usize::from(!finding.checked);
        }
        tally
    }

    /// Returns the severity of the worst finding.
    pub fn worst(&self) -> Severity {
        let all = self.findings.iter().map(|finding| finding.severity);
        all.max().unwrap_or(Severity::Ok)
    }

    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self.worst() {
            Severity::Ok | Severity::Note => exit::OK,
            Severity::Warning => exit::CHECK_FOUND_WARNINGS,
            Severity::Error => exit::CHECK_FOUND_ERRORS,
        }
    }

    /// Summarizes the findings in one line.
    pub fn verdict(&self) -> String {
        let tally = self.tally();
        let number = |n: usize, what: &str| match n {
            0 => format!("no {what}s"),
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        let problems = match (tally.errors, tally.warnings) {
            (0, 0) => "no errors and no warnings".to_owned(),
            (errors, 0) => number(errors, "error"),
            (errors, warnings) => format!(
                "{}, {}",
                number(errors, "error"),
                number(warnings, "warning")
            ),
        };
        let rest = format!("{} ok, {}", tally.ok, number(tally.notes, "note"));
        match tally.unchecked {
            0 => format!("{problems}; {rest}"),
            n => format!("{problems}; {rest}; {} not done", number(n, "check")),
        }
    }
}

/// Scope of the checks.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Volumes to check, each by NAME or DEVICE; if empty, all that are attached, configured or
    /// known to the trust store.
    pub names: &'a [PathBuf],
    /// Configuration files of `evfs up`, in addition to those of the running services.
    pub configs: &'a [PathBuf],
}

/// A running service, by its name, and its status.
type Running = (String, Result<Value>);

/// Checks of parts that this crate does not know. They get the tables of all configuration files.
pub type Others<'a> = &'a dyn Fn(&[ServiceTable]) -> Vec<Finding>;

/// Runs all checks, and `others`.
///
/// # Errors
/// [`crate::Error::NotFound`] for a name that is neither a volume nor a device. A failure of a check
/// is a finding.
pub fn examine(request: &Request<'_>, settings: &Settings, others: Others<'_>) -> Result<Report> {
    let mut findings = machine::check(settings);
    findings.extend(clock::check(settings));
    findings.extend(configuration::check_settings(&Settings::examine()));
    findings.extend(configuration::check_variables());
    findings.extend(configuration::check_conflicts(settings));
    findings.extend(permissions::check(settings));
    let running = match control::statuses_unchanged(&settings.run_dir()) {
        Ok(running) => running,
        Err(error) => {
            let what = "the running services";
            findings.push(Finding::unchecked(ids::ANSWER, what, error.chain()));
            Vec::new()
        }
    };
    let mut tables = Vec::new();
    for file in configs(request.configs, &running) {
        let (read, found) = read_tables(&file, settings);
        findings.push(found);
        tables.extend(read);
    }
    findings.extend(configuration::check_tables(&tables, settings));
    findings.extend(permissions::check_secrets(settings, &tables));
    let trust = match TrustStore::of(settings).load() {
        Ok(trust) => trust,
        Err(error) => {
            findings.push(Finding::error(ids::STORE, error.chain()));
            Default::default()
        }
    };
    let known = subjects::Known {
        running: &running,
        tables: &tables,
        trust: &trust,
    };
    let (subjects, missing) = subjects::of(request.names, &known, settings)?;
    findings.extend(missing);
    let saved = backups::saved_in(&settings.backup_dir());
    for subject in &subjects {
        let found = header::check(subject, settings, &trust, &saved);
        findings.extend(found.into_iter().map(|f| f.on(&subject.name)));
        let found = space::check(subject, settings);
        findings.extend(found.into_iter().map(|f| f.on(&subject.name)));
    }
    findings.extend(routes::check(request.names, &subjects, &running, settings));
    findings.extend(space::check_state(settings));
    findings.extend(processes::check(&running, &subjects, request.names));
    findings.extend(others(&tables));
    Ok(Report::of(findings))
}

/// Judges a file that only its owner may read, for the check `id`. `what`: the secret in it.
pub fn check_secret(id: &'static str, path: &Path, what: &str) -> Finding {
    let found = permissions::secret(path, what);
    let Finding { area, .. } = Finding::ok(id, "");
    Finding { id, area, ..found }
}

/// Lists the given configuration files, those of running services, and the file of the settings if
/// it defines services, each once.
fn configs(given: &[PathBuf], running: &[Running]) -> BTreeSet<PathBuf> {
    let served = running.iter().filter_map(|(_, status)| {
        let config = status.as_ref().ok()?["config"].as_str()?;
        Some(PathBuf::from(config))
    });
    let full = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
    let own = ConfigFile::in_settings().map(|file| file.path().to_owned());
    let all = given.iter().cloned().chain(served).chain(own);
    all.map(full).collect()
}

fn read_tables(file: &Path, settings: &Settings) -> (Vec<ServiceTable>, Finding) {
    let name = file.display().to_string();
    match ConfigFile::or_settings(Some(file)).read(settings.threads()) {
        Ok(tables) => {
            let count = tables.len();
            let what = format!("the file can be read and defines {count} services");
            (tables, Finding::ok(ids::TABLES, what).on(name))
        }
        Err(error) => {
            let found = Finding::error(ids::TABLES, error.chain())
                .why("`evfs up` refuses the file as a whole")
                .remedy("correct the file");
            (Vec::new(), found.on(name))
        }
    }
}

/// Quotes a word for a shell, if it has to be.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@,=%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_sets_the_exit_code_and_the_verdict_counts_all() {
        let mut all = vec![
            Finding::ok(ids::BACKING, "fine"),
            Finding::unchecked(ids::LOOP, "loop devices", "not root"),
        ];
        let report = |all: &[Finding]| Report::of(all.to_vec());
        assert_eq!(report(&all).exit_code(), 0);
        assert_eq!(
            report(&all).verdict(),
            "no errors and no warnings; 1 ok, 1 note; 1 check not done"
        );
        assert_eq!(report(&all).findings[0].id, ids::LOOP, "the machine first");
        all.push(Finding::warning(ids::BACKUP, "none"));
        assert_eq!(report(&all).exit_code(), 27);
        all.push(Finding::error(ids::HEADER, "damaged"));
        assert_eq!(report(&all).exit_code(), 26);
        let verdict = report(&all).verdict();
        assert!(verdict.starts_with("1 error, 1 warning; 1 ok"), "{verdict}");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/srv/a.img"), "/srv/a.img");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
        assert_eq!(quoted(""), "''");
    }
}
