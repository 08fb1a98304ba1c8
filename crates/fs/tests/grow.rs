//! A device that has grown.

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random};
use common::client::Client;
use common::{assert_clean, format, open, seed};
use std::sync::Arc;

const SMALL: u64 = 12 << 20;
const LARGE: u64 = 48 << 20;

/// Reads a file in parts, as a cache does.
fn read(client: &mut Client, ino: u64, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let at = all.len() as u64;
        let part = client.read(ino, at, 1 << 18).expect("readable");
        assert!(!part.is_empty(), "it ends at {at}");
        all.extend(part);
    }
    all.truncate(len);
    all
}

/// Returns a device with a full file system that was created on a smaller one, and its only file.
fn sample() -> (Mem, u64, Vec<u8>) {
    let small = Arc::new(Mem::new(SMALL, 512));
    let device: Arc<dyn BlockDevice> = small.clone();
    format(&device);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let ino = client.create(b"file");
    // As much data as can be promised at once.
    let mut data = vec![0; (fs.usage().available / 17 * 16 * 4096) as usize];
    Random::new(1).fill(&mut data);
    client.write(ino, 0, &data).expect("written");
    client.sync(&mut Random::new(1)).expect("synced");
    drop(client);
    fs.close().expect("closed");
    let large = Mem::new(LARGE, 512);
    large.poke(0, &small.to_vec());
    (large, ino, data)
}

#[test]
fn a_full_file_system_on_a_larger_device_grows_and_is_no_longer_full() {
    let (large, ino, data) = sample();
    let device: Arc<dyn BlockDevice> = Arc::new(large);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let more = vec![7; 20 << 20];
    let refused = client.write(ino, data.len() as u64, &more);
    assert_eq!(refused, Err(libc::ENOSPC));
    let before = fs.usage();
    assert_eq!(fs.growable_bytes(), LARGE - SMALL);
    assert_eq!(fs.grow().expect("it grows"), LARGE);
    assert_eq!(fs.growable_bytes(), 0);
    let after = fs.usage();
    assert_eq!(after.blocks - before.blocks, (LARGE - SMALL) / 4096);
    assert_eq!(after.free - before.free, (LARGE - SMALL) / 4096);
    assert!(after.largest_free >= (LARGE - SMALL) / 4096);
    client
        .write(ino, data.len() as u64, &more)
        .expect("there is room");
    client.sync(&mut Random::new(2)).expect("synced");
    assert_clean(&fs, "grown");
    assert_eq!(fs.grow().expect("nothing to do"), LARGE);
    drop(client);
    fs.close().expect("closed");
    let fs = open(&device);
    assert_clean(&fs, "opened again");
    let mut client = Client::of_first(&fs);
    let all = read(&mut client, ino, data.len() + more.len());
    assert!(all[..data.len()] == data && all[data.len()..] == more);
}

#[test]
fn a_power_cut_while_it_grows_leaves_it_small_or_large() {
    let (large, ino, data) = sample();
    let disk = Arc::new(PowerCut::new(&large));
    let device: Arc<dyn BlockDevice> = disk.clone();
    let fs = open(&device);
    fs.grow().expect("it grows");
    let mut client = Client::of_first(&fs);
    let more = vec![7; 4 << 20];
    client.write(ino, data.len() as u64, &more).expect("room");
    client.sync(&mut Random::new(2)).expect("synced");
    drop(client);
    fs.close().expect("closed");
    let seed = seed(3);
    for crash in disk.images(seed, 40) {
        let context = format!("EVFS_SEED={seed}, {crash}");
        let device: Arc<dyn BlockDevice> = Arc::new(crash.image);
        let fs = open(&device);
        assert_clean(&fs, &context);
        let blocks = fs.usage().blocks * 4096;
        assert!(blocks == SMALL || blocks == LARGE, "{context}");
        let mut client = Client::of_first(&fs);
        assert!(read(&mut client, ino, data.len()) == data, "{context}");
    }
}
