//! Power failures at any moment.
//!
//! Goal: after any power failure the file system opens without repair and passes the check, also of
//! the use of each user and group; the names, types, links and attributes are those after one of the
//! operations between the last sync and the failure; synced data that was not changed since is
//! intact; a file never shows bytes that were not written to it; snapshots are unchanged. Method:
//! random operations on a disk with a volatile cache, whose log is then cut at random points, keeping
//! any part of the volatile writes.
//!
//! `EVFS_CUTS` is the number of images, in steps of 200. Five thousand in pieces, each with its own
//! seed: `for s in $(seq 301 325); do EVFS_SEED=$s EVFS_CUTS=200 cargo test -p evfs-fs --test powercut;
//! done`

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Tear};
use common::client::Client;
use common::model::{Id, Kind, Model};
use common::pair::{Pair, describe};
use common::{amount, assert_clean, format_with, seed};
use fs::{Compression, DataChecksums, Fileset, Fs, Ino, Owner, OwnerLimits};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// State after an operation.
struct Moment {
    /// Number of disk events before the operation began.
    begun: usize,
    described: String,
    /// Version of each file's content.
    versions: BTreeMap<Id, u64>,
}

/// State that was reported as durable.
struct Synced {
    /// Number of disk events at that moment.
    event: usize,
    moment: usize,
    /// Content of the files that were written back for it.
    files: BTreeMap<Id, (u64, Vec<u8>)>,
    /// Existing snapshots by name.
    snapshots: BTreeMap<String, Model>,
}

struct History {
    moments: Vec<Moment>,
    synced: Vec<Synced>,
    owner: HashMap<Ino, Id>,
    /// All snapshots, including removed ones.
    snapshots: BTreeMap<String, Model>,
}

fn versions(model: &Model) -> BTreeMap<Id, u64> {
    model
        .nodes
        .iter()
        .map(|(id, node)| (*id, node.version))
        .collect()
}

fn contents(model: &Model, only: Option<Id>) -> BTreeMap<Id, (u64, Vec<u8>)> {
    let nodes = model
        .nodes
        .iter()
        .filter(|(id, _)| only.is_none_or(|only| only == **id));
    let files = nodes.filter(|(_, node)| node.kind == Kind::File);
    files
        .map(|(id, node)| (*id, (node.version, node.data.clone())))
        .collect()
}

/// Owner with a limit in most moments, which it never reaches.
const KEPT: Owner = Owner::User(1);

/// Sets a limit for an owner; 0 for none.
fn set_limit(fs: &Fs, owner: Owner, bytes: u64) {
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("it exists");
    let limits = OwnerLimits { bytes, files: 0 };
    fs.set_owner_limits(main.id(), owner, limits)
        .expect("a limit");
}

/// Memory of a mount that outlives its server. A power failure takes it away.
fn survival(device: &Arc<dyn BlockDevice>) -> fs::Survival {
    let uuid = fs::Superblock::on(&**device).expect("a file system").uuid;
    fs::Survival {
        log: Arc::new(survival::Log::create(1 << 16, uuid).expect("a log")),
        requests: None,
        adopt: false,
    }
}

/// Runs random operations on a disk and records the history.
fn record(disk: &Arc<PowerCut>, seed: u64, steps: usize, survives: bool) -> History {
    let device: Arc<dyn BlockDevice> = disk.clone();
    let options = fs::Options {
        survival: survives.then(|| survival(&device)),
        ..common::options()
    };
    let fs = Fs::open(common::keyed(&device), options).expect("it opens");
    let mut pair = Pair::new(fs, seed);
    pair.signed = true;
    set_limit(&pair.fs, KEPT, u64::MAX);
    // Files with a flag are compressed in all histories.
    let method = [Some(Compression::Lz4), Some(Compression::Zstd), None][(seed % 3) as usize];
    let id = pair.fileset().id();
    pair.fs.set_compression(id, method).expect("set");
    let mut history = History {
        moments: vec![Moment {
            begun: 0,
            described: pair.model.describe(),
            versions: versions(&pair.model),
        }],
        synced: Vec::new(),
        owner: HashMap::new(),
        snapshots: BTreeMap::new(),
    };
    let mut living: BTreeMap<String, Model> = BTreeMap::new();
    for step in 0..steps {
        let begun = disk.events();
        pair.step();
        history.moments.push(Moment {
            begun,
            described: pair.model.describe(),
            versions: versions(&pair.model),
        });
        let mut files = None;
        match pair.random.below(60) {
            0 => {
                pair.client.sync(&mut pair.random).expect("it syncs");
                files = Some(contents(&pair.model, None));
            }
            1..=3 => {
                let inodes = pair
                    .model
                    .nodes
                    .iter()
                    .filter(|(_, node)| node.kind == Kind::File);
                let some = inodes.map(|(id, _)| *id).next_back();
                if let Some(id) = some {
                    let ino = pair.inodes[&id];
                    pair.client.fsync(ino, &mut pair.random).expect("it syncs");
                    files = Some(contents(&pair.model, Some(id)));
                }
            }
            4 => pair.fs.commit().expect("it commits"),
            5 if living.len() < 3 => {
                pair.client.sync(&mut pair.random).expect("it syncs");
                let name = format!("snapshot {step}");
                let id = pair.fileset().id();
                history.snapshots.insert(name.clone(), pair.model.clone());
                pair.fs.snapshot(id, &name).expect("a snapshot");
                living.insert(name, pair.model.clone());
                files = Some(contents(&pair.model, None));
            }
            6 if living.len() == 3 => {
                let at = pair.random.below(3) as usize;
                let name = living.keys().nth(at).unwrap().clone();
                let id = pair.fs.fileset_named(&name).expect("there").id();
                living.remove(&name);
                if let Some(synced) = history.synced.last_mut() {
                    // From here on it may or may not exist.
                    synced.snapshots.remove(&name);
                }
                pair.fs.remove_fileset(id).expect("removed");
            }
            7 => {
                // Accounts begin and end with the limits.
                let bytes = pair.random.below(2) * u64::MAX;
                set_limit(&pair.fs, Owner::Group(1), bytes);
                set_limit(&pair.fs, KEPT, u64::MAX - bytes / 2);
            }
            8 => set_limit(&pair.fs, KEPT, 0),
            _ => {}
        }
        if let Some(files) = files {
            history.synced.push(Synced {
                event: disk.events(),
                moment: history.moments.len() - 1,
                files,
                snapshots: living.clone(),
            });
        }
    }
    history.owner = pair.ever.clone();
    pair.release_all();
    history
}

/// Opens the image after a power failure and compares it with the history.
fn check(image: Mem, history: &History, point: usize, context: &str) {
    let device: Arc<dyn BlockDevice> = Arc::new(image);
    let fs = match Fs::open(common::keyed(&device), common::options()) {
        Ok(fs) => fs,
        Err(error) => panic!("{context}: {error:?}"),
    };
    let unverified = assert_clean(&fs, context);
    assert_eq!(unverified, 0, "{context}");
    let main = fs
        .fileset_named(fs::FIRST_FILESET)
        .expect("the first fileset");
    let synced = history.synced.iter().rfind(|synced| synced.event <= point);
    let oldest = synced.map_or(0, |synced| synced.moment);
    let newest = history
        .moments
        .iter()
        .rposition(|m| m.begun <= point)
        .expect("the first");
    let found = describe(&main);
    let fits = |moment: &Moment| moment.described == found;
    let window = &history.moments[oldest..=newest];
    assert!(
        window.iter().any(fits),
        "{context}: the names are those of none of the moments {oldest} to {newest}:\n{found}\n--- last:\n{}",
        history.moments[newest].described
    );
    let mut client = Client::new(main);
    let mut written: BTreeMap<Id, &(u64, Vec<u8>)> = BTreeMap::new();
    for synced in history.synced.iter().filter(|synced| synced.event <= point) {
        written.extend(synced.files.iter().map(|(id, file)| (*id, file)));
    }
    for (ino, id) in files_of(&client.fileset, &history.owner) {
        let data = client.read(ino, 0, u64::MAX / 2).expect("readable");
        assert_own(&data, id, context);
        let Some((version, content)) = written.get(&id) else {
            continue;
        };
        let changed = history.moments[..=newest]
            .iter()
            .filter_map(|m| m.versions.get(&id));
        if changed.max() == Some(version) {
            assert!(
                data == *content,
                "{context}: file {id} was synced and is not whole"
            );
        }
    }
    check_snapshots(&fs, history, synced, context);
    drop(client);
    fs.close().expect("it closes");
}

/// Checks that each word of a file carries the number of its own node, or is zero.
fn assert_own(data: &[u8], id: Id, context: &str) {
    for word in data.chunks_exact(8) {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        assert!(
            word == 0 || word >> 32 == id as u64,
            "{context}: file {id} shows {word:x}"
        );
    }
}

fn files_of(fileset: &Fileset, owner: &HashMap<Ino, Id>) -> Vec<(Ino, Id)> {
    let mut files = Vec::new();
    for (ino, id) in owner {
        if fileset
            .attr(*ino)
            .is_ok_and(|attr| attr.inode.kind == fs::FileType::File)
        {
            files.push((*ino, *id));
        }
    }
    files.sort_unstable();
    files
}

fn check_snapshots(fs: &Fs, history: &History, synced: Option<&Synced>, context: &str) {
    let there: Vec<String> = fs
        .filesets()
        .into_iter()
        .map(|(_, record)| record.name)
        .collect();
    for name in synced.iter().flat_map(|synced| synced.snapshots.keys()) {
        assert!(there.contains(name), "{context}: {name} is gone");
    }
    for name in there.iter().filter(|name| *name != fs::FIRST_FILESET) {
        let model = &history.snapshots[name];
        let snapshot = fs.fileset_named(name).expect("listed");
        assert_eq!(describe(&snapshot), model.describe(), "{context}: {name}");
        let mut client = Client::new(snapshot);
        for (ino, id) in files_of(&client.fileset, &history.owner) {
            let Some(node) = model.nodes.get(&id).filter(|node| node.links > 0) else {
                continue;
            };
            let data = client.read(ino, 0, u64::MAX / 2).expect("readable");
            assert!(
                data == node.data,
                "{context}: {name}: file {id} has changed"
            );
        }
    }
}

fn run(seed: u64, cuts: usize, checksums: DataChecksums, survives: bool) {
    let steps = 1500;
    let mem = Arc::new(Mem::new(24 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format_with(&device, checksums);
    let disk = Arc::new(PowerCut::new(&mem));
    let history = record(&disk, seed, steps, survives);
    assert!(history.synced.len() > 10 && disk.events() > steps / 4);
    for crash in disk.images(seed, cuts) {
        let context = format!("EVFS_SEED={seed}, {crash}");
        check(crash.image, &history, crash.point, &context);
    }
    let last = disk.events();
    for tear in [Tear::Drop, Tear::Keep] {
        check(disk.crash(last, tear), &history, last, "the end");
    }
}

#[test]
fn cuts_leave_what_was_synced_and_nothing_else() {
    /// Number of images per recording.
    const CUTS: usize = 200;
    let parts = amount("EVFS_CUTS", CUTS).div_ceil(CUTS);
    for seed in (seed(1)..).take(parts) {
        run(seed, CUTS, DataChecksums::Yes, false);
    }
}

#[test]
fn cuts_with_keyed_checksums_leave_what_was_synced_and_nothing_else() {
    let cuts = amount("EVFS_CUTS", 100).min(200);
    run(seed(2), cuts, DataChecksums::Keyed, false);
}

#[test]
fn cuts_of_a_mount_that_outlives_its_server_lose_no_more() {
    run(seed(3), amount("EVFS_CUTS", 100), DataChecksums::Yes, true);
}
