//! Compressed files.
//!
//! Goal: a file with a flag, or in a fileset with a method, takes less space and reads as before; a
//! part that is written, punched, truncated or copied changes nothing else; damage is an error that
//! names the file; programs of earlier versions refuse the file system. Method: files through the
//! cache and directly, compared with the bytes expected, with the check of the file system after each
//! step.

mod common;

use block::BlockDevice;
use block_testing::{Mem, Random};
use cache::{Cache, Config};
use common::client::{Client, Portion};
use common::{assert_clean, options};
use fs::{
    Allocate, Compression, DataChecksums, FIRST_FILESET, FileType, Files, Fs, Handle, InodeFlags,
    Kind, Lane, New, Quota, ROOT, ScrubPosition, Seek, SetAttr, WritePosition,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const FILE: New = New::of_root(FileType::File, 0o644);
const DIRECTORY: New = New::of_root(FileType::Directory, 0o755);
const PAGE: usize = 4096;
const CHUNK: usize = 16 * PAGE;
const ALL: [DataChecksums; 3] = [DataChecksums::Yes, DataChecksums::No, DataChecksums::Keyed];

fn device(checksums: DataChecksums) -> Arc<Mem> {
    let mem = Arc::new(Mem::new(64 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    common::format_with(&device, checksums);
    mem
}

/// A fileset with its pages in a cache.
struct Disk {
    fs: Fs,
    files: Arc<Files>,
    lane: Lane,
}

impl Disk {
    fn of(mem: &Arc<Mem>) -> Disk {
        let device: Arc<dyn BlockDevice> = mem.clone();
        let fs = Fs::open(common::keyed(&device), options()).expect("it opens");
        let main = fs.fileset_named(FIRST_FILESET).expect("there");
        let cache = Cache::new(Config::new(16 << 20)).expect("a cache");
        let files = Files::new(&main, &cache).expect("files");
        let lane = files.lane().expect("a lane");
        Disk { fs, files, lane }
    }

    fn set(&self, method: Compression) {
        let id = self.files.fileset().id();
        self.fs.set_compression(id, Some(method)).expect("set");
    }

    fn create(&mut self, name: &str, content: &[u8]) -> Handle {
        let made = self.files.create_open(ROOT, name.as_bytes(), &FILE);
        let file = made.expect("made").1;
        self.write(&file, 0, content);
        self.lane.sync(&file).expect("synced");
        file
    }

    fn open(&self, name: &str) -> Handle {
        let ino = self.files.lookup(ROOT, name.as_bytes()).expect("there").ino;
        self.files.open(ino).expect("open")
    }

    fn write(&mut self, file: &Handle, offset: u64, data: &[u8]) {
        let at = WritePosition::Offset(offset);
        self.lane.write(file, at, data).expect("written");
    }

    fn cut(&mut self, file: &Handle, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.lane.set_attr(file.ino(), &set).expect("cut");
    }

    /// Reads a file from the device.
    fn read(&mut self, file: &Handle) -> Vec<u8> {
        let size = file.attr().expect("there").inode.size as usize;
        let mut data = vec![0; size.next_multiple_of(PAGE)];
        let read = self.lane.read_direct(file, 0, &mut data).expect("read");
        assert_eq!(read, size);
        data.truncate(size);
        data
    }

    fn close(self) {
        let Disk { fs, files, lane } = self;
        drop(lane);
        files.close().expect("closed");
        assert_clean(&fs, "closed");
        fs.close().expect("closed");
    }
}

fn blocks_of(file: &Handle) -> u64 {
    file.attr().expect("there").inode.blocks
}

/// Text of lines that differ.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let lines =
        (seed..).flat_map(|n| format!("{n}: a line of a text that compresses\n").into_bytes());
    lines.take(len).collect()
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Random::new(seed).fill(&mut data);
    data
}

#[test]
fn a_compressed_file_takes_less_space_and_reads_the_same_after_a_remount() {
    for checksums in ALL {
        for method in Compression::ALL {
            let mem = device(checksums);
            let mut disk = Disk::of(&mem);
            disk.set(method);
            let content = text(1, 20 * CHUNK + 12_345);
            let whole = content.len().div_ceil(PAGE) as u64;
            let file = disk.create("text", &content);
            assert!(
                blocks_of(&file) < whole / 2,
                "{method}: {}",
                blocks_of(&file)
            );
            assert!(disk.read(&file) == content);
            let random = noise(1, 5 * CHUNK);
            let other = disk.create("noise", &random);
            assert_eq!(blocks_of(&other), random.len() as u64 / PAGE as u64);
            assert!(disk.read(&other) == random);
            assert_clean(&disk.fs, "written");
            let used = disk.files.fileset().record().expect("there").used_blocks;
            assert_eq!(used, blocks_of(&file) + blocks_of(&other));
            let (before, direct) = (blocks_of(&file), disk.create("direct", b""));
            drop((file, other));
            // Past the cache as well.
            let at = WritePosition::Offset(0);
            let aligned = &content[..20 * CHUNK];
            disk.lane
                .write_direct(&direct, at, aligned)
                .expect("written");
            assert!(blocks_of(&direct) < 20 * 16 / 2);
            assert!(disk.read(&direct) == aligned);
            drop(direct);
            disk.close();

            let mut disk = Disk::of(&mem);
            let file = disk.open("text");
            assert_eq!(blocks_of(&file), before);
            let mut cached = vec![0; content.len()];
            disk.lane.read(&file, 0, &mut cached).expect("read");
            assert!(cached == content);
            let mut part = [0; 100];
            disk.lane.read(&file, 300_000, &mut part).expect("read");
            assert_eq!(part[..], content[300_000..300_100]);
            disk.files.unlink(ROOT, b"text").expect("removed");
            drop(file);
            disk.files.sync().expect("synced");
            assert_clean(&disk.fs, "removed");
            let report = disk.fs.check().expect("checked");
            let left = blocks_of(&disk.open("noise")) + blocks_of(&disk.open("direct"));
            assert_eq!(report.data_blocks, left);
            disk.close();
        }
    }
}

#[test]
fn the_flag_is_inherited_and_the_opposite_one_excepts_from_the_method_of_the_fileset() {
    let mem = device(DataChecksums::Yes);
    let mut disk = Disk::of(&mem);
    let content = text(3, 4 * CHUNK);
    let plain = disk.create("plain", &content);
    assert_eq!(blocks_of(&plain), 64);
    assert!(!disk.fs.superblock().has_compression());

    let dir = disk
        .files
        .create(ROOT, b"dir", &DIRECTORY)
        .expect("made")
        .ino;
    disk.files
        .set_flags(dir, InodeFlags::COMPRESS)
        .expect("set");
    assert!(disk.fs.superblock().has_compression());
    let below = disk.files.create(dir, b"below", &DIRECTORY).expect("made");
    assert_eq!(below.inode.flags, InodeFlags::COMPRESS);
    let (attr, file) = disk
        .files
        .create_open(below.ino, b"file", &FILE)
        .expect("made");
    assert_eq!(attr.inode.flags, InodeFlags::COMPRESS);
    disk.write(&file, 0, &content);
    disk.lane.sync(&file).expect("synced");
    assert!(blocks_of(&file) < 32);
    let fifo = New::of_root(FileType::Fifo, 0o644);
    let fifo = disk.files.create(dir, b"fifo", &fifo).expect("made");
    assert_eq!(fifo.inode.flags, InodeFlags::default());

    disk.set(Compression::Lz4);
    let (_, never) = disk.files.create_open(ROOT, b"never", &FILE).expect("made");
    disk.files
        .set_flags(never.ino(), InodeFlags::NO_COMPRESS)
        .expect("set");
    disk.write(&never, 0, &content);
    disk.lane.sync(&never).expect("synced");
    assert_eq!(blocks_of(&never), 64);
    // What is written again is compressed.
    disk.write(&plain, 0, &content);
    disk.lane.sync(&plain).expect("synced");
    assert!(blocks_of(&plain) < 32);
    assert!(disk.read(&plain) == content);
    let both = InodeFlags::COMPRESS.with(InodeFlags::NO_COMPRESS);
    let error = disk.files.set_flags(dir, both).expect_err("both");
    assert_eq!(error.kind(), Kind::Unsupported);
    let snapshot = disk
        .fs
        .snapshot(disk.files.fileset().id(), "s")
        .expect("a snapshot");
    let error = disk
        .fs
        .set_compression(snapshot.id(), None)
        .expect_err("a snapshot");
    assert_eq!(error.kind(), Kind::Invalid);
    // Off again: content stays as it is, and new content is plain.
    disk.fs
        .set_compression(disk.files.fileset().id(), None)
        .expect("set");
    let after = disk.create("after", &content);
    assert_eq!(blocks_of(&after), 64);
    assert!(disk.read(&plain) == content);
    drop((plain, file, never, after));
    disk.close();
}

#[test]
fn parts_that_change_leave_the_rest_and_the_last_one_frees_the_chunk() {
    for checksums in ALL {
        let mem = device(checksums);
        let mut disk = Disk::of(&mem);
        disk.set(Compression::Lz4);
        let mut content = text(5, 4 * CHUNK);
        let file = disk.create("file", &content);
        let compressed = blocks_of(&file);
        let size = content.len() as u64;

        // A page in the middle of a chunk.
        let new = noise(9, 100);
        let at = CHUNK + 5 * PAGE + 7;
        disk.write(&file, at as u64, &new);
        content[at..at + 100].copy_from_slice(&new);
        disk.lane.sync(&file).expect("synced");
        assert_eq!(blocks_of(&file), compressed + 1);
        assert!(disk.read(&file) == content);
        assert_clean(&disk.fs, "written");

        // A hole over the border of two chunks.
        let hole = CHUNK * 3 - 3 * PAGE..CHUNK * 3 + 2 * PAGE;
        let bytes = hole.start as u64..hole.end as u64;
        disk.lane
            .allocate(&file, bytes, Allocate::Punch)
            .expect("punched");
        content[hole.clone()].fill(0);
        assert!(disk.read(&file) == content);
        let seek = |offset: usize, what| {
            let found = disk.files.fileset().seek(file.ino(), offset as u64, what);
            found.expect("found") as usize
        };
        assert_eq!(seek(0, Seek::Hole), hole.start);
        assert_eq!(seek(0, Seek::Data), 0);
        assert_eq!(seek(hole.start + 1, Seek::Data), hole.end);
        assert_eq!(seek(hole.end, Seek::Hole), size as usize);
        assert_clean(&disk.fs, "punched");

        // The end within a block of a chunk, and growth behind it.
        let end = 3 * CHUNK + 9 * PAGE + 1000;
        disk.cut(&file, end as u64);
        disk.cut(&file, size);
        content[end..].fill(0);
        assert!(disk.read(&file) == content);
        disk.lane
            .allocate(&file, 0..size, Allocate::Grow)
            .expect("allocated");
        assert!(disk.read(&file) == content);
        assert_clean(&disk.fs, "cut");
        disk.files.sync().expect("synced");
        drop(file);
        disk.close();

        // The rest of a chunk, page by page.
        let mut disk = Disk::of(&mem);
        let file = disk.open("file");
        assert!(disk.read(&file) == content);
        for page in 0..16 {
            let new = noise(page as u64, PAGE);
            disk.write(&file, (page * PAGE) as u64, &new);
            content[page * PAGE..(page + 1) * PAGE].copy_from_slice(&new);
            disk.lane.sync(&file).expect("synced");
        }
        assert!(disk.read(&file) == content);
        disk.cut(&file, CHUNK as u64);
        assert_eq!(blocks_of(&file), 16);
        disk.files.sync().expect("synced");
        let report = disk.fs.check().expect("checked");
        assert_eq!(report.data_blocks, 16);
        drop(file);
        disk.close();
    }
}

#[test]
fn a_copy_shares_chunks_where_it_can_and_is_equal_everywhere() {
    let mem = device(DataChecksums::Yes);
    let mut disk = Disk::of(&mem);
    disk.set(Compression::Zstd);
    let content = text(6, 6 * CHUNK + 3000);
    let one = disk.create("one", &content);
    let blocks = blocks_of(&one);
    let copy = |disk: &mut Disk, name: &str, from: usize, to: usize, len: usize| {
        let file = disk.create(name, &noise(1, 7 * CHUNK));
        let mut done = 0;
        while done < len {
            let (from, to) = ((&one, (from + done) as u64), (&file, (to + done) as u64));
            let part = disk
                .lane
                .copy(from, to, (len - done) as u64)
                .expect("copied");
            assert!(part > 0);
            done += part as usize;
        }
        let mut expected = noise(1, 7 * CHUNK);
        expected[to..to + len].copy_from_slice(&content[from..from + len]);
        assert!(disk.read(&file) == expected, "{name}");
        disk.files.sync().expect("synced");
        assert_clean(&disk.fs, name);
        let shared = disk.fs.check().expect("checked").shared_blocks;
        disk.files.unlink(ROOT, name.as_bytes()).expect("removed");
        drop(file);
        disk.files.sync().expect("synced");
        shared
    };
    // All of it but the last block; a part of a chunk keeps all of the chunk's blocks.
    let shared = copy(&mut disk, "whole", 0, 0, content.len());
    assert!(shared >= blocks - 2 && shared < 50, "{shared} of {blocks}");
    assert!(copy(&mut disk, "a part", 3 * PAGE, 3 * PAGE, 40 * PAGE) > 0);
    assert!(copy(&mut disk, "a chunk later", 0, CHUNK, 3 * CHUNK) > 0);
    // Not in the same place within a chunk.
    assert_eq!(copy(&mut disk, "a page later", 0, PAGE, 3 * CHUNK), 0);

    // Two parts of chunks in one place of the target, of which only one can be shared.
    let target = disk.create("target", b"");
    for (from, to) in [(0, 0), (CHUNK + 8 * PAGE, 8 * PAGE)] {
        let mut done = 0;
        while done < 8 * PAGE as u64 {
            let (from, to) = ((&one, from as u64 + done), (&target, to as u64 + done));
            done += disk
                .lane
                .copy(from, to, 8 * PAGE as u64 - done)
                .expect("copied");
        }
    }
    let mut expected = content[..8 * PAGE].to_vec();
    expected.extend_from_slice(&content[CHUNK + 8 * PAGE..2 * CHUNK]);
    assert!(disk.read(&target) == expected);
    disk.files.sync().expect("synced");
    assert_clean(&disk.fs, "both");
    assert!(disk.read(&one) == content);
    drop((one, target));
    disk.close();
}

#[test]
fn snapshots_clones_and_rollbacks_keep_the_chunks_of_their_time() {
    let mem = device(DataChecksums::Yes);
    let mut disk = Disk::of(&mem);
    disk.set(Compression::Lz4);
    let content = text(7, 4 * CHUNK);
    let file = disk.create("file", &content);
    let (ino, id) = (file.ino(), disk.files.fileset().id());
    let compressed = blocks_of(&file);
    disk.fs.snapshot(id, "then").expect("a snapshot");
    let mut changed = content.clone();
    for at in [10, CHUNK + 10, 3 * CHUNK + 10] {
        disk.write(&file, at as u64, b"changed");
        changed[at..at + 7].copy_from_slice(b"changed");
    }
    disk.lane.sync(&file).expect("synced");
    disk.cut(&file, 3 * CHUNK as u64);
    changed.truncate(3 * CHUNK);
    assert!(disk.read(&file) == changed);
    disk.files.sync().expect("synced");
    assert_clean(&disk.fs, "changed");
    drop(file);
    let Disk { fs, files, lane } = disk;
    drop(lane);
    files.close().expect("closed");

    let then = fs.fileset_named("then").expect("there");
    let read = |fileset| Client::new(fileset).read(ino, 0, 1 << 30).expect("read");
    assert!(read(then.clone()) == content);
    let clone = fs.clone_snapshot(then.id(), "clone").expect("a clone");
    assert_eq!(
        clone.record().expect("there").compression,
        Some(Compression::Lz4)
    );
    assert!(read(clone.clone()) == content);
    assert_clean(&fs, "cloned");
    fs.rollback(then.id(), Some("before")).expect("rolled back");
    assert!(read(fs.fileset_named(FIRST_FILESET).expect("there")) == content);
    assert!(read(fs.fileset_named("before").expect("there")) == changed);
    assert_clean(&fs, "rolled back");
    for name in ["before", "then", "clone"] {
        let id = fs.fileset_named(name).expect("there").id();
        fs.remove_fileset(id).expect("removed");
        assert_clean(&fs, name);
    }
    assert_eq!(fs.check().expect("checked").data_blocks, compressed);
    fs.close().expect("closed");
}

#[test]
fn a_damaged_chunk_is_an_error_that_names_the_file_and_a_scrub_finds_it() {
    for checksums in ALL {
        for method in Compression::ALL {
            let mem = device(checksums);
            let mut disk = Disk::of(&mem);
            disk.set(method);
            let content = text(8, 4 * CHUNK);
            let file = disk.create("file", &content);
            drop(file);
            disk.close();
            let mut random = Random::new(4);
            let (mut errors, mut whole) = (0, 0);
            for _ in 0..60 {
                let image = Arc::new(mem.fork());
                let mut disk = Disk::of(&image);
                let superblock = disk.fs.superblock();
                let file = disk.open("file");
                // The blocks of the file are the only ones with data.
                let all = superblock.journal_start + superblock.journal_blocks..16_384;
                let in_metadata = |block: u64| {
                    let mut all = superblock.segments.iter();
                    all.any(|s| (s.start..s.start + u64::from(s.blocks)).contains(&block))
                };
                let zero = |block: &u64| {
                    let mut data = vec![0; PAGE];
                    mem.peek(block * PAGE as u64, &mut data);
                    data.iter().all(|byte| *byte == 0)
                };
                let mut data = all.filter(|block| !in_metadata(*block) && !zero(block));
                let count = blocks_of(&file);
                let block = data.nth(random.below(count) as usize).expect("a block");
                let mut bytes = vec![0; PAGE];
                mem.peek(block * PAGE as u64, &mut bytes);
                for _ in 0..=random.below(3) {
                    bytes[random.below(PAGE as u64) as usize] ^= 1 + random.below(255) as u8;
                }
                image.poke(block * PAGE as u64, &bytes);
                let mut read = vec![0; content.len()];
                match disk.lane.read_direct(&file, 0, &mut read) {
                    Ok(_) => {
                        // Without checksums, a decoder may not notice.
                        assert_eq!(checksums, DataChecksums::No);
                        whole += usize::from(read == content);
                    }
                    Err(error) => {
                        errors += 1;
                        let said = error.to_string();
                        assert_eq!(error.errno(), libc::EIO, "{said}");
                        let inode = format!("inode {}", file.ino());
                        assert!(said.contains(&inode) && said.contains("at byte "), "{said}");
                    }
                }
                let scrubbed = disk
                    .fs
                    .scrub(ScrubPosition::START, u64::MAX)
                    .expect("scrubbed");
                assert_eq!(scrubbed.damage.is_empty(), checksums == DataChecksums::No);
                let mut found = BTreeSet::new();
                for damage in &scrubbed.damage {
                    assert_eq!(damage.inode, file.ino());
                    let end = damage.offset + damage.bytes;
                    found.extend((damage.offset..end).step_by(PAGE));
                }
                // The blocks of the file that cannot be read, all of them and no others.
                let is_lost = |at: &u64| {
                    disk.lane
                        .read_direct(&file, *at, &mut read[..PAGE])
                        .is_err()
                };
                let places = (0..content.len() as u64).step_by(PAGE);
                let lost: BTreeSet<u64> = places.filter(is_lost).collect();
                assert!(
                    checksums == DataChecksums::No || lost == found,
                    "{lost:?} {found:?}"
                );
            }
            assert!(errors > 5, "{errors}");
            assert!(
                checksums == DataChecksums::No || errors == 60,
                "{errors}, {whole}"
            );
        }
    }
}

#[test]
fn a_chunk_needs_no_more_than_was_promised_to_its_pages() {
    let mem = device(DataChecksums::Yes);
    let mut disk = Disk::of(&mem);
    disk.set(Compression::Lz4);
    let id = disk.files.fileset().id();
    let limit = |disk: &Disk, blocks| {
        let quota = Quota { blocks, inodes: 0 };
        disk.fs.set_quota(id, quota).expect("set");
    };
    limit(&disk, 100);
    // 64 blocks of content at a time, and far more in all.
    let content = text(9, 4 * CHUNK);
    let mut files = Vec::new();
    for n in 0..4 {
        files.push(disk.create(&format!("file {n}"), &content));
    }
    let used = disk.files.fileset().record().expect("there").used_blocks;
    let blocks: u64 = files.iter().map(blocks_of).sum();
    assert!(used < 100 && used >= blocks, "{used}");
    limit(&disk, used + 10);
    let at = WritePosition::Offset(0);
    let made = disk
        .files
        .create_open(ROOT, b"one more", &FILE)
        .expect("made")
        .1;
    let error = disk.lane.write(&made, at, &content).expect_err("too much");
    assert_eq!(error.kind(), Kind::Quota);
    for (n, file) in files.iter().enumerate() {
        assert!(disk.read(file) == content, "{n}");
    }
    drop((files, made));
    disk.close();
}

#[test]
fn a_full_device_refuses_a_write_and_loses_nothing() {
    let mem = Arc::new(Mem::new(8 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    common::format_with(&device, DataChecksums::Yes);
    let mut disk = Disk::of(&mem);
    disk.set(Compression::Zstd);
    let mut written: Vec<(Handle, Vec<u8>)> = Vec::new();
    for n in 0..2000 {
        let content = match n % 3 {
            0 => noise(n, CHUNK),
            _ => text(n, 3 * CHUNK),
        };
        let name = format!("file {n}");
        let made = disk.files.create_open(ROOT, name.as_bytes(), &FILE);
        let Ok((_, file)) = made else { break };
        let at = WritePosition::Offset(0);
        if let Err(error) = disk.lane.write(&file, at, &content) {
            assert_eq!(error.kind(), Kind::NoSpace, "{error}");
            break;
        }
        disk.lane.sync(&file).expect("synced");
        written.push((file, content));
    }
    let logical: usize = written.iter().map(|(_, content)| content.len()).sum();
    assert!(logical > 8 << 20, "{logical} bytes");
    for (n, (file, content)) in written.iter().enumerate() {
        assert!(disk.read(file) == *content, "{n}");
    }
    // Removing makes room again.
    for n in 0..written.len() / 2 {
        disk.files
            .unlink(ROOT, format!("file {n}").as_bytes())
            .expect("removed");
    }
    let rest = written.split_off(written.len() / 2);
    drop(written);
    disk.files.sync().expect("synced");
    let again = disk.create("again", &text(1, CHUNK));
    assert!(disk.read(&again) == text(1, CHUNK));
    drop((rest, again));
    disk.close();
}

#[test]
fn a_stream_of_compressed_files_is_received_with_equal_content() {
    let mem = device(DataChecksums::Yes);
    let mut disk = Disk::of(&mem);
    disk.set(Compression::Lz4);
    let id = disk.files.fileset().id();
    let mut content = text(11, 6 * CHUNK + 77);
    let file = disk.create("file", &content);
    let ino = file.ino();
    disk.fs.snapshot(id, "one").expect("a snapshot");
    // A part, a hole, and a chunk that is written again with other content.
    disk.write(&file, 5000, b"changed");
    content[5000..5007].copy_from_slice(b"changed");
    let hole = CHUNK + PAGE..CHUNK + 3 * PAGE;
    let bytes = hole.start as u64..hole.end as u64;
    disk.lane
        .allocate(&file, bytes, Allocate::Punch)
        .expect("punched");
    content[hole].fill(0);
    let other = text(9000, CHUNK);
    disk.write(&file, 3 * CHUNK as u64, &other);
    content[3 * CHUNK..4 * CHUNK].copy_from_slice(&other);
    disk.lane.sync(&file).expect("synced");
    disk.fs.snapshot(id, "two").expect("a snapshot");
    assert!(disk.read(&file) == content);

    let target = device(DataChecksums::Yes);
    let target: Arc<dyn BlockDevice> = target;
    let there = Fs::open(common::keyed(&target), options()).expect("it opens");
    let mut sent = Vec::new();
    for (snapshot, since) in [("one", None), ("two", Some("one"))] {
        let stream = common::streams::stream(&disk.fs, snapshot, since, None);
        sent.push(stream.len());
        common::streams::receive_all(&there, "copy", &stream, snapshot);
    }
    // Of the second, only what differs.
    assert!(sent[1] < sent[0] / 2, "{sent:?}");
    let copy = there.fileset_named("copy").expect("there");
    assert!(Client::new(copy).read(ino, 0, 1 << 30).expect("read") == content);
    assert_clean(&there, "received");
    drop(file);
    disk.close();
}

#[test]
fn an_earlier_program_refuses_a_file_system_with_compression() {
    let mem = device(DataChecksums::Yes);
    let disk = Disk::of(&mem);
    disk.set(Compression::Lz4);
    disk.close();
    let mut bytes = vec![0; PAGE];
    mem.peek(0, &mut bytes);
    // The flag that this program does not know stands for that of compression in an earlier one.
    let features = &mut bytes[32..40];
    assert_eq!(
        u64::from_le_bytes((&*features).try_into().expect("eight")),
        1 << 12
    );
    features.copy_from_slice(&(1u64 << 40).to_le_bytes());
    let end = PAGE - 4;
    let sum = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    for copy in [0, (1 << 20) - PAGE as u64] {
        mem.poke(copy, &bytes);
    }
    let device: Arc<dyn BlockDevice> = mem;
    let error = Fs::open(device, options()).map(drop).expect_err("refused");
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
}

#[test]
fn random_writes_of_compressed_files_agree_with_their_content() {
    let mut random = Random::new(common::seed(1));
    let mem = device(DataChecksums::Yes);
    let device: Arc<dyn BlockDevice> = mem.clone();
    let fs = common::open(&device);
    let mut client = Client::of_first(&fs);
    let id = client.fileset.id();
    fs.set_compression(id, Some(Compression::Lz4)).expect("set");
    let ino = client.create(b"file");
    let mut content: Vec<u8> = Vec::new();
    for step in 0..common::amount("EVFS_OPERATIONS", 1500) {
        let at = random.below(6 * CHUNK as u64) as usize;
        match random.below(8) {
            0 => {
                client.truncate(ino, at as u64).expect("cut");
                content.resize(at, 0);
            }
            1 => {
                let to = at + 1 + random.below(40_000) as usize;
                let how = [Allocate::Punch, Allocate::Zero][random.below(2) as usize];
                let done = client.allocate(ino, at as u64, to as u64, how);
                done.expect("done");
                if how == Allocate::Zero {
                    content.resize(content.len().max(to), 0);
                }
                let end = content.len();
                content[at.min(end)..to.min(end)].fill(0);
            }
            2 => {
                let name = format!("s{step}");
                client.write_all_out(&mut random).expect("written");
                fs.snapshot(id, &name).expect("a snapshot");
            }
            3 => {
                let snapshot = fs.filesets().into_iter().find(|(_, r)| r.origin != 0);
                if let Some((snapshot, _)) = snapshot {
                    fs.remove_fileset(snapshot).expect("removed");
                }
            }
            _ => {
                let len = 1 + random.below(3 * CHUNK as u64) as usize;
                let data = match random.below(4) {
                    0 => noise(step as u64, len),
                    _ => text(step as u64, len),
                };
                client.write(ino, at as u64, &data).expect("written");
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&data);
            }
        }
        if random.below(2) == 0 {
            let portion = [Portion::All, Portion::Some][random.below(2) as usize];
            client
                .write_out(ino, &mut random, portion)
                .expect("written");
        }
        if step % 10 == 0 {
            let read = client.read(ino, 0, u64::MAX / 2).expect("read");
            assert!(read == content, "step {step}");
        }
        if step % 100 == 0 {
            client.write_all_out(&mut random).expect("written");
            fs.sync().expect("synced");
            assert_clean(&fs, &format!("step {step}"));
        }
    }
    client.write_all_out(&mut random).expect("written");
    assert!(client.read(ino, 0, u64::MAX / 2).expect("read") == content);
    drop(client);
    fs.close().expect("closed");
}
