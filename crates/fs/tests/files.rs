//! Files with their pages in a cache that is too small for them.
//!
//! Goal: reads return the data that was written, by any lane, while pages are evicted and reloaded
//! and files are truncated, punched, unlinked and snapshotted; also after the file system was
//! closed.

mod common;

use block::BlockDevice;
use block_testing::{Mem, Random};
use cache::{Cache, Config};
use common::client::Client;
use common::{assert_clean, format, open, seed};
use fs::{
    Allocate, Change, FIRST_FILESET, FileType, Files, Fs, Handle, Lane, New, Options, ROOT, Seek,
    SetAttr, SetTime, Time, Watcher, WritePosition,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NEW: New = New::of_root(FileType::File, 0o644);
const SIZE_MAX: u64 = 600_000;
/// Longest wait for an event that must happen; longer than any test may take.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3600);

fn cache() -> Arc<Cache> {
    let config = Config {
        sync_interval: Duration::from_millis(20),
        tick: Duration::from_millis(10),
        ..Config::new(1 << 20)
    };
    Cache::new(config).expect("a cache")
}

fn device() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
    format(&device);
    device
}

fn files(fs: &Fs, cache: &Cache) -> Arc<Files> {
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    Files::new(&main, cache).expect("files")
}

fn cut(lane: &mut Lane, file: &Handle, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    lane.set_attr(file.ino(), &set).expect("cut");
}

fn same(lane: &mut Lane, file: &Handle, model: &[u8], context: &str) {
    let mut all = vec![0xee; model.len() + 10];
    let len = lane.read(file, 0, &mut all).expect("readable");
    assert_eq!(len, model.len(), "{context}");
    let differs = all[..len].iter().zip(model).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{context}: of {len} bytes");
    assert_eq!(
        file.attr().expect("there").inode.size,
        len as u64,
        "{context}"
    );
}

#[test]
fn who_uses_files_after_the_file_system_was_closed_is_told_so() {
    let device = device();
    let fs = open(&device);
    let fileset = fs.fileset_named(FIRST_FILESET).expect("there");
    for i in 0..1000 {
        let name = format!("file {i}").into_bytes();
        fileset.create(ROOT, &name, &NEW).expect("made");
    }
    fs.close().expect("closed");
    let fs = open(&device);
    let fileset = fs.fileset_named(FIRST_FILESET).expect("there");
    fs.close().expect("closed");
    let looked = fileset.lookup(ROOT, b"file 500").map(drop);
    let made = fileset.create(ROOT, b"another", &NEW).map(drop);
    for refused in [looked, made, fileset.sync()] {
        let error = refused.unwrap_err();
        assert_eq!(error.errno(), libc::ENOTCONN, "{error}");
    }
}

#[test]
fn unsynced_changes_are_on_the_device_soon_after_the_last_one() {
    let device = device();
    let fs = open(&device);
    // The age of pages alone does not cause a write during this test.
    let config = Config {
        sync_interval: LONG,
        ..Config::new(8 << 20)
    };
    let cache = Cache::new(config).expect("a cache");
    let files = files(&fs, &cache);
    let mut lane = files.lane().expect("a lane");
    let data = [7; 300_000];
    for name in [&b"first"[..], b"second"] {
        let ino = files.create(ROOT, name, &NEW).expect("made").ino;
        let file = files.open(ino).expect("open");
        lane.write(&file, WritePosition::End, &data)
            .expect("written");
        // Opens the device as after a crash. It is being written to, so any result is possible.
        let found = || -> Option<()> {
            let options = Options {
                read_only: true,
                ..common::options()
            };
            let fs = Fs::open(common::keyed(&device), options).ok()?;
            let fileset = fs.fileset_named(FIRST_FILESET).ok()?;
            let ino = fileset.lookup(ROOT, name).ok()?.ino;
            let found = Client::new(fileset).read(ino, 0, data.len() as u64).ok()?;
            (found == data).then_some(())
        };
        let end = Instant::now() + PATIENCE;
        while found().is_none() {
            assert!(Instant::now() < end, "it is in memory only");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    drop(lane);
    files.close().expect("closed");
}

/// Applies one random change to a file and its model.
fn step(random: &mut Random, lane: &mut Lane, file: &Handle, model: &mut Vec<u8>) {
    let at = random.below(SIZE_MAX);
    let end = at + 1 + random.below(60_000);
    match random.below(13) {
        what @ (0..=3 | 10..=11) => {
            let direct = what >= 10;
            let blocks = 4096 * (1 + random.below(7));
            let len = if direct {
                blocks
            } else {
                1 + random.below(30_000)
            };
            let mut data = vec![0; len as usize];
            random.fill(&mut data);
            let to = match (random.below(3), direct) {
                (0, _) => WritePosition::End,
                (_, true) => WritePosition::Offset(at / 4096 * 4096),
                (_, false) => WritePosition::Offset(at),
            };
            let written = if direct {
                lane.write_direct(file, to, &data)
            } else {
                lane.write(file, to, &data)
            };
            let at = written.expect("written") as usize;
            if model.len() < at + data.len() {
                model.resize(at + data.len(), 0);
            }
            model[at..at + data.len()].copy_from_slice(&data);
        }
        4 => {
            cut(lane, file, at);
            model.resize(at as usize, 0);
        }
        5 => {
            lane.allocate(file, at..end, Allocate::Punch)
                .expect("punched");
            let (from, to) = (model.len().min(at as usize), model.len().min(end as usize));
            model[from..to].fill(0);
        }
        6 => {
            lane.allocate(file, at..end, Allocate::Zero)
                .expect("zeroed");
            if model.len() < end as usize {
                model.resize(end as usize, 0);
            }
            model[at as usize..end as usize].fill(0);
        }
        7 => {
            lane.allocate(file, at..end, Allocate::Grow)
                .expect("allocated");
            if model.len() < end as usize {
                model.resize(end as usize, 0);
            }
        }
        8 => lane.sync(file).expect("synced"),
        12 => {
            let (at, mut out) = (at / 4096 * 4096, vec![0; 20_480]);
            let len = lane.read_direct(file, at, &mut out).expect("readable");
            let from = model.len().min(at as usize);
            assert!(out[..len] == model[from..model.len().min(from + 20_480)]);
        }
        _ => {
            let mut out = vec![0; 20_000];
            let len = lane.read(file, at, &mut out).expect("readable");
            let from = model.len().min(at as usize);
            assert!(out[..len] == model[from..model.len().min(from + 20_000)]);
        }
    }
}

#[test]
fn what_is_read_is_what_was_written_while_pages_come_and_go() {
    let seed = seed(1);
    for part in 0..4 {
        let device = device();
        let fs = open(&device);
        let (cache, mut random) = (cache(), Random::new(seed + part));
        let files = files(&fs, &cache);
        let mut lanes = [files.lane().expect("a lane"), files.lane().expect("a lane")];
        let mut open = Vec::new();
        for i in 0..4u8 {
            let ino = files.create(ROOT, &[b'a' + i], &NEW).expect("made").ino;
            open.push((files.open(ino).expect("open"), Vec::new()));
        }
        for round in 0..1500 {
            let (file, model) = &mut open[random.below(4) as usize];
            let lane = &mut lanes[random.below(2) as usize];
            step(&mut random, lane, file, model);
            if round % 50 == 0 {
                let context = format!("EVFS_SEED={}, round {round}", seed + part);
                same(lane, file, model, &context);
            }
        }
        for (file, model) in &open {
            same(&mut lanes[0], file, model, "the end");
        }
        let inodes: Vec<_> = open
            .into_iter()
            .map(|(file, model)| (file.ino(), model))
            .collect();
        drop(lanes);
        files.close().expect("everything is written");
        drop(files);
        assert_clean(&fs, "closed");
        fs.close().expect("closed");
        let fs = self::open(&device);
        let cache = self::cache();
        let files = self::files(&fs, &cache);
        let mut lane = files.lane().expect("a lane");
        for (ino, model) in inodes {
            let file = files.open(ino).expect("there");
            same(&mut lane, &file, &model, "opened again");
        }
    }
}

#[test]
fn a_file_without_a_name_lives_until_it_is_closed_and_leaves_nothing() {
    let device = device();
    let fs = open(&device);
    let cache = cache();
    let files = files(&fs, &cache);
    let mut lane = files.lane().expect("a lane");
    let free = fs.usage().free;
    let ino = files.create(ROOT, b"gone", &NEW).expect("made").ino;
    let file = files.open(ino).expect("open");
    lane.write(&file, WritePosition::Offset(5000), &[7; 100_000])
        .expect("written");
    assert_eq!(files.unlink(ROOT, b"gone").expect("removed").inode.links, 0);
    lane.write(&file, WritePosition::End, &[8; 100_000])
        .expect("written");
    let mut out = vec![0; 300_000];
    assert_eq!(lane.read(&file, 0, &mut out).expect("readable"), 205_000);
    assert!(out[105_000..205_000].iter().all(|byte| *byte == 8));
    drop(file);
    assert!(files.open(ino).is_err());
    drop(lane);
    files.close().expect("closed");
    fs.commit().expect("committed");
    assert_clean(&fs, "gone");
    assert!(fs.usage().free + 64 >= free);
}

#[test]
fn a_file_made_without_a_name_is_given_one_or_goes() {
    let device = device();
    let fs = open(&device);
    let cache = cache();
    let files = files(&fs, &cache);
    let mut lane = files.lane().expect("a lane");
    let free = fs.usage().free;
    let (attr, file) = files.create_unnamed(ROOT, &NEW).expect("made");
    assert_eq!((attr.inode.links, files.fileset().id()), (0, 1));
    lane.write(&file, WritePosition::End, &[5; 70_000])
        .expect("written");
    files
        .link(attr.ino, ROOT, b"named")
        .expect("its first name");
    let found = files.lookup(ROOT, b"named").expect("there");
    assert_eq!((found.ino, found.inode.links), (attr.ino, 1));
    files.unlink(ROOT, b"named").expect("removed");
    let error = files.link(attr.ino, ROOT, b"again").unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT, "it has lost its name for good");
    drop(file);
    assert!(files.open(attr.ino).is_err());
    let (attr, file) = files.create_unnamed(ROOT, &NEW).expect("made");
    lane.write(&file, WritePosition::End, &[6; 70_000])
        .expect("written");
    drop(file);
    assert!(files.open(attr.ino).is_err());
    let dir = New {
        kind: FileType::Directory,
        ..NEW
    };
    let refused = files.fileset().create_unnamed(ROOT, &dir).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL);
    // This one is never closed: it is removed when the file system is next opened.
    let left = files.fileset().create_unnamed(ROOT, &NEW).expect("made");
    assert_clean(&fs, "with a file that has no name yet");
    drop(lane);
    files.close().expect("closed");
    drop(files);
    fs.close().expect("closed");
    let fs = open(&device);
    assert_clean(&fs, "opened again");
    let main = fs.fileset_named(FIRST_FILESET).expect("there");
    assert!(main.attr(left.ino).is_err());
    assert_eq!(main.record().expect("there").used_inodes, 1);
    assert!(fs.usage().free + 64 >= free);
}

#[test]
fn a_snapshot_keeps_what_was_written_before_it_and_pages_that_wait_count_as_data() {
    let device = device();
    let fs = open(&device);
    let cache = cache();
    let files = files(&fs, &cache);
    let mut lane = files.lane().expect("a lane");
    let ino = files.create(ROOT, b"file", &NEW).expect("made").ino;
    let file = files.open(ino).expect("open");
    lane.write(&file, WritePosition::Offset(40_000), &[1; 50_000])
        .expect("written");
    assert_eq!(files.seek(ino, 0, Seek::Data).expect("data"), 36_864);
    assert!(files.attr(ino).expect("there").inode.blocks >= 13);
    files.sync().expect("synced");
    let then = fs
        .snapshot(files.fileset().id(), "then")
        .expect("a snapshot");
    lane.write(&file, WritePosition::Offset(0), &[2; 90_000])
        .expect("written");
    files.sync().expect("synced");
    let past = Files::new(&then, &cache).expect("files");
    let mut past_lane = past.lane().expect("a lane");
    let old = past.open(ino).expect("open");
    let mut out = vec![9; 90_000];
    assert_eq!(past_lane.read(&old, 0, &mut out).expect("readable"), 90_000);
    assert!(
        out[..40_000].iter().all(|byte| *byte == 0) && out[40_000..].iter().all(|byte| *byte == 1)
    );
    let refused = past_lane
        .write(&old, WritePosition::End, b"x")
        .expect_err("read-only");
    assert_eq!(refused.errno(), libc::EROFS);
    assert_clean(&fs, "with a snapshot");
}

#[test]
fn threads_append_whole_records() {
    let device = device();
    let fs = open(&device);
    let cache = cache();
    let files = files(&fs, &cache);
    let ino = files.create(ROOT, b"log", &NEW).expect("made").ino;
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let files = Arc::clone(&files);
            scope.spawn(move || {
                let mut lane = files.lane().expect("a lane");
                let file = files.open(ino).expect("open");
                for _ in 0..200 {
                    lane.write(&file, WritePosition::End, &[thread; 777])
                        .expect("written");
                }
                lane.sync(&file).expect("synced");
            });
        }
    });
    let mut lane = files.lane().expect("a lane");
    let file = files.open(ino).expect("open");
    let mut all = vec![0; 800 * 777 + 1];
    assert_eq!(lane.read(&file, 0, &mut all).expect("readable"), 800 * 777);
    for record in all[..800 * 777].chunks(777) {
        assert!(record.iter().all(|byte| *byte == record[0]));
    }
}

/// Returns whether a thread of this process is asleep.
fn sleeps(task: &Path) -> bool {
    // The file of a thread that has just ended does not exist.
    let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, state)| state.starts_with('S'))
}

#[test]
fn what_is_appended_in_parts_is_not_parted_by_another_client() {
    let (device, cache) = (device(), cache());
    let fs = open(&device);
    let files = files(&fs, &cache);
    let attr = files.create(ROOT, b"log", &NEW).expect("created");
    let (file, other) = (files.open(attr.ino).expect("open"), files.client());
    let mut lane = files.lane().expect("a lane");
    let open_other = || {
        let file = other.open(attr.ino).expect("open");
        (other.lane().expect("a lane"), file)
    };
    let record = |lane: &mut Lane, at: WritePosition, text: &[u8]| {
        lane.write(&file, at, text).expect("written");
    };
    let (go, going) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (say, said) = std::sync::mpsc::channel();
        let (go, going, open_other) = (&go, &going, &open_other);
        let waits = scope.spawn(move || {
            let (mut lane, file) = open_other();
            say.send(std::fs::read_link("/proc/thread-self").expect("a link"))
                .expect("somebody waits");
            while !go.load(Ordering::SeqCst) {
                // Stays awake, so that it sleeps only during the write.
                std::thread::yield_now();
            }
            going.store(true, Ordering::SeqCst);
            lane.write(&file, WritePosition::End, b"other ")
                .expect("written");
        });
        let task = Path::new("/proc").join(said.recv_timeout(PATIENCE).expect("a thread"));
        record(&mut lane, WritePosition::EndOfMore, b"one ");
        go.store(true, Ordering::SeqCst);
        // If the other client is not made to wait, its write comes between the parts.
        while !going.load(Ordering::SeqCst) || !(sleeps(&task) || waits.is_finished()) {
            std::thread::yield_now();
        }
        record(&mut lane, WritePosition::EndOfMore, b"and the same ");
        record(&mut lane, WritePosition::End, b"record ");
        waits.join().expect("no panic");
    });
    // An append that is never completed delays neither other clients nor its own indefinitely.
    record(&mut lane, WritePosition::EndOfMore, b"half ");
    let (mut other_lane, other_file) = open_other();
    other_lane
        .write(&other_file, WritePosition::End, b"whole ")
        .expect("written");
    record(&mut lane, WritePosition::End, b"late");
    same(
        &mut lane,
        &file,
        b"one and the same record other half whole late",
        "parts",
    );
}

#[test]
fn a_change_is_one_version_of_what_it_changes() {
    let device = device();
    let fs = open(&device);
    let cache = cache();
    let files = files(&fs, &cache);
    let dir = |name: &[u8]| {
        let new = New {
            kind: FileType::Directory,
            ..NEW
        };
        files.create(ROOT, name, &new).expect("made").ino
    };
    let (one, other) = (dir(b"one"), dir(b"other"));
    let version = |ino| files.attr(ino).expect("there").inode.data_version;
    let moved = dir(b"moved");
    let before = [ROOT, one, other, moved].map(version);
    let rename = |from, to| {
        let done = files.rename(from, to, fs::Rename::Replace);
        done.expect("renamed");
    };
    rename((ROOT, b"moved"), (one, b"a"));
    rename((one, b"a"), (one, b"b"));
    rename((one, b"b"), (other, b"c"));
    let after = [ROOT, one, other, moved].map(version);
    // Moving a directory to another parent changes its content: the `..` entry.
    let changes = [1, 3, 1, 2];
    for at in 0..4 {
        assert_eq!(after[at], before[at] + changes[at], "the {at}th");
    }
    assert_eq!(files.attr(moved).expect("there").inode.parent, other);

    let file = files.create(one, b"file", &NEW).expect("made");
    assert_eq!(file.inode.parent, one);
    let file = files.open(file.ino).expect("open");
    let mut lane = files.lane().expect("a lane");
    let first = version(file.ino());
    lane.write(&file, WritePosition::Offset(0), &[1; 5000])
        .expect("written");
    lane.write_more(&file, 5000, &[2; 5000]).expect("written");
    assert_eq!(version(file.ino()), first + 1);
    files.raise_version(file.ino()).expect("raised");
    assert_eq!(version(file.ino()), first + 2);
    // A late write does not change times that the client has set itself.
    let time = Time {
        seconds: 7,
        nanos: 8,
    };
    let times = SetAttr {
        modified: Some(SetTime::To(time)),
        changed: Some(SetTime::To(time)),
        ..SetAttr::default()
    };
    lane.set_attr(file.ino(), &times).expect("set");
    lane.write_late(&file, 9000, &[2; 1000]).expect("written");
    let inode = files.attr(file.ino()).expect("there").inode;
    assert_eq!((inode.modified, inode.changed), (time, time));
    assert_eq!(inode.data_version, first + 3);
    // A loaned page keeps its content, whatever is written later.
    let mut lent = Vec::new();
    let bytes = 4090..20_000;
    lane.lend(&file, bytes, |page, part| lent.push((page, part)))
        .expect("lent");
    lane.write(&file, WritePosition::Offset(0), &[3; 10_000])
        .expect("written");
    let all: Vec<u8> = lent
        .iter()
        .flat_map(|(page, part)| page[part.clone()].to_vec())
        .collect();
    assert!(all[..910] == [1; 910] && all[910..] == [2; 5000]);
}

#[test]
fn directories_have_the_access_list_of_the_one_they_are_made_in() {
    let device = device();
    let fs = open(&device);
    let cache = cache();
    let files = files(&fs, &cache);
    let name = fs::INHERITED[0];
    let new = New {
        kind: FileType::Directory,
        ..NEW
    };
    let before = files.create(ROOT, b"before", &new).expect("made").ino;
    files
        .set_xattr(ROOT, name, b"text", fs::SetXattr::Any)
        .expect("set");
    let after = files.create(ROOT, b"after", &new).expect("made").ino;
    let below = files.create(after, b"below", &new).expect("made").ino;
    let file = files.create(after, b"file", &NEW).expect("made").ino;
    assert_eq!(files.xattr(after, name).expect("there"), b"text");
    assert_eq!(files.xattr(below, name).expect("there"), b"text");
    assert!(files.xattr(before, name).is_err() && files.xattr(file, name).is_err());
    assert_clean(&fs, "inherited");
}

/// Watcher that records its notifications.
#[derive(Default)]
struct Told(std::sync::Mutex<Vec<String>>);

impl Watcher for Told {
    fn changed(&self, change: &Change<'_>) {
        let text = match change {
            Change::Content(ino, bytes) => format!("{ino}: {bytes:?}"),
            Change::Attributes(ino) => format!("{ino}"),
            Change::Entry(dir, name) => format!("{dir}/{}", String::from_utf8_lossy(name)),
        };
        self.0.lock().expect("no panic").push(text);
    }
}

impl Told {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

#[test]
fn every_change_is_reported_to_the_other_clients_only() {
    let (device, cache) = (device(), cache());
    let fs = open(&device);
    let mount = files(&fs, &cache);
    let server = mount.client();
    let (at_mount, at_server) = (Arc::new(Told::default()), Arc::new(Told::default()));
    let watch = mount.watch(at_mount.clone());
    let _watch = server.watch(at_server.clone());

    let ino = server.create(ROOT, b"a", &NEW).expect("made").ino;
    assert_eq!(at_mount.take(), [format!("{ROOT}/a")]);
    let (file, mut lane) = (
        server.open(ino).expect("open"),
        server.lane().expect("a lane"),
    );
    lane.write(&file, WritePosition::Offset(100), &[1; 50])
        .expect("written");
    lane.write_direct(&file, WritePosition::Offset(0), &[2; 4096])
        .expect("written");
    lane.allocate(&file, 10..20, Allocate::Punch)
        .expect("punched");
    lane.allocate(&file, 10..9000, Allocate::KeepSize)
        .expect("allocated");
    cut(&mut lane, &file, 30);
    cut(&mut lane, &file, 60);
    let expected = [
        format!("{ino}: 100..150"),
        format!("{ino}: 0..4096"),
        format!("{ino}: 10..20"),
        format!("{ino}"),
        format!("{ino}: 30..{}", u64::MAX),
        format!("{ino}: 30..{}", u64::MAX),
    ];
    assert_eq!(at_mount.take(), expected);

    server
        .set_xattr(ino, b"user.a", b"1", fs::SetXattr::Any)
        .expect("set");
    server.remove_xattr(ino, b"user.a").expect("removed");
    server.link(ino, ROOT, b"b").expect("linked");
    server
        .rename((ROOT, b"b"), (ROOT, b"c"), fs::Rename::Replace)
        .expect("renamed");
    server.unlink(ROOT, b"c").expect("removed");
    let told = at_mount.take();
    let (number, entry) = (ino.to_string(), |name: &str| format!("{ROOT}/{name}"));
    let expected = [
        number.clone(),
        number.clone(),
        entry("b"),
        number.clone(),
        entry("b"),
        entry("c"),
        number.clone(),
        entry("c"),
        number,
    ];
    assert_eq!(told, expected);

    let mut own = mount.lane().expect("a lane");
    let file = mount.open(ino).expect("open");
    let len = own.read(&file, 0, &mut [0; 100]).expect("readable");
    assert_eq!(len, 60);
    own.write(&file, WritePosition::End, b"x").expect("written");
    assert_eq!(at_mount.take(), Vec::<String>::new());
    assert_eq!(at_server.take(), [format!("{ino}: 60..61")]);
    drop(watch);
    lane.write(&file, WritePosition::End, b"x")
        .expect("written");
    assert_eq!(at_mount.take(), Vec::<String>::new());
}

#[test]
fn a_watcher_registered_twice_is_notified_until_both_end() {
    let (device, cache) = (device(), cache());
    let fs = open(&device);
    let mount = files(&fs, &cache);
    let server = mount.client();
    let told = Arc::new(Told::default());
    let (first, second) = (mount.watch(told.clone()), mount.watch(told.clone()));
    drop(first);
    server.create(ROOT, b"a", &NEW).expect("made");
    assert_eq!(told.take(), [format!("{ROOT}/a")]);
    drop(second);
    server.create(ROOT, b"b", &NEW).expect("made");
    assert_eq!(told.take(), Vec::<String>::new());
}
