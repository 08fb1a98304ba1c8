//! Cost and memory of many small files through the file cache, as in a mount without the kernel:
//! creating, syncing, closing, checking, reading, removing.
//!
//! `cargo run --release -p evfs-fs --example small_files FILES FILE_OR_DEVICE [CACHE_MIB]`
//!
//! Each file has 1000 bytes. Three fifths are in one directory, the others 200 to a directory.

mod support;

use cache::{Cache, Config};
use fs::{FIRST_FILESET, FileType, Files, Fs, Ino, New, Options, ROOT, WritePosition};
use std::sync::Arc;
use support::{arguments, rate};

const NEW: New = New::of_root(FileType::File, 0o644);

fn main() {
    let (files, device) = arguments(100_000, 4 << 30);
    let cache = std::env::args().nth(3);
    let cache = cache.map_or(256, |mib| mib.parse().expect("a number of MiB"));
    let cache = Cache::new(Config::new(cache << 20)).expect("a cache");
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
    let mut dir = directory("large");
    let mut all: Vec<(Ino, Vec<u8>)> = Vec::with_capacity(files as usize);
    rate("create and write", files, || {
        for i in 0..files {
            if i >= files / 5 * 3 && i.is_multiple_of(200) {
                dir = directory(&format!("small-{i}"));
            }
            let name = format!("file-{i:07}").into_bytes();
            let (_, file) = open.create_open(dir, &name, &NEW).expect("made");
            lane.write(&file, WritePosition::Offset(0), &[i as u8; 1000])
                .expect("written");
            all.push((dir, name));
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
    });
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let open = Files::new(&main, &cache).expect("attached");
    rate("remove", files, || {
        for (dir, name) in &all {
            open.unlink(*dir, name).expect("removed");
        }
        open.sync().expect("synced");
    });
    open.close().expect("closed");
    drop((open, main));
    fs.close().expect("closed");
}
