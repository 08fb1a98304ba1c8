//! Resources used by a run and background load during it, read from the kernel's own counters at
//! the two edges of a run and never sampled in between.
//!
//! CPU time is that of the whole process, from `CLOCK_PROCESS_CPUTIME_ID`, exact to the nanosecond.
//! It includes io_uring's worker threads, which the kernel accounts to the process that created the
//! ring. It excludes shared kernel threads (kworker, jbd2, ksoftirqd). Those appear in
//! [`Noise::outside_cores`], for all arms alike.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Pid;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{Duration, Instant};

/// Nanoseconds per kernel tick as counted in /proc: USER_HZ is 100 on every architecture that
/// Rust's standard library supports on Linux.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// Fraction of stolen machine time above which a run is tainted.
const STEAL_LIMIT: f64 = 0.05;
/// CPU used by other processes, in cores, above which a run is tainted.
const OUTSIDE_LIMIT: f64 = 0.25;

/// CPU time, in total and split into user and system time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuTime {
    /// User and system time together, exact.
    pub total_ns: u64,
    /// User time, to the microsecond. The kernel samples the split; only the sum is exact.
    pub user_ns: u64,
    /// System time.
    pub system_ns: u64,
}

/// Reads the CPU time that all threads of this process have used so far.
pub fn process_cpu() -> CpuTime {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let (user_ns, system_ns) = usage(UsageWho::RUSAGE_SELF);
    CpuTime {
        total_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
        user_ns,
        system_ns,
    }
}

impl CpuTime {
    fn since(self, start: CpuTime) -> CpuTime {
        CpuTime {
            total_ns: self.total_ns.saturating_sub(start.total_ns),
            user_ns: self.user_ns.saturating_sub(start.user_ns),
            system_ns: self.system_ns.saturating_sub(start.system_ns),
        }
    }
}

/// Bytes that reached the device, which prove that a run was not served from a cache: bytes that
/// this process caused the block layer to read and write, by `/proc/self/io`. With a page cache
/// beneath, a write counts when it dirties a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceBytes {
    /// Bytes read from the device.
    pub read: u64,
    /// Bytes written to the device.
    pub written: u64,
}

impl DeviceBytes {
    fn since(self, start: DeviceBytes) -> DeviceBytes {
        DeviceBytes {
            read: self.read.saturating_sub(start.read),
            written: self.written.saturating_sub(start.written),
        }
    }
}

/// Background load during a run. A field is absent if the kernel does not report it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Noise {
    /// Fraction of the whole machine's time that the hypervisor took.
    pub steal: Option<f64>,
    /// Cores used outside this process, including kernel threads.
    pub outside_cores: Option<f64>,
    /// Microseconds in which at least one task waited for a CPU (PSI `cpu some`).
    pub psi_cpu_us: Option<u64>,
    /// Microseconds in which at least one task waited for I/O (PSI `io some`).
    pub psi_io_us: Option<u64>,
    /// Total time that the workload's threads waited on a run queue, in nanoseconds.
    pub run_queue_ns: Option<u64>,
}

impl Noise {
    /// Checks whether background load disturbed this run: more than 5 % of the machine stolen, or
    /// more than a quarter of a core used by other processes.
    pub fn tainted(&self) -> bool {
        self.steal.is_some_and(|s| s > STEAL_LIMIT)
            || self.outside_cores.is_some_and(|c| c > OUTSIDE_LIMIT)
    }

    /// Merges the noise of another run: the larger of fractions, the sum of times.
    pub fn join(&mut self, other: Noise) {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        let worse = |a: Option<f64>, b: Option<f64>| Some(a?.max(b?));
        self.steal = worse(self.steal, other.steal);
        self.outside_cores = worse(self.outside_cores, other.outside_cores);
        self.psi_cpu_us = sum(self.psi_cpu_us, other.psi_cpu_us);
        self.psi_io_us = sum(self.psi_io_us, other.psi_io_us);
        self.run_queue_ns = sum(self.run_queue_ns, other.run_queue_ns);
    }
}

/// Counters at one edge of a run.
pub struct Edge {
    at: Instant,
    cpu: CpuTime,
    device: Option<DeviceBytes>,
    host: Option<HostTicks>,
    psi_cpu_us: Option<u64>,
    psi_io_us: Option<u64>,
    others: Others,
    layers: Option<Layers>,
}

/// CPU time of other processes that work for this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Others {
    /// Children that were waited for, including their own children.
    pub children_ns: u64,
    /// Named processes, for example the daemon behind a mounted directory.
    pub daemons_ns: u64,
    /// Competing processes of the run with their children; the latter in ticks of 10 ms.
    #[serde(default)]
    pub competitors_ns: u64,
}

impl Others {
    fn now(daemons: &[u32], competitors: &[u32]) -> Others {
        let (user, system) = usage(UsageWho::RUSAGE_CHILDREN);
        let competitors = competitors.iter().map(|pid| {
            let (user, system) = ticks_of_children(*pid).unwrap_or((0, 0));
            clock_of(*pid) + (user + system) * TICK_NS
        });
        Others {
            children_ns: user + system,
            daemons_ns: daemons.iter().map(|pid| clock_of(*pid)).sum(),
            competitors_ns: competitors.sum(),
        }
    }

    fn since(self, start: Others) -> Others {
        Others {
            children_ns: self.children_ns.saturating_sub(start.children_ns),
            daemons_ns: self.daemons_ns.saturating_sub(start.daemons_ns),
            competitors_ns: self.competitors_ns.saturating_sub(start.competitors_ns),
        }
    }

    /// Sums the CPU time spent on behalf of this process, without competitors.
    pub fn total_ns(self) -> u64 {
        self.children_ns + self.daemons_ns
    }
}

/// CPU time used by each layer of the stack in this process, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Layers {
    /// Protocol encoding and decoding of client requests.
    pub protocol: u64,
    /// File system: files and directories.
    pub fs: u64,
    /// Page cache.
    pub cache: u64,
    /// Encryption and decryption.
    pub crypt: u64,
    /// I/O paths to the disk.
    pub path: u64,
}

impl Layers {
    /// Reads the totals so far; `None` unless counting is enabled.
    fn now() -> Option<Layers> {
        let [protocol, fs, cache, crypt, path] = layer_cpu::spent()?;
        Some(Layers {
            protocol,
            fs,
            cache,
            crypt,
            path,
        })
    }

    /// Returns the values in the order of [`layer_cpu::Layer::ALL`].
    pub fn all(self) -> [u64; 5] {
        [self.protocol, self.fs, self.cache, self.crypt, self.path]
    }

    /// Combines two values layer by layer.
    pub fn with(self, other: Layers, of: impl Fn(u64, u64) -> u64) -> Layers {
        Layers {
            protocol: of(self.protocol, other.protocol),
            fs: of(self.fs, other.fs),
            cache: of(self.cache, other.cache),
            crypt: of(self.crypt, other.crypt),
            path: of(self.path, other.path),
        }
    }
}

impl Edge {
    /// Reads the counters of this and the given processes.
    pub fn now(daemons: &[u32], competitors: &[u32]) -> Edge {
        Edge {
            layers: Layers::now(),
            others: Others::now(daemons, competitors),
            psi_cpu_us: psi_some_us("/proc/pressure/cpu"),
            psi_io_us: psi_some_us("/proc/pressure/io"),
            host: host_ticks(),
            device: own_io(),
            cpu: process_cpu(),
            at: Instant::now(),
        }
    }

    pub fn at(&self) -> Instant {
        self.at
    }

    /// Computes the difference between `start` and this edge. `run_queue_ns` comes from the
    /// threads.
    pub fn since(&self, start: &Edge, run_queue_ns: Option<u64>) -> Used {
        let cpu = self.cpu.since(start.cpu);
        let others = self.others.since(start.others);
        let known_ns = cpu.total_ns + others.total_ns() + others.competitors_ns;
        let elapsed = self.at.duration_since(start.at);
        let host = self
            .host
            .zip(start.host)
            .map(|(end, start)| end.since(start));
        Used {
            cpu,
            others,
            layers: self
                .layers
                .zip(start.layers)
                .map(|(end, start)| end.with(start, u64::saturating_sub)),
            device: self
                .device
                .zip(start.device)
                .map(|(end, start)| end.since(start)),
            noise: Noise {
                steal: host.and_then(HostTicks::steal),
                outside_cores: host.map(|h| h.outside_cores(known_ns, elapsed)),
                psi_cpu_us: difference(self.psi_cpu_us, start.psi_cpu_us),
                psi_io_us: difference(self.psi_io_us, start.psi_io_us),
                run_queue_ns,
            },
        }
    }
}

pub struct Used {
    pub cpu: CpuTime,
    pub others: Others,
    pub layers: Option<Layers>,
    pub device: Option<DeviceBytes>,
    pub noise: Noise,
}

fn difference(end: Option<u64>, start: Option<u64>) -> Option<u64> {
    Some(end?.saturating_sub(start?))
}

/// The first line of /proc/stat, aggregated.
#[derive(Clone, Copy)]
pub(crate) struct HostTicks {
    /// Ticks in which CPUs worked: user, nice, system, irq and softirq.
    pub(crate) busy: u64,
    steal: u64,
    total: u64,
}

impl HostTicks {
    fn since(self, start: HostTicks) -> HostTicks {
        HostTicks {
            busy: self.busy.saturating_sub(start.busy),
            steal: self.steal.saturating_sub(start.steal),
            total: self.total.saturating_sub(start.total),
        }
    }

    fn steal(self) -> Option<f64> {
        (self.total > 0).then(|| self.steal as f64 / self.total as f64)
    }

    fn outside_cores(self, own_ns: u64, elapsed: Duration) -> f64 {
        let outside = (self.busy * TICK_NS) as f64 - own_ns as f64;
        // Exact to one tick: the host's figure is counted in ticks, the process's is not.
        (outside / (elapsed.as_nanos() as f64).max(1.0)).max(0.0)
    }
}

/// Reads the ticks of all CPUs since the machine started.
pub(crate) fn host_ticks() -> Option<HostTicks> {
    parse_host_ticks(&fs::read_to_string("/proc/stat").ok()?)
}

/// Parses `cpu user nice system idle iowait irq softirq steal ...` (proc_stat(5)); guest time is
/// already part of user.
fn parse_host_ticks(stat: &str) -> Option<HostTicks> {
    let ticks: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .take(8)
        .map(|f| f.parse().ok())
        .collect::<Option<_>>()?;
    let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks.try_into().ok()?;
    let busy = user + nice + system + irq + softirq;
    Some(HostTicks {
        busy,
        steal,
        total: busy + idle + iowait + steal,
    })
}

/// Reads user and system time of getrusage(2), in nanoseconds.
fn usage(who: UsageWho) -> (u64, u64) {
    let ns = |time: TimeVal| u64::try_from(time.num_microseconds()).unwrap_or(0) * 1000;
    getrusage(who).map_or((0, 0), |u| (ns(u.user_time()), ns(u.system_time())))
}

/// Reads the CPU time of a process, including its ended threads, from the process's CPU clock
/// (clock_getcpuclockid(3)); 0 if the process does not exist.
fn clock_of(pid: u32) -> u64 {
    let clock = nix::time::ClockId::pid_cpu_clock_id(Pid::from_raw(pid.cast_signed()));
    let now = clock.and_then(nix::time::ClockId::now);
    now.map_or(0, |now| Duration::from(now).as_nanos() as u64)
}

/// Reads user and system ticks of the reaped children of a process: fields 16 and 17 of
/// proc_pid_stat(5). The command name may contain blanks and parentheses; it ends at the last
/// closing one.
fn ticks_of_children(pid: u32) -> Option<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn own_io() -> Option<DeviceBytes> {
    let io = fs::read_to_string("/proc/self/io").ok()?;
    let field = |name: &str| -> Option<u64> {
        io.lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")?.parse().ok())
    };
    Some(DeviceBytes {
        read: field("read_bytes")?,
        written: field("write_bytes")?,
    })
}

fn psi_some_us(path: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines()
        .next()?
        .strip_prefix("some ")?
        .rsplit_once("total=")?
        .1
        .trim()
        .parse()
        .ok()
}

/// Reads the time that the calling thread has waited on a run queue so far, in nanoseconds
/// (second field of schedstat).
pub fn thread_run_queue_ns() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_ticks_are_read_by_their_places() {
        let stat = "cpu  10 20 30 400 50 6 7 8 9 1\ncpu0 1 2\n";
        let ticks = parse_host_ticks(stat).unwrap();
        assert_eq!((ticks.busy, ticks.steal, ticks.total), (73, 8, 531));
        assert!(parse_host_ticks("cpu  1 2 3\n").is_none());
        assert!(parse_host_ticks("").is_none());
    }

    #[test]
    fn taint_needs_more_than_the_limits() {
        let noise = |steal, outside_cores| Noise {
            steal,
            outside_cores,
            ..Noise::default()
        };
        assert!(!noise(None, None).tainted());
        assert!(!noise(Some(0.05), Some(0.25)).tainted());
        assert!(noise(Some(0.06), None).tainted());
        assert!(noise(None, Some(0.3)).tainted());
    }

    #[test]
    fn a_core_that_others_use_is_outside() {
        let host = HostTicks {
            busy: 300,
            steal: 10,
            total: 400,
        };
        let cores = host.outside_cores(1_000_000_000, Duration::from_secs(2));
        assert!((cores - 1.0).abs() < 1e-9);
        assert!((host.steal().unwrap() - 0.025).abs() < 1e-9);
    }

    #[test]
    fn this_kernel_tells_what_the_meter_reads() {
        // The kernel splits a process's time by ticks, and the first ticks may have been system
        // time.
        let mut sum = 0u64;
        while usage(UsageWho::RUSAGE_SELF).0 == 0 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        assert!(host_ticks().is_some());
        assert!(clock_of(std::process::id()) > 0 && clock_of(0x7f_ffff) == 0);
        assert!(process_cpu().total_ns > 0);
        assert!(ticks_of_children(std::process::id()).is_some());
    }
}
