//! A side in a guest: a machine within this one, by QEMU, with a kernel of its own, where jobs are carried out.
//!
//! ```text
//!   this process                          the guest
//!   Job ──► a line of JSON ──► pipe ──► QEMU ──► virtio port ──► the same program as its first process (inside)
//!   Record ◄───────────────────────────────────────────────────── meter and workloads as anywhere
//! ```
//!
//! **Invariant:** a job does the same work in a guest as outside: the same code on the bytes of the same file or
//! disk (virtio-blk), or in the same folder (9p). Its record is what was measured inside; what the whole guest took
//! of this machine stands beside it.
//!
//! Absent on purpose: a distribution in the guest. There are this program and `cat`, so workloads that run other
//! programs are refused.

mod initramfs;
mod inside;
mod kernel;
mod machine;
mod message;
#[allow(unsafe_code)]
mod spawn;

pub use inside::serve;
pub(crate) use inside::shared;
pub use kernel::Kernel;

use crate::meter::Edge;
use crate::record::Outside;
use crate::{Error, Facts, Job, Record, Result};
use machine::Machine;
use message::{Answer, Ask, lost};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Words after the name of this program that make it the agent of a guest.
const AGENT: [&str; 2] = ["lab", "agent"];
/// Name of the agent's port.
const PORT: &str = "evfs.lab";
/// Name of the shared folder for 9p, and where it is.
const TAG: &str = "folder";
const FOLDER: &str = "/folder";
/// Where modules are, in the order of their loading.
const MODULES: &str = "/modules";

/// What carries a guest's instructions out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// The processor itself.
    Kvm,
    /// A program that translates them.
    Tcg,
}

impl Accelerator {
    fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }
}

impl FromStr for Accelerator {
    type Err = Error;

    fn from_str(text: &str) -> Result<Accelerator> {
        [Accelerator::Kvm, Accelerator::Tcg]
            .into_iter()
            .find(|accelerator| accelerator.name() == text)
            .ok_or_else(|| Error::Spec(format!("no accelerator {text}; there are kvm and tcg")))
    }
}

/// A disk of a guest.
#[derive(Debug, Clone)]
pub struct Disk {
    /// File or disk of this machine, whose lock is the caller's.
    pub path: PathBuf,
    /// The page cache of this machine is passed by.
    pub direct: bool,
}

/// A guest to be.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its kernel.
    pub kernel: Kernel,
    /// `None`: the processor where that works, else translation.
    pub accelerator: Option<Accelerator>,
    /// Its processors.
    pub cpus: u32,
    /// Its memory.
    pub memory_mib: u32,
    /// Its disk.
    pub disk: Option<Disk>,
    /// The folder that it shares with this machine.
    pub folder: Option<PathBuf>,
}

/// What a reader has to know about the guest of a side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFacts {
    /// What carried its instructions out.
    pub accelerator: Accelerator,
    /// Release of its kernel.
    pub kernel: String,
    /// Its processors.
    pub cpus: u32,
    /// Its memory.
    pub memory_mib: u32,
}

impl fmt::Display for GuestFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, kernel) = (self.accelerator.name(), &self.kernel);
        let (cpus, memory) = (self.cpus, self.memory_mib);
        write!(
            f,
            "QEMU ({name}), Linux {kernel}, {cpus} CPUs, {memory} MiB"
        )
    }
}

/// A guest that runs, with a target open in it. It ends when this is dropped.
pub struct Guest {
    machine: Mutex<Machine>,
    pid: u32,
    folder: Option<PathBuf>,
    facts: Facts,
}

impl Guest {
    /// Starts it, and opens `target` in it, in the words of the function that [`serve`] was given.
    ///
    /// # Errors
    /// [`Error::Spec`] for what is not installed, or a target that cannot be opened; [`Error::Program`] for a guest
    /// that does not start, with its last words.
    pub fn boot(plan: &Plan, target: &Value) -> Result<Guest> {
        let (mut machine, accelerator) = Machine::boot(plan)?;
        let Answer::Opened(facts) = machine.ask(&Ask::Open(target.clone()))? else {
            return Err(unexpected());
        };
        let guest = Some(GuestFacts {
            accelerator,
            kernel: machine.kernel.clone(),
            cpus: plan.cpus,
            memory_mib: plan.memory_mib,
        });
        Ok(Guest {
            pid: machine.pid(),
            machine: Mutex::new(machine),
            folder: plan.folder.clone(),
            facts: Facts { guest, ..facts },
        })
    }

    /// What is known of the target in it, and of the guest.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The process of QEMU.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The folder that it shares with this machine.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    pub(crate) fn prepare(&self, job: &Job) -> Result<()> {
        self.done(&Ask::Prepare(job.clone()))
    }

    /// Drops the caches of its kernel; those of this machine are the caller's.
    pub(crate) fn drop_caches(&self) -> Result<()> {
        self.done(&Ask::DropCaches)
    }

    /// Carries a job out in it.
    pub(crate) fn run(&self, job: &Job, times: u32, competitors: &[u32]) -> Result<Record> {
        if block::layer::spent().is_some() {
            self.done(&Ask::CountLayers)?;
        }
        let start = Edge::now(&[self.pid], competitors);
        let answer = self.machine().ask(&Ask::Run(job.clone(), times))?;
        let end = Edge::now(&[self.pid], competitors);
        let used = end.since(&start, None);
        let Answer::Record(mut record) = answer else {
            return Err(unexpected());
        };
        record.outside = Some(Outside {
            wall_ns: end.at().duration_since(start.at()).as_nanos() as u64,
            cpu_ns: used.cpu.total_ns + used.others.total_ns(),
            noise: used.noise,
        });
        Ok(*record)
    }

    fn done(&self, ask: &Ask) -> Result<()> {
        match self.machine().ask(ask)? {
            Answer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unexpected() -> Error {
    lost("it answers something else than was asked")
}
