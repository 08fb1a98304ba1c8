//! Defragmentation that compresses and decompresses what is there.
//!
//! Goal: content is stored as if it were written now, and reads as before; what is shared stays as it
//! is; the counts agree; and a power failure at any moment leaves every file intact.

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random};
use common::client::Client;
use common::{amount, assert_clean, format_with, open, seed};
use fs::{
    Allocate, Compression, DataChecksums, Defragmented, FIRST_FILESET, Fs, Ino, InodeFlags, Kind,
    Pace, Quota, ROOT, Recompress,
};
use std::sync::Arc;

const PAGE: u64 = 4096;
const CHUNK: u64 = 16 * PAGE;
const ALL: [DataChecksums; 3] = [DataChecksums::Yes, DataChecksums::No, DataChecksums::Keyed];

fn device(bytes: u64, checksums: DataChecksums) -> (Arc<Mem>, Arc<dyn BlockDevice>) {
    let mem = Arc::new(Mem::new(bytes, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format_with(&device, checksums);
    (mem, device)
}

/// Text of lines that differ.
fn text(seed: u64, len: u64) -> Vec<u8> {
    let lines =
        (seed..).flat_map(|n| format!("{n}: a line of a text that compresses\n").into_bytes());
    lines.take(len as usize).collect()
}

fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut data = vec![0; len as usize];
    Random::new(seed).fill(&mut data);
    data
}

fn set(fs: &Fs, method: Option<Compression>) {
    let id = fs.fileset_named(FIRST_FILESET).expect("there").id();
    fs.set_compression(id, method).expect("set");
}

fn recompress(fs: &Fs, top: Ino) -> fs::Result<Defragmented> {
    let id = fs.fileset_named(FIRST_FILESET).expect("there").id();
    fs.defrag((id, top), Recompress::Yes, &Pace::new(None), &mut |_, _| {})
}

fn planned(fs: &Fs) -> Defragmented {
    let id = fs.fileset_named(FIRST_FILESET).expect("there").id();
    let done = fs.plan_defrag(
        (id, ROOT),
        Recompress::Yes,
        &Pace::new(None),
        &mut |_, _| {},
    );
    done.expect("planned")
}

fn blocks_of(client: &Client, ino: Ino) -> u64 {
    client.fileset.attr(ino).expect("there").inode.blocks
}

fn contents(client: &mut Client, files: &[Ino]) -> Vec<Vec<u8>> {
    let read = |ino: &Ino| client.read(*ino, 0, u64::MAX / 2).expect("readable");
    files.iter().map(read).collect()
}

/// Creates files of text, of noise, of both, with holes and unwritten blocks, and with an odd end
/// that was cut and grew again.
fn create(client: &mut Client, random: &mut Random) -> Vec<Ino> {
    let names: [&[u8]; 5] = [b"text", b"noise", b"both", b"holes", b"cut"];
    let files: Vec<Ino> = names.iter().map(|name| client.create(name)).collect();
    let write = |client: &mut Client, ino, at, data: &[u8]| {
        client.write(ino, at, data).expect("written");
    };
    write(client, files[0], 0, &text(1, 9 * CHUNK + 12_345));
    write(client, files[1], 0, &noise(1, 3 * CHUNK + 5));
    write(client, files[2], 0, &noise(2, 2 * CHUNK));
    write(client, files[2], 2 * CHUNK, &text(5, 2 * CHUNK));
    write(client, files[3], 3 * PAGE, &text(7, 9 * PAGE));
    write(client, files[3], 40 * CHUNK + PAGE, &text(8, 2 * CHUNK));
    write(client, files[4], 0, &text(9, 2 * CHUNK + 9 * PAGE));
    client.sync(random).expect("synced");
    let (from, to) = (13 * PAGE, CHUNK + 2 * PAGE);
    client
        .allocate(files[3], from, to, Allocate::Grow)
        .expect("allocated");
    client
        .truncate(files[4], CHUNK + 5 * PAGE + 77)
        .expect("cut");
    client.truncate(files[4], 3 * CHUNK).expect("grown");
    client.sync(random).expect("synced");
    files
}

#[test]
fn content_takes_the_form_that_the_fileset_asks_for_and_reads_as_before() {
    for checksums in ALL {
        let (_, device) = device(64 << 20, checksums);
        let fs = open(&device);
        let mut random = Random::new(seed(1));
        let mut client = Client::of_first(&fs);
        let files = create(&mut client, &mut random);
        let before = contents(&mut client, &files);
        let plain: Vec<u64> = files.iter().map(|ino| blocks_of(&client, *ino)).collect();
        assert_eq!(recompress(&fs, ROOT).expect("done").recompressed, 0);
        let mut last = plain.clone();
        let (lz4, zstd) = (Some(Compression::Lz4), Some(Compression::Zstd));
        for method in [lz4, zstd, None, zstd, lz4, None] {
            set(&fs, method);
            let plan = planned(&fs);
            let done = recompress(&fs, ROOT).expect("recompressed");
            let now: Vec<u64> = files.iter().map(|ino| blocks_of(&client, *ino)).collect();
            let context = format!("{checksums:?} {method:?} {last:?} {now:?} {done:?}");
            let forms = |d: &Defragmented| (d.recompressed, d.blocks_before, d.blocks_after);
            assert_eq!(forms(&plan), forms(&done), "{context}");
            assert_eq!(done.recompressed, 4, "{context}");
            let sum = |all: &[u64]| all[0] + all[2] + all[3] + all[4];
            assert_eq!(
                (done.blocks_before, done.blocks_after),
                (sum(&last), sum(&now))
            );
            match method {
                None => assert_eq!(now, plain, "{context}"),
                Some(_) => {
                    assert!(now[0] < plain[0] / 2, "{context}");
                    assert_eq!(now[1], plain[1], "{context}");
                    assert!(now[2] < plain[2] && now[2] >= 32, "{context}");
                    assert!(now[3] < plain[3] && now[4] < plain[4], "{context}");
                }
            }
            assert!(contents(&mut client, &files) == before, "{context}");
            let used = client.fileset.record().expect("there").used_blocks;
            assert_eq!(used, now.iter().sum::<u64>(), "{context}");
            assert_clean(&fs, &context);
            let again = recompress(&fs, ROOT).expect("again");
            assert_eq!(
                (again.recompressed, again.moved_blocks),
                (0, 0),
                "{context}"
            );
            last = now;
        }
        drop(client);
        fs.close().expect("closed");
        let fs = open(&device);
        assert!(contents(&mut Client::of_first(&fs), &files) == before);
        assert_clean(&fs, "opened again");
    }
}

#[test]
fn one_file_can_be_selected_and_its_flags_count() {
    let (_, device) = device(64 << 20, DataChecksums::Yes);
    let fs = open(&device);
    let mut random = Random::new(seed(2));
    let mut client = Client::of_first(&fs);
    let files = create(&mut client, &mut random);
    let flag = |ino, flags| client.fileset.set_flags(ino, flags).expect("set");
    flag(files[0], InodeFlags::COMPRESS);
    let plain = blocks_of(&client, files[0]);
    assert_eq!(recompress(&fs, files[2]).expect("done").recompressed, 0);
    assert_eq!(recompress(&fs, files[0]).expect("done").recompressed, 1);
    assert!(blocks_of(&client, files[0]) < plain / 2);
    flag(files[0], InodeFlags::NO_COMPRESS);
    set(&fs, Some(Compression::Lz4));
    assert_eq!(recompress(&fs, files[0]).expect("done").recompressed, 1);
    assert_eq!(blocks_of(&client, files[0]), plain);
    assert_clean(&fs, "flags");
}

#[test]
fn a_chunk_that_has_lost_parts_is_stored_in_fewer_blocks() {
    let (_, device) = device(64 << 20, DataChecksums::Yes);
    let fs = open(&device);
    set(&fs, Some(Compression::Lz4));
    let mut random = Random::new(seed(3));
    let mut client = Client::of_first(&fs);
    let ino = client.create(b"file");
    // Half of each block is noise, so a chunk has about eight blocks.
    let half = |n: u64| [noise(n, PAGE / 2), vec![0; PAGE as usize / 2]].concat();
    let content: Vec<u8> = (0..64).flat_map(half).collect();
    client.write(ino, 0, &content).expect("written");
    client.sync(&mut random).expect("synced");
    let whole = blocks_of(&client, ino);
    assert!(whole < 48, "{whole}");
    for (first, last) in [(1, 15), (17, 31)] {
        let (from, to) = (first * PAGE, (last + 1) * PAGE);
        client
            .allocate(ino, from, to, Allocate::Punch)
            .expect("punched");
    }
    client
        .write(ino, 2 * CHUNK + 7, b"changed")
        .expect("written");
    client.sync(&mut random).expect("synced");
    assert_eq!(blocks_of(&client, ino), whole + 1);
    let before = contents(&mut client, &[ino]);
    assert_eq!(recompress(&fs, ROOT).expect("done").recompressed, 1);
    assert!(blocks_of(&client, ino) <= whole / 2 + 4);
    assert!(contents(&mut client, &[ino]) == before);
    assert_clean(&fs, "parts");
}

#[test]
fn what_is_shared_or_about_to_be_written_stays_as_it_is() {
    for checksums in ALL {
        let (_, device) = device(64 << 20, checksums);
        let fs = open(&device);
        let mut random = Random::new(seed(4));
        let mut client = Client::of_first(&fs);
        let files = create(&mut client, &mut random);
        let id = client.fileset.id();
        let then = fs.snapshot(id, "then").expect("a snapshot");
        let old = contents(&mut Client::new(then.clone()), &files);
        set(&fs, Some(Compression::Zstd));
        assert_eq!(recompress(&fs, ROOT).expect("done").recompressed, 0);
        client
            .write(files[0], 0, &text(90, 2 * CHUNK))
            .expect("written");
        client
            .write(files[1], CHUNK, &text(91, CHUNK))
            .expect("written");
        // The second file has dirty pages throughout.
        client
            .write_out(files[0], &mut random, common::client::Portion::All)
            .expect("out");
        set(&fs, Some(Compression::Lz4));
        let before = contents(&mut client, &files);
        let done = recompress(&fs, ROOT).expect("done");
        assert_eq!(done.recompressed, 1, "{checksums:?} {done:?}");
        assert!(contents(&mut client, &files) == before);
        assert!(contents(&mut Client::new(then.clone()), &files) == old);
        client.sync(&mut random).expect("synced");
        assert_clean(&fs, "with a snapshot");
        fs.remove_fileset(then.id()).expect("removed");
        assert!(recompress(&fs, ROOT).expect("done").recompressed >= 3);
        assert!(contents(&mut client, &files) == before);
        assert_clean(&fs, "without the snapshot");
    }
}

#[test]
fn content_that_has_no_room_when_decompressed_stays_compressed() {
    let (_, device) = device(8 << 20, DataChecksums::Yes);
    let fs = open(&device);
    set(&fs, Some(Compression::Zstd));
    let mut random = Random::new(seed(5));
    let mut client = Client::of_first(&fs);
    let files: Vec<Ino> = (0..8).map(|n| client.create(&[b'a' + n])).collect();
    for ino in &files {
        client
            .write(*ino, 0, &text(*ino, 16 * CHUNK))
            .expect("written");
        client.sync(&mut random).expect("synced");
        // The client writes in pieces, which are not compressed.
        recompress(&fs, *ino).expect("compressed");
        fs.commit().expect("committed");
    }
    let before = contents(&mut client, &files);
    let used = client.fileset.record().expect("there").used_blocks;
    set(&fs, None);
    let id = client.fileset.id();
    let limit = |blocks| fs.set_quota(id, Quota { blocks, inodes: 0 }).expect("set");
    limit(used + 20);
    let refused = recompress(&fs, ROOT).expect_err("beyond the quota");
    assert_eq!(refused.kind(), Kind::Quota, "{refused}");
    assert!(contents(&mut client, &files) == before);
    limit(0);
    let done = recompress(&fs, ROOT).expect("as far as there is room");
    assert!(done.recompressed > 0 && done.blocks_after > done.blocks_before);
    let report = fs.check().expect("checked");
    assert!(report.is_clean() && report.chunks > 0, "{report:#?}");
    assert!(contents(&mut client, &files) == before);
    let name = client
        .fileset
        .create(ROOT, b"new", &fs::New::of_root(fs::FileType::File, 0o644));
    name.expect("the metadata has room");
}

#[test]
fn a_damaged_chunk_is_reported_and_not_copied() {
    let (mem, device) = device(64 << 20, DataChecksums::Yes);
    let fs = open(&device);
    set(&fs, Some(Compression::Lz4));
    let mut random = Random::new(seed(6));
    let mut client = Client::of_first(&fs);
    let ino = client.create(b"file");
    client.write(ino, 0, &text(3, CHUNK)).expect("written");
    client.sync(&mut random).expect("synced");
    // The client writes in pieces, which are not compressed.
    recompress(&fs, ino).expect("compressed");
    fs.sync().expect("synced");
    let begin = text(3, 20);
    let found = (0..(64 << 20) / PAGE).rev().find(|block| {
        let mut data = vec![0; PAGE as usize];
        mem.peek(block * PAGE, &mut data);
        data != [0; PAGE as usize] && data.windows(20).any(|part| part == begin)
    });
    let at = found.expect("its first bytes are stored as they are") * PAGE;
    let mut data = vec![0; PAGE as usize];
    mem.peek(at, &mut data);
    data[1000] ^= 1;
    mem.poke(at, &data);
    let blocks = blocks_of(&client, ino);
    for method in [None, Some(Compression::Zstd)] {
        set(&fs, method);
        let error = recompress(&fs, ROOT).expect_err("damaged");
        assert_eq!(error.kind(), Kind::Io, "{error}");
        assert!(
            error.to_string().contains(&format!("inode {ino}")),
            "{error}"
        );
        assert_eq!(blocks_of(&client, ino), blocks);
    }
    assert!(fs.check().expect("checked").is_clean());
}

#[test]
fn a_power_cut_in_the_middle_leaves_every_file_whole() {
    let seed = seed(7);
    for checksums in [DataChecksums::Yes, DataChecksums::No] {
        let mem = Arc::new(Mem::new(16 << 20, 512));
        let device: Arc<dyn BlockDevice> = mem.clone();
        format_with(&device, checksums);
        let fs = open(&device);
        let mut client = Client::of_first(&fs);
        let files = create(&mut client, &mut Random::new(seed));
        let before = contents(&mut client, &files);
        set(&fs, Some(Compression::Lz4));
        drop(client);
        fs.close().expect("closed");
        let disk = Arc::new(PowerCut::new(&mem));
        let device: Arc<dyn BlockDevice> = disk.clone();
        let fs = open(&device);
        for method in [Some(Compression::Lz4), Some(Compression::Zstd), None] {
            set(&fs, method);
            for ino in &files {
                recompress(&fs, *ino).expect("recompressed");
                fs.commit().expect("committed");
            }
        }
        fs.close().expect("closed");
        for crash in disk.images(seed, amount("EVFS_CUTS", 100)) {
            let context = format!("EVFS_SEED={seed}, {checksums:?}, {crash}");
            let device: Arc<dyn BlockDevice> = Arc::new(crash.image);
            let fs = open(&device);
            assert_clean(&fs, &context);
            let mut client = Client::of_first(&fs);
            assert!(contents(&mut client, &files) == before, "{context}");
        }
    }
}
