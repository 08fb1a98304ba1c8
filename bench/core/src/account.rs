//! Resources that a run used besides the CPU time of its own processes: kernel threads by name, the
//! whole machine, and memory.
//!
//! Counters are read before and after a run, outside all timed sections, because kernel threads can
//! only be found by a scan of /proc, which takes milliseconds.
//!
//! Deliberately absent: kernel threads that ended during the run; their counters ended with them.

use crate::meter::{TICK_NS, host_ticks};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// `PF_KTHREAD` of include/linux/sched.h, in the flags field of proc_pid_stat(5).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Resources used by a run, including its untimed parts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Account {
    /// Duration in nanoseconds.
    pub wall_ns: u64,
    /// CPU time of the whole machine in nanoseconds, with a resolution of 10 ms.
    pub busy_ns: u64,
    /// Number of CPUs available to this process.
    pub processors: u64,
    /// CPU time of kernel threads by name, without any part after a slash; resolution 10 ms.
    pub kernel_ns: BTreeMap<String, u64>,
    /// Peak memory of this process during the run, in bytes.
    pub memory: Option<u64>,
    /// Sum of the peak memory of the target's daemons since they started, in bytes.
    pub daemons_memory: Option<u64>,
}

impl Account {
    /// Sums the CPU time of all kernel threads, in nanoseconds.
    pub fn kernel_total_ns(&self) -> u64 {
        self.kernel_ns.values().fold(0, |a, b| a.saturating_add(*b))
    }

    /// Computes the busy fraction of the machine; 1 means that all CPUs were busy.
    pub fn busy(&self) -> f64 {
        self.busy_ns as f64 / (self.wall_ns as f64 * self.processors as f64)
    }

    /// Finds the `count` busiest kernel threads with their CPU time in nanoseconds.
    pub fn busiest(&self, count: usize) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> = self.kernel_ns.iter().map(|(n, ns)| (&**n, *ns)).collect();
        all.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        all.truncate(count);
        all
    }
}

/// Counters at the start of a run.
pub struct Opened {
    began: Instant,
    busy: u64,
    threads: BTreeMap<u32, (String, u64)>,
}

impl Opened {
    pub fn now() -> Opened {
        // Resets this process's peak (proc_pid_clear_refs(5), value 5); where the kernel refuses,
        // the earlier peak stays.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Opened {
            threads: kernel_threads(),
            busy: busy_ticks(),
            began: Instant::now(),
        }
    }

    pub fn close(self, daemons: &[u32]) -> Account {
        let wall_ns = self.began.elapsed().as_nanos() as u64;
        let busy = busy_ticks().saturating_sub(self.busy);
        let mut kernel_ns = BTreeMap::new();
        for (pid, (name, ticks)) in kernel_threads() {
            let before = self.threads.get(&pid).map_or(0, |(_, ticks)| *ticks);
            let used = ticks.saturating_sub(before);
            if used > 0 {
                *kernel_ns.entry(name).or_default() += used * TICK_NS;
            }
        }
        let of_daemons = daemons.iter().map(|pid| peak(&pid.to_string()));
        Account {
            wall_ns,
            busy_ns: busy * TICK_NS,
            processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            kernel_ns,
            memory: peak("self"),
            daemons_memory: match daemons {
                [] => None,
                _ => of_daemons.sum(),
            },
        }
    }
}

/// Lists the kernel threads by PID: name and CPU ticks.
fn kernel_threads() -> BTreeMap<u32, (String, u64)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let one = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, kernel_thread(&stat)?))
    };
    numbers.filter_map(one).collect()
}

/// Parses name and ticks of a kernel thread from proc_pid_stat(5), `None` for other processes.
fn kernel_thread(stat: &str) -> Option<(String, u64)> {
    let (front, back) = stat.rsplit_once(')')?;
    let name = front.split_once('(')?.1;
    let field = |n: usize| back.split_whitespace().nth(n)?.parse::<u64>().ok();
    if field(6)? & KERNEL_THREAD == 0 {
        return None;
    }
    let name = name.split('/').next().unwrap_or(name);
    Some((name.to_owned(), field(11)?.saturating_add(field(12)?)))
}

fn busy_ticks() -> u64 {
    host_ticks().map_or(0, |ticks| ticks.busy)
}

/// Reads the peak memory of a process in bytes (`VmHWM` of proc_pid_status(5)).
fn peak(pid: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_threads_are_told_by_their_flag_and_named_without_their_number() {
        let stat = "17 (kworker/0:1-a (b) c) I 2 0 0 0 -1 69238880 0 0 0 0 3 40 0 0 20 0 1 0 5";
        assert_eq!(kernel_thread(stat), Some(("kworker".into(), 43)));
        let user = "17 (kworker/0) S 1 0 0 0 -1 4194304 0 0 0 0 3 40 0 0 20 0 1 0 5";
        assert_eq!(kernel_thread(user), None);
        assert_eq!(kernel_thread("17 (x) S"), None);
    }

    #[test]
    fn what_this_process_takes_is_in_the_account() {
        let before = Opened::now();
        let kept = vec![1u8; 64 << 20];
        let mut sum = 0u64;
        // At least two ticks, whatever else runs on the machine.
        let from = crate::process_cpu().total_ns;
        while crate::process_cpu().total_ns - from < 100_000_000 {
            sum = sum.wrapping_add(kept.iter().map(|b| u64::from(*b)).sum::<u64>());
        }
        assert!(std::hint::black_box(sum) > 0);
        let account = before.close(&[std::process::id()]);
        assert!(account.busy_ns >= 2 * TICK_NS, "{account:?}");
        assert!(account.memory.unwrap() >= 64 << 20, "{account:?}");
        assert!(account.daemons_memory.unwrap() >= 64 << 20, "{account:?}");
        assert!(account.busy() > 0.0 && account.busy() <= 1.5, "{account:?}");
    }
}
