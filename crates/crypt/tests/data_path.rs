//! The data path: conformance over every kind of lower device, agreement with the cipher, and the
//! state after 2,000 power cuts.

use block::{
    BlockDevice, Blocking, Buf, Bufs, Op, Request, SUMS_AT_ONCE, Sum, SumBlock, Summer, Wait,
};
use block_testing::{ErrorDevice, Mem, PowerCut, Random, Resizable};
use crypt::{CryptDevice, DataSegment, Options};
use std::collections::BTreeMap;
use std::sync::Arc;
use xts::{SectorSize, Tweak, Xts};

const SHIFT: u64 = 1 << 20;

fn key(bits: u32) -> Vec<u8> {
    (0..bits / 4).map(|i| i as u8).collect()
}

fn crypt(
    lower: Arc<dyn BlockDevice>,
    bits: u32,
    sector: SectorSize,
    options: Options,
) -> CryptDevice {
    let xts = Xts::new(&key(bits), sector).unwrap();
    let segment = DataSegment {
        offset: SHIFT,
        size: None,
        iv_tweak: Tweak::new(5),
    };
    CryptDevice::new(lower, xts, segment, options).unwrap()
}

#[test]
fn passes_the_conformance_suite_with_both_key_lengths_and_sector_sizes() {
    for (bits, sector) in [
        (128, SectorSize::B512),
        (256, SectorSize::B4096),
        (128, SectorSize::B4096),
    ] {
        for allow_discards in [false, true] {
            block_testing::conformance::run(&|| {
                let options = Options {
                    allow_discards,
                    ..Options::default()
                };
                Arc::new(crypt(
                    Arc::new(Mem::new(17 << 20, 512)),
                    bits,
                    sector,
                    options,
                ))
            });
        }
    }
}

#[test]
fn one_failing_request_below_fails_one_above() {
    let (lower, handle) = ErrorDevice::new(Arc::new(Mem::new(17 << 20, 512)));
    let device = crypt(Arc::new(lower), 256, SectorSize::B4096, Options::default());
    for n in 1..=20u64 {
        handle.set(Some(block_testing::Failure::nth(
            n,
            block::ErrorKind::Media,
        )));
        let mut queue = device.queue().unwrap();
        let mut done = Vec::new();
        for tag in 0..20u64 {
            let bufs = Buf::zeroed(8192).into();
            let op = if tag % 2 == 0 {
                Op::Write {
                    offset: tag * 8192,
                    bufs,
                    fua: false,
                }
            } else {
                Op::Read {
                    offset: tag * 8192,
                    bufs,
                }
            };
            queue.submit(Request { tag, op }).unwrap();
        }
        while queue.in_flight() > 0 {
            queue.reap(Wait::Block, &mut done).unwrap();
        }
        let failed = done.iter().filter(|d| d.result.is_err()).count();
        assert_eq!((done.len(), failed), (20, 1), "the {n}th request below");
    }
}

#[test]
fn what_lies_below_is_what_the_cipher_makes_of_it_and_nothing_else() {
    let mem = Arc::new(Mem::new(17 << 20, 512));
    let device = crypt(mem.clone(), 256, SectorSize::B4096, Options::default());
    let mut clear = vec![0; 1 << 20];
    Random::new(1).fill(&mut clear);
    let mut blocking = Blocking::open(&device).unwrap();
    blocking.write_at(8192, &clear).unwrap();
    blocking.write_zeroes(2 << 20, 256 * 1024).unwrap();
    let mut below = vec![0; clear.len()];
    mem.peek(SHIFT + 8192, &mut below);
    let xts = Xts::new(&key(256), SectorSize::B4096).unwrap();
    let mut expected = clear.clone();
    // plain64 counts 512-byte units, starting at the segment's tweak.
    xts.encrypt(Tweak::new(5 + 8192 / 512), &mut expected);
    assert!(below == expected);
    let mut untouched = vec![1; SHIFT as usize];
    mem.peek(0, &mut untouched);
    assert!(
        untouched.iter().all(|b| *b == 0),
        "something was written before the data segment"
    );
    let mut zeros = vec![0; 256 * 1024];
    mem.peek(SHIFT + (2 << 20), &mut zeros);
    assert!(
        zeros.chunks(4096).all(|s| s.iter().any(|b| *b != 0)),
        "zeros lie below in the clear"
    );
}

#[test]
fn discards_are_refused_unless_asked_for() {
    let make = |allow_discards| {
        let options = Options {
            allow_discards,
            ..Options::default()
        };
        crypt(
            Arc::new(Mem::new(17 << 20, 512)),
            128,
            SectorSize::B4096,
            options,
        )
    };
    assert!(!make(false).info().discard && make(true).info().discard);
    let error = Blocking::open(&make(false))
        .unwrap()
        .discard(0, 4096)
        .unwrap_err();
    assert_eq!(error.kind(), block::ErrorKind::Unsupported);
    Blocking::open(&make(true))
        .unwrap()
        .discard(0, 4096)
        .unwrap();
}

#[test]
fn a_segment_that_does_not_fit_is_refused() {
    let lower: Arc<dyn BlockDevice> = Arc::new(Mem::new(1 << 20, 512));
    for (offset, size) in [
        (2 << 20, None),
        (0, Some(2 << 20)),
        (0, Some(1000)),
        (100, None),
    ] {
        let xts = Xts::new(&key(128), SectorSize::B4096).unwrap();
        let segment = DataSegment {
            offset,
            size,
            iv_tweak: Tweak::ZERO,
        };
        assert!(
            CryptDevice::new(Arc::clone(&lower), xts, segment, Options::default()).is_err(),
            "{segment:?}"
        );
    }
}

/// Writes with flushes to a disk with a volatile cache, then cuts the power 2,000 times at random
/// points, with unflushed data dropped, kept or torn: every flushed block reads back as it was when
/// flushed, or as it was written later.
#[test]
fn a_volume_grows_with_its_device_unless_its_size_is_fixed() {
    for (sector, fixed, size) in [
        (SectorSize::B512, None, (2 << 20) + 512),
        (SectorSize::B4096, None, 2 << 20),
        (SectorSize::B4096, Some(1 << 20), 1 << 20),
    ] {
        let disk = Resizable::new(Arc::new(Mem::new(4 << 20, 512)), 2 << 20);
        let segment = DataSegment {
            offset: SHIFT,
            size: fixed,
            iv_tweak: Tweak::ZERO,
        };
        let xts = Xts::new(&key(256), sector).unwrap();
        let lower = Arc::new(disk.clone());
        let device = CryptDevice::new(lower, xts, segment, Options::default()).unwrap();
        let mut queue = Blocking::open(&device).unwrap();
        assert_eq!(device.info().size, 1 << 20);
        // Part of a sector more than whole sectors.
        disk.resize((3 << 20) + 512);
        assert_eq!(device.update_size().unwrap(), size);
        assert_eq!(device.info().size, size);
        queue.write_at(size - 4096, &[7; 4096]).unwrap();
        let mut read = [0; 4096];
        queue.read_at(size - 4096, &mut read).unwrap();
        assert_eq!(read, [7; 4096]);
        assert!(queue.write_at(size, &[7; 4096]).is_err());
    }
}

#[test]
fn two_thousand_power_cuts_keep_every_flushed_block_whole() {
    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 256;
    let seed = std::env::var("EVFS_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(20_261_121);
    eprintln!("seed: EVFS_SEED={seed}");
    let mut random = Random::new(seed);
    let disk = Arc::new(PowerCut::new(&Mem::new(SHIFT + (4 << 20), 512)));
    let device = crypt(disk.clone(), 256, SectorSize::B4096, Options::default());
    let content = |block: u64, generation: u64| {
        let mut data = vec![0; BLOCK];
        Random::new(block << 32 | generation).fill(&mut data);
        data[..8].copy_from_slice(&generation.to_le_bytes());
        data
    };
    // For each block: the events at which a generation became durable, and all those written.
    let mut durable: BTreeMap<u64, Vec<(usize, u64)>> = BTreeMap::new();
    let mut written: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut waiting: Vec<(u64, u64)> = Vec::new();
    let mut device = Blocking::open(&device).unwrap();
    for generation in 1..=600u64 {
        let block = random.below(BLOCKS);
        let data = content(block, generation);
        written.entry(block).or_default().push(generation);
        if random.below(8) == 0 {
            let bufs = Buf::copy_of(&data).into();
            device
                .run(Op::Write {
                    offset: block * BLOCK as u64,
                    bufs,
                    fua: true,
                })
                .unwrap();
            durable
                .entry(block)
                .or_default()
                .push((disk.events(), generation));
        } else {
            device.write_at(block * BLOCK as u64, &data).unwrap();
            waiting.push((block, generation));
        }
        if random.below(6) == 0 {
            device.flush().unwrap();
            let now = disk.events();
            for (block, generation) in waiting.drain(..) {
                durable.entry(block).or_default().push((now, generation));
            }
        }
    }
    let mut images = 0;
    for crash in disk.images(seed, 2000) {
        images += 1;
        let shown = crash.to_string();
        let after = crypt(
            Arc::new(crash.image),
            256,
            SectorSize::B4096,
            Options::default(),
        );
        let mut after = Blocking::open(&after).unwrap();
        for (block, generations) in &durable {
            let known = generations
                .iter()
                .filter(|(event, _)| *event <= crash.point)
                .map(|(_, g)| *g)
                .max();
            let Some(known) = known else { continue };
            let mut data = vec![0; BLOCK];
            after.read_at(block * BLOCK as u64, &mut data).unwrap();
            let later = written[block].iter().filter(|g| **g > known).count();
            let whole = data == content(*block, known);
            // A later write of the same block was not flushed: it may be there in full or in part.
            assert!(
                whole || later > 0,
                "{shown}: block {block} lost generation {known}"
            );
        }
    }
    assert_eq!(images, 2000);
    assert!(
        durable.len() > 100,
        "too few blocks were ever flushed: nothing was tested"
    );
}

/// CRCs of groups of blocks.
#[derive(Debug)]
struct Crcs(usize);

fn crc_of(block: &[u8]) -> Sum {
    block::sum_block(block).into()
}

impl Summer for Crcs {
    fn at_once(&self) -> usize {
        self.0
    }

    fn sum(&self, blocks: &[&SumBlock], sums: &mut Vec<Sum>) {
        sums.extend(blocks.iter().map(|block| crc_of(&block[..])));
    }
}

#[test]
fn checksums_that_are_asked_for_are_those_of_the_plaintext() {
    let inner = Arc::new(crypt(
        Arc::new(Mem::new(40 << 20, 512)),
        256,
        SectorSize::B512,
        Options::default(),
    ));
    // Over a device that encrypts as well, and computes checksums of the outer ciphertext.
    let device = crypt(inner, 256, SectorSize::B512, Options::default());
    let mut queue = device.queue().unwrap();
    let mut run = |op: Op| {
        queue.submit(Request { tag: 1, op }).unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            queue.reap(Wait::Block, &mut done).unwrap();
        }
        let done = done.remove(0);
        done.result.unwrap();
        let (Op::Read { bufs, .. } | Op::Write { bufs, .. }) = done.op else {
            unreachable!("it comes back as what it was")
        };
        bufs
    };
    let mut random = Random::new(4);
    let summers = [1, 5, SUMS_AT_ONCE].map(|at_once| Arc::new(Crcs(at_once)) as Arc<dyn Summer>);
    for (lens, summer) in [
        &[4096][..],
        &[8192, 4096, 4096],
        &[4096; 37],
        &[300 << 10],
        &[1 << 20, 1 << 20],
        &[512],
        &[2048, 6144],
    ]
    .into_iter()
    .flat_map(|lens| summers.iter().map(move |summer| (lens, summer)))
    {
        let mut data: Vec<Buf> = lens.iter().map(|len| Buf::zeroed(*len)).collect();
        data.iter_mut().for_each(|buf| random.fill(buf));
        let all: Vec<u8> = data.iter().flat_map(|buf| buf.to_vec()).collect();
        // Blocks that are not in one buffer have none.
        let whole = lens.iter().all(|len| len % 4096 == 0);
        let expected = whole.then(|| all.chunks(4096).map(crc_of).collect::<Vec<_>>());
        let offset = 1 << 20;
        let fua = false;
        let mut bufs = Bufs::from(data);
        bufs.ask_sums(summer);
        let mut back = run(Op::Write { offset, bufs, fua });
        assert_eq!(back.take_sums(), expected, "{lens:?}");
        for asks in [true, false] {
            let empty = lens.iter().map(|len| Buf::zeroed(*len));
            let mut bufs = Bufs::from(empty.collect::<Vec<_>>());
            if asks {
                bufs.ask_sums(summer);
            }
            let mut back = run(Op::Read { offset, bufs });
            let read: Vec<u8> = back.iter().flat_map(|buf| buf.to_vec()).collect();
            assert!(read == all, "{lens:?}");
            let expected = expected.clone().filter(|_| asks);
            assert_eq!(back.take_sums(), expected, "{lens:?}");
        }
    }
}
