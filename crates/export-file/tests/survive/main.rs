//! The server of a mount is killed again and again while programs use the file, the loop device over
//! it, and a file system on that: they see no error, and no wrong byte.
//!
//! A keeper forks and must be the only thread: this binary has no test harness, and calls itself.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_KILLS=200` | number of kills of each test (default: 20) |
//! | `EVFS_SEED=N` | repeats the same changes, as far as timing permits |

mod programs;
mod served;
mod server;

use block_testing::Random;
use programs::{Ext4, OnFile, Program};
use served::{LONG, Served};
use server::{NOISE, Spec};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Size of the file.
const SIZE: u64 = 64 << 20;

/// `BLKDISCARD` and `BLKZEROOUT` of <linux/fs.h>.
const BLKDISCARD: u32 = 0x1277;
const BLKZEROOUT: u32 = 0x127f;

/// The tests, by the names that the check selects them by.
const TESTS: [(&str, fn()); 6] = [
    ("needs_root::a_file_outlives_its_server", a_file),
    ("needs_root::a_hole_keeps_its_meaning", a_hole),
    ("needs_root::a_successor_announces_a_new_size", a_size),
    (
        "needs_root::a_kill_at_the_start_or_end_changes_no_byte",
        start_and_end,
    ),
    (
        "needs_peer::ext4_on_a_loop_device_outlives_its_server",
        ext4,
    ),
    (
        "needs_peer::ext4_that_discards_outlives_its_server",
        ext4_that_discards,
    ),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    if args.first().is_some_and(|arg| arg == "serve") {
        std::process::exit(server::keep(&Spec::of_args(&args[1..])).into());
    }
    if has("--list") {
        let tests = TESTS.iter().filter(|_| !has("--ignored"));
        tests.for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let names: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    for (name, test) in TESTS {
        let is_chosen = |chosen: &&String| name.contains(chosen.as_str());
        if names.is_empty() || names.iter().copied().any(|chosen| is_chosen(&chosen)) {
            test_support::needs_root("mounts and loop devices");
            println!("{name}");
            test();
        }
    }
}

fn kills() -> u64 {
    std::env::var("EVFS_TEST_KILLS").map_or(20, |n| n.parse().expect("a number"))
}

fn random() -> Random {
    let time = || std::time::UNIX_EPOCH.elapsed().expect("a time").as_nanos() as u64;
    let seed = std::env::var("EVFS_SEED").map_or_else(|_| time(), |n| n.parse().expect("a number"));
    eprintln!("EVFS_SEED={seed}");
    Random::new(seed)
}

/// An image, and a directory to mount at.
struct Place {
    image: PathBuf,
    dir: PathBuf,
    other: PathBuf,
    _temporary: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let temporary = tempfile::tempdir().expect("a directory");
        let at = temporary.path().canonicalize().expect("its path");
        let place = Place {
            image: at.join("image"),
            dir: at.join("file"),
            other: at.join("mnt"),
            _temporary: temporary,
        };
        fs::create_dir(&place.dir).expect("a directory");
        fs::create_dir(&place.other).expect("a directory");
        let image = File::create(&place.image).expect("a file");
        image.set_len(SIZE).expect("a size");
        place
    }

    fn spec(&self, on_loop: Option<bool>) -> Spec {
        Spec {
            image: self.image.clone(),
            dir: self.dir.clone(),
            on_loop,
        }
    }
}

/// Runs programs while the server is killed. Ends with a panic if one of them makes no step for long.
fn survive(served: &Served, random: &mut Random, programs: &mut [Box<dyn Program>]) {
    let is_over = AtomicBool::new(false);
    let steps: Vec<AtomicU64> = programs.iter().map(|_| AtomicU64::new(0)).collect();
    let longest = AtomicU64::new(0);
    let run = |(program, steps): (&mut Box<dyn Program>, &AtomicU64)| {
        let mut began = Instant::now();
        while !is_over.load(SeqCst) {
            program.step();
            steps.fetch_add(1, SeqCst);
            longest.fetch_max(began.elapsed().as_millis() as u64, SeqCst);
            began = Instant::now();
        }
    };
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = programs
            .iter_mut()
            .zip(&steps)
            .map(|one| scope.spawn(move || run(one)))
            .collect();
        // Programs that wait get an error, and this function a panic.
        let give_up = |why: &str| -> ! {
            is_over.store(true, SeqCst);
            served.abort();
            panic!("{why}");
        };
        let all_step = || {
            let before: Vec<u64> = steps.iter().map(|steps| steps.load(SeqCst)).collect();
            let begun = Instant::now();
            let have_stepped = || {
                let mut both = steps.iter().zip(&before);
                both.all(|(steps, before)| steps.load(SeqCst) > *before + 1)
            };
            while !have_stepped() {
                if threads.iter().any(|thread| thread.is_finished()) {
                    give_up("a program has failed");
                }
                if begun.elapsed() > LONG {
                    give_up("a program does not get on");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        all_step();
        for kill in 0..kills() {
            served.kill_after(Duration::from_millis(random.below(400)));
            // Some servers are killed while they start.
            if kill % 3 == 0 {
                all_step();
            }
        }
        all_step();
        is_over.store(true, SeqCst);
    });
    let steps: u64 = steps.iter().map(|steps| steps.load(SeqCst)).sum();
    eprintln!(
        "{} kills, {steps} steps, the longest {longest:?} ms",
        kills()
    );
}

fn a_file() {
    let (place, mut random) = (Place::new(), random());
    let (served, _) = Served::serving(place.spec(None));
    let file = served.file();
    let mut programs: Vec<Box<dyn Program>> = Vec::new();
    for number in 0..4 {
        programs.push(Box::new(OnFile::new(&file, number, random.next_u64())));
    }
    let meta = fs::metadata(&file).expect("attributes");
    survive(&served, &mut random, &mut programs);
    let now = fs::metadata(&file).expect("attributes");
    let shown = |meta: &fs::Metadata| (meta.ino(), meta.dev(), meta.len(), meta.ctime());
    assert_eq!(shown(&now), shown(&meta));
    for program in &mut programs {
        program.verify(&file);
        program.close();
    }
    served.stop();
    programs
        .iter()
        .for_each(|program| program.verify(&place.image));
}

/// Calls a request that reads two numbers.
fn ioctl(device: &File, request: u32, range: [u64; 2]) {
    // SAFETY: both requests read two numbers.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), request as _, &range) };
    let error = std::io::Error::last_os_error();
    assert_eq!(done, 0, "{request:x}: {error}");
}

/// Discards and zeroes parts of a loop device.
struct Holes {
    device: File,
    image: File,
    random: Random,
}

impl Program for Holes {
    fn step(&mut self) {
        let (at, len) = (self.random.below(1000) << 16, 1 << 16);
        let mut read = vec![0; len];
        self.device
            .write_all_at(&vec![7; len], at)
            .expect("written");
        self.device.sync_all().expect("synced");
        self.image.read_exact_at(&mut read, at).expect("read");
        assert!(read.iter().all(|byte| *byte == 7), "written to {at}");
        let (request, expected) = match self.random.below(2) {
            0 => (BLKDISCARD, NOISE),
            _ => (BLKZEROOUT, 0),
        };
        ioctl(&self.device, request, [at, len as u64]);
        self.device.sync_all().expect("synced");
        self.image.read_exact_at(&mut read, at).expect("read");
        let wrong = read.iter().position(|byte| *byte != expected);
        assert_eq!(wrong, None, "{request:x} of {at}");
    }

    fn verify(&self, _: &Path) {}

    fn close(&mut self) {}
}

fn a_hole() {
    let (place, mut random) = (Place::new(), random());
    let (served, path) = Served::serving(place.spec(Some(true)));
    let mut open = OpenOptions::new();
    let mut programs: Vec<Box<dyn Program>> = vec![Box::new(Holes {
        device: open.read(true).write(true).open(&path).expect("a device"),
        image: File::open(&place.image).expect("the image"),
        random: Random::new(random.next_u64()),
    })];
    survive(&served, &mut random, &mut programs);
    drop(programs);
    assert_eq!(served.loop_devices(), [path]);
    served.stop();
}

/// The server may be killed between the growth of the device and its announcement.
fn a_size() {
    let place = Place::new();
    let (served, path) = Served::serving(place.spec(Some(false)));
    let device = path.file_name().expect("a name");
    let of_device = Path::new("/sys/block").join(device).join("size");
    let sizes = || {
        let file = fs::metadata(served.file()).expect("attributes").len();
        let sectors = fs::read_to_string(&of_device).expect("a size");
        (file, sectors.trim().parse::<u64>().expect("a number") * 512)
    };
    assert_eq!(sizes(), (SIZE, SIZE));
    let image = OpenOptions::new().write(true).open(&place.image);
    image.expect("the image").set_len(2 * SIZE).expect("a size");
    assert_eq!(sizes(), (SIZE, SIZE));
    served.kill_after(Duration::ZERO);
    served.serves(1);
    assert_eq!(sizes(), (2 * SIZE, 2 * SIZE));
    served.stop();
}

/// The kernel is made to try zeroing the first block, which must never be done.
fn start_and_end() {
    let mut random = random();
    for _ in 0..kills() {
        let place = Place::new();
        let mut bytes = vec![0; 1 << 20];
        random.fill(&mut bytes);
        let image = OpenOptions::new().write(true).open(&place.image);
        let image = image.expect("the image");
        image.write_all_at(&bytes, 0).expect("written");
        image.sync_all().expect("synced");
        drop(image);
        let served = Served::start(place.spec(Some(true)));
        for generation in 0..3 {
            // While it creates the loop device, or while the kernel tries to zero.
            let (said, most) = [("held", 20_000), ("attached", 1500)][random.below(2) as usize];
            served.said(said, generation);
            served.kill_after(Duration::from_micros(random.below(most)));
        }
        let path = served.serves(3);
        served.until("there is one loop device", || {
            served.loop_devices().len() == 1
        });
        assert_eq!(served.loop_devices()[0], path);
        let mut read = vec![0; bytes.len()];
        for path in [&path, &place.image] {
            let file = File::open(path).expect("it opens");
            file.read_exact_at(&mut read, 0).expect("read");
            assert!(read == bytes, "{}", path.display());
        }
        // It accepts writes.
        let mut open = OpenOptions::new();
        let device = open.read(true).write(true).open(&path).expect("a device");
        bytes[..4096].fill(1);
        device.write_all_at(&bytes[..4096], 0).expect("written");
        device.sync_all().expect("synced");
        drop(device);
        served.stop_with_kills(&mut random);
        let file = File::open(&place.image).expect("it opens");
        file.read_exact_at(&mut read, 0).expect("read");
        assert!(read == bytes);
    }
}

/// A mounted file system on a loop device; unmounted with this value.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn mount<'a>(device: &Path, at: &'a Path, options: &str) -> Mounted<'a> {
        let options = std::ffi::CString::new(options).expect("options");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(device, at, "ext4", flags, &*options).expect("it mounts");
        Mounted(at)
    }

    fn unmount(self) {
        let flags = rustix::mount::UnmountFlags::empty();
        rustix::mount::unmount(self.0, flags).expect("it is not in use");
        std::mem::forget(self);
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn peer(program: &str, args: &[&str], path: &Path) {
    let program = test_support::installed(program);
    let output = Command::new(program).args(args).arg(path).output();
    let output = output.expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

fn ext4() {
    on_ext4(false, "errors=continue");
}

fn ext4_that_discards() {
    on_ext4(true, "errors=continue,discard");
}

fn on_ext4(discards: bool, options: &str) {
    let (place, mut random) = (Place::new(), random());
    let (served, path) = Served::serving(place.spec(Some(discards)));
    peer("mkfs.ext4", &["-q", "-E", "nodiscard"], &path);
    let mounted = Mounted::mount(&path, &place.other, options);
    let mut programs: Vec<Box<dyn Program>> = Vec::new();
    for number in 0..3 {
        let dir = place.other.join(format!("program{number}"));
        programs.push(Box::new(Ext4::new(dir, random.next_u64())));
    }
    survive(&served, &mut random, &mut programs);
    programs
        .iter()
        .for_each(|program| program.verify(&place.other));
    mounted.unmount();
    peer("e2fsck", &["-f", "-n"], &path);
    served.stop();
    // Everything is in the image.
    let (served, path) = Served::serving(place.spec(Some(discards)));
    let mounted = Mounted::mount(&path, &place.other, options);
    programs
        .iter()
        .for_each(|program| program.verify(&place.other));
    mounted.unmount();
    served.stop();
}
