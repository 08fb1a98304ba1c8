//! Sides with paths: one file or disk that is reached over several connections, each with its own
//! limit.
//!
//! ```text
//!   LUN (crate multipath) ──┬─ NBD ── proxy: rate, delay ──┬── NBD server ── file or disk
//!                           └─ NBD ── proxy: rate, delay ──┘       all in this process
//! ```
//!
//! The limit of a path corresponds to the port of a host: two paths can double the rate only if the
//! port is the bottleneck, and not the disk. Without a limit there is no proxy, for measurements of
//! CPU.
//!
//! **Invariant:** nothing is left behind, even by a killed process, and no other process can
//! connect: sockets are unlinked as soon as they listen, and reached through descriptors of this
//! process.

use crate::simulated_numa::{self, NumaPath};
use bench_core::{Carried, Paths};
use block::BlockDevice;
use export_nbd::{Config as ServerConfig, Export, Listen, Server};
use lunpath::Lunpath;
use multipath::policy::Policy;
use multipath::{Attributes, Config, Lun, PATHS_MAX, PathSpec, Proof};
use path_nbd::{NbdDevice, NbdPath, NbdUri};
use pathsim::{Address, Command, Pathsim};
use rustix::fs::{Mode, OFlags};
use stack::device::OpenLun;
use stack::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time to establish a connection.
const WITHIN: Duration = Duration::from_secs(30);
/// Default rate of a path in bytes per second: low enough that two busy CPUs keep up with eight
/// paths.
const RATE: u64 = 10 << 20;
/// Requests in flight on a path, enough that the limit stays busy while other work uses the
/// machine.
const DEPTH: u32 = 128;
/// Timeout of a path, in milliseconds: a limited path on a busy machine is slow, not lost.
const SILENCE_MS: u32 = 2_000;
/// Seconds that I/O waits without paths: short, because a measurement without paths should fail.
const TRANSIENT_SECS: u32 = 5;

/// Configuration of paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathConfig {
    /// Number of paths of a LUN; `None`: one path without a LUN over it.
    pub lun: Option<usize>,
    /// Policy of path selection.
    pub policy: Policy,
    /// Bytes per second of each path in each direction; the last value applies to all further
    /// paths, 0 is unlimited.
    pub rates: Vec<u64>,
    /// Added delay of each path, likewise.
    pub delays: Vec<Duration>,
    /// Number of simulated cells for CPUs and paths; 0 uses those of the machine.
    pub cells: u32,
}

impl PathConfig {
    /// Parses `path`, `paths-2`, `paths-2-round-robin`, with the names of the attribute
    /// `load_bal_policy`.
    pub fn parse(text: &str) -> Option<Result<PathConfig>> {
        let mut ways = PathConfig {
            lun: None,
            policy: Attributes::default().load_bal_policy,
            rates: vec![RATE],
            delays: vec![Duration::ZERO],
            cells: 0,
        };
        if text == "path" {
            return Some(Ok(ways));
        }
        let rest = text.strip_prefix("paths-")?;
        let (count, policy) = rest.split_once('-').unwrap_or((rest, ""));
        ways.lun = Some(count.parse().ok().filter(|n| *n > 0)?);
        if !policy.is_empty() {
            ways.policy = match named(policy) {
                Ok(policy) => policy,
                Err(error) => return Some(Err(error)),
            };
        }
        Some(ways.fits())
    }

    /// Checks the number of paths.
    fn fits(self) -> Result<PathConfig> {
        match self.lun {
            Some(count) if count > PATHS_MAX => Err(Error::Usage(format!(
                "too many paths: {count}; a LUN has at most {PATHS_MAX}"
            ))),
            _ => Ok(self),
        }
    }

    /// Sets a parameter of paths from a file or a command line.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let wrong = |what: &str| Error::Usage(format!("`{name} = {value}`: {what}"));
        let each = value.split([':', ',']).map(str::trim);
        match name {
            "policy" => self.policy = named(value)?,
            "path_rate" => {
                let rate = |text: &str| stack::parse_size(text);
                self.rates = each
                    .map(rate)
                    .collect::<std::result::Result<_, _>>()
                    .map_err(|e| wrong(&e))?;
            }
            "path_delay" => {
                let delay = |text: &str| {
                    let digits = text.strip_suffix("ms").unwrap_or(text);
                    let ms = digits.parse().ok().filter(|ms| *ms <= 10_000);
                    ms.map(Duration::from_millis)
                };
                let all: Option<Vec<Duration>> = each.map(delay).collect();
                self.delays =
                    all.ok_or_else(|| wrong("expected 0 to 10000 milliseconds, such as 5ms"))?;
            }
            _ => {
                let cells = value.parse().ok().filter(|n| *n <= 64);
                self.cells = cells.ok_or_else(|| wrong("expected 0 to 64 cells"))?;
            }
        }
        Ok(())
    }

    fn count(&self) -> usize {
        self.lun.unwrap_or(1)
    }

    /// Builds the proxy commands that limit a path; empty without a limit.
    fn limits(&self, path: usize) -> Vec<Command> {
        let rate = of(&self.rates, path).filter(|rate| *rate > 0);
        let delay = of(&self.delays, path).filter(|delay| !delay.is_zero());
        let commands = [rate.map(Command::Rate), delay.map(Command::Delay)];
        commands.into_iter().flatten().collect()
    }

    /// Describes the paths for the report.
    pub fn note(&self, topology: &numa::Topology) -> String {
        let limit = |path: usize| {
            let rate = match of(&self.rates, path) {
                None | Some(0) => "no limit".to_owned(),
                Some(rate) => format!("{:.1} MiB/s", rate as f64 / 1_048_576.0),
            };
            match of(&self.delays, path) {
                Some(delay) if !delay.is_zero() => format!("{rate} and {} ms", delay.as_millis()),
                _ => rate,
            }
        };
        let mut limits: Vec<String> = (0..self.count()).map(limit).collect();
        limits.dedup();
        let limits = limits.join(", ");
        let Some(count) = self.lun else {
            return format!(
                "one path without the multipath layer, NBD within this process, {limits}"
            );
        };
        let mut note = format!(
            "{count} paths, {}, NBD within this process, each {limits}; max_q_depth={DEPTH}, silence_ms={SILENCE_MS}",
            self.policy
        );
        let real = topology.nodes().count();
        match (self.cells, self.policy) {
            (0, Policy::ClRoundRobin | Policy::ClosestPath) if real < 2 => note.push_str(
                "; this machine has one cell, so all paths are local and locality makes no difference",
            ),
            (0, _) => {}
            (cells, _) => note.push_str(&format!(
                "; CPUs and paths are assigned to {cells} simulated cells with memory at the same distance from all, so the choice by cell is measured but not its savings"
            )),
        }
        note
    }
}

fn of<T: Copy>(values: &[T], path: usize) -> Option<T> {
    values.get(path).or(values.last()).copied()
}

/// Parses a policy by its name, with hyphens or underscores, or by its name in the report of 2007.
fn named(text: &str) -> Result<Policy> {
    let name = match text.replace('-', "_").as_str() {
        "least_command_load" => "least_cmd_load".to_owned(),
        "cell_local" | "cell_local_round_robin" => "cl_round_robin".to_owned(),
        name => name.to_owned(),
    };
    name.parse()
        .map_err(|e: multipath::policy::UnknownPolicy| Error::Usage(e.to_string()))
}

/// Running paths, with their server.
pub struct PathBench {
    device: Arc<dyn BlockDevice>,
    lun: Option<Arc<Lun>>,
    proxies: Vec<(Pathsim, Vec<Command>)>,
    _server: Server,
    _sockets: Vec<OwnedFd>,
}

impl PathBench {
    /// Serves `lower`, and connects to it.
    pub fn start(
        lower: &Arc<dyn BlockDevice>,
        ways: &PathConfig,
        topology: &numa::Topology,
    ) -> Result<PathBench> {
        let failed = |what: &str, e: std::io::Error| Error::Failed(format!("{what}: {e}"));
        let folder = tempfile::Builder::new()
            .prefix("evfs-bench-paths-")
            .tempdir()
            .map_err(|e| failed("cannot create a temporary directory", e))?;
        let at = |kind: &str, n: usize| folder.path().join(format!("{kind}{n}"));
        let count = ways.count();
        let served: Vec<PathBuf> = (0..count).map(|n| at("served", n)).collect();
        let server = serve(lower, &served)?;
        let mut sockets = Vec::new();
        let mut proxies = Vec::new();
        let mut reach = Vec::new();
        for (n, served) in served.iter().enumerate() {
            let server = held(served, &mut sockets)?;
            let limits = ways.limits(n);
            if limits.is_empty() {
                reach.push(server);
                continue;
            }
            let path = at("proxy", n);
            let proxy = Pathsim::start(&Address::Unix(path.clone()), Address::Unix(server))
                .map_err(|e| failed("cannot start the proxy of a path", e))?;
            reach.push(held(&path, &mut sockets)?);
            proxies.push((proxy, limits));
        }
        let paths = reach.iter().map(|socket| nbd(socket));
        let paths: Vec<NbdPath> = paths.collect::<Result<_>>()?;
        let (device, lun) = match (ways.lun, paths.as_slice()) {
            (None, [path]) => {
                let path = NbdDevice::open(path.clone(), WITHIN)?;
                (Arc::new(path) as Arc<dyn BlockDevice>, None)
            }
            _ => {
                let lun = Arc::new(open(paths, ways, topology)?);
                (Arc::clone(&lun) as Arc<dyn BlockDevice>, Some(lun))
            }
        };
        let bench = PathBench {
            device,
            lun,
            proxies,
            _server: server,
            _sockets: sockets,
        };
        bench.limit();
        Ok(bench)
    }

    /// Returns the device over the paths.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device)
    }
}

/// Collects the I/O that each path of a LUN has carried.
fn carried(lun: &Lun) -> Vec<Carried> {
    let one = |path: multipath::PathStatus| Carried {
        path: path.legacy,
        requests: path.reads + path.writes,
        bytes: path.bytes_read + path.bytes_written,
        lost: path.failures + path.retried + path.timeouts + path.offline_events,
    };
    lun.status().paths.into_iter().map(one).collect()
}

/// The paths of an existing LUN.
pub struct LunPaths(pub Arc<OpenLun>);

impl LunPaths {
    /// Describes the paths for the report.
    pub fn note(&self) -> String {
        let status = self.0.lun().status();
        let count = status.paths.len();
        format!("{}, paths: {count}, {}", status.name, status.policy)
    }
}

impl Paths for LunPaths {
    fn carried(&self) -> Vec<Carried> {
        carried(self.0.lun())
    }

    fn limit(&self) {}

    fn lift_limits(&self) {}
}

impl Paths for PathBench {
    fn carried(&self) -> Vec<Carried> {
        self.lun.as_deref().map_or_else(Vec::new, carried)
    }

    fn limit(&self) {
        self.lift_limits();
        for (proxy, limits) in &self.proxies {
            for limit in limits {
                // These commands cannot fail: only a replay does.
                let _ = proxy.command(*limit);
            }
        }
    }

    fn lift_limits(&self) {
        for (proxy, _) in &self.proxies {
            let _ = proxy.command(Command::Pass);
        }
    }
}

fn serve(lower: &Arc<dyn BlockDevice>, sockets: &[PathBuf]) -> Result<Server> {
    let mut key = [0; 8];
    getrandom::fill(&mut key).map_err(|e| Error::Failed(e.to_string()))?;
    let export = Export {
        name: "bench".into(),
        description: format!("wwid=evfs-bench-{:016x}", u64::from_le_bytes(key)),
        device: Arc::clone(lower),
        read_only: false,
    };
    let config = ServerConfig {
        listen: sockets.iter().cloned().map(Listen::Unix).collect(),
        limits: export_nbd::Limits {
            connections: 4096,
            connections_per_address: 4096,
            ..export_nbd::Limits::default()
        },
        ..ServerConfig::default()
    };
    Ok(Server::start(config, vec![export])?)
}

/// Removes the file of a socket, and returns a name that only this process has and that ends with
/// it.
fn held(socket: &Path, held: &mut Vec<OwnedFd>) -> Result<PathBuf> {
    let failed = |e| Error::io("cannot open the socket", socket, e);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = rustix::fs::open(socket, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    std::fs::remove_file(socket).map_err(failed)?;
    let name = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    held.push(file);
    Ok(name)
}

fn nbd(socket: &Path) -> Result<NbdPath> {
    let uri = format!("nbd+unix:///bench?socket={}", socket.display());
    let options = path_nbd::Options {
        queue_depth: DEPTH,
        ..path_nbd::Options::default()
    };
    Ok(NbdPath::new(NbdUri::parse(&uri)?, options))
}

fn open(paths: Vec<NbdPath>, ways: &PathConfig, topology: &numa::Topology) -> Result<Lun> {
    let topology = match ways.cells {
        0 => topology.clone(),
        cells => simulated_numa::dealt(cells)?,
    };
    let spec = |(n, path): (usize, NbdPath)| PathSpec {
        path: match ways.cells {
            0 => Arc::new(path) as Arc<dyn Lunpath>,
            cells => Arc::new(NumaPath::new(path, n as u32 % cells)),
        },
        legacy: format!("c{n}t0d0"),
        enabled: true,
    };
    let config = Config {
        name: "bench".into(),
        attributes: Attributes {
            load_bal_policy: ways.policy,
            max_q_depth: DEPTH,
            silence_ms: SILENCE_MS,
            transient_secs: TRANSIENT_SECS,
            ..Attributes::default()
        },
        paths: paths.into_iter().enumerate().map(spec).collect(),
        identity: None,
        proof: Proof::Compare,
        connect_within: WITHIN,
        topology,
    };
    Ok(Lun::open(config)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_core::Target;
    use bench_load::{Extent, Job};
    use block_testing::Mem;
    use numa::Topology;
    use std::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(30);

    fn job(requests: &str) -> Job {
        let mut job = Job::named("devmix", Extent::Quick).unwrap();
        for (name, value) in [
            ("patterns", "rand-read"),
            ("blocks", "4k"),
            ("depths", "32"),
            ("threads", "2"),
            ("requests", requests),
            ("verify", "true"),
        ] {
            job.set(name, value).unwrap();
        }
        job
    }

    /// Runs a job over two paths, and cuts `count` of them, from the last on, once both have
    /// carried I/O.
    fn cut_in_the_middle(count: usize) -> bench_core::Result<bench_core::Record> {
        let lower: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 512));
        let ways = PathConfig::parse("paths-2-round-robin").unwrap().unwrap();
        let paths = Arc::new(PathBench::start(&lower, &ways, &Topology::default()).unwrap());
        let mut target = Target::device("two", paths.device());
        target.paths = Some(Arc::clone(&paths) as Arc<dyn Paths>);
        let job = job("8192");
        job.prepare(&target).unwrap();
        let before = paths.carried();
        std::thread::scope(|scope| {
            let run = scope.spawn(|| job.run(&target, 1));
            let until = Instant::now() + DEADLINE;
            let begun = || {
                let both = paths.carried().into_iter().zip(&before);
                both.into_iter()
                    .all(|(now, then)| now.requests > then.requests + 300)
            };
            while !begun() {
                assert!(Instant::now() < until, "no path carries anything");
                std::thread::sleep(Duration::from_millis(1));
            }
            for (proxy, _) in paths.proxies.iter().rev().take(count) {
                proxy.run("refuse").unwrap();
                proxy.run("rst").unwrap();
            }
            run.join().unwrap()
        })
    }

    #[test]
    fn a_path_that_is_cut_shows_in_the_result_which_is_right_all_the_same() {
        let record = cut_in_the_middle(1).unwrap();
        let [one, two] = record.phases[0].paths.as_slice() else {
            panic!("{:?}", record.phases[0].paths);
        };
        assert_eq!(one.lost, 0);
        assert!(two.lost > 0 && two.requests < one.requests, "{two:?}");
        // A request in flight when the path was lost is counted on the path where it ended.
        let all = one.requests + two.requests;
        assert!((8100..=8300).contains(&all), "{all}");
    }

    #[test]
    fn without_any_path_a_run_fails_and_says_so() {
        let error = cut_in_the_middle(2).unwrap_err();
        assert!(error.in_words().contains("path"), "{}", error.in_words());
    }

    #[test]
    fn what_is_said_of_paths_is_understood_or_refused() {
        let parse = |text: &str| PathConfig::parse(text).unwrap();
        assert_eq!(parse("path").unwrap().lun, None);
        assert_eq!(parse("paths-4").unwrap().lun, Some(4));
        for (name, policy) in [
            ("paths-2-round-robin", Policy::RoundRobin),
            ("paths-2-least_cmd_load", Policy::LeastCmdLoad),
            ("paths-2-least-command-load", Policy::LeastCmdLoad),
            ("paths-2-cell-local", Policy::ClRoundRobin),
        ] {
            assert_eq!(parse(name).unwrap().policy, policy);
        }
        assert!(parse("paths-2-fastest").is_err() && parse("paths-100000").is_err());
        assert!(PathConfig::parse("paths-0").is_none() && PathConfig::parse("paths").is_none());
        let mut ways = parse("paths-2").unwrap();
        ways.set("path_rate", "5M:10M").unwrap();
        ways.set("path_delay", "0,5ms").unwrap();
        assert_eq!(ways.limits(0), [Command::Rate(5 << 20)]);
        assert_eq!(ways.limits(1).len(), 2);
        assert!(ways.set("path_delay", "fast").is_err() && ways.set("path_rate", "x").is_err());
    }

    #[test]
    fn sockets_have_no_names() {
        let lower: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 512));
        let ways = PathConfig::parse("paths-2").unwrap().unwrap();
        let paths = PathBench::start(&lower, &ways, &Topology::default()).unwrap();
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let named = |line: &&str| line.contains("evfs-bench-paths-");
        for path in sockets
            .lines()
            .filter(named)
            .filter_map(|l| l.split(' ').next_back())
        {
            assert!(!Path::new(path).exists(), "{path}");
        }
        // They remain reachable.
        assert!(paths.device().queue().is_ok());
    }
}
