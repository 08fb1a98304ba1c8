//! A device with a file system that was tampered with: in the superblocks, in the journal to be
//! replayed, in the metadata pages. If the input asks for it, the checksums of superblocks and
//! journal are corrected, so that the changes get past them.
//!
//! Claims: opening, checking and repairing never panic in our own code, and terminate; a file
//! system that a check reports as clean can be traversed; after a repair it is clean, except for
//! snapshots, which a repair does not change.
//!
//! The input is a list of changes: place (1 byte), offset (2), length - 1 (1, its lower 3 bits),
//! bytes.
#![no_main]

use block::BlockDevice;
use block_testing::Mem;
use fs::{Allocate, FIRST_FILESET, FileType, Fileset, Fs, Ino, New, Options, ROOT, SetXattr};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const DEVICE_BYTES: u64 = 8 << 20;
const BLOCK: u64 = 4096;
/// Blocks of the two copies of the superblock, and of the two halves of the smallest journal.
const SUPERBLOCKS: [u64; 2] = [0, 255];
const JOURNAL: [u64; 2] = [256, 288];
/// Maximum number of changes that are applied.
const CHANGES_MAX: usize = 64;

static SAMPLE: LazyLock<(Mem, Vec<(u64, u64)>)> = LazyLock::new(|| {
    // `redb` asserts the validity of its input, and `fs` converts that to errors; any other panic
    // is a finding.
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or("", |l| l.file());
        if !place.contains("redb") {
            eprintln!("{info}");
            std::process::abort();
        }
    }));
    sample()
});

fn options() -> Options {
    Options {
        commit_interval: Duration::from_secs(3600),
        metadata_cache_bytes: 1 << 20,
        ..Options::default()
    }
}

fn new(kind: FileType) -> New {
    New::of_root(kind, 0o644)
}

fn fill(tree: &Fileset, from: u32, to: u32) {
    let dir = tree.create(
        ROOT,
        format!("dir {from}").as_bytes(),
        &new(FileType::Directory),
    );
    let dir = dir.expect("made").ino;
    for i in from..to {
        let file = tree.create(dir, format!("file {i}").as_bytes(), &new(FileType::File));
        let file = file.expect("made").ino;
        tree.allocate(file, 0..u64::from(i % 3 + 1) * BLOCK, Allocate::Grow)
            .expect("allocated");
        tree.set_xattr(file, b"user.name", b"value", SetXattr::Any)
            .expect("set");
    }
    tree.symlink(dir, b"link", b"file", 0, 0).expect("linked");
}

/// Creates a file system with all kinds of objects, some only in the journal; returns it with the
/// location of its metadata.
fn sample() -> (Mem, Vec<(u64, u64)>) {
    let mem = Arc::new(Mem::new(DEVICE_BYTES, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    Fs::format(Arc::clone(&device), "fuzz").expect("it formats");
    let fs = Fs::open(device, options()).expect("it opens");
    let tree = fs.fileset_named(FIRST_FILESET).expect("there");
    fill(&tree, 0, 40);
    fs.snapshot(tree.id(), "then").expect("a snapshot");
    fill(&tree, 40, 60);
    fs.commit().expect("committed");
    fill(&tree, 60, 80);
    fs.sync().expect("in the journal");
    let segments = fs.superblock().segments;
    let segments = segments
        .iter()
        .map(|s| (s.start, u64::from(s.blocks)))
        .collect();
    (mem.fork(), segments)
}

fuzz_target!(|data: &[u8]| {
    let (sample, segments) = &*SAMPLE;
    for seal in [true, false] {
        let image = sample.fork();
        change(&image, data, segments);
        if seal {
            SUPERBLOCKS
                .iter()
                .for_each(|block| seal_superblock(&image, *block));
            JOURNAL.iter().for_each(|block| seal_record(&image, *block));
        }
        exercise(image);
    }
});

fn change(image: &Mem, mut data: &[u8], segments: &[(u64, u64)]) {
    for _ in 0..CHANGES_MAX {
        let [place, low, high, len, rest @ ..] = data else {
            return;
        };
        let len = usize::from(len % 8 + 1).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        let offset = u64::from(u16::from_le_bytes([*low, *high]));
        let at = match place % 8 {
            n @ 0..2 => SUPERBLOCKS[usize::from(n)] * BLOCK + offset % BLOCK,
            n @ 2..4 => JOURNAL[usize::from(n - 2)] * BLOCK + offset,
            n => {
                let (start, blocks) = segments[usize::from(n) % segments.len()];
                start * BLOCK + (u64::from(*place) << 16 | offset) % (blocks * BLOCK)
            }
        };
        image.poke(at.min(DEVICE_BYTES - 8), bytes);
        data = rest;
    }
}

fn seal_superblock(image: &Mem, block: u64) {
    let mut bytes = [0; BLOCK as usize];
    image.peek(block * BLOCK, &mut bytes);
    let sum = crc32c::crc32c(&bytes[..4092]);
    image.poke(block * BLOCK + 4092, &sum.to_le_bytes());
}

/// Corrects a record of the journal: magic, CRC-32C of the following bytes, total length.
fn seal_record(image: &Mem, block: u64) {
    let mut bytes = vec![0; 32 * BLOCK as usize];
    image.peek(block * BLOCK, &mut bytes);
    let len = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    if let Some(covered) = bytes.get(12..len) {
        image.poke(block * BLOCK + 8, &crc32c::crc32c(covered).to_le_bytes());
    }
}

fn exercise(image: Mem) {
    let device: Arc<dyn BlockDevice> = Arc::new(image);
    let Ok(fs) = Fs::open(Arc::clone(&device), options()) else {
        return;
    };
    let Ok(report) = fs.check() else { return };
    if report.is_clean() {
        for (id, record) in fs.filesets() {
            let tree = fs.fileset(id).expect("it was listed");
            walk(&tree, ROOT).unwrap_or_else(|e| panic!("'{}' was clean: {e}", record.name));
        }
    } else if let Ok(repair) = fs.repair() {
        let snapshots = fs.filesets().into_iter().filter(|(_, r)| r.origin != 0);
        let snapshots: Vec<String> = snapshots.map(|(_, record)| record.name).collect();
        let in_snapshot = |of: &Option<String>| of.as_ref().is_some_and(|f| snapshots.contains(f));
        let left = &repair.left.problems;
        let other = left.iter().find(|problem| !in_snapshot(&problem.fileset));
        assert!(other.is_none(), "{other:?}");
    }
    let _ = fs.close();
}

fn walk(tree: &Fileset, dir: Ino) -> fs::Result<()> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    tree.read_dir(dir, 0, |entry| {
        names.push(entry.name.to_vec());
        Ok(true)
    })?;
    for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
        let attr = tree.lookup(dir, name)?;
        match attr.inode.kind {
            FileType::Directory => walk(tree, attr.ino)?,
            FileType::Symlink => drop(tree.read_link(attr.ino)?),
            _ => tree.xattrs(attr.ino, |_| ())?,
        }
    }
    Ok(())
}
