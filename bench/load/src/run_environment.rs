//! Environments of a side: the competing load, and the CPUs of workload and competitor, as in the
//! reports.
//!
//! ```text
//!   idle          the workload alone
//!   loaded        with competitors, as many as there are CPUs
//!   shared-...    workload and competitor in control groups of equal weight (VM basic mode, 1990)
//!   partitioned-  workload on one half of the CPUs, competitor on the other (LPAR mode, 1990)
//!   guest         workload in a guest; guest-loaded etc. have the competitor next to the guest
//! ```
//!
//! **Invariant:** an environment is set up before a run and removed after it, whatever the result
//! of the run, so sides with different environments can run in turn. A competitor that ends by
//! itself fails the run, because the environment was then not the stated one. Its CPU time is
//! counted separately, not as foreign load.
//!
//! Kernel threads, including those of io_uring, stay where the kernel places them.

mod groups;
mod load_generator;
mod pinned;

use bench_core::target::{Target, TargetKind};
use bench_core::{Error, Result};
use groups::Groups;
use load_generator::LoadGenerator;
use pinned::{Pinned, halves};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Load that competes with the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Load {
    /// No competitor.
    #[default]
    Idle,
    /// Keeps every CPU busy.
    Processor,
    /// Writes and syncs 64 MiB repeatedly, next to the workload's files.
    Writes,
    /// Compiles a C program repeatedly.
    Build,
}

/// Assignment of CPUs to the workload and its competitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Processors {
    /// All CPUs for both, left to the scheduler.
    #[default]
    All,
    /// All CPUs, in equal shares while both need them.
    Shared,
    /// Half of the CPUs each.
    Partitioned,
    /// The workload has the virtual CPUs of a guest, whose threads compete like any other on the
    /// host.
    Guest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RunEnvironment {
    /// Competing load.
    pub load: Load,
    /// Assignment of CPUs.
    pub processors: Processors,
}

/// Prefix of the load of a guest, and, without its hyphen, the name of an idle guest.
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

impl RunEnvironment {
    /// Returns all environments.
    pub fn all() -> impl Iterator<Item = RunEnvironment> {
        PROCESSORS.into_iter().flat_map(|(processors, _)| {
            LOADS
                .into_iter()
                .map(move |(load, _)| RunEnvironment { load, processors })
        })
    }

    /// Sets the environment up for a run on `target`.
    ///
    /// # Errors
    /// [`Error::Spec`] if this machine has fewer than two CPUs, or groups cannot be created;
    /// [`Error::Program`] for a competitor that does not start.
    pub fn begin(self, target: &Target) -> Result<ActiveEnvironment> {
        let mut beside = ActiveEnvironment::default();
        if (self.processors == Processors::Guest) != matches!(target.place, TargetKind::Guest(_)) {
            let name = &target.name;
            return Err(Error::Spec(format!(
                "environment {self} and target {name} do not match: only one of them is a guest"
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
                // The competitor inherits the CPUs of this thread.
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

/// An active environment. Dropping it removes it.
#[derive(Default)]
pub struct ActiveEnvironment {
    // Drop order: the competitor must end before its group can be removed.
    load: Option<LoadGenerator>,
    groups: Option<Groups>,
    pinned: Option<Pinned>,
}

impl ActiveEnvironment {
    fn start(&mut self, load: Load, target: &Target) -> Result<()> {
        self.load = LoadGenerator::start(load, target)?;
        Ok(())
    }

    /// Returns the PIDs whose CPU time is the competitor's.
    pub fn pids(&self) -> Vec<u32> {
        self.load
            .as_ref()
            .map_or_else(Vec::new, LoadGenerator::pids)
    }

    /// Removes the environment.
    ///
    /// # Errors
    /// [`Error::Program`] for a competitor that ended prematurely.
    pub fn end(mut self) -> Result<()> {
        match &mut self.load {
            Some(load) => load.still_there(),
            None => Ok(()),
        }
    }
}

impl fmt::Display for RunEnvironment {
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

impl FromStr for RunEnvironment {
    type Err = Error;

    fn from_str(text: &str) -> Result<RunEnvironment> {
        RunEnvironment::all()
            .find(|s| s.to_string() == text)
            .ok_or_else(|| {
                let names: Vec<String> = RunEnvironment::all().map(|s| s.to_string()).collect();
                Error::Spec(format!(
                    "unknown environment `{text}`; expected one of {}",
                    names.join(", ")
                ))
            })
    }
}

impl From<RunEnvironment> for String {
    fn from(surroundings: RunEnvironment) -> String {
        surroundings.to_string()
    }
}

impl TryFrom<String> for RunEnvironment {
    type Error = Error;

    fn try_from(text: String) -> Result<RunEnvironment> {
        text.parse()
    }
}

#[cfg(test)]
mod tests;
