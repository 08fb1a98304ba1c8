//! Images of earlier versions, which every later version must be able to read.
//! `fixtures/fs/README.md` describes how they were made.

mod common;

use block::BlockDevice;
use block_testing::Mem;
use common::client::Client;
use common::pair::{Pair, describe};
use common::{assert_clean, format, options};
use fs::{FileType, Fileset, Fs};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

const DEVICE_BYTES: u64 = 8 << 20;
const BLOCK: usize = 4096;

fn fixture(name: &str) -> PathBuf {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/fs");
    PathBuf::from(path).join(name)
}

/// Returns the non-zero blocks of a device: number, length without trailing zeros, bytes.
fn pack(device: &Mem) -> Vec<u8> {
    let mut blocking = block::Blocking::open(device).expect("a queue");
    let mut out = Vec::new();
    for number in 0..DEVICE_BYTES / BLOCK as u64 {
        let mut content = vec![0; BLOCK];
        blocking
            .read_at(number * BLOCK as u64, &mut content)
            .expect("readable");
        let len = content
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        if len > 0 {
            out.extend_from_slice(&(number as u32).to_le_bytes());
            out.extend_from_slice(&(len as u32).to_le_bytes());
            out.extend_from_slice(&content[..len]);
        }
    }
    out
}

fn unpack(mut bytes: &[u8]) -> Mem {
    let mem = Mem::new(DEVICE_BYTES, 512);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    while !bytes.is_empty() {
        let (block, len) = (number(bytes), number(&bytes[4..]) as usize);
        mem.poke(u64::from(block) * BLOCK as u64, &bytes[8..8 + len]);
        bytes = &bytes[8 + len..];
    }
    mem
}

/// Returns everything visible to a reader: names and attributes, and a checksum of each file.
fn seen(fs: &Fs) -> String {
    let mut out = String::new();
    for (id, record) in fs.filesets() {
        let fileset = fs.fileset(id).expect("listed");
        out.push_str(&format!("== {} of {}\n", record.name, record.origin));
        out.push_str(&describe(&fileset));
        for (path, sum) in sums(fileset) {
            out.push_str(&format!("{sum:08x} {path}\n"));
        }
    }
    out
}

fn sums(fileset: Fileset) -> BTreeMap<String, u32> {
    let mut client = Client::new(fileset);
    let (mut sums, mut dirs) = (BTreeMap::new(), vec![(fs::ROOT, String::new())]);
    while let Some((dir, path)) = dirs.pop() {
        let mut entries = Vec::new();
        let take = |entry: fs::DirEntry| {
            let path = format!("{path}/{}", String::from_utf8_lossy(entry.name));
            entries.push((entry.ino, entry.kind, path));
            Ok(true)
        };
        client.fileset.read_dir(dir, 2, take).expect("it lists");
        for (ino, kind, path) in entries {
            match kind {
                FileType::Directory => dirs.push((ino, path)),
                FileType::File => {
                    let data = client.read(ino, 0, u64::MAX / 2).expect("readable");
                    sums.insert(path, crc32c::crc32c(&data));
                }
                _ => {}
            }
        }
    }
    sums
}

fn check(name: &str) {
    let packed = std::fs::read(fixture(&format!("{name}.blocks"))).expect("the image");
    let expected = std::fs::read_to_string(fixture(&format!("{name}.txt"))).expect("its content");
    let mem = unpack(&packed);
    for read_only in [true, false] {
        let device: Arc<dyn BlockDevice> = Arc::new(mem.fork());
        let options = fs::Options {
            read_only,
            ..options()
        };
        let fs = Fs::open(device, options).expect("it opens");
        assert_clean(&fs, name);
        assert_eq!(seen(&fs), expected, "{name}");
        fs.close().expect("it closes");
    }
}

#[test]
fn version_1_after_a_good_end_reads_as_it_did() {
    check("v1-closed");
}

#[test]
fn version_1_with_a_journal_to_play_reads_as_it_did() {
    check("v1-journal");
}

/// Creates the images again with the current code.
#[test]
#[ignore = "writes the fixtures"]
fn make_the_images() {
    let mem = Arc::new(Mem::new(DEVICE_BYTES, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format(&device);
    let mut pair = Pair::new(
        Fs::open(Arc::clone(&device), options()).expect("it opens"),
        7,
    );
    for _ in 0..150 {
        pair.step();
    }
    pair.client.sync(&mut pair.random).expect("synced");
    let id = pair.client.fileset.id();
    pair.fs.snapshot(id, "then").expect("a snapshot");
    pair.fs.create_fileset("second").expect("a fileset");
    pair.fs.commit().expect("committed");
    for _ in 0..60 {
        pair.step();
    }
    pair.release_all();
    pair.client.sync(&mut pair.random).expect("synced");
    save("v1-journal", &mem.fork());
    drop(pair.client);
    pair.fs.close().expect("closed");
    save("v1-closed", &mem.fork());
}

fn save(name: &str, mem: &Mem) {
    std::fs::write(fixture(&format!("{name}.blocks")), pack(mem)).expect("written");
    let device: Arc<dyn BlockDevice> = Arc::new(mem.fork());
    let fs = Fs::open(device, options()).expect("it opens");
    std::fs::write(fixture(&format!("{name}.txt")), seen(&fs)).expect("written");
}
