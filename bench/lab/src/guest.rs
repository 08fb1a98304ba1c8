//! Runs jobs in a guest: a virtual machine by QEMU with its own kernel.
//!
//! ```text
//!   this process                          the guest
//!   Job ──► line of JSON ──► pipe ──► QEMU ──► virtio port ──► the same program as init (inside)
//!   Record ◄────────────────────────────────────────────────── meter, workloads as on the host
//! ```
//!
//! **Invariant:** a job does the same work in a guest as on the host: the same code on the bytes of
//! the same file or disk (virtio-blk), or in the same directory (9p). Its record contains the
//! measurements inside the guest and, separately, the resources that the whole guest used on the
//! host.
//!
//! Deliberately absent: a distribution in the guest. It contains only this program and `cat`, so
//! workloads that run other programs are refused.

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
use message::{AgentReply, AgentRequest, lost};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Arguments that start this program as the agent of a guest.
const AGENT: [&str; 2] = ["bench", "agent"];
/// Name of the agent's virtio port.
const PORT: &str = "evfs.lab";
/// 9p tag of the shared directory; [`FOLDER`] is its mount point.
const TAG: &str = "folder";
const FOLDER: &str = "/folder";
/// Directory of the kernel modules; their names sort in load order.
const MODULES: &str = "/modules";

/// Executor of the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// The host CPU.
    Kvm,
    /// QEMU's software translation.
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
            .ok_or_else(|| Error::Spec(format!("unknown accelerator {text}; expected kvm or tcg")))
    }
}

/// Disk of a guest.
#[derive(Debug, Clone)]
pub struct Disk {
    /// File or disk of the host, which the caller has locked.
    pub path: PathBuf,
    /// Whether the host's page cache is bypassed.
    pub direct: bool,
}

/// Configuration of a guest.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Guest kernel.
    pub kernel: Kernel,
    /// `None`: KVM if it works, else translation.
    pub accelerator: Option<Accelerator>,
    /// Number of virtual CPUs.
    pub cpus: u32,
    pub memory_mib: u32,
    /// Virtual disk.
    pub disk: Option<Disk>,
    /// Directory that the host shares with the guest.
    pub folder: Option<PathBuf>,
}

/// Properties of a guest that a reader must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFacts {
    /// Accelerator in use.
    pub accelerator: Accelerator,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// Number of virtual CPUs.
    pub cpus: u32,
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

/// A running guest with an open target. It ends when this is dropped.
pub struct Guest {
    machine: Mutex<Machine>,
    pid: u32,
    folder: Option<PathBuf>,
    facts: Facts,
}

impl Guest {
    /// Starts a guest and opens `target` in it; the function passed to [`serve`] interprets the
    /// value.
    ///
    /// # Errors
    /// [`Error::Spec`] if a required program is not installed or the target cannot be opened;
    /// [`Error::Program`] with the last console output if the guest does not start.
    pub fn boot(plan: &Plan, target: &Value) -> Result<Guest> {
        let (mut machine, accelerator) = Machine::boot(plan)?;
        let AgentReply::Opened(facts) = machine.request(&AgentRequest::Open(target.clone()))?
        else {
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

    /// Returns facts about the target in the guest and about the guest.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the PID of QEMU.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the directory that the host shares with the guest.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    pub(crate) fn prepare(&self, job: &Job) -> Result<()> {
        self.done(&AgentRequest::Prepare(job.clone()))
    }

    /// Drops the caches of the guest's kernel; the host's caches are the caller's task.
    pub(crate) fn drop_caches(&self) -> Result<()> {
        self.done(&AgentRequest::DropCaches)
    }

    /// Runs a job in the guest.
    pub(crate) fn run(&self, job: &Job, times: u32, competitors: &[u32]) -> Result<Record> {
        if layer_cpu::spent().is_some() {
            self.done(&AgentRequest::CountLayers)?;
        }
        let start = Edge::now(&[self.pid], competitors);
        let answer = self
            .machine()
            .request(&AgentRequest::Run(job.clone(), times))?;
        let end = Edge::now(&[self.pid], competitors);
        let used = end.since(&start, None);
        let AgentReply::Record(mut record) = answer else {
            return Err(unexpected());
        };
        record.outside = Some(Outside {
            wall_ns: end.at().duration_since(start.at()).as_nanos() as u64,
            cpu_ns: used.cpu.total_ns + used.others.total_ns(),
            noise: used.noise,
        });
        Ok(*record)
    }

    fn done(&self, ask: &AgentRequest) -> Result<()> {
        match self.machine().request(ask)? {
            AgentReply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unexpected() -> Error {
    lost("unexpected answer from the benchmark agent")
}
