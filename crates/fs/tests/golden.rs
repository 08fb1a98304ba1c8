//! Images of earlier versions, which every later version must be able to read.
//! `fixtures/fs/README.md` describes how they were made.

mod common;

use block::BlockDevice;
use common::image::{fixture, seen, unpack};
use common::{assert_clean, options};
use fs::Fs;
use std::sync::Arc;

fn check(name: &str) {
    let packed = std::fs::read(fixture(&format!("{name}.blocks"))).expect("the image");
    let expected = std::fs::read_to_string(fixture(&format!("{name}.txt"))).expect("its content");
    let mem = unpack(&packed);
    for read_only in [true, false] {
        let device: Arc<dyn BlockDevice> = Arc::new(mem.fork());
        let options = fs::Options {
            read_only,
            ..options()
        };
        let fs = Fs::open(device, options).expect("it opens");
        assert_clean(&fs, name);
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
