//! Queues: capacity, waiting, the descriptor, and a drop with requests in flight.

use super::{assert_tags, piece, read, reap_all, reap_some, submit, write_with, zeroes};
use block::{BlockDevice, Buf, BufPool, Op, Queue, Request, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;

/// Longer than any device takes; a wait of this length is a failure.
const TOO_LONG: Duration = Duration::from_secs(60);

pub(super) fn full_queue_gives_requests_back(device: &dyn BlockDevice) {
    let block = device.info().logical_block_size as usize;
    let queue = &mut *device.queue().expect("a queue opens");
    let capacity = queue.capacity();
    let mut done = Vec::new();
    for _round in 0..2 {
        for tag in 0..capacity as u64 {
            submit(queue, tag, read(tag % 8 * block as u64, block));
        }
        let refused = queue
            .submit(Request {
                tag: capacity as u64,
                op: read(0, block),
            })
            .expect_err("the queue accepted more than its capacity");
        assert_eq!(refused.tag, capacity as u64, "another request was returned");
        assert_eq!(refused.op.range(), Some((0, block as u64)));
        assert_eq!((queue.in_flight(), queue.capacity()), (capacity, capacity));
        queue.kick().expect("the queue works");
        assert_eq!(queue.in_flight(), capacity, "a kick reaps nothing");
        reap_all(queue, &mut done);
        assert_tags(&done, 0..capacity as u64);
        for completion in done.drain(..) {
            completion.result.expect("nothing fails here");
        }
        // The queue has room again.
        submit(queue, refused.tag, refused.op);
        reap_all(queue, &mut done);
        done.clear();
    }
}

pub(super) fn idle_queue_does_not_wait(device: &dyn BlockDevice) {
    let queue = &mut *device.queue().expect("a queue opens");
    let mut done = Vec::new();
    for _after_use in [false, true] {
        queue.kick().expect("the queue works");
        for wait in [
            Wait::Poll,
            Wait::Block,
            Wait::AtMost(Duration::ZERO),
            Wait::AtMost(Duration::from_secs(3600)),
            Wait::AtMost(Duration::MAX),
        ] {
            let count = queue.reap(wait, &mut done).expect("the queue works");
            assert_eq!(count, 0, "nothing is in flight: {wait:?}");
        }
        submit(queue, 0, Op::Flush);
        reap_some(queue, Wait::Block, &mut done);
        done.clear();
    }
}

/// Waits like an export: submit, kick, poll once, then sleep on the descriptor.
pub(super) fn descriptor_tells_of_completions(device: &dyn BlockDevice) {
    let block = device.info().logical_block_size as usize;
    let queue = &mut *device.queue().expect("a queue opens");
    let mut done = Vec::new();
    for round in 0..20u64 {
        let count = (1 + round % 4).min(queue.capacity() as u64);
        for tag in 0..count {
            submit(queue, tag, read(tag * block as u64, block));
        }
        queue.kick().expect("the queue works");
        while queue.in_flight() > 0 {
            if queue.reap(Wait::Poll, &mut done).expect("the queue works") == 0 {
                sleep_on_descriptor(queue);
            }
        }
        assert_tags(&done, 0..count);
        done.clear();
    }
}

fn sleep_on_descriptor(queue: &dyn Queue) {
    let fd = queue
        .wait_fd()
        .expect("without a descriptor a reap returns all completions");
    let limit = Timespec {
        tv_sec: TOO_LONG.as_secs() as i64,
        tv_nsec: 0,
    };
    let readable = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
    assert_eq!(readable, Ok(1), "the descriptor never became readable");
}

pub(super) fn every_wait_gives_what_is_in_flight(device: &dyn BlockDevice) {
    let block = device.info().logical_block_size as usize;
    let queue = &mut *device.queue().expect("a queue opens");
    let mut done = Vec::new();
    for wait in [
        Wait::Block,
        Wait::AtMost(TOO_LONG),
        Wait::AtMost(Duration::MAX),
    ] {
        // Staged and not kicked: a reap kicks.
        submit(queue, done.len() as u64, read(0, block));
        reap_some(queue, wait, &mut done);
    }
    for wait in [
        Wait::Poll,
        Wait::AtMost(Duration::ZERO),
        Wait::AtMost(Duration::from_micros(100)),
    ] {
        // These may return nothing, but must make progress.
        let tag = done.len() as u64;
        submit(queue, tag, read(0, block));
        let started = std::time::Instant::now();
        while queue.reap(wait, &mut done).expect("the queue works") == 0 {
            assert!(
                started.elapsed() < TOO_LONG,
                "{wait:?} never returned a completion"
            );
            std::thread::yield_now();
        }
    }
    assert_tags(&done, 0..6);
}

/// The buffers of a dropped queue return to their pool, and the device no longer writes to them.
pub(super) fn dropping_with_requests_in_flight(device: &dyn BlockDevice) {
    const COUNT: usize = 32;
    let len = piece(device);
    let pool = BufPool::new(len, COUNT);
    for round in 0..6 {
        let mut queue = device.queue().expect("a queue opens");
        let queue = &mut *queue;
        queue.register(&pool);
        for i in 0..queue.capacity().min(COUNT) as u64 {
            let buf = pool
                .take(len)
                .expect("all were returned by the previous round");
            let offset = i * len as u64;
            let op = match i % 3 {
                0 => Op::Read {
                    offset,
                    bufs: buf.into(),
                },
                1 => write_with(offset, buf, i % 2 == 0),
                _ => zeroes(offset, len as u64),
            };
            submit(queue, i, op);
        }
        // Dropped while staged, in flight, and partly reaped.
        if round % 3 > 0 {
            queue.kick().expect("the queue works");
        }
        if round % 3 > 1 {
            reap_some(queue, Wait::Block, &mut Vec::new());
        }
    }
    for _round in 0..4 {
        drop_one_queue(device, &pool, COUNT);
    }
}

fn drop_one_queue(device: &dyn BlockDevice, pool: &BufPool, count: usize) {
    let len = piece(device);
    let mut queue = device.queue().expect("a queue opens");
    queue.register(pool);
    for i in 0..queue.capacity().min(count) as u64 {
        let buf = pool
            .take(len)
            .expect("all were returned by the previous round");
        let bufs = buf.into();
        let offset = i * len as u64;
        submit(&mut *queue, i, Op::Read { offset, bufs });
    }
    queue.kick().expect("the queue works");
    drop(queue);
    let mut back: Vec<Buf> = std::iter::from_fn(|| pool.take(len)).collect();
    assert_eq!(back.len(), count, "a buffer was lost");
    // No request may use its buffer any more: a late read would be visible once later reads have
    // completed.
    back.iter_mut().for_each(|b| b.fill(0x77));
    let mut later = device.queue().expect("a queue opens");
    for i in 0..later.capacity().min(count) as u64 {
        submit(&mut *later, i, read(i * len as u64, len));
    }
    reap_all(&mut *later, &mut Vec::new());
    assert!(
        back.iter().all(|b| b.iter().all(|byte| *byte == 0x77)),
        "a buffer was written to after its queue was dropped"
    );
}
