//! A device whose changes stay in memory.

use block::{BlockDevice, Blocking, ErrorKind, Scratch};
use block_testing::{ErrorDevice, Mem, conformance};
use std::sync::Arc;

#[test]
fn it_passes_the_suite_over_devices_with_small_and_large_blocks() {
    for block in [512, 4096] {
        let make = || Scratch::new(Arc::new(Mem::new(conformance::SPAN, block)));
        conformance::run(&|| Arc::new(make()));
    }
    conformance::run_with_errors(&|| {
        let (lower, handle) = ErrorDevice::new(Arc::new(Mem::new(conformance::SPAN, 512)));
        (Arc::new(Scratch::new(Arc::new(lower))), handle)
    });
}

#[test]
fn changes_are_seen_by_all_queues_and_never_reach_the_lower_device() {
    let lower = Arc::new(Mem::holding(&[7; 64 << 10], 512));
    let device = Scratch::new(Arc::clone(&lower) as Arc<dyn BlockDevice>);
    let mut one = Blocking::open(&device).unwrap();
    let mut other = Blocking::open(&device).unwrap();
    one.write_at(1024, &[8; 1024]).unwrap();
    one.write_zeroes(4096, 512).unwrap();
    one.discard(0, 64 << 10).unwrap();
    one.flush().unwrap();
    let mut seen = vec![0; 8192];
    other.read_at(0, &mut seen).unwrap();
    let mut expected = vec![7; 8192];
    expected[1024..2048].fill(8);
    expected[4096..4608].fill(0);
    assert_eq!(seen, expected);
    let mut lower_content = vec![0; 8192];
    let mut lower = Blocking::open(&*lower).unwrap();
    lower.read_at(0, &mut lower_content).unwrap();
    assert_eq!(lower_content, [7; 8192]);
}

#[test]
fn a_read_only_device_can_be_changed_on_trial() {
    let device = Scratch::new(Arc::new(Mem::new(64 << 10, 512).read_only()));
    let mut queue = Blocking::open(&device).unwrap();
    queue.write_at(0, &[1; 512]).unwrap();
    let mut seen = [0; 512];
    queue.read_at(0, &mut seen).unwrap();
    assert_eq!(seen, [1; 512]);
}

#[test]
fn memory_is_limited() {
    let size = 2 << 30;
    let device = Scratch::new(Arc::new(Mem::new(size, 4096)));
    let mut queue = Blocking::open(&device).unwrap();
    let error = queue.write_zeroes(0, size).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}
