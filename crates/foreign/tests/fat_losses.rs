//! What FAT file systems that EVFS writes keep, whatever fails: devices, power, or one of the files.

mod common;

use block::{BlockDevice, ErrorKind, OpKind};
use block_testing::{ErrorDevice, Failure, PowerCut};
use cache::Cache;
use common::fat::{bytes_of, disk_of, fsck, make, open, paths_of, repaired};
use common::{cache, noise};
use foreign::{Files, Lane, New, ROOT, SetAttr, Time};
use std::path::Path;
use std::sync::Arc;

fn file(lane: &mut Lane, dir: u64, name: &str, data: &[u8]) -> u64 {
    let node = lane.create(dir, name.as_bytes(), New::File);
    let node = node.expect("created");
    assert_eq!(lane.write(node, 0, data).expect("written"), data.len());
    node
}

fn rename(lane: &mut Lane, from: (u64, &str), to: (u64, &str)) {
    let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    lane.rename(from, to, true).expect("renamed");
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    let mut windows = bytes.windows(part.len());
    windows.position(|window| window == part)
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_save_writes_a_file_whose_time_a_program_has_set_after_its_write() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = disk_of(&make(dir.path(), &["-F", "16", "-s", "1"], 4 << 10));
        let device: Arc<dyn BlockDevice> = Arc::new(disk);
        let files = open(&device, &cache());
        let mut lane = files.lane().expect("a lane");
        let node = file(&mut lane, ROOT, "file", &noise(1, 5000));
        lane.sync_all().expect("durable");
        let data = noise(2, 5000);
        lane.write(node, 0, &data).expect("overwritten");
        let set = SetAttr {
            modified: Some(Time {
                seconds: 1_000_000_000,
                nanos: 0,
            }),
            ..SetAttr::default()
        };
        lane.set_attr(node, &set).expect("changed");
        lane.sync_all().expect("durable");
        assert!(position(&bytes_of(&*device), &data[..512]).is_some());
        assert_eq!(
            lane.attr(node).expect("attributes").modified.seconds,
            1_000_000_000
        );
    }

    #[test]
    fn a_file_that_cannot_be_written_fails_every_save_and_takes_no_other_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = cache();
        let disk = Arc::new(disk_of(&make(
            dir.path(),
            &["-F", "16", "-s", "1"],
            8 << 10,
        )));
        let (device, failures) = ErrorDevice::new(Arc::clone(&disk) as _);
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let files = open(&device, &cache);
        let mut lane = files.lane().expect("a lane");
        let (old, new, other) = (noise(1, 5000), noise(2, 5000), noise(3, 5000));
        let node = file(&mut lane, ROOT, "bad", &old);
        lane.sync_all().expect("durable");
        let at = position(&disk.to_vec(), &old[..512]).expect("the content") as u64;
        let failure = Failure::every(1, ErrorKind::Io);
        failures.set(Some(failure.of(OpKind::Write).within(at, 4096)));
        lane.write(node, 0, &new).expect("the cache has it");
        file(&mut lane, ROOT, "other", &other);
        for _ in 0..3 {
            lane.sync_all().expect_err("a page cannot be written");
            lane.sync(node).expect_err("a page cannot be written");
        }
        drop(lane);
        files.close().expect_err("a page cannot be written");
        // The other file is on the device, even if EVFS ends now.
        let now = disk_of(&repaired(dir.path(), &disk.to_vec()));
        let paths = paths_of(&Files::open(Arc::new(now), &cache).expect("it opens"));
        assert_eq!(paths["/other"].1.as_ref(), Some(&other));
        failures.set(None);
        files.close().expect("it closes");
        let paths = paths_of(&open(&(disk as Arc<dyn BlockDevice>), &cache));
        assert_eq!(paths["/bad"].1.as_ref(), Some(&new));
        assert_eq!(paths["/other"].1.as_ref(), Some(&other));
    }

    #[test]
    fn a_save_whose_flush_or_table_fails_is_no_success() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = cache();
        for op in [OpKind::Flush, OpKind::Write] {
            // The n-th operation from the write on fails, once.
            for n in 1..60 {
                let disk = Arc::new(disk_of(&make(
                    dir.path(),
                    &["-F", "16", "-s", "1"],
                    8 << 10,
                )));
                let (device, failures) = ErrorDevice::new(Arc::clone(&disk) as _);
                let device: Arc<dyn BlockDevice> = Arc::new(device);
                let files = open(&device, &cache);
                let mut lane = files.lane().expect("a lane");
                let data = noise(n, 9000);
                let node = file(&mut lane, ROOT, "a long name.text", &data);
                lane.sync(node).expect("durable");
                lane.set_size(node, 3000).expect("shorter");
                failures.set(Some(Failure::nth(n, ErrorKind::Io).of(op)));
                file(&mut lane, ROOT, "new", &data);
                rename(&mut lane, (ROOT, "new"), (ROOT, "newer"));
                let saved = lane.sync_all();
                let failed = failures.failed() > 0;
                assert_eq!(saved.is_err(), failed, "{op:?} {n}");
                failures.set(None);
                lane.sync_all().expect("durable");
                drop(lane);
                files.close().expect("it closes");
                let (clean, text) = fsck(dir.path(), &disk.to_vec());
                assert!(clean, "{op:?} {n}: {text}");
                let paths = paths_of(&open(&(disk as Arc<dyn BlockDevice>), &cache));
                assert_eq!(paths["/newer"].1.as_ref(), Some(&data));
                assert_eq!(paths["/a long name.text"].1.as_deref(), Some(&data[..3000]));
                if !failed {
                    break;
                }
            }
        }
    }

    /// Makes a device, opens it over a recorder, lets `work` change it, and calls `check` with each
    /// state that a power cut can leave.
    fn cut_everywhere(
        (options, kib): (&[&str], u64),
        prepare: impl Fn(&mut Lane),
        work: impl Fn(&mut Lane),
        check: impl Fn(&Path, &[u8], &str, &Cache),
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = cache();
        let disk: Arc<dyn BlockDevice> = Arc::new(disk_of(&make(dir.path(), options, kib)));
        let files = open(&disk, &cache);
        prepare(&mut files.lane().expect("a lane"));
        files.close().expect("it closes");
        let disk = Arc::new(PowerCut::new(&disk_of(&bytes_of(&*disk))));
        let device: Arc<dyn BlockDevice> = Arc::clone(&disk) as _;
        let files = open(&device, &cache);
        work(&mut files.lane().expect("a lane"));
        files.close().expect("it closes");
        for crash in disk.boundaries(1, 1) {
            let bytes = bytes_of(&crash.image);
            check(dir.path(), &bytes, &crash.to_string(), &cache);
        }
    }

    #[test]
    fn the_dirty_bit_does_not_take_links_to_the_device_before_their_turn() {
        let whole = noise(1, 254 * 512);
        let more = noise(2, 512 * 20);
        let check = |dir: &Path, bytes: &[u8], crash: &str, cache: &Cache| {
            let (_, text) = fsck(dir, bytes);
            assert!(!text.contains("free cluster ("), "{crash}: {text}");
            let clean = disk_of(&repaired(dir, bytes));
            let paths = paths_of(&Files::open(Arc::new(clean), cache).expect("it opens"));
            let bytes = paths["/file"].1.as_ref().expect("a file");
            assert!(bytes.starts_with(&whole), "{crash}: {text}");
        };
        cut_everywhere(
            (&["-F", "16", "-s", "1"], 4 << 10),
            |lane| {
                file(lane, ROOT, "FILE", &whole);
            },
            |lane| {
                let node = lane.lookup(ROOT, b"FILE").expect("there").0;
                lane.write(node, whole.len() as u64, &more)
                    .expect("written");
                lane.sync(node).expect("durable");
            },
            check,
        );
    }

    /// A file that is replaced.
    const DOC: &str = "a document with a long name.text";

    fn prepare_names(lane: &mut Lane, tmp: &str) {
        let sub = lane
            .create(ROOT, b"sub", New::Directory)
            .expect("a directory");
        file(lane, ROOT, DOC, &noise(1, 3000));
        for n in 0..40 {
            file(lane, ROOT, &format!("another file, number {n}"), &[n; 10]);
        }
        file(lane, ROOT, tmp, &noise(2, 3500));
        let inner = lane
            .create(ROOT, b"inner", New::Directory)
            .expect("a directory");
        file(lane, inner, "within", &noise(3, 700));
        file(lane, sub, "x", &noise(4, 800));
    }

    #[test]
    fn a_cut_during_renames_leaves_each_file_a_name_and_the_replaced_name_a_file() {
        type Work = fn(&mut Lane, &str);
        let over: Work = |lane, tmp| rename(lane, (ROOT, tmp), (ROOT, DOC));
        let backup: Work = |lane, tmp| {
            rename(
                lane,
                (ROOT, DOC),
                (ROOT, "the document before.text, a backup"),
            );
            rename(lane, (ROOT, tmp), (ROOT, DOC));
        };
        let around: Work = |lane, tmp| {
            let sub = lane.lookup(ROOT, b"sub").expect("there").0;
            rename(lane, (ROOT, tmp), (sub, "one"));
            rename(lane, (sub, "one"), (ROOT, "another name, again"));
            rename(lane, (ROOT, "another name, again"), (sub, "two"));
            rename(lane, (sub, "two"), (ROOT, DOC));
        };
        let from_other: Work = |lane, tmp| {
            let sub = lane.lookup(ROOT, b"sub").expect("there").0;
            rename(lane, (ROOT, tmp), (sub, "x of a longer name"));
            lane.sync_all().expect("durable");
            rename(lane, (sub, "x of a longer name"), (ROOT, DOC));
            file(lane, sub, "x of a longer name", &[9; 2000]);
        };
        let directories: Work = |lane, tmp| {
            let sub = lane.lookup(ROOT, b"sub").expect("there").0;
            rename(lane, (ROOT, "inner"), (sub, "inner"));
            rename(lane, (ROOT, tmp), (sub, "y"));
            file(lane, ROOT, tmp, &[9; 2000]);
        };
        let works = [over, backup, around, from_other, directories];
        for (n, work) in works.iter().enumerate() {
            for tmp in ["t", "a document with a long name.text.0123"] {
                let check = |dir: &Path, bytes: &[u8], crash: &str, cache: &Cache| {
                    let clean = disk_of(&repaired(dir, bytes));
                    let files = Files::open(Arc::new(clean), cache).expect("it opens");
                    let paths = paths_of(&files);
                    let of = |data: &[u8]| {
                        let mut named = paths.iter().filter(|(path, _)| !path.ends_with(".rec"));
                        named.any(|(_, (_, bytes))| bytes.as_deref() == Some(data))
                    };
                    let context = format!("work {n}, {tmp}, {crash}");
                    let (old, new) = (noise(1, 3000), noise(2, 3500));
                    assert!(of(&new), "the new file has no name: {context}");
                    assert!(of(&old) || n != 1, "the old file has no name: {context}");
                    let doc = paths.get(&format!("/{DOC}"));
                    let doc = doc.and_then(|(_, bytes)| bytes.as_deref());
                    let is_whole = doc == Some(&old[..]) || doc == Some(&new[..]);
                    // A backup leaves a moment without the name, and an empty second name.
                    assert!(is_whole || n == 1, "{context}");
                    assert!(of(&noise(3, 700)) && of(&noise(4, 800)), "{context}");
                };
                cut_everywhere(
                    (&["-F", "16", "-s", "1"], 4 << 10),
                    |lane| prepare_names(lane, tmp),
                    |lane| {
                        work(lane, tmp);
                        lane.sync_all().expect("durable");
                    },
                    check,
                );
            }
        }
    }
}
