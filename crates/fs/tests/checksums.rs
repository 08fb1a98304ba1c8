//! Checksums of file data.
//!
//! Goal: no damage of a block is returned as data, and a scrub finds all of it; a crash while blocks
//! are overwritten makes none unreadable. Method: images are damaged at random, or in each block in
//! turn, and read; overwrites are cut at every write to the device.
//!
//! `EVFS_DAMAGES` is the number of damaged images.

mod common;

use block::{BlockDevice, Buf, ErrorKind, Op, OpKind, Request, Wait};
use block_testing::{ErrorDevice, ErrorHandle, Failure, Mem, PowerCut, Random, Tear};
use cache::{Cache, Config};
use common::client::{Client, Portion};
use common::pair::Pair;
use common::{amount, assert_clean, format, format_with, open, seed};
use fs::{
    Allocate, Damage, DamageKind, DataChecksums, FIRST_FILESET, FileId, FileRequest, FileType,
    Files, FindingKind, Fs, Ino, New, Pager, ROOT, ScrubPosition, ScrubStep, SetAttr,
    WritePosition,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const NEW: New = New::of_root(FileType::File, 0o644);
const PAGE: u64 = 4096;
const BLOCK: usize = PAGE as usize;

/// Scrubs everything in steps of `bytes` bytes.
fn scrub_by(fs: &Fs, bytes: u64) -> ScrubStep {
    let mut all = ScrubStep {
        next: Some(ScrubPosition::START),
        blocks: 0,
        unverified: 0,
        damage: Vec::new(),
    };
    while let Some(from) = all.next {
        let step = fs.scrub(from, bytes).expect("it scrubs");
        // A compressed chunk is not divided.
        assert!(step.blocks < bytes.div_ceil(PAGE) + 16);
        all.next = step.next;
        all.blocks += step.blocks;
        all.unverified += step.unverified;
        all.damage.extend(step.damage);
    }
    all
}

fn scrub(fs: &Fs) -> ScrubStep {
    scrub_by(fs, 1 << 20)
}

/// Pages of files: fileset, inode, page.
type Pages = BTreeSet<(String, Ino, u64)>;

fn pages_of(damage: &[Damage]) -> Pages {
    let pages = |damage: &Damage| {
        let (fileset, ino) = (damage.fileset.clone(), damage.inode);
        let pages = damage.offset / PAGE..(damage.offset + damage.bytes) / PAGE;
        pages.map(move |page| (fileset.clone(), ino, page))
    };
    damage.iter().flat_map(pages).collect()
}

/// Reads all regular files of all filesets and snapshots, page by page; `None` is an error.
fn read_all(fs: &Fs) -> BTreeMap<(String, Ino, u64), Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for (id, record) in fs.filesets() {
        let mut client = Client::new(fs.fileset(id).expect("listed"));
        let (mut files, mut dirs) = (BTreeSet::new(), vec![ROOT]);
        while let Some(dir) = dirs.pop() {
            let take = |entry: fs::DirEntry| {
                match entry.kind {
                    FileType::Directory => dirs.push(entry.ino),
                    FileType::File => drop(files.insert(entry.ino)),
                    _ => {}
                }
                Ok(true)
            };
            let fileset = client.fileset.clone();
            fileset.read_dir(dir, 2, take).expect("it lists");
        }
        for ino in files {
            let size = client.fileset.attr(ino).expect("there").inode.size;
            for page in 0..size.div_ceil(PAGE).min(3000) {
                let read = client.read(ino, page * PAGE, PAGE);
                let read = read.map_err(|errno| assert_eq!(errno, libc::EIO)).ok();
                all.insert((record.name.clone(), ino, page), read);
            }
        }
    }
    all
}

/// Returns the blocks that may hold file data: all behind the journal that are not metadata.
fn data_blocks(fs: &Fs) -> Vec<u64> {
    let superblock = fs.superblock();
    let first = superblock.journal_start + superblock.journal_blocks;
    let in_metadata = |block: u64| {
        let mut segments = superblock.segments.iter();
        segments.any(|s| (s.start..s.start + u64::from(s.blocks)).contains(&block))
    };
    let blocks = first..superblock.device_blocks;
    blocks.filter(|block| !in_metadata(*block)).collect()
}

fn block_of(mem: &Mem, block: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK];
    mem.peek(block * PAGE, &mut data);
    data
}

/// Damages a block in one of the ways of disks: a flipped bit, a write that was lost, torn or went to
/// another block, a block of zeros.
fn damage(mem: &Mem, old: &Mem, blocks: &[u64], random: &mut Random) -> &'static str {
    let any = |random: &mut Random| blocks[random.below(blocks.len() as u64) as usize];
    let block = any(random);
    let mut data = block_of(mem, block);
    let (what, new) = match random.below(5) {
        0 => {
            let bit = random.below(8 * PAGE) as usize;
            data[bit / 8] ^= 1 << (bit % 8);
            ("flipped", data)
        }
        1 => {
            let sectors = 512 * (1 + random.below(7) as usize);
            data[..sectors].copy_from_slice(&block_of(mem, any(random))[..sectors]);
            ("torn", data)
        }
        2 => {
            let other = any(random);
            let theirs = block_of(mem, other);
            mem.poke(other * PAGE, &data);
            ("swapped", theirs)
        }
        3 => ("stale", block_of(old, block)),
        _ => ("zeroed", vec![0; BLOCK]),
    };
    mem.poke(block * PAGE, &new);
    what
}

#[test]
fn no_damage_is_returned_as_data_and_a_scrub_finds_all_of_it() {
    damage_data(seed(1), DataChecksums::Yes);
}

#[test]
fn no_damage_is_returned_as_data_with_keyed_checksums_either() {
    damage_data(seed(9), DataChecksums::Keyed);
}

fn damage_data(seed: u64, checksums: DataChecksums) {
    let mem = Arc::new(Mem::new(24 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format_with(&device, checksums);
    let mut pair = Pair::new(open(&device), seed);
    for _ in 0..600 {
        pair.step();
    }
    pair.client.sync(&mut pair.random).expect("synced");
    let id = pair.client.fileset.id();
    pair.fs.snapshot(id, "then").expect("a snapshot");
    pair.fs.commit().expect("committed");
    let old = mem.fork();
    for _ in 0..600 {
        pair.step();
    }
    pair.release_all();
    pair.client.sync(&mut pair.random).expect("synced");
    let Pair { fs, client, .. } = pair;
    drop(client);
    fs.close().expect("closed");
    let expected = read_all(&open(&device));
    assert!(expected.values().all(Option::is_some) && expected.len() > 200);

    let mut random = Random::new(seed);
    let (mut refused, mut kinds) = (0, BTreeSet::new());
    let images = amount("EVFS_DAMAGES", 60).max(20);
    for image in 0..images {
        let mem = Arc::new(mem.fork());
        let device: Arc<dyn BlockDevice> = mem.clone();
        let fs = open(&device);
        let blocks = data_blocks(&fs);
        for _ in 0..1 + random.below(30) {
            kinds.insert(damage(&mem, &old, &blocks, &mut random));
        }
        let context = format!("EVFS_SEED={seed}, image {image}");
        let mut lost = Pages::new();
        for (place, data) in read_all(&fs) {
            match data {
                Some(data) => assert!(
                    Some(&data) == expected[&place].as_ref(),
                    "{context}: {place:?}"
                ),
                None => drop(lost.insert(place)),
            }
        }
        refused += lost.len();
        assert_eq!(fs.checksum_mismatches() > 0, !lost.is_empty(), "{context}");
        let step = [PAGE, 100 * PAGE, 1 << 30][random.below(3) as usize];
        let found = pages_of(&scrub_by(&fs, step).damage);
        // A snapshot shows blocks of its fileset, for which they are reported.
        for (fileset, ino, page) in &lost {
            let names = [fileset.as_str(), FIRST_FILESET];
            let is_found = names.map(|name| found.contains(&(name.into(), *ino, *page)));
            assert!(
                is_found.contains(&true),
                "{context}: {fileset}: {ino}: {page}: {found:?}"
            );
        }
        for place in &found {
            // Blocks beyond the end of a file may be damaged, too.
            let read = expected.contains_key(place);
            assert!(!read || lost.contains(place), "{context}: {place:?}");
        }
        let mut report = fs.check().expect("checked");
        assert!(report.is_clean(), "{context}: {:#?}", report.problems);
        fs.check_data(&mut report, &mut |_, _| {}).expect("checked");
        assert_eq!(report.is_clean(), found.is_empty(), "{context}");
        let kinds = report.problems.iter().map(|finding| finding.kind);
        assert!(
            kinds
                .collect::<Vec<_>>()
                .iter()
                .all(|k| *k == FindingKind::Data)
        );
    }
    assert!(refused > images / 2, "{refused}");
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}

/// Makes files with blocks of every kind. Returns the number of blocks that were never written.
fn every_kind(fs: &Fs, random: &mut Random) -> u64 {
    let mut client = Client::of_first(fs);
    let fill = |client: &mut Client, random: &mut Random, ino, offset, len: usize| {
        let mut data = vec![0; len];
        random.fill(&mut data);
        client.write(ino, offset, &data).expect("written");
        client
            .write_out(ino, random, Portion::All)
            .expect("written");
    };
    let scattered = client.create(b"scattered");
    let whole = client.create(b"whole");
    for page in 0..8 {
        fill(&mut client, random, scattered, page * PAGE, BLOCK);
        fill(&mut client, random, whole, page * PAGE, BLOCK);
    }
    // Unaligned, with a tail, a hole, and a tail that was cut and grew.
    let odd = client.create(b"odd");
    fill(&mut client, random, odd, 100, 9000);
    fill(&mut client, random, odd, 20 * PAGE + 5, 777);
    client.truncate(odd, 20 * PAGE + 300).expect("cut");
    client.truncate(odd, 23 * PAGE).expect("grown");
    // Punched and zeroed, within blocks as well.
    let punched = client.create(b"punched");
    fill(&mut client, random, punched, 0, 12 * BLOCK);
    for (from, how) in [(PAGE + 9, Allocate::Punch), (6 * PAGE + 9, Allocate::Zero)] {
        client
            .allocate(punched, from, from + 3 * PAGE, how)
            .expect("punched");
    }
    // Allocated, and written in part.
    let reserved = client.create(b"reserved");
    let grow = Allocate::Grow;
    client
        .allocate(reserved, 0, 10 * PAGE, grow)
        .expect("allocated");
    fill(&mut client, random, reserved, 3 * PAGE, 2 * BLOCK);
    // Shared with a snapshot, and changed since.
    client.sync(random).expect("synced");
    let id = client.fileset.id();
    fs.snapshot(id, "then").expect("a snapshot");
    fill(&mut client, random, whole, 2 * PAGE, 3 * BLOCK);
    fill(&mut client, random, odd, 150, 10);
    // Overwritten, and moved.
    let late = client.create(b"late");
    let later = client.create(b"later");
    for page in 0..6 {
        fill(&mut client, random, late, page * PAGE, BLOCK);
        fill(&mut client, random, later, page * PAGE, BLOCK);
    }
    fill(&mut client, random, late, PAGE, BLOCK);
    client.sync(random).expect("synced");
    let pace = fs::Pace::new(None);
    let done = fs.defrag((id, later), fs::Recompress::No, &pace, &mut |_, _| {});
    let done = done.expect("it defrags");
    assert!(done.moved_blocks > 0);
    // Those of `reserved`, and those zeroed as a whole.
    8 + 2
}

#[test]
fn every_written_block_is_protected_whatever_its_kind() {
    let mem = Arc::new(Mem::new(8 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format(&device);
    let fs = open(&device);
    let unwritten = every_kind(&fs, &mut Random::new(seed(2)));
    fs.commit().expect("committed");
    let report = fs.check().expect("checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
    assert_eq!(report.unverified_blocks, 0);
    let intact = scrub(&fs);
    assert_eq!((intact.unverified, intact.damage), (0, Vec::new()));
    let mut protected = 0;
    for block in data_blocks(&fs) {
        let content = block_of(&mem, block);
        let mut flipped = content.clone();
        flipped[(block * 37 % PAGE) as usize] ^= 4;
        mem.poke(block * PAGE, &flipped);
        let damage = scrub(&fs).damage;
        protected += u64::from(!damage.is_empty());
        assert!(damage.iter().all(|d| d.kind == DamageKind::Checksum));
        let named = |d: &Damage| d.path.as_ref().is_some_and(|path| !path.is_empty());
        assert!(damage.iter().all(named), "{damage:?}");
        mem.poke(block * PAGE, &content);
    }
    assert_eq!(protected, report.data_blocks - unwritten);
}

#[test]
fn a_damaged_block_is_an_error_once_reported_until_it_is_written_again() {
    let mem = Arc::new(Mem::new(16 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format(&device);
    let fs = open(&device);
    let main = fs.fileset_named(FIRST_FILESET).expect("there");
    let before = data_blocks(&fs);
    let write = |data: &[u8], offset: u64| {
        let cache = Cache::new(Config::new(4 << 20)).expect("a cache");
        let files = Files::new(&main, &cache).expect("files");
        if offset == 0 {
            files.create(ROOT, b"file", &NEW).expect("made");
        }
        let file = files.open(main.lookup(ROOT, b"file").expect("there").ino);
        let file = file.expect("open");
        let mut lane = files.lane().expect("a lane");
        lane.write(&file, WritePosition::Offset(offset), data)
            .expect("written");
        lane.sync(&file).expect("synced");
        drop((lane, file));
        files.close().expect("closed");
    };
    let mut data = vec![0; 100 * BLOCK];
    Random::new(3).fill(&mut data);
    write(&data, 0);
    let is_seventh = |block: &u64| block_of(&mem, *block) == data[7 * BLOCK..8 * BLOCK];
    let seventh = before.into_iter().find(is_seventh).expect("it is there");
    mem.poke(seventh * PAGE + 99, &[data[7 * BLOCK + 99] ^ 1]);

    let read = |page: u64, pages: usize| {
        let cache = Cache::new(Config::new(4 << 20)).expect("a cache");
        let files = Files::new(&main, &cache).expect("files");
        let file = files.open(main.lookup(ROOT, b"file").expect("there").ino);
        let (file, mut out) = (file.expect("open"), vec![0; pages * BLOCK]);
        let read = files
            .lane()
            .expect("a lane")
            .read(&file, page * PAGE, &mut out);
        drop(file);
        files.close().expect("closed");
        read.map(|_| out).map_err(|error| error.errno())
    };
    assert_eq!(read(0, 100), Err(libc::EIO));
    // The cache may have read ahead, too.
    let mismatches = fs.checksum_mismatches();
    assert!(mismatches >= 1);
    for page in 0..100 {
        let expected = match page {
            7 => Err(libc::EIO),
            _ => Ok(data[page as usize * BLOCK..][..BLOCK].to_vec()),
        };
        assert!(read(page, 1) == expected, "page {page}");
    }
    assert!(fs.checksum_mismatches() > mismatches);
    write(&[5; BLOCK], 7 * PAGE);
    data[7 * BLOCK..8 * BLOCK].fill(5);
    assert!(read(0, 100) == Ok(data));
    assert_eq!(scrub(&fs).damage, []);
}

/// Room on the device that a file is overwritten on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Plenty,
    /// Less than is overwritten without a sync.
    Scarce,
    None,
}

/// Overwrites a file at random and checks the image after each write to the device.
fn cut_overwrites(seed: u64, room: Room) {
    const PAGES: u64 = 24;
    const SCARCE_PAGES: u64 = 64;
    let full = room == Room::None;
    let mem = Arc::new(Mem::new(8 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format(&device);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let mut random = Random::new(seed);
    let ino = client.create(b"file");
    let page_of = |page: u64, version: u64| {
        let mut data = vec![version as u8; BLOCK];
        data[..8].copy_from_slice(&page.to_le_bytes());
        data
    };
    for page in 0..PAGES {
        client
            .write(ino, page * PAGE, &page_of(page, 1))
            .expect("written");
    }
    client.sync(&mut random).expect("synced");
    if room != Room::Plenty {
        let fill = client.create(b"fill");
        let mut at = 0;
        for pages in [64, 8, 1] {
            while client.write(fill, at, &vec![9; pages * BLOCK]).is_ok() {
                at += (pages * BLOCK) as u64;
                client.sync(&mut random).expect("synced");
            }
        }
        if room == Room::Scarce {
            client
                .truncate(fill, at - SCARCE_PAGES * PAGE)
                .expect("cut");
            client.sync(&mut random).expect("synced");
        }
    }
    drop(client);
    fs.close().expect("closed");

    let disk = Arc::new(PowerCut::new(&mem));
    let device: Arc<dyn BlockDevice> = disk.clone();
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let available = fs.usage().available;
    assert!(room != Room::Scarce || (6..80).contains(&available));
    let versions = if room == Room::Scarce { 24 } else { 8 };
    for version in 2..versions {
        for _ in 0..6 {
            let page = random.below(PAGES);
            let data = page_of(page, version);
            client
                .write(ino, page * PAGE, &data)
                .expect("there is room");
        }
        if room == Room::Scarce {
            let out = client.write_out(ino, &mut random, Portion::All);
            out.expect("written");
            continue;
        }
        client.fsync(ino, &mut random).expect("synced");
        if version % 3 == 0 {
            fs.commit().expect("committed");
        }
    }
    drop(client);
    fs.close().expect("closed");

    let (mut torn, mut most_unverified) = (0, 0);
    let last = disk.events();
    assert!(last > 30);
    let kept = [Tear::Drop, Tear::Keep];
    let ends = (0..=last).flat_map(|point| kept.map(|tear| (point, disk.crash(point, tear))));
    let ends: Vec<(usize, Mem)> = ends.collect();
    let images = disk
        .images(seed, 200)
        .map(|crash| (crash.point, crash.image));
    for (point, image) in ends.into_iter().chain(images) {
        let context = format!("EVFS_SEED={seed}, {room:?}, point {point}");
        let device: Arc<dyn BlockDevice> = Arc::new(image);
        let fs = open(&device);
        let unverified = assert_clean(&fs, &context);
        assert!(full || unverified == 0, "{context}");
        most_unverified = most_unverified.max(unverified);
        let mut client = Client::of_first(&fs);
        for page in 0..PAGES {
            let data = client.read(ino, page * PAGE, PAGE);
            let data = data.unwrap_or_else(|errno| panic!("{context}, page {page}: {errno}"));
            let is_whole = (1..versions).any(|version| data == page_of(page, version));
            torn += u64::from(!is_whole);
            assert!(is_whole || full, "{context}, page {page}");
        }
    }
    assert_eq!(most_unverified > 0, full, "overwritten in place");
    println!("{torn} pages were overwritten in part");
}

#[test]
fn overwriting_with_a_cut_at_every_write_leaves_each_block_old_or_new() {
    cut_overwrites(seed(4), Room::Plenty);
}

#[test]
fn overwriting_more_than_the_free_space_without_a_sync_leaves_each_block_old_or_new() {
    cut_overwrites(seed(8), Room::Scarce);
}

#[test]
fn overwriting_on_a_full_device_with_a_cut_at_every_write_makes_nothing_unreadable() {
    cut_overwrites(seed(5), Room::None);
}

#[test]
fn a_scrub_of_a_file_system_in_use_finds_no_damage() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 512));
    format(&device);
    let fs = open(&device);
    let cache = Cache::new(Config::new(4 << 20)).expect("a cache");
    let main = fs.fileset_named(FIRST_FILESET).expect("there");
    let files = Files::new(&main, &cache).expect("files");
    let inodes = [b"a", b"b", b"c"].map(|name| files.create(ROOT, name, &NEW).expect("made").ino);
    let writing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(seed(6));
            let mut lane = files.lane().expect("a lane");
            let open = inodes.map(|ino| files.open(ino).expect("open"));
            for round in 0..1500u64 {
                let at = random.below(3) as usize;
                let (file, inode) = (&open[at], inodes[at]);
                let at = random.below(300) * 1500;
                let data = vec![round as u8; 1 + random.below(30_000) as usize];
                let position = WritePosition::Offset(at);
                lane.write(file, position, &data).expect("written");
                match random.below(20) {
                    0 => lane.sync(file).expect("synced"),
                    1 => {
                        let size = Some(random.below(400_000));
                        let cut = SetAttr {
                            size,
                            ..SetAttr::default()
                        };
                        lane.set_attr(inode, &cut).expect("cut");
                    }
                    2 => fs.commit().expect("committed"),
                    _ => {}
                }
            }
            writing.store(false, Relaxed);
        });
        let mut scrubs = 0;
        while writing.load(Relaxed) || scrubs == 0 {
            assert_eq!(scrub_by(&fs, 64 * PAGE).damage, []);
            scrubs += 1;
        }
    });
    assert_eq!(fs.checksum_mismatches(), 0);
    files.close().expect("closed");
    let all = scrub(&fs);
    assert!(all.blocks > 100 && all.damage.is_empty());
    assert_clean(&fs, "after scrubs");
}

/// Creates a file system with a file of 50 blocks, on a device that fails on demand. Returns the
/// memory of the device, and the file.
fn of_fifty_blocks(checksums: DataChecksums) -> (Arc<Mem>, Fs, Ino, ErrorHandle) {
    let mem = Arc::new(Mem::new(16 << 20, 512));
    let plain: Arc<dyn BlockDevice> = mem.clone();
    Fs::format_with(Arc::clone(&plain), "test", checksums).expect("formatted");
    let (device, handle) = ErrorDevice::new(plain);
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let ino = client.create(b"file");
    client.write(ino, 0, &vec![7; 50 * BLOCK]).expect("written");
    client.sync(&mut Random::new(1)).expect("synced");
    (mem, fs, ino, handle)
}

#[test]
fn a_scrub_names_the_blocks_that_the_device_cannot_read() {
    let (_, fs, ino, handle) = of_fifty_blocks(DataChecksums::Yes);
    let media = Failure::every(1, ErrorKind::Media).of(OpKind::Read);
    // Half of the device; at least one of the blocks is in one half.
    let mut found = BTreeSet::new();
    for half in 0..2 {
        handle.set(Some(media.clone().within(half * (8 << 20), 8 << 20)));
        let damage = scrub(&fs).damage;
        assert!(damage.iter().all(|d| d.kind == DamageKind::Device));
        found.extend(pages_of(&damage));
    }
    let all: Pages = (0..50)
        .map(|page| (FIRST_FILESET.into(), ino, page))
        .collect();
    assert_eq!(found, all);
    let lost = Failure::every(1, ErrorKind::PathLost).of(OpKind::Read);
    handle.set(Some(lost));
    let error = fs.scrub(ScrubPosition::START, 1 << 20);
    assert_eq!(error.expect_err("no device").kind(), fs::Kind::Io);
    assert_eq!(fs.checksum_mismatches(), 0);
}

#[test]
fn a_file_system_without_checksums_works_as_before() {
    let mem = Arc::new(Mem::new(16 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    Fs::format_with(Arc::clone(&device), "old", DataChecksums::No).expect("formatted");
    let fs = open(&device);
    assert!(!fs.superblock().has_checksums());
    let mut client = Client::of_first(&fs);
    let mut random = Random::new(1);
    let ino = client.create(b"file");
    client.write(ino, 0, &[1; 10 * BLOCK]).expect("written");
    client.sync(&mut random).expect("synced");
    let used = data_blocks(&fs);
    let holds = |byte: u8| move |block: &u64| block_of(&mem.clone(), *block) == vec![byte; BLOCK];
    let first: Vec<u64> = used.iter().copied().filter(holds.clone()(1)).collect();
    assert_eq!(first.len(), 10);
    client.write(ino, 0, &[2; 10 * BLOCK]).expect("written");
    client.sync(&mut random).expect("synced");
    let second: Vec<u64> = used.iter().copied().filter(holds(2)).collect();
    assert_eq!(second, first, "overwritten in place");
    let all = scrub(&fs);
    assert_eq!((all.blocks, all.unverified, all.damage.len()), (10, 10, 0));
    assert_clean(&fs, "without checksums");
}

#[test]
fn of_two_writes_of_a_block_at_once_one_is_read() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 512));
    format(&device);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let ino = client.create(b"file");
    // Blocks that were never written are written in place, and all others to new places.
    client
        .allocate(ino, 0, 4 * PAGE, Allocate::Grow)
        .expect("allocated");
    let mut queues = [(); 2].map(|()| client.pager.queue().expect("a queue"));
    for round in 0..6u64 {
        let page = round % 4;
        let bytes = [2 * round as u8 + 1, 2 * round as u8 + 2];
        for (queue, byte) in queues.iter_mut().zip(bytes) {
            let op = Op::Write {
                offset: page * PAGE,
                bufs: Buf::copy_of(&[byte; BLOCK]).into(),
                fua: false,
            };
            let request = Request { tag: 1, op };
            let file = FileId(ino);
            queue.submit(FileRequest { file, request }).expect("room");
        }
        // The one that was submitted last ends first in every other round.
        if round % 2 == 0 {
            queues.reverse();
        }
        for queue in &mut queues {
            let mut done = Vec::new();
            queue.reap(Wait::Block, &mut done).expect("reaped");
            assert!(done.remove(0).result.is_ok());
        }
        let read = client.read(ino, page * PAGE, PAGE).expect("readable");
        assert!(bytes.iter().any(|byte| read == [*byte; BLOCK]), "{round}");
    }
    drop(queues);
    client.sync(&mut Random::new(1)).expect("synced");
    let all = scrub(&fs);
    assert_eq!((all.blocks, all.unverified, all.damage.len()), (4, 0, 0));
    assert_clean(&fs, "after writes at once");
}

#[test]
fn an_upgrade_cut_at_any_write_continues_and_protects_everything() {
    let mem = Arc::new(Mem::new(8 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    Fs::format_with(Arc::clone(&device), "old", DataChecksums::No).expect("formatted");
    let fs = open(&device);
    every_kind(&fs, &mut Random::new(seed(7)));
    assert_eq!(fs.check().expect("checked").unverified_blocks, 0);
    fs.close().expect("closed");
    let expected = read_all(&open(&device));

    let disk = Arc::new(PowerCut::new(&mem));
    let upgraded: Arc<dyn BlockDevice> = disk.clone();
    let fs = open(&upgraded);
    let mut seen = Vec::new();
    let done = fs.add_checksums(&mut |done, of| seen.push((done, of)));
    let done = done.expect("upgraded");
    assert!(done.added > 30 && done.unreadable == 0, "{done:?}");
    assert_eq!(seen.last(), Some(&(done.added, done.added)));
    assert_eq!(assert_clean(&fs, "upgraded"), 0);
    let again = fs.add_checksums(&mut |_, _| {}).expect("nothing to do");
    assert_eq!(again.added, 0);
    fs.close().expect("closed");

    let mut partial = 0;
    let ends = (0..=disk.events()).map(|point| disk.crash(point, Tear::Keep));
    let images = disk.images(7, 50).map(|crash| crash.image);
    for image in ends.chain(images).collect::<Vec<_>>() {
        let mem = Arc::new(image);
        let device: Arc<dyn BlockDevice> = mem.clone();
        let fs = open(&device);
        assert!(read_all(&fs) == expected);
        let left = assert_clean(&fs, "cut");
        partial += u64::from(left > 0 || !fs.superblock().has_checksums());
        fs.add_checksums(&mut |_, _| {}).expect("upgraded");
        assert_eq!(assert_clean(&fs, "upgraded after a cut"), 0);
        assert!(fs.superblock().has_checksums());
        assert!(read_all(&fs) == expected);
        fs.close().expect("closed");
        let fs = open(&device);
        let protected = data_blocks(&fs).into_iter().filter(|block| {
            let content = block_of(&mem, *block);
            let mut flipped = content.clone();
            flipped[5] ^= 1;
            mem.poke(block * PAGE, &flipped);
            let found = scrub(&fs).damage.len();
            mem.poke(block * PAGE, &content);
            found > 0
        });
        if partial < 3 {
            assert_eq!(protected.count() as u64, done.added);
        }
    }
    assert!(partial > 0);
}

#[test]
fn an_upgrade_leaves_blocks_that_cannot_be_read_without_checksums() {
    let (mem, fs, _, handle) = of_fifty_blocks(DataChecksums::No);
    let mut blocks = data_blocks(&fs).into_iter();
    let one = blocks.find(|block| block_of(&mem, *block) == [7; BLOCK]);
    let media = Failure::every(1, ErrorKind::Media).of(OpKind::Read);
    handle.set(Some(media.within((one.expect("there") + 9) * PAGE, PAGE)));
    let done = fs.add_checksums(&mut |_, _| {}).expect("upgraded");
    assert_eq!((done.added, done.unreadable), (49, 1));
    handle.set(None);
    assert_eq!(assert_clean(&fs, "readable again"), 1);
    let done = fs.add_checksums(&mut |_, _| {}).expect("upgraded");
    assert_eq!((done.added, done.unreadable), (1, 0));
}
