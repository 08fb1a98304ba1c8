//! The file system compared with a model.
//!
//! Goal: every operation has the same result as in the model, and everything reads back, also after
//! the file system was closed and reopened. Method: random operations on few names and small files,
//! so that they conflict; the errno is compared after each, single inodes now and then, everything
//! and `check` at each close. Snapshots are taken, read, compared with one another, cloned and
//! removed while files are open and written, and the fileset is rolled back to one now and then.
//!
//! Files belong to several users and groups. In every second test, limits of them come and go; the use
//! of each owner is compared with the model.
//!
//! `EVFS_OPERATIONS` is the number of operations of each test. Each has a seed of its own.

mod common;

use block::BlockDevice;
use block_testing::Mem;
use common::owners::{self, Owners};
use common::pair::Pair;
use common::snapshots::Snapshots;
use common::{amount, assert_clean, format, open, seed};
use fs::Compression;
use std::sync::Arc;

/// Operations between two reopenings.
const STEPS: usize = 1000;

/// Steps between two uses of snapshots.
const SNAPSHOT_STEPS: usize = 250;

/// Runs the operations of one seed; `part` makes it differ from those of other tests.
fn run(part: u64) {
    let rounds = amount("EVFS_OPERATIONS", 8_000).div_ceil(STEPS);
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
    format(&device);
    let mut pair = Pair::new(open(&device), seed(1).wrapping_add(part));
    // Files with a flag are compressed in all parts.
    if let Some(method) = [Some(Compression::Lz4), Some(Compression::Zstd), None][part as usize % 3]
    {
        let id = pair.fileset().id();
        pair.fs.set_compression(id, Some(method)).expect("set");
    }
    let (mut snapshots, mut chunks) = (Snapshots::default(), 0);
    // Half of the tests have limits of users and groups, which refuse operations.
    let mut refused = 0;
    let mut limited = (part % 2 == 1).then(Owners::default);
    pair.lenient = limited.is_some();
    for round in 0..rounds {
        for step in 0..STEPS {
            pair.step();
            if step % SNAPSHOT_STEPS == 0 {
                snapshots.step(&mut pair);
                if let Some(owners) = &mut limited {
                    owners.step(&mut pair);
                }
            }
        }
        let context = format!("round {round}");
        if round % 3 == 0 {
            pair.fs.sync().expect("it syncs");
            assert_clean(&pair.fs, &context);
        }
        pair.release_all();
        pair.compare_all();
        if round % 2 == 1 {
            snapshots.roll_back(&mut pair);
            if let Some(owners) = &mut limited {
                owners.note(&pair);
            }
        }
        pair.client
            .write_all_out(&mut pair.random)
            .expect("it writes out");
        pair.compare_all();
        assert_clean(&pair.fs, &context);
        owners::compare(&pair);
        refused += pair.refused.get();
        chunks += pair.fs.check().expect("checked").chunks;
        pair = reopen(pair, &device);
        pair.lenient = limited.is_some();
        pair.compare_all();
        owners::compare(&pair);
        snapshots.compare_all(&pair.fs);
        assert_clean(&pair.fs, &context);
    }
    assert_eq!(
        refused > 0,
        limited.is_some(),
        "{refused} operations were refused"
    );
    assert!(chunks > 0, "nothing was compressed");
}

fn reopen(pair: Pair, device: &Arc<dyn BlockDevice>) -> Pair {
    let Pair {
        fs,
        client,
        model,
        inodes,
        random,
        ..
    } = pair;
    drop(client);
    fs.close().expect("it closes");
    let mut pair = Pair::new(open(device), 0);
    (pair.model, pair.inodes, pair.random) = (model, inodes, random);
    pair
}

/// Tests of the same kind, which run at the same time.
macro_rules! parts {
    ($($name:ident: $part:literal,)*) => {
        mod every_operation_gives_what_the_model_gives {
            $(
                #[test]
                fn $name() {
                    super::run($part);
                }
            )*
        }
    };
}

parts! {
    part_0: 0,
    part_1: 1,
    part_2: 2,
    part_3: 3,
    part_4: 4,
    part_5: 5,
    part_6: 6,
    part_7: 7,
}
