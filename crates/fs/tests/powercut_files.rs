//! Power failures while files are written through the cache.
//!
//! Goal: after any power failure the file system opens without repair and passes the check; the
//! names are those after one of the operations between the last fsync and the failure, so a rename
//! has happened or has not; a file has its content of the last fsync, except for later changes:
//! every word of it is one that was in that place since then. A snapshot taken with dirty pages
//! shows the file at some moment between its last fsync and the snapshot, and never changes.
//! Method: random operations through two lanes and a cache with fast write-behind (whose thread
//! makes the log of the disk differ from run to run), on a disk with a volatile cache, which is
//! then cut at random points, keeping any part of the volatile writes.
//!
//! `EVFS_CUTS` is the number of images, in steps of 100. Five thousand in pieces, each with its own
//! seeds: `for s in 1 2 3 4 5 6 7 8 9 10; do EVFS_SEED=${s}00 EVFS_CUTS=500 cargo test -p evfs-fs --test
//! powercut_files; done`

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random, Tear};
use cache::{Cache, Config};
use common::client::Client;
use common::{amount, assert_clean, format, open, seed};
use fs::{
    Allocate, Compression, FIRST_FILESET, FileType, Files, Fs, Handle, Ino, Lane, New,
    WritePosition,
};
use fs::{ROOT, Rename, SetAttr};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const NEW: New = New::of_root(FileType::File, 0o644);
const SIZE_MAX: u64 = 100_000;
const NAMES: u64 = 8;
/// Number of images per recording.
const CUTS_PER_PART: usize = 100;
const STEPS: usize = 600;

type Names = BTreeMap<Vec<u8>, Ino>;
type Content = Arc<Vec<u8>>;

/// Content of a file after each change, with the number of disk events when the change began.
#[derive(Default)]
struct Past {
    versions: Vec<(usize, Content)>,
    /// Number of disk events when a version was durable, and the number of the version.
    synced: Vec<(usize, usize)>,
}

struct Snapshot {
    /// Number of disk events before it was begun, and after it was durable.
    begun: usize,
    made: usize,
    names: Names,
    /// Newest version of each file.
    versions: BTreeMap<Ino, usize>,
}

struct History {
    /// Number of disk events before each operation, and the names after it.
    names: Vec<(usize, Names)>,
    /// Number of disk events when names were durable, and the number of elements of `names` then.
    synced: Vec<(usize, usize)>,
    files: BTreeMap<Ino, Past>,
    snapshots: BTreeMap<String, Snapshot>,
}

struct Work {
    fs: Fs,
    disk: Arc<PowerCut>,
    files: Arc<Files>,
    lanes: Vec<Lane>,
    random: Random,
    names: Names,
    open: BTreeMap<Ino, Handle>,
    counter: u64,
    history: History,
}

impl Work {
    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.random.below(NAMES)).into_bytes()
    }

    fn file(&mut self) -> Option<Ino> {
        let at = self.random.below(self.open.len().max(1) as u64) as usize;
        self.open.keys().nth(at).copied()
    }

    fn content(&self, ino: Ino) -> Vec<u8> {
        let past = &self.history.files[&ino];
        past.versions.last().map_or(Vec::new(), |(_, c)| c.to_vec())
    }

    /// Returns words that identify their file.
    fn words(&mut self, ino: Ino, bytes: u64) -> Vec<u8> {
        let counter = &mut self.counter;
        let word = |_| {
            *counter += 1;
            (ino << 32 | *counter).to_le_bytes()
        };
        (0..bytes / 8).flat_map(word).collect()
    }

    fn changed(&mut self, ino: Ino, begun: usize, content: Vec<u8>) {
        let past = self.history.files.get_mut(&ino).expect("it was made");
        past.versions.push((begun, Arc::new(content)));
    }

    fn step(&mut self) {
        let begun = self.disk.events();
        match self.random.below(20) {
            0 | 1 => self.create(begun),
            2 => self.unlink(),
            3 | 4 => self.rename(begun),
            5..=7 => self.write(begun),
            8 | 9 => self.copy(begun),
            10 => self.cut(begun),
            11..=13 => self.allocate(begun),
            14 | 15 => self.sync_one(),
            16 if self.random.below(3) == 0 => self.sync_all(),
            17 if self.random.below(3) == 0 => self.fs.commit().expect("committed"),
            18 if self.random.below(4) == 0 => self.snapshot(begun),
            // Time for write-behind.
            _ => std::thread::sleep(Duration::from_millis(3)),
        }
        self.history.names.push((begun, self.names.clone()));
    }

    fn create(&mut self, begun: usize) {
        let name = self.name();
        if self.names.contains_key(&name) {
            return;
        }
        let ino = match self.random.below(3) {
            // Created without a name first.
            0 => {
                let (attr, file) = self.files.create_unnamed(ROOT, &NEW).expect("made");
                self.open.insert(attr.ino, file);
                self.files.link(attr.ino, ROOT, &name).expect("named");
                attr.ino
            }
            _ => {
                let ino = self.files.create(ROOT, &name, &NEW).expect("made").ino;
                self.open.insert(ino, self.files.open(ino).expect("open"));
                ino
            }
        };
        self.names.insert(name, ino);
        self.history.files.insert(ino, Past::default());
        self.changed(ino, begun, Vec::new());
    }

    fn gone(&mut self, ino: Ino) {
        drop(self.open.remove(&ino));
    }

    fn unlink(&mut self) {
        let name = self.name();
        if let Some(ino) = self.names.remove(&name) {
            self.files.unlink(ROOT, &name).expect("removed");
            self.gone(ino);
        }
    }

    fn rename(&mut self, begun: usize) {
        let (from, to) = (self.name(), self.name());
        let Some(ino) = self.names.get(&from).copied() else {
            return;
        };
        if from == to {
            return;
        }
        let leaves = self.random.below(3) == 0;
        let how = if leaves {
            Rename::Whiteout {
                uid: 1,
                gid: 1,
                replaces: true,
            }
        } else {
            Rename::Replace
        };
        let renamed = self.files.rename((ROOT, &from), (ROOT, &to), how);
        renamed.expect("renamed");
        if leaves {
            let whiteout = self.files.lookup(ROOT, &from).expect("there");
            assert_eq!(whiteout.inode.mode(), libc::S_IFCHR);
            self.names.insert(from, whiteout.ino);
            self.history.files.insert(whiteout.ino, Past::default());
            self.changed(whiteout.ino, begun, Vec::new());
        } else {
            self.names.remove(&from);
        }
        if let Some(replaced) = self.names.insert(to, ino) {
            self.gone(replaced);
        }
    }

    fn write(&mut self, begun: usize) {
        let Some(ino) = self.file() else { return };
        let bytes = 8 * (1 + self.random.below(3000));
        let data = self.words(ino, bytes);
        let mut content = self.content(ino);
        let (to, offset) = match self.random.below(3) {
            0 => (WritePosition::End, content.len()),
            _ => {
                let offset = self.random.below(SIZE_MAX / 8) * 8;
                (WritePosition::Offset(offset), offset as usize)
            }
        };
        let lane = &mut self.lanes[(bytes / 8 % 2) as usize];
        let at = lane.write(&self.open[&ino], to, &data).expect("written");
        assert_eq!(at, offset as u64);
        content.resize(content.len().max(offset + data.len()), 0);
        content[offset..offset + data.len()].copy_from_slice(&data);
        self.changed(ino, begun, content);
    }

    /// Copies blocks, and often bytes around them, between two files or within one.
    fn copy(&mut self, begun: usize) {
        let (Some(from), Some(to)) = (self.file(), self.file()) else {
            return;
        };
        let unit = if self.random.below(4) == 0 { 8 } else { 4096 };
        let mut place = |max: u64| self.random.below(max / unit) * unit;
        let (at, to_at, len) = (place(SIZE_MAX), place(SIZE_MAX), unit + place(60_000));
        if from == to && at.abs_diff(to_at) < len {
            return;
        }
        let source = self.content(from);
        let end = source.len().min((at + len) as usize);
        let copied = source.get(at as usize..end).unwrap_or_default();
        let mut done = 0;
        while done < copied.len() as u64 {
            let lane = &mut self.lanes[(to / 2 % 2) as usize];
            let (one, two) = (&self.open[&from], &self.open[&to]);
            let left = copied.len() as u64 - done;
            let part = lane.copy((one, at + done), (two, to_at + done), left);
            done += part.expect("copied");
        }
        if done > 0 {
            let (mut content, start) = (self.content(to), to_at as usize);
            content.resize(content.len().max(start + copied.len()), 0);
            content[start..start + copied.len()].copy_from_slice(copied);
            self.changed(to, begun, content);
        }
    }

    fn cut(&mut self, begun: usize) {
        let Some(ino) = self.file() else { return };
        let size = self.random.below(SIZE_MAX / 8) * 8;
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.lanes[0].set_attr(ino, &set).expect("cut");
        let mut content = self.content(ino);
        content.resize(size as usize, 0);
        self.changed(ino, begun, content);
    }

    fn allocate(&mut self, begun: usize) {
        let Some(ino) = self.file() else { return };
        let from = self.random.below(SIZE_MAX / 8) * 8;
        let to = from + 8 * (1 + self.random.below(4000));
        let how = [Allocate::Punch, Allocate::Zero, Allocate::Grow][self.random.below(3) as usize];
        let file = &self.open[&ino];
        self.lanes[1].allocate(file, from..to, how).expect("done");
        let mut content = self.content(ino);
        if how != Allocate::Punch && (content.len() as u64) < to {
            content.resize(to as usize, 0);
        }
        if how != Allocate::Grow {
            let end = content.len();
            content[end.min(from as usize)..end.min(to as usize)].fill(0);
        }
        self.changed(ino, begun, content);
    }

    fn note_names(&mut self, event: usize) {
        self.history.synced.push((event, self.history.names.len()));
    }

    fn note_content(&mut self, ino: Ino, event: usize) {
        let past = self.history.files.get_mut(&ino).expect("it was made");
        past.synced.push((event, past.versions.len() - 1));
    }

    fn sync_one(&mut self) {
        let Some(ino) = self.file() else { return };
        let lane = &mut self.lanes[(ino / 2 % 2) as usize];
        lane.sync(&self.open[&ino]).expect("synced");
        let event = self.disk.events();
        self.note_content(ino, event);
        self.note_names(event);
    }

    fn sync_all(&mut self) {
        self.files.sync().expect("synced");
        let event = self.disk.events();
        let all: Vec<Ino> = self.open.keys().copied().collect();
        all.into_iter()
            .for_each(|ino| self.note_content(ino, event));
        self.note_names(event);
    }

    /// Takes a snapshot of a fileset with dirty pages.
    fn snapshot(&mut self, begun: usize) {
        let name = format!("snapshot {begun} {}", self.history.names.len());
        let id = self.files.fileset().id();
        self.fs.snapshot(id, &name).expect("a snapshot");
        let made = self.disk.events();
        let newest = |ino: &Ino| self.history.files[ino].versions.len() - 1;
        let versions = self.names.values().map(|ino| (*ino, newest(ino)));
        let snapshot = Snapshot {
            begun,
            made,
            names: self.names.clone(),
            versions: versions.collect(),
        };
        self.history.snapshots.insert(name, snapshot);
        self.note_names(made);
    }
}

fn record(disk: &Arc<PowerCut>, seed: u64) -> History {
    let device: Arc<dyn BlockDevice> = disk.clone();
    let fs = open(&device);
    let config = Config {
        sync_interval: Duration::from_millis(10),
        tick: Duration::from_millis(2),
        ..Config::new(1 << 20)
    };
    let cache = Cache::new(config).expect("a cache");
    let main = fs.fileset_named(FIRST_FILESET).expect("there");
    let method = [Compression::Lz4, Compression::Zstd][(seed % 2) as usize];
    fs.set_compression(main.id(), Some(method)).expect("set");
    let files = Files::new(&main, &cache).expect("files");
    let mut work = Work {
        fs,
        disk: Arc::clone(disk),
        lanes: vec![files.lane().expect("a lane"), files.lane().expect("a lane")],
        files,
        random: Random::new(seed),
        names: Names::new(),
        open: BTreeMap::new(),
        counter: 0,
        history: History {
            names: vec![(0, Names::new())],
            synced: Vec::new(),
            files: BTreeMap::new(),
            snapshots: BTreeMap::new(),
        },
    };
    for _ in 0..STEPS {
        work.step();
    }
    work.open.clear();
    work.lanes.clear();
    work.files.close().expect("closed");
    work.history
}

fn names_of(fileset: &fs::Fileset) -> Names {
    let mut names = Names::new();
    let list = |entry: fs::DirEntry| {
        names.insert(entry.name.to_vec(), entry.ino);
        Ok(true)
    };
    fileset.read_dir(ROOT, 2, list).expect("it lists");
    names
}

/// Checks that each word of a file is from one of these versions at that place; beyond the end of
/// one of them it may be zero.
fn assert_of(found: &[u8], versions: &[(usize, Content)], context: &str) {
    let sizes = || versions.iter().map(|(_, content)| content.len());
    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    assert!(
        (least..=most).contains(&found.len()),
        "{context}: {} bytes, and there were {least} to {most}",
        found.len()
    );
    for (at, word) in found.chunks(8).enumerate().map(|(i, word)| (i * 8, word)) {
        let zero = word.iter().all(|byte| *byte == 0);
        let had = |(_, content): &(usize, Content)| match content.get(at..at + word.len()) {
            Some(there) => there == word,
            None => zero,
        };
        assert!(
            versions.iter().any(had),
            "{context}: {word:?} at {at} of {} versions",
            versions.len()
        );
    }
}

/// Returns the versions that a file may be a mixture of, up to version `newest`.
fn possible(past: &Past, point: usize, newest: usize) -> &[(usize, Content)] {
    let synced = past.synced.iter().filter(|(event, _)| *event <= point);
    let oldest = synced.map(|(_, version)| *version).max().unwrap_or(0);
    &past.versions[oldest.min(newest)..=newest]
}

fn check(image: Mem, history: &History, point: usize, context: &str) {
    let device: Arc<dyn BlockDevice> = Arc::new(image);
    let fs = Fs::open(common::keyed(&device), common::options());
    let fs = fs.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    let unverified = assert_clean(&fs, context);
    assert_eq!(unverified, 0, "{context}");
    let mut client = Client::new(fs.fileset_named(FIRST_FILESET).expect("there"));
    let found = names_of(&client.fileset);
    let synced = history.synced.iter().rfind(|(event, _)| *event <= point);
    let oldest = synced.map_or(0, |(_, number)| number - 1);
    let newest = history.names.iter().rposition(|(begun, _)| *begun <= point);
    let newest = newest.expect("the first");
    let mut window = history.names[oldest.min(newest)..=newest].iter();
    assert!(
        window.any(|(_, names)| *names == found),
        "{context}: the names are those of none of the moments {oldest} to {newest}: {found:?}"
    );
    for ino in found.values() {
        let past = &history.files[ino];
        let newest = past.versions.iter().rposition(|(begun, _)| *begun <= point);
        let versions = possible(past, point, newest.expect("it was made"));
        let data = client.read(*ino, 0, SIZE_MAX * 10).expect("readable");
        assert_of(&data, versions, &format!("{context}: file {ino}"));
    }
    for (name, snapshot) in &history.snapshots {
        let there = fs.fileset_named(name);
        let Ok(there) = there else {
            assert!(snapshot.made > point, "{context}: {name} is gone");
            continue;
        };
        assert!(
            snapshot.begun <= point,
            "{context}: {name} is there too early"
        );
        assert_eq!(names_of(&there), snapshot.names, "{context}: {name}");
        let mut client = Client::new(there);
        for (ino, newest) in &snapshot.versions {
            let versions = possible(&history.files[ino], snapshot.begun, *newest);
            let data = client.read(*ino, 0, SIZE_MAX * 10).expect("readable");
            let context = format!("{context}: {name}: file {ino}");
            assert_of(&data, versions, &context);
        }
    }
}

#[test]
fn cuts_while_the_cache_writes_leave_what_was_synced_and_nothing_else() {
    let seed = seed(1);
    let parts = amount("EVFS_CUTS", 200).div_ceil(CUTS_PER_PART);
    for seed in (seed..).take(parts) {
        let mem = Arc::new(Mem::new(48 << 20, 512));
        let device: Arc<dyn BlockDevice> = mem.clone();
        format(&device);
        let disk = Arc::new(PowerCut::new(&mem));
        let history = record(&disk, seed);
        assert!(history.synced.len() > 20 && !history.snapshots.is_empty());
        let end: Arc<dyn BlockDevice> = Arc::new(disk.crash(disk.events(), Tear::Keep));
        assert!(open(&end).check().expect("checked").chunks > 0);
        for crash in disk.images(seed, CUTS_PER_PART) {
            let context = format!("EVFS_SEED={seed}, {crash}");
            check(crash.image, &history, crash.point, &context);
        }
    }
}
