//! Counts what passes: requests, bytes, errors and latency of each kind.
//!
//! Counters are shared by all queues and only ever added to, without ordering between them: a
//! snapshot is a sum of moments that lie close together, not one moment.

use super::drain;
use crate::{BlockDevice, BufPool, Completion, DeviceInfo, OpKind, Queue, Request, Result, Wait};
use serde::Serialize;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Buckets of the latency histogram: four for each power of two of nanoseconds, so a quantile is
/// known within 19 %.
const BUCKETS: usize = 64 * 4;

/// A device that counts.
pub struct Stats {
    lower: Arc<dyn BlockDevice>,
    counters: Arc<[Counters; 5]>,
}

/// Reads the counters of a [`Stats`].
#[derive(Clone)]
pub struct StatsHandle(Arc<[Counters; 5]>);

struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The counters of one kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KindStats {
    /// Requests that ended, well or not.
    pub requests: u64,
    /// Bytes of requests that ended well.
    pub bytes: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Median latency from submit to reap, in nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100 requests were faster.
    pub p99_ns: u64,
    /// The slowest.
    pub max_ns: u64,
}

/// The counters of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Reads.
    pub read: KindStats,
    /// Writes.
    pub write: KindStats,
    /// Flushes.
    pub flush: KindStats,
    /// Discards.
    pub discard: KindStats,
    /// Write-zeroes.
    pub write_zeroes: KindStats,
}

impl Stats {
    /// Counts what goes to `lower`.
    pub fn new(lower: Arc<dyn BlockDevice>) -> (Stats, StatsHandle) {
        let counters: Arc<[Counters; 5]> = Arc::new(std::array::from_fn(|_| Counters {
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
        }));
        (
            Stats {
                lower,
                counters: Arc::clone(&counters),
            },
            StatsHandle(counters),
        )
    }
}

impl StatsHandle {
    /// The counters as they are now.
    pub fn snapshot(&self) -> Snapshot {
        let of = |kind: OpKind| self.0[index(kind)].snapshot();
        Snapshot {
            read: of(OpKind::Read),
            write: of(OpKind::Write),
            flush: of(OpKind::Flush),
            discard: of(OpKind::Discard),
            write_zeroes: of(OpKind::WriteZeroes),
        }
    }
}

fn index(kind: OpKind) -> usize {
    match kind {
        OpKind::Read => 0,
        OpKind::Write => 1,
        OpKind::Flush => 2,
        OpKind::Discard => 3,
        OpKind::WriteZeroes => 4,
    }
}

/// The bucket of a latency: its power of two, and the two bits below the highest.
fn bucket(ns: u64) -> usize {
    let ns = ns.max(4);
    let power = ns.ilog2();
    (power * 4 + (ns >> (power - 2) & 3) as u32) as usize
}

/// The smallest latency above all of a bucket.
fn upper_edge(bucket: usize) -> u64 {
    let (power, quarter) = ((bucket / 4) as u32, (bucket % 4) as u64);
    let edge = u128::from(5 + quarter) << power >> 2;
    u64::try_from(edge).unwrap_or(u64::MAX)
}

impl Counters {
    fn count(&self, completion: &Completion, ns: u64) {
        self.requests.fetch_add(1, Relaxed);
        match &completion.result {
            Ok(()) => {
                let bytes = completion.op.range().map_or(0, |(_, len)| len);
                self.bytes.fetch_add(bytes, Relaxed);
            }
            Err(_) => {
                self.errors.fetch_add(1, Relaxed);
            }
        }
        self.max_ns.fetch_max(ns, Relaxed);
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
    }

    fn snapshot(&self) -> KindStats {
        let buckets: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let total: u64 = buckets.iter().sum();
        let max_ns = self.max_ns.load(Relaxed);
        let quantile = |per_cent: u64| {
            let rank = (total * per_cent).div_ceil(100);
            let mut seen = 0;
            let at = buckets.iter().position(|n| {
                seen += n;
                seen >= rank.max(1)
            });
            at.map_or(0, |at| upper_edge(at).min(max_ns))
        };
        KindStats {
            requests: self.requests.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            p50_ns: quantile(50),
            p99_ns: quantile(99),
            max_ns,
        }
    }
}

impl BlockDevice for Stats {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let lower = self.lower.queue()?;
        let capacity = lower.capacity();
        Ok(Box::new(StatsQueue {
            lower,
            counters: Arc::clone(&self.counters),
            tags: vec![None; capacity],
            free: (0..capacity).rev().collect(),
            below: Vec::new(),
            ready: VecDeque::new(),
        }))
    }
}

struct StatsQueue {
    lower: Box<dyn Queue>,
    counters: Arc<[Counters; 5]>,
    /// The caller's tag and the time of submit of each request below, by the tag below.
    tags: Vec<Option<(u64, Instant)>>,
    free: Vec<usize>,
    below: Vec<Completion>,
    ready: VecDeque<Completion>,
}

impl Queue for StatsQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.tags.len()
    }

    fn in_flight(&self) -> usize {
        self.tags.len() - self.free.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let Some(slot) = self.free.pop() else {
            return Err(request);
        };
        let Request { tag, op } = request;
        match self.lower.submit(Request {
            tag: slot as u64,
            op,
        }) {
            Ok(()) => {
                self.tags[slot] = Some((tag, Instant::now()));
                Ok(())
            }
            Err(Request { op, .. }) => {
                self.free.push(slot);
                Err(Request { tag, op })
            }
        }
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let reaped = self.lower.reap(wait, &mut self.below);
        let now = Instant::now();
        for mut completion in self.below.drain(..) {
            let slot = completion.tag as usize;
            let (tag, since) = self.tags[slot]
                .take()
                .expect("each tag below stands for one request");
            self.free.push(slot);
            completion.tag = tag;
            let ns = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            self.counters[index(completion.op.kind())].count(&completion, ns);
            self.ready.push_back(completion);
        }
        reaped?;
        Ok(drain(&mut self.ready, done))
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
        }
    }
}
