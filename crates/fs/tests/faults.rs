//! Failing devices.

mod common;

use block::{BlockDevice, ErrorKind, OpKind};
use block_testing::{ErrorDevice, ErrorHandle, Failure, Mem, Random};
use cache::{Cache, Config};
use common::client::Client;
use common::model::Kind;
use common::pair::Pair;
use common::{assert_clean, format, open, seed};
use fs::{FIRST_FILESET, Files, Fs};
use std::sync::Arc;

const NEW: fs::New = fs::New::of_root(fs::FileType::File, 0);

/// Works on a device whose n-th write or flush fails, counted from a certain moment, and then on
/// the result.
fn fail_nth(seed: u64, n: u64, kind: OpKind) {
    let context = format!("EVFS_SEED={seed}, {kind} {n}");
    let mem = Arc::new(Mem::new(24 << 20, 512));
    let plain: Arc<dyn BlockDevice> = mem.clone();
    format(&plain);
    let (device, handle) = ErrorDevice::new(plain.clone());
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let mut pair = Pair::new(open(&device), seed);
    pair.lenient = true;
    for _ in 0..300 {
        pair.step();
    }
    pair.client.sync(&mut pair.random).expect("it syncs");
    let (synced, before) = (pair.model.describe(), pair.model.clone());
    handle.set(Some(Failure::nth(n, ErrorKind::Media).of(kind)));
    let mut failed = false;
    for _ in 0..20 {
        let data = vec![1; 9000];
        let name = format!("new {}", pair.random.next_u64());
        let made = pair.fileset().create(fs::ROOT, name.as_bytes(), &NEW);
        let attr = match made {
            Ok(attr) => attr,
            Err(error) => {
                assert_eq!(error.errno(), libc::EROFS, "{context}: {error}");
                failed = true;
                break;
            }
        };
        let io = [libc::EIO, libc::EROFS];
        let mut expect = |result: Result<(), i32>| {
            failed |= result.is_err();
            assert!(
                !result.is_err_and(|errno| !io.contains(&errno)),
                "{context}: {result:?}"
            );
        };
        expect(pair.client.write(attr.ino, 0, &data));
        expect(pair.client.sync(&mut pair.random));
        expect(pair.fs.commit().map_err(|error| error.errno()));
    }
    assert_eq!(
        failed,
        handle.failed() > 0,
        "{context}: an error is told, and only a real one"
    );
    // State in memory can still be read. Either everything continues, or all changes are refused
    // and the error states why.
    handle.set(None);
    if let Some(why) = pair.fs.read_only_because() {
        assert!(failed, "{context}: {why}");
        assert_eq!(why.kind(), fs::Kind::ReadOnly, "{context}");
        assert!(
            why.to_string().contains("read-only after an error"),
            "{context}: {why}"
        );
        let refused = pair.fileset().create(fs::ROOT, b"refused", &NEW);
        assert_eq!(refused.expect_err("it is read-only").errno(), libc::EROFS);
    } else {
        let name = format!("new {}", pair.random.next_u64());
        let made = pair.fileset().create(fs::ROOT, name.as_bytes(), &NEW);
        made.unwrap_or_else(|error| panic!("{context}: it goes on: {error}"));
        pair.fs
            .sync()
            .expect("what failed before can be tried again");
    }
    assert!(pair.client.fileset.attr(fs::ROOT).is_ok(), "{context}");
    let Pair {
        fs, client, inodes, ..
    } = pair;
    drop(client);
    // Closing may fail and report it; the device has everything that was synced.
    let _ = fs.close();
    let fs = Fs::open(common::keyed(&plain), common::options());
    let fs = fs.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    assert_clean(&fs, &context);
    let main = fs.fileset_named(FIRST_FILESET).expect("there");
    let mut names = Vec::new();
    main.read_dir(fs::ROOT, 2, |entry| {
        names.push(entry.name.to_vec());
        Ok(true)
    })
    .expect("it lists");
    for name in names.iter().filter(|name| name.starts_with(b"new ")) {
        main.unlink(fs::ROOT, name).expect("removed");
    }
    let found = common::pair::describe(&main);
    assert_eq!(found, synced, "{context}: what was synced is there");
    let mut client = Client::new(main);
    for (id, ino) in inodes {
        let node = before.nodes.get(&id).filter(|node| node.links > 0);
        if let Some(node) = node.filter(|node| node.kind == Kind::File) {
            let data = client.read(ino, 0, u64::MAX / 2).expect("readable");
            assert!(data == node.data, "{context}: file {id}");
        }
    }
}

#[test]
fn the_nth_write_or_flush_fails_and_what_was_synced_is_there_afterwards() {
    let seed = seed(3);
    for n in 1..40 {
        fail_nth(seed + n, n, OpKind::Write);
    }
    for n in 1..12 {
        fail_nth(seed + n, n, OpKind::Flush);
    }
}

/// Returns a new file system with its files, and a handle that makes its device fail.
fn failing(mem: &Arc<dyn BlockDevice>) -> (Fs, Arc<Files>, ErrorHandle) {
    format(mem);
    let (device, handle) = ErrorDevice::new(Arc::clone(mem));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let fs = open(&device);
    let cache = Cache::new(Config::new(4 << 20)).expect("a cache");
    let main = fs.fileset_named(FIRST_FILESET).expect("there");
    let files = Files::new(&main, &cache).expect("files");
    (fs, files, handle)
}

#[test]
fn a_file_that_could_not_be_written_is_told_to_its_fsync_once_and_kept() {
    let mem: Arc<dyn BlockDevice> = Arc::new(Mem::new(24 << 20, 512));
    let (fs, files, handle) = failing(&mem);
    let mut lane = files.lane().expect("a lane");
    let ino = files.create(fs::ROOT, b"file", &NEW).expect("made").ino;
    let file = files.open(ino).expect("open");
    lane.sync(&file).expect("synced");
    let mut written = |byte: u8, nth: u64| {
        let data = vec![byte; 50_000];
        lane.write(&file, fs::WritePosition::Offset(0), &data)
            .expect("taken");
        handle.set(Some(Failure::nth(nth, ErrorKind::Media).of(OpKind::Write)));
        let error = lane.sync(&file).expect_err("it cannot be written");
        assert_eq!(error.errno(), libc::EIO, "{error}");
        handle.set(None);
        let again = lane.sync(&file);
        let mut back = vec![0; 50_000];
        let len = lane.read(&file, 0, &mut back).expect("readable");
        assert!(back[..len] == data);
        again
    };
    // The first write is file data: the page stays dirty and is written again.
    written(1, 1).expect("it is tried again");
    assert!(fs.read_only_because().is_none(), "the metadata is sound");
    // The second is a journal write. Its effect on the device is unknown, so nothing counts as
    // durable after it.
    written(2, 2).expect_err("not durable");
    drop((file, lane));
    files.close().expect_err("not everything is durable");
    fs.commit().expect_err("not everything is durable");
    assert!(fs.read_only_because().is_some());
    drop(files);
    fs.close().expect_err("not everything is durable");
    let fs = open(&mem);
    assert_clean(&fs, "after failed writes");
    let mut client = Client::new(fs.fileset_named(FIRST_FILESET).expect("there"));
    let found = client.read(ino, 0, 60_000).expect("readable");
    assert!(found.len() == 50_000 && found.iter().all(|byte| [1, 2].contains(byte)));
}

#[test]
fn a_failed_write_that_was_made_good_does_not_keep_the_files_from_closing() {
    let mem: Arc<dyn BlockDevice> = Arc::new(Mem::new(24 << 20, 512));
    let (fs, files, handle) = failing(&mem);
    let mut lane = files.lane().expect("a lane");
    let ino = files.create(fs::ROOT, b"file", &NEW).expect("made").ino;
    let file = files.open(ino).expect("open");
    lane.sync(&file).expect("synced");
    handle.set(Some(Failure::nth(1, ErrorKind::Media).of(OpKind::Write)));
    lane.write(&file, fs::WritePosition::Offset(0), &[1; 5000])
        .expect("taken");
    // Unless the background was faster, this is the write that fails.
    let _ = files.sync();
    assert_eq!(handle.failed(), 1);
    files.sync().expect("written again");
    drop((file, lane));
    files.close().expect("everything is durable");
    drop(files);
    fs.close().expect("closed");
}

#[test]
fn a_read_that_fails_is_an_error_of_its_operation_and_the_next_one_works() {
    let mem: Arc<dyn BlockDevice> = Arc::new(Mem::new(24 << 20, 512));
    format(&mem);
    let mut pair = Pair::new(open(&mem), seed(4));
    for _ in 0..2000 {
        pair.step();
    }
    pair.release_all();
    pair.client
        .write_all_out(&mut pair.random)
        .expect("written");
    let Pair {
        fs,
        client,
        model,
        inodes,
        ..
    } = pair;
    drop(client);
    fs.close().expect("closed");
    let (device, handle) = ErrorDevice::new(mem);
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    for n in 1..30 {
        handle.set(Some(Failure::nth(n, ErrorKind::Media).of(OpKind::Read)));
        let fs = match Fs::open(common::keyed(&device), common::options()) {
            Ok(fs) => fs,
            Err(error) => {
                assert!(
                    matches!(error.kind(), fs::Kind::Io | fs::Kind::Corrupt),
                    "{error:?}"
                );
                continue;
            }
        };
        handle.set(None);
        let mut pair = Pair::new(fs, n);
        (pair.model, pair.inodes) = (model.clone(), inodes.clone());
        pair.compare_all();
    }
}

#[test]
fn changes_that_cannot_become_records_make_the_file_system_read_only() {
    let plain: Arc<dyn BlockDevice> = Arc::new(Mem::new(24 << 20, 512));
    format(&plain);
    let (device, handle) = ErrorDevice::new(plain);
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let options = fs::Options {
        metadata_cache_bytes: 0,
        ..common::options()
    };
    let fs = Fs::open(common::keyed(&device), options).expect("it opens");
    let mut client = Client::new(fs.fileset_named(FIRST_FILESET).expect("there"));
    let made = client.fileset.create(fs::ROOT, b"file", &NEW);
    let (ino, mut random) = (made.expect("made").ino, Random::new(1));
    client.write(ino, 0, &[1; 4096]).expect("written");
    client.sync(&mut random).expect("synced");
    fs.commit().expect("committed");
    client.write(ino, 4096, &[2; 4096]).expect("written");
    client.write_all_out(&mut random).expect("written out");
    // The new checksum belongs to a record that the device does not return.
    handle.set(Some(Failure::every(1, ErrorKind::Media).of(OpKind::Read)));
    assert!(fs.commit().is_err());
    handle.set(None);
    let why = fs.read_only_because().expect("it is read-only");
    assert_eq!(why.kind(), fs::Kind::ReadOnly, "{why}");
    assert!(fs.sync().is_err() && fs.commit().is_err());
}
