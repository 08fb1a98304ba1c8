//! The cache itself to hunt in. Occasionally a write to the device fails.

use super::{Actor, Ground, PAGE, PAGES};
use block::{ErrorKind, OpKind};
use block_testing::{ErrorDevice, ErrorHandle, Failure, Mem, Random};
use cache::{Access, Cache, Config, DEVICE_FILE, DevicePager, Mapping, OpenFile, Session, Volume};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub struct Real {
    cache: Arc<Cache>,
    volume: Arc<Volume>,
    disk: Arc<Mem>,
    errors: ErrorHandle,
}

impl Real {
    pub fn new(seed: u64) -> Real {
        let disk = Arc::new(Mem::new(PAGES * PAGE, 4096));
        let (device, errors) = ErrorDevice::new(disk.clone());
        let cache = Cache::new(Config {
            sync_interval: Duration::from_millis(20),
            tick: Duration::from_millis(2),
            retry: Duration::from_millis(1),
            ..Config::new(1 << 20)
        });
        let cache = cache.unwrap();
        let pager = Arc::new(DevicePager::new(Arc::new(device)).unwrap());
        let volume = cache.volume(pager).unwrap();
        let fails = Failure::by_chance(0.01, seed, ErrorKind::Media).of(OpKind::Write);
        errors.set(Some(fails));
        Real {
            cache,
            volume,
            disk,
            errors,
        }
    }

    fn open(&self) -> OpenFile {
        let vnode = self.volume.vnode(DEVICE_FILE, PAGES * PAGE);
        self.volume.open(&vnode)
    }
}

impl Ground for Real {
    fn map(&self, pages: Range<u64>) -> Mapping {
        let bytes = pages.start * PAGE..pages.end * PAGE;
        self.open().map(bytes, Access::Store).unwrap()
    }

    fn actor(&self) -> Box<dyn Actor + '_> {
        Box::new(RealActor {
            cache: &self.cache,
            session: self.volume.session().unwrap(),
            open: self.open(),
        })
    }

    fn evictions(&self) -> u64 {
        self.cache.stats().mapped_evicted
    }

    fn finish(&self) -> Vec<u8> {
        self.errors.set(None);
        // Earlier errors are reported once.
        self.volume.flush().ok();
        self.volume.close().unwrap();
        self.disk.to_vec()
    }
}

struct RealActor<'a> {
    cache: &'a Cache,
    session: Session,
    open: OpenFile,
}

impl Actor for RealActor<'_> {
    fn read(&mut self, at: u64, out: &mut [u8]) {
        let len = out.len();
        assert_eq!(self.session.read(&mut self.open, at, out).unwrap(), len);
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        self.session.write(&mut self.open, at, data).unwrap();
    }

    fn evict(&mut self, random: &mut Random) {
        let from = random.below(PAGES);
        let pages = from * PAGE..(from + 1 + random.below(PAGES - from)) * PAGE;
        let _failed_now_and_then = self.session.write_out(&mut self.open, pages);
        let before = self.cache.stats().mapped_evicted;
        self.cache.shrink(random.below(2) * PAGES / 2 * PAGE);
        if self.cache.stats().mapped_evicted == before {
            // The threads that would load pages again may wait for this CPU.
            std::thread::yield_now();
        }
    }

    fn flush(&mut self, _: u64) {
        let _failed_now_and_then = self.session.flush(&mut self.open);
    }
}
