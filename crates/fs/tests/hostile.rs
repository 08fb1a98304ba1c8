//! Manipulated images: the result is a clear error or a usable file system; never a panic, a hang
//! or unbounded memory; and a file system that the check reports as clean can be used.
//!
//! `EVFS_IMAGES` is the number of images with changed metadata.

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random};
use common::pair::{Pair, describe};
use common::{amount, format, format_with, keyed, open, options, seed};
use fs::{DataChecksums, FIRST_FILESET, Fs, Kind, Options, SUPERBLOCK_BYTES};
use std::sync::Arc;

/// Returns a file system that contains objects of every kind.
fn sample() -> Mem {
    sample_of(9)
}

/// Returns a file system with other objects for each seed.
fn sample_of(seed: u64) -> Mem {
    sample_by(seed, format)
}

fn sample_by(seed: u64, format: impl Fn(&Arc<dyn BlockDevice>)) -> Mem {
    let mem = Arc::new(Mem::new(16 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format(&device);
    let mut pair = Pair::new(open(&device), seed);
    for _ in 0..1500 {
        pair.step();
    }
    pair.client
        .write_all_out(&mut pair.random)
        .expect("written");
    let id = pair.fileset().id();
    pair.fs.snapshot(id, "then").expect("a snapshot");
    for _ in 0..300 {
        pair.step();
    }
    pair.release_all();
    pair.client
        .write_all_out(&mut pair.random)
        .expect("written");
    let Pair { fs, client, .. } = pair;
    drop(client);
    fs.close().expect("closed");
    mem.fork()
}

/// Opens and uses an image as far as possible. Returns whether the check found it clean.
fn exercise(image: Mem) -> Result<bool, Kind> {
    let device: Arc<dyn BlockDevice> = Arc::new(image);
    let fs = Fs::open(keyed(&device), options()).map_err(|e| e.kind())?;
    let clean = match fs.check() {
        Ok(report) => report.is_clean(),
        Err(error) => return Err(error.kind()),
    };
    if clean {
        // It can be used like an undamaged one, by key as well as by scan.
        let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
        describe(&main);
        fs.create_fileset("another").expect("it can be changed");
        fs.close().expect("it closes");
    } else {
        // The damage may be detected only now.
        let _ = fs.create_fileset("another");
        let _ = fs.close();
    }
    Ok(clean)
}

#[test]
fn changed_superblocks_are_refused_or_the_other_copy_serves() {
    let sample = sample();
    let mut random = Random::new(seed(1));
    let mut refused = 0;
    for _ in 0..300 {
        let image = sample.fork();
        for copy in [0, (1 << 20) - SUPERBLOCK_BYTES as u64] {
            for _ in 0..random.below(3) {
                let at = copy + random.below(400);
                image.poke(at, &[random.next_u64() as u8]);
            }
        }
        if let Err(kind) = exercise(image) {
            assert!(matches!(kind, Kind::Corrupt | Kind::Invalid), "{kind:?}");
            refused += 1;
        }
    }
    assert!(refused > 50, "{refused}");
}

fn content(image: &Mem) -> Vec<u8> {
    let mut bytes = vec![0; 16 << 20];
    image.peek(0, &mut bytes);
    bytes
}

/// Changes random bytes of the metadata.
fn damage(image: &Mem, segments: &[fs::Segment], random: &mut Random) {
    for _ in 0..1 + random.below(8) {
        let segment = segments[random.below(segments.len() as u64) as usize];
        let blocks = u64::from(segment.blocks).min(160);
        let at = (segment.start + random.below(blocks)) * 4096 + random.below(4096);
        let bytes = random.next_u64().to_le_bytes();
        image.poke(at, &bytes[..1 + random.below(8) as usize]);
    }
}

/// Repairs the file system; a snapshot that remains inconsistent is removed. Returns whether none
/// had to be removed, or `None` if the page that leads to all files is lost.
fn repair_all(fs: &Fs, context: &str) -> Option<bool> {
    let repair = match fs.repair() {
        Err(error) if error.to_string().contains("contains no files") => {
            println!("{context}: {error}");
            return None;
        }
        repair => repair.unwrap_or_else(|error| panic!("{context}: {error:?}")),
    };
    let left = &repair.left.problems;
    if repair.left.is_clean() {
        return Some(true);
    }
    let of_snapshot = |problem: &fs::Finding| problem.fileset.as_deref() == Some("then");
    assert!(left.iter().all(of_snapshot), "{context}: {left:#?}");
    let then = fs.fileset_named("then").expect("the snapshot").id();
    let removed = fs.remove_fileset(then);
    removed.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    let report = fs.check().expect("checked");
    assert!(report.is_clean(), "{context}: {:#?}", report.problems);
    Some(false)
}

#[test]
fn a_power_cut_while_the_metadata_is_rebuilt_leaves_something_to_repair_or_nothing() {
    let sample = sample();
    let fs = open(&(Arc::new(sample.fork()) as Arc<dyn BlockDevice>));
    let segments = fs.superblock().segments;
    drop(fs);
    let seed = seed(4);
    let (mut recorded, mut round) = (0, 0);
    while recorded < 2 {
        round += 1;
        let image = sample.fork();
        damage(&image, &segments, &mut Random::new(seed + round));
        let disk = Arc::new(PowerCut::new(&image));
        let device: Arc<dyn BlockDevice> = disk.clone();
        let Ok(fs) = Fs::open(keyed(&device), options()) else {
            continue;
        };
        if fs.check().is_ok_and(|report| report.is_clean()) {
            continue;
        }
        let context = format!("EVFS_SEED={}", seed + round);
        if repair_all(&fs, &context).is_none() {
            continue;
        }
        fs.close().expect("closed");
        recorded += 1;
        for crash in disk.images(seed, 20) {
            let context = format!("{context}, {crash}");
            let device: Arc<dyn BlockDevice> = Arc::new(crash.image);
            let fs = Fs::open(keyed(&device), options());
            let fs = fs.unwrap_or_else(|error| panic!("{context}: {error:?}"));
            assert!(repair_all(&fs, &context).is_some(), "{context}");
            fs.close().expect("closed");
            let fs = open(&device);
            let report = fs.check().expect("checked");
            assert!(report.is_clean(), "{context}: {:#?}", report.problems);
        }
    }
}

#[test]
fn the_readable_part_of_damaged_metadata_is_rebuilt() {
    let sample = sample();
    let fs = open(&(Arc::new(sample.fork()) as Arc<dyn BlockDevice>));
    let segments = fs.superblock().segments;
    drop(fs);
    let seed = seed(3);
    let (mut damaged, mut repaired, mut without) = (0, 0, 0);
    for round in 0..amount("EVFS_IMAGES", 100) as u64 {
        let context = format!("EVFS_SEED={}", seed + round);
        let image = Arc::new(sample.fork());
        damage(&image, &segments, &mut Random::new(seed + round));
        let device: Arc<dyn BlockDevice> = image.clone();
        let rescue = Options {
            rescue: true,
            ..options()
        };
        let fs = match Fs::open(keyed(&device), rescue) {
            Ok(fs) => fs,
            Err(error) => {
                println!("{context}: it does not open: {error}");
                damaged += 1;
                continue;
            }
        };
        if fs.check().is_ok_and(|report| report.is_clean()) {
            continue;
        }
        damaged += 1;
        let before = content(&image);
        let Some(whole) = repair_all(&fs, &context) else {
            assert!(content(&image) == before, "{context}: it was changed");
            continue;
        };
        without += u32::from(!whole);
        let fileset = |fs: &Fs| {
            let main = fs.fileset_named(FIRST_FILESET);
            main.unwrap_or_else(|error| panic!("{context}: {error}: {:?}", fs.filesets()))
        };
        let left = describe(&fileset(&fs));
        fs.close()
            .unwrap_or_else(|error| panic!("{context}: {error:?}"));
        let fs = open(&device);
        let report = fs.check().expect("checked");
        assert!(report.is_clean(), "{context}: {:#?}", report.problems);
        assert_eq!(describe(&fileset(&fs)), left, "{context}");
        fs.create_fileset("another").expect("it can be changed");
        fs.close().expect("closed");
        repaired += 1;
    }
    println!(
        "{repaired} of {damaged} damaged images opened and were repaired, {without} without the snapshot"
    );
    assert!(repaired * 2 > damaged, "{repaired} of {damaged}");
}

/// Changes the length of a child in a branch page of `redb`. The page consists of its type, the
/// number of keys, 16 bytes of checksum for each child, and the children's numbers, whose upper 5
/// bits encode their length.
fn lengthen_a_child(image: &Mem, page: u64) -> bool {
    const BRANCH: u8 = 2;
    let mut bytes = [0; 4096];
    image.peek(page, &mut bytes);
    let children = usize::from(u16::from_le_bytes([bytes[2], bytes[3]])) + 1;
    let at = 8 + 16 * children + 8 + 7;
    if bytes[0] != BRANCH || children < 3 || at > 4000 {
        return false;
    }
    let long = 10 << 3;
    image.poke(page + at as u64, &[bytes[at] & 7 | long]);
    true
}

#[test]
fn a_page_that_would_be_longer_than_all_others_is_damage_and_no_failed_device() {
    // A sample has few branch pages, and most of them belong to older commits. With keyed checksums,
    // the page would be zeros for `redb`, and its lengths would not be interpreted.
    let (mut changed, mut repaired) = (0, 0);
    for seed in 9..17 {
        let sample = sample_by(seed, |device| format_with(device, DataChecksums::Yes));
        let fs = open(&(Arc::new(sample.fork()) as Arc<dyn BlockDevice>));
        let segments = fs.superblock().segments;
        assert!(fs.superblock().metadata_bytes < 4 << 20);
        drop(fs);
        let pages = segments
            .iter()
            .flat_map(|s| s.start..s.start + u64::from(s.blocks));
        for page in pages {
            let image = sample.fork();
            if lengthen_a_child(&image, page * 4096) {
                changed += 1;
                let context = format!("seed {seed}, page {page}");
                repaired += usize::from(opens_and_is_repaired(image, &context));
            }
        }
    }
    println!("{repaired} of {changed}");
    assert!(repaired > 0, "{changed}");
}

/// Opens a damaged image and repairs it; afterwards it must be clean. `false`: it does not open, the
/// damage is in a page of an older commit, or the page that leads to all files is lost.
fn opens_and_is_repaired(image: Mem, context: &str) -> bool {
    let device: Arc<dyn BlockDevice> = Arc::new(image);
    let rescue = Options {
        rescue: true,
        ..options()
    };
    let Ok(fs) = Fs::open(keyed(&device), rescue) else {
        return false;
    };
    let is_clean = fs.check().is_ok_and(|report| report.is_clean());
    if is_clean || repair_all(&fs, context).is_none() {
        return false;
    }
    fs.close().expect("closed");
    let fs = open(&device);
    let report = fs.check().expect("checked");
    assert!(report.is_clean(), "{context}: {:#?}", report.problems);
    let main = fs.fileset_named(FIRST_FILESET);
    describe(&main.expect("the first fileset"));
    true
}

#[test]
fn changed_metadata_is_an_error_and_not_a_panic() {
    let sample = sample();
    let fs = open(&(Arc::new(sample.fork()) as Arc<dyn BlockDevice>));
    let segments = fs.superblock().segments;
    drop(fs);
    let mut random = Random::new(seed(2));
    let mut noticed = 0;
    let images = amount("EVFS_IMAGES", 100);
    for _ in 0..images {
        let image = sample.fork();
        damage(&image, &segments, &mut random);
        match exercise(image) {
            Ok(clean) => noticed += usize::from(!clean),
            Err(kind) => {
                assert!(
                    matches!(kind, Kind::Corrupt | Kind::Io | Kind::NoSpace),
                    "{kind:?}"
                );
                noticed += 1;
            }
        }
    }
    assert!(noticed > images / 4, "{noticed} of {images}");
}
