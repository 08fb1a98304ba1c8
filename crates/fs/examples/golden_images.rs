//! Writes the images of `fixtures/fs` with the current features again, with the current code.

#[path = "../tests/common/mod.rs"]
mod common;

use block::BlockDevice;
use block_testing::Mem;
use common::image::{DEVICE_BYTES, fixture, pack, seen};
use common::pair::Pair;
use common::{format_with, open};
use fs::{Compression, DataChecksums};
use std::sync::Arc;

fn main() {
    let mem = Arc::new(Mem::new(DEVICE_BYTES, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format_with(&device, DataChecksums::Yes);
    let mut pair = Pair::new(open(&device), 7);
    for _ in 0..150 {
        pair.step();
    }
    let id = pair.client.fileset.id();
    for method in Compression::ALL {
        pair.fs.set_compression(id, Some(method)).expect("set");
        let file = pair.client.create(method.name().as_bytes());
        let lines = (0..).flat_map(|n: u32| format!("{n}: a line\n").into_bytes());
        let text: Vec<u8> = lines.take(200_000).collect();
        pair.client.write(file, 0, &text).expect("written");
        pair.client.sync(&mut pair.random).expect("synced");
        pair.client
            .write(file, 70_000, b"changed")
            .expect("written");
        pair.client.truncate(file, 150_000).expect("cut");
    }
    pair.client.sync(&mut pair.random).expect("synced");
    pair.fs.snapshot(id, "then").expect("a snapshot");
    pair.fs.create_fileset("second").expect("a fileset");
    pair.fs.commit().expect("committed");
    for _ in 0..60 {
        pair.step();
    }
    pair.release_all();
    pair.client.sync(&mut pair.random).expect("synced");
    save("v1-compressed-journal", &mem.fork());
    drop(pair.client);
    pair.fs.close().expect("closed");
    save("v1-compressed-closed", &mem.fork());
}

fn save(name: &str, mem: &Mem) {
    std::fs::write(fixture(&format!("{name}.blocks")), pack(mem)).expect("written");
    let device: Arc<dyn BlockDevice> = Arc::new(mem.fork());
    std::fs::write(fixture(&format!("{name}.txt")), seen(&open(&device))).expect("written");
}
