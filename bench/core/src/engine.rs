//! One run: threads, each with its own queue, work through their part of the device.
//!
//! **Invariant:** the timed section contains requests and, after writes, one flush per thread,
//! which makes the written data durable. Queues are opened, buffers filled and orders drawn before
//! it; everything is torn down after it.
//!
//! Without a rate the loop is closed: a thread submits its next request when one has completed, and
//! latencies are service times. With a rate the loop is open: the due time of each request is fixed
//! beforehand and its latency counts from then, so a stall shows in every request that it delayed
//! and not only in the first (Tene's "coordinated omission").

use crate::gate::Gate;
use crate::meter;
use crate::meter::{CpuTime, DeviceBytes, Edge, Layers, Noise, Others};
use crate::rng::Rng;
use crate::spec::Layout;
use crate::{Error, Result, Spec};
use block::{BlockDevice, Buf, BufPool, Completion, Op, Queue, Request, Wait};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Interval of stamps in the data, in bytes. No two blocks of a device are alike, so no lower layer
/// can deduplicate them.
pub const STAMP_EVERY: u32 = 4096;

/// Service times of the requests of a run, in nanoseconds, exact to 1 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Latency {
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

/// How well a run kept its schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Kept {
    /// Times from submission to completion.
    pub service: Latency,
    /// Requests that became due while the maximum was in flight and therefore had to wait.
    pub held_up: u64,
}

/// Measurements of one run. Counters only, nothing derived.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Bytes requested from the device.
    pub bytes: u64,
    /// Number of reads or writes.
    pub requests: u64,
    /// Number of flushes, one per thread after writes.
    pub flushes: u64,
    /// Time from the release of all threads until the last one finished.
    pub wall_ns: u64,
    /// Time until the first thread finished; far less than `wall_ns` if the threads were not served
    /// evenly.
    pub first_done_ns: u64,
    /// CPU time of the whole process.
    pub cpu: CpuTime,
    /// CPU time of children and named processes.
    pub others: Others,
    /// CPU time by layer, if it was counted.
    #[serde(default)]
    pub layers: Option<Layers>,
    /// Service times of reads or writes; with a schedule, times from when each request was due.
    pub latency: Latency,
    /// How well the schedule was kept, if the run had one.
    #[serde(default)]
    pub schedule: Option<Kept>,
    /// Duration of the longest flush.
    pub flush_max_ns: u64,
    /// Bytes that reached the device, if known.
    pub device: Option<DeviceBytes>,
    /// Background load on the machine.
    pub noise: Noise,
}

/// Runs `spec` on `device` and measures it.
///
/// Before the clock starts, each thread opens its queue and performs `depth` requests as a warm-up.
/// The first failing request ends the run.
pub fn run(device: &dyn BlockDevice, spec: &Spec) -> Result<Sample> {
    let name = device.info().name.clone();
    run_between(&name, device, spec, &|| Edge::now(&[], &[]))
}

/// Like [`run`], with the target's name for errors and the function that reads the counters at both
/// edges.
pub fn run_between(
    arm: &str,
    device: &dyn BlockDevice,
    spec: &Spec,
    edge: &dyn Fn() -> Edge,
) -> Result<Sample> {
    let layout = spec.layout(device.info())?;
    let gate = Gate::new(spec.threads);
    let (threads, start, end) = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        let mut not_started = None;
        for index in 0..spec.threads {
            let (gate, layout) = (&gate, &layout);
            let worker = move || Worker::new(arm, device, spec, layout, index).run(gate);
            match std::thread::Builder::new()
                .name(format!("bench-{index}"))
                .spawn_scoped(scope, worker)
            {
                Ok(handle) => handles.push(handle),
                Err(e) => {
                    gate.give_up(spec.threads - index);
                    not_started = Some(worker_failed(arm, e.to_string()));
                    break;
                }
            }
        }
        gate.wait_ready();
        let start = edge();
        gate.go();
        gate.wait_done();
        let end = edge();
        gate.release();
        let results: Vec<Result<Done>> = handles
            .into_iter()
            .map(|h| {
                h.join()
                    .unwrap_or_else(|_| Err(worker_failed(arm, "it panicked".into())))
            })
            .collect();
        let done = results.into_iter().collect::<Result<Vec<_>>>();
        match not_started {
            Some(error) => Err(error),
            None => Ok((done?, start, end)),
        }
    })?;
    Ok(sum_up(spec, &layout, &threads, &start, &end))
}

fn worker_failed(arm: &str, detail: String) -> Error {
    Error::Worker {
        arm: arm.to_owned(),
        detail,
    }
}

fn sum_up(spec: &Spec, layout: &Layout, threads: &[Done], start: &Edge, end: &Edge) -> Sample {
    let merged = |of: fn(&Done) -> &Histogram<u64>| {
        let mut all = histogram();
        threads.iter().for_each(|t| all += of(t));
        Latency::of(&all)
    };
    let took = |t: &Done| t.at.saturating_duration_since(start.at()).as_nanos() as u64;
    let run_queue_ns = threads.iter().map(|t| t.run_queue_ns).sum();
    let used = end.since(start, run_queue_ns);
    let bytes = spec.bytes(layout);
    Sample {
        bytes,
        requests: spec.requests(layout),
        flushes: if spec.workload.writes() {
            threads.len() as u64
        } else {
            0
        },
        wall_ns: threads.iter().map(took).max().unwrap_or(0),
        first_done_ns: threads.iter().map(took).min().unwrap_or(0),
        cpu: used.cpu,
        others: used.others,
        layers: used.layers,
        latency: merged(|t| &t.latency),
        schedule: spec.rate.map(|_| Kept {
            service: merged(|t| &t.service),
            held_up: threads.iter().map(|t| t.held_up).sum(),
        }),
        flush_max_ns: threads.iter().map(|t| t.flush_ns).max().unwrap_or(0),
        device: used.device,
        noise: used.noise,
    }
}

/// Creates a histogram of nanoseconds: two significant digits, in buckets no wider than 1/128 of
/// their values. It covers every `u64`, so recording neither allocates nor clamps.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, u64::MAX, 2).expect("valid bounds and digits")
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Latency {
        Latency {
            mean_ns: histogram.mean() as u64,
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            max_ns: histogram.max(),
        }
    }
}

/// Results of one thread.
struct Done {
    at: Instant,
    latency: Histogram<u64>,
    service: Histogram<u64>,
    held_up: u64,
    flush_ns: u64,
    run_queue_ns: Option<u64>,
}

struct Worker<'a> {
    arm: &'a str,
    device: &'a dyn BlockDevice,
    spec: &'a Spec,
    base: u64,
    records: u32,
    index: u32,
}

impl<'a> Worker<'a> {
    fn new(
        arm: &'a str,
        device: &'a dyn BlockDevice,
        spec: &'a Spec,
        layout: &Layout,
        index: u32,
    ) -> Worker<'a> {
        Worker {
            arm,
            device,
            spec,
            base: layout.region * u64::from(index),
            records: layout.records,
            index,
        }
    }

    fn run(&self, gate: &Gate) -> Result<Done> {
        let mut pass = gate.pass();
        let mut queue = self.device.queue().map_err(|e| self.failed(e))?;
        self.check_capacity(&*queue)?;
        let pool = BufPool::new(self.spec.block as usize, self.spec.depth as usize);
        queue.register(&pool);
        let order = self.order();
        let mut line = Line::new(self, &mut *queue, &pool);
        let warm_up = u64::from(self.spec.depth.min(self.records));
        line.go_over(&order, warm_up, None, gate)?;
        line.latency.reset();
        line.service.reset();

        pass.ready();
        let waited = meter::thread_run_queue_ns();
        let total = u64::from(self.records) * u64::from(self.spec.passes);
        let pace = self.spec.rate.map(|rate| Pace::new(rate, self));
        line.go_over(&order, total, pace.as_ref(), gate)?;
        let flush_ns = if self.spec.workload.writes() {
            line.flush()?
        } else {
            0
        };
        let at = Instant::now();
        let run_queue_ns = meter::thread_run_queue_ns()
            .zip(waited)
            .map(|(end, start)| end.saturating_sub(start));
        let (latency, service, held_up) = (line.latency, line.service, line.held_up);
        pass.done();
        Ok(Done {
            at,
            latency,
            service,
            held_up,
            flush_ns,
            run_queue_ns,
        })
    }

    fn check_capacity(&self, queue: &dyn Queue) -> Result<()> {
        if self.spec.depth as usize <= queue.capacity() {
            return Ok(());
        }
        Err(Error::Spec(format!(
            "{}: a depth of {} requests exceeds the queue's capacity of {}",
            self.arm,
            self.spec.depth,
            queue.capacity()
        )))
    }

    /// Computes the records in the order of a pass; empty for the natural order.
    fn order(&self) -> Vec<u32> {
        if !self.spec.workload.random() {
            return Vec::new();
        }
        let mut order: Vec<u32> = (0..self.records).collect();
        Rng::stream(self.spec.seed, u64::from(self.index)).shuffle(&mut order);
        order
    }

    /// Computes the offset and the length of a request.
    fn place(&self, order: &[u32], at: u64) -> (u64, u32) {
        let at = (at % u64::from(self.records)) as u32;
        let record = order.get(at as usize).copied().unwrap_or(at);
        let offset = self.base + u64::from(record) * u64::from(self.spec.block);
        (offset, self.spec.length(self.index, record))
    }

    fn failed(&self, source: block::Error) -> Error {
        Error::Device {
            arm: self.arm.to_owned(),
            source,
        }
    }
}

/// Due times of a thread's requests: evenly spaced, and interleaved with those of other threads.
struct Pace {
    start: Instant,
    every: Duration,
}

impl Pace {
    fn new(rate: u32, worker: &Worker<'_>) -> Pace {
        // By default the kernel lets a thread oversleep by up to 50 µs.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let between = Duration::from_secs(1) / rate;
        Pace {
            start: Instant::now() + between * worker.index,
            every: between * worker.spec.threads,
        }
    }

    fn due(&self, turn: u64) -> Instant {
        self.start + Duration::from_nanos(self.every.as_nanos() as u64 * turn)
    }
}

/// A thread's queue with its buffers and measurements.
struct Line<'a> {
    worker: &'a Worker<'a>,
    queue: &'a mut dyn Queue,
    free: Vec<(u64, Buf)>,
    /// For each tag, the time when its request was due and the time when it was submitted.
    times: Vec<(Instant, Instant)>,
    done: Vec<Completion>,
    latency: Histogram<u64>,
    service: Histogram<u64>,
    held_up: u64,
    magic: u64,
}

impl<'a> Line<'a> {
    fn new(worker: &'a Worker<'a>, queue: &'a mut dyn Queue, pool: &BufPool) -> Line<'a> {
        let spec = worker.spec;
        // Every buffer of every thread gets different random data, so no lower layer can compress
        // it.
        let mut rng = Rng::stream(spec.seed, (1 << 32) + u64::from(worker.index));
        let free = (0..u64::from(spec.depth))
            .map(|tag| {
                let mut buf = pool
                    .take(spec.block as usize)
                    .expect("the pool has a buffer for each request in flight");
                rng.fill(&mut buf);
                (tag, buf)
            })
            .collect();
        Line {
            worker,
            queue,
            free,
            times: vec![(Instant::now(), Instant::now()); spec.depth as usize],
            done: Vec::with_capacity(spec.depth as usize),
            latency: histogram(),
            service: histogram(),
            held_up: 0,
            magic: magic(spec.seed),
        }
    }

    /// Performs `total` requests along `order`, repeating it as necessary, either as fast as they
    /// complete or at their due times. After an error it waits for the requests in flight and
    /// returns the first error.
    fn go_over(
        &mut self,
        order: &[u32],
        total: u64,
        pace: Option<&Pace>,
        gate: &Gate,
    ) -> Result<()> {
        let mut next = 0;
        let mut first_error = None;
        // Time until which the queue was full.
        let mut full_until = None;
        loop {
            let mut wait = Wait::Block;
            while next < total && first_error.is_none() && !gate.failed() {
                let now = Instant::now();
                let due = pace.map_or(now, |pace| pace.due(next));
                if due > now {
                    wait = Wait::AtMost(due - now);
                    break;
                }
                let Some((tag, buf)) = self.free.pop() else {
                    break;
                };
                self.held_up += u64::from(full_until.is_some_and(|until| due < until));
                self.times[tag as usize].0 = due;
                self.submit(tag, buf, self.worker.place(order, next), next);
                next += 1;
            }
            if self.queue.in_flight() == 0 {
                match wait {
                    Wait::AtMost(time) => std::thread::sleep(time),
                    _ => return first_error.map_or(Ok(()), Err),
                }
                continue;
            }
            let full = self.free.is_empty();
            let mut done = std::mem::take(&mut self.done);
            self.queue
                .reap(wait, &mut done)
                .map_err(|e| self.worker.failed(e))?;
            let now = Instant::now();
            if full && pace.is_some() {
                full_until = Some(now);
            }
            for completion in done.drain(..) {
                if let Err(e) = self.complete(now, completion) {
                    first_error.get_or_insert(e);
                }
            }
            self.done = done;
        }
    }

    fn submit(&mut self, tag: u64, mut buf: Buf, (offset, length): (u64, u32), turn: u64) {
        buf.set_len(length as usize);
        let op = if self.worker.spec.workload.writes() {
            stamp(&mut buf, self.magic, offset, turn);
            Op::Write {
                offset,
                bufs: buf.into(),
                fua: false,
            }
        } else {
            Op::Read {
                offset,
                bufs: buf.into(),
            }
        };
        self.times[tag as usize].1 = Instant::now();
        self.queue
            .submit(Request { tag, op })
            .unwrap_or_else(|_| unreachable!("depth is within the capacity"));
    }

    fn complete(&mut self, now: Instant, completion: Completion) -> Result<()> {
        let Completion { tag, op, result } = completion;
        let (due, submitted) = self.times[tag as usize];
        let since = |then: Instant| now.saturating_duration_since(then).as_nanos() as u64;
        // Without a schedule, latency is service time.
        match self.worker.spec.rate {
            Some(_) => self.latency.saturating_record(since(due)),
            None => self.latency.saturating_record(since(submitted)),
        }
        self.service.saturating_record(since(submitted));
        let mut wrong = None;
        match op {
            Op::Read { offset, bufs } => {
                let buf = bufs.into_first().expect("one buffer was submitted");
                if self.worker.spec.verify && !is_stamped(&buf, self.magic, offset) {
                    wrong = Some(offset);
                }
                self.free.push((tag, buf));
            }
            Op::Write { bufs, .. } => {
                let buf = bufs.into_first().expect("one buffer was submitted");
                self.free.push((tag, buf));
            }
            _ => unreachable!("only reads and writes are submitted here"),
        }
        result.map_err(|e| self.worker.failed(e))?;
        match wrong {
            None => Ok(()),
            Some(offset) => Err(Error::Verify {
                arm: self.worker.arm.to_owned(),
                offset,
            }),
        }
    }

    fn flush(&mut self) -> Result<u64> {
        let start = Instant::now();
        self.queue
            .submit(Request {
                tag: 0,
                op: Op::Flush,
            })
            .unwrap_or_else(|_| unreachable!("nothing is in flight"));
        while self.done.is_empty() {
            self.queue
                .reap(Wait::Block, &mut self.done)
                .map_err(|e| self.worker.failed(e))?;
        }
        for completion in self.done.drain(..) {
            completion.result.map_err(|e| self.worker.failed(e))?;
        }
        Ok(start.elapsed().as_nanos() as u64)
    }
}

fn magic(seed: u64) -> u64 {
    Rng::stream(seed, 1 << 33).next_u64()
}

/// Marks every 4 KiB with its offset and with the number of the request that writes it, so blocks
/// differ from each other and from earlier contents.
fn stamp(buf: &mut Buf, magic: u64, offset: u64, turn: u64) {
    for (i, piece) in buf.chunks_mut(STAMP_EVERY as usize).enumerate() {
        let place = offset + i as u64 * u64::from(STAMP_EVERY);
        piece[..8].copy_from_slice(&(magic ^ place).to_le_bytes());
        piece[8..16].copy_from_slice(&turn.to_le_bytes());
    }
}

/// Checks whether a request begins with the stamp of its offset. True for an unaligned offset,
/// because only aligned places are stamped by requests of every size.
fn is_stamped(buf: &Buf, magic: u64, offset: u64) -> bool {
    !offset.is_multiple_of(u64::from(STAMP_EVERY)) || buf[..8] == (magic ^ offset).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_exact_to_one_percent() {
        let mut rng = Rng::new(5);
        let mut all = histogram();
        let mut values = Vec::new();
        for _ in 0..5 {
            let mut part = histogram();
            for _ in 0..1000 {
                let value = rng.next_u64() >> (30 + rng.below(20));
                part.saturating_record(value);
                values.push(value);
            }
            all += &part;
        }
        values.sort_unstable();
        let mean = values.iter().sum::<u64>() / 5000;
        let near = |shown: u64, exact: u64| shown.abs_diff(exact) <= exact / 128;
        let latency = Latency::of(&all);
        assert!(near(latency.mean_ns, mean), "{latency:?}, mean {mean}");
        assert!(near(latency.p50_ns, values[2499]), "{latency:?}");
        assert!(near(latency.p99_ns, values[4949]), "{latency:?}");
        assert!(near(latency.max_ns, values[4999]), "{latency:?}");
        assert_eq!(Latency::of(&histogram()), Latency::default());
    }

    #[test]
    fn a_histogram_has_room_for_every_value() {
        let mut all = histogram();
        let buckets = all.distinct_values();
        for value in [0, 1, u64::MAX] {
            all.saturating_record(value);
        }
        assert_eq!((all.distinct_values(), all.len()), (buckets, 3));
        assert_eq!(all.max(), u64::MAX);
    }
}
