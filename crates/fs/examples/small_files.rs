//! Cost and memory of many small files through the file cache, as in a mount without the kernel:
//! creating, closing, checking, listing, looking up, removing a tenth.
//!
//! `cargo run --release -p evfs-fs --example small_files FILES FILE_OR_DEVICE [CACHE_MIB [EVERY
//! [LARGE]]]`
//!
//! LARGE percent of the files, by default 60, are in one directory, the others 200 to a directory.
//! Each file, or one of EVERY, has 1000 bytes.

mod support;

use cache::{Cache, Config};
use fs::{FIRST_FILESET, FileType, Files, Fs, Ino, New, Options, ROOT, WritePosition};
use std::sync::Arc;
use support::{arguments, rate};

/// Position of a listing after `.` and `..`.
const AFTER_DOTS: u64 = 2;
const NEW: New = New::of_root(FileType::File, 0o644);

fn main() {
    let (files, device) = arguments(100_000, 4 << 30);
    let number = |at: usize, default: u64| {
        let text = std::env::args().nth(at);
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (cache_mib, every, percent) = (number(3, 256), number(4, 1), number(5, 60));
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
    let large = files / 100 * percent;
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
    rate("write back and commit", files, || {
        open.sync().expect("synced");
        fs.commit().expect("committed");
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
    rate("list with attributes", files, || {
        let mut entries = 0;
        for dir in &dirs {
            let listed = open.read_dir_attrs(*dir, AFTER_DOTS, |_, _| {
                entries += 1;
                Ok(true)
            });
            listed.expect("listed");
        }
        assert_eq!(entries, files);
    });
    let dir_of = |i: u64| dirs[i.checked_sub(large).map_or(0, |i| i as usize / 200 + 1)];
    let some = files / 10;
    rate("look up a tenth anywhere", some, || {
        for i in (0..some).map(|i| i * 7919 % files) {
            open.lookup(dir_of(i), &name(i)).expect("there");
        }
    });
    rate("remove a tenth", some, || {
        for i in 0..some {
            open.unlink(dir_of(i), &name(i)).expect("removed");
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
