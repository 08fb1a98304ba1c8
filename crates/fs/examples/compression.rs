//! Space and CPU of compressed files: lz4, zstd and none, in turn.
//!
//! `cargo run --release -p evfs-fs --example compression DEVICE ROUNDS FILE...`
//!
//! Formats DEVICE. Writes the content of each FILE through the cache, makes it durable, and reads it
//! past the cache. CPU is that of all threads. Prints the median of each figure.

#[allow(dead_code, reason = "this example prints other figures")]
mod support;

use cache::{Cache, Config};
use fs::{
    Compression, FIRST_FILESET, FileType, Files, Fs, New, Options, ROOT, TreeId, WritePosition,
};
use std::sync::Arc;
use std::time::Instant;
use support::cpu_seconds;

const NEW: New = New::of_root(FileType::File, 0o644);
const STEP: usize = 1 << 20;
const METHODS: [Option<Compression>; 3] = [None, Some(Compression::Lz4), Some(Compression::Zstd)];

/// Figures of one file by one method.
struct Sample {
    stored: f64,
    write: Spent,
    read: Spent,
}

struct Spent {
    seconds: f64,
    cpu: f64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("a device");
    let rounds: usize = args
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number of rounds");
    let device = path_file::FileDevice::open(path.as_ref(), &path_file::Options::default());
    let device: Arc<dyn block::BlockDevice> = device.expect("the device opens");
    Fs::format(Arc::clone(&device), "").expect("it formats");
    let fs = Fs::open(device, Options::default()).expect("it opens");
    println!("file, method: stored; CPU s/GiB written, read; MiB/s written, read");
    for name in args {
        let content = std::fs::read(&name).expect("a file");
        let mut samples: [Vec<Sample>; 3] = Default::default();
        for round in 0..rounds {
            for place in 0..METHODS.len() {
                // Each method comes first, second and last equally often.
                let at = (round + place) % METHODS.len();
                samples[at].push(measure(&fs, METHODS[at], &content));
            }
        }
        let gib = content.len() as f64 / (1u64 << 30) as f64;
        for (method, samples) in METHODS.iter().zip(&samples) {
            let of = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
            println!(
                "{name}, {}: {:.3}; {:.2}, {:.2}; {:.0}, {:.0}",
                method.map_or("off", Compression::name),
                of(|s| s.stored) / content.len() as f64,
                of(|s| s.write.cpu) / gib,
                of(|s| s.read.cpu) / gib,
                gib * 1024.0 / of(|s| s.write.seconds),
                gib * 1024.0 / of(|s| s.read.seconds),
            );
        }
    }
    fs.close().expect("closed");
}

fn measure(fs: &Fs, method: Option<Compression>, content: &[u8]) -> Sample {
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let id: TreeId = main.id();
    fs.set_compression(id, method).expect("set");
    let cache = Cache::new(Config::new(64 << 20)).expect("a cache");
    let files = Files::new(&main, &cache).expect("attached");
    let mut lane = files.lane().expect("a lane");
    let (_, file) = files.create_open(ROOT, b"file", &NEW).expect("made");
    let write = spent(|| {
        for (i, part) in content.chunks(STEP).enumerate() {
            let at = WritePosition::Offset((i * STEP) as u64);
            lane.write(&file, at, part).expect("written");
        }
        lane.sync(&file).expect("synced");
    });
    let stored = file.attr().expect("there").inode.blocks * fs::BLOCK_BYTES;
    let mut back = vec![0; STEP];
    let read = spent(|| {
        for (i, part) in content.chunks(STEP).enumerate() {
            let at = (i * STEP) as u64;
            let read = lane.read_direct(&file, at, &mut back).expect("read");
            assert!(back[..read] == *part, "the content at {at}");
        }
    });
    drop(file);
    files.unlink(ROOT, b"file").expect("removed");
    drop(lane);
    files.close().expect("closed");
    fs.commit().expect("committed");
    Sample {
        stored: stored as f64,
        write,
        read,
    }
}

fn spent(work: impl FnOnce()) -> Spent {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    work();
    Spent {
        seconds: start.elapsed().as_secs_f64(),
        cpu: cpu_seconds() - cpu,
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}
