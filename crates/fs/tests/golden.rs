//! Images of earlier versions, which every later version must be able to read.
//! `fixtures/fs/README.md` describes how they were made.

mod common;

use block::BlockDevice;
use common::image::{fixture, seen, unpack};
use common::{assert_clean, keyed, options};
use fs::{Fs, ScrubPosition, ScrubStep};
use std::sync::Arc;

fn scrub(fs: &Fs) -> ScrubStep {
    let all = fs.scrub(ScrubPosition::START, u64::MAX).expect("it scrubs");
    assert!(all.next.is_none() && all.blocks > 0);
    all
}

fn check(name: &str) {
    let packed = std::fs::read(fixture(&format!("{name}.blocks"))).expect("the image");
    let expected = std::fs::read_to_string(fixture(&format!("{name}.txt"))).expect("its content");
    let mem = unpack(&packed);
    let has_integrity = name.starts_with("v1-keyed-");
    let has_compression = name.starts_with("v1-compressed-");
    let has_checksums = has_integrity || has_compression || name.starts_with("v1-sums-");
    for read_only in [true, false] {
        let device: Arc<dyn BlockDevice> = Arc::new(mem.fork());
        let options = fs::Options {
            read_only,
            ..options()
        };
        let fs = Fs::open(keyed(&device), options).expect("it opens");
        assert_clean(&fs, name);
        assert_eq!(fs.superblock().has_checksums(), has_checksums);
        assert_eq!(fs.superblock().has_integrity(), has_integrity);
        let chunks = fs.check().expect("checked").chunks;
        assert_eq!(chunks > 0, has_compression);
        let all = scrub(&fs);
        assert_eq!(all.damage, [], "{name}");
        assert_eq!(all.unverified, if has_checksums { 0 } else { all.blocks });
        assert_eq!(seen(&fs), expected, "{name}");
        fs.close().expect("it closes");
    }
}

#[test]
fn version_1_after_a_good_end_reads_as_it_did() {
    check("v1-closed");
}

#[test]
fn version_1_with_a_journal_to_play_reads_as_it_did() {
    check("v1-journal");
}

#[test]
fn version_1_with_checksums_after_a_good_end_reads_as_it_did() {
    check("v1-sums-closed");
}

#[test]
fn version_1_with_checksums_and_a_journal_to_play_reads_as_it_did() {
    check("v1-sums-journal");
}

#[test]
fn version_1_with_compression_after_a_good_end_reads_as_it_did() {
    check("v1-compressed-closed");
}

#[test]
fn version_1_with_compression_and_a_journal_to_play_reads_as_it_did() {
    check("v1-compressed-journal");
}

#[test]
fn version_1_with_keyed_checksums_after_a_good_end_reads_as_it_did() {
    check("v1-keyed-closed");
}

#[test]
fn version_1_with_keyed_checksums_and_a_journal_to_play_reads_as_it_did() {
    check("v1-keyed-journal");
}
