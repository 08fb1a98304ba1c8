//! Random damage of every kind to single records, and the state after the repair.

use crate::check::FindingKind;
use crate::data::content::Allocate;
use crate::error::Kind;
use crate::fileset::Fileset;
use crate::format::flags::InodeFlags;
use crate::format::key::{Item, Key, Section};
use crate::format::record::{Extent, FileType, Run, SharedRun};
use crate::format::superblock::Segment;
use crate::fs::{FIRST_FILESET, Fs};
use crate::metadata::database::SpaceChange;
use crate::metadata::op::Op;
use crate::metadata::overlay::Prior;
use crate::metadata::shared::Options;
use crate::names::attributes::SetXattr;
use crate::names::directory::{New, ROOT};
use crate::scrub::ScrubPosition;
use block::BlockDevice;
use block_testing::{Mem, Random};
use std::sync::Arc;

fn new(kind: FileType) -> New {
    New {
        uid: 1,
        gid: 2,
        ..New::of_root(kind, 0o755)
    }
}

pub(in crate::check) fn open(device: &Arc<dyn BlockDevice>) -> Fs {
    Fs::open(Arc::clone(device), Options::default()).unwrap()
}

fn main(fs: &Fs) -> Fileset {
    fs.fileset_named(FIRST_FILESET).unwrap()
}

/// Returns a device with a few directories, each containing an object of every kind.
pub(in crate::check) fn sample() -> Arc<dyn BlockDevice> {
    sample_on(&Arc::new(Mem::new(16 << 20, 512)))
}

fn sample_on(mem: &Arc<Mem>) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = mem.clone();
    Fs::format(Arc::clone(&device), "").unwrap();
    let fs = open(&device);
    let main = main(&fs);
    let mut dir = ROOT;
    for level in 0..5 {
        let name = |what: &str| format!("{what} {level}").into_bytes();
        for i in 0..4 {
            let file = main
                .create(dir, &name(&format!("file {i}")), &new(FileType::File))
                .unwrap()
                .ino;
            for part in 0..3 {
                let at = (part * 7 + i) * 4096;
                main.allocate(file, at..at + 9000, Allocate::Grow).unwrap();
            }
            main.set_xattr(file, b"user.a", b"value", SetXattr::Any)
                .unwrap();
            main.link(file, ROOT, &name(&format!("link {i}"))).unwrap();
        }
        main.symlink(dir, &name("symlink"), b"target", 1, 1)
            .unwrap();
        main.create(dir, &name("fifo"), &new(FileType::Fifo))
            .unwrap();
        dir = main
            .create(dir, &name("dir"), &new(FileType::Directory))
            .unwrap()
            .ino;
    }
    fs.close().unwrap();
    device
}

/// Returns all items of a layer.
fn records(op: &Op, layer: u32) -> Vec<(Key, Vec<u8>)> {
    let mut all = Vec::new();
    let (from, to) = Key::layer(layer);
    op.items
        .scan(from, to, |key, bytes| {
            all.push((key, bytes.to_vec()));
            Ok(true)
        })
        .unwrap();
    all
}

pub(in crate::check) fn damage(op: &mut Op, layer: u32, random: &mut Random) {
    let all = records(op, layer);
    let (key, mut value) = all[random.below(all.len() as u64) as usize].clone();
    match random.below(8) {
        0 | 1 => op.delete_key(key),
        2..=4 => {
            for _ in 0..1 + random.below(3) {
                if !value.is_empty() {
                    let at = random.below(value.len() as u64) as usize;
                    value[at] = random.next_u64() as u8;
                }
            }
            op.put_key(key, value, Prior::Possible);
        }
        5 => {
            // The same record at another place.
            let other = all[random.below(all.len() as u64) as usize].0;
            let item = Item::ALL[random.below(6) as usize];
            let place = random.below(3) * random.below(20_000);
            op.put_key(
                Key::item(layer, other.object, item, place),
                value,
                Prior::Possible,
            );
        }
        6 => {
            let shared = SharedRun {
                blocks: 1 + random.below(20) as u32,
                count: 2 + random.below(3) as u32,
            };
            let at = Key::global(Section::Shared, 1000 + random.below(500));
            op.put_key(at, shared.encode(), Prior::Possible);
        }
        _ => {
            let tree = op.trees.get_mut(&layer).unwrap();
            tree.record.used_blocks = random.below(1000);
            tree.record.next_ino = 1 + random.below(30);
            tree.changed = true;
            let free = op.space().unused();
            let run = Run {
                start: free[0].start,
                blocks: 1,
            };
            let used = true;
            op.items.note_space(&[SpaceChange { run, used }]);
        }
    }
}

#[test]
fn lost_checksums_are_computed_again_and_invalid_ones_removed() {
    let device = sample();
    let fs = open(&device);
    let main = main(&fs);
    let file = main
        .create(ROOT, b"written", &new(FileType::File))
        .unwrap()
        .ino;
    main.allocate(file, 0..200 * 4096, Allocate::Grow).unwrap();
    let mut op = Op::locked(fs.inner(), main.id()).unwrap();
    // Written blocks, the records of whose checksums are lost.
    op.set_written(main.id(), file, 0..200).unwrap();
    op.finish();
    let found = fs.check().unwrap();
    assert!(found.is_clean(), "{:#?}", found.problems);
    assert_eq!(found.unverified_blocks, 200);
    let mut op = Op::locked(fs.inner(), main.id()).unwrap();
    for (number, len) in [(1, 255), (u64::MAX, 256)] {
        let key = Key::global(Section::Sums, number);
        op.put_key(key, vec![1; len], Prior::Possible);
    }
    op.finish();
    assert_eq!(fs.check().unwrap().problem_count, 2);
    let repair = fs.repair().unwrap();
    assert!(repair.left.is_clean(), "{:#?}", repair.left);
    assert_eq!((repair.done_count, repair.left.unverified_blocks), (3, 0));
    let kinds = [FindingKind::Record, FindingKind::Record, FindingKind::Data];
    assert!(repair.done.iter().map(|done| done.kind).eq(kinds));
    let mut report = repair.left;
    fs.check_data(&mut report, &mut |_, _| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

#[test]
fn data_is_compared_beside_invalid_extents_and_after_their_repair() {
    let fs = open(&sample());
    let main = main(&fs);
    let [bad, good] = [b"badd", b"good"].map(|name| {
        let made = main.create(ROOT, name, &new(FileType::File)).unwrap();
        let all = 0..8 * 4096;
        main.allocate(made.ino, all, Allocate::Grow).unwrap();
        made.ino
    });
    let mut op = Op::locked(fs.inner(), main.id()).unwrap();
    op.set_written(main.id(), good, 0..8).unwrap();
    let extents = op.extents(main.id(), good, 0..8).unwrap();
    // Not those of zeros.
    op.set_sums(extents[0].1.run(), &[7; 8]);
    let outside = Extent {
        start: 1 << 30,
        blocks: 8,
        unwritten: false,
        tail: 0,
    };
    let key = Key::item(main.id(), bad, Item::Extent, 0);
    op.put_key(key, outside.encode(), Prior::Possible);
    op.finish();
    let refused = fs.scrub(ScrubPosition::START, 1 << 20).unwrap_err();
    assert_eq!(refused.kind(), Kind::Corrupt);
    let mut found = fs.check().unwrap();
    let invalid = found.problem_count;
    assert!(invalid > 0);
    fs.check_data(&mut found, &mut |_, _| {}).unwrap();
    assert_eq!(found.problem_count, invalid + 1, "{:#?}", found.problems);
    let mut left = fs.repair().unwrap().left;
    assert!(left.is_clean(), "{:#?}", left.problems);
    fs.check_data(&mut left, &mut |_, _| {}).unwrap();
    let kinds = left.problems.iter().map(|finding| finding.kind);
    assert!(kinds.eq([FindingKind::Data]), "{:#?}", left.problems);
}

#[test]
fn whatever_is_wrong_with_records_is_put_right_and_stays_so() {
    let seed = std::env::var("EVFS_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    println!("EVFS_SEED={seed}");
    let whole = sample();
    let mut image = vec![0; 16 << 20];
    let mut blocking = block::Blocking::open(&*whole).unwrap();
    blocking.read_at(0, &mut image).unwrap();
    let mut repaired = 0;
    for round in 0..150 {
        let mut random = Random::new(seed + round);
        let mem = Mem::new(16 << 20, 512);
        mem.poke(0, &image);
        let device: Arc<dyn BlockDevice> = Arc::new(mem);
        let fs = open(&device);
        let id = main(&fs).id();
        let mut op = Op::locked(fs.inner(), id).unwrap();
        for _ in 0..1 + random.below(6) {
            damage(&mut op, id, &mut random);
        }
        op.finish();
        let found = fs.check().unwrap();
        let repair = fs
            .repair()
            .unwrap_or_else(|e| panic!("seed {}: {e:?}", seed + round));
        assert_eq!(
            found.is_clean(),
            repair.done_count == 0,
            "seed {}: {:#?}\n{:#?}",
            seed + round,
            found.problems,
            repair.done
        );
        assert!(
            repair.left.is_clean(),
            "seed {}: {:#?}\n{:#?}",
            seed + round,
            repair.done,
            repair.left
        );
        repaired += repair.done_count;
        let again = fs.repair().unwrap();
        assert_eq!(
            again.done_count,
            0,
            "seed {}: {:#?}",
            seed + round,
            again.done
        );
        fs.close().unwrap();
        let fs = open(&device);
        let left = fs.check().unwrap();
        assert!(left.is_clean(), "seed {}: {left:#?}", seed + round);
        let made = main(&fs)
            .create(ROOT, b"new", &new(FileType::File))
            .unwrap();
        main(&fs)
            .allocate(made.ino, 0..1 << 20, Allocate::Grow)
            .unwrap();
        fs.commit().unwrap();
        assert!(fs.check().unwrap().is_clean(), "seed {}", seed + round);
    }
    assert!(repaired > 150, "{repaired}");
}

#[test]
fn a_sound_file_system_is_left_alone() {
    let device = sample();
    let fs = open(&device);
    let before = records(&Op::locked(fs.inner(), 1).unwrap(), 1);
    let mut told = Vec::new();
    let repair = fs
        .repair_with(&mut |done, total| told.push((done, total)))
        .unwrap();
    assert!(
        told.windows(2)
            .all(|w| w[0].0 <= w[1].0 && w[0].1 == w[1].1)
    );
    assert!(told.len() > 5 && told.last().is_some_and(|(done, total)| done == total));
    assert_eq!(
        (repair.done_count, repair.left.is_clean()),
        (0, true),
        "{:#?}",
        repair.done
    );
    assert!(records(&Op::locked(fs.inner(), 1).unwrap(), 1) == before);
}

#[test]
fn a_file_that_lost_its_name_is_found_with_its_blocks() {
    let device = sample();
    let fs = open(&device);
    let main = main(&fs);
    let ino = main.lookup(ROOT, b"file 1 0").unwrap().ino;
    let mut op = Op::locked(fs.inner(), main.id()).unwrap();
    for (key, value) in records(&op, main.id()) {
        let names_it = key.kind() == Some(Item::Entry) && value.starts_with(&ino.to_le_bytes());
        if names_it {
            op.delete_key(key);
        }
    }
    op.finish();
    let before = main.attr(ino).unwrap().inode.blocks;
    let repair = fs.repair().unwrap();
    assert!(repair.left.is_clean(), "{:#?}", repair.left.problems);
    let lost = main.lookup(ROOT, b"lost+found").unwrap().ino;
    let found = main.lookup(lost, format!("#{ino}").as_bytes()).unwrap();
    assert_eq!(
        (found.ino, found.inode.blocks, found.inode.links),
        (ino, before, 1)
    );
    let path = format!("/lost+found/#{ino}");
    let said = repair.done.iter().find(|done| done.inode == Some(ino));
    let said = said.expect("it is listed");
    assert_eq!(said.fileset.as_deref(), Some(FIRST_FILESET));
    assert_eq!(said.path, Some(path));
}

/// A newer version may have set them: they are no damage, and a repair keeps them.
#[test]
fn unknown_flags_are_noted_and_kept() {
    let device = sample();
    let fs = open(&device);
    let main = main(&fs);
    assert!(fs.check().unwrap().notes.is_empty());
    let known = InodeFlags::NO_DUMP.with(InodeFlags::IMMUTABLE);
    let dir = main.lookup(ROOT, b"dir 0").unwrap().ino;
    // It has a single name, unlike the files.
    let below = main.lookup(dir, b"dir 1").unwrap().ino;
    let fifo = main.lookup(dir, b"fifo 1").unwrap().ino;
    let mut op = Op::locked(fs.inner(), main.id()).unwrap();
    op.change(dir, |inode| inode.flags = known).unwrap();
    let unknown = InodeFlags(0x8000_0100).with(known);
    op.change(below, |inode| inode.flags = unknown).unwrap();
    // Of this type, the field is a device number.
    op.change(fifo, |inode| inode.rdev = unknown.0).unwrap();
    op.finish();

    let check = |report: &crate::Report| {
        assert!(report.is_clean(), "{:#?}", report.problems);
        let notes: Vec<String> = report.notes.iter().map(ToString::to_string).collect();
        let expected = format!(
            "`{FIRST_FILESET}`: inode {below} (/dir 0/dir 1): has unknown flags 0x80000100, \
             which have no effect"
        );
        assert_eq!(notes, [expected]);
    };
    check(&fs.check().unwrap());
    let repair = fs.repair().unwrap();
    assert_eq!(repair.done_count, 0, "{:#?}", repair.done);
    check(&repair.left);
    assert_eq!(main.attr(below).unwrap().inode.flags, unknown);
    assert_eq!(main.attr(dir).unwrap().inode.flags, known);
}

/// Returns the segments of the superblock, even if the file system only opens as a rescue.
fn segments(device: &Arc<dyn BlockDevice>) -> Vec<Segment> {
    let rescue = Options {
        rescue: true,
        read_only: true,
        ..Options::default()
    };
    let fs = Fs::open(Arc::clone(device), rescue).unwrap();
    fs.superblock().segments
}

/// Invalidates the checksums of children in the branches of `redb`, but nothing that a reader
/// needs.
fn damage_branches(mem: &Mem, segments: &[Segment]) {
    const BRANCH: u8 = 2;
    let mut changed = 0;
    for block in segments.iter().flat_map(|s| s.start..s.run().end()) {
        let mut page = [0; 9];
        mem.peek(block * 4096, &mut page);
        if page[0] == BRANCH {
            mem.poke(block * 4096 + 8, &[!page[8]]);
            changed += 1;
        }
    }
    assert!(changed > 0);
}

#[test]
fn a_fileset_whose_record_is_lost_comes_back_with_its_files_and_snapshots() {
    let cases = [
        (false, false, false),
        (false, true, false),
        (true, true, false),
        (true, true, true),
    ];
    for (damaged, with_snapshot, damaged_pages) in cases {
        let mem = Arc::new(Mem::new(16 << 20, 512));
        let device = sample_on(&mem);
        let fs = open(&device);
        let (id, name) = (main(&fs).id(), b"file 1 0");
        if with_snapshot {
            // Most of the device belongs to the snapshot alone.
            let ino = main(&fs).lookup(ROOT, name).unwrap().ino;
            main(&fs)
                .allocate(ino, 0..12 << 20, Allocate::Grow)
                .unwrap();
            fs.snapshot(id, "then").unwrap();
            main(&fs).unlink(ROOT, name).unwrap();
        }
        let other = fs.create_fileset("other").unwrap().id();
        let before = records(&Op::locked(fs.inner(), id).unwrap(), id);
        fs.commit().unwrap();
        let mut op = Op::locked(fs.inner(), id).unwrap();
        for id in [id, other] {
            let key = Key::global(Section::Trees, id.into());
            if damaged {
                op.put_key(key, vec![7; 9], Prior::Possible)
            } else {
                op.delete_key(key)
            }
        }
        op.delete_key(Key::global(Section::NextTree, 0));
        let kept = records(&op, 2);
        op.finish();
        fs.close().unwrap();
        if damaged_pages {
            damage_branches(&mem, &segments(&device));
        }

        let rescue = Options {
            rescue: true,
            ..Options::default()
        };
        let fs = Fs::open(Arc::clone(&device), rescue).unwrap();
        assert!(fs.fileset_named(FIRST_FILESET).is_err());
        assert!(!fs.check().unwrap().is_clean());
        let repair = fs.repair().unwrap();
        assert!(repair.left.is_clean(), "{:#?}", repair.left.problems);
        let anew = repair.done.iter().any(|f| f.kind == FindingKind::Pages);
        assert_eq!(anew, damaged_pages);
        fs.close().unwrap();

        let fs = open(&device);
        let again = fs.repair().unwrap();
        assert_eq!(again.done_count, 0, "{:#?}", again.done);
        assert_eq!(main(&fs).id(), id);
        assert!(records(&Op::locked(fs.inner(), id).unwrap(), id) == before);
        // The name of this one could not be recovered.
        let found = fs.fileset_named(&format!("found-{other}")).unwrap();
        assert_eq!(found.id(), other);
        if with_snapshot {
            // If its extents were not recovered, the new metadata would be placed on top of them.
            assert!(records(&Op::locked(fs.inner(), 2).unwrap(), 2) == kept);
            let then = fs.fileset_named("then").unwrap();
            assert!(then.lookup(ROOT, name).is_ok());
            assert!(main(&fs).lookup(ROOT, name).is_err());
        }
        let new = fs.create_fileset("new").unwrap().id();
        assert!(new > other, "{new}");
    }
}
