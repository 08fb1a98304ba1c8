//! Data: a read returns the data written, under any concurrent load.

use super::{
    SPAN, assert_tags, content, fill, good, piece, read, reap_all, reap_some, submit, write_of,
    write_with, zeroes,
};
use crate::Random;
use block::{BlockDevice, Blocking, Buf, BufPool, Bufs, Op, Queue, Wait};

/// Runs a random mix with many requests in flight, on ranges that do not overlap while in flight;
/// then compares everything with a plain copy in memory.
pub(super) fn random_operations_agree_with_a_model(device: &dyn BlockDevice, seed: u64) {
    let mut random = Random::new(seed);
    let mut model = vec![0; SPAN as usize];
    random.fill(&mut model);
    let mut queue = device.queue().expect("a queue opens");
    let lanes = Lanes::of(&mut *queue);
    let queue = &mut *queue;
    fill(queue, 0, &model);
    let mut done = Vec::new();
    for _round in 0..40 {
        for lane in 0..lanes.count {
            let op = lanes.operation(lane, &mut random);
            if let Some(range) = range_of(&op) {
                match &op {
                    Op::Write { bufs, .. } => copy_out(bufs, &mut model[range]),
                    Op::WriteZeroes { .. } => model[range].fill(0),
                    _ => {}
                }
            }
            submit(queue, lane, op);
        }
        reap_all(queue, &mut done);
        assert_tags(&done, 0..lanes.count);
        for completion in done.drain(..) {
            completion.result.expect("nothing fails here");
            if let (Some(range), Op::Read { bufs, offset }) =
                (range_of(&completion.op), &completion.op)
            {
                let same = bufs.iter().flat_map(|b| b.iter()).eq(&model[range]);
                assert!(same, "read at {offset}, seed {seed}");
            }
        }
    }
    let mut other = device.queue().expect("a second queue opens");
    assert!(
        content(&mut *other, 0, SPAN as usize) == model,
        "the device and the model differ, seed {seed}"
    );
}

/// Converts the range of an operation to a range of the model.
pub(super) fn range_of(op: &Op) -> Option<std::ops::Range<usize>> {
    let (offset, len) = op.range()?;
    Some(offset as usize..(offset + len) as usize)
}

/// Copies buffers to a contiguous slice.
pub(super) fn copy_out(bufs: &Bufs, mut out: &mut [u8]) {
    for buf in bufs.iter() {
        let (part, rest) = out.split_at_mut(buf.len());
        part.copy_from_slice(buf);
        out = rest;
    }
}

/// Parts of the device, one for each request in flight, and buffers for them.
pub(super) struct Lanes {
    /// Number of lanes.
    pub(super) count: u64,
    bytes: u64,
    block: u64,
    blocks_max: u64,
    pool: BufPool,
}

impl Lanes {
    /// Creates the lanes of an unused queue; the queue must be unused because it may register the
    /// pool.
    pub(super) fn of(queue: &mut dyn Queue) -> Lanes {
        let info = queue.info();
        let block = u64::from(info.logical_block_size);
        let count = (queue.capacity() as u64).min(16);
        let bytes = SPAN / count / block * block;
        let longest = bytes.min(256 * 1024).min(u64::from(info.max_transfer));
        let pool = BufPool::new(longest as usize, 2 * count as usize);
        queue.register(&pool);
        Lanes {
            count,
            bytes,
            block,
            blocks_max: longest / block,
            pool,
        }
    }

    /// Draws a random operation within a lane; a write has random content, in one or two buffers.
    pub(super) fn operation(&self, lane: u64, random: &mut Random) -> Op {
        let len = (1 + random.below(self.blocks_max)) * self.block;
        let room = (self.bytes - len) / self.block + 1;
        let offset = lane * self.bytes + self.block * random.below(room);
        let fua = random.below(4) == 0;
        match random.below(8) {
            0..=2 => Op::Read {
                offset,
                bufs: self.bufs(len, random),
            },
            3..=5 => {
                let mut bufs = self.bufs(len, random);
                bufs.iter_mut().for_each(|b| random.fill(b));
                write_with(offset, bufs, fua)
            }
            6 => Op::WriteZeroes {
                offset,
                len,
                fua,
                unmap: random.below(2) == 0,
            },
            _ => Op::Flush,
        }
    }

    fn bufs(&self, len: u64, random: &mut Random) -> Bufs {
        let take = |len: u64| self.pool.take(len as usize).expect("two for each lane");
        match self.block * random.below(len / self.block) {
            0 => take(len).into(),
            first => vec![take(first), take(len - first)].into(),
        }
    }
}

/// Zeroed blocks are zero, discarded blocks have any content, and their neighbors are unchanged.
pub(super) fn zeroes_and_discards_keep_to_their_range(device: &dyn BlockDevice) {
    let block = device.info().logical_block_size as usize;
    let discards = device.info().discard;
    let queue = &mut *device.queue().expect("a queue opens");
    let mut random = Random::new(6);
    // Long enough that a lower device frees whole chunks of its own, with partial ones at the ends.
    let span = (128 * block).max(1 << 20);
    for (at, len) in [(1, 1), (3, 7), (8, 64), (5, span / block - 9)] {
        let range = at * block..(at + len) * block;
        let (offset, len) = (range.start as u64, range.len() as u64);
        let mut before = vec![0; span];
        for (fua, unmap) in [(false, false), (false, true), (true, false), (true, true)] {
            random.fill(&mut before);
            fill(queue, 0, &before);
            let op = Op::WriteZeroes {
                offset,
                len,
                fua,
                unmap,
            };
            good(queue, op);
            before[range.clone()].fill(0);
            let after = content(queue, 0, span);
            assert!(
                after == before,
                "zeroes of {range:?}, fua {fua}, unmap {unmap}"
            );
        }
        if !discards {
            continue;
        }
        random.fill(&mut before);
        fill(queue, 0, &before);
        good(queue, Op::Discard { offset, len });
        let after = content(queue, 0, span);
        for (index, (new, old)) in after.chunks(block).zip(before.chunks(block)).enumerate() {
            let inside = range.contains(&(index * block));
            // Inside, any content is permitted: an encrypted volume decrypts whatever the lower
            // device holds.
            assert!(
                new == old || inside,
                "a discard of {range:?} changed block {index}"
            );
        }
        // Discarded blocks accept new data.
        fill(queue, offset, &before[range.clone()]);
        assert!(
            content(queue, 0, span) == before,
            "after a discard of {range:?}"
        );
    }
}

/// FUA and flush succeed at any moment and change no data. [`super::run_with_power_cuts`] checks
/// that they also make it durable.
pub(super) fn fua_and_flush_leave_the_data(device: &dyn BlockDevice) {
    let len = piece(device);
    let mut queue = device.queue().expect("a queue opens");
    let queue = &mut *queue;
    let mut data = vec![0; len];
    let mut done = Vec::new();
    for round in 0..8u64 {
        Random::new(round).fill(&mut data);
        submit(queue, 0, write_with(0, Buf::copy_of(&data), round % 2 == 0));
        reap_all(queue, &mut done);
        // A flush next to a write that it does not cover, and one with nothing to do.
        let beside = queue.capacity() >= 3;
        submit(queue, 1, Op::Flush);
        if beside {
            submit(queue, 2, write_of(len as u64, Buf::copy_of(&data)));
            submit(queue, 3, Op::Flush);
        }
        reap_all(queue, &mut done);
        assert_tags(&done, 0..if beside { 4 } else { 2 });
        for completion in done.drain(..) {
            completion.result.expect("nothing fails here");
        }
        assert!(content(queue, 0, len) == data, "round {round}");
    }
}

/// Each thread has its own queue and its own part of the device.
pub(super) fn threads_share_a_device(device: &dyn BlockDevice) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut blocking = Blocking::open(device).expect("a queue for each thread");
                let from = thread * (SPAN / 4);
                let mut data = vec![0; (SPAN / 4) as usize];
                for round in 0..3 {
                    Random::new(thread * 100 + round).fill(&mut data);
                    blocking.write_at(from, &data).expect("write");
                    blocking.flush().expect("flush");
                    let mut back = vec![0; data.len()];
                    blocking.read_at(from, &mut back).expect("read");
                    assert!(back == data, "thread {thread}, round {round}");
                }
            });
        }
    });
}

/// Each thread writes every fourth block, with many requests in flight: a device that reads,
/// modifies and writes more than the requested range would lose a neighbor's write.
pub(super) fn threads_write_neighbouring_blocks(device: &dyn BlockDevice) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 8;
    let block = device.info().logical_block_size as usize;
    let blocks = (64 * THREADS).min(SPAN / block as u64);
    let value = |index: u64, round: u64| (1 + index.wrapping_mul(31) + round) as u8;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let queue = &mut *device.queue().expect("a queue for each thread");
                let mut done = Vec::new();
                for round in 0..ROUNDS {
                    for index in (thread..blocks).step_by(THREADS as usize) {
                        if queue.in_flight() == queue.capacity() {
                            reap_some(queue, Wait::Block, &mut done);
                        }
                        let mut buf = Buf::zeroed(block);
                        buf.fill(value(index, round));
                        submit(queue, index, write_of(index * block as u64, buf));
                    }
                    reap_all(queue, &mut done);
                    assert_eq!(done.len() as u64, blocks / THREADS);
                    for completion in done.drain(..) {
                        completion.result.expect("nothing fails here");
                    }
                }
            });
        }
    });
    let queue = &mut *device.queue().expect("a queue opens");
    for index in 0..blocks {
        let expected = value(index, ROUNDS - 1);
        let Op::Read { bufs, .. } = good(queue, read(index * block as u64, block)) else {
            unreachable!("checked by `good`")
        };
        let whole = bufs.iter().all(|b| b.iter().all(|byte| *byte == expected));
        assert!(whole, "block {index} lost a write");
    }
    good(queue, zeroes(0, blocks * block as u64));
}
