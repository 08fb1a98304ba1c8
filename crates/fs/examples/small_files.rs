//! Cost and memory of many small files through the file cache, as in a mount without the kernel:
//! creating, closing, checking, removing.
//!
//! `cargo run --release -p evfs-fs --example small_files FILES FILE_OR_DEVICE [CACHE_MIB [EVERY]]`
//!
//! Three fifths of the files are in one directory, the others 200 to a directory. Each file, or one
//! of EVERY, has 1000 bytes.

mod support;

use cache::{Cache, Config};
use fs::{FIRST_FILESET, FileType, Files, Fs, Ino, New, Options, ROOT, WritePosition};
use std::sync::Arc;
use support::{arguments, rate};

const NEW: New = New::of_root(FileType::File, 0o644);

fn main() {
    let (files, device) = arguments(100_000, 4 << 30);
    let number = |at: usize, default: u64| {
        let text = std::env::args().nth(at);
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (cache_mib, every) = (number(3, 256), number(4, 1));
    let cache = Cache::new(Config::new(cache_mib << 20)).expect("a cache");
    Fs::format(Arc::clone(&device), "").expect("it formats");
    let fs = Fs::open(Arc::clone(&device), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let open = Files::new(&main, &cache).expect("attached");
    let mut lane = open.lane().expect("a lane");
    let directory = |name: &str| {
        let new = New {
            kind: FileType::Directory,
            ..NEW
        };
        let made = open.create(ROOT, name.as_bytes(), &new);
        made.expect("made").ino
    };
    let large = files / 5 * 3;
    let mut dirs: Vec<Ino> = vec![directory("large")];
    rate("create and write", files, || {
        for i in 0..files {
            if i >= large && (i - large).is_multiple_of(200) {
                dirs.push(directory(&format!("small-{i}")));
            }
            let dir = dirs[dirs.len() - 1];
            let (_, file) = open.create_open(dir, &name(i), &NEW).expect("made");
            if i.is_multiple_of(every) {
                lane.write(&file, WritePosition::Offset(0), &[i as u8; 1000])
                    .expect("written");
            }
        }
    });
    rate("close", files, || {
        drop(lane);
        open.close().expect("closed");
        drop((open, main));
        fs.close().expect("closed");
    });
    let fs = rate("open", 1, || {
        Fs::open(Arc::clone(&device), Options::default()).expect("it opens")
    });
    rate("check", files, || {
        let report = fs.check().expect("checked");
        assert!(report.is_clean(), "{:#?}", report.problems);
        assert_eq!(report.entries, files + dirs.len() as u64);
    });
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let open = Files::new(&main, &cache).expect("attached");
    rate("remove", files, || {
        for i in 0..files {
            let dir = dirs[i.checked_sub(large).map_or(0, |i| i as usize / 200 + 1)];
            open.unlink(dir, &name(i)).expect("removed");
        }
        open.sync().expect("synced");
    });
    open.close().expect("closed");
    drop((open, main));
    fs.close().expect("closed");
}

fn name(i: u64) -> Vec<u8> {
    format!("file-{i:08}").into_bytes()
}
