//! Copies of ranges that share blocks.
//!
//! Goal: a copy has the content of its source at that moment, costs no data, and each side changes
//! alone; references are counted right; a power cut leaves all of a copy or nothing of it. Method:
//! copies through the cache and directly, compared with the bytes expected, with the check of the
//! file system after each step.

mod common;

use block::{BlockDevice, Stats};
use block_testing::{Mem, PowerCut, Random, Tear};
use cache::{Cache, Config};
use common::client::{Client, PAGE, Portion};
use common::{assert_clean, format, open, options};
use fs::{
    Allocate, DataChecksums, FIRST_FILESET, FileType, Files, Fs, Handle, InodeFlags, Kind, Lane,
    New, Quota, ROOT, SetAttr, WritePosition,
};
use std::sync::Arc;

const NEW: New = New::of_root(FileType::File, 0o644);

/// A fileset with its pages in a cache.
struct Disk {
    fs: Fs,
    files: Arc<Files>,
    lane: Lane,
}

impl Disk {
    fn of(device: &Arc<dyn BlockDevice>) -> Disk {
        let fs = open(device);
        let main = fs.fileset_named(FIRST_FILESET).expect("there");
        let cache = Cache::new(Config::new(8 << 20)).expect("a cache");
        let files = Files::new(&main, &cache).expect("files");
        let lane = files.lane().expect("a lane");
        Disk { fs, files, lane }
    }

    fn create(&mut self, name: &str, content: &[u8]) -> Handle {
        let made = self.files.create_open(ROOT, name.as_bytes(), &NEW);
        let file = made.expect("made").1;
        self.write(&file, 0, content);
        file
    }

    fn write(&mut self, file: &Handle, offset: u64, data: &[u8]) {
        let at = WritePosition::Offset(offset);
        self.lane.write(file, at, data).expect("written");
    }

    /// Copies a range in as many calls as it takes. Returns the number of calls.
    fn copy(&mut self, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> usize {
        let (mut done, mut calls) = (0, 0);
        while done < len {
            let part = self
                .lane
                .copy((from.0, from.1 + done), (to.0, to.1 + done), len - done);
            let part = part.expect("copied");
            assert!(part > 0, "{done} of {len} bytes");
            (done, calls) = (done + part, calls + 1);
        }
        calls
    }

    fn read(&mut self, file: &Handle) -> Vec<u8> {
        let size = file.attr().expect("there").inode.size;
        let mut data = vec![0; size as usize];
        assert_eq!(
            self.lane.read(file, 0, &mut data).expect("read"),
            data.len()
        );
        data
    }

    /// Returns the blocks of data on the device, and those of them with several references.
    fn blocks(&self, context: &str) -> (u64, u64) {
        self.files.sync().expect("synced");
        assert_clean(&self.fs, context);
        let report = self.fs.check().expect("checked");
        (report.data_blocks, report.shared_blocks)
    }
}

fn memory(mib: u64, checksums: DataChecksums) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(mib << 20, 4096));
    Fs::format_with(Arc::clone(&device), "", checksums).expect("formatted");
    device
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Random::new(seed).fill(&mut data);
    data
}

fn blocks_of(file: &Handle) -> u64 {
    file.attr().expect("there").inode.blocks
}

#[test]
fn a_copy_shares_blocks_until_either_side_is_written() {
    for checksums in [DataChecksums::Yes, DataChecksums::No] {
        let device = memory(64, checksums);
        let mut disk = Disk::of(&device);
        let content = bytes(1, 200 * PAGE as usize + 100);
        let one = disk.create("one", &content);
        // Its pages are dirty.
        let two = disk.create("two", b"short");
        assert_eq!(disk.copy((&one, 0), (&two, 0), content.len() as u64), 1);
        assert!(disk.read(&two) == content);
        assert_eq!(disk.blocks("copied"), (202, 200));
        assert_eq!((blocks_of(&one), blocks_of(&two)), (201, 201));

        let mut other = content.clone();
        for (file, at, byte) in [(&two, 5000, 7), (&one, 50_000, 8)] {
            let before = disk.blocks("before");
            disk.write(file, at, &[byte]);
            assert_eq!(disk.blocks("written"), (before.0 + 1, before.1 - 1));
        }
        other[5000] = 7;
        assert!(disk.read(&two) == other);
        let mut first = content.clone();
        first[50_000] = 8;
        assert!(disk.read(&one) == first);

        disk.files.unlink(ROOT, b"one").expect("removed");
        drop(one);
        assert_eq!(disk.blocks("one side is gone"), (201, 0));
        let Disk { fs, files, lane } = disk;
        drop((two, lane));
        files.close().expect("closed");
        fs.close().expect("closed");

        let mut disk = Disk::of(&device);
        let ino = disk.files.lookup(ROOT, b"two").expect("there").ino;
        let two = disk.files.open(ino).expect("open");
        assert!(disk.read(&two) == other);
        disk.files.unlink(ROOT, b"two").expect("removed");
        drop(two);
        assert_eq!(disk.blocks("both are gone"), (0, 0));
    }
}

#[test]
fn a_copy_of_a_large_file_writes_and_reads_no_data() {
    let (device, stats) = Stats::new(memory(512, DataChecksums::Yes));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let mut disk = Disk::of(&device);
    let one = disk.create("one", &[]);
    let content = bytes(2, 4 << 20);
    let len = 160 << 20;
    for at in (0..len).step_by(content.len()) {
        disk.write(&one, at, &content);
    }
    disk.files.sync().expect("synced");
    let two = disk.create("two", &[]);
    let moved = || {
        let stats = stats.snapshot();
        (stats.read.bytes, stats.write.bytes)
    };
    let before = moved();
    disk.copy((&one, 0), (&two, 0), len);
    disk.lane.sync(&two).expect("synced");
    let after = moved();
    assert!(after.0 - before.0 < 1 << 20, "{before:?} {after:?}");
    assert!(after.1 - before.1 < 1 << 20, "{before:?} {after:?}");
    assert_eq!(blocks_of(&two), len / PAGE);
    assert_eq!(disk.blocks("copied"), (len / PAGE, len / PAGE));
    let copy = disk.read(&two);
    assert!(copy.chunks(content.len()).all(|part| part == content));
}

#[test]
fn bytes_around_whole_blocks_are_copied_and_so_is_a_shifted_range() {
    let mut disk = Disk::of(&memory(64, DataChecksums::Yes));
    let content = bytes(3, 100_000);
    let one = disk.create("one", &content);
    for (at, to_at, len, shared) in [
        (0, 0, 100_000, 24),
        (4096, 40_960, 8192, 2),
        (100, 4196, 50_000, 11),
        (0, 1, 100_000, 0),
        (5000, 904, 3000, 0),
        (4000, 8096, 96, 0),
        (99_999, 4095, 1, 0),
        (90_000, 0, 10_000, 0),
    ] {
        let old = bytes(4, 70_000);
        let two = disk.create("two", &old);
        disk.copy((&one, at as u64), (&two, to_at as u64), len as u64);
        let mut expected = old;
        let end = to_at + len;
        expected.resize(expected.len().max(end), 0);
        expected[to_at..end].copy_from_slice(&content[at..at + len]);
        let context = format!("{at} {to_at} {len}");
        assert!(disk.read(&two) == expected, "{context}");
        assert_eq!(disk.blocks(&context).1, shared, "{context}");
        // From the device as well.
        let main = disk.fs.fileset_named(FIRST_FILESET).expect("there");
        let read = Client::new(main).read(two.ino(), 0, 1 << 20);
        assert!(read.expect("readable") == expected, "{context}");
        disk.files.unlink(ROOT, b"two").expect("removed");
    }
}

#[test]
fn the_end_of_the_source_ends_a_copy_and_a_gap_before_it_is_a_hole() {
    let mut disk = Disk::of(&memory(64, DataChecksums::Yes));
    let one = disk.create("one", &bytes(5, 10_000));
    let two = disk.create("two", &[1; 100]);
    let copy = |disk: &mut Disk, from, to, len| {
        let copied = disk.lane.copy((&one, from), (&two, to), len);
        copied.map_err(|error| error.kind())
    };
    for at in [10_000, 20_000, u64::MAX] {
        assert_eq!(copy(&mut disk, at, 0, 4096), Ok(0), "at {at}");
    }
    assert_eq!(copy(&mut disk, 4096, 1 << 20, u64::MAX), Ok(10_000 - 4096));
    let mut expected = vec![0; (1 << 20) + 10_000 - 4096];
    expected[..100].fill(1);
    expected[1 << 20..].copy_from_slice(&bytes(5, 10_000)[4096..]);
    assert!(disk.read(&two) == expected);
    assert_eq!(blocks_of(&two), 3);
    let last = fs::FILE_SIZE_MAX;
    assert_eq!(copy(&mut disk, 0, last, 4096), Err(Kind::FileTooLarge));
    assert_eq!(copy(&mut disk, 0, last - 4096, 10_000), Ok(4096));
    assert_clean(&disk.fs, "at the largest size");
}

#[test]
fn holes_and_blocks_never_written_are_holes_of_the_copy() {
    let mut disk = Disk::of(&memory(64, DataChecksums::Yes));
    let one = disk.create("one", &[]);
    let data = bytes(6, 8192);
    disk.write(&one, 1 << 20, &data);
    let kept = 2 << 20..3 << 20;
    disk.lane
        .allocate(&one, kept, Allocate::Grow)
        .expect("kept");
    let two = disk.create("two", &bytes(7, 2 << 20));
    disk.copy((&one, 0), (&two, 0), 3 << 20);
    assert_eq!(blocks_of(&two), 2);
    let mut expected = vec![0; 3 << 20];
    expected[1 << 20..(1 << 20) + 8192].copy_from_slice(&data);
    assert!(disk.read(&two) == expected);
    assert_eq!(disk.blocks("copied"), (2 + 256, 2));
}

#[test]
fn a_truncated_block_shows_nothing_of_its_end_in_the_copy() {
    let mut disk = Disk::of(&memory(64, DataChecksums::Yes));
    let one = disk.create("one", &[9; 20_000]);
    disk.files.sync().expect("synced");
    for size in [5000, 20_000] {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        disk.lane.set_attr(one.ino(), &set).expect("cut and grown");
    }
    let two = disk.create("two", &[8; 4096]);
    disk.copy((&one, 0), (&two, 4096), 20_000);
    let mut expected = vec![0; 4096 + 20_000];
    expected[..4096].fill(8);
    expected[4096..4096 + 5000].fill(9);
    assert!(disk.read(&two) == expected);
    // The end of the target within a block, too.
    let three = disk.create("three", &[7; 1000]);
    disk.files.sync().expect("synced");
    disk.copy((&one, 0), (&three, 8192), 8192);
    let mut expected = vec![0; 8192 + 8192];
    expected[..1000].fill(7);
    expected[8192..8192 + 5000].fill(9);
    assert!(disk.read(&three) == expected);
    disk.blocks("copied");
}

#[test]
fn a_range_of_a_file_is_copied_within_it_but_not_over_itself() {
    let mut disk = Disk::of(&memory(64, DataChecksums::Yes));
    let content = bytes(8, 20 * PAGE as usize);
    let one = disk.create("one", &content);
    let refused = |disk: &mut Disk, to, len| {
        let error = disk
            .lane
            .copy((&one, 0), (&one, to), len)
            .expect_err("overlap");
        assert_eq!(error.kind(), Kind::Invalid);
    };
    refused(&mut disk, 0, PAGE);
    refused(&mut disk, PAGE, 2 * PAGE);
    refused(&mut disk, 1, 2);
    disk.copy((&one, 0), (&one, 5 * PAGE), 5 * PAGE);
    disk.copy((&one, 0), (&one, 20 * PAGE), 10 * PAGE);
    let mut expected = content.clone();
    expected.copy_within(..5 * PAGE as usize, 5 * PAGE as usize);
    expected.extend_from_within(..10 * PAGE as usize);
    assert!(disk.read(&one) == expected);
    assert_eq!(disk.blocks("copied"), (15, 5));
    disk.write(&one, 0, &[1; 5 * PAGE as usize]);
    expected[..5 * PAGE as usize].fill(1);
    assert!(disk.read(&one) == expected);
    disk.files.unlink(ROOT, b"one").expect("removed");
    drop(one);
    assert_eq!(disk.blocks("removed"), (0, 0));
}

#[test]
fn a_file_comes_back_from_a_snapshot_without_its_data_being_copied() {
    let device = memory(64, DataChecksums::Yes);
    let mut disk = Disk::of(&device);
    let content = bytes(9, 50 * PAGE as usize);
    let one = disk.create("one", &content);
    disk.files.sync().expect("synced");
    let main = disk.files.fileset().clone();
    let then = disk.fs.snapshot(main.id(), "then").expect("a snapshot");
    disk.write(&one, 0, &bytes(10, 50 * PAGE as usize));
    let before = disk.blocks("changed").0;
    let cache = Cache::new(Config::new(1 << 20)).expect("a cache");
    let past = Files::new(&then, &cache).expect("files of the snapshot");
    let old = past.open(one.ino()).expect("open");
    let len = content.len() as u64;
    // Only whole blocks can be shared, and nothing else is copied from there.
    let share = |disk: &mut Disk, at| {
        let shared = disk.lane.share((&old, at), (&one, at), len);
        shared.expect("not refused")
    };
    assert_eq!(share(&mut disk, 1), 0);
    let refused = disk
        .lane
        .copy((&old, 1), (&one, 1), 5)
        .expect_err("no copy");
    assert_eq!(refused.kind(), Kind::CrossFileset);
    assert_eq!(share(&mut disk, 0), len);
    assert!(disk.read(&one) == content);
    assert_eq!(disk.blocks("restored"), (before - 50, 50));
    drop(old);
    past.close().expect("closed");
    disk.fs.remove_fileset(then.id()).expect("removed");
    assert!(disk.read(&one) == content);
    assert_eq!(disk.blocks("without the snapshot"), (50, 0));

    // A live fileset of its own has pages that this one does not see.
    let other = disk.fs.create_fileset("other").expect("made");
    let others = Files::new(&other, &cache).expect("files");
    let (_, away) = others.create_open(ROOT, b"away", &NEW).expect("made");
    let refused = disk.lane.share((&away, 0), (&one, 0), PAGE);
    assert_eq!(refused.expect_err("refused").kind(), Kind::CrossFileset);
    drop(away);
    others.close().expect("closed");
}

#[test]
fn what_a_file_may_not_get_by_a_write_it_does_not_get_by_a_copy() {
    let mut disk = Disk::of(&memory(64, DataChecksums::Yes));
    let one = disk.create("one", &[1; 40_960]);
    let two = disk.create("two", &[2; 40_960]);
    let fileset = disk.files.fileset().clone();
    let kind = |disk: &mut Disk, to: u64| disk.lane.copy((&one, 0), (&two, to), 40_960);
    for (flags, inside, at_end) in [
        (InodeFlags::IMMUTABLE, false, false),
        (InodeFlags::APPEND_ONLY, false, true),
    ] {
        fileset.set_flags(two.ino(), flags).expect("set");
        for (at, permitted) in [(0, inside), (40_960, at_end)] {
            let before = disk.read(&two);
            match kind(&mut disk, at) {
                Ok(_) => assert!(permitted, "{flags:?} at {at}"),
                Err(error) => {
                    assert!(!permitted, "{flags:?} at {at}");
                    assert_eq!(error.kind(), Kind::NotPermitted);
                    assert!(disk.read(&two) == before);
                }
            }
        }
    }
    fileset
        .set_flags(two.ino(), InodeFlags::default())
        .expect("set");

    // A block counts for each file that refers to it.
    let limit = |disk: &Disk, blocks| {
        let quota = Quota { blocks, inodes: 0 };
        disk.fs.set_quota(fileset.id(), quota).expect("a limit");
    };
    limit(&disk, 39);
    let three = disk.create("three", &[]);
    let refused = disk.lane.copy((&one, 0), (&three, 0), 40_960);
    assert_eq!(refused.expect_err("no room").kind(), Kind::Quota);
    assert_eq!(blocks_of(&three), 0);
    // Blocks that are replaced do not count twice.
    disk.copy((&one, 0), (&two, 0), 40_960);
    limit(&disk, 40);
    disk.copy((&one, 0), (&three, 0), 40_960);
    let refused = disk.lane.write(&three, WritePosition::End, &[1; 4096]);
    assert_eq!(refused.expect_err("no room").kind(), Kind::Quota);
    // Nor does a shared block that gets one of its own.
    disk.write(&three, 0, &[4; 40_960]);
    assert_eq!(disk.blocks("at the limit"), (10 + 10, 10));
}

#[test]
fn only_whole_blocks_of_regular_files_of_one_file_system_are_shared() {
    let (fs, other) = (
        memory(16, DataChecksums::Yes),
        memory(16, DataChecksums::Yes),
    );
    let (fs, other) = (open(&fs), open(&other));
    let mut client = Client::of_first(&fs);
    let stranger = Client::of_first(&other);
    let (one, two) = (client.create(b"one"), client.create(b"two"));
    let away = stranger.create(b"away");
    client.write(one, 0, &[1; 40_960]).expect("written");
    client.sync(&mut Random::new(1)).expect("synced");
    let main = client.fileset.clone();
    let share = |source, from, to, len| {
        let shared = main.share(source, from, to, len);
        shared.map_err(|error| error.kind())
    };
    let (whole, part) = (PAGE, 1);
    for (from, to, len) in [(part, 0, whole), (0, part, whole), (0, 0, part)] {
        assert_eq!(
            share(&main, (one, from), (two, to), len),
            Err(Kind::Invalid)
        );
    }
    assert_eq!(
        share(&main, (one, 0), (one, PAGE), 2 * PAGE),
        Err(Kind::Invalid)
    );
    assert_eq!(share(&main, (ROOT, 0), (two, 0), PAGE), Err(Kind::Invalid));
    assert_eq!(share(&main, (one, 0), (ROOT, 0), PAGE), Err(Kind::Invalid));
    let strange = share(&stranger.fileset, (away, 0), (two, 0), PAGE);
    assert_eq!(strange, Err(Kind::CrossFileset));
    let far = fs::FILE_SIZE_MAX;
    assert_eq!(
        share(&main, (one, 0), (two, far), PAGE),
        Err(Kind::FileTooLarge)
    );
    assert_eq!(share(&main, (one, 40_960), (two, 0), PAGE), Ok(0));
    assert_eq!(share(&main, (one, 0), (two, 0), 0), Ok(0));
    let then = fs.snapshot(main.id(), "then").expect("a snapshot");
    let refused = then.share(&main, (one, 0), (two, 0), PAGE);
    assert_eq!(refused.expect_err("a snapshot").kind(), Kind::ReadOnly);
    // Between two filesets.
    let home = fs.create_fileset("home").expect("made");
    let there = home.create(ROOT, b"there", &NEW).expect("made").ino;
    let shared = home.share(&main, (one, 0), (there, 0), 40_960);
    assert_eq!(shared.expect("shared"), 40_960);
    assert_eq!(home.record().expect("there").used_blocks, 10);
    fs.remove_fileset(main.id()).expect_err("it has a snapshot");
    assert_clean(&fs, "shared");
    let read = Client::new(home).read(there, 0, 1 << 20);
    assert!(read.expect("readable") == [1; 40_960]);
}

#[test]
fn a_block_whose_page_is_dirty_is_not_shared() {
    let device = memory(16, DataChecksums::No);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let (one, two) = (client.create(b"one"), client.create(b"two"));
    client.write(one, 0, &[1; 40_960]).expect("written");
    let main = client.fileset.clone();
    let share = |from| main.share(&main, (one, from), (two, 0), 40_960 - from);
    assert_eq!(share(0).expect("none"), 0);
    client.sync(&mut Random::new(1)).expect("synced");
    // Without checksums, this page is written in place.
    client.write(one, 5 * PAGE, &[2; 100]).expect("written");
    assert_eq!(share(0).expect("some"), 5 * PAGE);
    assert_eq!(share(5 * PAGE).expect("none"), 0);
    assert_eq!(share(6 * PAGE).expect("some"), 4 * PAGE);
    let mut random = Random::new(2);
    client
        .write_out(one, &mut random, Portion::All)
        .expect("written");
    assert_eq!(share(0).expect("all"), 40_960);
    client.sync(&mut random).expect("synced");
    // A page of the source that becomes dirty now goes to a new place.
    client.write(one, 0, &[3; 40_960]).expect("written");
    client.sync(&mut random).expect("synced");
    let mut expected = vec![1; 40_960];
    expected[5 * PAGE as usize..5 * PAGE as usize + 100].fill(2);
    assert!(client.read(two, 0, 1 << 20).expect("readable") == expected);
    assert_clean(&fs, "shared");
}

/// Makes a file of which every second block is shared with another one.
fn fragmented(disk: &mut Disk, name: &str, blocks: u64) -> (Handle, Vec<u8>) {
    let content = bytes(11, (blocks * PAGE) as usize);
    let file = disk.create(name, &content);
    disk.files.sync().expect("synced");
    let other = disk.create(&format!("{name}-2"), &[]);
    for block in (0..blocks).step_by(2) {
        let at = block * PAGE;
        disk.copy((&file, at), (&other, at), PAGE);
    }
    (file, content)
}

#[test]
fn a_copy_of_many_runs_is_made_in_steps_that_the_metadata_has_room_for() {
    let mut disk = Disk::of(&memory(64, DataChecksums::Yes));
    let blocks = 3000;
    let (one, content) = fragmented(&mut disk, "one", blocks);
    let main = disk.files.fileset().clone();
    let two = disk.create("two", &[]);
    let shared = main.share(&main, (one.ino(), 0), (two.ino(), 0), blocks * PAGE);
    let shared = shared.expect("shared");
    assert!(shared > 100 * PAGE && shared < blocks * PAGE, "{shared}");
    disk.copy((&one, 0), (&two, 0), blocks * PAGE);
    assert!(disk.read(&two) == content);
    assert_eq!(disk.blocks("copied"), (blocks, blocks));
    // So is one that replaces many.
    let whole = disk.create("whole", &content);
    disk.files.sync().expect("synced");
    let shared = main.share(&main, (whole.ino(), 0), (one.ino(), 0), blocks * PAGE);
    assert!(shared.expect("shared") < blocks * PAGE);
    disk.copy((&whole, 0), (&one, 0), blocks * PAGE);
    disk.copy((&whole, 0), (&two, 0), blocks * PAGE);
    assert!(disk.read(&two) == content && disk.read(&one) == content);
    assert_eq!(disk.blocks("replaced"), (blocks + blocks / 2, blocks));
}

#[test]
fn a_full_disk_refuses_a_copy_or_makes_it_and_stays_usable() {
    let mut disk = Disk::of(&memory(12, DataChecksums::Yes));
    let (one, content) = fragmented(&mut disk, "one", 200);
    let filler = disk.create("filler", &[]);
    while disk
        .lane
        .write(&filler, WritePosition::End, &[1; 65_536])
        .is_ok()
    {}
    disk.files.sync().expect("synced");
    let mut copies: Vec<Handle> = Vec::new();
    let refused = (0..100_000).find_map(|i| {
        let name = format!("copy {i}");
        let made = disk.files.create_open(ROOT, name.as_bytes(), &NEW);
        let made = made.and_then(|(_, file)| {
            let len = content.len() as u64;
            let mut copied = 0;
            while copied < len {
                let (from, to) = ((&one, copied), (&file, copied));
                copied += disk.lane.copy(from, to, len - copied)?;
            }
            copies.push(file);
            Ok(())
        });
        made.err()
    });
    assert_eq!(refused.expect("full").kind(), Kind::NoSpace);
    disk.blocks("full");
    for file in &copies {
        assert!(disk.read(file) == content);
    }
    // Shared blocks need new ones to be overwritten.
    let refused = disk.lane.write(&one, WritePosition::Offset(0), &content);
    assert_eq!(refused.expect_err("no room").kind(), Kind::NoSpace);
    assert!(disk.read(&one) == content);
    disk.files.unlink(ROOT, b"filler").expect("removed");
    drop(filler);
    disk.files.sync().expect("synced");
    disk.write(&one, 0, &bytes(12, content.len()));
    disk.blocks("overwritten");
    assert!(copies.iter().all(|file| disk.read(file) == content));
}

#[test]
fn copies_in_both_directions_and_writes_at_the_same_time_leave_whole_blocks() {
    const BLOCKS: u64 = 64;
    for checksums in [DataChecksums::Yes, DataChecksums::No] {
        let mut disk = Disk::of(&memory(64, checksums));
        let one = disk.create("one", &[1; (BLOCKS * PAGE) as usize]);
        let two = disk.create("two", &[2; (BLOCKS * PAGE) as usize]);
        let (files, pair) = (Arc::clone(&disk.files), [&one, &two]);
        let files = &files;
        std::thread::scope(|scope| {
            for number in 0..4u8 {
                scope.spawn(move || {
                    let mut lane = files.lane().expect("a lane");
                    let mut random = Random::new(number.into());
                    let (from, to) = (pair[number as usize % 2], pair[1 - number as usize % 2]);
                    for round in 0..200u8 {
                        let at = random.below(BLOCKS) * PAGE;
                        if number < 2 {
                            let len = (1 + random.below(BLOCKS)) * PAGE;
                            lane.copy((from, at), (to, at), len).expect("copied");
                        } else {
                            let data = [round ^ number << 6; PAGE as usize];
                            let at = WritePosition::Offset(at);
                            lane.write(to, at, &data).expect("written");
                        }
                        if round % 16 == 0 {
                            lane.sync(to).expect("synced");
                        }
                    }
                });
            }
        });
        for file in pair {
            let data = disk.read(file);
            let is_whole = |block: &[u8]| block.iter().all(|byte| *byte == block[0]);
            assert!(data.chunks(PAGE as usize).all(is_whole));
            let main = disk.fs.fileset_named(FIRST_FILESET).expect("there");
            disk.blocks("at rest");
            let on_disk = Client::new(main).read(file.ino(), 0, 1 << 30);
            assert!(on_disk.expect("readable") == data);
        }
    }
}

#[test]
fn a_power_cut_leaves_all_of_a_copy_or_nothing_and_a_sync_makes_it_durable() {
    let disk = Arc::new(Mem::new(16 << 20, 4096));
    let device: Arc<dyn BlockDevice> = Arc::clone(&disk) as _;
    format(&device);
    let cut = Arc::new(PowerCut::new(&disk));
    let device: Arc<dyn BlockDevice> = Arc::clone(&cut) as _;
    let mut disk = Disk::of(&device);
    let content = bytes(13, 30 * PAGE as usize);
    let old = bytes(14, 20 * PAGE as usize);
    let two = disk.create("two", &old);
    let one = disk.create("one", &[]);
    disk.files.sync().expect("synced");
    let first = cut.events();
    // The source is not on the device yet.
    disk.write(&one, 0, &content);
    disk.copy((&one, 0), (&two, 10 * PAGE), content.len() as u64);
    disk.lane.sync(&two).expect("synced");
    let synced = cut.events();
    disk.write(&one, 0, &bytes(15, content.len()));
    disk.write(&two, 0, &[1; 100]);
    disk.lane.sync(&two).expect("synced");
    disk.files.sync().expect("synced");
    let last = cut.events();

    let mut new = old.clone();
    new.truncate(10 * PAGE as usize);
    new.extend_from_slice(&content);
    let mut later = new.clone();
    later[..100].fill(1);
    let (mut before, mut after) = (0, 0);
    for point in first..=last {
        for tear in [Tear::Drop, Tear::Keep, Tear::Random(point as u64)] {
            let image: Arc<dyn BlockDevice> = Arc::new(cut.crash(point, tear));
            let context = format!("{point} of {first}, {synced}, {last} {tear:?}");
            let fs = Fs::open(image, options()).expect("open");
            assert_clean(&fs, &context);
            let found = Client::of_first(&fs).read(two.ino(), 0, 1 << 30);
            let found = found.expect("readable");
            if found == old {
                assert!(point < synced, "{context}");
                before += 1;
            } else {
                assert!(
                    found == new || point > synced && found == later,
                    "{context}"
                );
                after += 1;
            }
        }
    }
    assert!(before > 0 && after > 0, "{before}, {after}");
}
