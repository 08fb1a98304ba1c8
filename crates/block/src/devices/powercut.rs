//! A disk with a volatile write cache, and every way in which the power can fail.
//!
//! Reads see what was written. What a crash leaves is another matter: a write is durable once it
//! carried FUA and completed, or once a flush covered it that was submitted after its completion
//! had been reaped (the waist's own rule). Of all other writes any 512-byte sectors may be there
//! or not: dropped, kept, torn, and so reordered against each other.

use super::{drain, gather, mem::Mem};
use crate::random::Random;
use crate::{BlockDevice, Completion, DeviceInfo, Op, Queue, Request, Result, Wait};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// The unit that a disk writes whole.
const SECTOR_BYTES: usize = 512;
/// Requests in flight on a queue.
const CAPACITY: usize = 128;

/// The disk.
pub struct PowerCut {
    shared: Arc<Shared>,
}

struct Shared {
    info: DeviceInfo,
    /// What reads see.
    current: Mem,
    /// What was there before the first logged operation.
    before: Mem,
    log: Mutex<Vec<Entry>>,
}

/// A change or a flush, in the order of submits.
#[derive(Clone)]
struct Entry {
    what: What,
    /// The caller knows that it is done.
    reaped: bool,
    /// The flush that made it durable, by its place in the log; its own place if it carried FUA.
    durable_at: Option<usize>,
}

#[derive(Clone)]
enum What {
    Write { offset: u64, data: Arc<Vec<u8>> },
    Flush,
}

/// What happens to the writes that are not durable at the moment of the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tear {
    /// All are gone.
    Drop,
    /// All made it.
    Keep,
    /// Each is gone, there, cut after some sectors, or there in any of its sectors.
    Random(u64),
}

impl PowerCut {
    /// Over a copy of `disk`, which is durable.
    pub fn new(disk: &Mem) -> PowerCut {
        let info = DeviceInfo {
            volatile_write_cache: true,
            name: "powercut".into(),
            ..disk.info().clone()
        };
        let (current, before) = (disk.fork(), disk.fork());
        PowerCut {
            shared: Arc::new(Shared {
                info,
                current,
                before,
                log: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Changes and flushes so far. The power can be cut after each.
    pub fn operations(&self) -> usize {
        self.shared.log().len()
    }

    /// What a crash leaves, for each point from the first on.
    pub fn replay(&self) -> Replay {
        Replay {
            log: self.shared.log().clone(),
            floor: 0,
            base: self.shared.before.fork(),
        }
    }
}

/// The log of a [`PowerCut`], to be cut at any point. Points asked in rising order are cheap.
pub struct Replay {
    log: Vec<Entry>,
    /// Everything before this place is durable and lies in `base`.
    floor: usize,
    base: Mem,
}

impl Replay {
    /// Operations in the log.
    pub fn operations(&self) -> usize {
        self.log.len()
    }

    /// The disk after a cut that came when `operations` operations had been carried out.
    ///
    /// # Panics
    /// When an earlier point was asked for after a later one had moved the base past it.
    pub fn image(&mut self, operations: usize, tear: Tear) -> Mem {
        let operations = operations.min(self.log.len());
        self.advance(operations);
        assert!(
            self.floor <= operations,
            "points of one replay are asked in rising order"
        );
        let image = self.base.fork();
        let mut random = match tear {
            Tear::Random(seed) => Random::new(seed),
            Tear::Drop | Tear::Keep => Random::new(0),
        };
        for entry in &self.log[self.floor..operations] {
            let What::Write { offset, data } = &entry.what else {
                continue;
            };
            if entry.durable_at.is_some_and(|at| at < operations) {
                image.poke(*offset, data);
                continue;
            }
            match tear {
                Tear::Drop => {}
                Tear::Keep => image.poke(*offset, data),
                Tear::Random(_) => tear_write(&image, *offset, data, &mut random),
            }
        }
        image
    }

    /// Puts what is durable at this point, without a gap, into the base.
    fn advance(&mut self, operations: usize) {
        while let Some(entry) = self.log[..operations].get(self.floor) {
            match &entry.what {
                What::Write { offset, data }
                    if entry.durable_at.is_some_and(|at| at < operations) =>
                {
                    self.base.poke(*offset, data);
                }
                What::Write { .. } => return,
                What::Flush => {}
            }
            self.floor += 1;
        }
    }
}

/// Writes some of the sectors of a write.
fn tear_write(image: &Mem, offset: u64, data: &[u8], random: &mut Random) {
    let sectors = data.len().div_ceil(SECTOR_BYTES) as u64;
    let way = random.below(4);
    let prefix = random.below(sectors + 1);
    for (index, sector) in data.chunks(SECTOR_BYTES).enumerate() {
        let there = match way {
            0 => false,
            1 => true,
            2 => (index as u64) < prefix,
            _ => random.below(2) == 1,
        };
        if there {
            image.poke(offset + (index * SECTOR_BYTES) as u64, sector);
        }
    }
}

impl Shared {
    fn log(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.log.lock().expect("no panic under this lock")
    }

    /// Notes a change; gives its place in the log.
    fn note(&self, offset: u64, data: Vec<u8>, fua: bool) -> usize {
        self.current.poke(offset, &data);
        let mut log = self.log();
        let place = log.len();
        let what = What::Write {
            offset,
            data: Arc::new(data),
        };
        log.push(Entry {
            what,
            reaped: false,
            durable_at: fua.then_some(place),
        });
        place
    }

    fn flush(&self) -> usize {
        let mut log = self.log();
        let place = log.len();
        for entry in log
            .iter_mut()
            .filter(|e| e.reaped && e.durable_at.is_none())
        {
            entry.durable_at = Some(place);
        }
        log.push(Entry {
            what: What::Flush,
            reaped: false,
            durable_at: Some(place),
        });
        place
    }
}

impl BlockDevice for PowerCut {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(PowerCutQueue {
            shared: Arc::clone(&self.shared),
            ready: VecDeque::new(),
        }))
    }
}

struct PowerCutQueue {
    shared: Arc<Shared>,
    /// Completions, and the place in the log of those that are there.
    ready: VecDeque<(Completion, Option<usize>)>,
}

impl PowerCutQueue {
    fn carry_out(&self, op: &mut Op) -> Result<Option<usize>> {
        let shared = &self.shared;
        shared.info.check(op)?;
        Ok(match op {
            Op::Read { offset, bufs } => {
                let mut at = *offset;
                for buf in bufs.iter_mut() {
                    shared.current.peek(at, buf);
                    at += buf.len() as u64;
                }
                None
            }
            Op::Write { offset, bufs, fua } => Some(shared.note(*offset, gather(bufs), *fua)),
            Op::WriteZeroes {
                offset, len, fua, ..
            } => Some(shared.note(*offset, vec![0; *len as usize], *fua)),
            Op::Discard { offset, len } => {
                Some(shared.note(*offset, vec![0; *len as usize], false))
            }
            Op::Flush => Some(shared.flush()),
        })
    }
}

impl Queue for PowerCutQueue {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn in_flight(&self) -> usize {
        self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.ready.len() >= CAPACITY {
            return Err(request);
        }
        let Request { tag, mut op } = request;
        let (result, place) = match self.carry_out(&mut op) {
            Ok(place) => (Ok(()), place),
            Err(e) => (Err(e), None),
        };
        self.ready
            .push_back((Completion { tag, op, result }, place));
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, _wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let mut log = self.shared.log();
        let mut completions = VecDeque::with_capacity(self.ready.len());
        for (completion, place) in self.ready.drain(..) {
            if let Some(place) = place {
                log[place].reaped = true;
            }
            completions.push_back(completion);
        }
        Ok(drain(&mut completions, done))
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blocking;

    fn byte_at(image: &Mem, offset: u64) -> u8 {
        let mut byte = [0];
        image.peek(offset, &mut byte);
        byte[0]
    }

    #[test]
    fn what_was_flushed_is_in_every_image_and_what_was_not_may_be_gone() {
        let disk = PowerCut::new(&Mem::new(1 << 20, 512));
        let mut device = Blocking::open(&disk).unwrap();
        device.write_at(0, &[1; 4096]).unwrap();
        device.flush().unwrap();
        device.write_at(8192, &[2; 4096]).unwrap();
        let points = disk.operations();
        for seed in 0..100 {
            let image = disk.replay().image(points, Tear::Random(seed));
            assert_eq!((byte_at(&image, 0), byte_at(&image, 4095)), (1, 1));
        }
        assert_eq!(byte_at(&disk.replay().image(points, Tear::Drop), 8192), 0);
        assert_eq!(byte_at(&disk.replay().image(points, Tear::Keep), 8192), 2);
        assert_eq!(
            byte_at(&disk.replay().image(1, Tear::Drop), 0),
            0,
            "before the flush nothing is sure"
        );
    }

    #[test]
    fn a_flush_covers_only_what_was_reaped_before_it() {
        let disk = PowerCut::new(&Mem::new(1 << 20, 512));
        let mut queue = disk.queue().unwrap();
        let write = |offset| Op::Write {
            offset,
            bufs: crate::Buf::copy_of(&[7; 512]).into(),
            fua: false,
        };
        let mut done = Vec::new();
        queue
            .submit(Request {
                tag: 0,
                op: write(0),
            })
            .unwrap();
        queue.reap(Wait::Block, &mut done).unwrap();
        queue
            .submit(Request {
                tag: 1,
                op: write(512),
            })
            .unwrap();
        queue
            .submit(Request {
                tag: 2,
                op: Op::Flush,
            })
            .unwrap();
        queue.reap(Wait::Block, &mut done).unwrap();
        let image = disk.replay().image(disk.operations(), Tear::Drop);
        assert_eq!((byte_at(&image, 0), byte_at(&image, 512)), (7, 0));
    }

    #[test]
    fn an_older_unflushed_write_never_covers_a_newer_durable_one() {
        let disk = PowerCut::new(&Mem::new(1 << 20, 512));
        let mut device = Blocking::open(&disk).unwrap();
        device.write_at(0, &[1; 512]).unwrap();
        device
            .run(Op::Write {
                offset: 0,
                bufs: crate::Buf::copy_of(&[2; 512]).into(),
                fua: true,
            })
            .unwrap();
        device.write_at(512, &[3; 512]).unwrap();
        device.flush().unwrap();
        let mut replay = disk.replay();
        for point in 2..=disk.operations() {
            for tear in [Tear::Drop, Tear::Keep, Tear::Random(5)] {
                assert_eq!(
                    byte_at(&replay.image(point, tear), 0),
                    2,
                    "{point} {tear:?}"
                );
            }
        }
    }
}
