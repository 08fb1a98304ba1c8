//! Suites: the measurements of a published report in its order, with the published values next to
//! the measured ones.
//!
//! ```text
//!   Suite ──► Part (a table or figure) ──► a study per pair of columns ──► lines: published | here
//! ```
//!
//! **Invariant:** a published value is never part of a judgement. Machines of 1990 and 2006 had
//! other rates; only the change between two columns is comparable, so a line shows the change of
//! both.
//!
//! Figures whose values cannot be read from the report have no published values here, but are
//! measured nevertheless.

mod published;
mod table;

pub use published::SUITES;
pub(crate) use table::{HEAD, cells};
pub use table::{Line, Measured, Shown, shown, text};

use bench_core::record::Better;
use bench_core::{Error, Result};
use bench_load::RunEnvironment;
use bench_load::{Extent, Job};

/// A published report.
#[derive(Debug)]
pub struct Suite {
    /// Name on the command line.
    pub name: &'static str,
    /// Title of the report.
    pub after: &'static str,
    /// Meaning of the two columns.
    pub axis: Axis,
    /// Default side of a suite whose columns are environments.
    pub on: Option<&'static str>,
    /// Tables and figures of the report.
    pub parts: &'static [Part],
}

/// Meaning of the two columns of a suite's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Two sides: those that the columns name, or two chosen by the user.
    Sides,
    /// One target in two environments.
    Environments,
}

/// A table or figure of a report.
#[derive(Debug)]
pub struct Part {
    /// Name in files, for example `table-6`.
    pub name: &'static str,
    /// Title in the report.
    pub title: &'static str,
    /// Name of the workload.
    pub workload: &'static str,
    /// Parameters that reproduce the report's measurement.
    pub set: Parameters,
    /// Sizes with which all suites together take an hour.
    pub standard: Parameters,
    /// Sizes with which all suites together take minutes.
    pub quick: Parameters,
    /// Pairs of columns, one study each; a single pair without environments if the columns are
    /// sides.
    pub columns: &'static [Columns],
    /// Lines of the table.
    pub rows: &'static [Row],
}

/// Parameters of a workload, by name; the others have the defaults of the extent.
pub type Parameters = &'static [(&'static str, &'static str)];

/// A pair of columns to compare.
#[derive(Debug)]
pub struct Columns {
    /// Common property of the pair, for example `shared`; empty if there is only one pair.
    pub name: &'static str,
    /// Environments of the two columns; empty if the columns are sides.
    pub environments: &'static [&'static str],
    /// Default sides of the two columns, in command line syntax.
    pub sides: &'static [&'static str],
    /// Whether the user may choose two other sides.
    pub choice: bool,
}

/// A line of a report's table.
#[derive(Debug)]
pub struct Row {
    /// Label in the report.
    pub label: &'static str,
    /// Prefix of the phase name here, up to a comma, a blank or a colon; `*`: the mean of the
    /// changes of all phases.
    pub phase: &'static str,
    /// Prefix of the figure's name, likewise.
    pub cell: &'static str,
    /// Direction of improvement of the published value.
    pub better: Better,
    /// Published values.
    pub published: Published,
}

/// Published content of a line.
#[derive(Debug)]
pub enum Published {
    /// Both values for each pair of columns, and their unit.
    Values(&'static [[f64; 2]], &'static str),
    /// Changes in percent, with the name of the machine.
    Changes(&'static [(&'static str, f64)]),
    /// Only words.
    Words(&'static str),
}

impl Suite {
    /// Looks up the suite of this name.
    pub fn named(name: &str) -> Option<&'static Suite> {
        SUITES.iter().find(|suite| suite.name == name)
    }

    /// Looks up the part that the study with this key measures.
    pub fn part_of(key: &str) -> Option<&'static Part> {
        SUITES.iter().find_map(|suite| {
            suite.parts.iter().find(|part| {
                let mut keys = part.columns.iter().map(|columns| suite.key(part, columns));
                keys.any(|own| own == key)
            })
        })
    }

    /// Returns the key of the study of a part's columns, which names its journal.
    pub fn key(&self, part: &Part, columns: &Columns) -> String {
        // The key becomes a file name, so it must not need quoting in a shell.
        let plain: Vec<&str> = columns
            .name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        if plain.is_empty() {
            format!("{}.{}", self.name, part.name)
        } else {
            format!("{}.{}.{}", self.name, part.name, plain.join("-"))
        }
    }
}

impl Part {
    /// Creates the job that measures this part.
    ///
    /// # Errors
    /// [`Error::Spec`] for an invalid parameter.
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
    /// Parses the environments of the two columns.
    ///
    /// # Errors
    /// [`Error::Spec`] for an unknown name.
    pub fn surroundings(&self) -> Result<Vec<RunEnvironment>> {
        let parse = |name: &&str| name.parse::<RunEnvironment>();
        let all: Result<Vec<RunEnvironment>> = self.environments.iter().map(parse).collect();
        match all {
            Ok(all) if all.len() == 2 || all.is_empty() => Ok(all),
            Ok(_) => Err(Error::Spec(
                "a pair of columns needs two environments".into(),
            )),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests;
