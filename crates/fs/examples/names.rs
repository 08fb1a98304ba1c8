//! Cost of the requests by which a mount changes names, without the kernel and on a disk in memory.
//!
//! `cargo run --release -p evfs-fs --example names [FILES] [ROW]`
//!
//! A row is `create-unlink`, `create-write-unlink`, `keep` (files are created and written first, and
//! removed after the last one), or `all`. Below `valgrind --tool=callgrind`, the number of
//! instructions does not depend on the load of the machine.

use block::BlockDevice;
use block_testing::Mem;
use cache::{Cache, Config};
use fs::{
    FIRST_FILESET, FileType, Files, Fs, Handle, Ino, Lane, New, Options, ROOT, WritePosition,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NEW: New = New::of_root(FileType::File, 0o644);

struct Client {
    files: Arc<Files>,
    lane: Lane,
    dir: Ino,
}

impl Client {
    /// The requests of the kernel for open(2) of a new file.
    fn create(&self, name: &[u8]) -> (Ino, Handle) {
        self.files.attr(self.dir).expect("there");
        assert!(self.files.lookup(self.dir, name).is_err());
        let (attr, handle) = self.files.create_open(self.dir, name, &NEW).expect("made");
        (attr.ino, handle)
    }

    /// The requests for the first write(2).
    fn write(&mut self, ino: Ino, handle: &Handle, data: &[u8]) {
        assert!(self.files.xattr(ino, b"security.capability").is_err());
        let start = WritePosition::Offset(0);
        self.lane.write(handle, start, data).expect("written");
    }

    fn remove(&self, name: &[u8]) {
        self.files.attr(self.dir).expect("there");
        self.files.unlink(self.dir, name).expect("removed");
    }
}

fn name(i: u64) -> String {
    format!("x{i}")
}

fn main() {
    let mut args = std::env::args().skip(1);
    let files = args
        .next()
        .map_or(2000, |text| text.parse().expect("a number"));
    let row = args.next().unwrap_or_else(|| "all".into());
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(1 << 30, 4096));
    Fs::format(Arc::clone(&device), "").expect("it formats");
    let options = Options {
        commit_interval: Duration::from_secs(3600),
        ..Options::default()
    };
    let fs = Fs::open(device, options).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(256 << 20)).expect("a cache");
    let open = Files::new(&main, &cache).expect("attached");
    let new = New {
        kind: FileType::Directory,
        ..NEW
    };
    let dir = open.create(ROOT, b"work", &new).expect("made").ino;
    let lane = open.lane().expect("a lane");
    let mut client = Client {
        files: Arc::clone(&open),
        lane,
        dir,
    };
    // Files that remain, as in a tree that is in use.
    for i in 0..files {
        let (ino, handle) = client.create(format!("old{i}").as_bytes());
        if i < 100 {
            client.write(ino, &handle, &[1; 4096]);
        }
    }
    open.sync().expect("synced");
    fs.commit().expect("committed");
    let data = vec![7; 4096];
    let wanted = |other: &str| row == "all" || row == other;
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        let each = began.elapsed().as_nanos() as f64 / files as f64;
        println!("{what}: {each:.0} ns");
    };
    for _ in 0..if row == "all" { 9 } else { 1 } {
        if wanted("create-unlink") {
            timed("create-unlink", &mut || create_unlink(&client, files));
            open.sync().expect("synced");
        }
        if wanted("create-write-unlink") {
            timed("create-write-unlink", &mut || {
                create_write_unlink(&mut client, files, &data)
            });
            open.sync().expect("synced");
        }
        if wanted("keep") {
            timed("create and write", &mut || {
                create_write(&mut client, files, &data)
            });
            open.sync().expect("synced");
            timed("remove", &mut || remove(&client, files));
            open.sync().expect("synced");
        }
    }
}

#[inline(never)]
fn create_unlink(client: &Client, files: u64) {
    for i in 0..files {
        drop(client.create(name(i).as_bytes()));
        client.remove(name(i).as_bytes());
    }
}

#[inline(never)]
fn create_write_unlink(client: &mut Client, files: u64, data: &[u8]) {
    for i in 0..files {
        let (ino, handle) = client.create(name(i).as_bytes());
        client.write(ino, &handle, data);
        drop(handle);
        client.remove(name(i).as_bytes());
    }
}

#[inline(never)]
fn create_write(client: &mut Client, files: u64, data: &[u8]) {
    for i in 0..files {
        let (ino, handle) = client.create(name(i).as_bytes());
        client.write(ino, &handle, data);
    }
}

#[inline(never)]
fn remove(client: &Client, files: u64) {
    for i in 0..files {
        client.remove(name(i).as_bytes());
    }
}
