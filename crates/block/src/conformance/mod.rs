//! What every device has to do, as one suite: a backend joins by passing it.
//!
//! ```text
//!  run                   a fresh, writable device        the waist's contract, part by part
//!  run_read_only         a device that is read-only      nothing changes it
//!  run_with_errors       a layer over an ErrorDevice     failures stay where they belong
//!  run_with_power_cuts   a layer over a PowerCut         what was flushed is there
//! ```
//!
//! The caller gives a constructor; each part gets a device of its own, of 8 MiB or more with any
//! content. What does not hold panics with what was seen and, where chance plays a part, with the
//! seed. Deliberately absent: figures of speed, and what only one kind of device does.

mod data;
mod faults;
mod pinned;
mod queues;
mod requests;
#[cfg(test)]
mod tests;

pub use faults::{run_with_errors, run_with_power_cuts};

use crate::{BlockDevice, Buf, Bufs, Completion, ErrorKind, Op, Queue, Request, Wait};
use std::sync::Arc;

/// Makes a fresh device.
pub type Make<'a> = &'a dyn Fn() -> Arc<dyn BlockDevice>;

/// Puts the layer to be tested over a device, which keeps what an earlier one left there.
pub type Layer<'a> = &'a dyn Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>;

/// Bytes of the device that the suite uses; the least size of a device under test.
pub const SPAN: u64 = 8 << 20;

/// The suite for a writable device. Overwrites it.
///
/// # Panics
/// When the device breaks the contract.
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

/// The suite for a device that is read-only: reads as [`run`] has them, and no change.
///
/// # Panics
/// When the device breaks the contract.
pub fn run_read_only(make: Make<'_>) {
    requests::read_only_refuses_every_change(&*make());
    queues::full_queue_gives_requests_back(&*make());
    queues::idle_queue_does_not_wait(&*make());
    queues::descriptor_tells_of_completions(&*make());
}

/// What may be sent at once: a convenient length, whatever the device's limits are.
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
    write_of(offset, Buf::zeroed(len), false)
}

fn write_of(offset: u64, bufs: impl Into<Bufs>, fua: bool) -> Op {
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

/// Submits to a queue that has room.
fn submit(queue: &mut dyn Queue, tag: u64, op: Op) {
    let before = queue.in_flight();
    if let Err(request) = queue.submit(Request { tag, op }) {
        panic!(
            "{before} in flight of {}: refused {request:?}",
            queue.capacity()
        );
    }
    assert_eq!(queue.in_flight(), before + 1, "what is taken is in flight");
}

/// Waits for at least one completion, and checks that the queue counts right.
fn reap_some(queue: &mut dyn Queue, wait: Wait, done: &mut Vec<Completion>) {
    let (flying, had) = (queue.in_flight(), done.len());
    let count = queue.reap(wait, done).expect("the queue works");
    assert!(count > 0, "{wait:?} gave nothing with {flying} in flight");
    assert_eq!(done.len(), had + count, "completions are added at the end");
    assert_eq!(queue.in_flight() + count, flying, "what is reaped has left");
}

/// Waits until nothing is in flight.
fn reap_all(queue: &mut dyn Queue, done: &mut Vec<Completion>) {
    while queue.in_flight() > 0 {
        reap_some(queue, Wait::Block, done);
    }
}

/// Checks that these and no other requests came back, each once.
fn assert_tags(done: &[Completion], expected: std::ops::Range<u64>) {
    let mut tags: Vec<u64> = done.iter().map(|d| d.tag).collect();
    tags.sort_unstable();
    assert!(
        tags.iter().copied().eq(expected.clone()),
        "each of {expected:?} comes back once: {tags:?}"
    );
}

/// Where an operation's buffers lie, to see that the very same ones come back.
fn places(op: &Op) -> Vec<(usize, usize)> {
    match op {
        Op::Read { bufs, .. } | Op::Write { bufs, .. } => {
            let place = |b: &Buf| (b.as_ptr() as usize, b.len());
            bufs.iter().map(place).collect()
        }
        _ => Vec::new(),
    }
}

/// Carries out one request on an idle queue. It has to come back whole, and an error has to say
/// where it happened.
fn one(queue: &mut dyn Queue, op: Op) -> Completion {
    let (kind, range, before) = (op.kind(), op.range(), places(&op));
    let mut done = Vec::new();
    submit(queue, 42, op);
    reap_some(queue, Wait::Block, &mut done);
    assert_eq!((queue.in_flight(), done.len()), (0, 1));
    let completion = done.pop().expect("there is one");
    assert_eq!(completion.tag, 42);
    assert_eq!((completion.op.kind(), completion.op.range()), (kind, range));
    assert_eq!(places(&completion.op), before, "other buffers came back");
    if let Err(error) = &completion.result {
        assert!(!error.device().is_empty(), "{error}: no device");
        assert_eq!(error.range(), range, "{error}: another range");
    }
    completion
}

/// Carries out a request that has to succeed.
fn good(queue: &mut dyn Queue, op: Op) -> Op {
    let done = one(queue, op);
    if let Err(error) = done.result {
        panic!("{error:?}");
    }
    done.op
}

/// Carries out a request that has to fail in this way.
fn refused(queue: &mut dyn Queue, op: Op, expected: ErrorKind) {
    let shown = format!("{op:?}");
    let kind = one(queue, op).result.err().map(|e| e.kind());
    assert_eq!(kind, Some(expected), "{shown}");
}

/// The content of a range.
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
        good(queue, write_of(at, Buf::copy_of(part), false));
    }
}
