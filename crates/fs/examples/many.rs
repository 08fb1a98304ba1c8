//! Cost per file in a tree that already has many: creating, looking up, checking, removing.
//!
//! `cargo run --release -p evfs-fs --example many [FILES] [FILE_OR_DEVICE]`
//!
//! A directory has a thousand files, its parent a thousand directories; prints a line for each
//! tenth of the files.

mod support;

use fs::{FIRST_FILESET, FileType, Fileset, Fs, Ino, New, Options, ROOT};
use std::sync::Arc;
use support::{arguments, rate};

const NEW: New = New::of_root(FileType::File, 0o644);
const PARTS: u64 = 10;

fn main() {
    let (files, device) = arguments(1_000_000, 16 << 30);
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
    let fs = rate("open", 1, || {
        Fs::open(Arc::clone(&device), Options::default()).expect("it opens")
    });
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

/// Directories by number.
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
