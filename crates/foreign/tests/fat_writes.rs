//! FAT written by EVFS, against a model in memory, `fsck.vfat`, and other readers; and the states
//! that a power cut leaves.
//!
//! `EVFS_SEED` is the first seed, `EVFS_SEEDS` the number of histories of `EVFS_OPERATIONS` each;
//! `EVFS_CUTS` the number of power cuts of each of four histories.

mod common;

use block::{Access, BlockDevice, Blocking};
use block_testing::{Mem, PowerCut, Random};
use common::fat::{
    Paths, bytes_of, content, disk_of, entries_of, fsck, make, open, paths_of, repaired,
};
use common::{cache, noise, run};
use foreign::{Files, Kind, Lane, New, ROOT, SetAttr, Time};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Options of mkfs.vfat and sizes in KiB.
const KINDS: &[(&[&str], u64)] = &[
    (&["-F", "12", "-s", "1"], 1440),
    (&["-F", "16", "-s", "2"], 8 << 10),
    (&["-F", "32", "-s", "1"], 36 << 10),
    (&["-F", "16", "-s", "1", "-S", "4096"], 24 << 10),
];

/// Names of files, some of which are the same one to the format.
const NAMES: &[&str] = &[
    "README.TXT",
    "readme.txt",
    "a",
    "A long name with spaces.text",
    "A LONG NAME with spaces.TEXT",
    "A long name with spaces and more",
    "äöü ß 字.txt",
    ".hidden",
    "x.y.z",
    "UPPER",
    "a name that takes more than four entries of a directory, because it is so long",
];

fn number_of(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// A file system and its model.
struct Pair {
    files: Arc<Files>,
    lane: Lane,
    model: Paths,
    random: Random,
    /// Removed files that are in use, with their content.
    orphans: Vec<(u64, Vec<u8>)>,
}

impl Pair {
    fn new(files: Arc<Files>, random: Random) -> Pair {
        Pair {
            lane: files.lane().expect("a lane"),
            files,
            model: Paths::new(),
            random,
            orphans: Vec::new(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// Chooses a directory: its path and its node.
    fn dir(&mut self) -> (String, u64) {
        let dirs = self.model.values().filter(|(_, bytes)| bytes.is_none());
        let mut dirs: Vec<String> = dirs.map(|(path, _)| path.clone()).collect();
        dirs.push(String::new());
        let at = self.below(dirs.len());
        let path = dirs.swap_remove(at);
        (path.clone(), self.node(&path).expect("it exists"))
    }

    fn name(&mut self) -> String {
        match self.below(3) {
            0 => format!("file number {}", self.below(40)),
            _ => NAMES[self.below(NAMES.len())].to_owned(),
        }
    }

    /// Chooses an existing file.
    fn file(&mut self) -> Option<(String, u64)> {
        let files = self.model.iter().filter(|(_, (_, bytes))| bytes.is_some());
        let keys: Vec<String> = files.map(|(key, _)| key.clone()).collect();
        if keys.is_empty() {
            return None;
        }
        let key = keys[self.below(keys.len())].clone();
        let node = self.node(&key).expect("it exists");
        Some((key, node))
    }

    fn node(&mut self, path: &str) -> foreign::Result<u64> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(ROOT, |dir, name| {
            Ok(self.lane.lookup(dir, name.as_bytes())?.0)
        })
    }

    fn bytes(&mut self, key: &str) -> &mut Vec<u8> {
        let file = self
            .model
            .get_mut(key)
            .and_then(|(_, bytes)| bytes.as_mut());
        file.expect("a file")
    }

    /// Reports whether a result is that of the model; a full device is one.
    fn is_done<T>(done: foreign::Result<T>, expected: Option<Kind>) -> Option<T> {
        match done {
            Ok(value) => {
                assert_eq!(expected, None);
                Some(value)
            }
            Err(error) if error.kind() == Kind::NoSpace && expected.is_none() => None,
            Err(error) => {
                assert_eq!(Some(error.kind()), expected, "{error}");
                None
            }
        }
    }

    fn create(&mut self) {
        let (dir, node) = self.dir();
        let path = format!("{dir}/{}", self.name());
        let key = path.to_lowercase();
        let kind = if self.below(4) == 0 {
            New::Directory
        } else {
            New::File
        };
        let expected = self.model.contains_key(&key).then_some(Kind::Exists);
        let name = &path.as_bytes()[dir.len() + 1..];
        let made = self.lane.create(node, name, kind);
        if Pair::is_done(made, expected).is_some() {
            let bytes = (kind == New::File).then(Vec::new);
            self.model.insert(key, (path, bytes));
        }
    }

    fn write(&mut self) {
        let Some((key, node)) = self.file() else {
            return;
        };
        let size = self.bytes(&key).len();
        let at = match self.below(3) {
            0 => size,
            1 => self.below(size + 1),
            _ => self.below(size + 20_000),
        };
        let most = [20, 600, 5000, 70_000][self.below(4)];
        let data = noise(self.random.next_u64(), 1 + self.below(most));
        if let Some(len) = Pair::is_done(self.lane.write(node, at as u64, &data), None) {
            let bytes = self.bytes(&key);
            bytes.resize(bytes.len().max(at + len), 0);
            bytes[at..at + len].copy_from_slice(&data[..len]);
        } else {
            assert_eq!(content(&mut self.lane, node).len(), size);
        }
    }

    fn set_size(&mut self) {
        let Some((key, node)) = self.file() else {
            return;
        };
        let size = self.bytes(&key).len();
        let size = match self.below(3) {
            0 => 0,
            1 => self.below(size + 1),
            _ => size + self.below(30_000),
        };
        if Pair::is_done(self.lane.set_size(node, size as u64), None).is_some() {
            self.bytes(&key).resize(size, 0);
        }
    }

    fn has_children(&self, key: &str) -> bool {
        let prefix = format!("{key}/");
        self.model.keys().any(|other| other.starts_with(&prefix))
    }

    fn remove(&mut self) {
        let (dir, node) = self.dir();
        let path = format!("{dir}/{}", self.name());
        let key = path.to_lowercase();
        let name = &path.as_bytes()[dir.len() + 1..];
        let kind = if self.below(3) == 0 {
            New::Directory
        } else {
            New::File
        };
        let expected = match self.model.get(&key) {
            None => Some(Kind::NotFound),
            Some((_, None)) if kind == New::File => Some(Kind::IsDirectory),
            Some((_, Some(_))) if kind == New::Directory => Some(Kind::NotDirectory),
            Some((_, None)) if self.has_children(&key) => Some(Kind::NotEmpty),
            Some(_) => None,
        };
        let held = match expected {
            None if kind == New::File && self.below(4) == 0 => self.node(&key).ok(),
            _ => None,
        };
        if let Some(held) = held {
            self.files.remember(held);
        }
        if Pair::is_done(self.lane.remove(node, name, kind), expected).is_some() {
            let (_, bytes) = self.model.remove(&key).expect("it exists");
            if let Some(held) = held {
                self.orphans.push((held, bytes.expect("a file")));
            }
        }
    }

    fn rename(&mut self) {
        let ((from_dir, from_node), (to_dir, to_node)) = (self.dir(), self.dir());
        let from = format!("{from_dir}/{}", self.name());
        let to = format!("{to_dir}/{}", self.name());
        let (from_key, to_key) = (from.to_lowercase(), to.to_lowercase());
        let replace = self.below(4) > 0;
        let source = self.model.get(&from_key).cloned();
        let target = self.model.get(&to_key).cloned();
        let inside = |key: &str| format!("{key}/").starts_with(&format!("{from_key}/"));
        let expected = match (&source, &target) {
            (None, _) => Some(Kind::NotFound),
            _ if from_key == to_key && source.as_ref().is_some_and(|(path, _)| *path == to) => None,
            (Some((_, None)), _) if inside(&to_dir.to_lowercase()) => Some(Kind::Invalid),
            (_, None) => None,
            _ if from_key == to_key => None,
            (_, Some(_)) if !replace => Some(Kind::Exists),
            (Some((_, None)), Some((_, Some(_)))) => Some(Kind::NotDirectory),
            (Some((_, Some(_))), Some((_, None))) => Some(Kind::IsDirectory),
            (_, Some((_, None))) if self.has_children(&to_key) => Some(Kind::NotEmpty),
            _ => None,
        };
        let names = (
            &from.as_bytes()[from_dir.len() + 1..],
            &to.as_bytes()[to_dir.len() + 1..],
        );
        let renamed = self
            .lane
            .rename((from_node, names.0), (to_node, names.1), replace);
        if Pair::is_done(renamed, expected).is_none() {
            return;
        }
        // A replaced file leaves the case of its name.
        let to = match target {
            Some((path, _)) if from_key != to_key => path,
            _ => to,
        };
        let (old_path, bytes) = self.model.remove(&from_key).expect("it exists");
        self.model.insert(to_key.clone(), (to.clone(), bytes));
        let prefix = format!("{from_key}/");
        let inner: Vec<String> = self
            .model
            .keys()
            .filter(|key| key.starts_with(&prefix))
            .cloned()
            .collect();
        for key in inner {
            let (path, bytes) = self.model.remove(&key).expect("it exists");
            let path = format!("{to}{}", &path[old_path.len()..]);
            self.model.insert(path.to_lowercase(), (path, bytes));
        }
    }

    fn use_orphan(&mut self) {
        let Some((node, mut bytes)) = self.orphans.pop() else {
            return;
        };
        assert_eq!(content(&mut self.lane, node), bytes);
        let data = noise(node, 3000);
        if self.below(2) == 0
            && Pair::is_done(self.lane.write(node, 100, &data), None) == Some(3000)
        {
            bytes.resize(bytes.len().max(3100), 0);
            bytes[100..3100].copy_from_slice(&data);
            return self.orphans.push((node, bytes));
        }
        self.lane.forget(node, 1).expect("forgotten");
    }

    fn attributes(&mut self) {
        let Some((key, node)) = self.file() else {
            return;
        };
        let seconds = 315_532_800 + 2 * self.random.below(2_000_000_000) as i64;
        let read_only = self.below(2) == 0;
        let time = Time { seconds, nanos: 0 };
        let set = SetAttr {
            read_only: Some(read_only),
            modified: Some(time),
            accessed: Some(time),
        };
        self.lane.set_attr(node, &set).expect("changed");
        let attr = self.lane.attr(node).expect("attributes");
        assert_eq!(attr.modified, time);
        assert_eq!(attr.accessed.seconds, seconds - seconds % 86_400);
        assert_eq!(attr.mode & 0o222 == 0, read_only);
        assert_eq!(attr.size, self.bytes(&key).len() as u64);
    }

    fn step(&mut self) {
        match self.below(24) {
            0..5 => self.create(),
            5..11 => self.write(),
            11..13 => self.set_size(),
            13..16 => self.remove(),
            16..19 => self.rename(),
            19 => self.use_orphan(),
            20 => self.attributes(),
            21 => {
                if let Some((_, node)) = self.file() {
                    self.lane.sync(node).expect("durable");
                }
            }
            22 if self.below(4) == 0 => self.files.sync().expect("durable"),
            _ => {
                if let Some((key, node)) = self.file() {
                    assert_eq!(&content(&mut self.lane, node), self.bytes(&key));
                }
            }
        }
    }
}

/// Compares a directory filled by another reader with the model.
fn same_as_directory(dir: &Path, model: &Paths) {
    let (mut found, mut todo) = (Paths::new(), vec![String::new()]);
    while let Some(path) = todo.pop() {
        for entry in std::fs::read_dir(dir.join(path.trim_start_matches('/'))).expect("entries") {
            let entry = entry.expect("an entry");
            let inner = format!("{path}/{}", entry.file_name().to_str().expect("a text"));
            let is_dir = entry.file_type().expect("a type").is_dir();
            let bytes = (!is_dir).then(|| std::fs::read(entry.path()).expect("read"));
            if bytes.is_none() {
                todo.push(inner.clone());
            }
            found.insert(inner.to_lowercase(), (inner, bytes));
        }
    }
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        model.keys().collect::<Vec<_>>()
    );
    assert!(found == *model, "the content or the case of a name differs");
}

/// Reads the image by the kernel's vfat if it has that, and by mtools.
fn same_for_others(dir: &Path, bytes: &[u8], model: &Paths) {
    let image = dir.join("image");
    std::fs::write(&image, bytes).expect("written");
    let copy = dir.join("copy");
    let _ = std::fs::remove_dir_all(&copy);
    std::fs::create_dir(&copy).expect("created");
    let ran = Command::new(test_support::installed("mcopy"))
        .args(["-s", "-n", "-Q", "-i"])
        .arg(&image)
        .arg("::/")
        .arg(&copy)
        .env("LC_ALL", "C.UTF-8")
        // mtools takes a link to the last cluster of a file system for damage.
        .env("MTOOLS_SKIP_CHECK", "1")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "mcopy: {said}");
    same_as_directory(&copy, model);
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.contains("\tvfat\n") && rustix::process::geteuid().is_root() {
        let at = dir.join("mounted");
        std::fs::create_dir_all(&at).expect("created");
        let options = "loop,ro,utf8=1";
        run(
            "mount",
            &[
                "-o".as_ref(),
                options.as_ref(),
                image.as_os_str(),
                at.as_os_str(),
            ],
        );
        same_as_directory(&at, model);
        run("umount", &[&at]);
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn random_changes_are_those_of_the_model_and_pass_fsck() {
        let (first, seeds) = (number_of("EVFS_SEED", 0), number_of("EVFS_SEEDS", 8));
        let steps = number_of("EVFS_OPERATIONS", 600);
        let dir = tempfile::tempdir().expect("a directory");
        let cache = cache();
        for seed in first..first + seeds {
            let (options, kib) = KINDS[seed as usize % KINDS.len()];
            let start = make(dir.path(), options, kib);
            let device: Arc<dyn BlockDevice> = Arc::new(disk_of(&start));
            let mut pair = Pair::new(open(&device, &cache), Random::new(seed));
            for _ in 0..3 {
                for _ in 0..steps / 3 {
                    pair.step();
                }
                assert!(paths_of(&pair.files) == pair.model, "seed {seed}");
                let Pair {
                    files,
                    lane,
                    model,
                    random,
                    ..
                } = pair;
                drop(lane);
                files.close().expect("it closes");
                let bytes = bytes_of(&*device);
                let (clean, text) = fsck(dir.path(), &bytes);
                assert!(clean, "seed {seed}: {text}");
                same_for_others(dir.path(), &bytes, &model);
                pair = Pair {
                    model,
                    ..Pair::new(open(&device, &cache), random)
                };
                assert!(
                    paths_of(&pair.files) == pair.model,
                    "seed {seed}: after opening again"
                );
            }
        }
    }

    /// Texts of fsck.vfat for damage that no power cut may cause. Clusters without a file, a chain
    /// longer than its file, two names of a file, parts of a long name that belong to no entry (readers
    /// pass over them), the number of free clusters and the dirty bit are no such damage.
    const DAMAGE: &[&str] = &[
        "free cluster (",
        "cluster chain length is ",
        "ad start",
        "Circular",
        "out of range",
        "Bad file name",
        "does not point",
        "no contents",
        "Couldn't",
    ];

    /// Returns the clusters of a file as mshowfat prints them.
    fn clusters(image: &Path, path: &str) -> String {
        let ran = Command::new(test_support::installed("mshowfat"))
            .arg("-i")
            .arg(image)
            .arg(format!("::{path}"))
            .env("LC_ALL", "C.UTF-8")
            .env("MTOOLS_SKIP_CHECK", "1")
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        let (_, clusters) = text.trim_end().rsplit_once(' ').expect("clusters");
        assert!(clusters.starts_with('<'), "{path}: {text}");
        clusters.to_owned()
    }

    /// Removes what fsck.vfat says about a file with two names, and checks that these are of one file.
    ///
    /// A power cut during a rename can leave both; fsck.vfat makes the second an empty file.
    fn without_renames(text: &str, image: &Path) -> String {
        let mut text = text.to_owned();
        while let Some((before, rest)) = text.split_once("  and\n") {
            let (before, one) = before.rsplit_once('\n').expect("a line");
            let shared = "\n  share clusters.\n  Truncating second to 0 bytes.\n";
            let (two, after) = rest.split_once(shared).expect("two names");
            assert_eq!(clusters(image, one), clusters(image, two), "{one}, {two}");
            let mut after = after.to_owned();
            if let Some(at) = after.find(&format!("{two}\n  File size is ")) {
                let end = "cluster chain length is 0 bytes.\n";
                let len = after[at..].find(end).expect("an empty file") + end.len();
                assert_eq!(after[at..at + len].lines().count(), 2);
                after.replace_range(at..at + len, "");
            }
            text = format!("{before}\n{after}");
        }
        text
    }

    #[test]
    fn a_power_cut_leaves_lost_clusters_or_short_files_at_worst() {
        let count = number_of("EVFS_CUTS", 60) as usize;
        let dir = tempfile::tempdir().expect("a directory");
        let cache = cache();
        let kinds = [
            (&["-F", "16", "-s", "1"][..], 4 << 10, count),
            // The smallest of 32 bits takes as long as eight of the others.
            (&["-F", "32", "-s", "1"], 34 << 10, count.div_ceil(4)),
        ];
        let first = number_of("EVFS_SEED", 0);
        for seed in first..first + 4 {
            let (options, kib, count) = kinds[seed as usize % 2];
            let disk = PowerCut::new(&disk_of(&make(dir.path(), options, kib)));
            let disk = Arc::new(disk);
            let device: Arc<dyn BlockDevice> = Arc::clone(&disk) as _;
            let mut pair = Pair::new(open(&device, &cache), Random::new(seed + 100));
            // Content that is durable from an event on, until a change.
            let mut durable: Vec<(usize, usize, String, Vec<u8>)> = Vec::new();
            for n in 0..250 {
                if n % 10 == 9 {
                    // A file of its own, which nothing else changes.
                    let name = format!("kept {n}");
                    let node = pair.lane.create(ROOT, name.as_bytes(), New::File);
                    if let Some(node) = Pair::is_done(node, None) {
                        let data = noise(n, 3000 + n as usize);
                        if Pair::is_done(pair.lane.write(node, 0, &data), None) == Some(data.len())
                        {
                            pair.lane.sync(node).expect("durable");
                            durable.push((disk.events(), usize::MAX, name.clone(), data.clone()));
                            let key = format!("/{name}");
                            pair.model.insert(key.clone(), (key, Some(data)));
                        }
                    }
                } else {
                    pair.step();
                }
                // The steps choose any file.
                for (_, until, name, data) in &mut durable {
                    let same = pair.model.get(&format!("/{name}"));
                    if same.is_none_or(|(_, bytes)| bytes.as_ref() != Some(data)) {
                        *until = (*until).min(disk.events());
                    }
                }
            }
            let Pair { lane, files, .. } = pair;
            drop(lane);
            files.close().expect("it closes");
            let mut checked = 0;
            for crash in disk.images(seed, count) {
                let bytes = bytes_of(&crash.image);
                let (_, text) = fsck(dir.path(), &bytes);
                let text = text.replace("cluster chain length is > ", "longer than ");
                let text = without_renames(&text, &dir.path().join("checked"));
                for damage in DAMAGE {
                    assert!(!text.contains(damage), "seed {seed}, {crash}: {text}");
                }
                let clean = repaired(dir.path(), &bytes);
                let files = Files::open(Arc::new(disk_of(&clean)), &cache).expect("it opens");
                // While a file replaces another, both can have the name.
                let paths: Paths = entries_of(&files).into_iter().collect();
                for (from, until, name, data) in &durable {
                    if *from <= crash.point && crash.point < *until {
                        let found = paths.get(&format!("/{name}"));
                        let same = found.and_then(|(_, bytes)| bytes.as_ref()) == Some(data);
                        assert!(same, "seed {seed}, {crash}: {name} is not whole");
                        checked += 1;
                    }
                }
            }
            assert!(checked > 0);
        }
    }

    #[test]
    fn the_dirty_bit_is_set_from_the_first_change_to_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = cache();
        for (options, kib) in KINDS {
            let start = make(dir.path(), options, *kib);
            let device: Arc<dyn BlockDevice> = Arc::new(disk_of(&start));
            let files = open(&device, &cache);
            assert!(files.is_writable());
            assert!(bytes_of(&*device) == start, "opening changes nothing");
            files.close().expect("it closes");
            assert!(bytes_of(&*device) == start, "reading changes nothing");
            let files = open(&device, &cache);
            let mut lane = files.lane().expect("a lane");
            lane.create(ROOT, b"new", New::File).expect("created");
            lane.sync_all().expect("durable");
            let (_, text) = fsck(dir.path(), &bytes_of(&*device));
            assert!(text.contains("Dirty bit is set"), "{text}");
            let refused = Files::open(Arc::clone(&device), &cache)
                .err()
                .expect("refused");
            assert_eq!(refused.kind(), Kind::Unsupported);
            drop(lane);
            files.close().expect("it closes");
            assert!(fsck(dir.path(), &bytes_of(&*device)).0);
        }
    }

    #[test]
    fn a_full_device_refuses_writes_and_frees_the_space_of_removed_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = cache();
        for (options, kib) in KINDS {
            let device: Arc<dyn BlockDevice> = Arc::new(disk_of(&make(dir.path(), options, *kib)));
            let files = open(&device, &cache);
            let mut lane = files.lane().expect("a lane");
            let empty = files.tree().space();
            let node = lane.create(ROOT, b"large", New::File).expect("created");
            let (data, mut size) = (vec![7; 1 << 16], 0);
            let error = loop {
                match lane.write(node, size, &data) {
                    Ok(len) => size += len as u64,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), Kind::NoSpace);
            assert_eq!(error.errno(), libc::ENOSPC);
            assert_eq!(lane.attr(node).expect("attributes").size, size);
            assert!(files.tree().space().free * u64::from(empty.block_bytes) < 4096);
            // The space is used again before the removal is on the device.
            lane.sync_all().expect("durable");
            lane.remove(ROOT, b"large", New::File).expect("removed");
            let node = lane.create(ROOT, b"again", New::File).expect("created");
            let again = lane.write(node, 0, &vec![8; size as usize]).expect("space");
            assert_eq!(again as u64, size);
            lane.set_size(node, 0).expect("shorter");
            lane.remove(ROOT, b"again", New::File).expect("removed");
            lane.sync_all().expect("durable");
            assert!(files.tree().space().free + 8 >= empty.free);
            drop(lane);
            files.close().expect("it closes");
            let (clean, text) = fsck(dir.path(), &bytes_of(&*device));
            assert!(clean, "{text}");
        }
    }

    #[test]
    fn a_device_with_longer_blocks_than_the_sectors_is_only_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let bytes = make(dir.path(), &["-F", "16", "-s", "1"], 8 << 10);
        let device = Mem::new(bytes.len() as u64, 4096);
        Blocking::open(&device)
            .expect("a queue")
            .write_at(0, &bytes)
            .expect("written");
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let refused = Files::open_with(Arc::clone(&device), &cache(), Access::ReadWrite);
        let refused = refused.err().expect("refused");
        assert_eq!(refused.kind(), Kind::Unsupported);
        assert!(refused.to_string().contains("--read-only"), "{refused}");
        Files::open(device, &cache()).expect("it opens");
    }

    /// Changes whatever a damaged file system contains, and returns the texts of the errors.
    fn change_all(files: &Arc<Files>, seed: u64) -> Vec<String> {
        let (mut errors, mut random) = (Vec::new(), Random::new(seed));
        let mut lane = files.lane().expect("a lane");
        let mut found = vec![(ROOT, Vec::new(), ROOT)];
        let mut at = 0;
        while at < found.len() && found.len() < 200 {
            let dir = found[at].2;
            for entry in lane.read_dir(dir, 0, 64).unwrap_or_default() {
                if entry.node != 0 {
                    found.push((dir, entry.name, entry.node));
                }
            }
            at += 1;
        }
        for n in 0..60 {
            let (dir, name, node) = found[random.below(found.len() as u64) as usize].clone();
            let (to, other, _) = found[random.below(found.len() as u64) as usize].clone();
            let new = format!("a new name of file {n}");
            let size = random.below(50_000);
            let done = match random.below(9) {
                0 => lane.create(dir, new.as_bytes(), New::File).map(drop),
                1 => lane.create(node, new.as_bytes(), New::Directory).map(drop),
                2 => lane.write(node, size, &noise(n, 5000)).map(drop),
                3 => lane.set_size(node, size / 8),
                4 => lane.remove(dir, &name, New::File),
                5 => lane.remove(dir, &name, New::Directory),
                6 => lane.rename((dir, &name), (to, new.as_bytes()), true),
                7 => lane.rename((dir, &name), (to, &other), true),
                _ => lane.sync(node),
            };
            errors.extend(done.err().map(|e| e.to_string()));
        }
        errors.extend(lane.sync_all().err().map(|e| e.to_string()));
        drop(lane);
        errors.extend(files.close().err().map(|e| e.to_string()));
        errors
    }

    #[test]
    fn changes_of_damaged_images_cause_errors_but_neither_panics_nor_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let kinds = [("12", 1440, 1), ("16", 3 << 10, 1), ("32", 34 << 10, 10)];
        for (width, kib, divisor) in kinds {
            let start = make(dir.path(), &["-F", width, "-s", "1"], kib);
            let device: Arc<dyn BlockDevice> = Arc::new(disk_of(&start));
            let mut pair = Pair::new(open(&device, &cache()), Random::new(7));
            while pair.model.len() < 30 {
                pair.step();
            }
            drop(pair.lane);
            pair.files.close().expect("it closes");
            let image = bytes_of(&*device);
            let end = image.len().min(1 << 20);
            let structures = [0..512, 512..end, 512..40_000];
            common::damage_with(&image, &structures, divisor, |bytes, cache| {
                let device: Arc<dyn BlockDevice> = Arc::new(disk_of(bytes));
                match Files::open_with(device, cache, Access::ReadWrite) {
                    Ok(files) => {
                        let seed = bytes.iter().fold(0u64, |sum, b| {
                            sum.wrapping_mul(31).wrapping_add((*b).into())
                        });
                        change_all(&files, seed)
                    }
                    Err(error) => vec![error.to_string()],
                }
            });
        }
    }
}
