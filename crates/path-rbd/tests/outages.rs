//! Outages of a cluster under load: killed programs, and a full pool.

use block::{BlockDevice, Blocking, Buf, Completion, Op, Queue, Request, Wait};
use block_testing::Random;
use lunpath::Lunpath;
use path_rbd::{Options, RbdPath};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use test_support::ceph::{Ceph, Daemon, settles};

/// Limit for changes of the cluster, on a busy machine.
const LONG: Duration = Duration::from_secs(240);
/// Number and size in bytes of the blocks that are written.
const BLOCKS: u64 = 2048;
const BLOCK: usize = 4096;
/// Writes in flight.
const DEPTH: usize = 16;

/// Returns the content of a block in a generation: no two are equal.
fn content(block: u64, generation: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value =
            (block << 40 | generation << 16 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Overwrites random blocks until `over`, and reads each pass back. Panics at the first error.
/// Counts writes in `written`.
fn load(device: &dyn BlockDevice, over: &AtomicBool, written: &AtomicU64) -> u64 {
    let mut random = Random::new(1);
    let mut generations = vec![0; BLOCKS as usize];
    let mut queue = device.queue().unwrap();
    let mut passes = 0;
    loop {
        let mut todo: Vec<u64> = (0..BLOCKS).collect();
        for at in (1..todo.len()).rev() {
            todo.swap(at, random.below(at as u64 + 1) as usize);
        }
        let mut done: Vec<Completion> = Vec::new();
        while !todo.is_empty() || queue.in_flight() > 0 {
            while queue.in_flight() < DEPTH
                && let Some(block) = todo.pop()
            {
                generations[block as usize] += 1;
                let bufs = Buf::copy_of(&content(block, generations[block as usize])).into();
                let offset = block * BLOCK as u64;
                let op = Op::Write {
                    offset,
                    bufs,
                    fua: false,
                };
                queue.submit(Request { tag: block, op }).unwrap();
            }
            queue.reap(Wait::Block, &mut done).unwrap();
            for completion in done.drain(..) {
                completion.result.unwrap();
                written.fetch_add(1, Relaxed);
            }
        }
        let mut reader = Blocking::open(device).unwrap();
        for (block, generation) in generations.iter().enumerate() {
            let mut found = vec![0; BLOCK];
            reader.read_at((block * BLOCK) as u64, &mut found).unwrap();
            assert!(found == content(block as u64, *generation), "block {block}");
        }
        passes += 1;
        if over.load(Relaxed) {
            return passes;
        }
    }
}

/// Runs the load while `faults` runs.
fn under_load(path: RbdPath, faults: impl FnOnce(&AtomicU64)) {
    let device = path.open(LONG).unwrap();
    let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&device, &over, &written));
        let faults = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| faults(&written)));
        over.store(true, Relaxed);
        let passes = load.join().expect("no error under the faults");
        faults.expect("the faults happened");
        println!("{passes} passes of {BLOCKS} blocks, each block read back: 0 errors");
    });
}

/// Waits until writes are completed.
fn goes_on(written: &AtomicU64) {
    let before = written.load(Relaxed);
    settles("writes go on", || written.load(Relaxed) > before + 32);
}

mod needs_peer {
    use super::*;

    #[test]
    fn kills_of_osds_monitors_and_nodes_cause_no_error() {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let mut ceph = Ceph::start(place, 3);
        ceph.create_image("disk", 16 << 20);
        let address = ceph.address("disk");
        let path = RbdPath::parse(&address, Options::default()).unwrap();
        under_load(path, |written| {
            goes_on(written);
            ceph.kill(Daemon::Osd(0));
            ceph.wait_until_up(2);
            goes_on(written);
            ceph.start_daemon(Daemon::Osd(0));
            ceph.wait_until_up(3);
            ceph.wait_until_clean();
            ceph.kill(Daemon::Monitor(0));
            ceph.wait_for_quorum(2);
            goes_on(written);
            ceph.start_daemon(Daemon::Monitor(0));
            ceph.wait_for_quorum(3);
            // A node: its monitor and its OSD at once.
            ceph.kill(Daemon::Monitor(1));
            ceph.kill(Daemon::Osd(1));
            ceph.wait_until_up(2);
            goes_on(written);
            ceph.start_daemon(Daemon::Monitor(1));
            ceph.start_daemon(Daemon::Osd(1));
            ceph.wait_until_up(3);
            ceph.wait_until_clean();
            goes_on(written);
        });
    }

    #[test]
    fn a_full_pool_pauses_writes_and_they_go_on_when_it_has_space() {
        let ceph = Ceph::start(Path::new(env!("CARGO_TARGET_TMPDIR")), 1);
        ceph.create_image("disk", 16 << 20);
        let address = ceph.address("disk");
        let path = RbdPath::parse(&address, Options::default()).unwrap();
        let watched = std::sync::Arc::new(path);
        let device = Shared(std::sync::Arc::clone(&watched));
        let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let quota = |bytes| ceph.ceph(&["osd", "pool", "set-quota", "rbd", "max_bytes", bytes]);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| load(&device, &over, &written));
            goes_on(&written);
            assert_eq!(watched.stalled(LONG), None);
            quota("1048576");
            settles("the path says that the pool is full", || {
                let why = watched.stalled(LONG);
                why.is_some_and(|why| why.contains("pool rbd is full"))
            });
            quota("0");
            goes_on(&written);
            assert_eq!(watched.stalled(LONG), None);
            over.store(true, Relaxed);
            load.join().expect("no error while the pool was full");
        });
    }

    /// A device whose path can be asked while it is in use.
    struct Shared(std::sync::Arc<RbdPath>);

    impl BlockDevice for Shared {
        fn info(&self) -> &block::DeviceInfo {
            static INFO: std::sync::OnceLock<block::DeviceInfo> = std::sync::OnceLock::new();
            INFO.get_or_init(|| self.0.connect(LONG).unwrap().info().clone())
        }

        fn queue(&self) -> block::Result<Box<dyn Queue>> {
            Ok(self.0.connect(LONG)?.open()?)
        }
    }
}
