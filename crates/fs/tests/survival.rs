//! Servers that are killed, and their successors.
//!
//! Goal: whenever a server dies, a successor that has its log finds the state after the last operation
//! that has ended: names, attributes, sizes, checksums, accounts and snapshots, and a clean check, even
//! if nothing was synced; it can also die itself while it takes over. A log that is damaged in any way
//! is either used as a whole or refused, and then the file system is what the disk has. Method: random
//! operations; a death is a copy of the device and of the words of the log, at a moment when the server
//! writes nothing, or before a write of a commit, which the device holds up.
//!
//! `EVFS_DEATHS` is the number of deaths of each part, in steps of 40, each with its own seed;
//! `EVFS_FLIPS` that of logs with flipped bits.

mod common;

use block::{BlockDevice, BufPool, Completion, DeviceInfo, Queue, Request, Wait};
use block_testing::{Mem, Random};
use common::client::Client;
use common::owners::{self, Owners};
use common::pair::{Pair, describe};
use common::snapshots::Snapshots;
use common::{amount, assert_clean, format, keyed, options, seed};
use fs::{
    Adoption, Attr, Compression, FileType, Fs, Inode, New, Options, ROOT, Rename, SetAttr,
    SetXattr, Stamp, Survival,
};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use survival::log::Unusable;
use survival::{Log, Memory, Requests};

/// Words of a log; few, so that some become short of room.
const LOG_WORDS: usize = 1 << 17;

/// What outlives a server: the device as it is, and the words of the log.
struct Remains {
    disk: Mem,
    words: Vec<u64>,
}

/// A device that copies what would remain if the server died before a write.
#[derive(Clone)]
struct Tap {
    disk: Arc<Mem>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    log: Option<Arc<Log>>,
    /// Writes until the copy is made.
    left: Option<u64>,
    remains: Option<Remains>,
}

impl Tap {
    fn new(disk: Mem, log: &Arc<Log>) -> Tap {
        let state = State {
            log: Some(Arc::clone(log)),
            ..State::default()
        };
        Tap {
            disk: Arc::new(disk),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Copies what remains now.
    fn remains(&self) -> Remains {
        let state = self.state.lock().unwrap();
        self.copy(&state)
    }

    fn copy(&self, state: &State) -> Remains {
        Remains {
            disk: self.disk.fork(),
            words: words_of(state.log.as_ref().unwrap()),
        }
    }

    /// Makes a copy before the write of this number from now on.
    fn arm(&self, writes: u64) {
        let mut state = self.state.lock().unwrap();
        (state.left, state.remains) = (Some(writes), None);
    }

    /// Returns the copy, if there were as many writes.
    fn disarm(&self) -> Option<Remains> {
        let mut state = self.state.lock().unwrap();
        state.left = None;
        state.remains.take()
    }

    fn note(&self, request: &Request) {
        if matches!(request.op, block::Op::Read { .. }) {
            return;
        }
        let mut state = self.state.lock().unwrap();
        match state.left {
            Some(0) => {
                state.remains = Some(self.copy(&state));
                state.left = None;
            }
            Some(left) => state.left = Some(left - 1),
            None => {}
        }
    }
}

impl BlockDevice for Tap {
    fn info(&self) -> &DeviceInfo {
        self.disk.info()
    }

    fn queue(&self) -> block::Result<Box<dyn Queue>> {
        let lower = self.disk.queue()?;
        let tap = self.clone();
        Ok(Box::new(TapQueue { lower, tap }))
    }
}

struct TapQueue {
    lower: Box<dyn Queue>,
    tap: Tap,
}

impl Queue for TapQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        self.tap.note(&request);
        self.lower.submit(request)
    }

    fn kick(&mut self) -> block::Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
        self.lower.reap(wait, done)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

fn words_of(log: &Log) -> Vec<u64> {
    let words = log.memory().words().iter();
    words.map(|word| word.load(Relaxed)).collect()
}

fn memory_of(words: &[u64]) -> Memory {
    let memory = Memory::create("evfs-test", words.len()).unwrap();
    for (to, from) in memory.words().iter().zip(words) {
        to.store(*from, Relaxed);
    }
    memory
}

fn uuid_of(disk: &Mem) -> [u8; 16] {
    let mut uuid = [0; 16];
    let device: Arc<dyn BlockDevice> = Arc::new(disk.fork());
    let read_only = Options {
        read_only: true,
        ..options()
    };
    let fs = Fs::open(keyed(&device), read_only).expect("it opens");
    uuid.copy_from_slice(&fs.superblock().uuid);
    uuid
}

fn open_with(tap: &Tap, log: &Arc<Log>, adopt: bool) -> Fs {
    let device: Arc<dyn BlockDevice> = Arc::new(tap.clone());
    let survival = Survival {
        log: Arc::clone(log),
        requests: None,
        adopt,
    };
    let options = Options {
        survival: Some(survival),
        ..options()
    };
    Fs::open(keyed(&device), options).expect("it opens")
}

/// Starts the first server of a new file system.
fn first(bytes: u64, words: usize) -> (Tap, Fs) {
    let disk = Arc::new(Mem::new(bytes, 512));
    let device: Arc<dyn BlockDevice> = disk.clone();
    format(&device);
    let log = Arc::new(Log::create(words, uuid_of(&disk)).unwrap());
    let tap = Tap::new(disk.fork(), &log);
    let fs = open_with(&tap, &log, false);
    assert_eq!(*fs.adoption(), Adoption::None);
    (tap, fs)
}

/// Starts a successor.
fn adopt(remains: Remains) -> (Tap, Fs) {
    let uuid = uuid_of(&remains.disk);
    let log = Arc::new(Log::adopt(memory_of(&remains.words), uuid).expect("its header"));
    let tap = Tap::new(remains.disk, &log);
    let fs = open_with(&tap, &log, true);
    (tap, fs)
}

fn adopt_whole(remains: Remains) -> (Tap, Fs) {
    let (tap, fs) = adopt(remains);
    let adopted = matches!(fs.adoption(), Adoption::Adopted { .. });
    assert!(adopted, "{:?}", fs.adoption());
    (tap, fs)
}

impl Remains {
    /// Reports whether the log lacks a change, so that a successor refuses it.
    fn is_broken(&self) -> bool {
        let log = Log::adopt(memory_of(&self.words), uuid_of(&self.disk));
        log.expect("its header").entries() == Err(Unusable::Broken)
    }

    fn fork(&self) -> Remains {
        Remains {
            disk: self.disk.fork(),
            words: self.words.clone(),
        }
    }
}

/// Starts a successor that dies while it opens, before the write of this number, and another one;
/// the first survives if it writes less, or if its log has no room for the sizes of files.
fn adopt_twice(remains: Remains, writes: u64) -> (Tap, Fs) {
    let uuid = uuid_of(&remains.disk);
    let log = Arc::new(Log::adopt(memory_of(&remains.words), uuid).expect("its header"));
    let tap = Tap::new(remains.disk, &log);
    tap.arm(writes);
    let fs = open_with(&tap, &log, true);
    match tap.disarm() {
        Some(remains) if !remains.is_broken() => {
            drop(fs);
            adopt_whole(remains)
        }
        _ => (tap, fs),
    }
}

/// Compares a successor that has no dirty pages yet with the model and with the living file system.
fn compare(fs: &Fs, pair: &Pair, context: &str) {
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
    assert_eq!(describe(&main), pair.model.describe(), "{context}");
    for (id, node) in &pair.model.nodes {
        let ino = pair.inodes[id];
        let attr = main.attr(ino);
        let attr = attr.unwrap_or_else(|error| panic!("{context}: inode {ino}: {error}"));
        let live = pair.fileset().attr(ino).expect("there").inode;
        // Blocks that are promised to dirty pages count, and no page is dirty yet.
        assert!(attr.inode.blocks <= live.blocks, "{context}: inode {ino}");
        let blocks = live.blocks;
        let shown = Inode {
            blocks,
            ..attr.inode
        };
        assert_eq!(shown, live, "{context}: inode {ino}");
        assert_eq!(attr.inode.links, node.links, "{context}: inode {ino}");
    }
}

/// Deaths of one history; more would fill the device.
const DEATHS: usize = 40;

fn run(part: u64) {
    let rounds = amount("EVFS_DEATHS", DEATHS).div_ceil(DEATHS);
    for seed in (seed(1).wrapping_mul(1000)..).take(rounds) {
        run_one(part, seed.wrapping_add(part * 100));
    }
}

fn run_one(part: u64, seed: u64) {
    let words = LOG_WORDS >> (part % 3 * 2);
    let (mut tap, fs) = first(64 << 20, words);
    let mut pair = Pair::new(fs, seed);
    if let Some(method) = [Some(Compression::Lz4), None][part as usize % 2] {
        let id = pair.fileset().id();
        pair.fs.set_compression(id, Some(method)).expect("set");
    }
    let mut snapshots = Snapshots::default();
    let mut limited = (part % 2 == 1).then(Owners::default);
    pair.lenient = limited.is_some();
    let (mut midway, mut again, mut broken) = (0, 0, 0);
    for death in 0..DEATHS {
        let context = format!("part {part}, seed {seed}, death {death}");
        println!(
            "{context}: {:?} {} nodes",
            pair.fs.usage(),
            pair.model.nodes.len()
        );
        for _ in 0..pair.random.below(150) {
            pair.step();
            if pair.random.below(60) == 0 {
                snapshots.step(&mut pair);
                if let Some(owners) = &mut limited {
                    owners.step(&mut pair);
                }
            }
        }
        if pair.random.below(2) == 0 {
            // A death within a commit or a record, after which the server lives on.
            tap.arm(pair.random.below(60));
            match pair.random.below(3) {
                0 => pair.fs.commit().expect("it commits"),
                1 => pair.fs.sync().expect("it syncs"),
                _ => {
                    let written = pair.client.write_all_out(&mut pair.random);
                    written.expect("it is written");
                    pair.fs.commit().expect("it commits");
                }
            }
            if let Some(remains) = tap.disarm() {
                if remains.is_broken() {
                    broken += 1;
                    continue;
                }
                midway += 1;
                let (_, fs) = adopt_whole(remains);
                assert_eq!(
                    describe(&fs.fileset_named(fs::FIRST_FILESET).expect("there")),
                    pair.model.describe(),
                    "{context}, midway"
                );
                snapshots.compare_all(&fs);
                assert_clean(&fs, &context);
            }
            continue;
        }
        if tap.remains().is_broken() {
            // A commit repairs the log.
            broken += 1;
            pair.fs.commit().expect("it commits");
        }
        let remains = tap.remains();
        if pair.random.below(3) == 0 {
            again += 1;
            let (_, fs) = adopt_twice(remains.fork(), pair.random.below(40));
            compare(&fs, &pair, &format!("{context}, the second successor"));
            assert_clean(&fs, &context);
        }
        let (next, fs) = adopt_whole(remains);
        compare(&fs, &pair, &context);
        let attrs = |pair: &Pair| -> Vec<Attr> {
            let all = pair.model.nodes.keys().map(|id| pair.inodes[id]);
            all.map(|ino| pair.fileset().attr(ino).expect("there"))
                .collect()
        };
        let before = attrs(&pair);
        let old = pair.succeed(fs);
        drop(old);
        for (mut after, before) in attrs(&pair).into_iter().zip(before) {
            // A page that was dirty before its block was allocated needs no promise any more.
            assert!(after.inode.blocks <= before.inode.blocks, "{context}");
            after.inode.blocks = before.inode.blocks;
            assert_eq!(after, before, "{context}");
        }
        tap = next;
        pair.compare_all();
        snapshots.compare_all(&pair.fs);
    }
    pair.release_all();
    pair.client
        .write_all_out(&mut pair.random)
        .expect("it is written");
    pair.compare_all();
    owners::compare(&pair);
    assert_clean(&pair.fs, "the end");
    assert!(midway > 0 && again > 0, "{midway} {again}");
    // Only a small log may lack room, and not often.
    let most = if words == LOG_WORDS { 0 } else { DEATHS / 4 };
    assert!(broken <= most, "{broken} deaths");
}

macro_rules! parts {
    ($($name:ident: $part:literal,)*) => {
        mod successors_find_the_state_after_the_last_operation {
            $(
                #[test]
                fn $name() {
                    super::run($part);
                }
            )*
        }
    };
}

parts! {
    part_0: 0,
    part_1: 1,
    part_2: 2,
    part_3: 3,
}

/// Writes to a file whose record is out of date in each of the ways that a log can say so.
fn writes(client: &mut Client, fs: &Fs, file: u64, after: &mut impl FnMut(&Fs)) {
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
    client.write(file, 4000, &[3; 200]).expect("written");
    after(fs);
    client.write(file, 4100, &[4; 200]).expect("written");
    after(fs);
    main.note_read(file, true).expect("noted");
    after(fs);
    client.write(file, 4200, &[5; 200]).expect("written");
    after(fs);
    let permissions = Some(0o640 ^ main.attr(file).expect("there").inode.permissions);
    let set = SetAttr {
        permissions,
        ..SetAttr::default()
    };
    main.set_attr(file, &set).expect("set");
    after(fs);
    client.write(file, 4300, &[6; 200]).expect("written");
    after(fs);
}

/// A history of one operation of each kind. `after` is called after each.
fn short_history(fs: &Fs, mut after: impl FnMut(&Fs)) {
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
    let new = New::of_root(FileType::File, 0o600);
    let mut client = Client::new(main.clone());
    let one = main.create(ROOT, b"one", &new).expect("made").ino;
    after(fs);
    let directory = New::of_root(FileType::Directory, 0o700);
    let below = main.create(ROOT, b"below", &directory).expect("made").ino;
    after(fs);
    client.write(one, 0, &[1; 9000]).expect("written");
    after(fs);
    writes(&mut client, fs, one, &mut after);
    let mut random = Random::new(1);
    client.write_all_out(&mut random).expect("written");
    after(fs);
    main.link(one, below, b"two").expect("linked");
    after(fs);
    main.rename((ROOT, b"one"), (below, b"three"), Rename::Replace)
        .expect("renamed");
    after(fs);
    main.set_xattr(one, b"user.x", &[7; 300], SetXattr::Any)
        .expect("set");
    after(fs);
    client.write(one, 20_000, &[2; 5000]).expect("written");
    after(fs);
    fs.sync().expect("it syncs");
    after(fs);
    writes(&mut client, fs, one, &mut after);
    main.truncate(one, 6000).expect("cut");
    after(fs);
    fs.commit().expect("it commits");
    after(fs);
    writes(&mut client, fs, one, &mut after);
    main.unlink(below, b"two").expect("removed");
    after(fs);
    main.unlink(below, b"three").expect("removed");
    after(fs);
}

/// Describes a file system with the inodes of its files.
fn described(fs: &Fs) -> String {
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
    let mut inodes = String::new();
    for ino in 2..10 {
        if let Ok(attr) = main.attr(ino) {
            // Dirty pages are not taken over here, so they promise no blocks.
            let inode = Inode {
                blocks: 0,
                ..attr.inode
            };
            inodes += &format!("{ino}: {inode:?}\n");
        }
    }
    describe(&main) + &inodes
}

/// Number of words at the start of the log that are its header.
const HEADER: usize = survival::log::HEADER_WORDS;
/// Words of the header, as the log numbers them.
const START: usize = 5;
const END: usize = 6;
const BROKEN: usize = 7;
const COMMITTED: usize = 8;
const BEGUN: usize = 9;

#[test]
fn a_death_after_any_store_to_the_log_leaves_the_state_before_or_after() {
    let (tap, fs) = first(16 << 20, 1 << 12);
    let mut before = (tap.remains(), described(&fs));
    let (mut stores, mut states) = (0, 0);
    short_history(&fs, |fs| {
        let after = (tap.remains(), described(fs));
        let order = (HEADER..after.0.words.len()).chain([END, BEGUN, COMMITTED, START, BROKEN]);
        let changed = |at: &usize| before.0.words[*at] != after.0.words[*at];
        let commits = changed(&BEGUN);
        let mut words = before.0.words.clone();
        let mut begun = false;
        for at in std::iter::once(None).chain(order.filter(changed).map(Some)) {
            if let Some(at) = at {
                words[at] = after.0.words[at];
                begun |= at == BEGUN;
            }
            // A commit changes the disk after the log says that it begins, and before it says that
            // it ended.
            let ended = at.is_some_and(|at| [COMMITTED, START].contains(&at));
            let mut disks = Vec::new();
            if !commits || begun {
                disks.push(after.0.disk.fork());
            }
            if commits && !ended {
                disks.push(before.0.disk.fork());
            }
            for disk in disks {
                let words = words.clone();
                let (_, successor) = adopt_whole(Remains { disk, words });
                let found = described(&successor);
                let fits = found == before.1 || found == after.1;
                assert!(fits, "{found}\n{}\n{}", before.1, after.1);
                stores += 1;
            }
        }
        assert_eq!(words, after.0.words, "each word is in the order");
        states += usize::from(before.1 != after.1);
        before = after;
    });
    assert!(stores > 300 && states > 8, "{stores} {states}");
}

#[test]
fn a_log_with_flipped_bits_is_used_as_a_whole_or_refused() {
    let (tap, fs) = first(16 << 20, 1 << 11);
    short_history(&fs, |_| {});
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
    let new = New::of_root(FileType::File, 0o600);
    let last = main.create(ROOT, b"last", &new).expect("made").ino;
    let mut client = Client::new(main);
    writes(&mut client, &fs, last, &mut |_| {});
    let remains = tap.remains();
    let whole = described(&fs);
    let durable = {
        let device: Arc<dyn BlockDevice> = Arc::new(remains.disk.fork());
        described(&common::open(&device))
    };
    assert_ne!(whole, durable);
    let mut random = Random::new(seed(5));
    let uuid = fs.superblock().uuid;
    let (mut used, mut refused) = (0, 0);
    for flip in 0..amount("EVFS_FLIPS", 10_000) {
        let mut words = remains.words.clone();
        for _ in 0..=random.below(3) {
            // Most words after the header are never read.
            let below = [HEADER as u64, 300, words.len() as u64][random.below(3) as usize];
            words[random.below(below) as usize] ^= 1 << random.below(64);
        }
        let Ok(log) = Log::adopt(memory_of(&words), uuid) else {
            refused += 1;
            continue;
        };
        let is_whole = log.entries() == Ok(adopted_entries(&remains, uuid));
        // Opening takes long; what the log says decides, and a part shows that it does.
        if flip % 20 != 0 {
            assert!(is_whole || log.entries().is_err(), "flip {flip}");
            continue;
        }
        let tap = Tap::new(remains.disk.fork(), &Arc::new(log));
        let log = Arc::clone(tap.state.lock().unwrap().log.as_ref().unwrap());
        let successor = open_with(&tap, &log, true);
        match successor.adoption() {
            Adoption::Adopted { .. } => {
                used += 1;
                assert_eq!(described(&successor), whole, "flip {flip}");
            }
            Adoption::Refused(_) => {
                refused += 1;
                successor.end_adoption().expect("it ends");
                assert_eq!(described(&successor), durable, "flip {flip}");
            }
            Adoption::None => panic!("a log was there"),
        }
    }
    assert!(used > 10 && refused > 10, "{used} {refused}");
}

fn adopted_entries(remains: &Remains, uuid: [u8; 16]) -> Vec<survival::log::Entry> {
    let log = Log::adopt(memory_of(&remains.words), uuid).expect("whole");
    log.entries().expect("whole")
}

/// A log with little room would need commits more often.
#[test]
fn a_write_appends_what_it_sets_and_no_more() {
    let (tap, fs) = first(16 << 20, 1 << 12);
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
    let new = New::of_root(FileType::File, 0o600);
    let file = main.create(ROOT, b"file", &new).expect("made").ino;
    let mut client = Client::new(main.clone());
    fs.commit().expect("it commits");
    for n in 0..3 {
        client.write(file, n * 100, &[1; 100]).expect("written");
    }
    let entries = adopted_entries(&tap.remains(), fs.superblock().uuid);
    let lengths: Vec<usize> = entries.iter().map(|entry| entry.payload.len()).collect();
    assert_eq!(lengths, [72; 3]);
    let inode = |fs: &Fs| {
        let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
        // Dirty pages are not taken over here, so they promise no blocks.
        let blocks = 0;
        let attr = main.attr(file).expect("there");
        Inode {
            blocks,
            ..attr.inode
        }
    };
    // The next server appends such an entry, too, and the one after it needs both.
    let (tap, next) = adopt_whole(tap.remains());
    assert_eq!(inode(&next), inode(&fs));
    let main = next.fileset_named(fs::FIRST_FILESET).expect("there");
    main.prepare_write(file, 0..100, Stamp::Change)
        .expect("prepared");
    let (_, third) = adopt_whole(tap.remains());
    assert_eq!(inode(&third), inode(&next));
    assert_ne!(inode(&third), inode(&fs));
}

#[test]
fn a_log_is_refused_once_another_server_has_changed_the_disk() {
    let (tap, fs) = first(16 << 20, 1 << 12);
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
    let new = New::of_root(FileType::File, 0o600);
    main.create(ROOT, b"lost", &new).expect("made");
    let remains = tap.remains();
    let mem = Arc::new(remains.disk.fork());
    let device: Arc<dyn BlockDevice> = mem.clone();
    let other = common::open(&device);
    other
        .fileset_named(fs::FIRST_FILESET)
        .and_then(|main| main.create(ROOT, b"other", &new))
        .expect("made");
    other.close().expect("closed");
    let words = remains.words;
    let disk = mem.fork();
    let (next, successor) = adopt(Remains { disk, words });
    let Adoption::Refused(why) = successor.adoption() else {
        panic!("{:?}", successor.adoption());
    };
    assert!(why.contains("opening"), "{why}");
    let main = successor.fileset_named(fs::FIRST_FILESET).expect("there");
    assert!(main.lookup(ROOT, b"lost").is_err() && main.lookup(ROOT, b"other").is_ok());
    main.create(ROOT, b"next", &new).expect("made");
    // A log that was refused once is never used again: the kernel may have open what is lost.
    for _ in 0..2 {
        let (_, later) = adopt(next.remains());
        assert!(matches!(later.adoption(), Adoption::Refused(_)));
        assert_clean(&later, "a later server");
    }
}

#[test]
fn a_successor_knows_requests_and_files_without_a_name() {
    let (tap, fs) = first(16 << 20, 1 << 12);
    drop(fs);
    let words = words_of(tap.state.lock().unwrap().log.as_ref().unwrap());
    let log = Arc::new(Log::adopt(memory_of(&words), uuid_of(&tap.disk)).expect("whole"));
    let tap = Tap::new(tap.disk.fork(), &log);
    let requests = Arc::new(Requests::create().expect("a table"));
    let survival = Survival {
        log,
        requests: Some(Arc::clone(&requests)),
        adopt: true,
    };
    let device: Arc<dyn BlockDevice> = Arc::new(tap.clone());
    let with = Options {
        survival: Some(survival),
        ..options()
    };
    let fs = Fs::open(keyed(&device), with).expect("it opens");
    fs.end_adoption().expect("it ends");
    let main = fs.fileset_named(fs::FIRST_FILESET).expect("there");
    let new = New::of_root(FileType::File, 0o600);
    requests.begin(3, 70);
    main.create(ROOT, b"one", &new).expect("made");
    assert!(requests.done().contains(&70));
    requests.end();
    requests.begin(3, 72);
    assert!(main.create(ROOT, b"one", &new).is_err());
    assert!(
        requests.done().is_empty(),
        "an operation that fails is repeated"
    );
    requests.end();
    let kept = main.create_unnamed(ROOT, &new).expect("made").ino;
    let closed = main.create_unnamed(ROOT, &new).expect("made").ino;
    let removed = main.lookup(ROOT, b"one").expect("there").ino;
    main.open(removed).expect("open");
    main.unlink(ROOT, b"one").expect("removed");
    for commits in [false, true] {
        if commits {
            fs.commit().expect("it commits");
        }
        let (_, next) = adopt_whole(tap.remains());
        if !commits {
            let requests = [70].into();
            assert_eq!(*next.adoption(), Adoption::Adopted { requests });
        }
        let main = next.fileset_named(fs::FIRST_FILESET).expect("there");
        for ino in [kept, removed] {
            main.open(ino).expect("it is open");
        }
        next.end_adoption().expect("it ends");
        assert!(main.attr(closed).is_err(), "it was not open any more");
        main.link(kept, ROOT, b"kept").expect("its first name");
        assert!(
            main.link(removed, ROOT, b"back").is_err(),
            "it lost its last name"
        );
        main.release(removed).expect("closed");
        assert!(main.attr(removed).is_err());
        main.release(kept).expect("closed");
        assert_clean(&next, "a successor");
    }
}
