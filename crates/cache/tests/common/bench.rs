//! Two files on a device that can fail, behind a cache, for tests of mappings.
#![allow(dead_code, reason = "each test uses a part of it")]

use crate::common::Parts;
use crate::touch::PAGE;
use block_testing::{ErrorDevice, ErrorHandle, Mem};
use cache::{Access, Cache, Config, FileId, Mapping, OpenFile, Session, Volume};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const FILE: FileId = FileId(0);
pub const OTHER: FileId = FileId(1);

/// Waits for an event that must happen.
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(30), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two files of `pages` pages side by side, in each of which every page begins with its number.
pub struct Bench {
    pages: u64,
    pub disk: Arc<Mem>,
    pub errors: ErrorHandle,
    pub pager: Arc<Parts>,
    pub cache: Arc<Cache>,
    pub volume: Arc<Volume>,
}

impl Bench {
    pub fn new(pages: u64, config: Config) -> Bench {
        let disk = Arc::new(Mem::new(2 * pages * PAGE, 512));
        for page in 0..2 * pages {
            disk.poke(page * PAGE, &(page % pages).to_ne_bytes());
        }
        let (device, errors) = ErrorDevice::new(disk.clone());
        let pager = Arc::new(Parts::new(Arc::new(device), pages * PAGE));
        // Memory pressure may evict everything.
        let cache = Cache::new(Config {
            min_bytes: 0,
            ..config
        });
        let cache = cache.unwrap();
        let volume = cache.volume(pager.clone()).unwrap();
        Bench {
            pages,
            disk,
            errors,
            pager,
            cache,
            volume,
        }
    }

    /// Creates a bench in which nothing is written back without a request.
    pub fn calm(pages: u64) -> Bench {
        let sync_interval = Duration::from_secs(3600);
        let config = Config::new(16 << 20);
        Bench::new(
            pages,
            Config {
                sync_interval,
                ..config
            },
        )
    }

    pub fn open(&self) -> (Session, OpenFile) {
        let vnode = self.volume.vnode(FILE, self.pages * PAGE);
        (self.volume.session().unwrap(), self.volume.open(&vnode))
    }

    pub fn below(&self, page: u64) -> u64 {
        let mut bytes = [0; 8];
        self.disk.peek(page * PAGE, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Evicts all pages, after writing them back.
    pub fn evict_dirty(&self, session: &mut Session, open: &mut OpenFile) {
        session.flush(open).unwrap();
        self.evict();
    }

    /// Evicts all clean pages.
    pub fn evict(&self) {
        until("pages leave", || self.cache.shrink(0) == 0);
    }
}

pub fn number(session: &mut Session, open: &mut OpenFile, page: u64) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(session.read(open, page * PAGE, &mut bytes).unwrap(), 8);
    u64::from_ne_bytes(bytes)
}

pub fn all(open: &OpenFile) -> Mapping {
    open.map(0..open.vnode().size(), Access::Store).unwrap()
}
