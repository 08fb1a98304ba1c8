//! Planted damage: the check of a file system in use finds what the other check finds.

use crate::check::finding::{Finding, FindingKind};
use crate::check::repair::tests::{damage, open, sample};
use crate::format::account::{AccountRecord, Charge, Owner, OwnerLimits};
use crate::format::key::{Item, Key, Section};
use crate::format::record::{BLOCK_BYTES, Extent, Run, SharedRun};
use crate::fs::{FIRST_FILESET, Fs};
use crate::metadata::database::SpaceChange;
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::pace::Pace;
use crate::metadata::shared::Options;
use crate::names::directory::{New, ROOT};
use crate::{Checked, FileType, Kind};
use block::BlockDevice;
use block_testing::{Mem, Random};
use std::sync::Arc;

fn check(fs: &Fs) -> Checked {
    fs.check_online(&Arc::new(Pace::new(None)), &mut |_, _| {})
        .unwrap()
}

fn main(fs: &Fs) -> u32 {
    fs.fileset_named(FIRST_FILESET).unwrap().id()
}

/// Damages a file system by one operation, commits it, and returns the findings.
fn planted(plant: impl FnOnce(&mut Op, u32)) -> Vec<Finding> {
    let fs = open(&sample());
    assert!(check(&fs).report.is_clean());
    let main = main(&fs);
    let mut op = Op::locked(fs.inner(), main).unwrap();
    plant(&mut op, main);
    op.finish();
    let found = check(&fs);
    assert!(!found.report.is_clean());
    found.report.problems
}

/// First key of an item kind in a layer, with its value.
fn first(op: &Op, layer: u32, item: Item) -> (Key, Vec<u8>) {
    let (from, to) = Key::layer(layer);
    let mut found = None;
    op.items
        .scan(from, to, |key, bytes| {
            if key.kind() == Some(item) && key.object > 1 {
                found = Some((key, bytes.to_vec()));
            }
            Ok(found.is_none())
        })
        .unwrap();
    found.unwrap()
}

#[test]
fn each_class_of_damage_is_found() {
    let has = |found: &[Finding], kind: FindingKind| {
        let kinds: Vec<FindingKind> = found.iter().map(|finding| finding.kind).collect();
        assert!(kinds.contains(&kind), "{found:#?}");
    };
    let invalid = planted(|op, main| {
        let (key, _) = first(op, main, Item::Inode);
        op.put_key(key, vec![1], Prior::Possible);
    });
    has(&invalid, FindingKind::Record);
    let stray = planted(|op, _| {
        let key = Key::item(77, 5, Item::Inode, 0);
        op.put_key(key, vec![1], Prior::Absent);
    });
    has(&stray, FindingKind::Record);
    let sums = planted(|op, _| {
        let key = Key::global(Section::Sums, 1);
        op.put_key(key, vec![1; 9], Prior::Possible);
    });
    has(&sums, FindingKind::Record);
    let nameless = planted(|op, main| {
        let (key, _) = first(op, main, Item::Entry);
        op.delete_key(key);
    });
    has(&nameless, FindingKind::Count);
    let misplaced = planted(|op, main| {
        let (key, value) = first(op, main, Item::Entry);
        op.delete_key(key);
        let elsewhere = Key::item(main, key.object, Item::Entry, key.place() ^ 0xfff00);
        op.put_key(elsewhere, value, Prior::Absent);
    });
    has(&misplaced, FindingKind::Name);
    let links = planted(|op, main| {
        op.update(main, ROOT, |inode| inode.links += 1).unwrap();
    });
    has(&links, FindingKind::Count);
    let outside = planted(|op, main| {
        let (key, value) = first(op, main, Item::Extent);
        let mut extent = Extent::decode(&value).unwrap();
        extent.start = 1 << 30;
        op.put_key(key, extent.encode(), Prior::Possible);
    });
    has(&outside, FindingKind::Extent);
    has(&outside, FindingKind::Space);
    let usage = planted(|op, main| op.use_blocks(i64::from(main)));
    has(&usage, FindingKind::Usage);
    let account = planted(|op, main| {
        let charge = Charge {
            files: 1,
            ..Charge::default()
        };
        let record = AccountRecord {
            limits: OwnerLimits::default(),
            charge,
        };
        let key = Owner::User(5).key(main);
        op.put_key(key, record.encode(), Prior::Absent);
    });
    has(&account, FindingKind::Usage);
    let counts = planted(|op, _| {
        let shared = SharedRun {
            blocks: 3,
            count: 2,
        };
        let at = Key::global(Section::Shared, 1000);
        op.put_key(at, shared.encode(), Prior::Absent);
    });
    has(&counts, FindingKind::Space);
    let bitmap = planted(|op, _| {
        let run = op.space().unused()[0];
        op.items.note_space(&[SpaceChange { run, used: true }]);
    });
    has(&bitmap, FindingKind::Space);
}

#[test]
fn random_damage_is_found_as_by_a_check_of_a_file_system_that_is_not_in_use() {
    let in_memory = |finding: &&Finding| !finding.text.starts_with("the allocator");
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let fs = open(&sample());
        let main = main(&fs);
        let mut op = Op::locked(fs.inner(), main).unwrap();
        for _ in 0..1 + random.below(3) {
            damage(&mut op, main, &mut random);
        }
        op.finish();
        fs.commit().unwrap();
        // The view reads the records of the filesets from the device, as the next open does.
        let found = check(&fs).report;
        let expected = fs.check().unwrap();
        let found: Vec<&Finding> = found.problems.iter().collect();
        let expected: Vec<&Finding> = expected.problems.iter().filter(in_memory).collect();
        assert_eq!(found, expected, "seed {seed}");
    }
}

#[test]
fn a_damaged_page_is_found_wherever_it_is() {
    let mem = Arc::new(Mem::new(32 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    Fs::format(Arc::clone(&device), "").unwrap();
    let fs = open(&device);
    let main = fs.fileset_named(FIRST_FILESET).unwrap();
    let new = New::of_root(FileType::File, 0o644);
    for i in 0..2000 {
        main.create(ROOT, format!("file {i}").as_bytes(), &new)
            .unwrap();
    }
    fs.commit().unwrap();
    assert!(check(&fs).report.is_clean());
    let segments = fs.superblock().segments;
    let blocks = segments.iter().flat_map(|s| s.start..s.run().end());
    let mut found = 0;
    for block in blocks.filter(|block| block % 3 == 0) {
        let at = block * BLOCK_BYTES + 300;
        let mut before = [0];
        mem.peek(at, &mut before);
        mem.poke(at, &[before[0] ^ 0x10]);
        let report = check(&fs).report;
        mem.poke(at, &before);
        let kinds = || report.problems.iter().map(|finding| finding.kind);
        assert!(
            kinds().all(|kind| kind == FindingKind::Pages),
            "{report:#?}"
        );
        found += report.problem_count;
    }
    // An inode and an entry for each file take some 100 pages, of which a third was damaged.
    assert!(found > 25, "{found}");
    assert!(check(&fs).report.is_clean());
}

#[test]
fn orphaned_space_is_returned_while_the_file_system_is_in_use() {
    let device = sample();
    let fs = open(&device);
    let free = fs.usage().free;
    let mut op = Op::locked(fs.inner(), 0).unwrap();
    // Where the metadata does not grow.
    let end = op.space().unused().last().unwrap().end();
    let run = Run {
        start: end - 10,
        blocks: 10,
    };
    op.items.note_space(&[SpaceChange { run, used: true }]);
    op.finish();
    fs.close().unwrap();
    // From here on, the allocator has the blocks in use, too.
    let fs = open(&device);
    assert_eq!(fs.usage().free, free - 10);
    let found = check(&fs);
    assert_eq!(
        (found.report.problem_count, found.report.orphaned_blocks),
        (1, 10)
    );
    assert!(found.has_orphaned());
    assert_eq!(fs.return_orphaned(&found).unwrap(), 10);
    assert!(check(&fs).report.is_clean());
    assert_eq!(
        fs.return_orphaned(&found).unwrap_err().kind(),
        Kind::Corrupt
    );
    fs.close().unwrap();
    let fs = open(&device);
    assert_eq!(fs.usage().free, free);
    assert!(fs.check().unwrap().is_clean());
}

#[test]
fn space_is_not_returned_if_a_record_that_cannot_be_read_may_refer_to_it() {
    let fs = open(&sample());
    let main = main(&fs);
    let mut op = Op::locked(fs.inner(), main).unwrap();
    let (key, _) = first(&op, main, Item::Extent);
    op.put_key(key, vec![1], Prior::Possible);
    op.finish();
    let found = check(&fs);
    assert!(found.report.orphaned_blocks > 0 && !found.has_orphaned());
}

#[test]
fn a_check_that_is_stopped_is_an_error_and_the_next_one_is_not() {
    let fs = open(&sample());
    let pace = Arc::new(Pace::new(None));
    let stopped = fs.check_online(&pace, &mut |_, _| pace.stop());
    assert_eq!(stopped.unwrap_err().kind(), Kind::Busy);
    assert!(check(&fs).report.is_clean());
}

#[test]
fn changes_that_only_the_journal_has_are_checked_when_opened_read_only() {
    let mem = Arc::new(Mem::new(16 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    Fs::format(Arc::clone(&device), "").unwrap();
    let fs = open(&device);
    let main = fs.fileset_named(FIRST_FILESET).unwrap();
    let new = New::of_root(FileType::File, 0o644);
    main.create(ROOT, b"file", &new).unwrap();
    fs.sync().unwrap();
    let copy = Mem::new(16 << 20, 512);
    copy.poke(0, &mem.to_vec());
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let fs = Fs::open(Arc::new(copy), options).unwrap();
    let report = check(&fs).report;
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!((report.inodes, report.entries), (2, 1));
}
