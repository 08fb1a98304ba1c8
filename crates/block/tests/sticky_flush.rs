//! Flushes of several queues over a disk that reports a loss to one of them; the test script
//! chooses which.

use block::{
    BlockDevice, Blocking, Buf, Completion, DeviceInfo, Error, ErrorKind, Op, OpKind, Queue,
    Request, Result, StickyFlush, Wait, Waker,
};
use block_testing::{Delay, ErrorDevice, Failure, Mem, conformance};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Requests to one queue of the disk, and their completions as ordered by the script.
struct Line {
    asked: Mutex<Vec<Request>>,
    answered: Mutex<Vec<Completion>>,
    waker: Waker,
}

impl Line {
    /// Completes the oldest request.
    fn succeed(&self) {
        self.answer(|_| Ok(()));
    }

    /// Fails the oldest request.
    fn fail(&self) {
        self.answer(|op| Err(Error::new(ErrorKind::Media, "disk", "").in_op(op)));
    }

    fn answer(&self, result: impl Fn(&Op) -> Result<()>) {
        let Request { tag, op } = self.asked.lock().unwrap().remove(0);
        let result = result(&op);
        let completion = Completion { tag, op, result };
        self.answered.lock().unwrap().push(completion);
        self.waker.wake();
    }
}

struct Disk {
    mem: Mem,
    lines: Mutex<Vec<Arc<Line>>>,
}

impl BlockDevice for Disk {
    fn info(&self) -> &DeviceInfo {
        self.mem.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let line = Arc::new(Line {
            asked: Mutex::default(),
            answered: Mutex::default(),
            waker: Waker::new().unwrap(),
        });
        self.lines.lock().unwrap().push(Arc::clone(&line));
        let info = self.info().clone();
        Ok(Box::new(DiskQueue { info, line }))
    }
}

struct DiskQueue {
    info: DeviceInfo,
    line: Arc<Line>,
}

impl Queue for DiskQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        4
    }

    fn in_flight(&self) -> usize {
        self.line.asked.lock().unwrap().len() + self.line.answered.lock().unwrap().len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        self.line.asked.lock().unwrap().push(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        if wait == Wait::Block {
            wait_for(self.line.waker.as_fd());
        }
        self.line.waker.take();
        let had = done.len();
        done.append(&mut self.line.answered.lock().unwrap());
        Ok(done.len() - had)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.line.waker.as_fd())
    }
}

fn wait_for(fd: BorrowedFd<'_>) {
    let minute = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let readable = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&minute));
    assert_eq!(readable, Ok(1), "nobody was woken");
}

/// Two queues, and their lower queues on the disk.
struct Bench {
    queues: [Box<dyn Queue>; 2],
    lines: [Arc<Line>; 2],
    sticky: StickyFlush,
}

impl Bench {
    /// Creates a bench with a completed write, which a failing flush may lose.
    fn new() -> Bench {
        let mut bench = Bench::untouched();
        bench.submit(0, 0, write());
        bench.lines[0].succeed();
        assert_eq!(bench.wake(0), [(0, true)]);
        bench
    }

    fn untouched() -> Bench {
        let disk = Arc::new(Disk {
            mem: Mem::new(1 << 20, 512),
            lines: Mutex::default(),
        });
        let sticky = StickyFlush::new(Arc::clone(&disk) as _);
        let queues = [sticky.queue().unwrap(), sticky.queue().unwrap()];
        let lines = disk.lines.lock().unwrap().clone();
        Bench {
            queues,
            lines: lines.try_into().ok().unwrap(),
            sticky,
        }
    }

    fn submit(&mut self, queue: usize, tag: u64, op: Op) {
        self.queues[queue].submit(Request { tag, op }).unwrap();
        self.queues[queue].kick().unwrap();
    }

    /// Reaps tag and success of each completion that the queue has.
    fn reap(&mut self, queue: usize) -> Vec<(u64, bool)> {
        let mut done = Vec::new();
        self.queues[queue].reap(Wait::Poll, &mut done).unwrap();
        done.iter().map(|c| (c.tag, c.result.is_ok())).collect()
    }

    /// Sleeps on the descriptor, and returns the same as `reap`.
    fn wake(&mut self, queue: usize) -> Vec<(u64, bool)> {
        wait_for(self.queues[queue].wait_fd().unwrap());
        self.reap(queue)
    }

    fn is_readable(&self, queue: usize) -> bool {
        let fd = self.queues[queue].wait_fd().unwrap();
        let now = Timespec::default();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)) == Ok(1)
    }
}

fn write() -> Op {
    write_with(false)
}

fn durable_write() -> Op {
    write_with(true)
}

fn write_with(fua: bool) -> Op {
    let bufs = Buf::zeroed(512).into();
    let offset = 0;
    Op::Write { offset, bufs, fua }
}

#[test]
fn a_flush_that_was_in_flight_beside_one_that_failed_fails_too() {
    let durable: [fn() -> Op; 2] = [|| Op::Flush, durable_write];
    for (fails, goes_well) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for fails_first in [true, false] {
            let mut bench = Bench::new();
            let (bad, good) = (0, 1);
            let mut submits = [(bad, 7, durable[fails]()), (good, 8, durable[goes_well]())];
            if !fails_first {
                submits.reverse();
            }
            for (queue, tag, op) in submits {
                bench.submit(queue, tag, op);
            }
            // The success arrives first, and the failure is not known yet.
            bench.lines[good].succeed();
            assert_eq!(bench.reap(good), [], "a success that may be a lie");
            assert!(!bench.is_readable(good));
            bench.lines[bad].fail();
            assert_eq!(bench.wake(bad), [(7, false)]);
            assert_eq!(bench.wake(good), [(8, false)]);
            assert!(!bench.is_readable(good));
            // Every later flush fails as well.
            bench.submit(good, 9, Op::Flush);
            bench.lines[good].succeed();
            assert_eq!(bench.wake(good), [(9, false)]);
        }
    }
}

#[test]
fn a_flush_that_fails_before_any_write_fails_no_later_one() {
    let mut bench = Bench::untouched();
    bench.submit(0, 1, Op::Flush);
    bench.submit(1, 2, Op::Flush);
    bench.lines[0].fail();
    assert_eq!(bench.wake(0), [(1, false)]);
    bench.lines[1].succeed();
    assert_eq!(bench.wake(1), [(2, true)]);
    assert!(bench.sticky.failure().get().is_none());
    // After the first write a failure counts, even if that write failed, and on any queue.
    bench.submit(1, 3, write());
    bench.lines[1].fail();
    assert_eq!(bench.wake(1), [(3, false)]);
    bench.submit(0, 4, Op::Flush);
    bench.lines[0].fail();
    assert_eq!(bench.wake(0), [(4, false)]);
    bench.submit(1, 5, Op::Flush);
    bench.lines[1].succeed();
    assert_eq!(bench.wake(1), [(5, false)]);
    assert!(bench.sticky.failure().get().is_some());
}

#[test]
fn of_two_flushes_of_one_queue_none_succeeds_beside_a_failure() {
    let mut bench = Bench::new();
    bench.submit(0, 1, Op::Flush);
    bench.lines[0].succeed();
    assert_eq!(
        bench.wake(0),
        [(1, true)],
        "it is alone and waits for nobody"
    );
    // Tags need not be unique.
    bench.submit(0, 5, Op::Flush);
    bench.submit(0, 5, Op::Flush);
    bench.lines[0].succeed();
    assert_eq!(bench.reap(0), []);
    bench.submit(0, 6, write());
    bench.lines[0].fail();
    bench.lines[0].succeed();
    let mut all = bench.wake(0);
    all.sort_unstable();
    assert_eq!(all, [(5, false), (5, false), (6, true)]);
    assert!(bench.sticky.failure().get().is_some());
}

#[test]
fn a_flush_waits_for_those_beside_it_and_for_no_later_ones() {
    let mut bench = Bench::new();
    bench.submit(0, 1, Op::Flush);
    bench.submit(1, 2, Op::Flush);
    bench.lines[1].succeed();
    assert_eq!(bench.reap(1), []);
    bench.submit(1, 3, Op::Flush);
    bench.submit(1, 4, write());
    bench.lines[0].succeed();
    assert_eq!(bench.reap(0), [], "3 was submitted before it ended");
    assert_eq!(bench.wake(1), [(2, true)], "3 came later and is open still");
    assert!(!bench.is_readable(1) && bench.queues[1].in_flight() == 2);
    bench.lines[1].succeed();
    bench.lines[1].succeed();
    let mut all = bench.wake(1);
    all.sort_unstable();
    assert_eq!(all, [(3, true), (4, true)]);
    assert_eq!(bench.wake(0), [(1, true)]);
    assert!(bench.sticky.failure().get().is_none());
}

#[test]
fn the_failure_that_a_dropped_queue_leaves_unread_counts() {
    let mut bench = Bench::new();
    bench.submit(0, 1, Op::Flush);
    bench.submit(1, 2, Op::Flush);
    bench.lines[1].succeed();
    assert_eq!(bench.reap(1), []);
    bench.lines[0].fail();
    bench.queues[0] = bench.sticky.queue().unwrap();
    assert_eq!(bench.wake(1), [(2, false)]);
}

#[test]
fn flushes_of_many_threads_all_come_back() {
    let (mem, short) = (Mem::new(1 << 20, 512), Duration::from_micros(50));
    let sticky = StickyFlush::new(Arc::new(Delay::new(Arc::new(mem), short, short)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut blocking = Blocking::open(&sticky).unwrap();
                for _ in 0..200 {
                    blocking.run(durable_write()).unwrap();
                    blocking.flush().unwrap();
                }
            });
        }
    });
}

#[test]
fn conforms() {
    conformance::run(&|| Arc::new(StickyFlush::new(Arc::new(Mem::new(16 << 20, 512)))));
}

#[test]
fn after_a_flush_that_failed_no_queue_flushes_well_again() {
    let (device, errors) = ErrorDevice::new(Arc::new(Mem::new(1 << 20, 512)));
    let sticky = StickyFlush::new(Arc::new(device));
    let (mut one, mut two) = (
        Blocking::open(&sticky).unwrap(),
        Blocking::open(&sticky).unwrap(),
    );
    one.write_at(0, &[0; 512]).unwrap();
    one.flush().unwrap();
    errors.set(Some(Failure::nth(1, ErrorKind::Media).of(OpKind::Flush)));
    assert!(one.flush().is_err() && sticky.failure().get().is_some());
    for client in [&mut two, &mut one] {
        client.write_at(0, &[1; 512]).unwrap();
        assert_eq!(client.flush().unwrap_err().kind(), ErrorKind::Media);
    }
    assert!(Blocking::open(&sticky).unwrap().flush().is_err());
}

/// A process that continues the device of another one, whose flush has failed.
#[test]
fn what_a_predecessor_could_not_flush_is_never_called_durable() {
    let mut bench = Bench::untouched();
    bench.sticky.continue_after(true);
    let failure = bench.sticky.failure();
    assert_eq!(failure.get().map(Error::kind), Some(ErrorKind::Io));
    for (tag, op) in [(1, Op::Flush), (2, durable_write()), (3, Op::Flush)] {
        bench.submit(0, tag, op);
        bench.lines[0].succeed();
        assert_eq!(bench.wake(0), [(tag, false)]);
    }
    bench.submit(1, 4, write());
    bench.lines[1].succeed();
    assert_eq!(bench.wake(1), [(4, true)], "it is not durable yet");
}

/// The process before this one may have written, so the first flush may report a loss.
#[test]
fn after_a_predecessor_a_failure_counts_before_the_first_write() {
    let mut bench = Bench::untouched();
    bench.sticky.continue_after(false);
    bench.submit(0, 1, Op::Flush);
    bench.lines[0].succeed();
    assert_eq!(bench.wake(0), [(1, true)]);
    bench.submit(0, 2, Op::Flush);
    bench.lines[0].fail();
    assert_eq!(bench.wake(0), [(2, false)]);
    bench.submit(1, 3, Op::Flush);
    bench.lines[1].succeed();
    assert_eq!(bench.wake(1), [(3, false)]);
}

/// Has each note record whether the failure was known before; returns the record.
fn notes_of(bench: &Bench) -> Arc<Mutex<Vec<bool>>> {
    let notes: Arc<Mutex<Vec<bool>>> = Arc::default();
    let (noted, failure) = (Arc::clone(&notes), bench.sticky.failure());
    let note = move || noted.lock().unwrap().push(failure.get().is_some());
    bench.sticky.note_failure(note);
    notes
}

#[test]
fn a_failure_is_noted_before_it_takes_effect() {
    let mut bench = Bench::untouched();
    let notes = notes_of(&bench);
    bench
        .sticky
        .note_failure(|| panic!("only the first function is called"));
    // No data was written that this failure could report as lost.
    bench.submit(0, 1, Op::Flush);
    bench.lines[0].fail();
    assert_eq!(bench.wake(0), [(1, false)]);
    bench.submit(0, 2, durable_write());
    bench.submit(1, 3, Op::Flush);
    bench.lines[0].succeed();
    bench.lines[1].succeed();
    assert_eq!(bench.reap(0), []);
    assert_eq!(bench.wake(1), [(3, true)]);
    assert_eq!(bench.wake(0), [(2, true)]);
    assert!(notes.lock().unwrap().is_empty());
    bench.submit(1, 4, Op::Flush);
    bench.lines[1].fail();
    assert_eq!(bench.wake(1), [(4, false)]);
    assert_eq!(*notes.lock().unwrap(), [false]);
}

#[test]
fn a_flush_that_a_dropped_queue_abandons_is_noted() {
    let mut bench = Bench::new();
    let notes = notes_of(&bench);
    bench.submit(0, 1, Op::Flush);
    bench.lines[0].fail();
    bench.queues[0] = bench.sticky.queue().unwrap();
    assert_eq!(*notes.lock().unwrap(), [false]);
}
