//! A device that has grown.

mod common;

use block::{BlockDevice, ErrorKind, OpKind};
use block_testing::{ErrorDevice, Failure, Mem, PowerCut, Random, Resizable};
use common::client::Client;
use common::{assert_clean, format, keyed, open, options, seed};
use fs::{FIRST_FILESET, Fs, Kind, Options, Quota, Usage};
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

/// Fills a file system by one file, in parts, and returns what was written.
fn fill(client: &mut Client, ino: u64, from: u64) -> Vec<u8> {
    let mut data = Vec::new();
    for part in 0.. {
        let bytes = vec![part as u8 + 1; 64 << 10];
        match client.write(ino, from + data.len() as u64, &bytes) {
            Ok(()) => data.extend(bytes),
            Err(errno) => {
                assert_eq!(errno, libc::ENOSPC);
                break;
            }
        }
    }
    data
}

#[test]
fn a_power_cut_at_any_write_of_a_grow_leaves_the_old_or_the_new_size() {
    /// Bytes of each file that are compared.
    const PART: usize = 2 << 20;
    const QUOTA: Quota = Quota {
        blocks: 2000,
        inodes: 20,
    };
    let (large, ino, data) = sample();
    let disk = Arc::new(PowerCut::new(&large));
    let device = Resizable::new(disk.clone(), SMALL);
    let fs = open(&(Arc::new(device.clone()) as Arc<dyn BlockDevice>));
    let main = fs.fileset_named(FIRST_FILESET).expect("there").id();
    fs.snapshot(main, "kept").expect("a snapshot");
    let home = fs.create_fileset("home").expect("created").id();
    fs.set_quota(home, QUOTA).expect("set");
    fs.commit().expect("committed");
    let begun = disk.events();
    device.resize(LARGE);
    device.update_size().expect("it has grown");
    assert_eq!(fs.grow().expect("it grows"), LARGE);
    let grown = disk.events();
    let mut client = Client::of_first(&fs);
    let more = vec![7; 4 << 20];
    client.write(ino, data.len() as u64, &more).expect("room");
    client.sync(&mut Random::new(2)).expect("synced");
    let synced = disk.events();
    drop(client);
    fs.close().expect("closed");
    let seed = seed(3);
    let (mut small, mut new) = (0, 0);
    for crash in disk.boundaries(seed, 1).filter(|c| c.point >= begun) {
        let context = format!("EVFS_SEED={seed}, {crash}");
        let device: Arc<dyn BlockDevice> = Arc::new(crash.image);
        let fs = open(&device);
        assert_clean(&fs, &context);
        match fs.usage().blocks * 4096 {
            SMALL if crash.point < grown => small += 1,
            LARGE => new += 1,
            blocks => panic!("{context}: {blocks} bytes"),
        }
        let home = fs.fileset_named("home").expect("there").record();
        let home = home.expect("readable");
        let quota = (home.quota_blocks, home.quota_inodes);
        assert_eq!(quota, (QUOTA.blocks, QUOTA.inodes), "{context}");
        let mut client = Client::of_first(&fs);
        let part = &data[..PART];
        assert!(read(&mut client, ino, PART) == part, "{context}");
        if crash.point >= synced {
            let all = read(&mut client, ino, data.len() + more.len());
            assert!(all[data.len()..] == more, "{context}");
        }
        let mut kept = Client::new(fs.fileset_named("kept").expect("there"));
        assert!(read(&mut kept, ino, PART) == part, "{context}");
        drop((client, kept));
        // Whatever the size is, the file system can be used, and grown again.
        assert_eq!(fs.grow().expect("it grows"), LARGE, "{context}");
        let unused = |usage: Usage| usage.free + usage.metadata;
        let before = unused(fs.usage());
        fs.close().expect("closed");
        assert_eq!(unused(open(&device).usage()), before, "{context}");
    }
    assert!(small > 1 && new > 10, "{small} {new}");
}

#[test]
fn a_full_file_system_grows_while_it_is_in_use() {
    let mem: Arc<dyn BlockDevice> = Arc::new(Mem::new(LARGE, 512));
    let device = Resizable::new(mem, SMALL);
    let shown: Arc<dyn BlockDevice> = Arc::new(device.clone());
    format(&shown);
    let fs = open(&shown);
    let mut client = Client::of_first(&fs);
    let (ino, other) = (client.create(b"file"), client.create(b"other"));
    client.write(other, 0, &[9; 5000]).expect("room");
    let mut data = Vec::new();
    for size in (SMALL..=LARGE).step_by(4 << 20) {
        device.resize(size);
        assert_eq!(device.update_size().expect("adopted"), size);
        let before = fs.usage();
        assert_eq!(fs.growable_bytes(), size - before.blocks * 4096);
        // The pages of the last part are still dirty, and promised to the old size.
        assert_eq!(fs.grow().expect("it grows"), size);
        let after = fs.usage();
        let added = after.blocks - before.blocks;
        assert_eq!(after.free, before.free + added);
        assert!(after.available >= before.available + added * 3 / 4);
        let part = fill(&mut client, ino, data.len() as u64);
        assert!(part.len() as u64 >= added * 4096 / 2);
        data.extend(part);
    }
    client.sync(&mut Random::new(5)).expect("promises are kept");
    // Closing commits, and the commit may take blocks for metadata.
    fs.commit().expect("committed");
    assert_clean(&fs, "grown");
    drop(client);
    let usage = fs.usage();
    fs.close().expect("closed");
    let fs = open(&shown);
    // The reserve for metadata is that of the new size.
    let (now, before) = (fs.usage(), usage);
    assert_eq!((now.blocks, now.free), (before.blocks, before.free));
    assert_eq!(now.available, before.available);
    let mut client = Client::of_first(&fs);
    assert!(read(&mut client, ino, data.len()) == data);
    assert_eq!(read(&mut client, other, 5000), [9; 5000]);
}

#[test]
fn a_grow_that_cannot_be_recorded_leaves_the_size_and_can_be_repeated() {
    let (large, ino, data) = sample();
    let (device, errors) = ErrorDevice::new(Arc::new(large));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    for failing in [1, 2] {
        let fs = open(&device);
        let before = fs.usage();
        let writes = Failure::nth(failing, ErrorKind::Media).of(OpKind::Write);
        errors.set(Some(writes));
        assert_eq!(fs.grow().expect_err("no superblock").kind(), Kind::Io);
        assert_eq!(fs.usage(), before);
        errors.set(None);
        let mut client = Client::of_first(&fs);
        let more = vec![7; 20 << 20];
        let refused = client.write(ino, data.len() as u64, &more);
        assert_eq!(refused, Err(libc::ENOSPC));
    }
    let fs = open(&device);
    assert_eq!(fs.grow().expect("it grows"), LARGE);
    assert_clean(&fs, "grown");
}

#[test]
fn a_smaller_device_and_one_beyond_the_format_are_refused() {
    let (large, _, _) = sample();
    let device: Arc<dyn BlockDevice> = Arc::new(large);
    let fs = open(&device);
    fs.grow().expect("it grows");
    let planned = fs.plan_growth(1 << 61).expect_err("too large");
    assert_eq!(planned.kind(), Kind::Invalid);
    assert_eq!(fs.plan_growth(SMALL).expect("no change"), LARGE);
    fs.close().expect("closed");
    let cut: Arc<dyn BlockDevice> = Arc::new(Resizable::new(device, LARGE - 4096));
    let Err(error) = Fs::open(keyed(&cut), options()) else {
        panic!("it is smaller than its file system");
    };
    assert!(error.to_string().contains("the device has"), "{error}");
}

#[test]
fn a_read_only_file_system_does_not_grow() {
    let (large, ..) = sample();
    let device: Arc<dyn BlockDevice> = Arc::new(large);
    let options = Options {
        read_only: true,
        ..options()
    };
    let fs = Fs::open(keyed(&device), options).expect("it opens");
    assert_eq!(fs.grow().expect_err("read-only").kind(), Kind::ReadOnly);
    assert_eq!(fs.usage().blocks * 4096, SMALL);
}
