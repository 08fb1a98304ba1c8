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
#![deny(unsafe_code)]

mod initramfs;
mod inside;
mod kernel;
mod machine;
mod message;
#[allow(unsafe_code)]
mod spawn;

pub use inside::{serve, shared};
pub use kernel::Kernel;

use bench_core::facts::Accelerator;
use bench_core::facts::GuestFacts;
use bench_core::meter::Edge;
use bench_core::record::Outside;
use bench_core::{Error, Facts, Record, Result, target};
use machine::Machine;
use message::{AgentReply, AgentRequest, lost};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Arguments that start this program as the agent of a guest.
const AGENT: [&str; 2] = ["bench", "agent"];
/// Name of the agent's virtio port.
const PORT: &str = "evfs.bench";
/// 9p tag of the shared directory; [`FOLDER`] is its mount point.
const TAG: &str = "folder";
const FOLDER: &str = "/folder";
/// Directory of the kernel modules; their names sort in load order.
const MODULES: &str = "/modules";

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

impl target::Guest for Guest {
    fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn prepare(&self, job: &Value) -> Result<()> {
        self.done(&AgentRequest::Prepare(job.clone()))
    }

    fn drop_caches(&self) -> Result<()> {
        self.done(&AgentRequest::DropCaches)
    }

    fn run(&self, job: &Value, times: u32, competitors: &[u32]) -> Result<Record> {
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
}

fn unexpected() -> Error {
    lost("unexpected answer from the benchmark agent")
}
