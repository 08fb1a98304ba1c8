//! Rolling a fileset back, and holding snapshots.
//!
//! Goal: after a power cut at any moment of a rollback, the fileset is as before or as in the
//! snapshot, the snapshots are unchanged, and the file system is clean. Method: a rollback on a disk
//! that records its writes; images of every moment are opened and compared.

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random, Tear};
use common::client::Client;
use common::pair::describe;
use common::past::{changed, seen};
use common::snapshots::differences;
use common::{assert_clean, format, open};
use fs::{DifferenceKind, FIRST_FILESET, FileType, Files, Fs, InodeFlags, Kind, New, ROOT};
use std::sync::Arc;

#[test]
fn a_power_cut_leaves_the_state_before_or_that_of_the_snapshot() {
    let disk = Arc::new(Mem::new(16 << 20, 4096));
    let device: Arc<dyn BlockDevice> = Arc::clone(&disk) as _;
    let fs = changed(&device);
    let (before, then) = (seen(&fs, FIRST_FILESET), seen(&fs, "then"));
    let between = seen(&fs, "between");
    assert_ne!(before, then);
    fs.close().expect("closed");

    let cut = Arc::new(PowerCut::new(&disk));
    let device: Arc<dyn BlockDevice> = Arc::clone(&cut) as _;
    let fs = open(&device);
    let first = cut.events();
    let to = fs.fileset_named("then").expect("it exists").id();
    fs.rollback(to, Some("back")).expect("rolled back");
    let last = cut.events();
    assert_eq!(seen(&fs, FIRST_FILESET), then);
    assert_eq!(seen(&fs, "back"), before);
    assert_clean(&fs, "after");
    fs.close().expect("closed");

    let (mut as_before, mut as_then) = (0, 0);
    for point in first..=last {
        for tear in [Tear::Drop, Tear::Keep, Tear::Random(point as u64)] {
            let image: Arc<dyn BlockDevice> = Arc::new(cut.crash(point, tear));
            let fs = open(&image);
            let now = seen(&fs, FIRST_FILESET);
            if now == then {
                as_then += 1;
                assert_eq!(seen(&fs, "back"), before, "{point} {tear:?}");
            } else {
                as_before += 1;
                assert_eq!(now, before, "{point} {tear:?}");
            }
            assert_eq!(seen(&fs, "then"), then, "{point} {tear:?}");
            assert_eq!(seen(&fs, "between"), between, "{point} {tear:?}");
            assert_clean(&fs, &format!("{point} {tear:?}"));
        }
    }
    assert!(as_before > 0 && as_then > 0, "{as_before}, {as_then}");
}

#[test]
fn a_rollback_without_a_way_back_frees_what_only_the_later_state_had() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 4096));
    let fs = changed(&device);
    let id = |name| fs.fileset_named(name).expect("it exists").id();
    let then = seen(&fs, "then");
    fs.remove_fileset(id("between")).expect("removed");
    fs.rollback(id("then"), None).expect("rolled back");
    assert_eq!(seen(&fs, FIRST_FILESET), then);
    assert_eq!(differences(&fs, id("then"), id(FIRST_FILESET)), []);
    let blocks = |name| {
        let fileset = fs.fileset_named(name).expect("it exists");
        fileset.record().expect("a record").used_blocks
    };
    let report = fs.check().expect("checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
    assert_eq!(report.data_blocks, blocks(FIRST_FILESET));
    assert_eq!(fs.snapshot_blocks(id("then")).expect("counted"), 0);
}

#[test]
fn a_fileset_in_use_is_not_rolled_back() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 4096));
    let fs = changed(&device);
    let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
    let to = fs.fileset_named("then").expect("it exists").id();
    let before = seen(&fs, FIRST_FILESET);
    let busy = |fs: &Fs| {
        let error = fs.rollback(to, None).expect_err("in use");
        assert_eq!(error.kind(), Kind::Busy, "{error}");
    };
    let cache = cache::Cache::new(cache::Config::new(8 << 20)).expect("a cache");
    let files = Files::new(&main, &cache).expect("files");
    busy(&fs);
    files.close().expect("closed");
    drop(files);
    let ino = main.lookup(ROOT, b"kept").expect("it exists").ino;
    main.open(ino).expect("open");
    busy(&fs);
    main.release(ino).expect("closed");
    let error = fs.rollback(main.id(), None).expect_err("no snapshot");
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    let error = fs.rollback(to, Some("between")).expect_err("a used name");
    assert_eq!(error.kind(), Kind::Exists, "{error}");
    assert_eq!(seen(&fs, FIRST_FILESET), before);
    fs.rollback(to, None).expect("rolled back");
    assert_clean(&fs, "after");
}

#[test]
fn a_difference_names_each_change_once() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 4096));
    let fs = changed(&device);
    let id = |name| fs.fileset_named(name).expect("it exists").id();
    let shown = |one, two| -> Vec<String> {
        let all = differences(&fs, id(one), id(two));
        let line = |one: &fs::Difference| {
            let path = String::from_utf8_lossy(&one.path);
            let from = one.from.as_deref().map(String::from_utf8_lossy);
            let kind = match one.kind {
                DifferenceKind::Created => "+",
                DifferenceKind::Removed => "-",
                DifferenceKind::Renamed => "R",
                DifferenceKind::Changed => "M",
            };
            let content = if one.content { "c" } else { "" };
            format!(
                "{kind}{content} {}{path}",
                from.map_or(String::new(), |f| format!("{f} "))
            )
        };
        all.iter().map(line).collect()
    };
    let later = [
        "Mc cut",
        "+ dir/here",
        "Mc kept",
        "R moved link",
        "- removed",
    ];
    assert_eq!(shown("then", "between"), later);
    let latest = ["Mc cut", "M kept", "+ new"];
    assert_eq!(shown("between", FIRST_FILESET), latest);
    let back = [
        "Mc cut",
        "- dir/here",
        "Mc kept",
        "R link moved",
        "+ removed",
    ];
    assert_eq!(shown("between", "then"), back);
    assert_eq!(shown("then", "then"), [""; 0]);
    let other = fs.create_fileset("other").expect("created").id();
    let error = fs.diff(id("then"), other, |_| Ok(true));
    assert_eq!(error.expect_err("unrelated").kind(), Kind::Invalid);
}

#[test]
fn changed_flags_are_a_difference_and_are_rolled_back() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 4096));
    format(&device);
    let fs = open(&device);
    let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
    let new = New::of_root(FileType::File, 0o644);
    let ino = main.create(ROOT, b"file", &new).expect("created").ino;
    main.set_flags(ino, InodeFlags::NO_DUMP).expect("set");
    let then = fs.snapshot(main.id(), "then").expect("a snapshot").id();
    main.set_flags(ino, InodeFlags::IMMUTABLE).expect("set");
    let all = differences(&fs, then, main.id());
    let shown: Vec<_> = all
        .iter()
        .map(|one| (one.kind, one.content, one.attributes, &one.path[..]))
        .collect();
    assert_eq!(
        shown,
        [(DifferenceKind::Changed, false, true, b"file" as &[u8])]
    );
    // A rollback changes the file although the flag forbids it to clients.
    fs.rollback(then, None).expect("rolled back");
    let attr = main.attr(ino).expect("it exists");
    assert_eq!(attr.inode.flags, InodeFlags::NO_DUMP);
    assert_clean(&fs, "after");
}

#[test]
fn names_are_found_again_after_a_rollback_and_not_after_a_removal() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 4096));
    let fs = changed(&device);
    let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
    let missing = |fileset: &fs::Fileset, name: &str| {
        // The second search finds the result of the first one.
        for _ in 0..2 {
            let error = fileset.lookup(ROOT, name.as_bytes()).expect_err(name);
            assert_eq!(error.kind(), Kind::NotFound);
        }
    };
    missing(&main, "removed");
    let then = fs.fileset_named("then").expect("it exists");
    missing(&then, "new");
    fs.rollback(then.id(), None).expect("rolled back");
    main.lookup(ROOT, b"removed").expect("it is back");
    missing(&main, "new");
    fs.remove_fileset(then.id()).expect("removed");
    let error = then.lookup(ROOT, b"new").expect_err("no such snapshot");
    assert!(error.to_string().contains("snapshot"), "{error}");
    // The references to its blocks are counted correctly after all that.
    main.unlink(ROOT, b"removed").expect("removed");
    assert_clean(&fs, "after");
}

#[test]
fn a_held_snapshot_is_not_removed_and_an_older_program_refuses_the_file_system() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 4096));
    let fs = changed(&device);
    let before = fs.superblock().features.incompatible;
    assert_eq!(before & (1 << 8), 0);
    let id = fs.fileset_named("then").expect("it exists").id();
    fs.hold(id, false).expect("nothing to release");
    assert_eq!(fs.superblock().features.incompatible, before);
    fs.hold(id, true).expect("held");
    fs.close().expect("closed");
    let fs = open(&device);
    assert_eq!(fs.superblock().features.incompatible, before | 1 << 8);
    let error = fs.remove_fileset(id).expect_err("held");
    assert!(error.kind() == Kind::Busy && error.to_string().contains("held"));
    let main = fs.fileset_named(FIRST_FILESET).expect("it exists").id();
    assert_eq!(
        fs.hold(main, true).expect_err("a fileset").kind(),
        Kind::Invalid
    );
    fs.hold(id, false).expect("released");
    fs.remove_fileset(id).expect("removed");
    assert_clean(&fs, "after");
}

#[test]
fn a_rollback_without_room_is_refused_and_changes_nothing() {
    let (mut refused, mut done) = (0, 0);
    for files in [200, 1000, 3000] {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(12 << 20, 512));
        format(&device);
        let fs = open(&device);
        let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
        let new = New::of_root(FileType::File, 0o644);
        let names = |prefix: &'static str| {
            (0..files).map(move |n| format!("{prefix}{n}{}", "n".repeat(200)).into_bytes())
        };
        for name in names("old") {
            main.create(ROOT, &name, &new).expect("created");
        }
        let then = fs.snapshot(main.id(), "then").expect("a snapshot").id();
        for name in names("old") {
            main.unlink(ROOT, &name).expect("removed");
        }
        for name in names("new") {
            main.create(ROOT, &name, &new).expect("created");
        }
        let ino = main.create(ROOT, b"large", &new).expect("created").ino;
        let mut client = Client::new(main.clone());
        let mut random = Random::new(1);
        for piece in 0.. {
            let len = if piece < 1000 { 64 << 10 } else { 4096 };
            if client
                .write(ino, piece * len, &vec![7; len as usize])
                .is_err()
                && len == 4096
            {
                break;
            }
        }
        client.sync(&mut random).expect("written");
        drop(client);
        let (before, old) = (
            describe(&main),
            describe(&fs.fileset(then).expect("a snapshot")),
        );
        let now = match fs.rollback(then, Some("back")) {
            Ok(()) => {
                done += 1;
                old
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace, "{files}: {error}");
                refused += 1;
                before
            }
        };
        assert!(describe(&main) == now, "{files}");
        assert_clean(&fs, "after");
        fs.close().expect("closed");
        let fs = open(&device);
        let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
        assert!(describe(&main) == now, "{files}");
        assert_clean(&fs, "opened again");
    }
    assert!(refused > 0, "{refused} refused, {done} done");
}
