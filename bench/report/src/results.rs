//! A result directory: a journal per study, and the reports derived from them.
//!
//! ```text
//! DIR/seqrand.jsonl    journals, one per study: the results themselves, written as runs finish
//!    /result.json      all studies with every raw run, and the analysis
//!    /cells.csv        every figure, one per line
//!    /accounts.csv     resources used by runs, and service times
//!    /report.txt       the tables
//!    /report.html      one file with all charts, for a browser without a network
//!    /figures/*.svg    the charts as separate files
//! ```
//!
//! **Invariant:** everything except the journals can be regenerated from them. Each file is written
//! under a temporary name and renamed, so that a reader never sees a partial file.

use crate::{answer, suite, table};
use bench_core::{Error, Result};
use bench_study::journal::{JOURNAL, check, load_begun};
use bench_study::{Aggregate, Finding, Study, findings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Name and version of the layout of a result. A reader rejects any other.
pub const RESULT_SCHEMA: &str = "evfs-lab-result/1";

/// Studies and their analysis. Also the document that commands print with `--json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Results {
    /// Name and version of this layout, [`RESULT_SCHEMA`].
    pub schema: String,
    /// The result in one sentence.
    #[serde(default)]
    pub answer: String,
    /// Every study with its raw runs, in the layout of its journal, which has a version of its own.
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    pub studies: Vec<Study>,
    /// Analysis of each study.
    pub findings: Vec<StudyAnalysis>,
    /// Suites that the studies belong to, with the published values.
    #[serde(default)]
    pub suites: Vec<suite::Shown>,
}

/// Figures that follow from the pairs of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StudyAnalysis {
    /// Key of the study.
    pub study: String,
    /// All figures.
    pub figures: Vec<Finding>,
    /// Means of the figures.
    pub means: Vec<Aggregate>,
}

impl Results {
    /// Analyzes studies and returns the results.
    pub fn of(studies: Vec<Study>) -> Results {
        let found = |study: &Study| {
            let (figures, means) = findings(study);
            StudyAnalysis {
                study: study.key(),
                figures,
                means,
            }
        };
        let suites = suite::shown(&studies);
        Results {
            schema: RESULT_SCHEMA.to_owned(),
            answer: answer::sentence(&studies, &suites),
            findings: studies.iter().map(found).collect(),
            suites,
            studies,
        }
    }

    /// Formats the report as text: the answer, the machine, suites, then each study.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.answer);
        for line in answer::facts(&self.studies) {
            let _ = writeln!(text, "{line}");
        }
        for caution in answer::cautions(&self.studies) {
            let _ = writeln!(text, "{caution}");
        }
        text.push('\n');
        text.extend(self.suites.iter().map(suite::text));
        text.push_str(&table::tables(&self.studies));
        // Names come from outside, and a terminal interprets control characters.
        let plain = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
        text.chars().map(plain).collect()
    }

    /// Reads the journals of a directory, or a `result.json`, depending on `path`.
    ///
    /// # Errors
    /// [`Error::Journal`] if a file cannot be read; [`Error::Format`] for a directory without a
    /// journal or a file of another layout.
    pub fn read(path: &Path) -> Result<Results> {
        if path.is_dir() {
            return read_folder(path);
        }
        let text = fs::read_to_string(path).map_err(|e| failed(path, e))?;
        let results: Stored = serde_json::from_str(&text)
            .map_err(|e| Error::Format(format!("{}: {e}", path.display())))?;
        if results.schema != RESULT_SCHEMA {
            return Err(Error::Format(format!(
                "unsupported schema {}; expected {RESULT_SCHEMA}",
                results.schema
            )));
        }
        results.studies.iter().try_for_each(check)?;
        Ok(Results::of(results.studies))
    }
}

/// The fields of a result that are read; all others are derived again.
#[derive(Deserialize)]
struct Stored {
    schema: String,
    studies: Vec<Study>,
}

fn read_folder(folder: &Path) -> Result<Results> {
    let entries = fs::read_dir(folder).map_err(|e| failed(folder, e))?;
    let mut journals: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == JOURNAL))
        .collect();
    journals.sort();
    // A journal that was created but never begun must not prevent reading the others.
    let begun = journals
        .iter()
        .filter_map(|path| load_begun(path).transpose());
    let studies: Vec<Study> = begun.collect::<Result<_>>()?;
    if studies.is_empty() {
        Err(Error::Format(format!(
            "{} contains no saved runs (*.{JOURNAL}); `evfs bench run --out DIR` saves some",
            folder.display()
        )))
    } else {
        Ok(Results::of(studies))
    }
}

pub(crate) fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Journal {
        path: path.display().to_string(),
        source,
    }
}
