//! The queue whose caller waits for each operation.

use block::{Blocking, Buf, ErrorKind, Op};
use block_testing::{ErrorDevice, Failure, Mem, MemConfig, Random};
use std::sync::Arc;

/// Creates a disk on which a long transfer takes many small requests.
fn narrow(capacity: usize) -> Mem {
    Mem::with(MemConfig {
        capacity,
        max_transfer: 1024,
        ..MemConfig::new(1 << 20, 512)
    })
}

#[test]
fn long_transfers_are_split_and_come_back_whole() {
    for capacity in [1, 2, 128] {
        let mem = narrow(capacity);
        let mut blocking = Blocking::open(&mem).unwrap();
        let mut data = vec![0; 100 * 512];
        Random::new(1).fill(&mut data);
        blocking.write_at(512, &data).unwrap();
        let mut back = vec![0; data.len()];
        blocking.read_at(512, &mut back).unwrap();
        assert!(back == data);
        blocking.write_zeroes(512, 1024).unwrap();
        blocking.discard(2048, 512).unwrap();
        blocking.flush().unwrap();
        blocking.read_at(0, &mut back[..2048]).unwrap();
        assert_eq!(back[..1536], [0; 1536]);
        assert_eq!(back[1536..2048], data[1024..1536]);
    }
}

#[test]
fn the_first_error_ends_a_long_transfer_and_the_next_call_works() {
    let (device, handle) = ErrorDevice::new(Arc::new(narrow(128)));
    let mut blocking = Blocking::open(&device).unwrap();
    for n in 1..=20 {
        handle.set(Some(Failure::nth(n, ErrorKind::Media)));
        let error = blocking.write_at(0, &[1; 20 * 1024]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Media);
        assert_eq!(error.range(), Some(((n - 1) * 1024, 1024)));
        handle.set(None);
        let mut back = [0; 1024];
        blocking.write_at(0, &[n as u8; 1024]).unwrap();
        blocking.read_at(0, &mut back).unwrap();
        assert_eq!(back, [n as u8; 1024]);
    }
}

#[test]
fn wrong_ranges_are_errors_and_empty_ones_are_nothing() {
    let mem = narrow(8);
    let mut blocking = Blocking::open(&mem).unwrap();
    let mut out = vec![0; 4096];
    for offset in [1 << 20, u64::MAX - 511] {
        let error = blocking.read_at(offset, &mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
    }
    let error = blocking.write_at(0, &out[..100]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misaligned);
    blocking.read_at(0, &mut []).unwrap();
    blocking.write_at(0, &[]).unwrap();
}

#[test]
fn an_operation_comes_back_with_its_buffers() {
    let mem = narrow(8);
    let mut blocking = Blocking::open(&mem).unwrap();
    mem.poke(512, &[5; 512]);
    let bufs = Buf::zeroed(512).into();
    let Op::Read { bufs, .. } = blocking.run(Op::Read { offset: 512, bufs }).unwrap() else {
        panic!("another operation came back")
    };
    assert_eq!(bufs.as_slice()[0][..], [5; 512]);
}
