//! The journal of a study: an append-only file of JSON lines.
//!
//! **Invariant:** a line is written by one call and ends with a line feed, so however this process
//! ends, all lines except possibly the last are complete. An incomplete last line is truncated when
//! the study is resumed, and ignored when it is read. One process at a time writes the journal.

use crate::study::{SideFacts, Study, StudyPlan};
use bench_core::Environment;
use bench_core::result::{End, Run};
use bench_core::{Error, Record, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Name and version of the layout of a study. A reader rejects any other.
pub const STUDY_SCHEMA: &str = "evfs-lab-study/1";
/// Extension of the name of a journal.
pub const JOURNAL: &str = "jsonl";
/// Maximum size of a journal that is read, in bytes: ten times that of 100 pairs of a sweep of 700
/// cells.
const BYTES_MAX: u64 = 1 << 30;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Line {
    /// The first line.
    Head(Box<Head>),
    /// A session began: the first follows the head, each further one resumed the study.
    Session(Box<Environment>),
    /// The number of repetitions was determined.
    Times(u32),
    /// A run finished.
    Run(Box<Logged>),
    /// The study ended.
    End(End),
    /// A run failed, which ended the session.
    Failed(String),
}

/// Identity of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    schema: String,
    workload: String,
    sides: Vec<SideFacts>,
    plan: StudyPlan,
}

/// A run and the index of its arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Logged {
    arm: usize,
    pub(crate) run: Run<Record>,
}

impl Logged {
    pub(crate) fn new(
        arm: usize,
        (block, half, position): (u32, u32, u32),
        discard_first: bool,
        sample: Record,
    ) -> Logged {
        let run = Run {
            block,
            half,
            position,
            warm_up: discard_first && block == 0,
            sample,
        };
        Logged { arm, run }
    }

    /// Returns the record, which must be of the given arm.
    pub(crate) fn expect_arm(self, arm: usize) -> Result<Record> {
        if self.arm == arm {
            Ok(self.run.sample)
        } else {
            Err(Error::Format(
                "its runs are not in the order of the plan".into(),
            ))
        }
    }
}

/// An open journal.
pub struct Journal {
    file: File,
    /// Length of the complete lines in bytes.
    whole: u64,
    study: Option<Study>,
}

impl Journal {
    /// Opens the journal at `path`, or creates it.
    ///
    /// # Errors
    /// [`Error::Journal`] for any error of the file system, and while another process writes the
    /// journal; [`Error::Format`] for a file that is not a journal.
    pub fn open(path: &Path) -> Result<Journal> {
        let failed = |source| Error::Journal {
            path: path.display().to_string(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(failed)?;
        // A file system without locks must not prevent measuring.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let busy =
                "another `evfs bench` is writing it; wait until it ends, or use another directory";
            return Err(failed(std::io::Error::new(ErrorKind::ResourceBusy, busy)));
        }
        let text = read(&mut file).map_err(failed)?;
        let whole = text.len() as u64;
        let study = parse(&text)?;
        file.set_len(whole).map_err(failed)?;
        Ok(Journal { file, whole, study })
    }

    /// Returns the study as read and written so far.
    ///
    /// # Panics
    /// If no study was begun.
    pub fn study(&self) -> &Study {
        self.study.as_ref().expect("a study was begun")
    }

    /// Begins a study, or resumes it.
    pub(crate) fn begin(
        &mut self,
        workload: &str,
        sides: Vec<SideFacts>,
        plan: &StudyPlan,
    ) -> Result<()> {
        let head = Head {
            schema: STUDY_SCHEMA.to_owned(),
            workload: workload.to_owned(),
            sides,
            plan: plan.clone(),
        };
        match &mut self.study {
            None => self.append(&Line::Head(Box::new(head)))?,
            Some(study) => {
                // The time limits may differ between sessions.
                let plan = StudyPlan {
                    budget: head.plan.budget,
                    extra: head.plan.extra,
                    ..study.plan.clone()
                };
                let same = study.workload == head.workload
                    && study.sides == head.sides
                    && plan == head.plan;
                if !same {
                    return Err(Error::Spec(
                        "the directory contains a result of another study; select another one \
                         with --out"
                            .into(),
                    ));
                }
            }
        }
        self.append(&Line::Session(Box::new(Environment::capture())))
    }

    /// Returns the number of repetitions, if it was determined already.
    pub(crate) fn times(&self) -> Option<u32> {
        Some(self.study().times).filter(|times| *times > 0)
    }

    pub(crate) fn record_times(&mut self, times: u32) -> Result<()> {
        match self.times() {
            Some(_) => Ok(()),
            None => self.append(&Line::Times(times)),
        }
    }

    /// Returns the runs so far in the order of their execution.
    pub(crate) fn replay(&self) -> std::vec::IntoIter<Logged> {
        let mut all: Vec<Logged> = Vec::new();
        for (arm, runs) in self.study().runs.iter().enumerate() {
            all.extend(runs.iter().cloned().map(|run| Logged { arm, run }));
        }
        all.sort_by_key(|logged| (logged.run.block, logged.run.position));
        all.into_iter()
    }

    /// Writes a line and applies it to the study.
    pub(crate) fn append(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line).expect("plain data has a JSON form");
        text.push(b'\n');
        if let Err(source) = self.file.write_all(&text) {
            // A full disk may have taken half of the line, to which the next one would be appended.
            let _ = self.file.set_len(self.whole);
            let path = "the journal".into();
            return Err(Error::Journal { path, source });
        }
        self.whole += text.len() as u64;
        take(&mut self.study, line.clone())
    }
}

/// Reads the complete lines of a journal. The file may end anywhere, even within a multibyte
/// character.
fn read(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        let long = format!("larger than {BYTES_MAX} bytes, the limit for a study");
        return Err(std::io::Error::new(ErrorKind::InvalidData, long));
    }
    let whole = bytes.iter().rposition(|b| *b == b'\n');
    bytes.truncate(whole.map_or(0, |end| end + 1));
    String::from_utf8(bytes).map_err(|e| std::io::Error::new(ErrorKind::InvalidData, e))
}

/// Returns the path of the journal of the study with this key.
pub fn journal_path(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{key}.{JOURNAL}"))
}

/// Reads a journal, complete or truncated.
///
/// # Errors
/// [`Error::Journal`] if it cannot be read, [`Error::Format`] if it is not a valid journal.
pub fn load(path: &Path) -> Result<Study> {
    let none = || Error::Format(format!("{}: no complete line", path.display()));
    load_begun(path)?.ok_or_else(none)
}

/// Like [`load`]; `None` for a study that ended before its head was written.
pub fn load_begun(path: &Path) -> Result<Option<Study>> {
    let mut file = File::open(path).map_err(|source| Error::Journal {
        path: path.display().to_string(),
        source,
    })?;
    let text = read(&mut file).map_err(|source| Error::Journal {
        path: path.display().to_string(),
        source,
    })?;
    parse(&text).map_err(|error| match error {
        Error::Format(why) => Error::Format(format!("{}: {why}", path.display())),
        other => other,
    })
}

fn parse(text: &str) -> Result<Option<Study>> {
    let mut study = None;
    for (number, line) in text.lines().enumerate() {
        let bad = |why: String| Error::Format(format!("line {}: {why}", number + 1));
        let line: Line = serde_json::from_str(line).map_err(|e| bad(e.to_string()))?;
        take(&mut study, line).map_err(|e| bad(e.to_string()))?;
    }
    Ok(study)
}

/// Applies a line to the study.
fn take(study: &mut Option<Study>, line: Line) -> Result<()> {
    let bad = |why: &str| Err(Error::Format(why.to_owned()));
    let study = match (study, line) {
        (none @ None, Line::Head(head)) => return fresh(*head).map(|study| *none = Some(study)),
        (None, _) => return bad("the journal does not begin with a header"),
        (Some(_), Line::Head(_)) => return bad("duplicate header"),
        (Some(study), line) => (study, line),
    };
    match study {
        (study, Line::Session(environment)) => {
            study.sessions.push(*environment);
            (study.end, study.failure) = (None, None);
        }
        (study, Line::Times(times)) => study.times = times,
        (study, Line::Run(logged)) => {
            let Some(runs) = study.runs.get_mut(logged.arm) else {
                return bad("a run refers to an unknown side");
            };
            runs.push(logged.run);
            let counted = runs.iter().filter(|run| !run.warm_up).count();
            study.extended = counted > study.plan.pairs as usize + 1;
        }
        (study, Line::End(end)) => study.end = Some(end),
        (study, Line::Failed(why)) => study.failure = Some(why),
        (_, Line::Head(_)) => unreachable!("handled above"),
    }
    Ok(())
}

/// Counts the arms: the sides, and the control.
fn arms(sides: &[SideFacts], plan: &StudyPlan) -> usize {
    sides.len() + usize::from(plan.control && sides.len() > 1)
}

/// Checks the consistency of a study that was not read from its journal.
///
/// # Errors
/// [`Error::Format`] if the study is inconsistent.
pub fn check(study: &Study) -> Result<()> {
    let bad = |why: String| Err(Error::Format(why));
    match study {
        other if other.schema != STUDY_SCHEMA => bad(format!(
            "unsupported schema {}; expected {STUDY_SCHEMA}",
            other.schema
        )),
        none if none.sides.is_empty() => bad("the study has no side".into()),
        other if other.runs.len() != arms(&other.sides, &other.plan) => {
            bad("the runs of the study do not match its sides".into())
        }
        _ => Ok(()),
    }
}

fn fresh(head: Head) -> Result<Study> {
    if head.schema != STUDY_SCHEMA {
        return Err(Error::Format(format!(
            "unsupported schema {}; expected {STUDY_SCHEMA}",
            head.schema
        )));
    }
    if head.sides.is_empty() {
        return Err(Error::Format("the study has no side".into()));
    }
    let arms = arms(&head.sides, &head.plan);
    Ok(Study {
        schema: head.schema,
        workload: head.workload,
        sides: head.sides,
        plan: head.plan,
        sessions: Vec::new(),
        times: 0,
        runs: vec![Vec::new(); arms],
        end: None,
        failure: None,
        extended: false,
    })
}
