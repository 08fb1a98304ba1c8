//! Tests of power cuts against an independent model of the permitted states.

use super::*;
use crate::Random;
use block::{Blocking, Buf};

fn byte_at(image: &Mem, offset: u64) -> u8 {
    let mut byte = [0];
    image.peek(offset, &mut byte);
    byte[0]
}

fn write(offset: u64, len: usize, value: u8, fua: bool) -> Op {
    Op::Write {
        offset,
        bufs: Buf::copy_of(&vec![value; len]).into(),
        fua,
    }
}

#[test]
fn what_was_flushed_is_in_every_image_and_what_was_not_may_be_gone() {
    let disk = PowerCut::new(&Mem::new(1 << 20, 512));
    let mut device = Blocking::open(&disk).unwrap();
    device.write_at(0, &[1; 4096]).unwrap();
    device.flush().unwrap();
    device.write_at(8192, &[2; 4096]).unwrap();
    let last = disk.events();
    for seed in 0..100 {
        let image = disk.crash(last, Tear::Random(seed));
        assert_eq!((byte_at(&image, 0), byte_at(&image, 4095)), (1, 1));
    }
    assert_eq!(byte_at(&disk.crash(last, Tear::Drop), 8192), 0);
    assert_eq!(byte_at(&disk.crash(last, Tear::Keep), 8192), 2);
    assert_eq!(byte_at(&disk.contents(), 8192), 2);
    let early = disk.crash(1, Tear::Drop);
    assert_eq!(byte_at(&early, 0), 0, "before the flush nothing is sure");
}

#[test]
fn a_flush_covers_only_what_was_reaped_before_it() {
    let disk = PowerCut::new(&Mem::new(1 << 20, 512));
    let mut queue = disk.queue().unwrap();
    let mut done = Vec::new();
    let submit = |queue: &mut Box<dyn Queue>, op| {
        queue.submit(Request { tag: 0, op }).unwrap();
    };
    submit(&mut queue, write(0, 512, 7, false));
    queue.reap(Wait::Block, &mut done).unwrap();
    submit(&mut queue, write(512, 512, 7, false));
    submit(&mut queue, Op::Flush);
    let before = disk.crash(disk.events(), Tear::Drop);
    assert_eq!(byte_at(&before, 0), 0, "the flush has not been reaped");
    queue.reap(Wait::Block, &mut done).unwrap();
    let image = disk.crash(disk.events(), Tear::Drop);
    assert_eq!((byte_at(&image, 0), byte_at(&image, 512)), (7, 0));
}

#[test]
fn a_fua_write_may_be_torn_until_its_completion_is_reaped_and_never_after() {
    let disk = PowerCut::new(&Mem::new(1 << 20, 512));
    let mut device = Blocking::open(&disk).unwrap();
    device.run(write(0, 1024, 5, true)).unwrap();
    assert_eq!(disk.events(), 2);
    let mut replay = disk.replay();
    assert_eq!(replay.volatile(1).len(), 1);
    let torn = replay.image_where(1, |_, sector| sector == 1);
    assert_eq!((byte_at(&torn, 0), byte_at(&torn, 512)), (0, 5));
    assert!(replay.volatile(2).is_empty());
    let whole = replay.image(2, Tear::Drop);
    assert_eq!((byte_at(&whole, 0), byte_at(&whole, 1023)), (5, 5));
    let back = replay.image(0, Tear::Keep);
    assert_eq!(byte_at(&back, 0), 0, "a step back plays the log again");
}

#[test]
fn an_older_unflushed_write_never_covers_a_newer_durable_one() {
    let disk = PowerCut::new(&Mem::new(1 << 20, 512));
    let mut device = Blocking::open(&disk).unwrap();
    device.write_at(0, &[1; 512]).unwrap();
    device.run(write(0, 512, 2, true)).unwrap();
    device.write_at(512, &[3; 512]).unwrap();
    device.flush().unwrap();
    let mut replay = disk.replay();
    for point in 3..=disk.events() {
        for tear in [Tear::Drop, Tear::Keep, Tear::Random(5)] {
            let image = replay.image(point, tear);
            assert_eq!(byte_at(&image, 0), 2, "{point} {tear:?}");
        }
    }
}

#[test]
fn boundaries_visit_every_point_with_nothing_all_and_torn() {
    let disk = PowerCut::new(&Mem::new(1 << 20, 512));
    let mut device = Blocking::open(&disk).unwrap();
    for i in 0..3 {
        device.write_at(i * 4096, &[1; 4096]).unwrap();
    }
    device.flush().unwrap();
    let seen: Vec<(usize, Tear)> = disk.boundaries(1, 2).map(|c| (c.point, c.tear)).collect();
    let at = |point| seen.iter().filter(|s| s.0 == point).count();
    assert_eq!((0..=4).map(at).collect::<Vec<_>>(), [1, 4, 4, 4, 1]);
    for crash in disk.boundaries(1, 2) {
        let again = disk.crash(crash.point, crash.tear);
        assert!(again.to_vec() == crash.image.to_vec(), "{crash} replays");
    }
}

/// Goal: each sector of an image holds only values that the contract permits, and over time all of
/// them. Method: a random run with several requests in flight on a disk of eight sectors, next to a
/// model that knows only the contract; then every point with many seeds.
#[test]
fn images_hold_what_the_contract_allows_and_all_of_it() {
    for seed in 0..20 {
        check_against_the_contract(seed);
    }
}

/// Values that the contract permits in a sector, at each point.
#[derive(Clone, Default)]
struct Model {
    /// (first sector, sectors, value, reaped, durable) of each write.
    writes: Vec<(u64, u64, u8, bool, bool)>,
}

impl Model {
    fn allowed(&self, sector: u64) -> Vec<u8> {
        let mut values = vec![0];
        for (first, count, value, _, durable) in &self.writes {
            if (*first..first + count).contains(&sector) {
                if *durable {
                    values.clear();
                }
                values.push(*value);
            }
        }
        values
    }
}

fn check_against_the_contract(seed: u64) {
    const SECTORS: u64 = 8;
    let mut random = Random::new(seed);
    let disk = PowerCut::new(&Mem::new(SECTORS * 512, 512));
    let mut queue = disk.queue().unwrap();
    let mut model = Model::default();
    let mut models = vec![model.clone()];
    // Effect of reaping each request in flight: a write reaped, or writes durable.
    let mut flying: Vec<(Vec<usize>, bool)> = Vec::new();
    let mut done = Vec::new();
    for step in 0..24u8 {
        match random.below(8) {
            0..=4 => {
                let first = random.below(SECTORS);
                let count = 1 + random.below(SECTORS - first);
                let fua = random.below(4) == 0;
                let op = write(first * 512, (count * 512) as usize, step + 1, fua);
                queue.submit(Request { tag: 0, op }).unwrap();
                flying.push((vec![model.writes.len()], fua));
                model.writes.push((first, count, step + 1, false, false));
                models.push(model.clone());
            }
            5 => {
                let op = Op::Flush;
                queue.submit(Request { tag: 0, op }).unwrap();
                let reaped = model.writes.iter().enumerate().filter(|(_, w)| w.3);
                flying.push((reaped.map(|(at, _)| at).collect(), true));
            }
            _ => {
                queue.reap(Wait::Block, &mut done).unwrap();
                for (writes, durable) in flying.drain(..) {
                    for at in writes {
                        model.writes[at].3 = true;
                        model.writes[at].4 |= durable;
                    }
                }
                if disk.events() == models.len() {
                    models.push(model.clone());
                }
            }
        }
    }
    assert_eq!(models.len(), disk.events() + 1, "seed {seed}");
    let mut replay = disk.replay();
    for (point, model) in models.iter().enumerate() {
        let mut missing: Vec<Vec<u8>> = (0..SECTORS).map(|s| model.allowed(s)).collect();
        for tear in (0..400).map(Tear::Random).chain([Tear::Drop, Tear::Keep]) {
            let image = replay.image(point, tear);
            for sector in 0..SECTORS {
                let value = byte_at(&image, sector * 512);
                assert_eq!(value, byte_at(&image, sector * 512 + 511));
                let allowed = model.allowed(sector);
                assert!(
                    allowed.contains(&value),
                    "seed {seed}, point {point}, {tear:?}, sector {sector}: {value} of {allowed:?}"
                );
                missing[sector as usize].retain(|v| *v != value);
            }
        }
        // A value under many newer volatile ones is rare; the three newest must occur.
        for (sector, left) in missing.iter().enumerate() {
            let allowed = model.allowed(sector as u64);
            let top = &allowed[allowed.len().saturating_sub(3)..];
            assert!(
                left.iter().all(|v| !top.contains(v)),
                "seed {seed}, point {point}, sector {sector}: never {left:?} of {allowed:?}"
            );
        }
    }
}

#[test]
fn two_thousand_images_of_a_written_disk_keep_every_flushed_block() {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = (64 << 20) / BLOCK;
    let disk = PowerCut::new(&Mem::new(BLOCKS * BLOCK, 512));
    let mut device = Blocking::open(&disk).unwrap();
    let mut random = Random::new(9);
    // Durable writes as (block, event, value); a value is its sequence number, from 1.
    let mut durable: Vec<(u64, usize, u64)> = Vec::new();
    let mut pending = Vec::new();
    for value in 1..=2000u64 {
        let block = random.below(BLOCKS);
        let content = value.to_le_bytes().repeat(BLOCK as usize / 8);
        device.write_at(block * BLOCK, &content).unwrap();
        pending.push((block, value));
        if random.below(40) == 0 {
            device.flush().unwrap();
            let event = disk.events();
            durable.extend(
                pending
                    .drain(..)
                    .map(|(block, value)| (block, event, value)),
            );
        }
    }
    let mut images = 0;
    let started = std::time::Instant::now();
    for crash in disk.images(3, 2000) {
        images += 1;
        let flushed: Vec<_> = durable.iter().filter(|d| d.1 <= crash.point).collect();
        for (block, _, value) in flushed.iter().rev().take(60) {
            let mut content = vec![0; BLOCK as usize];
            crash.image.peek(block * BLOCK, &mut content);
            // Every sector holds this value or a newer one.
            for sector in content.chunks(512) {
                let found = u64::from_le_bytes(sector[..8].try_into().unwrap());
                assert!(found >= *value && found <= 2000, "{crash}: block {block}");
                assert_eq!(sector, found.to_le_bytes().repeat(64), "{crash}");
            }
        }
    }
    assert_eq!(images, 2000);
    println!("2000 images in {:?}", started.elapsed());
}
