//! Writes the images of `fixtures/fs` with the current features again, with the current code.

#[path = "../tests/common/mod.rs"]
mod common;

use block::BlockDevice;
use block_testing::Mem;
use common::image::{DEVICE_BYTES, fixture, pack, seen};
use common::pair::Pair;
use common::{format_with, open};
use fs::DataChecksums;
use std::sync::Arc;

fn main() {
    let mem = Arc::new(Mem::new(DEVICE_BYTES, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format_with(&device, DataChecksums::Keyed);
    let mut pair = Pair::new(open(&device), 7);
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
    save("v1-keyed-journal", &mem.fork());
    drop(pair.client);
    pair.fs.close().expect("closed");
    save("v1-keyed-closed", &mem.fork());
}

fn save(name: &str, mem: &Mem) {
    std::fs::write(fixture(&format!("{name}.blocks")), pack(mem)).expect("written");
    let device: Arc<dyn BlockDevice> = Arc::new(mem.fork());
    std::fs::write(fixture(&format!("{name}.txt")), seen(&open(&device))).expect("written");
}
