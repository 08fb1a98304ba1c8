//! Full disks and filesets.

mod common;

use block::{BlockDevice, Buf, Op, Request, Wait};
use block_testing::{Mem, Random};
use cache::{Cache, Config};
use common::client::Client;
use common::pair::Pair;
use common::{assert_clean, format, open, seed};
use fs::{
    Allocate, BLOCK_BYTES, FIRST_FILESET, FileId, FileRequest, FileType, Files, Fileset, Fs, Kind,
    New, Pager, Quota, ROOT, Rename, SetXattr, WritePosition,
};
use std::sync::Arc;

const NEW: New = New::of_root(FileType::File, 0o644);

fn small() -> (Arc<dyn BlockDevice>, Fs) {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(12 << 20, 512));
    format(&device);
    let fs = open(&device);
    (device, fs)
}

#[test]
fn what_a_full_disk_took_can_be_written_out_and_what_it_refused_changed_nothing() {
    let (device, fs) = small();
    let mut client = Client::of_first(&fs);
    let mut random = Random::new(1);
    let before = fs.usage().free;
    let mut files = Vec::new();
    let mut refused = 0;
    for i in 0..3000u64 {
        let name = format!("file {i}").into_bytes();
        let Ok(attr) = client.fileset.create(ROOT, &name, &NEW) else {
            refused += 1;
            continue;
        };
        let data = vec![i as u8; 1 + random.below(40_000) as usize];
        match client.write(attr.ino, 0, &data) {
            Ok(()) => files.push((attr.ino, data)),
            Err(errno) => {
                assert_eq!(errno, libc::ENOSPC);
                let inode = client.fileset.attr(attr.ino).expect("there").inode;
                assert_eq!((inode.size, inode.blocks), (0, 0));
                refused += 1;
            }
        }
    }
    assert!(refused > 1000 && files.len() > 100);
    client.sync(&mut random).expect("promises are kept");
    assert_clean(&fs, "full");
    // Existing data can be overwritten in place.
    for (ino, data) in &mut files {
        data[0] ^= 0xff;
        client
            .write(*ino, 0, &data[..1])
            .expect("no new block is needed");
    }
    client.sync(&mut random).expect("synced");
    drop(client);
    fs.close().expect("a full disk closes");
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    for (ino, data) in &files {
        assert!(client.read(*ino, 0, 1 << 20).expect("readable") == *data);
    }
    let mut names = Vec::new();
    let list = |entry: fs::DirEntry| {
        names.push(entry.name.to_vec());
        Ok(true)
    };
    client.fileset.read_dir(ROOT, 2, list).expect("listed");
    for name in names {
        client
            .fileset
            .unlink(ROOT, &name)
            .expect("a full disk can be emptied");
    }
    fs.commit().expect("committed");
    assert_clean(&fs, "empty again");
    let after = fs.usage().free;
    assert!(
        after + 600 > before,
        "{after} blocks are free, and {before} were"
    );
}

#[test]
fn a_full_disk_refuses_names_and_not_their_removal() {
    let (_, fs) = small();
    let client = Client::of_first(&fs);
    let name = |i: u64| format!("{i:0>200}").into_bytes();
    let mut made = 0;
    let error = loop {
        match client.fileset.create(ROOT, &name(made), &NEW) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(made > 5000, "{made}");
    fs.commit().expect("committed");
    assert_clean(&fs, "full of names");
    for i in 0..made {
        client.fileset.unlink(ROOT, &name(i)).expect("removed");
    }
    fs.commit().expect("committed");
    assert_clean(&fs, "empty again");
    client
        .fileset
        .create(ROOT, &name(0), &NEW)
        .expect("there is room");
}

#[test]
fn random_operations_on_a_full_disk_lose_nothing() {
    let seed = seed(5);
    for part in 0..4 {
        let (device, fs) = small();
        let mut pair = Pair::new(fs, seed + part);
        pair.lenient = true;
        for round in 0..6 {
            for _ in 0..800 {
                pair.step();
            }
            let context = format!("EVFS_SEED={seed}, part {part}, round {round}");
            pair.client
                .write_all_out(&mut pair.random)
                .expect("promises are kept");
            pair.compare_all();
            assert_clean(&pair.fs, &context);
        }
        pair.release_all();
        pair.compare_all();
        let Pair {
            fs,
            client,
            model,
            inodes,
            ..
        } = pair;
        drop(client);
        fs.close().expect("closed");
        let mut pair = Pair::new(open(&device), 0);
        (pair.model, pair.inodes) = (model, inodes);
        pair.compare_all();
    }
}

#[test]
fn a_full_disk_and_a_used_up_quota_are_told_to_the_writer_and_not_to_fsync() {
    let (device, fs) = small();
    let cache = Cache::new(Config::new(4 << 20)).expect("a cache");
    let limited = fs.create_fileset("limited").expect("made");
    let quota = Quota {
        blocks: 100,
        inodes: 0,
    };
    fs.set_quota(limited.id(), quota).expect("set");
    let main = fs.fileset_named(FIRST_FILESET).expect("there");
    let mut kept = Vec::new();
    for (fileset, errno) in [(limited, libc::EDQUOT), (main, libc::ENOSPC)] {
        let files = Files::new(&fileset, &cache).expect("files");
        let mut lane = files.lane().expect("a lane");
        let ino = files.create(ROOT, b"file", &NEW).expect("made").ino;
        let file = files.open(ino).expect("open");
        let mut data = Vec::new();
        loop {
            let part = [data.len() as u8; 30_000];
            match lane.write(&file, WritePosition::End, &part) {
                Ok(_) => data.extend(part),
                Err(error) => break assert_eq!(error.errno(), errno, "{error}"),
            }
        }
        assert!(data.len() >= 300_000);
        lane.sync(&file).expect("what was taken is written");
        let inode = files.attr(ino).expect("there").inode;
        assert_eq!(inode.size, data.len() as u64);
        lane.write(&file, WritePosition::Offset(5), b"in place")
            .expect("room");
        data[5..13].copy_from_slice(b"in place");
        lane.sync(&file).expect("written");
        drop((file, lane));
        files.close().expect("closed");
        kept.push((fileset.record().expect("there").name, ino, data));
    }
    assert!(fs.read_only_because().is_none());
    fs.close().expect("closed");
    let fs = open(&device);
    assert_clean(&fs, "full");
    let cache = Cache::new(Config::new(4 << 20)).expect("a cache");
    for (name, ino, data) in kept {
        let files = Files::new(&fs.fileset_named(&name).expect("there"), &cache).expect("files");
        let file = files.open(ino).expect("open");
        let mut all = vec![0; data.len() + 1];
        let len = files.lane().expect("a lane").read(&file, 0, &mut all);
        assert_eq!(len.expect("readable"), data.len());
        assert!(all[..data.len()] == data, "{name}");
    }
}

#[test]
fn a_write_in_progress_that_replaces_blocks_does_not_count_against_a_quota() {
    let (_device, fs) = small();
    let mut client = Client::of_first(&fs);
    let ino = client.create(b"file");
    client.write(ino, 0, &[1; 4 * 4096]).expect("written");
    client.sync(&mut Random::new(1)).expect("synced");
    let quota = Quota {
        blocks: 10,
        inodes: 0,
    };
    fs.set_quota(client.fileset.id(), quota).expect("set");
    let before = left(&client.fileset).0;
    assert!((1..10).contains(&before));
    let mut queue = client.pager.queue().expect("a queue");
    // Without a promise.
    let op = Op::Write {
        offset: 0,
        bufs: Buf::copy_of(&[2; 4 * 4096]).into(),
        fua: false,
    };
    let request = Request { tag: 1, op };
    let file = FileId(ino);
    queue.submit(FileRequest { file, request }).expect("room");
    assert_eq!(left(&client.fileset).0, before);
    let mut done = Vec::new();
    while done.is_empty() {
        queue.reap(Wait::Block, &mut done).expect("reaped");
    }
    assert!(done.remove(0).result.is_ok());
    assert_eq!(left(&client.fileset).0, before);
}

/// Returns the available blocks and inodes according to statfs(2).
fn left(fileset: &Fileset) -> (u64, u64) {
    let stat = fileset.statfs().expect("statfs");
    (stat.available, stat.free_inodes)
}

#[test]
fn names_targets_and_attributes_count_against_a_quota() {
    let (device, fs) = small();
    let fileset = fs.create_fileset("limited").expect("made");
    let quota = Quota {
        blocks: 100,
        inodes: 50,
    };
    let first = fileset.create(ROOT, b"first", &NEW).expect("made").ino;
    // Usage from before the limit was set counts, too.
    let value = [7; 10 * 4096];
    let set =
        |name: &str, value: &[u8]| fileset.set_xattr(first, name.as_bytes(), value, SetXattr::Any);
    set("user.before", &value).expect("no limit yet");
    fs.set_quota(fileset.id(), quota).expect("set");
    assert_eq!(left(&fileset), (90, 48));

    let refused = |result: fs::Result<()>| assert_eq!(result.unwrap_err().kind(), Kind::Quota);
    for i in 0..8 {
        set(&format!("user.{i}"), &value).expect("within the quota");
    }
    refused(set("user.9", &[7; 11 * 4096]));
    set("user.9", &[7; 9 * 4096]).expect("within the quota");
    refused(set("user.9", &[7; 11 * 4096]));
    let full = left(&fileset);
    assert!(full.0 <= 1, "{full:?}");
    let target = [b't'; 4000];
    let link = |i: u32| {
        let name = format!("{i:0200}").into_bytes();
        fileset.symlink(ROOT, &name, &target, 0, 0).map(drop)
    };
    let many = (0..100).find_map(|i| link(i).err());
    assert_eq!(many.map(|e| e.kind()), Some(Kind::Quota));
    // Content and the other items share the limit.
    let mut client = Client::new(fileset.clone());
    assert_eq!(client.write(first, 0, &[1; 3 * 4096]), Err(libc::EDQUOT));
    fileset.remove_xattr(first, b"user.9").expect("removed");
    client
        .write(first, 0, &[1; 3 * 4096])
        .expect("there is room again");
    client.sync(&mut Random::new(3)).expect("synced");

    // A file counts once per name.
    let (_, inodes) = left(&fileset);
    let names: Vec<Vec<u8>> = (0..100).map(|i| format!("name {i}").into_bytes()).collect();
    let linked = names
        .iter()
        .take_while(|name| fileset.link(first, ROOT, name).is_ok());
    assert_eq!(linked.count() as u64, inodes);
    refused(fileset.link(first, ROOT, b"one more").map(drop));
    refused(fileset.create(ROOT, b"one more", &NEW).map(drop));
    fileset
        .rename((ROOT, b"name 0"), (ROOT, b"another name"), Rename::Replace)
        .expect("no name more");
    fileset.unlink(ROOT, b"name 1").expect("removed");
    fileset
        .link(first, ROOT, b"one more")
        .expect("there is room again");

    let before = left(&fileset);
    assert_clean(&fs, "quota");
    drop((fileset, client));
    fs.close().expect("closed");
    let fs = open(&device);
    let fileset = fs.fileset_named("limited").expect("there");
    assert_eq!(left(&fileset), before, "counted again, it is the same");
    fs.set_quota(
        fileset.id(),
        Quota {
            blocks: 0,
            inodes: 0,
        },
    )
    .expect("set");
    fileset
        .set_xattr(first, b"user.free", &value, SetXattr::Any)
        .expect("no limit");
    fileset.create(ROOT, b"free", &NEW).expect("no limit");
}

#[test]
fn what_is_called_available_can_be_allocated() {
    let (_, fs) = small();
    let fileset = fs.fileset_named(FIRST_FILESET).expect("there");
    let ino = fileset.create(ROOT, b"file", &NEW).expect("made").ino;
    let available = fileset.statfs().expect("statfs").available;
    let bytes = available * BLOCK_BYTES;
    let error = fileset.allocate(ino, 0..bytes + BLOCK_BYTES, Allocate::Grow);
    assert_eq!(error.unwrap_err().kind(), Kind::NoSpace);
    fileset
        .allocate(ino, 0..bytes, Allocate::Grow)
        .expect("as it was said");
}

#[test]
fn a_quota_is_kept_and_counts_what_is_promised() {
    let (_, fs) = small();
    let mut random = Random::new(2);
    let fileset = fs.create_fileset("limited").expect("made");
    let quota = Quota {
        blocks: 20,
        inodes: 4,
    };
    fs.set_quota(fileset.id(), quota).expect("set");
    let mut client = Client::new(fileset);
    let one = client.create(b"one");
    let two = client.create(b"two");
    client
        .write(one, 0, &[1; 15 * 4096])
        .expect("within the quota");
    assert_eq!(client.write(two, 0, &[2; 6 * 4096]), Err(libc::EDQUOT));
    client
        .write(two, 0, &[2; 5 * 4096])
        .expect("within the quota");
    client.sync(&mut random).expect("synced");
    let stat = client.fileset.statfs().expect("full");
    assert_eq!((stat.blocks, stat.free, stat.free_inodes), (20, 0, 1));
    client.write(one, 0, &[3; 100]).expect("in place");
    client.fileset.create(ROOT, b"three", &NEW).expect("made");
    let error = client.fileset.create(ROOT, b"four", &NEW).unwrap_err();
    assert_eq!(error.errno(), libc::EDQUOT);
    client.fileset.unlink(ROOT, b"two").expect("removed");
    client.forget(two);
    client
        .write(one, 15 * 4096, &[1; 5 * 4096])
        .expect("there is room again");
    client.sync(&mut random).expect("synced");
    assert_clean(&fs, "quota");
}
