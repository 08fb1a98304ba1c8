//! A server is killed with dirty pages in its cache, and a successor adopts them.
//!
//! Goal: the content is what the dead server would have returned, sizes and times are those of the
//! metadata, and the server may be followed by any number of others that die as well, during the
//! adoption or after it. Method: the device refuses all writes, so that nothing is written back; a
//! death is a copy of the device, of the frames and of their table.
//!
//! `EVFS_DEATHS` is the number of first servers that die.

mod common;

use block::{BlockDevice, ErrorKind, OpKind};
use block_testing::{ErrorDevice, ErrorHandle, Failure, Mem, Random};
use cache::{Cache, Config, Predecessor};
use common::{amount, assert_clean, format, keyed, options, seed};
use fs::{
    Adopted, Attr, FIRST_FILESET, FileType, Files, Fs, Ino, Kind, Lane, New, Options, ROOT,
    SetAttr, WritePosition,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use survival::{Memory, Pages};

const NEW: New = New::of_root(FileType::File, 0o644);
const FILES: usize = 6;
const SIZE_MAX: u64 = 400_000;
const PAGE: u64 = 4096;

/// Contents of files.
type Model = BTreeMap<Ino, Vec<u8>>;

/// A server on a disk in memory.
struct Server {
    disk: Arc<Mem>,
    errors: ErrorHandle,
    fs: Fs,
    cache: Arc<Cache>,
    files: Arc<Files>,
}

/// What a server leaves behind.
struct Remains {
    disk: Mem,
    frames: File,
    words: Vec<u64>,
}

impl Server {
    fn start(disk: Mem) -> Server {
        let disk = Arc::new(disk);
        let (device, errors) = ErrorDevice::new(disk.clone());
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let fs = Fs::open(keyed(&device), options()).expect("it opens");
        let fileset = fs.fileset_named(FIRST_FILESET).expect("there");
        let mut config = Config::new(8 << 20);
        let pages = Pages::create(config.frames(), fileset.tree().file_system).expect("a table");
        config.surviving = Some(pages);
        let cache = Cache::new(config).expect("a cache");
        let files = Files::new(&fileset, &cache).expect("files");
        Server {
            disk,
            errors,
            fs,
            cache,
            files,
        }
    }

    /// From now on nothing reaches the disk.
    fn refuse_writes(&self) {
        let failure = Failure::every(1, ErrorKind::Media).of(OpKind::Write);
        self.errors.set(Some(failure));
    }

    /// Copies what a successor would find now. No page is being written.
    fn remains(&self) -> Remains {
        let table = self.cache.surviving().expect("a table").file();
        let table = Memory::adopt(table.try_clone_to_owned().expect("a copy")).expect("mapped");
        let words = table.words().iter().map(|word| word.load(Relaxed));
        let words = words.collect();
        let pool = self.cache.memory_fd().expect("a file");
        let pool = File::from(pool.try_clone_to_owned().expect("a copy"));
        let mut bytes = vec![0; pool.metadata().expect("its size").len() as usize];
        pool.read_exact_at(&mut bytes, 0).expect("readable");
        let frames = tempfile::tempfile().expect("a file");
        frames.write_all_at(&bytes, 0).expect("written");
        Remains {
            disk: self.disk.fork(),
            frames,
            words,
        }
    }

    fn attrs(&self, model: &Model) -> Vec<Attr> {
        let attr = |ino: &Ino| {
            let mut attr = self.files.attr(*ino).expect("there");
            // Includes blocks that are promised to dirty pages.
            attr.inode.blocks = 0;
            attr
        };
        model.keys().map(attr).collect()
    }

    fn compare(&self, model: &Model, context: &str) {
        let mut lane = self.files.lane().expect("a lane");
        for (ino, bytes) in model {
            let file = self.files.open(*ino).expect("there");
            let mut all = vec![0xee; bytes.len() + 10];
            let len = lane.read(&file, 0, &mut all).expect("readable");
            assert_eq!(len, bytes.len(), "{context}: inode {ino}");
            let wrong = all.iter().zip(bytes).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "{context}: inode {ino}, of {len} bytes");
        }
    }

    /// Overwrites parts of the files.
    fn overwrite(&self, model: &mut Model, random: &mut Random) {
        let mut lane = self.files.lane().expect("a lane");
        for (ino, bytes) in model.iter_mut().filter(|(_, bytes)| !bytes.is_empty()) {
            for _ in 0..random.below(12) {
                let offset = random.below(bytes.len() as u64) as usize;
                let most = [100, PAGE, 40_000][random.below(3) as usize];
                let len = (random.below(most) as usize + 1).min(bytes.len() - offset);
                random.fill(&mut bytes[offset..offset + len]);
                write(
                    &self.files,
                    &mut lane,
                    *ino,
                    offset as u64,
                    &bytes[offset..offset + len],
                );
            }
        }
    }

    /// Ends a server that counts as killed. Its device has refused writes, so it may have become
    /// read-only, and how it ends says nothing.
    fn end(self) {
        self.errors.set(None);
        let _ = self.files.close();
        let _ = self.fs.close();
    }

    /// Ends in order.
    fn close(self) {
        self.errors.set(None);
        self.files.close().expect("closed");
        self.fs.close().expect("closed");
    }
}

impl Remains {
    fn predecessor(&self) -> Predecessor {
        let memory = Memory::create("evfs-test", self.words.len()).expect("memory");
        for (word, value) in memory.words().iter().zip(&self.words) {
            word.store(*value, Relaxed);
        }
        let frames = self.frames.try_clone().expect("a copy");
        let pages = Pages::adopt(memory).expect("a table");
        Predecessor::new(frames.into(), &pages).expect("readable")
    }
}

fn write(files: &Arc<Files>, lane: &mut Lane, ino: Ino, offset: u64, data: &[u8]) {
    let file = files.open(ino).expect("there");
    let at = WritePosition::Offset(offset);
    lane.write(&file, at, data).expect("written");
}

fn set_size(files: &Arc<Files>, ino: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let mut lane = files.lane().expect("a lane");
    lane.set_attr(ino, &set).expect("set");
}

/// A disk with files that are synced, and their contents.
fn prepared(random: &mut Random) -> (Mem, Model) {
    let disk = Arc::new(Mem::new(64 << 20, 512));
    let device: Arc<dyn BlockDevice> = disk.clone();
    format(&device);
    let server = Server::start(disk.fork());
    let mut model = Model::new();
    let mut lane = server.files.lane().expect("a lane");
    for number in 0..FILES {
        let name = format!("file {number}");
        let ino = server
            .files
            .create(ROOT, name.as_bytes(), &NEW)
            .expect("made")
            .ino;
        let mut bytes = vec![0; random.below(SIZE_MAX) as usize];
        random.fill(&mut bytes);
        write(&server.files, &mut lane, ino, 0, &bytes);
        // A hole at the end.
        let size = bytes.len() as u64 + random.below(50_000);
        set_size(&server.files, ino, size);
        bytes.resize(size as usize, 0);
        model.insert(ino, bytes);
    }
    drop(lane);
    let disk = Arc::clone(&server.disk);
    server.close();
    (disk.fork(), model)
}

/// Starts a successor, which adopts the pages. Also returns the attributes of the files.
fn succeed(remains: &Remains, model: &Model, context: &str) -> (Server, Adopted, Vec<Attr>) {
    let server = Server::start(remains.disk.fork());
    adopted_by(server, remains, model, context)
}

fn adopted_by(
    server: Server,
    remains: &Remains,
    model: &Model,
    context: &str,
) -> (Server, Adopted, Vec<Attr>) {
    let before = server.attrs(model);
    let predecessor = remains.predecessor();
    let listed = predecessor.pages(server.files.fileset().tree()).count() as u64;
    let adopted = server.files.adopt(&predecessor).expect("adopted");
    assert_eq!(adopted.pages + adopted.unneeded, listed, "{context}");
    assert_eq!(
        server.attrs(model),
        before,
        "{context}: no attribute changes"
    );
    server.compare(model, context);
    (server, adopted, before)
}

#[test]
fn successors_have_the_content_that_was_in_the_cache_only() {
    let mut random = Random::new(seed(1));
    let mut pages = 0;
    for round in 0..amount("EVFS_DEATHS", 12) {
        let context = format!("death {round}");
        let (disk, mut model) = prepared(&mut random);
        let first = Server::start(disk);
        let synced = first.attrs(&model);
        first.refuse_writes();
        first.overwrite(&mut model, &mut random);
        let remains = first.remains();

        // Killed before it has written anything: its own successor finds the same.
        // It writes nothing back either: without a log, its successor would not know where.
        let second = Server::start(remains.disk.fork());
        second.refuse_writes();
        let (second, adopted, attrs) = adopted_by(second, &remains, &model, &context);
        pages += adopted.pages;
        assert_eq!((adopted.unneeded, attrs), (0, synced), "{context}");
        let again = Remains {
            disk: second.disk.fork(),
            ..first.remains()
        };
        succeed(&again, &model, &format!("{context}, during the adoption"))
            .0
            .close();

        // Killed after more writes, which only its own cache has.
        let mut newer = model.clone();
        second.overwrite(&mut newer, &mut random);
        let (third, ..) = succeed(
            &second.remains(),
            &newer,
            &format!("{context}, of the successor"),
        );
        third.files.sync().expect("synced");
        let disk = third.disk.fork();
        third.close();
        let last = Server::start(disk);
        last.compare(&newer, &format!("{context}, synced"));
        assert_clean(&last.fs, &context);
        last.close();
        second.end();
        first.end();
    }
    println!("{pages} pages were adopted");
    assert!(pages > 0);
}

#[test]
fn pages_of_removed_files_and_behind_the_end_are_not_adopted() {
    let mut random = Random::new(2);
    let (disk, mut model) = prepared(&mut random);
    let first = Server::start(disk);
    first.refuse_writes();
    let all = first.files.clone();
    let mut lane = all.lane().expect("a lane");
    for (ino, bytes) in &mut model {
        bytes.fill(*ino as u8);
        write(&all, &mut lane, *ino, 0, bytes);
    }
    drop(lane);
    let mut remains = first.remains();
    // What a log of the metadata would say.
    let inos: Vec<Ino> = model.keys().copied().collect();
    let other = Server::start(remains.disk.fork());
    other.files.unlink(ROOT, b"file 0").expect("removed");
    let cut = PAGE + 10;
    set_size(&other.files, inos[1], cut);
    set_size(&other.files, inos[2], 0);
    let disk = Arc::clone(&other.disk);
    other.close();
    remains.disk = disk.fork();
    let blocks = |ino| (model[&ino].len() as u64).div_ceil(PAGE);
    let unneeded = blocks(inos[0]) + blocks(inos[1]) - 2 + blocks(inos[2]);
    let mut left = model.clone();
    left.remove(&inos[0]);
    left.entry(inos[1])
        .and_modify(|bytes| bytes.truncate(cut as usize));
    left.entry(inos[2]).and_modify(Vec::clear);
    let (second, adopted, _) = succeed(&remains, &left, "after a cut");
    assert_eq!(adopted.unneeded, unneeded);
    // What is behind the end is zeros when the file grows.
    set_size(&second.files, inos[1], 3 * PAGE);
    left.entry(inos[1])
        .and_modify(|bytes| bytes.resize(3 * PAGE as usize, 0));
    second.compare(&left, "after growth");
    let disk = Arc::clone(&second.disk);
    second.close();
    let last = Server::start(disk.fork());
    last.compare(&left, "synced");
    assert_clean(&last.fs, "after a cut");
    last.close();
    first.end();
}

#[test]
fn pages_are_not_adopted_by_another_file_system_or_one_that_is_read_only() {
    let mut random = Random::new(3);
    let (disk, model) = prepared(&mut random);
    let first = Server::start(disk);
    first.refuse_writes();
    let mut lane = first.files.lane().expect("a lane");
    let (ino, bytes) = model
        .iter()
        .find(|(_, bytes)| !bytes.is_empty())
        .expect("one");
    write(&first.files, &mut lane, *ino, 0, &bytes[..1]);
    drop(lane);
    let remains = first.remains();

    let (disk, _) = prepared(&mut random);
    let other = Server::start(disk);
    let refused = other.files.adopt(&remains.predecessor()).unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
    other.close();

    let device: Arc<dyn BlockDevice> = Arc::new(remains.disk.fork());
    let read_only = Options {
        read_only: true,
        ..options()
    };
    let fs = Fs::open(keyed(&device), read_only).expect("it opens");
    let fileset = fs.fileset_named(FIRST_FILESET).expect("there");
    let cache = Cache::new(Config::new(8 << 20)).expect("a cache");
    let files = Files::new(&fileset, &cache).expect("files");
    let refused = files.adopt(&remains.predecessor()).unwrap_err();
    assert_eq!(refused.kind(), Kind::ReadOnly, "{refused}");
    first.end();
}
