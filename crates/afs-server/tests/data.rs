//! Data: fetches return stored data, each store is one version, and acknowledged data persists.

mod common;

use afs_client::ANY;
use afs_proto::fs::{AfsStoreStatus, LockType};
use afs_proto::{Abort, AfsFid};
use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random, Tear};
use common::{Cell, Client, config, seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn bytes(random: &mut Random, len: u64) -> Vec<u8> {
    let mut all = vec![0; len as usize];
    random.fill(&mut all);
    all
}

fn file(client: &Client) -> AfsFid {
    client.create(client.root, "file").expect("made").0
}

#[test]
fn what_is_fetched_is_what_was_stored_and_each_store_is_one_version() {
    let cell = Cell::new();
    let client = cell.client();
    let fid = file(&client);
    let mut random = Random::new(seed(1));
    let (mut model, mut version) = (Vec::new(), client.status(fid).expect("there").data_version);
    for step in 0..120 {
        let (at, len) = (
            random.below(3 << 20),
            random.below(2 << 20) * (step % 4 % 3),
        );
        let data = bytes(&mut random, len);
        let length = match random.below(3) {
            0 => model.len() as u64,
            1 => random.below(4 << 20),
            _ => at + len,
        };
        let status = client.store(fid, at, &data, length).expect("stored");
        // Truncate to the stated length, extend to it, then write the data.
        model.truncate(length as usize);
        let end = if len == 0 {
            length
        } else {
            length.max(at + len)
        } as usize;
        model.resize(model.len().max(end), 0);
        if !data.is_empty() {
            model[at as usize..][..data.len()].copy_from_slice(&data);
        }
        version += 1;
        assert_eq!(
            (status.length, status.data_version),
            (model.len() as u64, version),
            "{step}"
        );
        let from = random.below(model.len() as u64 + 10);
        let wanted = random.below(1 << 20);
        let (got, status, _) = client.fetch(fid, from, wanted).expect("fetched");
        let from = model.len().min(from as usize);
        let expected = &model[from..model.len().min(from + wanted as usize)];
        let differs = got.iter().zip(expected).position(|(a, b)| a != b);
        let place = (got.len(), expected.len(), differs.map(|at| from + at));
        assert!(got == expected, "step {step}, from {from}: {place:?}");
        assert_eq!(status.data_version, version);
    }
    let (all, ..) = client.fetch(fid, 0, u64::MAX).expect("fetched");
    assert!(all == model);
    assert_eq!(
        client.fetch(fid, u64::MAX, u64::MAX).expect("nothing").0,
        b""
    );
}

#[test]
fn a_position_beyond_four_gib_is_one() {
    let cell = Cell::new();
    let client = cell.client();
    let fid = file(&client);
    let far = (5 << 30) + 7;
    let status = client.store(fid, far, b"far away", 0).expect("stored");
    assert_eq!(status.length, far + 8);
    assert_eq!(
        client.fetch(fid, far - 2, 100).expect("fetched").0,
        b"\0\0far away"
    );
    for (position, length) in [(u64::MAX, 0), (fs::FILE_SIZE_MAX, 0), (0, u64::MAX)] {
        let refused = client
            .store(fid, position, b"x", length)
            .expect_err("too large");
        assert_eq!(refused.errno(), Some(libc::EFBIG));
    }
}

#[test]
fn attributes_change_and_are_no_version() {
    let cell = Cell::new();
    let client = cell.client();
    let fid = file(&client);
    let before = client.status(fid).expect("there");
    let wanted = AfsStoreStatus {
        unix_mode_bits: Some(0o100_640),
        client_mod_time: Some(1_000_000_000),
        ..ANY
    };
    let after = client.set(fid, wanted).expect("set");
    assert_eq!(
        (after.unix_mode_bits, after.client_mod_time),
        (0o640, 1_000_000_000)
    );
    assert_eq!(after.data_version, before.data_version);
    let gift = AfsStoreStatus {
        owner: Some(0),
        ..ANY
    };
    let refused = client.set(fid, gift).expect_err("nobody gives away files");
    // The same errno as from OpenAFS and a local file system.
    assert_eq!(refused.errno(), Some(libc::EPERM));
}

/// Goal: a fetch concurrent with stores never returns the last version with other than its bytes.
#[test]
fn a_version_has_one_content_while_clients_store() {
    let cell = Cell::new();
    let (writer, reader) = (cell.client(), cell.client());
    let fid = file(&writer);
    let over = AtomicBool::new(false);
    let len = 3 << 20;
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut seen = std::collections::BTreeMap::new();
            loop {
                let last = over.load(Ordering::Relaxed);
                let (data, status, _) = reader.fetch(fid, 0, len as u64).expect("fetched");
                seen.insert(status.data_version, data);
                if last {
                    return seen;
                }
            }
        });
        let mut version = 0;
        for round in 0..20_u8 {
            let status = writer
                .store(fid, 0, &vec![round; len], len as u64)
                .expect("stored");
            version = status.data_version;
        }
        over.store(true, Ordering::Relaxed);
        let seen = reads.join().expect("no panic");
        let last = &seen[&version];
        assert!(last.len() == len && last.iter().all(|byte| *byte == 19));
    });
}

/// Goal: acknowledged data survives a power cut at any moment, and the data found afterwards has
/// versions that no other content had.
#[test]
fn what_was_answered_outlives_a_power_cut() {
    let mem = Arc::new(Mem::new(64 << 20, 4096));
    let device: Arc<dyn BlockDevice> = mem.clone();
    common::format(&device);
    let disk = Arc::new(PowerCut::new(&mem));
    let device: Arc<dyn BlockDevice> = disk.clone();
    let cell = Cell::on(&device, config());
    let client = cell.client();
    let mut random = Random::new(seed(1));
    let mut answered = Vec::new();
    for n in 0..6 {
        let name = format!("f{n}");
        let (fid, directory) = client.create(client.root, &name).expect("made");
        let len = 1 + random.below(300_000);
        let data = bytes(&mut random, len);
        let status = client.store(fid, 0, &data, 0).expect("stored");
        answered.push((name, fid, data, status.data_version, directory.data_version));
        let cut: Arc<dyn BlockDevice> = Arc::new(disk.crash(disk.events(), Tear::Drop));
        let after = Cell::on(&cut, config());
        let client = after.client();
        for (name, fid, data, version, _) in &answered {
            assert_eq!(client.lookup(client.root, name), Ok(*fid));
            let (got, status, _) = client.fetch(*fid, 0, 1 << 20).expect("fetched");
            assert!(got == *data && status.data_version == *version);
        }
        let root = client.status(client.root).expect("there");
        assert!(root.data_version >= answered.last().expect("one").4);
    }
}

#[test]
fn locks_exclude_and_show_in_the_status() {
    let cell = Cell::new();
    let (one, other) = (cell.client(), cell.client());
    let fid = file(&one);
    let busy = |outcome: Result<(), Abort>| outcome.map_err(|code| code.errno());
    one.lock(fid, LockType::Write).expect("locked");
    assert_eq!(
        busy(other.lock(fid, LockType::Read)),
        Err(Some(libc::EAGAIN))
    );
    assert_eq!(one.status(fid).expect("there").lock_count, -1);
    one.unlock(fid).expect("unlocked");
    one.lock(fid, LockType::Read).expect("locked");
    other.lock(fid, LockType::Read).expect("locked");
    assert_eq!(one.status(fid).expect("there").lock_count, 2);
    assert_eq!(
        busy(other.lock(fid, LockType::Write)),
        Err(Some(libc::EAGAIN))
    );
}
