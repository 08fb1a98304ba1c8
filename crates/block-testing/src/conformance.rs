//! The contract of every device as a test suite; a new backend is accepted once it passes.
//!
//! ```text
//!  run                   a fresh, writable device        the contract of the interface
//!  run_read_only         a device that is read-only      no request changes it
//!  run_with_errors       a layer over an ErrorDevice     failures affect only their requests
//!  run_with_power_cuts   a layer over a PowerCut         flushed data survives
//! ```
//!
//! The caller passes a constructor; each part gets a device of its own, of at least 8 MiB with any
//! content. A violation panics with the observed values and, in randomized parts, with the seed.
//! Deliberately absent: performance, and behavior that only one kind of device has.

mod data;
mod faults;
mod pinned;
mod queues;
mod requests;
#[cfg(test)]
mod tests;

pub use faults::{run_with_errors, run_with_power_cuts};

use block::{BlockDevice, Buf, Bufs, Completion, ErrorKind, Op, Queue, Request, Wait};
use std::sync::Arc;

/// Constructor of a fresh device.
pub type Make<'a> = &'a dyn Fn() -> Arc<dyn BlockDevice>;

/// Constructor of the tested layer over a device, which keeps the data that an earlier layer left.
pub type Layer<'a> = &'a dyn Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>;

/// Bytes of the device that the suite uses; the minimum size of a device under test.
pub const SPAN: u64 = 8 << 20;

/// Runs the suite for a writable device, and overwrites it.
///
/// # Panics
/// If the device violates the contract.
pub fn run(make: Make<'_>) {
    requests::info_makes_sense(&*make());
    requests::bounds_and_alignment(&*make());
    requests::empty_requests(&*make());
    requests::largest_transfer(&*make());
    requests::scatter_and_gather(&*make());
    pinned::pinned_buffers(&*make());
    data::zeroes_and_discards_keep_to_their_range(&*make());
    for seed in [1, 2] {
        data::random_operations_agree_with_a_model(&*make(), seed);
    }
    data::fua_and_flush_leave_the_data(&*make());
    data::threads_share_a_device(&*make());
    data::threads_write_neighbouring_blocks(&*make());
    queues::full_queue_gives_requests_back(&*make());
    queues::idle_queue_does_not_wait(&*make());
    queues::descriptor_tells_of_completions(&*make());
    queues::every_wait_gives_what_is_in_flight(&*make());
    queues::dropping_with_requests_in_flight(&*make());
}

/// Runs the suite for a read-only device: reads as in [`run`], and no change.
///
/// # Panics
/// If the device violates the contract.
pub fn run_read_only(make: Make<'_>) {
    requests::read_only_refuses_every_change(&*make());
    queues::full_queue_gives_requests_back(&*make());
    queues::idle_queue_does_not_wait(&*make());
    queues::descriptor_tells_of_completions(&*make());
}

/// Chooses a convenient request length within the device's limits, in bytes.
fn piece(device: &dyn BlockDevice) -> usize {
    (64 * 1024).min(device.info().max_transfer as usize)
}

fn read(offset: u64, len: usize) -> Op {
    Op::Read {
        offset,
        bufs: Buf::zeroed(len).into(),
    }
}

fn write(offset: u64, len: usize) -> Op {
    write_of(offset, Buf::zeroed(len))
}

fn write_of(offset: u64, bufs: impl Into<Bufs>) -> Op {
    let fua = false;
    write_with(offset, bufs, fua)
}

fn durable_write_of(offset: u64, bufs: impl Into<Bufs>) -> Op {
    let fua = true;
    write_with(offset, bufs, fua)
}

fn write_with(offset: u64, bufs: impl Into<Bufs>, fua: bool) -> Op {
    Op::Write {
        offset,
        bufs: bufs.into(),
        fua,
    }
}

fn zeroes(offset: u64, len: u64) -> Op {
    Op::WriteZeroes {
        offset,
        len,
        fua: false,
        unmap: false,
    }
}

/// Submits a request to a queue with room.
fn submit(queue: &mut dyn Queue, tag: u64, op: Op) {
    let before = queue.in_flight();
    if let Err(request) = queue.submit(Request { tag, op }) {
        panic!(
            "{before} in flight of {}: refused {request:?}",
            queue.capacity()
        );
    }
    assert_eq!(
        queue.in_flight(),
        before + 1,
        "an accepted request is in flight"
    );
}

/// Waits for at least one completion, and checks the counters of the queue.
fn reap_some(queue: &mut dyn Queue, wait: Wait, done: &mut Vec<Completion>) {
    let (flying, had) = (queue.in_flight(), done.len());
    let count = queue.reap(wait, done).expect("the queue works");
    assert!(
        count > 0,
        "{wait:?} returned no completion with {flying} in flight"
    );
    assert_eq!(done.len(), had + count, "completions are added at the end");
    assert_eq!(
        queue.in_flight() + count,
        flying,
        "a reaped request is no longer in flight"
    );
}

/// Waits until nothing is in flight.
fn reap_all(queue: &mut dyn Queue, done: &mut Vec<Completion>) {
    while queue.in_flight() > 0 {
        reap_some(queue, Wait::Block, done);
    }
}

/// Checks that exactly these requests completed, each once.
fn assert_tags(done: &[Completion], expected: std::ops::Range<u64>) {
    let mut tags: Vec<u64> = done.iter().map(|d| d.tag).collect();
    tags.sort_unstable();
    assert!(
        tags.iter().copied().eq(expected.clone()),
        "each of {expected:?} is returned once: {tags:?}"
    );
}

/// Lists the addresses of an operation's buffers, to check that the same ones return.
fn places(op: &Op) -> Vec<(usize, usize)> {
    match op {
        Op::Read { bufs, .. } | Op::Write { bufs, .. } => {
            let place = |b: &Buf| (b.as_ptr() as usize, b.len());
            bufs.iter().map(place).collect()
        }
        _ => Vec::new(),
    }
}

/// Carries out one request on an idle queue. It must return whole, and an error must name the
/// device and the range.
fn one(queue: &mut dyn Queue, op: Op) -> Completion {
    let (kind, range, before) = (op.kind(), op.range(), places(&op));
    let mut done = Vec::new();
    submit(queue, 42, op);
    reap_some(queue, Wait::Block, &mut done);
    assert_eq!((queue.in_flight(), done.len()), (0, 1));
    let completion = done.pop().expect("there is one");
    assert_eq!(completion.tag, 42);
    assert_eq!((completion.op.kind(), completion.op.range()), (kind, range));
    assert_eq!(
        places(&completion.op),
        before,
        "other buffers were returned"
    );
    if let Err(error) = &completion.result {
        assert!(!error.device().is_empty(), "{error}: no device");
        assert_eq!(error.range(), range, "{error}: another range");
    }
    completion
}

/// Carries out a request that must succeed, and returns its operation.
fn good(queue: &mut dyn Queue, op: Op) -> Op {
    let done = one(queue, op);
    if let Err(error) = done.result {
        panic!("{error:?}");
    }
    done.op
}

/// Carries out a request that must fail with this error.
fn refused(queue: &mut dyn Queue, op: Op, expected: ErrorKind) {
    let shown = format!("{op:?}");
    let kind = one(queue, op).result.err().map(|e| e.kind());
    assert_eq!(kind, Some(expected), "{shown}");
}

/// Reads a range.
fn content(queue: &mut dyn Queue, offset: u64, len: usize) -> Vec<u8> {
    let most = queue.info().max_transfer as usize;
    let mut all = Vec::with_capacity(len);
    while all.len() < len {
        let step = most.min(1 << 20).min(len - all.len());
        if let Op::Read { bufs, .. } = good(queue, read(offset + all.len() as u64, step)) {
            bufs.iter().for_each(|b| all.extend_from_slice(b));
        }
    }
    all
}

/// Writes a range.
fn fill(queue: &mut dyn Queue, offset: u64, data: &[u8]) {
    let most = (queue.info().max_transfer as usize).min(1 << 20);
    for (index, part) in data.chunks(most).enumerate() {
        let at = offset + (index * most) as u64;
        good(queue, write_of(at, Buf::copy_of(part)));
    }
}
