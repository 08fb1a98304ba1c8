//! Rate of metadata operations, on a disk in memory or on a file or device.
//!
//! `cargo run --release -p evfs-fs --example metadata [FILES] [FILE_OR_DEVICE]`

mod support;

use fs::{FIRST_FILESET, FileType, Fileset, Fs, New, Options, ROOT};
use std::sync::Arc;
use support::{arguments, rate};

const NEW: New = New::of_root(FileType::File, 0o644);

fn main() {
    let (files, device) = arguments(100_000, 8 << 30);
    Fs::format(Arc::clone(&device), "").expect("it formats");
    let fs = Fs::open(Arc::clone(&device), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let name = |i: u64| format!("file-{i}").into_bytes();

    rate(
        "create, stat, unlink of one file after the other",
        files,
        || {
            for i in 0..files {
                let attr = main.create(ROOT, &name(i), &NEW).expect("created");
                main.attr(attr.ino).expect("there");
                main.unlink(ROOT, &name(i)).expect("removed");
            }
        },
    );
    let inodes = rate("create in one directory", files, || {
        let create = |i| main.create(ROOT, &name(i), &NEW).expect("created").ino;
        (0..files).map(create).collect::<Vec<_>>()
    });
    rate("sync", 1, || fs.sync().expect("synced"));
    rate("commit", 1, || {
        drop(fs.create_fileset("other").expect("created"))
    });
    rate("lookup", files, || {
        for i in 0..files {
            main.lookup(ROOT, &name(i * 7919 % files)).expect("there");
        }
    });
    rate("stat by number", files, || {
        for ino in &inodes {
            main.attr(*ino).expect("there");
        }
    });
    rate("list", files, || list(&main));
    let few = files.min(2000);
    rate("create, then fsync of each", few, || {
        for i in 0..few {
            main.create(ROOT, &name(files + i), &NEW).expect("created");
            main.sync().expect("synced");
        }
    });
    let each = few.min(500);
    rate("create, then a commit of the tree for each", each, || {
        for i in 0..each {
            main.create(ROOT, &name(files + few + i), &NEW)
                .expect("created");
            fs.commit().expect("committed");
        }
    });
    rate("unlink", files, || {
        for i in 0..files {
            main.unlink(ROOT, &name(i)).expect("removed");
        }
    });
    rate("close", 1, || fs.close().expect("closed"));
}

fn list(main: &Fileset) {
    let mut entries = 0u64;
    main.read_dir(ROOT, 0, |_| {
        entries += 1;
        Ok(true)
    })
    .expect("listed");
}
