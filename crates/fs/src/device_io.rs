//! Device I/O of the metadata: threads that each own a queue, and callers that wait.
//!
//! A queue belongs to one thread, but any thread that looks up a name reads metadata. So callers
//! pass their operations to the threads and sleep. **Invariant:** all operations of a job have
//! completed when the caller gets its result. The other invariant: after a failed flush none
//! succeeds, because a device reports only once, to the first caller, that it has lost acknowledged
//! data. Deliberately absent: file data, which goes through queues of its callers.

use crate::error::{Error, Kind, Result};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, Run};
use block::{
    BlockDevice, Buf, Completion, DeviceInfo, Op, Queue, Request, StickyFlush, Wait, about_to_sleep,
};
use layer_cpu::{Layer, home};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

/// Number of threads: one may be busy with a commit while the other reads.
const THREADS: usize = 2;

/// Whether a durable write first makes all earlier writes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    None,
    Flush,
}

/// Operations of a job, in this order.
#[derive(Default)]
struct Steps {
    flush_before: bool,
    ops: Vec<Op>,
    flush_after: bool,
}

struct Job {
    steps: Steps,
    answer: SyncSender<block::Result<Vec<Op>>>,
}

/// Device with I/O threads.
pub(crate) struct DeviceIo {
    device: Arc<StickyFlush>,
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl DeviceIo {
    /// Starts the threads.
    pub fn start(device: Arc<dyn BlockDevice>) -> Result<DeviceIo> {
        let (jobs, todo) = channel();
        let todo = Arc::new(Mutex::new(todo));
        let device = StickyFlush::new(device);
        let lost = device.failure();
        let device = Arc::new(device);
        let mut io = DeviceIo {
            device: Arc::clone(&device),
            jobs: Some(jobs),
            threads: Vec::new(),
        };
        for _ in 0..THREADS {
            let (device, todo) = (Arc::clone(&device), Arc::clone(&todo));
            let lost = Arc::clone(&lost);
            let thread = std::thread::Builder::new()
                .name("fs-metadata".into())
                .spawn(move || serve(&*device, &todo, &lost))
                .map_err(|e| Error::from(block::Error::from_io(&io.info().name, e)))?;
            io.threads.push(thread);
        }
        Ok(io)
    }

    /// Returns the properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// Reads `out.len()` bytes at `offset`. Both are multiples of the logical block size.
    pub fn read(&self, offset: DeviceOffset, out: &mut [u8]) -> block::Result<()> {
        let chunk = self.info().max_transfer as usize;
        let ops = (0..out.len().div_ceil(chunk)).map(|i| Op::Read {
            offset: offset.plus((i * chunk) as u64).bytes(),
            bufs: Buf::zeroed(chunk.min(out.len() - i * chunk)).into(),
        });
        let steps = Steps {
            ops: ops.collect(),
            ..Steps::default()
        };
        let done = self.run(steps)?;
        for (op, out) in done.iter().zip(out.chunks_mut(chunk)) {
            let Op::Read { bufs, .. } = op else { continue };
            out.copy_from_slice(&bufs.as_slice()[0]);
        }
        Ok(())
    }

    /// Reads runs of blocks, each of at most the device's largest transfer, at the same time.
    pub fn read_runs(&self, runs: impl Iterator<Item = Run>) -> block::Result<Vec<Buf>> {
        let ops = runs.map(|run| Op::Read {
            offset: DeviceOffset::of_block(run.start).bytes(),
            bufs: Buf::zeroed((run.blocks * BLOCK_BYTES) as usize).into(),
        });
        let steps = Steps {
            ops: ops.collect(),
            ..Steps::default()
        };
        let done = self.run(steps)?.into_iter();
        let bufs = done.filter_map(|op| match op {
            Op::Read { bufs, .. } => bufs.into_first(),
            _ => None,
        });
        Ok(bufs.collect())
    }

    /// Executes writes and, after the last has completed, a flush.
    pub fn write_and_flush(&self, ops: Vec<Op>) -> block::Result<()> {
        let steps = Steps {
            ops,
            flush_after: true,
            ..Steps::default()
        };
        self.run(steps).map(drop)
    }

    /// Executes writes without making them durable.
    pub fn write(&self, ops: Vec<Op>) -> block::Result<()> {
        let steps = Steps {
            ops,
            ..Steps::default()
        };
        self.run(steps).map(drop)
    }

    /// Writes `data` at `offset`; it is durable when this returns. With [`Barrier::Flush`],
    /// everything written before is made durable first.
    pub fn write_through(
        &self,
        barrier: Barrier,
        offset: DeviceOffset,
        data: Buf,
    ) -> block::Result<()> {
        let op = Op::Write {
            offset: offset.bytes(),
            bufs: data.into(),
            fua: true,
        };
        let steps = Steps {
            flush_before: barrier == Barrier::Flush,
            ops: vec![op],
            flush_after: false,
        };
        self.run(steps).map(drop)
    }

    /// Declares blocks unused.
    pub fn discard(&self, run: Run) -> block::Result<()> {
        self.write(vec![Op::Discard {
            offset: DeviceOffset::of_block(run.start).bytes(),
            len: run.blocks * BLOCK_BYTES,
        }])
    }

    /// Makes everything written so far durable.
    pub fn flush(&self) -> block::Result<()> {
        self.write_and_flush(Vec::new())
    }

    fn run(&self, steps: Steps) -> block::Result<Vec<Op>> {
        let gone = || {
            let text = "the metadata thread has ended";
            block::Error::new(block::ErrorKind::Cancelled, &self.info().name, text)
        };
        let (answer, answered) = sync_channel(1);
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(Job { steps, answer }).map_err(|_| gone())?;
        about_to_sleep();
        answered.recv().map_err(|_| gone())?
    }
}

impl Drop for DeviceIo {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A panic has been reported already, and the waiting caller got an error.
            let _ = thread.join();
        }
    }
}

/// Error of the first failed flush; [`StickyFlush`] lets none succeed afterwards.
type Lost = OnceLock<block::Error>;

/// Executes one job after the other until all senders are dropped.
fn serve(device: &dyn BlockDevice, todo: &Mutex<Receiver<Job>>, lost: &Lost) {
    home(Layer::Fs);
    let mut queue: Option<Box<dyn Queue>> = None;
    loop {
        let next = todo.lock().expect("no panic under this lock").recv();
        let Ok(Job { steps, answer }) = next else {
            return;
        };
        let result = open(device, &mut queue).and_then(|queue| carry_out(queue, steps, lost));
        if result.is_err() {
            // The queue may be unusable.
            queue = None;
        }
        // Fails only if the caller no longer waits.
        let _ = answer.send(result);
    }
}

fn open<'a>(
    device: &dyn BlockDevice,
    queue: &'a mut Option<Box<dyn Queue>>,
) -> block::Result<&'a mut dyn Queue> {
    if queue.is_none() {
        *queue = Some(device.queue()?);
    }
    Ok(queue.as_deref_mut().expect("opened above"))
}

fn carry_out(queue: &mut dyn Queue, steps: Steps, lost: &Lost) -> block::Result<Vec<Op>> {
    if steps.flush_before {
        run_durable(queue, vec![Op::Flush], lost)?;
    }
    // If the device lacks FUA, a lower layer turns such a write into a write and a flush.
    let fua = |op: &Op| matches!(op, Op::Write { fua: true, .. });
    let done = if steps.ops.iter().any(fua) {
        run_durable(queue, steps.ops, lost)?
    } else {
        run_ops(queue, steps.ops)?
    };
    if steps.flush_after {
        run_durable(queue, vec![Op::Flush], lost)?;
    }
    Ok(done)
}

/// Runs operations that make data durable, unless one of them has failed before.
fn run_durable(queue: &mut dyn Queue, ops: Vec<Op>, lost: &Lost) -> block::Result<Vec<Op>> {
    if let Some(error) = lost.get() {
        return Err(error.clone());
    }
    run_ops(queue, ops).inspect_err(|error| {
        // The other thread may have set it first.
        let _ = lost.set(error.clone());
    })
}

/// Runs operations, as many at a time as the queue takes, and returns them in order. Waits for all
/// submitted operations in any case, and returns the first error.
fn run_ops(queue: &mut dyn Queue, ops: Vec<Op>) -> block::Result<Vec<Op>> {
    let mut back: Vec<Option<Op>> = ops.iter().map(|_| None).collect();
    let mut todo = ops.into_iter().enumerate();
    let mut next = todo.next();
    let mut done: Vec<Completion> = Vec::new();
    let mut error = None;
    while next.is_some() || queue.in_flight() > 0 {
        if let Some((tag, op)) = next.take() {
            let tag = tag as u64;
            match queue.submit(Request { tag, op }) {
                Ok(()) => {
                    next = if error.is_none() { todo.next() } else { None };
                    continue;
                }
                Err(full) => next = Some((full.tag as usize, full.op)),
            }
        }
        queue.reap(Wait::Block, &mut done)?;
        for done in done.drain(..) {
            match done.result {
                Ok(()) => back[done.tag as usize] = Some(done.op),
                Err(e) => error = error.or(Some(e)),
            }
        }
        if error.is_some() {
            next = None;
        }
    }
    match error {
        Some(error) => Err(error),
        None => Ok(back.into_iter().flatten().collect()),
    }
}

/// Checks that the properties of a device allow a file system on it.
pub(crate) fn check_device(info: &DeviceInfo) -> Result<()> {
    let fits = u64::from(info.logical_block_size) <= crate::format::record::BLOCK_BYTES
        && u64::from(info.max_transfer) >= crate::format::record::BLOCK_BYTES;
    if !fits {
        let text = format!(
            "{}: block size is {} bytes and maximum transfer {}; the file system needs at most 4096 \
             and at least 4096",
            info.name, info.logical_block_size, info.max_transfer
        );
        return Err(Error::new(Kind::Unsupported, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use block_testing::{ErrorDevice, Failure, Mem, MemConfig};
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// Completes flushes when two are in flight: the first one fails, the second succeeds.
    /// Everything else succeeds.
    struct Pairs {
        mem: Mem,
        flushes: Arc<AtomicUsize>,
    }

    struct PairsQueue {
        info: DeviceInfo,
        flushes: Arc<AtomicUsize>,
        /// Request in flight, with the number of the flush if it is one.
        asked: Option<(Option<usize>, Request)>,
    }

    impl BlockDevice for Pairs {
        fn info(&self) -> &DeviceInfo {
            self.mem.info()
        }

        fn queue(&self) -> block::Result<Box<dyn Queue>> {
            Ok(Box::new(PairsQueue {
                info: self.info().clone(),
                flushes: Arc::clone(&self.flushes),
                asked: None,
            }))
        }
    }

    impl Queue for PairsQueue {
        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn capacity(&self) -> usize {
            1
        }

        fn in_flight(&self) -> usize {
            usize::from(self.asked.is_some())
        }

        fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
            let is_flush = matches!(request.op, Op::Flush);
            let number = is_flush.then(|| self.flushes.fetch_add(1, SeqCst));
            self.asked = Some((number, request));
            Ok(())
        }

        fn kick(&mut self) -> block::Result<()> {
            Ok(())
        }

        fn reap(&mut self, _: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
            let Some((number, Request { tag, op })) = self.asked.take() else {
                return Ok(0);
            };
            while number.is_some() && self.flushes.load(SeqCst) < 2 {
                std::thread::yield_now();
            }
            let failed = || Err(block::Error::new(ErrorKind::Media, &self.info.name, ""));
            let result = if number == Some(0) { failed() } else { Ok(()) };
            done.push(Completion { tag, op, result });
            Ok(1)
        }

        fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    #[test]
    fn of_two_flushes_at_once_both_fail_when_one_does() {
        let pairs = Pairs {
            mem: Mem::new(1 << 20, 512),
            flushes: Arc::default(),
        };
        let io = DeviceIo::start(Arc::new(pairs)).unwrap();
        // Before anything is written, a flush cannot lose anything.
        let op = Op::Write {
            offset: 0,
            bufs: Buf::zeroed(4096).into(),
            fua: false,
        };
        io.write(vec![op]).unwrap();
        std::thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(|| io.flush()));
            for one in both {
                assert!(one.join().unwrap().is_err(), "what it covers may be lost");
            }
        });
    }

    #[test]
    fn many_operations_go_through_a_narrow_queue_and_come_back_in_order() {
        let mem = Mem::with(MemConfig {
            capacity: 2,
            max_transfer: 4096,
            ..MemConfig::new(1 << 20, 512)
        });
        let view = mem.read_only();
        let io = DeviceIo::start(Arc::new(mem)).unwrap();
        let write = |i: u64| Op::Write {
            offset: i * 4096,
            bufs: Buf::copy_of(&[i as u8; 4096]).into(),
            fua: false,
        };
        io.write_and_flush((0..20).map(write).collect()).unwrap();
        let mut out = vec![0; 20 * 4096];
        io.read(DeviceOffset::of_block(0), &mut out).unwrap();
        for (i, block) in out.chunks(4096).enumerate() {
            assert!(block.iter().all(|b| *b == i as u8));
        }
        assert_eq!(view.info().size, io.info().size);
    }

    #[test]
    fn an_error_ends_its_job_and_the_next_one_works() {
        let (device, handle) = ErrorDevice::new(Arc::new(Mem::new(1 << 20, 512)));
        let io = DeviceIo::start(Arc::new(device)).unwrap();
        handle.set(Some(Failure::nth(1, ErrorKind::Media)));
        let error = io
            .read(DeviceOffset::of_block(0), &mut [0; 4096])
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Media);
        handle.set(None);
        io.write_through(
            Barrier::Flush,
            DeviceOffset::of_block(0),
            Buf::copy_of(&[1; 4096]),
        )
        .unwrap();
        let mut out = [0; 4096];
        io.read(DeviceOffset::of_block(0), &mut out).unwrap();
        assert_eq!(out, [1; 4096]);
    }
}
