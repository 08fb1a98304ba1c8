//! Shortage of metadata space for other reasons than a full disk: fragmented free space, records
//! that multiply on a full disk, and failing flushes.

mod common;

use block::{BlockDevice, ErrorKind, OpKind};
use block_testing::{ErrorDevice, Failure, Mem, Random};
use common::client::{Client, PAGE};
use common::{assert_clean, format, open};
use fs::{
    Allocate, FIRST_FILESET, FileType, Fileset, Fs, Ino, Kind, New, ROOT, Rename, SetAttr, SetXattr,
};
use std::sync::Arc;

const NEW: New = New::of_root(FileType::File, 0o644);

fn formatted(mib: u64) -> (Arc<dyn BlockDevice>, Fs) {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(mib << 20, 512));
    format(&device);
    let fs = open(&device);
    (device, fs)
}

/// Checks that all changes can be committed, and that the file system opens again and is clean.
fn assert_lives(device: &Arc<dyn BlockDevice>, fs: Fs, context: &str) -> Fs {
    fs.commit()
        .unwrap_or_else(|error| panic!("{context}: {error}, {:?}", fs.usage()));
    fs.close()
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let fs = open(device);
    assert_clean(&fs, context);
    fs
}

/// Creates a file of all free space, unwritten.
fn fill(client: &Client) -> fs::Ino {
    let ino = client.create(b"fill");
    let (mut end, mut step) = (0, 1 << 20);
    while step >= PAGE {
        match client
            .fileset
            .allocate(ino, end..end + step, Allocate::Grow)
        {
            Ok(_) => end += step,
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace);
                step /= 2;
            }
        }
    }
    ino
}

#[test]
fn free_space_in_crumbs_refuses_names_and_the_file_system_lives() {
    let (device, fs) = formatted(32);
    let mut client = Client::of_first(&fs);
    let mut random = Random::new(1);
    let mut files = Vec::new();
    for i in 0..20_000u64 {
        let name = format!("{i}").into_bytes();
        let Ok(attr) = client.fileset.create(ROOT, &name, &NEW) else {
            break;
        };
        if client.write(attr.ino, 0, &[1; 100]).is_err() {
            break;
        }
        files.push((attr.ino, name));
    }
    client.sync(&mut random).expect("synced");
    for (_, name) in files.iter().step_by(2) {
        client.fileset.unlink(ROOT, name).expect("removed");
    }
    fs.commit().expect("committed");
    assert!(fs.usage().free_runs > 1000, "{:?}", fs.usage());
    let name = |i: u64| format!("{i:x>250}").into_bytes();
    let mut made = 0;
    let error = loop {
        match client.fileset.create(ROOT, &name(made), &NEW) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::NoSpace, "after {made} names: {error}");
    drop(client);
    let fs = assert_lives(&device, fs, "crumbs");
    let client = Client::of_first(&fs);
    for i in 0..made {
        client.fileset.unlink(ROOT, &name(i)).expect("removed");
    }
    drop(client);
    assert_lives(&device, fs, "crumbs, emptied");
}

#[test]
fn writes_into_allocated_blocks_of_a_full_disk_leave_it_alive() {
    let (device, fs) = formatted(128);
    let mut client = Client::of_first(&fs);
    let mut random = Random::new(1);
    let ino = fill(&client);
    client.sync(&mut random).expect("synced");
    let size = client.fileset.attr(ino).expect("there").inode.size;
    let mut written = 0u64;
    for page in (0..size / PAGE).step_by(2) {
        match client.write(ino, page * PAGE, &[7; 100]) {
            Ok(()) => written += 1,
            Err(errno) => {
                assert_eq!(errno, libc::ENOSPC, "after {written} pages");
                break;
            }
        }
        if page % 512 == 0 {
            client.sync(&mut random).expect("synced");
        }
    }
    client.sync(&mut random).expect("synced");
    assert!(written > 1000, "{written}");
    drop(client);
    let fs = assert_lives(&device, fs, "split extents");
    let main = fs.fileset_named(FIRST_FILESET).expect("there");
    main.unlink(ROOT, b"fill").expect("removed");
    assert_lives(&device, fs, "split extents, removed");
}

#[test]
fn what_a_snapshot_keeps_on_a_full_disk_leaves_it_alive() {
    for reading in [false, true] {
        let (device, fs) = formatted(24);
        let client = Client::of_first(&fs);
        let mut files = Vec::new();
        for i in 0..9000u64 {
            let name = format!("{i}").into_bytes();
            files.push(client.fileset.create(ROOT, &name, &NEW).expect("made").ino);
        }
        fs.snapshot(client.fileset.id(), "before").expect("made");
        fill(&client);
        fs.sync().expect("synced");
        for ino in files {
            let set = SetAttr {
                permissions: Some(0o600),
                ..SetAttr::default()
            };
            let done = if reading {
                client.fileset.note_read(ino, false)
            } else {
                client.fileset.set_attr(ino, &set).map(drop)
            };
            if let Err(error) = done {
                assert!(!reading && error.kind() == Kind::NoSpace, "{error}");
            }
        }
        drop(client);
        assert_lives(&device, fs, "snapshot");
    }
}

#[test]
fn space_that_a_sync_makes_usable_is_found_by_every_change() {
    type Change = fn(&Fs, &Fileset, Ino) -> fs::Result<()>;
    let changes: [(&str, Change); 5] = [
        ("set_xattr", |_, files, ino| {
            files.set_xattr(ino, b"user.a", b"1", SetXattr::Any)
        }),
        ("link", |_, files, ino| {
            files.link(ino, ROOT, b"b").map(drop)
        }),
        ("rename", |_, files, _| {
            let (from, to) = ((ROOT, &b"a"[..]), (ROOT, &b"b"[..]));
            files.rename(from, to, Rename::NoReplace).map(drop)
        }),
        ("create_fileset", |fs, _, _| {
            fs.create_fileset("new").map(drop)
        }),
        ("snapshot", |fs, files, _| {
            fs.snapshot(files.id(), "now").map(drop)
        }),
    ];
    for (name, change) in changes {
        let (device, fs) = formatted(24);
        let client = Client::of_first(&fs);
        let files = &client.fileset;
        let ino = files.create(ROOT, b"a", &NEW).expect("made").ino;
        let filler = fill(&client);
        let is_full = |i: u64| {
            let name = format!("{i}").into_bytes();
            files.create(ROOT, &name, &NEW).is_err() && {
                fs.commit().expect("committed");
                files.create(ROOT, &name, &NEW).is_err()
            }
        };
        assert!((0..100_000).any(is_full), "{:?}", fs.usage());
        let error = change(&fs, files, ino).expect_err(name);
        assert_eq!(error.kind(), Kind::NoSpace, "{name}");
        files.truncate(filler, 0).expect("needs no room");
        change(&fs, files, ino).unwrap_or_else(|error| panic!("{name}: {error}"));
        drop(client);
        assert_lives(&device, fs, name);
    }
}

#[test]
fn long_names_that_a_snapshot_keeps_on_a_full_disk_leave_it_alive() {
    let (device, fs) = formatted(24);
    let client = Client::of_first(&fs);
    let files = &client.fileset;
    let name = |i: u64| format!("{i:x>250}").into_bytes();
    for i in 0..9000 {
        files.create(ROOT, &name(i), &NEW).expect("made");
    }
    fs.snapshot(files.id(), "before").expect("made");
    fill(&client);
    let mut refused = 0;
    for i in (0..9000).step_by(2) {
        let (one, two) = (name(i), name(i + 1));
        let exchanged = files.rename((ROOT, &one), (ROOT, &two), Rename::Exchange);
        if let Err(error) = exchanged {
            assert_eq!(error.kind(), Kind::NoSpace, "{i}: {error}");
            refused += 1;
        }
    }
    assert!(refused > 0, "{:?}", fs.usage());
    drop(client);
    assert_lives(&device, fs, "exchanged names");
}

#[test]
fn after_a_flush_that_failed_nothing_more_is_called_durable() {
    let plain: Arc<dyn BlockDevice> = Arc::new(Mem::new(24 << 20, 512));
    format(&plain);
    let (device, handle) = ErrorDevice::new(Arc::clone(&plain));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let fs = open(&device);
    let mut random = Random::new(1);
    let mut client = Client::of_first(&fs);
    let one = client.create(b"one");
    let two = client.create(b"two");
    client.write(one, 0, &[1; 9000]).expect("written");
    client.write(two, 0, &[2; 9000]).expect("written");
    client.write_all_out(&mut random).expect("written out");
    // The device reports only once that it has lost acknowledged data.
    handle.set(Some(Failure::nth(1, ErrorKind::Media).of(OpKind::Flush)));
    assert!(client.fsync(one, &mut random).is_err());
    assert!(client.fsync(two, &mut random).is_err(), "it may be gone");
    assert!(fs.commit().is_err(), "and so may what a commit would name");
    assert!(fs.read_only_because().is_some());
    assert!(client.fileset.attr(two).is_ok());
    drop(client);
    assert!(fs.close().is_err());
    let fs = open(&plain);
    assert_clean(&fs, "after a failed flush");
}

#[test]
fn the_value_of_an_attribute_is_never_taken_for_a_record_of_the_journal() {
    let (device, fs) = formatted(24);
    let client = Client::of_first(&fs);
    let sector = |block: u64| {
        let mut bytes = vec![0; 4096];
        let bufs = block::Buf::zeroed(4096).into();
        let mut queue = device.queue().expect("a queue");
        let op = block::Op::Read {
            offset: block * 4096,
            bufs,
        };
        assert!(queue.submit(block::Request { tag: 0, op }).is_ok());
        let mut done = Vec::new();
        while done.is_empty() {
            queue.reap(block::Wait::Block, &mut done).expect("it reads");
        }
        if let block::Op::Read { bufs, .. } = &done[0].op {
            bytes.copy_from_slice(&bufs.as_slice()[0]);
        }
        bytes
    };
    let superblock = fs.superblock();
    let mut counted = 0;
    for shift in 0..4096usize {
        // For one of the shifts the magic is at the start of a journal block.
        let mut value = vec![b'.'; shift];
        value.extend_from_slice(b"EVFSjrnl");
        value.resize(shift + 4096, b'.');
        client
            .fileset
            .set_xattr(ROOT, b"user.x", &value, fs::SetXattr::Any)
            .expect("set");
        fs.sync().expect("synced");
        if shift % 8 != 7 {
            continue;
        }
        for block in superblock.journal_start..superblock.first_block() {
            let bytes = sector(block);
            if bytes[..8] == *b"EVFSjrnl" {
                counted += 1;
                assert_eq!(bytes[16..32], superblock.uuid, "block {block} is no record");
            }
        }
    }
    assert!(counted > 0);
}
