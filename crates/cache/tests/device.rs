//! A cached device behaves like a device: the conformance suite, cached and direct, on a disk in
//! memory and on one whose power can be cut.

use block::{BlockDevice, Blocking, Buf, ErrorKind, Op, Queue, Request, Wait};
use block_testing::{ErrorDevice, Mem, MemConfig, PowerCut, Resizable, conformance};
use cache::{Cache, CachedDevice, Config};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn cache(bytes: u64) -> Arc<Cache> {
    Cache::new(Config::new(bytes)).unwrap()
}

fn over(lower: Arc<dyn BlockDevice>, bytes: u64) -> CachedDevice {
    CachedDevice::new(&cache(bytes), lower).unwrap()
}

#[test]
fn a_cached_device_passes_with_room_for_everything_and_with_little() {
    for bytes in [64 << 20, 4 << 20, 1 << 20] {
        conformance::run(&|| Arc::new(over(Arc::new(Mem::new(16 << 20, 512)), bytes)));
    }
    conformance::run(&|| Arc::new(over(Arc::new(Mem::new(16 << 20, 4096)), 2 << 20)));
}

#[test]
fn a_cached_device_passes_over_narrow_queues_and_ragged_ends() {
    for (capacity, max_transfer) in [(1, 4096), (3, 12_288), (5, 1 << 20)] {
        let config = MemConfig {
            capacity,
            max_transfer,
            discard: capacity != 3,
            ..MemConfig::new(conformance::SPAN + 512, 512)
        };
        conformance::run(&|| Arc::new(over(Arc::new(Mem::with(config.clone())), 2 << 20)));
    }
}

#[test]
fn a_device_that_has_grown_is_larger_for_open_queues() {
    const OLD: u64 = (1 << 20) + 512;
    const NEW: u64 = 3 << 20;
    let mem = Arc::new(Mem::new(4 << 20, 512));
    let lower = Resizable::new(mem.clone(), OLD);
    let device = over(Arc::new(lower.clone()), 16 << 20);
    let mut queues = [&device, &device.direct()].map(|d| Blocking::open(d).unwrap());
    queues[0].write_at(OLD - 512, &[1; 512]).unwrap();
    lower.resize(NEW);
    for queue in &mut queues {
        let refused = queue.write_at(OLD, &[2; 512]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfRange);
    }
    assert_eq!(device.update_size().unwrap(), NEW);
    assert_eq!((device.info().size, device.vnode().size()), (NEW, NEW));
    // In the page that was the last one, behind it, and at the new end; by either way.
    for (at, byte) in [(OLD, 2), (OLD + 8192, 3), (NEW - 512, 4)] {
        queues[byte as usize % 2]
            .write_at(at, &[byte; 512])
            .unwrap();
    }
    for queue in &mut queues {
        let mut all = vec![0; NEW as usize];
        queue.read_at(0, &mut all).unwrap();
        let bytes = [OLD - 512, OLD, OLD + 512, OLD + 8192, NEW - 512].map(|at| all[at as usize]);
        assert_eq!(bytes, [1, 2, 0, 3, 4]);
        let refused = queue.write_at(NEW, &[5; 512]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfRange);
    }
    queues[0].flush().unwrap();
    let mut end = [0; 512];
    mem.peek(NEW - 512, &mut end);
    assert_eq!(end, [4; 512]);
    lower.resize(OLD);
    let smaller = device.update_size().unwrap_err();
    assert!(smaller.to_string().contains("become smaller"), "{smaller}");
    assert_eq!(device.info().size, NEW);
}

#[test]
fn a_direct_device_passes() {
    conformance::run(&|| Arc::new(over(Arc::new(Mem::new(16 << 20, 512)), 4 << 20).direct()));
}

#[test]
fn a_read_only_device_passes() {
    conformance::run_read_only(&|| {
        let lower = Arc::new(Mem::new(conformance::SPAN, 512).read_only());
        Arc::new(over(lower, 2 << 20))
    });
}

#[test]
fn a_direct_device_reports_failures_where_they_belong() {
    conformance::run_with_errors(&|| {
        let (lower, handle) = ErrorDevice::new(Arc::new(Mem::new(16 << 20, 512)));
        (Arc::new(over(Arc::new(lower), 4 << 20).direct()), handle)
    });
}

#[test]
fn what_was_flushed_survives_power_cuts() {
    let disk = Mem::new(conformance::SPAN, 512);
    conformance::run(&|| Arc::new(over(Arc::new(PowerCut::new(&disk)), 2 << 20)));
    for (seed, bytes) in [(1, 16 << 20), (2, 1 << 20)] {
        let layer = |lower| Arc::new(over(lower, bytes)) as Arc<dyn BlockDevice>;
        conformance::run_with_power_cuts(&disk, &layer, seed, 100);
    }
}

/// A device whose flushes complete when the test says so.
mod slow_flush {
    use block::{BlockDevice, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Wait};
    use block_testing::Mem;
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};

    /// Results of the flushes in order of arrival; `None`: not decided yet.
    pub type Answers = Arc<Mutex<Vec<Option<Result<(), ErrorKind>>>>>;

    /// When dropped, lets every flush complete, so that the device can be closed.
    pub struct Over(pub Arc<AtomicBool>);

    impl Drop for Over {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }

    pub struct SlowFlush {
        pub mem: Mem,
        pub answers: Answers,
        pub over: Arc<AtomicBool>,
    }

    impl BlockDevice for SlowFlush {
        fn info(&self) -> &DeviceInfo {
            self.mem.info()
        }

        fn queue(&self) -> block::Result<Box<dyn Queue>> {
            Ok(Box::new(SlowQueue {
                lower: self.mem.queue()?,
                answers: Arc::clone(&self.answers),
                over: Arc::clone(&self.over),
                held: Vec::new(),
            }))
        }
    }

    struct SlowQueue {
        lower: Box<dyn Queue>,
        answers: Answers,
        over: Arc<AtomicBool>,
        /// Flushes in flight, with their indexes in the answers.
        held: Vec<(usize, Request)>,
    }

    impl Queue for SlowQueue {
        fn info(&self) -> &DeviceInfo {
            self.lower.info()
        }

        fn capacity(&self) -> usize {
            self.lower.capacity()
        }

        fn in_flight(&self) -> usize {
            self.held.len() + self.lower.in_flight()
        }

        fn submit(&mut self, request: Request) -> Result<(), Request> {
            if !matches!(request.op, Op::Flush) {
                return self.lower.submit(request);
            }
            let mut answers = self.answers.lock().unwrap();
            self.held.push((answers.len(), request));
            answers.push(None);
            Ok(())
        }

        fn kick(&mut self) -> block::Result<()> {
            self.lower.kick()
        }

        fn reap(&mut self, _: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
            let had = done.len();
            self.lower.reap(Wait::Poll, done)?;
            let answers = self.answers.lock().unwrap();
            for (place, request) in std::mem::take(&mut self.held) {
                let over = self.over.load(SeqCst).then_some(Ok(()));
                let Some(answer) = answers[place].or(over) else {
                    self.held.push((place, request));
                    continue;
                };
                let result = answer.map_err(|kind| Error::new(kind, "slow", ""));
                let Request { tag, op } = request;
                done.push(Completion { tag, op, result });
            }
            Ok(done.len() - had)
        }

        fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }
}

#[test]
fn a_flush_does_not_overtake_one_that_is_about_to_fail() {
    let answers = slow_flush::Answers::default();
    let over_now = Arc::new(AtomicBool::new(false));
    let slow = Arc::new(slow_flush::SlowFlush {
        mem: Mem::new(16 << 20, 512),
        answers: Arc::clone(&answers),
        over: Arc::clone(&over_now),
    });
    let device = over(slow, 2 << 20);
    let (mut one, mut two) = (device.queue().unwrap(), device.queue().unwrap());
    let _over = slow_flush::Over(over_now);
    let reap = |queue: &mut Box<dyn Queue>| {
        let mut done = Vec::new();
        queue.reap(Wait::Poll, &mut done).unwrap();
        done.pop()
    };
    let finish = |queue: &mut Box<dyn Queue>, op: Op| {
        queue.submit(Request { tag: 1, op }).unwrap();
        loop {
            if let Some(done) = reap(queue) {
                return done.result;
            }
        }
    };
    for (queue, offset) in [(&mut one, 0), (&mut two, 8192)] {
        let bufs = Buf::copy_of(&[7; 4096]).into();
        let fua = false;
        finish(queue, Op::Write { offset, bufs, fua }).unwrap();
    }
    for queue in [&mut one, &mut two] {
        let op = Op::Flush;
        queue.submit(Request { tag: 2, op }).unwrap();
        for _ in 0..100 {
            assert!(reap(queue).is_none());
        }
    }
    assert_eq!(answers.lock().unwrap().len(), 1, "one flush at a time");
    for _ in 0..100 {
        assert!(reap(&mut two).is_none());
    }
    answers.lock().unwrap()[0] = Some(Err(ErrorKind::Media));
    assert!(reap(&mut one).unwrap().result.is_err());
    // The second flush begins only now, so a device that remembers its failure can report it.
    assert!(reap(&mut two).is_none());
    assert_eq!(answers.lock().unwrap().len(), 2);
    answers.lock().unwrap()[1] = Some(Err(ErrorKind::Media));
    assert!(reap(&mut two).unwrap().result.is_err());
}
