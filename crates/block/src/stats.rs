//! Counts requests: number, bytes, errors and latency of each kind.
//!
//! **Invariant:** each queue writes its own counters, with plain loads and stores, so counting
//! costs no locked instruction and no shared cache line; a reader adds up the queues. A snapshot
//! therefore combines values from slightly different moments. The counts of a queue remain when it
//! is dropped.

use crate::{BlockDevice, BufPool, Completion, DeviceInfo, OpKind, Queue, Request, Result, Wait};
use schemars::JsonSchema;
use serde::Serialize;
use slab::Slab;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Number of kinds of requests in [`KINDS`].
const KIND_COUNT: usize = 5;
const KINDS: [OpKind; KIND_COUNT] = [
    OpKind::Read,
    OpKind::Write,
    OpKind::Flush,
    OpKind::Discard,
    OpKind::WriteZeroes,
];

/// Buckets of the latency histogram: four for each power of two of nanoseconds, so a quantile is at
/// most a quarter too high.
const BUCKETS: usize = 64 * 4;

/// A device that counts the requests to its lower device.
pub struct Stats {
    lower: Arc<dyn BlockDevice>,
    shared: Arc<Mutex<Shared>>,
}

/// Handle that reads the counters of a [`Stats`].
#[derive(Clone)]
pub struct StatsHandle(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// Counters of open queues.
    open: Vec<Arc<[Counters; KIND_COUNT]>>,
    /// Sum of the counters of closed queues.
    closed: [Totals; KIND_COUNT],
}

/// Counters of one kind on one queue. Only the queue's thread writes them.
struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Counters of one kind, added up over queues.
#[derive(Clone)]
struct Totals {
    requests: u64,
    bytes: u64,
    errors: u64,
    total_ns: u64,
    max_ns: u64,
    buckets: [u64; BUCKETS],
}

/// Statistics of one kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KindStats {
    /// Requests that ended, with or without an error.
    pub requests: u64,
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Sum of all latencies in nanoseconds; divided by `requests` it is the mean.
    pub total_ns: u64,
    /// Median latency from submit to reap, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile of the latency, in nanoseconds.
    pub p99_ns: u64,
    /// Maximum latency, in nanoseconds.
    pub max_ns: u64,
}

/// Statistics of a device, by kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Snapshot {
    /// Statistics of reads.
    pub read: KindStats,
    /// Statistics of writes.
    pub write: KindStats,
    /// Statistics of flushes.
    pub flush: KindStats,
    /// Statistics of discards.
    pub discard: KindStats,
    /// Statistics of write-zeroes requests.
    pub write_zeroes: KindStats,
}

/// Statistics of one kind of request, with the distribution of its latency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindHistogram {
    /// Kind of request.
    pub kind: OpKind,
    /// Statistics of that kind.
    pub stats: KindStats,
    /// Non-empty buckets in ascending order: upper edge in nanoseconds, and number of requests.
    pub latencies: Vec<(u64, u64)>,
}

impl Stats {
    /// Creates a device that counts the requests to `lower`, and the handle to read its counters.
    pub fn new(lower: Arc<dyn BlockDevice>) -> (Stats, StatsHandle) {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let handle = StatsHandle(Arc::clone(&shared));
        (Stats { lower, shared }, handle)
    }
}

impl StatsHandle {
    /// Sums the current statistics of all queues together.
    pub fn snapshot(&self) -> Snapshot {
        let [read, write, flush, discard, write_zeroes] =
            lock(&self.0).totals().each_ref().map(Totals::summary);
        Snapshot {
            read,
            write,
            flush,
            discard,
            write_zeroes,
        }
    }

    /// Builds the latency histogram of one kind in ascending order: for each non-empty bucket, its
    /// upper edge in nanoseconds and its number of requests.
    pub fn latencies(&self, kind: OpKind) -> Vec<(u64, u64)> {
        lock(&self.0).totals()[index(kind)].latencies()
    }

    /// Reads statistics and latency histograms of all kinds. Takes no lock that a request takes.
    pub fn histograms(&self) -> Vec<KindHistogram> {
        let totals = lock(&self.0).totals();
        let all = KINDS.iter().zip(&totals);
        all.map(|(kind, totals)| KindHistogram {
            kind: *kind,
            stats: totals.summary(),
            latencies: totals.latencies(),
        })
        .collect()
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().expect("no panic under this lock")
}

fn index(kind: OpKind) -> usize {
    KINDS
        .iter()
        .position(|k| *k == kind)
        .expect("the table holds every kind")
}

/// Maps a latency to its bucket: its power of two, and the two bits below the highest.
fn bucket(ns: u64) -> usize {
    let ns = ns.max(4);
    let power = ns.ilog2();
    (power * 4 + (ns >> (power - 2) & 3) as u32) as usize
}

/// Computes the smallest latency above a bucket, in nanoseconds.
fn upper_edge(bucket: usize) -> u64 {
    let (power, quarter) = ((bucket / 4) as u32, (bucket % 4) as u64);
    let edge = (u128::from(5 + quarter) << power) >> 2;
    u64::try_from(edge).unwrap_or(u64::MAX)
}

/// Adds to a counter that no other thread writes: a load and a store, no locked instruction.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    fn new() -> Counters {
        Counters {
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    fn count(&self, completion: &Completion, ns: u64) {
        add(&self.requests, 1);
        match &completion.result {
            Ok(()) => add(&self.bytes, completion.op.range().map_or(0, |(_, len)| len)),
            Err(_) => add(&self.errors, 1),
        }
        add(&self.total_ns, ns);
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.store(ns, Relaxed);
        }
        add(&self.buckets[bucket(ns)], 1);
    }
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            requests: 0,
            bytes: 0,
            errors: 0,
            total_ns: 0,
            max_ns: 0,
            buckets: [0; BUCKETS],
        }
    }
}

impl Shared {
    fn totals(&self) -> [Totals; KIND_COUNT] {
        let mut totals = self.closed.clone();
        for queue in &self.open {
            for (total, counters) in totals.iter_mut().zip(queue.iter()) {
                total.add(counters);
            }
        }
        totals
    }

    fn close(&mut self, queue: &Arc<[Counters; KIND_COUNT]>) {
        self.open.retain(|open| !Arc::ptr_eq(open, queue));
        for (total, counters) in self.closed.iter_mut().zip(queue.iter()) {
            total.add(counters);
        }
    }
}

impl Totals {
    fn add(&mut self, counters: &Counters) {
        self.requests += counters.requests.load(Relaxed);
        self.bytes += counters.bytes.load(Relaxed);
        self.errors += counters.errors.load(Relaxed);
        self.total_ns = self.total_ns.wrapping_add(counters.total_ns.load(Relaxed));
        self.max_ns = self.max_ns.max(counters.max_ns.load(Relaxed));
        for (sum, bucket) in self.buckets.iter_mut().zip(&counters.buckets) {
            *sum += bucket.load(Relaxed);
        }
    }

    /// Estimates the latency that `per_cent` of all requests did not exceed, as the upper edge of
    /// its bucket.
    fn quantile(&self, per_cent: u64) -> u64 {
        // Counted from the buckets, not from `requests`: a queue may have updated only one of them.
        let total: u64 = self.buckets.iter().sum();
        let rank = (total * per_cent).div_ceil(100).max(1);
        let mut seen = 0;
        let at = self.buckets.iter().position(|n| {
            seen += n;
            seen >= rank
        });
        at.map_or(0, |at| upper_edge(at).min(self.max_ns))
    }

    /// Returns the upper edges and numbers of the non-empty buckets.
    fn latencies(&self) -> Vec<(u64, u64)> {
        let filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        filled.map(|(at, n)| (upper_edge(at), *n)).collect()
    }

    fn summary(&self) -> KindStats {
        KindStats {
            requests: self.requests,
            bytes: self.bytes,
            errors: self.errors,
            total_ns: self.total_ns,
            p50_ns: self.quantile(50),
            p99_ns: self.quantile(99),
            max_ns: self.max_ns,
        }
    }
}

impl BlockDevice for Stats {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn update_size(&self) -> Result<u64> {
        self.lower.update_size()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let lower = self.lower.queue()?;
        let capacity = lower.capacity();
        let counters = Arc::new(std::array::from_fn(|_| Counters::new()));
        lock(&self.shared).open.push(Arc::clone(&counters));
        Ok(Box::new(StatsQueue {
            lower,
            counters,
            shared: Arc::clone(&self.shared),
            tags: Slab::with_capacity(capacity),
            below: Vec::new(),
        }))
    }
}

struct StatsQueue {
    lower: Box<dyn Queue>,
    counters: Arc<[Counters; KIND_COUNT]>,
    shared: Arc<Mutex<Shared>>,
    /// The caller's tag and the submit time of each request in the lower queue, by its tag there.
    tags: Slab<(u64, Instant)>,
    below: Vec<Completion>,
}

impl Drop for StatsQueue {
    fn drop(&mut self) {
        lock(&self.shared).close(&self.counters);
    }
}

impl Queue for StatsQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.tags.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        // Taken before the submit: some devices do all their work in it.
        let since = Instant::now();
        let Request { tag, op } = request;
        let slot = self.tags.vacant_entry();
        let lower = Request {
            tag: slot.key() as u64,
            op,
        };
        match self.lower.submit(lower) {
            Ok(()) => {
                slot.insert((tag, since));
                Ok(())
            }
            Err(Request { op, .. }) => Err(Request { tag, op }),
        }
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let reaped = self.lower.reap(wait, &mut self.below);
        if self.below.is_empty() {
            return reaped;
        }
        let (now, count) = (Instant::now(), self.below.len());
        for mut completion in self.below.drain(..) {
            // Each tag of the lower queue stands for one request.
            let (tag, since) = self.tags.remove(completion.tag as usize);
            completion.tag = tag;
            let ns = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            self.counters[index(completion.op.kind())].count(&completion, ns);
            done.push(completion);
        }
        reaped.map(|_| count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_lies_in_its_bucket() {
        for ns in [0, 4, 5, 7, 8, 9, 100, 1023, 1024, 123_456_789, u64::MAX] {
            let at = bucket(ns);
            assert!(at < BUCKETS);
            assert!(upper_edge(at) >= ns, "{ns}");
            assert!(at == 0 || upper_edge(at - 1) <= ns.max(4), "{ns}");
            // A quantile is at most a quarter too high.
            assert!(
                u128::from(upper_edge(at)) * 4 <= u128::from(ns.max(4)) * 5,
                "{ns}"
            );
        }
    }

    #[test]
    fn quantiles_come_from_the_right_requests() {
        let counters = Counters::new();
        for i in 0..100 {
            let completion = Completion {
                tag: 0,
                op: crate::Op::Flush,
                result: Ok(()),
            };
            counters.count(&completion, if i < 98 { 1000 } else { 1_000_000 });
        }
        let mut totals = Totals::default();
        totals.add(&counters);
        let seen = totals.summary();
        assert!((1000..=1250).contains(&seen.p50_ns), "{seen:?}");
        assert!((800_000..=1_000_000).contains(&seen.p99_ns), "{seen:?}");
        assert_eq!((seen.max_ns, seen.total_ns), (1_000_000, 2_098_000));
        assert_eq!(Totals::default().summary(), KindStats::default());
    }
}
