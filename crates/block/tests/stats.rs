//! Counters of requests, read from outside.

use block::{
    BlockDevice, Blocking, DERIVED_KEY_BYTES, ErrorKind, OpKind, Scratch, Stats, StickyFlush,
};
use block_testing::{Keyed, Mem};
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

#[test]
fn every_layer_passes_on_the_keys_of_an_encrypting_one() {
    let layers = |lower: Arc<dyn BlockDevice>| -> [Arc<dyn BlockDevice>; 4] {
        [
            Arc::new(Stats::new(Arc::clone(&lower)).0),
            Arc::new(StickyFlush::new(Arc::clone(&lower))),
            Arc::new(Scratch::new(Arc::clone(&lower))),
            Arc::new(lower),
        ]
    };
    let mem: Arc<dyn BlockDevice> = Arc::new(Mem::new(1 << 20, 512));
    let keyed: Arc<dyn BlockDevice> = Arc::new(Keyed::new(Arc::clone(&mem), 5));
    let mut key = [0; DERIVED_KEY_BYTES];
    assert!(keyed.derive_key(b"label", &mut key));
    for (clear, encrypted) in layers(mem).into_iter().zip(layers(keyed)) {
        let mut found = [1; DERIVED_KEY_BYTES];
        assert!(!clear.derive_key(b"label", &mut found));
        assert_eq!(found, [1; DERIVED_KEY_BYTES]);
        assert!(encrypted.derive_key(b"label", &mut found));
        assert_eq!(found, key);
    }
}
