//! Streams through a cache: the read-ahead for them, its cost for others, and its exact counters.

mod common;

use block::BlockDevice;
use block_testing::{Delay, Mem, Random};
use cache::{Cache, Config, FileId, OpenFile, Session, Vnode, Volume};
use common::{Parts, until};
use std::sync::Arc;
use std::time::Duration;

const SPAN: u64 = 16 << 20;
const FILES: u64 = 3;
const PAGE: u64 = 4096;

struct Bench {
    cache: Arc<Cache>,
    volume: Arc<Volume>,
    content: Vec<u8>,
}

/// Creates three files on a disk whose reads take a while, so that read-ahead pays off.
fn bench(cache_bytes: u64) -> Bench {
    let mut content = vec![0; (FILES * SPAN) as usize];
    Random::new(1).fill(&mut content);
    let disk: Arc<dyn BlockDevice> = Arc::new(Mem::holding(&content, 512));
    let slow = Delay::new(disk, Duration::from_millis(1), Duration::ZERO);
    let cache = Cache::new(Config {
        tick: Duration::from_millis(5),
        ..Config::new(cache_bytes)
    });
    let cache = cache.unwrap();
    let volume = cache.volume(Arc::new(Parts::new(Arc::new(slow), SPAN)));
    Bench {
        volume: volume.unwrap(),
        cache,
        content,
    }
}

impl Bench {
    fn open(&self, file: u64) -> (Session, OpenFile, Arc<Vnode>) {
        let vnode = self.volume.vnode(FileId(file), SPAN);
        let session = self.volume.session().unwrap();
        (session, self.volume.open(&vnode), vnode)
    }

    /// Reads a piece of a file, and checks its contents.
    fn read(&self, session: &mut Session, open: &mut OpenFile, at: u64, len: usize) {
        let mut out = vec![0; len];
        assert_eq!(session.read(open, at, &mut out).unwrap(), len);
        let base = (open.vnode().file().0 * SPAN + at) as usize;
        assert!(out == self.content[base..base + len], "at {at}");
    }
}

/// Reads a fresh file in these pieces; returns the number of pages read ahead and used, and of
/// pages read ahead.
fn stream(pieces: impl Iterator<Item = (u64, usize)>) -> (u64, u64) {
    let bench = bench(64 << 20);
    let (mut session, mut open, vnode) = bench.open(0);
    pieces.for_each(|(at, len)| bench.read(&mut session, &mut open, at, len));
    let counts = vnode.stats().counts;
    (counts.read_ahead_used, counts.read_ahead)
}

#[test]
fn a_file_read_forward_is_there_before_it_is_wanted() {
    let (used, _) = stream((0..SPAN).step_by(16 << 10).map(|at| (at, 16 << 10)));
    assert!(used > SPAN / PAGE / 2, "{used} pages");
}

#[test]
fn a_file_read_backward_is_there_before_it_is_wanted() {
    let pieces = (0..SPAN >> 14).rev().map(|n| (n << 14, 16 << 10));
    let (used, _) = stream(pieces);
    assert!(used > SPAN / PAGE / 2, "{used} pages");
}

#[test]
fn records_at_a_stride_are_there_and_not_what_lies_between() {
    const STRIDE: u64 = 64 << 10;
    let records = SPAN / STRIDE;
    let pieces = (0..records).map(|n| (n * STRIDE + 100, 8000));
    let (used, brought) = stream(pieces);
    assert!(used > records, "{used} of {} pages", 2 * records);
    assert!(brought <= 3 * records, "{brought} pages");
}

#[test]
fn random_reads_bring_little_else() {
    let mut random = Random::new(3);
    let pieces = (0..300).map(|n| ((random.below(SPAN / PAGE / 300) + n * 13) * PAGE, 4096));
    let mut pieces: Vec<_> = pieces.collect();
    pieces.sort_by_key(|(at, _)| at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (_, brought) = stream(pieces.into_iter());
    // Three of eight are occasionally at equal distances.
    assert!(brought <= 300, "{brought} pages for 300");
}

#[test]
fn what_was_brought_ahead_was_used_or_wasted_or_is_there() {
    let bench = bench(8 << 20);
    let (mut session, mut open, vnode) = bench.open(0);
    for at in (0..2 << 20).step_by(16 << 10) {
        bench.read(&mut session, &mut open, at, 16 << 10);
    }
    assert_eq!(vnode.stats().counts.read_ahead_wasted, 0);
    until("more is there than was used", || {
        vnode.stats().counts.read_ahead_unused() > 0
    });
    until("all of it was counted when it left", || {
        bench.volume.drop_pages().unwrap();
        vnode.stats().counts.read_ahead_unused() == 0
    });
    let counts = vnode.stats().counts;
    assert_eq!(
        counts.read_ahead,
        counts.read_ahead_used + counts.read_ahead_wasted
    );
    assert!(counts.read_ahead_used > 0 && counts.read_ahead_wasted > 0);
    assert!(counts.dropped >= counts.read_ahead_wasted);
}

#[test]
fn a_file_or_the_cache_may_say_that_nothing_is_read_ahead() {
    let bench = bench(64 << 20);
    let read = |file: u64| {
        let (mut session, mut open, vnode) = bench.open(file);
        for at in (0..1 << 20).step_by(16 << 10) {
            bench.read(&mut session, &mut open, at, 16 << 10);
        }
        vnode
    };
    bench.volume.vnode(FileId(0), SPAN);
    let advised = bench.volume.advise(FileId(0), [("read_ahead", "no")]);
    assert!(advised.unwrap().unwrap().no_read_ahead);
    assert_eq!(read(0).stats().counts.read_ahead, 0);
    let memory = bench.cache.settings().filecache_max * 2;
    let now = bench.cache.tunables();
    let (off, _) = now
        .with(
            [
                ("read_ahead_max", "0"),
                ("filecache_max", "1MB"),
                ("filecache_min", "1MB"),
            ],
            memory,
        )
        .unwrap();
    bench.cache.set(&off).unwrap();
    assert_eq!(read(1).stats().counts.read_ahead, 0);
    let (on, _) = off
        .with(
            [("read_ahead_max", "1MB"), ("filecache_max", "32MB")],
            memory,
        )
        .unwrap();
    bench.cache.set(&on).unwrap();
    until("streams are read ahead again", || {
        bench.volume.drop_file(FileId(2)).unwrap();
        read(2).stats().counts.read_ahead > 0
    });
}

#[test]
fn a_file_that_is_not_to_be_kept_leaves_behind_its_reader() {
    let bench = bench(64 << 20);
    let (mut session, mut open, vnode) = bench.open(0);
    bench
        .volume
        .advise(FileId(0), [("no_cache", "yes")])
        .unwrap();
    for at in (0..SPAN).step_by(10_000) {
        let len = 10_000.min(SPAN - at) as usize;
        bench.read(&mut session, &mut open, at, len);
        // At most one window and a half ahead of the reader, and its current page.
        let resident = vnode.stats().resident_bytes;
        assert!(resident <= 4 << 20, "{resident} bytes at {at}");
    }
    let counts = vnode.stats().counts;
    assert!(counts.left_behind >= SPAN / PAGE, "{counts:?}");
    // First drop pages that the background thread loaded late, behind the reader.
    bench.volume.drop_file(FileId(0)).unwrap();
    // Written pages are dropped when they have been written back, and not before.
    session.write(&mut open, 0, &[7; 50_000]).unwrap();
    session.flush(&mut open).unwrap();
    until("they have left", || vnode.stats().resident_bytes == 0);
    let mut back = [0; 50_000];
    session.read(&mut open, 0, &mut back).unwrap();
    assert_eq!(back, [7; 50_000]);
}

#[test]
fn a_scan_that_is_read_ahead_does_not_wipe_a_hot_set() {
    const HOT: u64 = 100;
    let bench = bench(1 << 20);
    let (mut session, mut hot, vnode) = bench.open(0);
    let (_, mut scan, scanned) = bench.open(1);
    let mut random = Random::new(5);
    let mut look = |session: &mut Session, hot: &mut OpenFile| {
        let page = random.below(HOT);
        bench.read(session, hot, page * PAGE, 4096);
    };
    (0..20 * HOT).for_each(|_| look(&mut session, &mut hot));
    let before = vnode.stats().counts;
    for at in (0..SPAN).step_by(32 << 10) {
        bench.read(&mut session, &mut scan, at, 32 << 10);
        (0..16).for_each(|_| look(&mut session, &mut hot));
    }
    let after = vnode.stats().counts;
    assert!(scanned.stats().counts.read_ahead_used > 0);
    let (misses, all) = (after.misses - before.misses, SPAN / (32 << 10) * 16);
    assert!(
        misses * 10 <= all,
        "{misses} of {all} looks at the hot set missed"
    );
}

#[test]
fn abandoned_streams_take_an_eighth_of_the_cache() {
    let bench = bench(4 << 20);
    let mut opens = Vec::new();
    for n in 0..60 {
        let (mut session, mut open, _) = bench.open(n % FILES);
        let from = n / FILES * (SPAN / 20);
        for at in 0..4 {
            bench.read(&mut session, &mut open, from + at * PAGE, 4096);
        }
        opens.push(open);
        let counts = bench.cache.stats().counts;
        assert!(
            counts.read_ahead_unused() <= (4 << 20) / PAGE / 8,
            "{counts:?}"
        );
    }
    assert!(bench.cache.stats().counts.read_ahead > 0);
}

#[test]
fn a_file_with_large_pages_comes_by_whole_clusters() {
    let bench = bench(16 << 20);
    let (mut session, mut open, vnode) = bench.open(0);
    let changes = [("large_page", "yes"), ("read_ahead", "no")];
    bench.volume.advise(FileId(0), changes).unwrap();
    let cluster = 64 << 10;
    bench.read(&mut session, &mut open, 5 * cluster + 8192, 100);
    until("the cluster is there", || {
        vnode.stats().resident_bytes == cluster
    });
    // Across the border of two clusters, and at the end of the file.
    bench.read(&mut session, &mut open, 9 * cluster - 10, 20);
    bench.read(&mut session, &mut open, SPAN - 100, 100);
    until("three more are there", || {
        vnode.stats().resident_bytes == 4 * cluster
    });
    for at in [5 * cluster, 8 * cluster, 9 * cluster, SPAN - cluster] {
        bench.read(&mut session, &mut open, at, cluster as usize);
    }
    assert_eq!(vnode.stats().resident_bytes, 4 * cluster);
}
