//! Faults of the lower device: failing requests and power cuts.

use super::data::{Lanes, copy_out, range_of};
use super::{
    Layer, SPAN, assert_tags, content, fill, good, piece, read, reap_all, submit, write_of,
    write_with,
};
use crate::{ErrorHandle, Failure, Mem, PowerCut, Random};
use block::{BlockDevice, Blocking, Buf, Completion, ErrorKind, Op, OpKind, Queue};
use std::sync::Arc;

/// Runs the suite for a layer over a device whose requests fail: the failing request is reported,
/// every other one is whole, and none is lost. `make` returns the layer (which may be the
/// [`crate::ErrorDevice`] itself), fresh and without failures, and the handle of the
/// [`crate::ErrorDevice`] below it.
///
/// # Panics
/// If the layer violates the contract.
pub fn run_with_errors(make: &dyn Fn() -> (Arc<dyn BlockDevice>, ErrorHandle)) {
    for kind in [
        OpKind::Read,
        OpKind::Write,
        OpKind::Flush,
        OpKind::WriteZeroes,
    ] {
        let (device, handle) = make();
        for n in 1..=12 {
            one_failing_request_fails_alone(&*device, &handle, kind, n);
        }
    }
    for n in [1, 2, 3, 5, 11, 32] {
        let (device, handle) = make();
        let failure = Failure::every(n, ErrorKind::Media);
        failures_stay_where_they_belong(&*device, &handle, failure, n);
    }
    for seed in 0..4 {
        let (device, handle) = make();
        let failure = Failure::by_chance(0.1, seed, ErrorKind::Media);
        failures_stay_where_they_belong(&*device, &handle, failure, seed);
    }
}

/// The `n`-th request of a kind to the lower device fails: at most one request to the layer reports
/// it, or all that share a flush, and the data of the others is right.
fn one_failing_request_fails_alone(
    device: &dyn BlockDevice,
    handle: &ErrorHandle,
    kind: OpKind,
    n: u64,
) {
    let len = piece(device) as u64;
    let mut queue = device.queue().expect("a queue opens");
    let queue = &mut *queue;
    let count = (queue.capacity() as u64).min(12);
    let make = |i: u64| match kind {
        OpKind::Read => read(i * len, len as usize),
        OpKind::Flush => Op::Flush,
        OpKind::WriteZeroes => super::zeroes(i * len, len),
        OpKind::Write | OpKind::Discard => write_of(i * len, stamped(n, i, len)),
    };
    let pass = |queue: &mut dyn Queue| {
        let mut done = Vec::new();
        (0..count).for_each(|i| submit(queue, i, make(i)));
        reap_all(queue, &mut done);
        assert_tags(&done, 0..count);
        done
    };
    for i in 0..count {
        good(queue, write_of(i * len, stamped(0, i, len)));
    }
    handle.set(Some(Failure::nth(n, ErrorKind::Media).of(kind)));
    let done = pass(queue);
    let failed = handle.failed() as usize;
    handle.set(None);
    // All flushes to the layer may share one flush to the lower device.
    let most = match kind {
        OpKind::Flush => failed * count as usize,
        _ => failed,
    };
    check_failures(&done, failed, most, &format!("{kind} {n}"));
    for completion in &done {
        if completion.result.is_ok() {
            check_effect(queue, completion, kind, n, len);
        }
    }
    let again = pass(queue);
    check_failures(&again, 0, 0, "no failure is left");
}

fn stamped(n: u64, i: u64, len: u64) -> Buf {
    let mut buf = Buf::zeroed(len as usize);
    Random::new(n * 1000 + i).fill(&mut buf);
    buf
}

/// Checks the data that a successful request has read or left.
fn check_effect(queue: &mut dyn Queue, done: &Completion, kind: OpKind, n: u64, len: u64) {
    let expected = match kind {
        OpKind::Read | OpKind::Flush => stamped(0, done.tag, len),
        OpKind::WriteZeroes => Buf::zeroed(len as usize),
        OpKind::Write | OpKind::Discard => stamped(n, done.tag, len),
    };
    let right = match &done.op {
        Op::Read { bufs, .. } => bufs.iter().flat_map(|b| b.iter()).eq(expected.iter()),
        _ => content(queue, done.tag * len, len as usize) == expected[..],
    };
    assert!(right, "{kind} {n}: request {} is not whole", done.tag);
}

/// Checks that at most `most` requests to the layer fail, that at least one does if one failed in
/// the lower device, and that each reports the right error.
fn check_failures(done: &[Completion], below: usize, most: usize, shown: &str) {
    let errors = done.iter().filter_map(|d| d.result.as_ref().err());
    let mut above = 0;
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Media, "{shown}: {error}");
        above += 1;
    }
    assert!(
        above <= most,
        "{shown}: {above} failed above, {below} below"
    );
    assert!(above > 0 || below == 0, "{shown}: a failure was swallowed");
}

/// A random mix while lower requests fail: the data of a successful request is whole, and only
/// ranges whose change failed may hold something else.
fn failures_stay_where_they_belong(
    device: &dyn BlockDevice,
    handle: &ErrorHandle,
    failure: Failure,
    seed: u64,
) {
    let shown = format!("{failure:?}, seed {seed}");
    let mut random = Random::new(seed);
    let mut model = vec![0; SPAN as usize];
    random.fill(&mut model);
    let mut queue = device.queue().expect("a queue opens");
    let lanes = Lanes::of(&mut *queue);
    let queue = &mut *queue;
    fill(queue, 0, &model);
    // Bytes whose last change failed: they are old, new, or a mix of blocks of both.
    let mut unsure = vec![false; SPAN as usize];
    let mut done = Vec::new();
    handle.set(Some(failure));
    for _round in 0..20 {
        for lane in 0..lanes.count {
            submit(queue, lane, lanes.operation(lane, &mut random));
        }
        reap_all(queue, &mut done);
        assert_tags(&done, 0..lanes.count);
        for completion in done.drain(..) {
            let Some(range) = range_of(&completion.op) else {
                continue;
            };
            let well = completion.result.is_ok();
            match &completion.op {
                Op::Read { bufs, .. } if well => {
                    let mut data = vec![0; range.len()];
                    copy_out(bufs, &mut data);
                    assert_known(&data, &model[range.clone()], &unsure[range], &shown);
                }
                Op::Write { bufs, .. } if well => {
                    copy_out(bufs, &mut model[range.clone()]);
                    unsure[range].fill(false);
                }
                Op::WriteZeroes { .. } if well => {
                    model[range.clone()].fill(0);
                    unsure[range].fill(false);
                }
                Op::Write { .. } | Op::WriteZeroes { .. } => unsure[range].fill(true),
                _ => {}
            }
        }
    }
    handle.set(None);
    let data = content(queue, 0, SPAN as usize);
    assert_known(&data, &model, &unsure, &shown);
    // A range whose write failed can be written again.
    fill(queue, 0, &model);
    assert!(content(queue, 0, SPAN as usize) == model, "{shown}");
}

fn assert_known(data: &[u8], model: &[u8], unsure: &[bool], shown: &str) {
    let wrong = (0..data.len()).find(|at| data[*at] != model[*at] && !unsure[*at]);
    assert_eq!(wrong, None, "{shown}: a byte that was never written");
}

/// Runs the suite for a layer over a disk with a volatile write cache: in every image after a cut,
/// data that the layer reported as durable is present. `disk` is the content that the layer
/// expects, for example with a header; `cuts` images are checked.
///
/// # Panics
/// If the layer violates the contract.
pub fn run_with_power_cuts(disk: &Mem, layer: Layer<'_>, seed: u64, cuts: usize) {
    let cut = Arc::new(PowerCut::new(disk));
    let device = layer(cut.clone());
    let mut blocking = Blocking::open(&*device).expect("a queue opens");
    let block = u64::from(device.info().logical_block_size).max(4096);
    let blocks = SPAN / block;
    let mut random = Random::new(seed);
    let mut history = History::new(blocks);
    let starts_at = cut.events();
    for stamp in 1..=600u64 {
        let index = random.below(blocks);
        let fua = random.below(8) == 0;
        let before = cut.events();
        let op = write_with(index * block, stamp_block(stamp, block), fua);
        blocking.run(op).expect("nothing fails here");
        history.write(index, stamp, before);
        if fua {
            history.save(&[index], cut.events());
        }
        if random.below(12) == 0 {
            blocking.flush().expect("nothing fails here");
            let all: Vec<u64> = (0..blocks).collect();
            history.save(&all, cut.events());
        }
    }
    for crash in cut.images(seed, cuts) {
        if crash.point < starts_at {
            continue;
        }
        let (point, shown) = (crash.point, format!("{crash} of seed {seed}"));
        let after = layer(Arc::new(crash.image));
        let mut blocking = Blocking::open(&*after).expect("the layer opens after a cut");
        for (index, stamp) in history.sure(point) {
            let mut found = vec![0; block as usize];
            let read = blocking.read_at(index * block, &mut found);
            read.unwrap_or_else(|e| panic!("{shown}: {e:?}"));
            assert!(
                found[..] == stamp_block(stamp, block)[..],
                "{shown}: block {index} was durable and is lost"
            );
        }
    }
}

fn stamp_block(stamp: u64, block: u64) -> Buf {
    let mut buf = Buf::zeroed(block as usize);
    Random::new(stamp).fill(&mut buf);
    buf
}

/// Versions of each block, and the time at which each was known to be durable. A time is a point in
/// the log of the disk.
struct History(Vec<Vec<Version>>);

struct Version {
    stamp: u64,
    written_after: usize,
    saved_at: Option<usize>,
}

impl History {
    fn new(blocks: u64) -> History {
        History((0..blocks).map(|_| Vec::new()).collect())
    }

    fn write(&mut self, index: u64, stamp: u64, written_after: usize) {
        self.0[index as usize].push(Version {
            stamp,
            written_after,
            saved_at: None,
        });
    }

    fn save(&mut self, blocks: &[u64], at: usize) {
        for index in blocks {
            if let Some(last) = self.0[*index as usize].last_mut() {
                last.saved_at.get_or_insert(at);
            }
        }
    }

    /// Lists the blocks whose last change before a point was durable before it: no newer write
    /// was in flight, so they must be present.
    fn sure(&self, point: usize) -> Vec<(u64, u64)> {
        let last = |versions: &Vec<Version>| {
            let last = versions.iter().rfind(|v| v.written_after < point)?;
            last.saved_at
                .is_some_and(|at| at <= point)
                .then_some(last.stamp)
        };
        let each = self.0.iter().enumerate();
        each.filter_map(|(index, versions)| Some((index as u64, last(versions)?)))
            .collect()
    }
}
