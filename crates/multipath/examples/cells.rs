//! Measures the effect of path selection by NUMA node: hops and CPU time per I/O, for each policy.
//!
//! Four paths in memory, two on each of two nodes; two threads, one pinned to each node. The nodes
//! are an artificial topology over the CPUs of this machine, with the distances 10 and 20 that
//! firmware reports for one hop. Hop counts are therefore exact, but no memory is remote: the CPU
//! column shows the cost of the selection, not of remote accesses.
//!
//! `cargo run --release -p evfs-multipath --example cells`

use block::{BlockDevice, Buf, Completion, DeviceInfo, Op, Queue, Request, Result, Wait};
use block_testing::Mem;
use lunpath::{Access, AccessHint, Connection, Identity, Lunpath, PathQueue, Transport};
use multipath::{Attributes, Config, Lun, PathSpec, Proof};
use numa::{LOCAL, Topology};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{create_dir_all, write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const IOS: u64 = 100_000;
const DEPTH: u64 = 16;
const BYTES: usize = 4096;
const ROUNDS: usize = 7;
const WARM: Duration = Duration::from_millis(700);
const POLICIES: [&str; 4] = [
    "round_robin",
    "cl_round_robin",
    "closest_path",
    "least_cmd_load",
];

/// A path to memory of one node. It counts the distance of each request.
struct CellPath {
    name: String,
    cell: u32,
    info: DeviceInfo,
    mem: Mem,
    topology: Arc<Topology>,
    distance: Arc<AtomicU64>,
}

/// A path as held by the LUN.
struct Shared(Arc<CellPath>);

struct Near(Arc<CellPath>, Identity);

struct CountingQueue {
    path: Arc<CellPath>,
    below: Box<dyn Queue>,
}

impl Lunpath for Shared {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn transport(&self) -> Transport {
        Transport::File
    }

    fn target_port(&self) -> String {
        format!("cell{}", self.0.cell)
    }

    fn identify(&self, _: Duration) -> Result<Identity> {
        Ok(self.identity())
    }

    fn connect(&self, _: Duration) -> Result<Box<dyn Connection>> {
        Ok(Box::new(Near(Arc::clone(&self.0), self.identity())))
    }

    fn fence(&self, _: u64, _: Duration) -> Result<()> {
        Ok(())
    }
}

impl Shared {
    fn identity(&self) -> Identity {
        Identity {
            wwid: Some("naa.60014059a3c1e0d7".into()),
            serial: None,
            vendor: "EVFS".into(),
            product: "memory".into(),
            size: self.0.info.size,
            logical_block_size: self.0.info.logical_block_size,
            read_only: false,
            access: Access::Optimized,
        }
    }
}

impl Connection for Near {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn identity(&self) -> &Identity {
        &self.1
    }

    fn fence_key(&self) -> Option<u64> {
        None
    }

    fn open(self: Box<Self>) -> Result<Box<dyn PathQueue>> {
        let below = self.0.mem.queue()?;
        let path = self.0;
        Ok(Box::new(CountingQueue { path, below }))
    }
}

impl Queue for CountingQueue {
    fn info(&self) -> &DeviceInfo {
        &self.path.info
    }

    fn capacity(&self) -> usize {
        self.below.capacity()
    }

    fn in_flight(&self) -> usize {
        self.below.in_flight()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let topology = &self.path.topology;
        let here = topology.current_node().expect("every processor has a cell");
        let far = topology.distance(here, self.path.cell).expect("both exist");
        self.path
            .distance
            .fetch_add(u64::from(far - LOCAL), Relaxed);
        self.below.submit(request)
    }

    fn kick(&mut self) -> Result<()> {
        self.below.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        self.below.reap(wait, done)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.wait_fd()
    }
}

/// Memory answers every request: none is withdrawn, and the path is never lost.
impl PathQueue for CountingQueue {
    fn withdraw(&mut self, _tag: u64) -> Option<Request> {
        None
    }

    fn drain_late(&mut self, _tags: &mut Vec<u64>) {}

    fn access_sign(&mut self) -> Option<AccessHint> {
        None
    }

    fn lost_reason(&self) -> Option<&str> {
        None
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let root = tempfile::tempdir()?;
    lay_out(root.path())?;
    let topology = Arc::new(Topology::read(root.path())?);
    let mut rows: Vec<(Vec<f64>, f64)> = POLICIES.iter().map(|_| (Vec::new(), 0.0)).collect();
    for _ in 0..ROUNDS {
        for (policy, row) in POLICIES.iter().zip(&mut rows) {
            let (cpu, hops) = run(policy, &topology)?;
            row.0.push(cpu);
            row.1 = hops;
        }
    }
    println!("| policy | hops/I/O | CPU ns/I/O | to round_robin |\n|---|---|---|---|");
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    for (policy, (cpu, hops)) in POLICIES.iter().zip(&rows) {
        let ratios: Vec<f64> = cpu.iter().zip(&rows[0].0).map(|(a, b)| a / b).collect();
        println!(
            "| {policy} | {hops:.3} | {:.0} | {:.2} |",
            median(cpu),
            median(&ratios)
        );
    }
    Ok(())
}

/// Creates a sysfs tree with two nodes, each with one of the first two CPUs and half of the others.
fn lay_out(root: &Path) -> std::io::Result<()> {
    let nodes = root.join("devices/system/node");
    let cpus = std::thread::available_parallelism()?.get().max(2);
    create_dir_all(&nodes)?;
    write(nodes.join("online"), "0-1\n")?;
    for cell in 0..2 {
        let mine: Vec<_> = (cell..cpus).step_by(2).map(|c| c.to_string()).collect();
        let folder = nodes.join(format!("node{cell}"));
        create_dir_all(&folder)?;
        write(folder.join("cpulist"), mine.join(","))?;
        write(folder.join("distance"), ["10 20\n", "20 10\n"][cell])?;
    }
    Ok(())
}

/// Returns CPU nanoseconds and hops per I/O.
fn run(
    policy: &str,
    topology: &Arc<Topology>,
) -> std::result::Result<(f64, f64), Box<dyn std::error::Error>> {
    let distance = Arc::new(AtomicU64::new(0));
    let path = |n: u32| {
        let mem = Mem::new(64 << 20, 4096);
        let cell = n % 2;
        let info = DeviceInfo {
            numa_node: Some(cell),
            ..mem.info().clone()
        };
        let topology = Arc::clone(topology);
        let distance = Arc::clone(&distance);
        let name = format!("memory{n}");
        PathSpec {
            path: Arc::new(Shared(Arc::new(CellPath {
                name,
                cell,
                info,
                mem,
                topology,
                distance,
            }))) as Arc<dyn Lunpath>,
            legacy: format!("c{n}t0d0"),
            enabled: true,
        }
    };
    let mut attributes = Attributes::default();
    attributes.set("load_bal_policy", policy)?;
    let lun = Lun::open(Config {
        name: "disk1".into(),
        attributes,
        paths: (0..4).map(path).collect(),
        identity: None,
        proof: Proof::Compare,
        connect_within: Duration::from_secs(5),
        topology: (**topology).clone(),
    })?;
    let (lun, distance, barrier) = (&lun, &*distance, &Barrier::new(2));
    let cpu: f64 = std::thread::scope(|scope| {
        let worker = |cpu| scope.spawn(move || load(lun, cpu, barrier, distance));
        let workers = [worker(0), worker(1)];
        workers
            .map(|w| w.join().expect("no panic").expect("memory answers"))
            .iter()
            .sum()
    });
    let hops = distance.load(Relaxed) as f64 / f64::from(20 - LOCAL);
    Ok((cpu / (2 * IOS) as f64, hops / (2 * IOS) as f64))
}

/// Reads from one CPU. Returns the CPU nanoseconds of the measured reads.
fn load(lun: &Lun, cpu: usize, barrier: &Barrier, distance: &AtomicU64) -> Result<f64> {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).expect("a processor of this machine");
    let mut queue = lun.queue()?;
    // Paths are connected in the background; reads before all of them are up are not measured.
    let end = Instant::now() + WARM;
    while Instant::now() < end {
        read(&mut *queue, DEPTH)?;
    }
    barrier.wait();
    distance.store(0, Relaxed);
    barrier.wait();
    let began = cpu_ns();
    read(&mut *queue, IOS)?;
    Ok(cpu_ns() - began)
}

/// Performs `count` reads, [`DEPTH`] at a time.
fn read(queue: &mut dyn Queue, count: u64) -> Result<()> {
    let mut done: Vec<Completion> = Vec::new();
    let mut free: Vec<Buf> = (0..DEPTH).map(|_| Buf::zeroed(BYTES)).collect();
    let (mut sent, mut back) = (0, 0);
    while back < count {
        while sent < count
            && let Some(buf) = free.pop()
        {
            let op = Op::Read {
                offset: (sent * 7919 % 16_000) * BYTES as u64,
                bufs: buf.into(),
            };
            queue
                .submit(Request { tag: sent, op })
                .unwrap_or_else(|_| unreachable!("the queue has room"));
            sent += 1;
        }
        queue.reap(Wait::Block, &mut done)?;
        for completion in done.drain(..) {
            completion.result?;
            let Op::Read { bufs, .. } = completion.op else {
                unreachable!("reads come back")
            };
            free.extend(bufs.into_first());
            back += 1;
        }
    }
    Ok(())
}

fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
