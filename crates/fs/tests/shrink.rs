//! A file system that becomes smaller.
//!
//! Goal: filesets, snapshots and the blocks that they share stay as they are; and an interruption at
//! any moment leaves them whole, in the old size or the new one.

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random};
use common::client::Client;
use common::pair::Pair;
use common::snapshots::Snapshots;
use common::{amount, assert_clean, format, format_with, open, seed};
use fs::{Allocate, Compression, DataChecksums, FIRST_FILESET, Fs, Ino, Kind};
use std::sync::Arc;

const LARGE: u64 = 96 << 20;

/// Creates files all over a device, with holes, shared blocks, and a snapshot, and removes most of
/// them. Returns what each file contains.
fn scattered(device: &Arc<dyn BlockDevice>, random: &mut Random) -> Vec<(Ino, Vec<u8>)> {
    let fs = open(device);
    let mut client = Client::of_first(&fs);
    let id = client.fileset.id();
    fs.set_compression(id, Some(Compression::Lz4)).expect("set");
    let mut files = Vec::new();
    for i in 0..60u64 {
        let ino = client.create(format!("file {i}").as_bytes());
        let mut data = vec![0; 1 << 20];
        random.fill(&mut data);
        if i % 12 == 5 {
            // Compresses to a half.
            data.chunks_mut(64).for_each(|piece| piece[32..].fill(0));
        }
        client.write(ino, 0, &data).expect("written");
        client.sync(random).expect("synced");
        files.push((ino, data));
    }
    for i in (0..60u64).rev().filter(|i| i % 6 != 5) {
        let name = format!("file {i}");
        let (ino, _) = files.remove(i as usize);
        client.forget(ino);
        client
            .fileset
            .unlink(fs::ROOT, name.as_bytes())
            .expect("removed");
    }
    fs.snapshot(id, "kept").expect("a snapshot");
    // Half of each block run is replaced after the snapshot.
    for (ino, data) in &mut files {
        let mut new = vec![0; 100_000];
        random.fill(&mut new);
        client.write(*ino, 300_000, &new).expect("written");
        data[300_000..400_000].copy_from_slice(&new);
        client
            .allocate(*ino, 2 << 20, (2 << 20) + 40_000, Allocate::Grow)
            .expect("allocated");
        data.resize((2 << 20) + 40_000, 0);
    }
    client.sync(random).expect("synced");
    drop(client);
    fs.close().expect("closed");
    files
}

fn contents(fs: &Fs, fileset: &str, files: &[(Ino, Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut client = Client::new(fs.fileset_named(fileset).expect("there"));
    files
        .iter()
        .map(|(ino, _)| client.read(*ino, 0, u64::MAX / 2).expect("readable"))
        .collect()
}

fn assert_whole(fs: &Fs, files: &[(Ino, Vec<u8>)], kept: &[Vec<u8>], context: &str) {
    assert_clean(fs, context);
    for ((ino, data), found) in files.iter().zip(contents(fs, FIRST_FILESET, files)) {
        assert!(*data == found, "{context}: inode {ino}");
    }
    assert!(contents(fs, "kept", files) == kept, "{context}: snapshot");
}

#[test]
fn files_and_snapshots_stay_and_the_device_can_be_cut() {
    for checksums in [DataChecksums::Yes, DataChecksums::No, DataChecksums::Keyed] {
        let mem = Arc::new(Mem::new(LARGE, 512));
        let device: Arc<dyn BlockDevice> = mem.clone();
        format_with(&device, checksums);
        let files = scattered(&device, &mut Random::new(seed(1)));
        let fs = open(&device);
        let kept = contents(&fs, "kept", &files);
        let minimum = fs.minimum_bytes();
        assert!(minimum < LARGE / 2, "{minimum}");
        let before = fs.check().expect("checked");
        assert!(before.chunks > 20, "{}", before.chunks);
        let refused = fs
            .shrink(minimum - 4096, &mut |_, _| {})
            .expect_err("too small");
        assert_eq!(refused.kind(), Kind::NoSpace);
        assert!(
            refused.to_string().contains(&minimum.to_string()),
            "{refused}"
        );
        let refused = fs.shrink(LARGE + 4096, &mut |_, _| {}).expect_err("larger");
        assert_eq!(refused.kind(), Kind::Invalid);
        let (size, blocks) = fs.plan_shrink(minimum + 100).expect("it fits");
        assert_eq!(size, minimum);
        assert!(blocks > 1000, "{blocks}");
        let mut told = Vec::new();
        let size = fs.shrink(minimum + 100, &mut |done, of| told.push((done, of)));
        assert_eq!(size.expect("it shrinks"), minimum);
        assert_eq!(told.last(), Some(&(blocks, blocks)));
        assert_whole(&fs, &files, &kept, "shrunk");
        let after = fs.check().expect("checked");
        assert_eq!(after.shared_blocks, before.shared_blocks);
        assert_eq!(after.chunks, before.chunks);
        assert_eq!(fs.usage().blocks * 4096, minimum);
        fs.close().expect("closed");
        let all = mem.to_vec();
        let small = Mem::new(minimum, 512);
        small.poke(0, &all[..minimum as usize]);
        let small: Arc<dyn BlockDevice> = Arc::new(small);
        let fs = open(&small);
        assert_whole(&fs, &files, &kept, "on a small device");
        // It can be used, and grow again.
        let mut client = Client::of_first(&fs);
        let ino = client.create(b"more");
        client.write(ino, 0, &[7; 100_000]).expect("room");
        client.sync(&mut Random::new(1)).expect("synced");
        drop(client);
        fs.close().expect("closed");
        let large = Mem::new(LARGE, 512);
        large.poke(0, &all[..minimum as usize]);
        let device: Arc<dyn BlockDevice> = Arc::new(large);
        let fs = open(&device);
        assert_eq!(fs.grow().expect("it grows"), LARGE);
        let mut client = Client::of_first(&fs);
        let ino = client.create(b"more");
        let data = vec![7; (LARGE / 3) as usize];
        client.write(ino, 0, &data).expect("room");
        client.sync(&mut Random::new(1)).expect("synced");
        assert_whole(&fs, &files, &kept, "grown again");
    }
}

#[test]
fn random_histories_stay_as_they_are() {
    for round in 0..amount("EVFS_ROUNDS", 6) as u64 {
        let seed = seed(10) + round;
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
        format(&device);
        let mut pair = Pair::new(open(&device), seed);
        let method = [Some(Compression::Lz4), Some(Compression::Zstd), None][round as usize % 3];
        let id = pair.fileset().id();
        pair.fs.set_compression(id, method).expect("set");
        let mut snapshots = Snapshots::default();
        for step in 0..1500 {
            pair.step();
            if step % 60 == 0 {
                snapshots.step(&mut pair);
            }
        }
        pair.release_all();
        pair.client.sync(&mut pair.random).expect("synced");
        let fs = &pair.fs;
        let context = format!("EVFS_SEED={seed}");
        fs.commit().expect("committed");
        for bytes in [48 << 20, 24 << 20, 0] {
            let bytes = fs.minimum_bytes().max(bytes);
            let bytes = bytes.min(fs.usage().blocks * 4096);
            fs.shrink(bytes, &mut |_, _| {})
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_clean(fs, &context);
        }
        pair.compare_all();
        snapshots.compare_all(&pair.fs);
    }
}

#[test]
fn a_power_cut_at_any_moment_leaves_all_whole_and_the_shrink_is_started_again() {
    let seed = seed(3);
    let mem = Arc::new(Mem::new(LARGE, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format(&device);
    let files = scattered(&device, &mut Random::new(seed));
    let fs = open(&device);
    let kept = contents(&fs, "kept", &files);
    let minimum = fs.minimum_bytes();
    fs.close().expect("closed");
    let disk = Arc::new(PowerCut::new(&mem));
    let device: Arc<dyn BlockDevice> = disk.clone();
    let fs = open(&device);
    assert_eq!(
        fs.shrink(minimum, &mut |_, _| {}).expect("it shrinks"),
        minimum
    );
    fs.close().expect("closed");
    let mut sizes = [0, 0];
    for crash in disk.images(seed, amount("EVFS_CUTS", 30)) {
        let context = format!("EVFS_SEED={seed}, {crash}");
        let device: Arc<dyn BlockDevice> = Arc::new(crash.image);
        let fs = open(&device);
        assert_whole(&fs, &files, &kept, &context);
        let is_shrunk = fs.usage().blocks * 4096 == minimum;
        sizes[usize::from(is_shrunk)] += 1;
        let again = fs.minimum_bytes().max(minimum);
        let again = again.min(fs.usage().blocks * 4096);
        assert_eq!(
            fs.shrink(again, &mut |_, _| {}).expect("again"),
            again,
            "{context}"
        );
        assert_whole(&fs, &files, &kept, &context);
    }
    assert!(sizes[0] > 5, "{sizes:?}");
}

#[test]
fn a_file_system_in_use_is_refused() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    format(&device);
    let fs = open(&device);
    let client = Client::of_first(&fs);
    let ino = client.create(b"file");
    client.fileset.open(ino).expect("open");
    let refused = fs.shrink(16 << 20, &mut |_, _| {}).expect_err("in use");
    assert_eq!(refused.kind(), Kind::Busy);
    client.fileset.release(ino).expect("closed");
    assert_eq!(
        fs.shrink(16 << 20, &mut |_, _| {}).expect("it shrinks"),
        16 << 20
    );
    assert_clean(&fs, "shrunk");
}
