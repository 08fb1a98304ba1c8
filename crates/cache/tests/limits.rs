//! The limit of the cache holds under load and while it changes, and memory use follows it.

use block_testing::{Mem, Random};
use cache::{Cache, Config, DEVICE_FILE, DevicePager, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MAX: u64 = 16 << 20;
const LOAD: u64 = 10 * MAX;

/// Reads and writes all over a device of ten times the cache until stopped.
fn load(volume: &Volume, seed: u64, stop: &AtomicBool) {
    let mut session = volume.session().unwrap();
    let mut open = volume.open(&volume.vnode(DEVICE_FILE, LOAD));
    let mut random = Random::new(seed);
    let mut data = vec![0; 64 << 10];
    while !stop.load(Relaxed) {
        let len = 1 + random.below(data.len() as u64) as usize;
        let at = random.below(LOAD - len as u64);
        if random.below(3) == 0 {
            session.write(&mut open, at, &data[..len]).unwrap();
        } else {
            session.read(&mut open, at, &mut data[..len]).unwrap();
        }
    }
}

#[test]
fn the_limit_holds_within_one_percent_while_it_shrinks_and_grows_under_load() {
    let cache = Cache::new(Config::new(MAX)).unwrap();
    let disk = Arc::new(Mem::new(LOAD, 4096));
    let volume = cache
        .volume(Arc::new(DevicePager::new(disk).unwrap()))
        .unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || load(volume, seed, stop));
        }
        // Stops the other threads even when an assertion fails here.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _stop = Stop(&stop);
        for max in [MAX, MAX / 2, MAX / 4, MAX] {
            cache.set_max_bytes(max);
            let started = Instant::now();
            while cache.stats().used_bytes > max + max / 100 {
                let waited = started.elapsed();
                assert!(waited < Duration::from_secs(30), "{:?}", cache.stats());
                std::thread::sleep(Duration::from_millis(1));
            }
            let before = cache.stats().evicted;
            let enough = 4 * max / 4096;
            while cache.stats().evicted < before + enough {
                let stats = cache.stats();
                assert!(stats.used_bytes <= max + max / 100, "{stats:?}");
                assert!(
                    started.elapsed() < Duration::from_secs(120),
                    "no load: {stats:?}"
                );
            }
        }
    });
    volume.close().unwrap();
    assert_eq!(cache.stats().used_bytes, 0);
}

#[test]
fn memory_goes_back_to_the_system_when_the_limit_shrinks() {
    let cache = Cache::new(Config::new(64 << 20)).unwrap();
    let disk = Arc::new(Mem::new(64 << 20, 4096));
    let volume = cache
        .volume(Arc::new(DevicePager::new(disk).unwrap()))
        .unwrap();
    let mut session = volume.session().unwrap();
    let mut open = volume.open(&volume.vnode(DEVICE_FILE, 64 << 20));
    let mut data = vec![0; 4096];
    let read_all = |session: &mut cache::Session, open: &mut cache::OpenFile, data: &mut [u8]| {
        for at in (0..64 << 20).step_by(4096) {
            session.read(open, at, data).unwrap();
        }
    };
    read_all(&mut session, &mut open, &mut data);
    assert!(cache.stats().resident_bytes >= 60 << 20);
    cache.set_max_bytes(8 << 20);
    let started = Instant::now();
    while cache.stats().resident_bytes > 8 << 20 {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{:?}",
            cache.stats()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    read_all(&mut session, &mut open, &mut data);
    cache.set_max_bytes(64 << 20);
    read_all(&mut session, &mut open, &mut data);
    assert!(cache.stats().used_bytes >= 60 << 20);
}
