//! Single requests: those that a device accepts, those that it refuses, and the errors.

use super::{
    SPAN, content, durable_write_of, good, one, read, refused, write, write_of, write_with, zeroes,
};
use crate::Random;
use block::{BlockDevice, Buf, Bufs, ErrorKind, Op};

pub(super) fn info_makes_sense(device: &dyn BlockDevice) {
    let info = device.info();
    let block = info.logical_block_size;
    assert!(
        block.is_power_of_two() && (512..=65536).contains(&block),
        "{info:?}"
    );
    assert!(
        info.size >= SPAN && info.size.is_multiple_of(u64::from(block)),
        "{info:?}"
    );
    assert!(
        info.max_transfer >= block && info.max_transfer.is_multiple_of(block),
        "{info:?}"
    );
    assert!(info.optimal_io_size > 0, "{info:?}");
    assert!(!info.wwid.is_empty() && !info.name.is_empty(), "{info:?}");
    assert!(!info.read_only, "{info:?}");
    let queue = device.queue().expect("a queue opens");
    assert_eq!(queue.info(), info);
    assert!(queue.capacity() > 0 && queue.in_flight() == 0);
}

pub(super) fn bounds_and_alignment(device: &dyn BlockDevice) {
    let (block, size) = (
        device.info().logical_block_size as usize,
        device.info().size,
    );
    let queue = &mut *device.queue().expect("a queue opens");
    let block_bytes = block as u64;
    for make in [read as fn(u64, usize) -> Op, write] {
        good(queue, make(size - block_bytes, block));
        let beyond = [
            (size - block_bytes, 2 * block),
            (size, block),
            (size + block_bytes, block),
            (1 << 63, block),
            // The end would be 2^64, which overflows a u64.
            (0u64.wrapping_sub(block_bytes), block),
            (0u64.wrapping_sub(block_bytes), 2 * block),
        ];
        for (offset, len) in beyond {
            // A device whose largest transfer is one block may report either error.
            if len as u64 <= u64::from(device.info().max_transfer) {
                refused(queue, make(offset, len), ErrorKind::OutOfRange);
            }
        }
        refused(queue, make(1, block), ErrorKind::Misaligned);
        refused(queue, make(block_bytes / 2, block), ErrorKind::Misaligned);
        refused(queue, make(u64::MAX, block), ErrorKind::Misaligned);
        refused(queue, make(0, block - 1), ErrorKind::Misaligned);
        refused(queue, make(0, 1), ErrorKind::Misaligned);
    }
    // Together one block, but each buffer is only part of one.
    let parts = || -> Bufs { vec![Buf::zeroed(block / 2), Buf::zeroed(block - block / 2)].into() };
    let op = Op::Read {
        offset: 0,
        bufs: parts(),
    };
    refused(queue, op, ErrorKind::Misaligned);
    refused(queue, write_of(0, parts()), ErrorKind::Misaligned);
    for (offset, len, kind) in [
        (0, size + block_bytes, ErrorKind::OutOfRange),
        (size, block_bytes, ErrorKind::OutOfRange),
        (
            block_bytes,
            u64::MAX - block_bytes + 1,
            ErrorKind::OutOfRange,
        ),
        (
            0u64.wrapping_sub(block_bytes),
            2 * block_bytes,
            ErrorKind::OutOfRange,
        ),
        (1, block_bytes, ErrorKind::Misaligned),
        (0, block_bytes + 1, ErrorKind::Misaligned),
        (u64::MAX, u64::MAX, ErrorKind::Misaligned),
    ] {
        refused(queue, zeroes(offset, len), kind);
        let kind = if device.info().discard {
            kind
        } else {
            ErrorKind::Unsupported
        };
        refused(queue, Op::Discard { offset, len }, kind);
    }
    // The queue is still usable after all of these errors.
    good(queue, write(0, block));
}

pub(super) fn empty_requests(device: &dyn BlockDevice) {
    let (size, discard) = (device.info().size, device.info().discard);
    let queue = &mut *device.queue().expect("a queue opens");
    for offset in [0, size] {
        good(queue, read(offset, 0));
        good(queue, write(offset, 0));
        good(queue, durable_write_of(offset, Vec::new()));
        good(queue, zeroes(offset, 0));
        if discard {
            good(queue, Op::Discard { offset, len: 0 });
        }
    }
    let no_bufs = Op::Read {
        offset: 0,
        bufs: Vec::new().into(),
    };
    good(queue, no_bufs);
    let everything = Op::WriteZeroes {
        offset: 0,
        len: 0,
        fua: true,
        unmap: true,
    };
    good(queue, everything);
    good(queue, Op::Flush);
    refused(
        queue,
        read(size + u64::from(device.info().logical_block_size), 0),
        ErrorKind::OutOfRange,
    );
}

pub(super) fn largest_transfer(device: &dyn BlockDevice) {
    /// Upper bound on the memory used to test a device that accepts any length.
    const TRIED_BYTES_MAX: u64 = 64 << 20;
    let (block, max) = (
        device.info().logical_block_size as usize,
        device.info().max_transfer as usize,
    );
    let queue = &mut *device.queue().expect("a queue opens");
    if max as u64 <= device.info().size.min(TRIED_BYTES_MAX) {
        let mut data = vec![0; max];
        Random::new(5).fill(&mut data);
        good(queue, write_of(0, Buf::copy_of(&data)));
        let Op::Read { bufs, .. } = good(queue, read(0, max)) else {
            unreachable!("checked by `good`")
        };
        assert!(bufs.iter().flat_map(|b| b.iter()).eq(&data));
    }
    if (max + block) as u64 <= device.info().size.min(TRIED_BYTES_MAX) {
        refused(queue, read(0, max + block), ErrorKind::TooLarge);
        refused(queue, write(0, max + block), ErrorKind::TooLarge);
        let halves: Bufs = vec![Buf::zeroed(max), Buf::zeroed(block)].into();
        refused(queue, write_of(0, halves), ErrorKind::TooLarge);
    }
    // The limit does not apply to requests without data.
    good(queue, zeroes(0, SPAN));
}

pub(super) fn scatter_and_gather(device: &dyn BlockDevice) {
    let block = device.info().logical_block_size as usize;
    let most = (device.info().max_transfer as usize / block).min(32);
    let queue = &mut *device.queue().expect("a queue opens");
    let mut random = Random::new(3);
    for count in 1..=16usize {
        let mut left = most;
        let mut lens: Vec<usize> = Vec::new();
        while lens.len() < count && left > 0 {
            let blocks = 1 + random.below(3.min(left as u64)) as usize;
            lens.push(blocks * block);
            left -= blocks;
        }
        let total: usize = lens.iter().sum();
        let mut data = vec![0; total];
        random.fill(&mut data);
        let offset = (count * block) as u64;
        let around = content(queue, offset - block as u64, total + 2 * block);
        let mut at = 0;
        let next = |len: &usize| {
            at += len;
            Buf::copy_of(&data[at - len..at])
        };
        let bufs: Vec<Buf> = lens.iter().map(next).collect();
        let Op::Write { bufs, .. } = good(queue, write_with(offset, bufs, count % 2 == 1)) else {
            unreachable!("checked by `good`")
        };
        assert!(
            bufs.iter().flat_map(|b| b.iter()).eq(&data),
            "the submitter's buffers were changed"
        );
        let bufs: Vec<Buf> = lens.iter().rev().map(|len| Buf::zeroed(*len)).collect();
        let bufs = bufs.into();
        let Op::Read { bufs, .. } = good(queue, Op::Read { offset, bufs }) else {
            unreachable!("checked by `good`")
        };
        assert!(
            bufs.iter().flat_map(|b| b.iter()).eq(&data),
            "{count} buffers: {lens:?}"
        );
        let after = content(queue, offset - block as u64, total + 2 * block);
        assert!(
            after[..block] == around[..block] && after[block + total..] == around[block + total..],
            "an adjacent byte was changed"
        );
    }
}

pub(super) fn read_only_refuses_every_change(device: &dyn BlockDevice) {
    let info = device.info();
    assert!(info.read_only && info.size >= SPAN, "{info:?}");
    let block = info.logical_block_size as usize;
    let queue = &mut *device.queue().expect("a queue opens");
    let before = content(queue, 0, SPAN as usize);
    let changes = |offset| {
        [
            write(offset, block),
            durable_write_of(offset, Buf::zeroed(block)),
            zeroes(offset, block as u64),
            Op::Discard {
                offset,
                len: block as u64,
            },
        ]
    };
    for op in changes(0) {
        refused(queue, op, ErrorKind::ReadOnly);
    }
    // A read is checked as on any device, and a flush has nothing to do.
    refused(queue, read(info.size, block), ErrorKind::OutOfRange);
    refused(queue, read(1, block), ErrorKind::Misaligned);
    good(queue, Op::Flush);
    assert!(content(queue, 0, SPAN as usize) == before);
    // Beyond the end a change has two faults; the device may report either.
    for op in changes(info.size) {
        assert!(one(queue, op).result.is_err());
    }
}
