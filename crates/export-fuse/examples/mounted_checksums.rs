//! Cost of checksums through a mount: CPU time of the server and of its client, for a file that is
//! written, read from the device, and overwritten in 64 KiB, on an encrypted file system in a file.
//!
//! Each run has a fresh mount, so that nothing is in a cache. A round takes each row through file
//! systems without checksums, with CRCs and with keyed ones next to each other, in an order that
//! turns and is mirrored. A write is measured up to the end of the unmount. Prints the seconds per
//! GiB of each round in pairs, for `paired`, an example of `evfs-bench-core`:
//!
//! ```text
//! cargo run --release -p evfs-export-fuse --example mounted_checksums -- [DIR [ROUNDS [MIB]]] |
//!   cargo run --release -p evfs-bench-core --example paired
//! ```

use block::BlockDevice;
use block_testing::Keyed;
use cache::{Cache, Config};
use crypt::{CryptDevice, DataSegment};
use export_fuse::{Mount, MountConfig, WhenBusy};
use fs::{DataChecksums, FIRST_FILESET, Files, Fs, Options};
use rustix::process::{Resource, setrlimit};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xts::{SectorSize, Tweak, Xts};

const SIDES: [(&str, DataChecksums); 3] = [
    ("none", DataChecksums::No),
    ("crc", DataChecksums::Yes),
    ("keyed", DataChecksums::Keyed),
];
const ROWS: [&str; 3] = ["write", "read", "overwrite"];
const RECORD: usize = 64 << 10;
const CACHE_BYTES: u64 = 1 << 30;

/// CPU time in seconds.
#[derive(Clone, Copy)]
struct Cpu {
    server: f64,
    all: f64,
}

impl Cpu {
    /// Reads the times so far: the server has all threads but this one.
    fn now() -> Cpu {
        let seconds = |clock| {
            let time = rustix::time::clock_gettime(clock);
            time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
        };
        let all = seconds(rustix::time::ClockId::ProcessCPUTime);
        let own = seconds(rustix::time::ClockId::ThreadCPUTime);
        Cpu {
            server: all - own,
            all,
        }
    }

    fn since(self, begin: Cpu) -> Cpu {
        Cpu {
            server: self.server - begin.server,
            all: self.all - begin.all,
        }
    }
}

/// A device over a file that encrypts with AES-256, as a new volume does.
fn encrypted(file: &Path) -> Arc<dyn BlockDevice> {
    let key: Vec<u8> = (0..64).collect();
    let segment = DataSegment {
        offset: 0,
        size: None,
        iv_tweak: Tweak::new(0),
    };
    let lower = path_file::FileDevice::open(file, &path_file::Options::default());
    let xts = Xts::new(&key, SectorSize::B4096).expect("a key");
    let crypt = CryptDevice::new(
        lower.expect("a file"),
        xts,
        segment,
        crypt::Options::default(),
    );
    Arc::new(Keyed::new(Arc::new(crypt.expect("a device")), 1))
}

/// Mounts, does the work of a row, and returns the CPU time.
fn run(image: &Path, dir: &Path, row: &str, mib: usize) -> Cpu {
    let fs = Fs::open(encrypted(image), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(CACHE_BYTES)).expect("a cache");
    let files = Files::new(&main, &cache).expect("files");
    let config = MountConfig::new(dir.to_owned());
    let mount = Mount::start(config, Arc::clone(&files)).expect("it mounts");
    let path = dir.join("file");
    if row == "write" {
        let _ = std::fs::remove_file(&path);
    }
    let records = mib * (1 << 20) / RECORD;
    let mut record = vec![0; RECORD];
    let begin = Cpu::now();
    let mut read_end = None;
    if row == "read" {
        let mut file = File::open(&path).expect("it opens");
        for _ in 0..records {
            file.read_exact(&mut record).expect("it reads");
        }
        read_end = Some(Cpu::now());
    } else {
        let options = OpenOptions::new().write(true).create(true).clone();
        let mut file = options.open(&path).expect("it opens");
        for i in 0..records {
            record[..8].copy_from_slice(&i.to_le_bytes());
            file.write_all(&record).expect("it writes");
        }
        file.sync_all().expect("it syncs");
    }
    assert!(mount.unmount(WhenBusy::Refuse).is_ok(), "it unmounts");
    files.close().expect("everything is written");
    drop((files, main));
    fs.close().expect("it closes");
    read_end.unwrap_or_else(Cpu::now).since(begin)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let work = PathBuf::from(args.next().unwrap_or("/dev/shm".into()));
    let rounds: usize = args.next().map_or(9, |n| n.parse().expect("a number"));
    let mib: usize = args.next().map_or(512, |n| n.parse().expect("MiB"));
    // The cache locks its memory.
    let unlimited = rustix::process::Rlimit {
        current: None,
        maximum: None,
    };
    let _ = setrlimit(Resource::Memlock, unlimited);
    let work = tempfile::tempdir_in(work).expect("a folder");
    let dir = work.path().join("mount");
    std::fs::create_dir(&dir).expect("made");
    let images = SIDES.map(|(name, checksums)| {
        let image = work.path().join(name);
        let mut file = File::create(&image).expect("made");
        // Not sparse: else the side that writes to new blocks waits for their allocation.
        let zeros = vec![0; 1 << 20];
        (0..3 * mib).for_each(|_| file.write_all(&zeros).expect("filled"));
        Fs::format_with(encrypted(&image), "", checksums).expect("formatted");
        image
    });
    // The first round is not printed: it creates the files.
    for round in 0..=rounds {
        for row in ROWS {
            let mut took = [None; SIDES.len()];
            for i in 0..SIDES.len() {
                let turned = (i + round / 2) % SIDES.len();
                let mirrored = SIDES.len() - 1 - turned;
                let side = if round % 2 == 0 { turned } else { mirrored };
                took[side] = Some(run(&images[side], &dir, row, mib));
            }
            let [Some(none), crc, keyed] = took else {
                unreachable!("each side ran")
            };
            for (name, cpu) in [("crc", crc), ("keyed", keyed)] {
                if let (Some(cpu), 1..) = (cpu, round) {
                    let of = |a: f64, b: f64| {
                        format!(
                            "{:.4} {:.4}",
                            a / mib as f64 * 1024.0,
                            b / mib as f64 * 1024.0
                        )
                    };
                    println!("{row}/{name}/server+client {}", of(none.all, cpu.all));
                    println!("{row}/{name}/server {}", of(none.server, cpu.server));
                }
            }
            std::io::stdout().flush().expect("printed");
        }
    }
}
