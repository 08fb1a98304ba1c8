//! A folder of results: a journal for each study, and what is made of them.
//!
//! ```text
//! DIR/seqrand.jsonl    journals, one a study: the results themselves, written while they are made
//!    /result.json      all studies with every raw run, and what follows from them
//!    /cells.csv        every figure, a line each
//!    /accounts.csv      what runs took of the machine, and service times
//!    /report.txt       the tables
//!    /report.html      one file with all figures, for a browser without a network
//!    /figures/*.svg    the figures by themselves
//! ```
//!
//! **Invariant:** everything but the journals can be made again from them; each file is written beside its
//! place and then put there, so that a reader never meets half of one.

use super::journal::{check, load_begun};
use super::{Aggregate, Finding, Study, accounts, findings, table};
use crate::{Error, Result, html, suite};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Name and version of the layout of a result. A reader refuses what it does not know.
pub const RESULT_SCHEMA: &str = "evfs-lab-result/1";
const JOURNAL: &str = "jsonl";

/// Studies, and what follows from them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Name and version of this layout.
    pub schema: String,
    /// Every study, raw.
    pub studies: Vec<Study>,
    /// What follows from each.
    pub findings: Vec<Found>,
    /// Suites that the studies are parts of, with what was published.
    #[serde(default)]
    pub suites: Vec<suite::Shown>,
}

/// What follows from a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Its key.
    pub study: String,
    /// Every figure.
    pub figures: Vec<Finding>,
    /// Their means.
    pub means: Vec<Aggregate>,
}

impl Results {
    /// What follows from studies.
    pub fn of(studies: Vec<Study>) -> Results {
        let found = |study: &Study| {
            let (figures, means) = findings(study);
            Found {
                study: study.key(),
                figures,
                means,
            }
        };
        Results {
            schema: RESULT_SCHEMA.to_owned(),
            findings: studies.iter().map(found).collect(),
            suites: suite::shown(&studies),
            studies,
        }
    }

    /// Everything as text: suites first, then each study.
    pub fn text(&self) -> String {
        let suites: String = self.suites.iter().map(suite::text).collect();
        let text = suites + &table::tables(&self.studies);
        // Names come from outside, and a terminal obeys control characters.
        let plain = |c: char| match c.is_control() && c != '\n' {
            true => '?',
            false => c,
        };
        text.chars().map(plain).collect()
    }

    /// Reads the journals of a folder, or a `result.json`, by what `path` is.
    ///
    /// # Errors
    /// [`Error::Journal`]; [`Error::Format`] for a folder without a journal or a file of another layout.
    pub fn read(path: &Path) -> Result<Results> {
        if path.is_dir() {
            return read_folder(path);
        }
        let text = fs::read_to_string(path).map_err(|e| failed(path, e))?;
        let results: Stored = serde_json::from_str(&text)
            .map_err(|e| Error::Format(format!("{}: {e}", path.display())))?;
        if results.schema != RESULT_SCHEMA {
            return Err(Error::Format(format!(
                "schema {}, not {RESULT_SCHEMA}",
                results.schema
            )));
        }
        results.studies.iter().try_for_each(check)?;
        Ok(Results::of(results.studies))
    }

    /// Writes everything that is made of the journals.
    ///
    /// # Errors
    /// [`Error::Journal`].
    pub fn write(&self, folder: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self).expect("plain data has a JSON form");
        put(&folder.join("result.json"), &json)?;
        put(&folder.join("cells.csv"), &table::csv(&self.studies))?;
        put(&folder.join("accounts.csv"), &accounts::csv(&self.studies))?;
        put(&folder.join("report.txt"), &self.text())?;
        put(&folder.join("report.html"), &html::page(self))?;
        let figures = folder.join("figures");
        fs::create_dir_all(&figures).map_err(|e| failed(&figures, e))?;
        for (name, svg) in html::figures(&self.studies) {
            put(&figures.join(format!("{name}.svg")), &svg)?;
        }
        Ok(())
    }
}

/// The part of a result that is read: all else follows from it.
#[derive(Deserialize)]
struct Stored {
    schema: String,
    studies: Vec<Study>,
}

/// The place of the journal of the study with this key.
pub fn journal_path(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{key}.{JOURNAL}"))
}

fn read_folder(folder: &Path) -> Result<Results> {
    let entries = fs::read_dir(folder).map_err(|e| failed(folder, e))?;
    let mut journals: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == JOURNAL))
        .collect();
    journals.sort();
    // One that was made and never begun is no reason to refuse the others.
    let begun = journals
        .iter()
        .filter_map(|path| load_begun(path).transpose());
    let studies: Vec<Study> = begun.collect::<Result<_>>()?;
    match studies.is_empty() {
        true => Err(Error::Format(format!(
            "{} has no journal of a study (*.{JOURNAL})",
            folder.display()
        ))),
        false => Ok(Results::of(studies)),
    }
}

fn put(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("new");
    let put = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    put.map_err(|e| {
        let _ = fs::remove_file(&beside);
        failed(path, e)
    })
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Journal {
        path: path.display().to_string(),
        source,
    }
}
