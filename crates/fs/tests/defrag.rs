//! Defragmentation of files.
//!
//! Goal: the content of files and snapshots does not change, nor do the counts; and a power failure
//! at any moment leaves every file intact.

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random};
use common::client::{Client, Portion};
use common::{amount, assert_clean, format, open, seed};
use fs::{
    Allocate, Defragmented, FIRST_FILESET, FileType, Fs, Ino, Kind, New, Pace, ROOT, Recompress,
    TreeId,
};
use std::sync::Arc;

const NEW: New = New::of_root(FileType::File, 0o644);
const PAGE: u64 = 4096;

/// Creates files of scattered pages, with holes, tails and unwritten pages.
fn scatter(client: &mut Client, random: &mut Random) -> Vec<Ino> {
    let dir = New {
        kind: FileType::Directory,
        ..NEW
    };
    let dir = client.fileset.create(ROOT, b"dir", &dir).expect("made").ino;
    let files: Vec<Ino> = (0..6u8)
        .map(|i| {
            let dir = if i < 3 { ROOT } else { dir };
            let name = [b'a' + i];
            client.fileset.create(dir, &name, &NEW).expect("made").ino
        })
        .collect();
    for page in 0..60 {
        for ino in &files {
            let mut data = vec![0; 1 + random.below(PAGE) as usize];
            random.fill(&mut data);
            if random.below(12) > 0 {
                client.write(*ino, page * PAGE, &data).expect("written");
                client
                    .write_out(*ino, random, Portion::All)
                    .expect("written out");
            }
        }
    }
    let unwritten = 70 * PAGE..90 * PAGE;
    client
        .allocate(files[1], unwritten.start, unwritten.end, Allocate::Grow)
        .expect("allocated");
    client.truncate(files[2], 30 * PAGE + 77).expect("cut");
    client.sync(random).expect("synced");
    files
}

fn defrag(fs: &Fs, id: TreeId, top: Ino) -> fs::Result<Defragmented> {
    let pace = Pace::new(None);
    fs.defrag((id, top), Recompress::No, &pace, &mut |_, _| {})
}

fn contents(client: &mut Client, files: &[Ino]) -> Vec<Vec<u8>> {
    let read = |ino: &Ino| client.read(*ino, 0, u64::MAX / 2).expect("readable");
    files.iter().map(read).collect()
}

#[test]
fn files_have_few_extents_afterwards_and_the_same_bytes() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    format(&device);
    let fs = open(&device);
    let mut random = Random::new(seed(1));
    let mut client = Client::of_first(&fs);
    let files = scatter(&mut client, &mut random);
    let before = contents(&mut client, &files);
    let used = client.fileset.record().expect("there");
    let id = client.fileset.id();
    let mut told = Vec::new();
    let mut tell = |done, total| told.push((done, total));
    let done = fs.defrag((id, ROOT), Recompress::No, &Pace::new(None), &mut tell);
    let done = done.expect("it defrags");
    assert_eq!(done.files, 6);
    assert!(done.improved >= 5 && done.moved_blocks > 200, "{done:?}");
    // One page in twelve is a hole, and a new extent begins after each.
    assert!(done.extents_before > 250, "{done:?}");
    assert!(done.extents_after < 6 * 14, "{done:?}");
    assert!(
        told.windows(2)
            .all(|w| w[0].0 <= w[1].0 && w[0].1 == w[1].1)
    );
    assert!(told.last().is_some_and(|(done, total)| done == total));
    assert!(contents(&mut client, &files) == before);
    assert_eq!(client.fileset.record().expect("there"), used);
    let report = fs.check().expect("checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
    assert_eq!(report.extents, done.extents_after);
    let counted: u64 = report.files_by_extents.iter().sum();
    assert_eq!(counted, 6);
    let again = defrag(&fs, id, ROOT).expect("it defrags");
    assert_eq!(
        (again.moved_blocks, again.extents_before),
        (0, done.extents_after)
    );
    drop(client);
    fs.close().expect("closed");
    let fs = open(&device);
    assert!(contents(&mut Client::of_first(&fs), &files) == before);
}

#[test]
fn what_a_snapshot_shares_stays_and_shows_the_same() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    format(&device);
    let fs = open(&device);
    let mut random = Random::new(seed(2));
    let mut client = Client::of_first(&fs);
    let files = scatter(&mut client, &mut random);
    let id = client.fileset.id();
    let then = fs.snapshot(id, "then").expect("a snapshot");
    let old = contents(&mut Client::new(then.clone()), &files);
    let untouched = defrag(&fs, id, ROOT).expect("it defrags");
    assert_eq!(untouched.moved_blocks, 0);
    for page in 0..60 {
        for ino in &files[..2] {
            client
                .write(*ino, page * PAGE, &[page as u8; 4096])
                .expect("written");
            client
                .write_out(*ino, &mut random, Portion::All)
                .expect("written out");
        }
    }
    client.sync(&mut random).expect("synced");
    let before = contents(&mut client, &files);
    let done = defrag(&fs, id, ROOT).expect("it defrags");
    assert!(done.improved >= 1 && done.improved <= 2, "{done:?}");
    assert!(contents(&mut client, &files) == before);
    assert!(contents(&mut Client::new(then.clone()), &files) == old);
    assert_clean(&fs, "with a snapshot");
    let refused = defrag(&fs, then.id(), ROOT);
    assert_eq!(refused.expect_err("a snapshot").kind(), Kind::ReadOnly);
    fs.remove_fileset(then.id()).expect("removed");
    assert!(contents(&mut client, &files) == before);
    assert_clean(&fs, "without the snapshot");
}

#[test]
fn one_file_or_directory_is_enough_and_open_files_are_rewritten_too() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    format(&device);
    let fs = open(&device);
    let mut random = Random::new(seed(3));
    let mut client = Client::of_first(&fs);
    let files = scatter(&mut client, &mut random);
    let id = client.fileset.id();
    client.fileset.open(files[0]).expect("open");
    let one = defrag(&fs, id, files[0]).expect("one file");
    assert_eq!((one.files, one.improved), (1, 1));
    client.fileset.release(files[0]).expect("closed");
    let dir = client.fileset.lookup(ROOT, b"dir").expect("there").ino;
    let three = defrag(&fs, id, dir).expect("a directory");
    assert_eq!((three.files, three.improved), (3, 3));
    assert_clean(&fs, "in parts");
}

#[test]
fn a_nearly_full_device_is_defragmented_as_far_as_there_is_room() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(12 << 20, 512));
    format(&device);
    let fs = open(&device);
    let mut random = Random::new(seed(4));
    let mut client = Client::of_first(&fs);
    let files = scatter(&mut client, &mut random);
    let fill = client.create(b"fill");
    // Free space: the reserve of the metadata, as much again, which is allocated first, and a
    // little.
    let usage = fs.usage();
    let aside = usage.free - usage.available;
    let room = usage.available - aside - 40;
    client
        .allocate(fill, 0, room * PAGE, Allocate::Grow)
        .expect("allocated");
    client.sync(&mut random).expect("synced");
    let before = contents(&mut client, &files);
    let id = client.fileset.id();
    let done = defrag(&fs, id, ROOT).expect("it defrags");
    assert!(done.extents_after < done.extents_before, "{done:?}");
    assert!(contents(&mut client, &files) == before);
    assert_clean(&fs, "nearly full");
}

#[test]
fn a_power_cut_in_the_middle_leaves_every_file_whole() {
    let seed = seed(5);
    let mem = Arc::new(Mem::new(32 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format(&device);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let files = scatter(&mut client, &mut Random::new(seed));
    let before = contents(&mut client, &files);
    drop(client);
    fs.close().expect("closed");
    let disk = Arc::new(PowerCut::new(&mem));
    let device: Arc<dyn BlockDevice> = disk.clone();
    let fs = open(&device);
    let id = fs.fileset_named(FIRST_FILESET).expect("there").id();
    for ino in &files {
        defrag(&fs, id, *ino).expect("it defrags");
        fs.commit().expect("committed");
    }
    fs.close().expect("closed");
    for crash in disk.images(seed, amount("EVFS_CUTS", 100)) {
        let context = format!("EVFS_SEED={seed}, {crash}");
        let device: Arc<dyn BlockDevice> = Arc::new(crash.image);
        let fs = open(&device);
        assert_clean(&fs, &context);
        assert!(
            contents(&mut Client::of_first(&fs), &files) == before,
            "{context}"
        );
    }
}
