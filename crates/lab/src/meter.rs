//! What a run used, and who else was on the machine meanwhile: read from the kernel's own counters
//! at the two edges of a run, never sampled in between.
//!
//! CPU is that of the whole process, from `CLOCK_PROCESS_CPUTIME_ID`, exact to the nanosecond. It
//! includes io_uring's worker threads, which the kernel accounts to the process that made the ring;
//! it does not include kernel threads that serve everybody (kworker, jbd2, ksoftirqd). Those show
//! in [`Noise::outside_cores`], for both arms alike.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Pid;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{Duration, Instant};

/// Nanoseconds of a kernel tick as /proc counts them: USER_HZ is 100 on every architecture that
/// Rust's standard library supports on Linux.
const TICK_NS: u64 = 10_000_000;

/// Steal above this part of the machine's time taints a run.
const STEAL_LIMIT: f64 = 0.05;
/// CPU used by others, in cores, above which a run is tainted.
const OUTSIDE_LIMIT: f64 = 0.25;

/// CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuTime {
    /// User and system together, exact.
    pub total_ns: u64,
    /// User, to the microsecond; the split is sampled by the kernel, only the sum is exact.
    pub user_ns: u64,
    /// System.
    pub system_ns: u64,
}

/// CPU time that this process has used so far, all its threads together.
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

/// Bytes that reached the device, the proof that a run was not served from a cache: what this process
/// made the block layer fetch and write, by `/proc/self/io`. With a page cache below, writes count when
/// a page is made dirty.
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

/// What else went on during a run. A field is absent where the kernel does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Noise {
    /// Time the hypervisor took, as a part of the whole machine's time.
    pub steal: Option<f64>,
    /// Cores used by anybody but this process, kernel threads included.
    pub outside_cores: Option<f64>,
    /// Microseconds in which some task waited for a CPU (PSI `cpu some`).
    pub psi_cpu_us: Option<u64>,
    /// Microseconds in which some task waited for I/O (PSI `io some`).
    pub psi_io_us: Option<u64>,
    /// Nanoseconds that the workload's threads waited on a run queue, together.
    pub run_queue_ns: Option<u64>,
}

impl Noise {
    /// Whether foreign load stood beside this run: more than 5 % of the machine stolen, or more
    /// than a quarter of a core used by others.
    pub fn tainted(&self) -> bool {
        self.steal.is_some_and(|s| s > STEAL_LIMIT)
            || self.outside_cores.is_some_and(|c| c > OUTSIDE_LIMIT)
    }

    /// Joins what was seen during another run: the worse of shares, the sum of times.
    pub(crate) fn join(&mut self, other: Noise) {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        let worse = |a: Option<f64>, b: Option<f64>| Some(a?.max(b?));
        self.steal = worse(self.steal, other.steal);
        self.outside_cores = worse(self.outside_cores, other.outside_cores);
        self.psi_cpu_us = sum(self.psi_cpu_us, other.psi_cpu_us);
        self.psi_io_us = sum(self.psi_io_us, other.psi_io_us);
        self.run_queue_ns = sum(self.run_queue_ns, other.run_queue_ns);
    }
}

/// The counters at one edge of a run.
pub(crate) struct Edge {
    at: Instant,
    cpu: CpuTime,
    device: Option<DeviceBytes>,
    host: Option<HostTicks>,
    psi_cpu_us: Option<u64>,
    psi_io_us: Option<u64>,
    others: Others,
    layers: Option<Layers>,
}

/// CPU of other processes that work for this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Others {
    /// Children that were waited for, with theirs.
    pub children_ns: u64,
    /// Processes that were named, for example the one behind a mounted folder.
    pub daemons_ns: u64,
    /// Competitors of the run, with their children, those in ticks of 10 ms.
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

    /// What worked for this process.
    pub fn total_ns(self) -> u64 {
        self.children_ns + self.daemons_ns
    }
}

/// CPU that layers of the stack in this process have taken, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Layers {
    /// Requests of clients as bytes.
    pub protocol: u64,
    /// Files and directories.
    pub fs: u64,
    /// Pages in memory.
    pub cache: u64,
    /// The cipher.
    pub crypt: u64,
    /// What reaches a disk.
    pub path: u64,
}

impl Layers {
    /// What has been counted so far; `None` where nobody asked for it.
    fn now() -> Option<Layers> {
        let [protocol, fs, cache, crypt, path] = block::layer::spent()?;
        Some(Layers {
            protocol,
            fs,
            cache,
            crypt,
            path,
        })
    }

    /// In the order of [`block::layer::Layer::ALL`].
    pub fn all(self) -> [u64; 5] {
        [self.protocol, self.fs, self.cache, self.crypt, self.path]
    }

    /// Layer by layer.
    pub(crate) fn with(self, other: Layers, of: impl Fn(u64, u64) -> u64) -> Layers {
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
    /// The counters now, with those of other processes.
    pub(crate) fn now(daemons: &[u32], competitors: &[u32]) -> Edge {
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

    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// What lies between `start` and this edge. `run_queue_ns` comes from the threads.
    pub(crate) fn since(&self, start: &Edge, run_queue_ns: Option<u64>) -> Used {
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

pub(crate) struct Used {
    pub(crate) cpu: CpuTime,
    pub(crate) others: Others,
    pub(crate) layers: Option<Layers>,
    pub(crate) device: Option<DeviceBytes>,
    pub(crate) noise: Noise,
}

fn difference(end: Option<u64>, start: Option<u64>) -> Option<u64> {
    Some(end?.saturating_sub(start?))
}

/// The first line of /proc/stat, summed up.
#[derive(Clone, Copy)]
struct HostTicks {
    busy: u64,
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
        // A tick either way: the host's figure is counted in ticks, ours is not.
        (outside / (elapsed.as_nanos() as f64).max(1.0)).max(0.0)
    }
}

fn host_ticks() -> Option<HostTicks> {
    parse_host_ticks(&fs::read_to_string("/proc/stat").ok()?)
}

/// `cpu user nice system idle iowait irq softirq steal ...` (proc_stat(5)); guest time is already
/// part of user.
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

/// User and system time of getrusage(2), in nanoseconds.
fn usage(who: UsageWho) -> (u64, u64) {
    let ns = |time: TimeVal| u64::try_from(time.num_microseconds()).unwrap_or(0) * 1000;
    getrusage(who).map_or((0, 0), |u| (ns(u.user_time()), ns(u.system_time())))
}

/// CPU that a process has used, its threads that have ended with it, by its own clock (clock_getcpuclockid(3)); 0 where
/// it is gone.
fn clock_of(pid: u32) -> u64 {
    let clock = nix::time::ClockId::pid_cpu_clock_id(Pid::from_raw(pid.cast_signed()));
    let now = clock.and_then(nix::time::ClockId::now);
    now.map_or(0, |now| Duration::from(now).as_nanos() as u64)
}

/// User and system ticks of the children of a process that it has waited for: fields 16 and 17 of proc_pid_stat(5). The
/// command, which may hold blanks and parentheses, ends at the last closing one.
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

/// Nanoseconds that the calling thread has waited on a run queue so far (second field of
/// schedstat).
pub(crate) fn thread_run_queue_ns() -> Option<u64> {
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
        // The kernel counts a process's time by ticks, and the first ones may have been those of system calls.
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
