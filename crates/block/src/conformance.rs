//! What every device has to do, as one suite: a backend joins by passing it.
//!
//! The caller gives a constructor; each part gets a fresh, writable device of 8 MiB or more. A part
//! that does not hold panics with what it saw.

use crate::{
    BlockDevice, Blocking, Buf, BufPool, Bufs, Completion, ErrorDevice, ErrorKind, Failure, Op,
    OpKind, Queue, Random, Request, Wait,
};
use std::sync::Arc;
use std::time::Duration;

/// Makes a fresh device.
pub type Make<'a> = &'a dyn Fn() -> Arc<dyn BlockDevice>;

/// Bytes of the device that the suite uses.
const SPAN: u64 = 8 << 20;

/// Runs the whole suite.
pub fn run(make: Make<'_>) {
    info_makes_sense(&*make());
    bounds_and_alignment(&*make());
    empty_requests(&*make());
    largest_transfer(&*make());
    scatter_and_gather(&*make());
    random_operations_agree_with_a_model(&*make(), 1);
    full_queue_gives_requests_back(&*make());
    waiting(&*make());
    dropping_with_requests_in_flight(&*make());
    threads_share_a_device(&*make());
    one_failing_request_harms_no_other(make);
}

fn read(offset: u64, len: usize) -> Op {
    Op::Read {
        offset,
        bufs: Buf::zeroed(len).into(),
    }
}

fn write(offset: u64, len: usize) -> Op {
    Op::Write {
        offset,
        bufs: Buf::zeroed(len).into(),
        fua: false,
    }
}

/// Submits one request and waits for it.
fn one(queue: &mut dyn Queue, op: Op) -> Completion {
    let mut done = Vec::new();
    queue
        .submit(Request { tag: 42, op })
        .expect("an idle queue takes a request");
    while done.is_empty() {
        queue.reap(Wait::Block, &mut done).expect("the queue works");
    }
    let completion = done.pop().expect("there is one");
    assert_eq!((completion.tag, queue.in_flight(), done.len()), (42, 0, 0));
    completion
}

fn kind_of(queue: &mut dyn Queue, op: Op) -> Option<ErrorKind> {
    one(queue, op).result.err().map(|e| e.kind())
}

fn info_makes_sense(device: &dyn BlockDevice) {
    let info = device.info();
    let block = info.logical_block_size;
    assert!(block.is_power_of_two() && block >= 512, "{info:?}");
    assert!(
        info.size >= SPAN && info.size.is_multiple_of(u64::from(block)),
        "{info:?}"
    );
    assert!(
        info.max_transfer >= block && info.max_transfer.is_multiple_of(block),
        "{info:?}"
    );
    assert!(
        !info.wwid.is_empty() && !info.name.is_empty() && !info.read_only,
        "{info:?}"
    );
    assert_eq!(device.queue().expect("a queue opens").info(), info);
}

fn bounds_and_alignment(device: &dyn BlockDevice) {
    let (block, size) = (
        device.info().logical_block_size as usize,
        device.info().size,
    );
    let mut queue = device.queue().expect("a queue opens");
    for make in [read as fn(u64, usize) -> Op, write] {
        assert_eq!(
            kind_of(&mut *queue, make(size - block as u64, block)),
            None,
            "the last block"
        );
        for offset in [
            size,
            size - block as u64 + 512 * u64::from(block == 512),
            u64::MAX - block as u64 + 1,
        ] {
            let len = if offset < size { 2 * block } else { block };
            if offset.is_multiple_of(block as u64) && offset + 1 > size - block as u64 + 1 {
                assert_eq!(
                    kind_of(&mut *queue, make(offset, len)),
                    Some(ErrorKind::OutOfRange),
                    "{offset}"
                );
            }
        }
        assert_eq!(
            kind_of(&mut *queue, make(1, block)),
            Some(ErrorKind::Misaligned),
            "offset"
        );
        assert_eq!(
            kind_of(&mut *queue, make(0, block - 1)),
            Some(ErrorKind::Misaligned),
            "length"
        );
        let half = block / 2;
        let halves: Bufs = vec![Buf::zeroed(half), Buf::zeroed(block - half)].into();
        let op = Op::Read {
            offset: 0,
            bufs: halves,
        };
        assert_eq!(
            kind_of(&mut *queue, op),
            Some(ErrorKind::Misaligned),
            "each buffer"
        );
    }
    let zeroes = |offset, len| Op::WriteZeroes {
        offset,
        len,
        fua: false,
        unmap: false,
    };
    assert_eq!(
        kind_of(&mut *queue, zeroes(u64::MAX - 511, 1024)),
        Some(if block == 512 {
            ErrorKind::OutOfRange
        } else {
            ErrorKind::Misaligned
        })
    );
    assert_eq!(
        kind_of(&mut *queue, zeroes(0, size + block as u64)),
        Some(ErrorKind::OutOfRange)
    );
    let discard = kind_of(
        &mut *queue,
        Op::Discard {
            offset: size,
            len: block as u64,
        },
    );
    let expected = if device.info().discard {
        ErrorKind::OutOfRange
    } else {
        ErrorKind::Unsupported
    };
    assert_eq!(discard, Some(expected));
}

fn empty_requests(device: &dyn BlockDevice) {
    let mut queue = device.queue().expect("a queue opens");
    for op in [
        read(0, 0),
        write(device.info().size, 0),
        Op::WriteZeroes {
            offset: 0,
            len: 0,
            fua: true,
            unmap: true,
        },
        Op::Flush,
    ] {
        let shown = format!("{op:?}");
        assert_eq!(kind_of(&mut *queue, op), None, "{shown}");
    }
}

fn largest_transfer(device: &dyn BlockDevice) {
    let (block, max) = (
        device.info().logical_block_size as usize,
        device.info().max_transfer as usize,
    );
    let mut queue = device.queue().expect("a queue opens");
    if max as u64 <= SPAN {
        assert_eq!(kind_of(&mut *queue, write(0, max)), None);
        assert_eq!(kind_of(&mut *queue, read(0, max)), None);
    }
    if (max + block) as u64 <= device.info().size {
        assert_eq!(
            kind_of(&mut *queue, read(0, max + block)),
            Some(ErrorKind::TooLarge)
        );
        assert_eq!(
            kind_of(&mut *queue, write(0, max + block)),
            Some(ErrorKind::TooLarge)
        );
    }
}

fn scatter_and_gather(device: &dyn BlockDevice) {
    let block = device.info().logical_block_size as usize;
    let mut random = Random::new(3);
    for count in [1, 2, 3, 7, 16] {
        let lens: Vec<usize> = (0..count)
            .map(|_| block * (1 + random.below(3) as usize))
            .collect();
        let total: usize = lens.iter().sum();
        let mut content = vec![0; total];
        random.fill(&mut content);
        let mut queue = device.queue().expect("a queue opens");
        let mut at = 0;
        let mut next = |len: &usize| {
            at += len;
            Buf::copy_of(&content[at - len..at])
        };
        let bufs: Vec<Buf> = lens.iter().map(&mut next).collect();
        let done = one(
            &mut *queue,
            Op::Write {
                offset: block as u64,
                bufs: bufs.into(),
                fua: count % 2 == 1,
            },
        );
        done.result.expect("a write of several buffers");
        let Op::Write { bufs, .. } = done.op else {
            panic!("another operation came back")
        };
        assert!(
            bufs.iter().flat_map(|b| b.iter()).eq(&content),
            "the caller's buffers were changed"
        );
        let bufs: Vec<Buf> = lens.iter().rev().map(|len| Buf::zeroed(*len)).collect();
        let done = one(
            &mut *queue,
            Op::Read {
                offset: block as u64,
                bufs: bufs.into(),
            },
        );
        let Op::Read { bufs, .. } = done.op else {
            panic!("another operation came back")
        };
        assert!(
            bufs.iter().flat_map(|b| b.iter()).eq(&content),
            "{count} buffers"
        );
    }
}

/// A random mix, many in flight, on ranges that do not overlap while in flight; then everything is
/// compared with a plain copy in memory.
fn random_operations_agree_with_a_model(device: &dyn BlockDevice, seed: u64) {
    let info = device.info().clone();
    let block = u64::from(info.logical_block_size);
    let mut random = Random::new(seed);
    let mut model = vec![0; SPAN as usize];
    random.fill(&mut model);
    let mut blocking = Blocking::open(device).expect("a queue opens");
    blocking.write_at(0, &model).expect("the first fill");
    drop(blocking);
    let mut queue = device.queue().expect("a queue opens");
    let pool = BufPool::new(256 * 1024, 64);
    queue.register(&pool);
    let lanes = (queue.capacity() as u64).min(16);
    let lane_bytes = SPAN / lanes;
    let mut done = Vec::new();
    for _round in 0..40 {
        for lane in 0..lanes {
            let most = (lane_bytes / block)
                .min(256 * 1024 / block)
                .min(u64::from(info.max_transfer) / block);
            let blocks = 1 + random.below(most);
            let len = blocks * block;
            let offset = lane * lane_bytes + block * random.below((lane_bytes - len) / block + 1);
            let range = offset as usize..(offset + len) as usize;
            let op = match random.below(8) {
                0..=2 => Op::Read {
                    offset,
                    bufs: pool.take(len as usize).expect("pool").into(),
                },
                3..=5 => {
                    let mut buf = pool.take(len as usize).expect("pool");
                    random.fill(&mut buf);
                    model[range].copy_from_slice(&buf);
                    Op::Write {
                        offset,
                        bufs: buf.into(),
                        fua: random.below(4) == 0,
                    }
                }
                6 => {
                    model[range].fill(0);
                    Op::WriteZeroes {
                        offset,
                        len,
                        fua: random.below(2) == 0,
                        unmap: random.below(2) == 0,
                    }
                }
                _ => Op::Flush,
            };
            queue
                .submit(Request { tag: lane, op })
                .expect("a lane each");
        }
        while queue.in_flight() > 0 {
            queue.reap(Wait::Block, &mut done).expect("the queue works");
        }
        let mut tags: Vec<u64> = done.iter().map(|d| d.tag).collect();
        tags.sort_unstable();
        assert!(
            tags.into_iter().eq(0..lanes),
            "each request comes back once"
        );
        for completion in done.drain(..) {
            completion.result.expect("nothing fails here");
            if let Op::Read { offset, bufs } = completion.op {
                let expected = &model[offset as usize..offset as usize + bufs.total_len()];
                assert!(
                    bufs.iter().flat_map(|b| b.iter()).eq(expected),
                    "read at {offset}, seed {seed}"
                );
            }
        }
    }
    drop(queue);
    let mut blocking = Blocking::open(device).expect("a queue opens");
    let mut all = vec![0; SPAN as usize];
    blocking.read_at(0, &mut all).expect("the last read");
    assert!(all == model, "the device and the model differ, seed {seed}");
    if info.discard {
        blocking.discard(block * 4, block * 8).expect("discard");
        blocking.read_at(0, &mut all).expect("read after discard");
        let (from, to) = (block as usize * 4, block as usize * 12);
        assert!(
            all[..from] == model[..from] && all[to..] == model[to..],
            "discard touched a neighbour"
        );
    }
}

fn full_queue_gives_requests_back(device: &dyn BlockDevice) {
    let block = device.info().logical_block_size as usize;
    let mut queue = device.queue().expect("a queue opens");
    let mut taken = 0u64;
    let refused = loop {
        match queue.submit(Request {
            tag: taken,
            op: read(0, block),
        }) {
            Ok(()) => taken += 1,
            Err(request) => break request,
        }
        assert!(
            taken <= queue.capacity() as u64,
            "more than the capacity was taken"
        );
    };
    assert_eq!(
        (taken as usize, refused.tag),
        (queue.capacity(), taken),
        "a full queue gives back what it was given"
    );
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).expect("the queue works");
    }
    let mut tags: Vec<u64> = done.iter().map(|d| d.tag).collect();
    tags.sort_unstable();
    assert!(
        tags.into_iter().eq(0..taken),
        "each request comes back once"
    );
    queue.submit(refused).expect("there is room again");
}

fn waiting(device: &dyn BlockDevice) {
    let block = device.info().logical_block_size as usize;
    let mut queue = device.queue().expect("a queue opens");
    let mut done = Vec::new();
    for wait in [
        Wait::Poll,
        Wait::Block,
        Wait::AtMost(Duration::from_secs(3600)),
    ] {
        assert_eq!(
            queue.reap(wait, &mut done).expect("the queue works"),
            0,
            "nothing is in flight: {wait:?}"
        );
    }
    // As an export does it: kick, poll once, then sleep on the descriptor.
    for round in 0..20 {
        queue
            .submit(Request {
                tag: round,
                op: read(0, block),
            })
            .expect("room");
        queue.kick().expect("the queue works");
        let mut count = queue.reap(Wait::Poll, &mut done).expect("the queue works");
        while count == 0 {
            let fd = queue
                .wait_fd()
                .expect("without a descriptor a reap gives everything");
            let mut fds = [rustix::event::PollFd::new(
                &fd,
                rustix::event::PollFlags::IN,
            )];
            let limit = rustix::event::Timespec {
                tv_sec: 60,
                tv_nsec: 0,
            };
            assert_eq!(
                rustix::event::poll(&mut fds, Some(&limit)),
                Ok(1),
                "the descriptor never became readable"
            );
            count = queue.reap(Wait::Poll, &mut done).expect("the queue works");
        }
        assert_eq!(done.pop().map(|d| d.tag), Some(round));
    }
    queue
        .submit(Request {
            tag: 1,
            op: read(0, block),
        })
        .expect("room");
    while queue
        .reap(Wait::AtMost(Duration::from_secs(60)), &mut done)
        .expect("the queue works")
        == 0
    {}
}

fn dropping_with_requests_in_flight(device: &dyn BlockDevice) {
    let pool = BufPool::new(64 * 1024, 32);
    for _ in 0..4 {
        let mut queue = device.queue().expect("a queue opens");
        queue.register(&pool);
        for i in 0..queue.capacity().min(32) as u64 {
            let bufs = pool
                .take(64 * 1024)
                .expect("all buffers came back from the round before")
                .into();
            let offset = i * 64 * 1024;
            let op = match i % 3 {
                0 => Op::Read { offset, bufs },
                1 => Op::Write {
                    offset,
                    bufs,
                    fua: false,
                },
                _ => Op::WriteZeroes {
                    offset,
                    len: 65536,
                    fua: false,
                    unmap: false,
                },
            };
            queue.submit(Request { tag: i, op }).expect("room");
        }
        queue.kick().expect("the queue works");
        drop(queue);
        let mut back: Vec<Buf> = std::iter::from_fn(|| pool.take(64 * 1024)).collect();
        assert_eq!(back.len(), 32, "a buffer was lost");
        // Whatever was in flight must have let go: nobody writes here any more.
        back.iter_mut().for_each(|b| b.fill(0x77));
        std::thread::sleep(Duration::from_millis(2));
        assert!(
            back.iter().all(|b| b.iter().all(|byte| *byte == 0x77)),
            "a freed buffer was written to"
        );
    }
}

fn threads_share_a_device(device: &dyn BlockDevice) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut blocking = Blocking::open(device).expect("a queue for each thread");
                let from = thread * (SPAN / 4);
                let mut content = vec![0; (SPAN / 4) as usize];
                for round in 0..3 {
                    Random::new(thread * 100 + round).fill(&mut content);
                    blocking.write_at(from, &content).expect("write");
                    blocking.flush().expect("flush");
                    let mut back = vec![0; content.len()];
                    blocking.read_at(from, &mut back).expect("read");
                    assert!(back == content, "thread {thread}, round {round}");
                }
            });
        }
    });
}

/// The n-th request of a mix fails for every n; it alone reports, and everything else is whole.
fn one_failing_request_harms_no_other(make: Make<'_>) {
    let (device, handle) = ErrorDevice::new(make());
    every_nth_request_fails(&device, &handle);
}

/// The same for a layer over an [`ErrorDevice`]: `device` is the layer, `handle` belongs to what is
/// below it. A failing request below may fail one request above, never more.
pub fn every_nth_request_fails(device: &dyn BlockDevice, handle: &crate::ErrorHandle) {
    const REQUESTS: u64 = 12;
    let step = 64 * 1024;
    for kind in [OpKind::Write, OpKind::Read] {
        for n in 1..=REQUESTS {
            handle.set(None);
            let mut queue = device.queue().expect("a queue opens");
            let mut done = Vec::new();
            let mut pass = |queue: &mut dyn Queue, writes: bool, seed: u64| -> Vec<bool> {
                for i in 0..REQUESTS {
                    let mut buf = Buf::zeroed(step as usize);
                    let op = if writes {
                        Random::new(seed * 1000 + i).fill(&mut buf);
                        Op::Write {
                            offset: i * step,
                            bufs: buf.into(),
                            fua: false,
                        }
                    } else {
                        Op::Read {
                            offset: i * step,
                            bufs: buf.into(),
                        }
                    };
                    queue.submit(Request { tag: i, op }).expect("room");
                }
                while queue.in_flight() > 0 {
                    queue
                        .reap(Wait::Block, &mut done)
                        .expect("a failing request is no failing queue");
                }
                let mut good = vec![false; REQUESTS as usize];
                for completion in done.drain(..) {
                    match &completion.result {
                        Ok(()) => good[completion.tag as usize] = true,
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Media, "{e}"),
                    }
                    if let (true, Op::Read { bufs, .. }) =
                        (completion.result.is_ok(), &completion.op)
                    {
                        let mut expected = vec![0; step as usize];
                        Random::new(n * 1000 + completion.tag).fill(&mut expected);
                        assert!(
                            bufs.iter().flat_map(|b| b.iter()).eq(&expected),
                            "request {}",
                            completion.tag
                        );
                    }
                }
                good
            };
            let all = vec![true; REQUESTS as usize];
            let fail = |kind| Failure {
                op: Some(kind),
                range: None,
                first: n,
                every: None,
                kind: ErrorKind::Media,
            };
            if kind == OpKind::Write {
                handle.set(Some(fail(kind)));
                let good = pass(&mut *queue, true, n);
                assert_eq!(
                    good.iter().filter(|g| !**g).count(),
                    1,
                    "the {n}th write fails alone"
                );
                handle.set(None);
            }
            assert_eq!(
                pass(&mut *queue, true, n),
                all,
                "after the failure everything works again"
            );
            if kind == OpKind::Read {
                handle.set(Some(fail(kind)));
                assert_eq!(
                    pass(&mut *queue, false, n).iter().filter(|g| !**g).count(),
                    1,
                    "the {n}th read fails alone"
                );
                handle.set(None);
            }
            assert_eq!(pass(&mut *queue, false, n), all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delay, Mem, PowerCut, Rate, Stats};

    fn mem() -> Arc<dyn BlockDevice> {
        Arc::new(Mem::new(16 << 20, 512))
    }

    #[test]
    fn mem_passes() {
        run(&mem);
        run(&|| Arc::new(Mem::new(16 << 20, 4096)));
    }

    #[test]
    fn error_passes_while_nothing_is_to_fail() {
        run(&|| Arc::new(ErrorDevice::new(mem()).0));
    }

    #[test]
    fn delay_passes() {
        run(&|| {
            Arc::new(Delay::new(
                mem(),
                Duration::from_micros(50),
                Duration::from_micros(100),
            ))
        });
    }

    #[test]
    fn rate_passes() {
        run(&|| Arc::new(Rate::new(mem(), Some(4 << 30), Some(1_000_000))));
    }

    #[test]
    fn stats_passes_and_counts() {
        run(&|| Arc::new(Stats::new(mem()).0));
        let (device, handle) = Stats::new(mem());
        let mut blocking = Blocking::open(&device).unwrap();
        blocking.write_at(0, &[1; 4096]).unwrap();
        blocking.read_at(u64::MAX - 511, &mut [0; 512]).unwrap_err();
        let counted = handle.snapshot();
        assert_eq!((counted.write.requests, counted.write.bytes), (1, 4096));
        assert_eq!((counted.read.requests, counted.read.errors), (1, 1));
    }

    #[test]
    fn powercut_passes() {
        run(&|| Arc::new(PowerCut::new(&Mem::new(16 << 20, 512))));
    }

    #[test]
    fn a_read_only_device_refuses_every_change() {
        let disk = Mem::new(1 << 20, 512).read_only();
        let mut queue = disk.queue().unwrap();
        for op in [
            write(0, 512),
            Op::Discard {
                offset: 0,
                len: 512,
            },
            Op::WriteZeroes {
                offset: 0,
                len: 512,
                fua: false,
                unmap: false,
            },
        ] {
            assert_eq!(kind_of(&mut *queue, op), Some(ErrorKind::ReadOnly));
        }
        assert_eq!(kind_of(&mut *queue, read(0, 512)), None);
    }
}
