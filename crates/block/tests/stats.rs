//! Counters of requests, read from outside.

use block::{Blocking, ErrorKind, OpKind, Stats};
use block_testing::Mem;
use std::sync::Arc;

#[test]
fn all_queues_are_counted_and_stay_counted_when_dropped() {
    let (device, handle) = Stats::new(Arc::new(Mem::new(1 << 20, 512)));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut blocking = Blocking::open(&device).unwrap();
                blocking.write_at(0, &[1; 4096]).unwrap();
                blocking.flush().unwrap();
            });
        }
    });
    let mut open = Blocking::open(&device).unwrap();
    open.read_at(0, &mut [0; 1024]).unwrap();
    let error = open.read_at(1 << 20, &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    let seen = handle.snapshot();
    assert_eq!((seen.write.requests, seen.write.bytes), (3, 3 * 4096));
    assert_eq!((seen.flush.requests, seen.flush.bytes), (3, 0));
    assert_eq!(
        (seen.read.requests, seen.read.bytes, seen.read.errors),
        (2, 1024, 1)
    );
    drop(open);
    assert_eq!(handle.snapshot(), seen);
    let counted: u64 = handle.latencies(OpKind::Write).iter().map(|b| b.1).sum();
    assert_eq!(counted, 3);
}
