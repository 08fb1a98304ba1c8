//! What runs beside a side, and on which processors: the environments of the reports.
//!
//! ```text
//!   idle          the work alone
//!   loaded        a competitor beside it, as many of them as there are processors
//!   shared-...    work and competitor in a control group each, of equal weight (the 1990 report's VM basic mode)
//!   partitioned-  work on one half of the processors, competitor on the other (its LPAR mode)
//!   guest         work in a guest; guest-loaded and the like have the competitor beside the guest
//! ```
//!
//! **Invariant:** surroundings are made before a run and taken away after it, whatever comes of the run, so sides
//! with different ones may be run by turns. A competitor that ended by itself fails the run: what was measured
//! was not what is said. Its CPU is counted by itself, not as foreign load.
//!
//! Kernel threads, those of io_uring among them, stay where the kernel puts them.

mod competitor;
mod groups;
mod pinned;

use crate::target::{Place, Target};
use crate::{Error, Result};
use competitor::Competitor;
use groups::Groups;
use pinned::{Pinned, halves};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What competes with the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Load {
    /// Nothing of ours.
    #[default]
    Idle,
    /// Every processor is kept busy.
    Processor,
    /// 64 MiB are written and synced again and again, where the work has its files.
    Writes,
    /// A C program is compiled again and again.
    Build,
}

/// Which processors the work and its competitor have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Processors {
    /// All, as the scheduler likes.
    #[default]
    All,
    /// All, an equal share for each of the two while both want them.
    Shared,
    /// Half of them each.
    Partitioned,
    /// The work has those of a guest, whose threads are processes like others on this machine.
    Guest,
}

/// An environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Surroundings {
    /// What competes.
    pub load: Load,
    /// Where.
    pub processors: Processors,
}

/// Before the load of a guest, and a guest without any.
const GUEST: &str = "guest-";

const LOADS: [(Load, &str); 4] = [
    (Load::Idle, "idle"),
    (Load::Processor, "loaded"),
    (Load::Writes, "loaded-io"),
    (Load::Build, "loaded-build"),
];
const PROCESSORS: [(Processors, &str); 4] = [
    (Processors::All, ""),
    (Processors::Shared, "shared-"),
    (Processors::Partitioned, "partitioned-"),
    (Processors::Guest, GUEST),
];

impl Surroundings {
    /// All there are.
    pub fn all() -> impl Iterator<Item = Surroundings> {
        PROCESSORS.into_iter().flat_map(|(processors, _)| {
            LOADS
                .into_iter()
                .map(move |(load, _)| Surroundings { load, processors })
        })
    }

    /// Makes them for a run on `target`.
    ///
    /// # Errors
    /// [`Error::Spec`] where this machine has no two processors, or groups may not be made;
    /// [`Error::Program`] for a competitor that does not start.
    pub(crate) fn begin(self, target: &Target) -> Result<Beside> {
        let mut beside = Beside::default();
        if (self.processors == Processors::Guest) != matches!(target.place, Place::Guest(_)) {
            let name = &target.name;
            return Err(Error::Spec(format!(
                "what runs in a guest and the environment {self} of {name} do not agree"
            )));
        }
        match self.processors {
            Processors::All | Processors::Guest => beside.start(self.load, target)?,
            Processors::Shared => {
                let groups = Groups::make()?;
                groups.load()?;
                beside.groups = Some(groups);
                beside.start(self.load, target)?;
                let groups = beside.groups.as_mut().expect("made above");
                groups.work(&target.daemons)?;
            }
            Processors::Partitioned => {
                let (work, load) = halves()?;
                // The competitor is born where it belongs: a child has its parent's processors.
                let mut pinned = Pinned::record(&target.daemons)?;
                pinned.own(&load)?;
                beside.pinned = Some(pinned);
                beside.start(self.load, target)?;
                let pinned = beside.pinned.as_mut().expect("recorded above");
                pinned.all(&work)?;
            }
        }
        Ok(beside)
    }
}

/// Surroundings as long as they last. Dropping them takes them away.
#[derive(Default)]
pub(crate) struct Beside {
    // In this order: the competitor ends, then its group can go.
    load: Option<Competitor>,
    groups: Option<Groups>,
    pinned: Option<Pinned>,
}

impl Beside {
    fn start(&mut self, load: Load, target: &Target) -> Result<()> {
        self.load = Competitor::start(load, target)?;
        Ok(())
    }

    /// Processes whose CPU is the competitor's.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.load.as_ref().map_or_else(Vec::new, Competitor::pids)
    }

    /// Takes everything away.
    ///
    /// # Errors
    /// [`Error::Program`] for a competitor that ended before its time.
    pub(crate) fn end(mut self) -> Result<()> {
        match &mut self.load {
            Some(load) => load.still_there(),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if (self.processors, self.load) == (Processors::Guest, Load::Idle) {
            return f.pad(GUEST.trim_end_matches('-'));
        }
        let place = PROCESSORS.iter().find(|(p, _)| *p == self.processors);
        let load = LOADS.iter().find(|(l, _)| *l == self.load);
        let name = |found: Option<&'static str>| found.expect("the tables have all");
        let text = format!(
            "{}{}",
            name(place.map(|(_, name)| *name)),
            name(load.map(|(_, name)| *name))
        );
        f.pad(&text)
    }
}

impl FromStr for Surroundings {
    type Err = Error;

    fn from_str(text: &str) -> Result<Surroundings> {
        Surroundings::all()
            .find(|s| s.to_string() == text)
            .ok_or_else(|| {
                let names: Vec<String> = Surroundings::all().map(|s| s.to_string()).collect();
                Error::Spec(format!(
                    "no environment {text}; there are {}",
                    names.join(", ")
                ))
            })
    }
}

impl From<Surroundings> for String {
    fn from(surroundings: Surroundings) -> String {
        surroundings.to_string()
    }
}

impl TryFrom<String> for Surroundings {
    type Error = Error;

    fn try_from(text: String) -> Result<Surroundings> {
        text.parse()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
