//! A scan of a thousand LUNs, some of them dead.

use crate::common::alone::alone;
use crate::common::*;
use crate::goes_on;
use block::Blocking;
use lunpath::Lunpath;
use multipath::Lun;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LUNS: usize = 1000;
/// Number of LUNs in the smaller scan used for comparison.
const FEW: usize = 100;
/// Number of locations that are scanned concurrently.
const AT_ONCE: usize = 64;
/// Size of a LUN in bytes.
const BYTES: u64 = 1 << 20;

/// One server process with a thousand exports.
struct Farm {
    child: Child,
    socket: PathBuf,
}

impl Farm {
    fn start(dir: &Path, port: usize) -> Farm {
        let socket = dir.join(format!("socket{port}"));
        let mut command = Command::new(test_support::installed("qemu-storage-daemon"));
        let address = format!("addr.type=unix,addr.path={}", socket.display());
        command.args(["--nbd-server", &format!("{address},max-connections=0")]);
        for n in 0..LUNS {
            let image = image(dir, n);
            let node = format!(
                "file,node-name=n{n},locking=off,filename={}",
                image.display()
            );
            let wwid = (n as u32).wrapping_mul(0x9e37_79b1);
            let export = format!(
                "nbd,id=e{n},node-name=n{n},name=l{n},writable=on,\
                 description=wwid=naa.5f1ac5d7{wwid:08x}"
            );
            command.args(["--blockdev", &node, "--export", &export]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("it starts");
        let farm = Farm { child, socket };
        until("the last export answers", || {
            farm.path(LUNS - 1).identify(WITHIN).is_ok()
        });
        farm
    }

    fn path(&self, n: usize) -> Arc<dyn Lunpath> {
        let uri = format!("nbd+unix:///l{n}?socket={}", self.socket.display());
        Arc::new(path(&uri))
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn image(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("lun{n}"))
}

/// Paths of a LUN, and the connection timeout of each.
type Place = (Vec<Arc<dyn Lunpath>>, Duration);

/// Opens the LUN at a location and checks that it is LUN `n`.
fn find(n: usize, (paths, within): Place) -> block::Result<Lun> {
    let mut config = config(paths);
    config.connect_within = within;
    let lun = Lun::open(config)?;
    let mut all = Blocking::open(&lun)?;
    let mut found = vec![0; BLOCK];
    all.read_at(0, &mut found)?;
    assert!(found == stamp(n as u64, 1, 0), "LUN {n}: {}", named(&found));
    Ok(lun)
}

/// Opens `count` locations with [`AT_ONCE`] threads, like a scan.
fn scan(count: usize, place: impl Fn(usize) -> Place + Sync) -> Vec<block::Result<Lun>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            match next.fetch_add(1, SeqCst) {
                n if n < count => found.push(find(n, place(n))),
                _ => return found,
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let found = threads.into_iter().flat_map(|t| t.join().unwrap());
        found.collect()
    })
}

/// Returns the numbers of file descriptors and threads of this process.
fn holds() -> (usize, usize) {
    let count = |what| {
        std::fs::read_dir(format!("/proc/self/{what}"))
            .unwrap()
            .count()
    };
    (count("fd"), count("task"))
}

/// Raises the limit of file descriptors to its maximum; a thousand LUNs need more than the usual
/// 1,024.
fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// Returns an address on which no server listens.
fn nobody(dir: &Path, n: usize) -> Arc<dyn Lunpath> {
    let uri = format!("nbd+unix:///l{n}?socket={}/nobody", dir.display());
    Arc::new(path(&uri))
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_thousand_luns_are_found_in_bounded_time_and_nothing_is_left_behind() {
        let name = "scan::needs_peer::a_thousand_luns_are_found_in_bounded_time_and_nothing_is_left_behind";
        if !alone(name, |_| ()) {
            return;
        }
        raise_limit();
        let dir = TempDir::new().unwrap();
        for n in 0..LUNS {
            let mut content = stamp(n as u64, 1, 0);
            content.resize(BYTES as usize, 0);
            std::fs::write(image(dir.path(), n), content).unwrap();
        }
        let farms = [0, 1].map(|port| Farm::start(dir.path(), port));
        let before = holds();
        let upstream = pathsim::Address::Unix(farms[0].socket.clone());
        let silent =
            pathsim::Pathsim::start(&pathsim::Address::Tcp("127.0.0.1:0".into()), upstream);
        let silent = silent.unwrap();
        silent.run("hole").unwrap();
        let dead = |n: usize| {
            let uri = format!("nbd://{}/l{n}", port_of(&silent));
            Arc::new(path(&uri)) as Arc<dyn Lunpath>
        };
        let both = |n: usize| vec![farms[0].path(n), farms[1].path(n)];
        let began = Instant::now();
        let few = scan(FEW, |n| (both(n), WITHIN));
        let took_few = began.elapsed();
        assert!(few.iter().all(|f| f.is_ok()));
        drop(few);

        // One LUN is in use during the scan, on blocks that no path comparison reads.
        let busy = Arc::new(open(both(LUNS - 1), patient));
        let load = Load::on(Arc::clone(&busy) as _, 1..64, 60);
        goes_on(&busy, 1, 50);
        let began = Instant::now();
        let found = scan(LUNS - 1, |n| match n % 100 {
            7 => (vec![farms[0].path(n), dead(n)], WITHIN),
            13 => (vec![dead(n), nobody(dir.path(), n)], Duration::from_secs(1)),
            _ => (both(n), WITHIN),
        });
        let took = began.elapsed();
        goes_on(&busy, 1, 50);
        println!("{FEW} LUNs in {took_few:?}, {} in {took:?}", LUNS - 1);
        let lost = found.iter().filter_map(|f| f.as_ref().err());
        for error in lost.clone() {
            assert!(error.to_string().contains("no usable path"), "{error}");
        }
        assert_eq!(lost.count(), 10, "those of which no path answers");
        // Ten times as many LUNs take about ten times as long; the dead ones add a few overlapping
        // waits.
        let most = took_few * 40 + Duration::from_secs(15);
        assert!(took < most, "{took:?}, {took_few:?} for {FEW}");
        assert!(load.end() > 100);
        let events = |p: &multipath::PathStatus| p.offline_events + p.suspect_events;
        assert_eq!(busy.status().paths.iter().map(events).sum::<u64>(), 0);

        drop((found, busy));
        // The proxy keeps connections whose other end no longer exists.
        drop(silent);
        until("all is given back", || holds() == before);
    }
}
