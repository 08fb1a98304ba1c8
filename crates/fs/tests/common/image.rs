//! Images of devices as fixtures: their blocks, and a description of their file system.

use super::client::Client;
use super::pair::describe;
use block_testing::Mem;
use fs::{FileType, Fileset, Fs};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub const DEVICE_BYTES: u64 = 8 << 20;
const BLOCK: usize = 4096;

/// Returns the path of a file of an image.
pub fn fixture(name: &str) -> PathBuf {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/fs");
    PathBuf::from(path).join(name)
}

/// Returns the non-zero blocks of a device: number, length without trailing zeros, bytes.
pub fn pack(device: &Mem) -> Vec<u8> {
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

/// Reverses [`pack`].
pub fn unpack(mut bytes: &[u8]) -> Mem {
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
pub fn seen(fs: &Fs) -> String {
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
