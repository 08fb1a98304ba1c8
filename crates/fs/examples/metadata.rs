//! How many operations on metadata a second, on a disk in memory or in a file.
//!
//! `cargo run --release -p fs --example metadata [FILES] [FILE_OR_DEVICE]`

use block::{BlockDevice, Mem};
use fs::{FIRST_FILESET, FileType, Fileset, Fs, New, Options, ROOT};
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

fn main() {
    let mut args = std::env::args().skip(1);
    let files: u64 = args
        .next()
        .map_or(100_000, |n| n.parse().expect("a number of files"));
    let device: Arc<dyn BlockDevice> = match args.next() {
        None => Arc::new(Mem::new(8 << 30, 4096)),
        Some(path) => {
            let options = path_file::Options::default();
            path_file::FileDevice::open(path.as_ref(), &options).expect("the file opens")
        }
    };
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

fn rate<T>(what: &str, count: u64, work: impl FnOnce() -> T) -> T {
    let (start, busy) = (Instant::now(), cpu_seconds());
    let result = work();
    let each = start.elapsed().as_secs_f64() / count as f64;
    let busy = (cpu_seconds() - busy) / count as f64;
    println!(
        "{what:50} {:10.0} a second, {:9.2} us each, {:9.2} us of CPU",
        1.0 / each,
        each * 1e6,
        busy * 1e6
    );
    result
}

/// What all threads have used.
fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
