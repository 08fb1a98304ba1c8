//! The file system compared with a model.
//!
//! Goal: every operation has the same result as in the model, and everything reads back, also after
//! the file system was closed and reopened. Method: random operations on few names and small files,
//! so that they conflict; the errno is compared after each, single inodes now and then, everything
//! and `check` at each close.
//!
//! `EVFS_OPERATIONS` is the number of operations; each 25,000 have a seed and a thread of their own.

mod common;

use block::BlockDevice;
use block_testing::Mem;
use common::pair::Pair;
use common::{amount, assert_clean, format, open, seed};
use std::sync::Arc;

fn run(seed: u64, rounds: usize, steps: usize) {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 512));
    format(&device);
    let mut pair = Pair::new(open(&device), seed);
    for round in 0..rounds {
        for _ in 0..steps {
            pair.step();
        }
        let context = format!("EVFS_SEED={seed}, round {round}");
        if round % 3 == 0 {
            pair.fs.sync().expect("it syncs");
            assert_clean(&pair.fs, &context);
        }
        pair.release_all();
        pair.compare_all();
        pair.client
            .write_all_out(&mut pair.random)
            .expect("it writes out");
        pair.compare_all();
        assert_clean(&pair.fs, &context);
        pair = reopen(pair, &device);
        pair.compare_all();
        assert_clean(&pair.fs, &context);
    }
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

#[test]
fn random_operations_give_what_the_model_gives() {
    const PART: usize = 25_000;
    let parts = amount("EVFS_OPERATIONS", 2 * PART).div_ceil(PART);
    let first = seed(1);
    std::thread::scope(|scope| {
        for seed in (first..).take(parts) {
            scope.spawn(move || run(seed, 25, PART / 25));
        }
    });
}
