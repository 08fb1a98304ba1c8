//! A device behind the cache is a device: the conformance suite, cached and direct, over a disk in
//! memory and over one whose power can be cut.

use block::{BlockDevice, ErrorDevice, Mem, MemConfig, PowerCut, conformance};
use cache::{Cache, CachedDevice, Config};
use std::sync::Arc;

fn cache(bytes: u64) -> Arc<Cache> {
    Cache::new(Config::new(bytes)).unwrap()
}

fn over(lower: Arc<dyn BlockDevice>, bytes: u64) -> CachedDevice {
    CachedDevice::new(&cache(bytes), lower).unwrap()
}

#[test]
fn a_cached_device_passes_with_room_for_everything_and_with_little() {
    for bytes in [64 << 20, 4 << 20, 1 << 20] {
        conformance::run(&|| Arc::new(over(Arc::new(Mem::new(16 << 20, 512)), bytes)));
    }
    conformance::run(&|| Arc::new(over(Arc::new(Mem::new(16 << 20, 4096)), 2 << 20)));
}

#[test]
fn a_cached_device_passes_over_narrow_queues_and_ragged_ends() {
    for (capacity, max_transfer) in [(1, 4096), (3, 12_288), (5, 1 << 20)] {
        let config = MemConfig {
            capacity,
            max_transfer,
            discard: capacity != 3,
            ..MemConfig::new(conformance::SPAN + 512, 512)
        };
        conformance::run(&|| Arc::new(over(Arc::new(Mem::with(config.clone())), 2 << 20)));
    }
}

#[test]
fn a_direct_device_passes() {
    conformance::run(&|| Arc::new(over(Arc::new(Mem::new(16 << 20, 512)), 4 << 20).direct()));
}

#[test]
fn a_read_only_device_passes() {
    conformance::run_read_only(&|| {
        let lower = Arc::new(Mem::new(conformance::SPAN, 512).read_only());
        Arc::new(over(lower, 2 << 20))
    });
}

#[test]
fn a_direct_device_reports_failures_where_they_belong() {
    conformance::run_with_errors(&|| {
        let (lower, handle) = ErrorDevice::new(Arc::new(Mem::new(16 << 20, 512)));
        (Arc::new(over(Arc::new(lower), 4 << 20).direct()), handle)
    });
}

#[test]
fn what_was_flushed_survives_power_cuts() {
    let disk = Mem::new(conformance::SPAN, 512);
    conformance::run(&|| Arc::new(over(Arc::new(PowerCut::new(&disk)), 2 << 20)));
    for (seed, bytes) in [(1, 16 << 20), (2, 1 << 20)] {
        let layer = |lower| Arc::new(over(lower, bytes)) as Arc<dyn BlockDevice>;
        conformance::run_with_power_cuts(&disk, &layer, seed, 100);
    }
}
