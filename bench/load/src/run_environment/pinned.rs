//! Temporary CPU affinity of processes, restored afterwards.
//!
//! **Invariant:** every thread recorded at the start gets its own affinity back; a thread created
//! later gets that of the first thread of its process.

use bench_core::{Error, Result};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Splits the CPUs of this process into two halves; the first gets an odd one.
pub(super) fn halves() -> Result<(CpuSet, CpuSet)> {
    let own = sched_getaffinity(None).map_err(failed)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| own.is_set(*cpu))
        .collect();
    if all.len() < 2 {
        return Err(Error::Spec(
            "a partitioned environment needs two CPUs, but only one is available to this process"
                .into(),
        ));
    }
    let set = |cpus: &[usize]| {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        set
    };
    let (work, load) = all.split_at(all.len().div_ceil(2));
    Ok((set(work), set(load)))
}

/// Threads of some processes with their original affinity.
pub(super) struct Pinned {
    processes: Vec<u32>,
    before: Vec<(u32, CpuSet)>,
}

impl Pinned {
    /// Records the affinity of this process and `others`.
    pub(super) fn record(others: &[u32]) -> Result<Pinned> {
        let mut processes = vec![std::process::id()];
        processes.extend(others);
        let mut before = Vec::new();
        for thread in processes.iter().flat_map(|pid| threads(*pid)) {
            match sched_getaffinity(pid(thread)) {
                Ok(set) => before.push((thread, set)),
                // The thread has ended.
                Err(Errno::SRCH) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(Pinned { processes, before })
    }

    /// Restricts the calling thread, and processes that it starts, to `set`.
    pub(super) fn own(&mut self, set: &CpuSet) -> Result<()> {
        sched_setaffinity(None, set).map_err(failed)
    }

    /// Restricts all threads to `set`.
    pub(super) fn all(&mut self, set: &CpuSet) -> Result<()> {
        let threads = self.processes.iter().flat_map(|pid| threads(*pid));
        for thread in threads {
            match sched_setaffinity(pid(thread), set) {
                // The thread has ended, or is a worker that the kernel has placed itself.
                Ok(()) | Err(Errno::SRCH | Errno::INVAL) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let of = |thread: u32| self.before.iter().find(|(t, _)| *t == thread);
        for process in &self.processes {
            for thread in threads(*process) {
                if let Some((_, set)) = of(thread).or_else(|| of(*process)) {
                    let _ = sched_setaffinity(pid(thread), set);
                }
            }
        }
    }
}

/// Lists the threads of a process (proc_pid_task(5)); empty if it does not exist.
fn threads(process: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task"));
    let names = entries.into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

fn pid(raw: u32) -> Option<Pid> {
    Pid::from_raw(raw.cast_signed())
}

fn failed(e: Errno) -> Error {
    Error::Spec(format!("cannot partition the CPUs: {e}"))
}
