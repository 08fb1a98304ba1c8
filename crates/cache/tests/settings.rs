//! The settings and statistics of a cache in use.

mod common;

use block::{BlockDevice, Completion, Queue, Request, Result, Wait};
use block_testing::{Mem, Random};
use cache::{
    Cache, Config, FileId, FileRequest, OpenFile, Pager, PagerInfo, PagerQueue, Session, Vnode,
    Volume, tunables::Tunables,
};
use common::{Parts, until};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const SPAN: u64 = 8 << 20;
const PAGE: u64 = 4096;
/// The machine's memory as assumed by the settings.
const MEMORY: u64 = 64 << 20;

struct Bench {
    cache: Arc<Cache>,
    volume: Arc<Volume>,
    disk: Arc<Mem>,
}

fn bench(changes: &[(&str, &str)]) -> Bench {
    let (tunables, _) = Tunables::default()
        .with(changes.iter().copied(), MEMORY)
        .unwrap();
    let disk = Arc::new(Mem::new(4 * SPAN, 512));
    let cache = Cache::new(Config {
        tick: Duration::from_millis(5),
        ..Config::of(&tunables, MEMORY).unwrap()
    });
    let cache = cache.unwrap();
    let lower: Arc<dyn BlockDevice> = disk.clone();
    let volume = cache.volume(Arc::new(Parts::new(lower, SPAN))).unwrap();
    Bench {
        cache,
        volume,
        disk,
    }
}

impl Bench {
    fn set(&self, changes: &[(&str, &str)]) {
        let now = self.cache.tunables();
        let (changed, _) = now.with(changes.iter().copied(), MEMORY).unwrap();
        self.cache.set(&changed).unwrap();
        assert_eq!(self.cache.tunables(), changed);
    }

    fn open(&self, file: u64) -> (Session, OpenFile, Arc<Vnode>) {
        let vnode = self.volume.vnode(FileId(file), SPAN);
        let session = self.volume.session().unwrap();
        (session, self.volume.open(&vnode), vnode)
    }

    fn is_below(&self, file: u64, data: &[u8]) -> bool {
        let mut below = vec![0; data.len()];
        self.disk.peek(file * SPAN, &mut below);
        below == data
    }
}

fn scan(session: &mut Session, open: &mut OpenFile, bytes: u64) {
    let mut out = vec![0; 32 << 10];
    for at in (0..bytes).step_by(out.len()) {
        session.read(open, at, &mut out).unwrap();
    }
}

#[test]
fn the_most_and_the_least_that_pages_take_change_at_once() {
    let bench = bench(&[("filecache_max", "8MB"), ("filecache_min", "2MB")]);
    let (mut session, mut open, _) = bench.open(0);
    scan(&mut session, &mut open, SPAN);
    assert_eq!(bench.cache.settings().filecache_max, 8 << 20);
    bench.set(&[("filecache_max", "4MB")]);
    assert!(bench.cache.stats().used_bytes <= 4 << 20);
    until("memory goes back", || {
        bench.cache.stats().resident_bytes <= 4 << 20
    });
    // Pages still being loaded cannot be evicted yet.
    until("the least stays", || bench.cache.shrink(0) == 2 << 20);
    assert!(bench.cache.stats().counts.evicted_pressure > 0);
    bench.set(&[("filecache_max", "25%"), ("filecache_min", "1MB")]);
    scan(&mut session, &mut open, SPAN);
    let stats = bench.cache.stats();
    assert!(
        stats.used_bytes >= SPAN && stats.max_bytes == 16 << 20,
        "{stats:?}"
    );
    until("the new least stays", || bench.cache.shrink(0) == 1 << 20);
}

#[test]
fn settings_that_cannot_be_are_refused_whole() {
    let bench = bench(&[("filecache_max", "8MB"), ("filecache_min", "2MB")]);
    let before = bench.cache.tunables();
    let beyond = before.with([("dirty_limit", "30"), ("filecache_max", "200MB")], 1 << 30);
    let error = bench.cache.set(&beyond.unwrap().0).unwrap_err();
    assert!(error.to_string().contains("filecache_max"), "{error}");
    assert_eq!(bench.cache.tunables(), before);
    assert_eq!(
        bench.cache.settings().dirty_limit,
        (8 << 20) / 5 / PAGE * PAGE
    );
}

#[test]
fn an_age_that_is_lowered_counts_for_what_is_dirty_already() {
    let bench = bench(&[("filecache_max", "8MB"), ("sync_interval_ms", "3600000")]);
    let (mut session, mut open, vnode) = bench.open(0);
    let data = [5; 40_000];
    session.write(&mut open, 0, &data).unwrap();
    assert!(vnode.stats().dirty_bytes > 0 && !bench.is_below(0, &data));
    bench.set(&[("sync_interval_ms", "10")]);
    until("it is due", || vnode.stats().dirty_bytes == 0);
    assert!(bench.is_below(0, &data));
    assert_eq!(bench.cache.stats().oldest_dirty_ms, None);
}

#[test]
fn sequential_writes_go_below_as_the_policy_says() {
    let bench = bench(&[
        ("filecache_max", "8MB"),
        ("sync_interval_ms", "3600000"),
        ("dirty_background", "90"),
        ("dirty_limit", "90"),
    ]);
    let data = vec![9; 1 << 20];
    let write = |file: u64| {
        let (mut session, mut open, vnode) = bench.open(file);
        for at in (0..data.len()).step_by(16 << 10) {
            let part = &data[at..at + (16 << 10)];
            session.write(&mut open, at as u64, part).unwrap();
        }
        vnode
    };
    assert_eq!(write(0).stats().dirty_bytes, 1 << 20);
    bench.set(&[("fcache_fb_policy", "2")]);
    assert_eq!(write(1).stats().dirty_bytes, 0, "the writer has sent it");
    assert!(bench.is_below(1, &data));
    bench.set(&[("fcache_fb_policy", "1")]);
    let vnode = write(2);
    until("the background has sent it", || {
        vnode.stats().dirty_bytes == 0
    });
    bench.volume.vnode(FileId(3), SPAN);
    bench
        .volume
        .advise(FileId(3), [("flush_behind", "0")])
        .unwrap();
    assert_eq!(
        write(3).stats().dirty_bytes,
        1 << 20,
        "the file has its own"
    );
}

#[test]
fn a_low_dirty_limit_brings_write_behind_on() {
    let bench = bench(&[("filecache_max", "8MB"), ("sync_interval_ms", "3600000")]);
    let (mut session, mut open, vnode) = bench.open(0);
    session.write(&mut open, 0, &[3; 600_000]).unwrap();
    assert!(
        vnode.stats().dirty_bytes >= 600_000,
        "below a tenth of the cache"
    );
    bench.set(&[("dirty_background", "1"), ("dirty_limit", "2")]);
    until("what is too much has gone", || {
        vnode.stats().dirty_bytes <= bench.cache.settings().dirty_background
    });
}

#[test]
fn a_file_that_streams_steals_from_itself_once_it_may() {
    let bench = bench(&[("filecache_max", "4MB")]);
    let (mut session, mut open, _) = bench.open(0);
    scan(&mut session, &mut open, SPAN);
    scan(&mut session, &mut open, SPAN);
    assert_eq!(
        bench.cache.stats().counts.evicted_stealback,
        0,
        "off by default"
    );
    bench.volume.drop_pages().unwrap();
    bench.set(&[
        ("fcache_seqlimit_system", "20"),
        ("fcache_seqlimit_file", "10"),
    ]);
    // Pages not loaded by a stream fill most of the rest.
    let (mut other, mut random, kept) = bench.open(1);
    let mut pages: Vec<u64> = (0..700).map(|n| n * 2).collect();
    pages.sort_by_key(|page| page.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for page in &pages {
        other.read(&mut random, page * PAGE, &mut [0; 8]).unwrap();
    }
    scan(&mut session, &mut open, SPAN);
    let streamed = bench.volume.vnode(FileId(0), SPAN).stats();
    assert!(streamed.counts.evicted_stealback > 1000, "{streamed:?}");
    assert!(
        kept.stats().resident_bytes >= 600 * PAGE,
        "{:?}",
        kept.stats()
    );
}

#[test]
fn metadata_keeps_its_share_and_no_more() {
    let bench = bench(&[("filecache_max", "4MB"), ("metadata_share", "10")]);
    let meta = bench.volume.metadata_vnode(FileId(1), SPAN);
    assert!(meta.is_metadata());
    let (mut session, mut data, _) = bench.open(0);
    let mut open = bench.volume.open(&meta);
    let mut out = [0; 8];
    for page in 0..90 {
        session.read(&mut open, page * PAGE, &mut out).unwrap();
    }
    for _ in 0..3 {
        scan(&mut session, &mut data, SPAN);
    }
    assert!(
        meta.stats().resident_bytes >= 90 * PAGE,
        "{:?}",
        meta.stats()
    );
    scan(&mut session, &mut open, SPAN);
    scan(&mut session, &mut data, SPAN);
    let share = bench.cache.settings().metadata_max;
    let stats = bench.cache.stats();
    assert!(stats.metadata_bytes <= share && share > 0, "{stats:?}");
    assert!(stats.metadata_bytes >= share - 16 * PAGE, "{stats:?}");
    bench.set(&[("metadata_share", "1")]);
    scan(&mut session, &mut data, SPAN);
    assert!(bench.cache.stats().metadata_bytes <= bench.cache.settings().metadata_max);
}

#[test]
fn pages_are_counted_by_why_they_left() {
    let bench = bench(&[("filecache_max", "16MB")]);
    let (mut session, mut open, vnode) = bench.open(0);
    session.write(&mut open, 0, &[1; 20 * 4096]).unwrap();
    let stats = vnode.stats();
    assert_eq!(
        (stats.resident_bytes, stats.dirty_bytes),
        (20 * PAGE, 20 * PAGE)
    );
    assert!(stats.oldest_dirty_ms.is_some() && bench.cache.stats().oldest_dirty_ms.is_some());
    session.truncate(&mut open, 15 * PAGE).unwrap();
    assert_eq!(vnode.stats().counts.cut, 5);
    bench.volume.drop_file(FileId(0)).unwrap();
    assert_eq!(vnode.stats().counts.dropped, 15);
    assert_eq!(
        (vnode.stats().resident_bytes, vnode.stats().dirty_bytes),
        (0, 0)
    );
    let (_, mut gone, other) = bench.open(1);
    session.write(&mut gone, 0, &[1; 7 * 4096]).unwrap();
    bench.volume.forget(FileId(1));
    assert_eq!(other.stats().counts.unlinked, 7);
    session.write(&mut open, 0, &[1; 3 * 4096]).unwrap();
    bench.volume.flush_file(FileId(0)).unwrap();
    bench.cache.flush().unwrap();
    let files = bench.volume.files();
    assert_eq!(
        (files.len(), files[0].file, files[0].dirty_bytes),
        (1, FileId(0), 0)
    );
    bench.volume.close().unwrap();
    drop((open, gone, vnode, other));
    let counts = bench.cache.stats().counts;
    assert_eq!(
        (counts.cut, counts.dropped, counts.unlinked, counts.closed),
        (5, 15, 7, 3)
    );
}

/// A file of zeros whose reads complete when the gate opens.
struct Gate {
    info: PagerInfo,
    open: Arc<AtomicBool>,
}

struct GateQueue {
    info: PagerInfo,
    held: Vec<Completion>,
    open: Arc<AtomicBool>,
}

impl Pager for Gate {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn queue(&self) -> Result<Box<PagerQueue>> {
        Ok(Box::new(GateQueue {
            info: self.info.clone(),
            held: Vec::new(),
            open: Arc::clone(&self.open),
        }))
    }
}

impl Queue<FileRequest, PagerInfo> for GateQueue {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        64
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn submit(&mut self, request: FileRequest) -> std::result::Result<(), FileRequest> {
        let Request { tag, op } = request.request;
        let result = Ok(());
        self.held.push(Completion { tag, op, result });
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        while wait == Wait::Block && !self.held.is_empty() && !self.open.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !self.open.load(Relaxed) {
            return Ok(0);
        }
        let count = self.held.len();
        done.append(&mut self.held);
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn who_wants_a_page_that_is_on_its_way_joins() {
    let gate = Arc::new(AtomicBool::new(false));
    let info = PagerInfo {
        name: "gate".into(),
        block_size: 512,
        optimal_io_size: 65536,
        max_transfer: 1 << 20,
        numa_node: None,
        read_only: true,
        discard: false,
        flushes_all: false,
    };
    let cache = Cache::new(Config::new(1 << 20)).unwrap();
    let open = Arc::clone(&gate);
    let volume = cache.volume(Arc::new(Gate { info, open })).unwrap();
    let vnode = volume.vnode(FileId(0), SPAN);
    let page = Random::new(1).below(SPAN / PAGE - 1) + 1;
    let read = || {
        let mut session = volume.session().unwrap();
        let mut open = volume.open(&vnode);
        session
            .read(&mut open, page * PAGE, &mut [0; 4096])
            .unwrap()
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
        until("three have joined the first", || {
            vnode.stats().counts.joins >= 3
        });
        gate.store(true, Relaxed);
        readers
            .into_iter()
            .for_each(|r| assert_eq!(r.join().unwrap(), 4096));
    });
    let counts = vnode.stats().counts;
    assert_eq!((counts.misses, counts.hits), (1, 3), "{counts:?}");
}
