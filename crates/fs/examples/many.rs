//! What a file costs in a tree that already has many: making, finding, checking, removing.
//!
//! `cargo run --release -p fs --example many [FILES] [FILE_OR_DEVICE]`
//!
//! A thousand files to a directory, a thousand directories to one above. For each tenth of the files:
//! operations a second, processor time of an operation (all threads, so that the commits count), and
//! the memory of the process.

use block::{BlockDevice, Mem};
use fs::{FIRST_FILESET, FileType, Fileset, Fs, Ino, New, Options, ROOT};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Instant;

const NEW: New = New {
    kind: FileType::File,
    permissions: 0o644,
    umask: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
};
const PARTS: u64 = 10;

fn main() {
    let mut args = std::env::args().skip(1);
    let files: u64 = args
        .next()
        .map_or(1_000_000, |n| n.parse().expect("a number of files"));
    let device: Arc<dyn BlockDevice> = match args.next() {
        None => Arc::new(Mem::new(16 << 30, 4096)),
        Some(path) => {
            let options = path_file::Options::default();
            path_file::FileDevice::open(path.as_ref(), &options).expect("the file opens")
        }
    };
    Fs::format(Arc::clone(&device), "").expect("it formats");
    let fs = Fs::open(Arc::clone(&device), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let mut tree = Tree::default();
    for part in 0..PARTS {
        let range = part * files / PARTS..(part + 1) * files / PARTS;
        rate(&format!("create {part}"), range.end - range.start, || {
            range.for_each(|i| tree.create(&main, i));
            fs.commit().expect("committed");
        });
        let some = files / PARTS / 10;
        rate("  lookup anywhere", some, || {
            let there = (part + 1) * files / PARTS;
            for i in 0..some {
                tree.lookup(&main, i * 7919 % there);
            }
        });
    }
    println!("{:?}", fs.usage());
    drop(main);
    rate("close", 1, || fs.close().expect("closed"));
    let mut opened = None;
    rate("open", 1, || {
        let options = Options::default();
        opened = Some(Fs::open(Arc::clone(&device), options).expect("it opens"));
    });
    let fs = opened.expect("opened above");
    rate("check", files, || {
        let report = fs.check().expect("checked");
        assert!(report.is_clean(), "{:#?}", report.problems);
    });
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let some = files / PARTS;
    rate("remove a tenth", some, || {
        (0..some).for_each(|i| tree.remove(&main, i));
        fs.commit().expect("committed");
    });
    drop(main);
    fs.close().expect("closed");
}

/// The directories, by number.
#[derive(Default)]
struct Tree {
    tops: Vec<Ino>,
    dirs: Vec<Ino>,
}

impl Tree {
    fn create(&mut self, main: &Fileset, i: u64) {
        let dir = New {
            kind: FileType::Directory,
            ..NEW
        };
        let make = |above: Ino, name: &[u8]| main.create(above, name, &dir).expect("made").ino;
        if i.is_multiple_of(1_000_000) {
            self.tops.push(make(ROOT, &name(i)));
        }
        if i.is_multiple_of(1000) {
            let above = self.tops[(i / 1_000_000) as usize];
            self.dirs.push(make(above, &name(i)));
        }
        let dir = self.dirs[(i / 1000) as usize];
        main.create(dir, &name(i), &NEW).expect("made");
    }

    fn lookup(&self, main: &Fileset, i: u64) {
        let dir = self.dirs[(i / 1000) as usize];
        main.lookup(dir, &name(i)).expect("there");
    }

    fn remove(&self, main: &Fileset, i: u64) {
        let dir = self.dirs[(i / 1000) as usize];
        main.unlink(dir, &name(i)).expect("removed");
    }
}

fn name(i: u64) -> Vec<u8> {
    format!("file-{i}").into_bytes()
}

fn rate(what: &str, count: u64, work: impl FnOnce()) {
    let cpu = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (start, before) = (Instant::now(), cpu());
    work();
    let (wall, used) = (start.elapsed().as_secs_f64(), cpu() - before);
    println!(
        "{what:<18} {:>10.0}/s  {:>8.2} us of CPU each  {:>6} MiB",
        count as f64 / wall,
        used / count as f64 * 1e6,
        resident_bytes() >> 20,
    );
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
