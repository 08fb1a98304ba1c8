//! Shared by the tests: a minimal cache over the pager, a model of a file system, and random
//! operations on both.

#![allow(dead_code)] // Each test uses a part of it.

pub mod client;
pub mod image;
pub mod model;
pub mod owners;
pub mod pair;
pub mod past;
pub mod snapshots;
pub mod streams;

use block::BlockDevice;
use block_testing::Keyed;
use fs::{DataChecksums, Fs, Options};
use std::sync::Arc;
use std::time::Duration;

/// Opens the file system of a device; it commits only when a test requests it.
pub fn open(device: &Arc<dyn BlockDevice>) -> Fs {
    Fs::open(keyed(device), options()).expect("it opens")
}

/// Gives a device a key, which file systems with keyed checksums need.
pub fn keyed(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    Arc::new(Keyed::new(Arc::clone(device), 1))
}

/// Returns the options of [`open`].
pub fn options() -> Options {
    Options {
        commit_interval: Duration::from_secs(3600),
        metadata_cache_bytes: 4 << 20,
        ..Options::default()
    }
}

/// Creates a file system on a device: with keyed checksums if `EVFS_INTEGRITY` is set.
pub fn format(device: &Arc<dyn BlockDevice>) {
    let checksums = match std::env::var_os("EVFS_INTEGRITY") {
        Some(_) => DataChecksums::Keyed,
        None => DataChecksums::Yes,
    };
    format_with(device, checksums);
}

/// Creates a file system with these checksums.
pub fn format_with(device: &Arc<dyn BlockDevice>, checksums: DataChecksums) {
    Fs::format_with(keyed(device), "test", checksums).expect("it formats");
}

/// Checks that a file system is clean and that all data matches its checksums, and panics with the
/// problems otherwise. Returns the number of blocks without a checksum.
pub fn assert_clean(fs: &Fs, context: &str) -> u64 {
    let mut report = fs.check().expect("it can be checked");
    fs.check_data(&mut report, &mut |_, _| {})
        .expect("its data can be read");
    assert!(report.is_clean(), "{context}: {:#?}", report.problems);
    report.unverified_blocks
}

/// Returns the amount of work for a test: the value of the environment variable, or the default.
pub fn amount(variable: &str, default: usize) -> usize {
    let amount = std::env::var(variable).ok().and_then(|n| n.parse().ok());
    amount.unwrap_or(default)
}

/// Returns the seed of a random test: `EVFS_SEED`, or the default.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("EVFS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or(default);
    println!("EVFS_SEED={seed}");
    seed
}
