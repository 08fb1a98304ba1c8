//! Images that somebody has changed: a clear error, or a file system that can be used; never a panic
//! of ours, never a hang, never memory without bound; and what the check calls clean can be used.
//!
//! `EVFS_IMAGES` is the number of images with changed metadata.

mod common;

use block::{BlockDevice, Mem, Random};
use common::pair::{Pair, describe};
use common::{amount, format, open, options, seed};
use fs::{FIRST_FILESET, Fs, Kind, SUPERBLOCK_BYTES};
use std::sync::Arc;

/// A file system with something of everything in it.
fn sample() -> Mem {
    let mem = Arc::new(Mem::new(16 << 20, 512));
    let device: Arc<dyn BlockDevice> = mem.clone();
    format(&device);
    let mut pair = Pair::new(open(&device), 9);
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

/// Uses whatever opens, as far as it goes.
fn exercise(image: Mem) -> Result<bool, Kind> {
    let device: Arc<dyn BlockDevice> = Arc::new(image);
    let fs = Fs::open(device, options()).map_err(|e| e.kind())?;
    let clean = match fs.check() {
        Ok(report) => report.is_clean(),
        Err(error) => return Err(error.kind()),
    };
    if clean {
        // Then it can be used as if nothing had happened, by key as well as by scan.
        let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
        describe(&main);
        fs.create_fileset("another").expect("it can be changed");
        fs.close().expect("it closes");
    } else {
        // Damage may be found only now.
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

#[test]
fn changed_metadata_is_an_error_and_not_a_panic() {
    let sample = sample();
    let fs = open(&(Arc::new(sample.fork()) as Arc<dyn BlockDevice>));
    let segments = fs.superblock().segments;
    drop(fs);
    let mut random = Random::new(seed(2));
    let mut noticed = 0;
    let images = amount("EVFS_IMAGES", 200);
    for _ in 0..images {
        let image = sample.fork();
        for _ in 0..1 + random.below(8) {
            let segment = segments[random.below(segments.len() as u64) as usize];
            let blocks = u64::from(segment.blocks).min(160);
            let at = (segment.start + random.below(blocks)) * 4096 + random.below(4096);
            image.poke(
                at,
                &random.next_u64().to_le_bytes()[..1 + random.below(8) as usize],
            );
        }
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
