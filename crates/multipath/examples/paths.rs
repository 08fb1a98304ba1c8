//! Load on a LUN over the given paths, for comparisons run by `benches/peers/paths.sh`. Prints one
//! JSON object with requests per second, latencies, CPU time, and the I/O carried by each path.
//!
//! ```text
//!   cargo run --release -p evfs-multipath --example paths -- --seconds 3 nbd://10.77.1.1 nbd://10.77.2.1
//! ```

use block::{BlockDevice, Buf, Bufs, Completion, DeviceInfo, Error, Op, Queue, Request, Wait};
use block_testing::Random;
use clap::Parser;
use lunpath::Lunpath;
use multipath::policy::Policy;
use multipath::{Attributes, Config, Lun, PathSpec, PathStatus, Proof};
use path_iscsi::IscsiPath;
use path_nbd::{NbdPath, NbdUri};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Timeout for opening and connecting.
const WITHIN: Duration = Duration::from_secs(10);
/// Clock ticks per second in `/proc` (USER_HZ).
const TICKS: f64 = 100.0;

#[derive(Parser)]
struct Arguments {
    /// Address of each path: nbd://, nbd+unix:// or iscsi://; the legacy names of the paths are
    /// c0t0d0, c1t0d0 and so on
    #[arg(required = true)]
    uris: Vec<String>,
    /// Load-balancing policy, which selects the path of each request
    #[arg(long)]
    policy: Option<Policy>,
    /// Use this legacy name instead of the persistent one
    #[arg(long)]
    legacy: Option<String>,
    /// Restrict a legacy name to its own path
    #[arg(long)]
    no_leg_mpath: bool,
    /// Use the first path directly, without a LUN
    #[arg(long)]
    bare: bool,
    /// Percentage of requests that write
    #[arg(long, default_value_t = 0)]
    write_percent: u64,
    /// Request size in KiB; several sizes are selected at random with equal frequency
    #[arg(long, value_delimiter = ',', default_value = "4")]
    mix: Vec<usize>,
    /// Access blocks sequentially instead of at random
    #[arg(long)]
    sequential: bool,
    /// Duration of the measurement in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Warm-up time before the measurement in seconds
    #[arg(long, default_value_t = 0.5)]
    warm: f64,
    /// Number of requests in flight per thread
    #[arg(long, default_value_t = 32)]
    qd: usize,
    /// Number of threads, each with its own queue
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Pin thread N to CPU N
    #[arg(long)]
    pin: bool,
    /// Value of the attribute `max_q_depth`
    #[arg(long)]
    max_q_depth: Option<u32>,
    /// Process IDs of servers whose CPU time is counted
    #[arg(long, value_delimiter = ',')]
    servers: Vec<u32>,
    /// Count bytes on network interfaces whose name has this prefix
    #[arg(long)]
    interfaces: Option<String>,
    /// Text to print as `label`
    #[arg(long, default_value = "")]
    label: String,
    /// Number to print as `round`
    #[arg(long, default_value_t = 0)]
    round: u32,
}

/// A path as a device.
struct Bare {
    path: Arc<dyn Lunpath>,
    info: DeviceInfo,
}

impl BlockDevice for Bare {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn queue(&self) -> block::Result<Box<dyn Queue>> {
        Ok(self.path.connect(WITHIN)?.open()?)
    }
}

/// Counters at one point in time.
struct Snapshot {
    at: Instant,
    own: f64,
    servers: f64,
    busy: f64,
    paths: Vec<PathStatus>,
    links: Vec<(String, u64, u64)>,
}

#[derive(Default)]
struct Tally {
    count: u64,
    bytes: u64,
    /// Latencies in microseconds.
    latencies: Vec<u32>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let paths = arguments.uris.iter().map(|uri| path(uri));
    let paths = paths.collect::<Result<Vec<_>, Error>>()?;
    let lun = if arguments.bare {
        None
    } else {
        Some(Arc::new(Lun::open(config(&arguments, &paths)?)?))
    };
    let device: Arc<dyn BlockDevice> = match (&lun, &arguments.legacy) {
        (None, _) => Arc::new(Bare {
            info: paths[0].connect(WITHIN)?.info().clone(),
            path: Arc::clone(&paths[0]),
        }),
        (Some(lun), Some(name)) => Arc::new(lun.legacy(name)?),
        (Some(lun), None) => Arc::clone(lun) as _,
    };
    println!("{}", run(&arguments, lun.as_deref(), &device)?);
    Ok(())
}

fn path(uri: &str) -> block::Result<Arc<dyn Lunpath>> {
    Ok(if uri.starts_with("iscsi://") {
        Arc::new(IscsiPath::parse(uri, path_iscsi::Options::default())?)
    } else {
        Arc::new(NbdPath::new(
            NbdUri::parse(uri)?,
            path_nbd::Options::default(),
        ))
    })
}

fn config(arguments: &Arguments, paths: &[Arc<dyn Lunpath>]) -> Result<Config, Failure> {
    let mut attributes = Attributes {
        leg_mpath_enable: !arguments.no_leg_mpath,
        ..Attributes::default()
    };
    if let Some(policy) = arguments.policy {
        attributes.load_bal_policy = policy;
    }
    if let Some(depth) = arguments.max_q_depth {
        attributes.set("max_q_depth", &depth.to_string())?;
    }
    let paths = paths.iter().enumerate().map(|(n, path)| PathSpec {
        path: Arc::clone(path),
        legacy: format!("c{n}t0d0"),
        enabled: true,
    });
    Ok(Config {
        name: "disk1".into(),
        attributes,
        paths: paths.collect(),
        identity: None,
        proof: Proof::Compare,
        connect_within: WITHIN,
        topology: Default::default(),
    })
}

fn run(
    arguments: &Arguments,
    lun: Option<&Lun>,
    device: &Arc<dyn BlockDevice>,
) -> Result<Value, Failure> {
    let (counts, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (before, after, tallies) = std::thread::scope(|scope| {
        let (counts, stop) = (&counts, &stop);
        let threads: Vec<_> = (0..arguments.threads)
            .map(|n| scope.spawn(move || load(arguments, n, &**device, counts, stop)))
            .collect();
        std::thread::sleep(Duration::from_secs_f64(arguments.warm));
        let before = snapshot(arguments, lun);
        counts.store(true, Relaxed);
        std::thread::sleep(Duration::from_secs_f64(arguments.seconds));
        counts.store(false, Relaxed);
        let after = snapshot(arguments, lun);
        stop.store(true, Relaxed);
        let tallies: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        (before, after, tallies)
    });
    let mut all = Tally::default();
    for tally in tallies {
        let tally = tally.map_err(|_| "a thread panicked")??;
        all.count += tally.count;
        all.bytes += tally.bytes;
        all.latencies.extend(tally.latencies);
    }
    Ok(report(arguments, &before, &after, all))
}

fn load(
    arguments: &Arguments,
    number: usize,
    device: &dyn BlockDevice,
    counts: &AtomicBool,
    stop: &AtomicBool,
) -> Result<Tally, Failure> {
    if arguments.pin {
        let mut set = CpuSet::new();
        set.set(number);
        sched_setaffinity(None, &set)?;
    }
    let mut queue = device.queue()?;
    let size = queue.info().size;
    let mut random = Random::new(number as u64 + 1);
    let mut spare: HashMap<usize, Vec<Bufs>> = HashMap::new();
    let mut sent = vec![Instant::now(); arguments.qd];
    let mut free: Vec<u64> = (0..arguments.qd as u64).collect();
    let mut next = 0;
    let mut tally = Tally::default();
    let mut done: Vec<Completion> = Vec::new();
    while !stop.load(Relaxed) {
        let now = Instant::now();
        while let Some(tag) = free.pop() {
            let kib = arguments.mix[random.below(arguments.mix.len() as u64) as usize];
            let bytes = kib * 1024;
            let blocks = size / bytes as u64;
            next += 1;
            let offset = if arguments.sequential {
                next % blocks
            } else {
                random.below(blocks)
            } * bytes as u64;
            let ours = spare.entry(bytes).or_default().pop();
            let bufs = ours.unwrap_or_else(|| Buf::zeroed(bytes).into());
            let fua = false;
            let op = if random.below(100) < arguments.write_percent {
                Op::Write { offset, bufs, fua }
            } else {
                Op::Read { offset, bufs }
            };
            sent[tag as usize] = now;
            let taken = queue.submit(Request { tag, op });
            taken.map_err(|_| "the queue does not take that many requests")?;
        }
        queue.reap(Wait::AtMost(Duration::from_millis(100)), &mut done)?;
        let (now, counted) = (Instant::now(), counts.load(Relaxed));
        for Completion { tag, op, result } in done.drain(..) {
            result?;
            free.push(tag);
            if let Op::Read { bufs, .. } | Op::Write { bufs, .. } = op {
                let bytes = bufs.total_len();
                if counted {
                    let latency = now - sent[tag as usize];
                    tally.count += 1;
                    tally.bytes += bytes as u64;
                    tally.latencies.push(latency.as_micros() as u32);
                }
                spare.entry(bytes).or_default().push(bufs);
            }
        }
    }
    Ok(tally)
}

fn snapshot(arguments: &Arguments, lun: Option<&Lun>) -> Snapshot {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let servers = arguments.servers.iter().map(|pid| {
        // utime and stime are fields 14 and 15; field 2 is the name, which may contain spaces.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let fields = rest.split_whitespace().skip(11).take(2);
        fields.filter_map(|f| f.parse::<f64>().ok()).sum::<f64>() / TICKS
    });
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.split_whitespace().skip(1).take(8).enumerate();
    let busy = fields.filter(|(n, _)| *n != 3 && *n != 4);
    let busy = busy.filter_map(|(_, f)| f.parse::<f64>().ok()).sum::<f64>() / TICKS;
    Snapshot {
        at: Instant::now(),
        own: own.tv_sec as f64 + own.tv_nsec as f64 / 1e9,
        servers: servers.sum(),
        busy,
        paths: lun.map_or_else(Vec::new, |l| l.status().paths),
        links: links(arguments.interfaces.as_deref()),
    }
}

/// Returns bytes received and sent by the network interfaces visible to this process.
fn links(prefix: Option<&str>) -> Vec<(String, u64, u64)> {
    let Some(prefix) = prefix else {
        return Vec::new();
    };
    let table = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let counted = table.lines().filter_map(|line| {
        let (name, fields) = line.trim().split_once(':')?;
        let fields: Vec<u64> = fields
            .split_whitespace()
            .filter_map(|f| f.parse().ok())
            .collect();
        let known = name.starts_with(prefix) && fields.len() > 8;
        known.then(|| (name.to_owned(), fields[0], fields[8]))
    });
    let mut counted: Vec<_> = counted.collect();
    counted.sort();
    counted
}

fn report(arguments: &Arguments, before: &Snapshot, after: &Snapshot, mut all: Tally) -> Value {
    all.latencies.sort_unstable();
    let quantile = |q: f64| {
        let at = (all.latencies.len() as f64 * q) as usize;
        all.latencies.get(at).or(all.latencies.last()).copied()
    };
    let time = (after.at - before.at).as_secs_f64();
    let count = all.count.max(1) as f64;
    let (own, servers) = (after.own - before.own, after.servers - before.servers);
    let busy = (after.busy - before.busy) / time;
    let paths = before.paths.iter().zip(&after.paths).map(|(b, a)| {
        json!({
            "ios": a.reads + a.writes - b.reads - b.writes,
            "bytes": a.bytes_read + a.bytes_written - b.bytes_read - b.bytes_written,
        })
    });
    let links = before.links.iter().zip(&after.links);
    let links = links.map(|(b, a)| json!({"name": a.0, "rx": a.1 - b.1, "tx": a.2 - b.2}));
    json!({
        "label": arguments.label,
        "round": arguments.round,
        "policy": arguments.policy.unwrap_or(Attributes::default().load_bal_policy).to_string(),
        "paths": arguments.uris.len(),
        "iops": (all.count as f64 / time).round(),
        "mb_s": (all.bytes as f64 / time / 1e4).round() / 100.0,
        "cpu_us_per_io": own * 1e6 / count,
        "iops_per_core": (count / own).round(),
        "server_cpu_us_per_io": servers * 1e6 / count,
        "p50_us": quantile(0.5),
        "p99_us": quantile(0.99),
        "max_us": all.latencies.last(),
        "own_cpus": own / time,
        "server_cpus": servers / time,
        "busy_cpus": busy,
        "per_path": paths.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
    })
}
