//! Suites: the measurements of a published report in its order, and what it published beside what is measured here.
//!
//! ```text
//!   Suite ──► Part (a table or figure) ──► a study for each of its columns ──► lines: published | here
//! ```
//!
//! **Invariant:** a published value is never part of a judgement. Machines of 1990 and 2006 had other rates; what
//! can be compared is the change between two columns, so that is what a line shows of both.
//!
//! Figures whose values cannot be read from the report have none here, and are measured all the same.

mod published;
mod table;

pub use published::SUITES;
pub(crate) use table::{HEAD, cells};
pub use table::{Line, Measured, Shown, shown, text};

use crate::record::Better;
use crate::surroundings::Surroundings;
use crate::{Error, Extent, Job, Result};

/// A report.
#[derive(Debug)]
pub struct Suite {
    /// Its name here.
    pub name: &'static str,
    /// The report.
    pub after: &'static str,
    /// What its two columns are.
    pub axis: Axis,
    /// The side that it runs on where its columns are environments and nobody names one.
    pub on: Option<&'static str>,
    /// Its tables and figures.
    pub parts: &'static [Part],
}

/// What the two columns of a suite's tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Two sides: those that the columns name, or two of the user's choice.
    Sides,
    /// One target in two environments.
    Environments,
}

/// A table or figure of a report.
#[derive(Debug)]
pub struct Part {
    /// Its name in files, `table-6`.
    pub name: &'static str,
    /// What the report calls it.
    pub title: &'static str,
    /// The workload.
    pub workload: &'static str,
    /// Parameters that make it what the report measured.
    pub set: Parameters,
    /// Sizes with which all suites together take an hour.
    pub standard: Parameters,
    /// Sizes with which they take minutes.
    pub quick: Parameters,
    /// Pairs of columns, a study each; one without environments where the columns are sides.
    pub columns: &'static [Columns],
    /// The lines.
    pub rows: &'static [Row],
}

/// Parameters of a workload, by name; the others are as the extent has them.
pub type Parameters = &'static [(&'static str, &'static str)];

/// A pair of columns.
#[derive(Debug)]
pub struct Columns {
    /// What the pair has in common, `shared`; empty where there is one pair.
    pub name: &'static str,
    /// The environments of the two, none where they are sides.
    pub environments: &'static [&'static str],
    /// The two sides that are measured where the user names none, as they are written on a command line.
    pub sides: &'static [&'static str],
    /// Whether two sides of the user's choice can stand for those.
    pub choice: bool,
}

/// A line of a table.
#[derive(Debug)]
pub struct Row {
    /// What the report calls it.
    pub label: &'static str,
    /// Beginning of the name of the phase here, up to a comma, a blank or a colon; `*`: the mean of the changes of
    /// all phases.
    pub phase: &'static str,
    /// The figure, likewise.
    pub cell: &'static str,
    /// Which way was good in what the report printed.
    pub better: Better,
    /// What it printed.
    pub published: Published,
}

/// What a report printed in a line.
#[derive(Debug)]
pub enum Published {
    /// Both values, for each pair of columns, and their unit.
    Values(&'static [[f64; 2]], &'static str),
    /// Changes in percent, and of which machine.
    Changes(&'static [(&'static str, f64)]),
    /// Words alone.
    Words(&'static str),
}

impl Suite {
    /// The suite of this name.
    pub fn named(name: &str) -> Option<&'static Suite> {
        SUITES.iter().find(|suite| suite.name == name)
    }

    /// The part that a study of this key is of.
    pub fn part_of(key: &str) -> Option<&'static Part> {
        SUITES.iter().find_map(|suite| {
            suite.parts.iter().find(|part| {
                let mut keys = part.columns.iter().map(|columns| suite.key(part, columns));
                keys.any(|own| own == key)
            })
        })
    }

    /// The key of the study of a part's columns, which names its journal.
    pub fn key(&self, part: &Part, columns: &Columns) -> String {
        // It names files, so a shell need not be told what is a part of it.
        let plain: Vec<&str> = columns
            .name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        match plain.is_empty() {
            true => format!("{}.{}", self.name, part.name),
            false => format!("{}.{}.{}", self.name, part.name, plain.join("-")),
        }
    }
}

impl Part {
    /// What is run for it.
    ///
    /// # Errors
    /// [`Error::Spec`].
    pub fn job(&self, extent: Extent) -> Result<Job> {
        let mut job = Job::named(self.workload, extent)?;
        let sizes = match extent {
            Extent::Quick => self.quick,
            Extent::Standard => self.standard,
            Extent::Faithful => &[],
        };
        for (name, value) in self.set.iter().chain(sizes) {
            job.set(name, value)?;
        }
        Ok(job)
    }
}

impl Columns {
    /// The environments of the two.
    ///
    /// # Errors
    /// [`Error::Spec`] for a name that is none.
    pub fn surroundings(&self) -> Result<Vec<Surroundings>> {
        let parse = |name: &&str| name.parse::<Surroundings>();
        let all: Result<Vec<Surroundings>> = self.environments.iter().map(parse).collect();
        match all {
            Ok(all) if all.len() == 2 || all.is_empty() => Ok(all),
            Ok(_) => Err(Error::Spec("a pair of columns has two environments".into())),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
