//! The cache against plain bytes: random operations of every kind from several threads, on a device
//! that fails, in a cache that is much too small.
//!
//! Each thread has a file of its own, whose contents it knows at every moment, and a share of two
//! files that all use: their bytes are divided into lanes of `LANE` bytes, assigned to the threads
//! in turn, so that threads share each page and each still knows its bytes. A truncation or
//! extension of a shared file excludes the other threads. Failed write-behind loses nothing, so
//! reads must be correct throughout; only an operation that itself fails is retried.
//!
//! Each thread also maps its file and the shared ones at times. While the device fails, a load may
//! raise SIGBUS, so then the kernel loads and stores on the threads' behalf and gets an error
//! instead; a second run on a working device uses plain loads and stores.
//!
//! Under ThreadSanitizer, with the copies of `src/copy.rs` made through atomics:
//!
//! ```text
//! RUSTFLAGS="-Zsanitizer=thread --cfg evfs_tsan" cargo +nightly test -Zbuild-std \
//!     --target x86_64-unknown-linux-gnu -p evfs-cache --test model
//! ```
//!
//! `EVFS_SEED=N` repeats a run, `EVFS_MODEL_OPS=N` sets the number of operations.

mod common;
#[path = "common/touch.rs"]
mod touch;

use block::{Buf, ErrorKind};
use block_testing::{ErrorDevice, ErrorHandle, Failure, Mem, Random};
use cache::{Access, Cache, Config, FileId, Mapping, OpenFile, Session, Volume};
use common::{Parts, setting};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use touch::{PAGE, kernel_loads, kernel_stores, load_bytes, store_bytes};

const THREADS: u64 = 4;
/// Largest size of a file in bytes.
const SPAN: u64 = 512 << 10;
/// Consecutive bytes of a shared file that belong to one thread; does not divide the page size.
const LANE: u64 = 96;
const SHARED: [FileId; 2] = [FileId(THREADS), FileId(THREADS + 1)];
const CACHE: u64 = 1 << 20;

struct World {
    cache: Arc<Cache>,
    volume: Arc<Volume>,
    pager: Arc<Parts>,
    disk: Arc<Mem>,
    errors: ErrorHandle,
    fails: bool,
    /// State of the shared files; the lock protects their size.
    shared: [RwLock<Shared>; 2],
}

/// Common knowledge of a shared file. Each thread keeps track of its own bytes; a truncation is
/// recorded for all threads.
struct Shared {
    size: u64,
    /// The lowest size since each thread last called [`Actor::look`].
    lowest: [AtomicU64; THREADS as usize],
}

fn world(seed: u64, fails: bool) -> World {
    let disk = Arc::new(Mem::new((THREADS + 2) * SPAN, 512));
    let (device, errors) = ErrorDevice::new(disk.clone());
    let pager = Arc::new(Parts::new(Arc::new(device), SPAN));
    let cache = Cache::new(Config {
        tick: Duration::from_millis(5),
        retry: Duration::from_millis(1),
        sync_interval: Duration::from_millis(30),
        ..Config::new(CACHE)
    })
    .unwrap();
    let volume = cache.volume(pager.clone()).unwrap();
    errors.set(fails.then(|| Failure::by_chance(0.02, seed, ErrorKind::Media)));
    let shared = || {
        RwLock::new(Shared {
            size: SPAN,
            lowest: [const { AtomicU64::new(SPAN) }; THREADS as usize],
        })
    };
    World {
        cache,
        volume,
        pager,
        disk,
        errors,
        fails,
        shared: [shared(), shared()],
    }
}

#[test]
fn everything_agrees_with_plain_bytes_on_a_device_that_fails() {
    everything_agrees_with_plain_bytes(true);
}

#[test]
fn everything_agrees_with_plain_bytes_with_plain_loads_and_stores() {
    everything_agrees_with_plain_bytes(false);
}

fn everything_agrees_with_plain_bytes(fails: bool) {
    let seed = setting("EVFS_SEED", 1);
    let default = if cfg!(debug_assertions) {
        60_000
    } else {
        1_000_000
    };
    let ops = setting("EVFS_MODEL_OPS", default);
    println!("EVFS_SEED={seed} EVFS_MODEL_OPS={ops}");
    let world = world(seed, fails);
    let known: Vec<Known> = std::thread::scope(|scope| {
        let run = |thread| {
            let world = &world;
            scope.spawn(move || {
                let mut actor = Actor::new(world, thread, seed);
                (0..ops / THREADS).for_each(|_| actor.act());
                actor.known
            })
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let stats = world.cache.stats();
    println!("{stats:#?}");
    assert!(stats.counts.hits > 0 && stats.counts.misses > 0 && stats.evicted > 0);
    assert!(stats.mapped_evicted > 0, "no mapped page ever left");
    assert_eq!(world.errors.failed() > 0, fails);
    world.errors.set(None);
    world.volume.flush().ok();
    world.volume.close().unwrap();
    assert_eq!(world.cache.stats().dirty_bytes, 0);
    let below = world.disk.to_vec();
    for (thread, mut known) in known.into_iter().enumerate() {
        for (bytes, shared) in known.shared.iter_mut().zip(&world.shared) {
            Actor::look(bytes, &shared.read().unwrap(), thread as u64);
        }
        let base = thread * SPAN as usize;
        let own = &below[base..base + known.own.len()];
        assert!(
            own == known.own,
            "file {thread} is not whole below, seed {seed}"
        );
        for (bytes, file) in known.shared.iter().zip(SHARED) {
            let base = (file.0 * SPAN) as usize;
            for at in lanes_of(thread as u64) {
                assert_eq!(
                    below[base + at as usize],
                    bytes[at as usize],
                    "byte {at} of file {} below, seed {seed}",
                    file.0
                );
            }
        }
    }
}

/// Returns the bytes of a shared file that belong to a thread.
fn lanes_of(thread: u64) -> impl Iterator<Item = u64> {
    (0..SPAN).filter(move |at| at / LANE % THREADS == thread)
}

/// Contents that a thread expects.
struct Known {
    /// Its own file.
    own: Vec<u8>,
    /// The shared files, of which only its lanes count.
    shared: [Vec<u8>; 2],
}

struct Actor<'a> {
    world: &'a World,
    thread: u64,
    random: Random,
    session: Session,
    own: OpenFile,
    shared: [OpenFile; 2],
    /// Mappings of the thread's own file and of the shared ones.
    mapped: [Option<Mapping>; 3],
    known: Known,
}

impl<'a> Actor<'a> {
    fn new(world: &'a World, thread: u64, seed: u64) -> Actor<'a> {
        let volume = &world.volume;
        let open = |file, size| volume.open(&volume.vnode(file, size));
        Actor {
            world,
            thread,
            random: Random::new(seed * 1000 + thread),
            session: volume.session().unwrap(),
            own: open(FileId(thread), 0),
            shared: SHARED.map(|file| open(file, SPAN)),
            mapped: [const { None }; 3],
            known: Known {
                own: Vec::new(),
                shared: [vec![0; SPAN as usize], vec![0; SPAN as usize]],
            },
        }
    }

    fn act(&mut self) {
        match self.random.below(130) {
            0..20 => self.read_own(),
            20..40 => self.write_own(),
            40..42 => self.truncate_own(),
            42..45 => self.punch_own(),
            45..49 => self.read_own_direct(),
            49..52 => self.write_own_direct(),
            52..56 => self.hold_pages(),
            56..58 => drop(self.session.flush(&mut self.own)),
            58..59 => drop(self.session.invalidate(&mut self.own, 0..SPAN)),
            59..61 => self.session.prefetch(&self.own, 0..SPAN),
            61..62 => self.squeeze(),
            62..63 => self.stream_own(),
            63..64 => self.advise(),
            64..80 => self.read_shared(),
            80..97 => self.write_shared(),
            97..98 => self.resize_shared(),
            98..99 => self.read_shared_direct(),
            99..100 => drop(self.session.flush(&mut self.shared[0])),
            100..108 => self.load_own(),
            108..116 => self.store_own(),
            116..122 => self.load_shared(),
            122..128 => self.store_shared(),
            _ => self.map_or_unmap(),
        }
    }

    /// Returns a range of a file of this size: mostly short, rarely long, at any byte.
    fn range(&mut self, size: u64) -> (u64, usize) {
        let longest = if self.random.below(20) == 0 {
            100_000
        } else {
            6000
        };
        let offset = self.random.below(size.max(1));
        (
            offset,
            1 + self.random.below(longest.min(SPAN - offset)) as usize,
        )
    }

    fn read_own(&mut self) {
        let (offset, len) = self.range(SPAN);
        let mut out = vec![0xaa; len];
        let Ok(count) = self.session.read(&mut self.own, offset, &mut out) else {
            return;
        };
        let known = self.known.own.get(offset as usize..).unwrap_or_default();
        assert_eq!(count, known.len().min(len), "at {offset}");
        if let Some(at) = (0..count).find(|at| out[*at] != known[*at]) {
            panic!(
                "thread {}: read of {len} at {offset}: byte {} is {} and not {}",
                self.thread,
                offset + at as u64,
                out[at],
                known[at]
            );
        }
    }

    /// Reads sequentially, forward or backward, so that the background thread reads ahead.
    fn stream_own(&mut self) {
        let size = self.known.own.len() as u64;
        let mut pieces: Vec<u64> = (0..size).step_by(5000).collect();
        if self.random.below(2) == 0 {
            pieces.reverse();
        }
        let pieces = pieces.into_iter().take(12);
        for offset in pieces {
            let mut out = [0xaa; 5000];
            let Ok(count) = self.session.read(&mut self.own, offset, &mut out) else {
                return;
            };
            let known = &self.known.own[offset as usize..];
            assert_eq!(count, known.len().min(5000));
            assert!(out[..count] == known[..count], "a stream at {offset}");
        }
    }

    /// Changes the attributes of one of this thread's files: no caching, no read-ahead,
    /// flush-behind.
    fn advise(&mut self) {
        let file = match self.random.below(3) {
            0 => FileId(self.thread),
            which => SHARED[which as usize - 1],
        };
        let yes = ["no", "yes"][self.random.below(2) as usize];
        let flush = ["0", "1", "2", "default"][self.random.below(4) as usize];
        let changes = [
            ("no_cache", yes),
            ("read_ahead", yes),
            ("flush_behind", flush),
        ];
        self.world.volume.advise(file, changes).unwrap();
    }

    fn write_own(&mut self) {
        let (offset, len) = self.range(SPAN);
        let mut data = vec![0; len];
        self.random.fill(&mut data);
        while self.session.write(&mut self.own, offset, &data).is_err() {}
        let end = offset as usize + len;
        let known = &mut self.known.own;
        known.resize(known.len().max(end), 0);
        known[offset as usize..end].copy_from_slice(&data);
    }

    fn truncate_own(&mut self) {
        let size = self.random.below(SPAN);
        let shorter = size < self.own.vnode().size();
        while self.session.truncate(&mut self.own, size).is_err() {}
        if shorter {
            self.world.pager.forget_from(FileId(self.thread), size);
        }
        self.known.own.resize(size as usize, 0);
    }

    fn punch_own(&mut self) {
        let (offset, len) = self.range(SPAN);
        let end = offset + len as u64;
        while self.session.punch(&mut self.own, offset..end).is_err() {}
        let size = self.known.own.len();
        let from = (offset as usize).min(size);
        self.known.own[from..(end as usize).min(size)].fill(0);
    }

    /// Returns a range of whole blocks within the thread's own file, if it has any.
    fn blocks(&mut self) -> Option<(u64, usize)> {
        let blocks = self.known.own.len() as u64 / 512;
        let first = self.random.below(blocks.max(1));
        let count = 1 + self
            .random
            .below((blocks.saturating_sub(first)).clamp(1, 32));
        (first + count <= blocks).then_some((first * 512, count as usize * 512))
    }

    fn read_own_direct(&mut self) {
        let Some((offset, len)) = self.blocks() else {
            return;
        };
        let buf = Buf::zeroed(len).into();
        if let Ok(bufs) = self.session.read_direct(&mut self.own, offset, buf) {
            let known = &self.known.own[offset as usize..offset as usize + len];
            assert!(
                bufs.iter().flat_map(|b| b.iter()).eq(known),
                "direct at {offset}"
            );
        }
    }

    fn write_own_direct(&mut self) {
        let Some((offset, len)) = self.blocks() else {
            return;
        };
        let mut buf = Buf::zeroed(len);
        self.random.fill(&mut buf);
        while self
            .session
            .write_direct(&mut self.own, offset, Buf::copy_of(&buf).into())
            .is_err()
        {}
        self.known.own[offset as usize..offset as usize + len].copy_from_slice(&buf);
    }

    /// Checks that held pages do not change during writes.
    fn hold_pages(&mut self) {
        let pages = self.known.own.len() as u64 / 4096;
        if pages == 0 {
            return;
        }
        let first = self.random.below(pages);
        let count = 1 + self.random.below((pages - first).min(4));
        let (from, to) = (first * 4096, (first + count) * 4096);
        let volume = &self.world.volume;
        let mut other = volume.open(self.own.vnode());
        let Ok(held) = self.session.pages(&mut other, from..to) else {
            return;
        };
        let known = self.known.own[from as usize..to as usize].to_vec();
        let mut data = vec![0; known.len()];
        self.random.fill(&mut data);
        if self.random.below(2) == 0 {
            while self.session.write(&mut self.own, from, &data).is_err() {}
            self.known.own[from as usize..to as usize].copy_from_slice(&data);
        }
        assert!(
            held.iter().flat_map(|p| p.iter()).eq(&known),
            "a held page changed"
        );
    }

    fn squeeze(&mut self) {
        let cache = &self.world.cache;
        match self.random.below(3) {
            0 => drop(cache.shrink(self.random.below(CACHE))),
            1 => cache.set_max_bytes(CACHE / 2 + self.random.below(CACHE / 2)),
            _ => cache.set_max_bytes(CACHE),
        }
    }

    /// Returns a range in one of this thread's lanes.
    fn lane(&mut self, size: u64) -> Option<(u64, usize)> {
        let lanes = size / (LANE * THREADS);
        let lane = self.random.below(lanes.max(1)) * THREADS + self.thread;
        let within = self.random.below(LANE);
        let len = 1 + self.random.below(LANE - within);
        let offset = lane * LANE + within;
        (offset + len <= size).then_some((offset, len as usize))
    }

    /// Applies truncations of a shared file by other threads to the expected contents.
    fn look(known: &mut [u8], shared: &Shared, thread: u64) {
        let lowest = shared.lowest[thread as usize].swap(SPAN, Relaxed);
        known[lowest as usize..].fill(0);
    }

    fn read_shared(&mut self) {
        let which = self.random.below(2) as usize;
        let shared = self.world.shared[which].read().unwrap();
        Self::look(&mut self.known.shared[which], &shared, self.thread);
        let Some((offset, len)) = self.lane(shared.size) else {
            return;
        };
        let mut out = vec![0xaa; len];
        if let Ok(count) = self.session.read(&mut self.shared[which], offset, &mut out) {
            assert_eq!(count, len);
            let known = &self.known.shared[which][offset as usize..offset as usize + len];
            assert_eq!(
                out, known,
                "thread {}, file {which} at {offset}",
                self.thread
            );
        }
    }

    fn write_shared(&mut self) {
        let which = self.random.below(2) as usize;
        let shared = self.world.shared[which].read().unwrap();
        Self::look(&mut self.known.shared[which], &shared, self.thread);
        let Some((offset, len)) = self.lane(shared.size) else {
            return;
        };
        let known = &mut self.known.shared[which][offset as usize..offset as usize + len];
        self.random.fill(known);
        while self
            .session
            .write(&mut self.shared[which], offset, known)
            .is_err()
        {}
    }

    fn read_shared_direct(&mut self) {
        let which = self.random.below(2) as usize;
        let shared = self.world.shared[which].read().unwrap();
        Self::look(&mut self.known.shared[which], &shared, self.thread);
        let Some((offset, len)) = self.lane(shared.size / 512 * 512) else {
            return;
        };
        let from = offset / 512 * 512;
        let to = (offset + len as u64).next_multiple_of(512);
        let buf = Buf::zeroed((to - from) as usize).into();
        if let Ok(bufs) = self.session.read_direct(&mut self.shared[which], from, buf) {
            let bytes = &bufs.as_slice()[0][(offset - from) as usize..][..len];
            let known = &self.known.shared[which][offset as usize..offset as usize + len];
            assert_eq!(bytes, known, "direct, file {which} at {offset}");
        }
    }

    fn map_or_unmap(&mut self) {
        let which = self.random.below(3) as usize;
        let open = match which {
            0 => &self.own,
            shared => &self.shared[shared - 1],
        };
        self.mapped[which] = match self.mapped[which].take() {
            Some(_) => None,
            None => Some(open.map(0..SPAN, Access::Store).unwrap()),
        };
    }

    fn load_own(&mut self) {
        let (size, Some(mapping)) = (self.known.own.len() as u64, &self.mapped[0]) else {
            return;
        };
        if size > 0 {
            let offset = self.random.below(size);
            let len = 1 + self.random.below((size - offset).min(5000)) as usize;
            let known = &self.known.own[offset as usize..offset as usize + len];
            load_and_compare(self.world, mapping, offset, known);
        }
    }

    fn store_own(&mut self) {
        let (size, Some(mapping)) = (self.known.own.len() as u64, &self.mapped[0]) else {
            return;
        };
        if size > 0 {
            let offset = self.random.below(size);
            let len = 1 + self.random.below((size - offset).min(5000)) as usize;
            let known = &mut self.known.own[offset as usize..offset as usize + len];
            self.random.fill(known);
            store_surely(self.world, mapping, offset, known);
        }
    }

    fn load_shared(&mut self) {
        let which = self.random.below(2) as usize;
        let shared = self.world.shared[which].read().unwrap();
        Self::look(&mut self.known.shared[which], &shared, self.thread);
        let lane = self.lane(shared.size);
        if let (Some((offset, len)), Some(mapping)) = (lane, &self.mapped[1 + which]) {
            let known = &self.known.shared[which][offset as usize..offset as usize + len];
            load_and_compare(self.world, mapping, offset, known);
        }
    }

    fn store_shared(&mut self) {
        let which = self.random.below(2) as usize;
        let shared = self.world.shared[which].read().unwrap();
        Self::look(&mut self.known.shared[which], &shared, self.thread);
        let lane = self.lane(shared.size);
        if let (Some((offset, len)), Some(mapping)) = (lane, &self.mapped[1 + which]) {
            let known = &mut self.known.shared[which][offset as usize..offset as usize + len];
            self.random.fill(known);
            store_surely(self.world, mapping, offset, known);
        }
    }

    /// Truncates a shared file, and extends it again.
    fn resize_shared(&mut self) {
        let which = self.random.below(2) as usize;
        let mut shared = self.world.shared[which].write().unwrap();
        let open = &mut self.shared[which];
        let size = SPAN - self.random.below(SPAN / 8);
        while self.session.truncate(open, size).is_err() {}
        if size < shared.size {
            self.world.pager.forget_from(SHARED[which], size);
            for lowest in &shared.lowest {
                lowest.fetch_min(size, Relaxed);
            }
        }
        let longer = size + self.random.below(SPAN - size + 1);
        while self.session.truncate(open, longer).is_err() {}
        shared.size = longer;
    }
}

/// Splits a range into parts that do not cross a page: file offset, and position within the range.
fn parts_in_pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let part = done..len.min(done + (PAGE - at % PAGE) as usize);
        done = part.end;
        (!part.is_empty()).then_some((at, part))
    })
}

/// Removes poison, so that the next access may find the page.
fn heal(mapping: &Mapping, offset: u64, access: Access) {
    let at = offset as usize;
    while mapping.prefault(at..at + 1, access).is_err() {}
}

fn load_and_compare(world: &World, mapping: &Mapping, offset: u64, known: &[u8]) {
    let mut found = vec![0xaa; known.len()];
    if !world.fails {
        load_bytes(mapping, offset, &mut found);
    } else {
        for (at, part) in parts_in_pages(offset, known.len()) {
            while kernel_loads(mapping, at, &mut found[part.clone()]).is_err() {
                heal(mapping, at, Access::Read);
            }
        }
    }
    if let Some(at) = (0..known.len()).find(|at| found[*at] != known[*at]) {
        panic!(
            "load of {} at {offset}: byte {} is {} and not {}",
            known.len(),
            offset + at as u64,
            found[at],
            known[at]
        );
    }
}

fn store_surely(world: &World, mapping: &Mapping, offset: u64, data: &[u8]) {
    if !world.fails {
        return store_bytes(mapping, offset, data);
    }
    for (at, part) in parts_in_pages(offset, data.len()) {
        while kernel_stores(mapping, at, &data[part.clone()]).is_err() {
            heal(mapping, at, Access::Store);
        }
    }
}
