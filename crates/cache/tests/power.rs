//! The power fails at any moment: flushed data is intact, and data older than the sync interval is
//! present even without a flush.

mod common;

use block_testing::{Mem, PowerCut, Random, Tear};
use cache::{Cache, Config, FileId, OpenFile, Session, Volume};
use common::{Parts, until};
use std::sync::Arc;
use std::time::Duration;

const SECTOR: u64 = 512;
const SECTORS: u64 = 1024;
const FILE: FileId = FileId(0);

/// Returns the contents of a sector, which identify its number and the turn that wrote it.
fn sector(number: u64, turn: u64) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    let words = bytes.chunks_exact_mut(8).enumerate();
    words.for_each(|(at, word)| {
        let value = turn.wrapping_mul(1 << 32) ^ (number << 16) ^ at as u64;
        word.copy_from_slice(&value.to_le_bytes());
    });
    bytes
}

/// Returns the turn of an intact sector; `None` for one that was never written.
fn turn_of(number: u64, bytes: &[u8]) -> Option<u64> {
    if bytes.iter().all(|b| *b == 0) {
        return None;
    }
    let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let turn = (first ^ (number << 16)) >> 32;
    assert!(bytes == sector(number, turn), "sector {number} is torn");
    Some(turn)
}

struct Bench {
    cut: Arc<PowerCut>,
    session: Session,
    open: OpenFile,
    turn: u64,
    /// The last turn in which each sector was written.
    written: Vec<u64>,
    _volume: Arc<Volume>,
}

fn bench(sync_interval: Duration) -> Bench {
    let cut = Arc::new(PowerCut::new(&Mem::new(SECTORS * SECTOR, 512)));
    let cache = Cache::new(Config {
        tick: Duration::from_millis(2),
        sync_interval,
        // Half a mebibyte of data in less room, so that pages are also evicted.
        ..Config::new(1 << 20)
    });
    let cache = cache.unwrap();
    cache.set_max_bytes(200 << 10);
    let pager = Parts::new(cut.clone(), SECTORS * SECTOR);
    let volume = cache.volume(Arc::new(pager)).unwrap();
    let vnode = volume.vnode(FILE, SECTORS * SECTOR);
    Bench {
        session: volume.session().unwrap(),
        open: volume.open(&vnode),
        turn: 0,
        written: vec![0; SECTORS as usize],
        cut,
        _volume: volume,
    }
}

impl Bench {
    fn write(&mut self, from: u64, count: u64) {
        self.turn += 1;
        let data: Vec<u8> = (from..from + count)
            .flat_map(|number| sector(number, self.turn))
            .collect();
        self.session
            .write(&mut self.open, from * SECTOR, &data)
            .unwrap();
        self.written[from as usize..(from + count) as usize].fill(self.turn);
    }
}

#[test]
fn what_was_flushed_is_whole_at_every_point_of_a_cut() {
    let mut bench = bench(Duration::from_millis(20));
    let mut random = Random::new(9);
    // Log position at the end of each flush, and the turns that it covered.
    let mut flushed = vec![(0, vec![0; SECTORS as usize])];
    for _ in 0..600 {
        let from = random.below(SECTORS);
        let count = 1 + random.below((SECTORS - from).min(40));
        bench.write(from, count);
        if random.below(12) == 0 {
            let covered = bench.written.clone();
            bench.session.flush(&mut bench.open).unwrap();
            flushed.push((bench.cut.events(), covered));
        }
    }
    assert!(flushed.len() > 20);
    let mut looked = 0;
    for crash in bench.cut.boundaries(4, 1) {
        let last = flushed.iter().rev().find(|(at, _)| *at <= crash.point);
        let (_, covered) = last.expect("the first is at 0");
        let image = crash.image.to_vec();
        for (number, bytes) in image.chunks_exact(SECTOR as usize).enumerate() {
            let turn = turn_of(number as u64, bytes).unwrap_or(0);
            let least = covered[number];
            assert!(
                turn >= least,
                "sector {number} at {}: {turn} < {least}",
                crash.point
            );
        }
        looked += 1;
    }
    assert!(looked > 100, "{looked} cuts");
}

#[test]
fn what_is_old_is_there_while_writers_go_on() {
    let mut bench = bench(Duration::from_millis(20));
    let mut random = Random::new(10);
    for round in 0..5 {
        // A page that is not touched again in this round, among others that are dirtied all the
        // time.
        let quiet = round * 8;
        bench.write(quiet, 8);
        let turn = bench.turn;
        until("the quiet page survives a cut", || {
            let from = 64 + random.below(SECTORS - 64 - 8);
            bench.write(from, 1 + from % 8);
            let image = bench.cut.crash(bench.cut.events(), Tear::Drop).to_vec();
            let sectors = image.chunks_exact(SECTOR as usize).skip(quiet as usize);
            let mut turns = (quiet..quiet + 8).zip(sectors);
            turns.all(|(number, bytes)| turn_of(number, bytes) == Some(turn))
        });
    }
}
