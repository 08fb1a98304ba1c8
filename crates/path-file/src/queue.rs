//! One thread's way to a file: the life of a request, whichever engine carries it out.
//!
//! A request goes through *stages*, one system operation each: most have one; a write-zeroes that
//! the file system cannot do natively writes zeros piece by piece, and one with FUA syncs after
//! it; a short read or write goes on where it stopped.

use crate::device::Shared;
use crate::options::Engine;
use crate::psync::Psync;
use crate::ring::Ring;
use block::{
    Buf, BufPool, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Result, Wait,
};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Bytes of the zeros that stand in for a native write-zeroes.
const ZEROS_BYTES: usize = 256 * 1024;
/// Times an operation that the system interrupted is tried again before that is an error.
const RETRIES_MAX: u32 = 1000;

/// What carries system operations out.
enum Carrier {
    Ring(Box<Ring>),
    Psync(Psync),
}

/// A queue on a file.
pub(crate) struct FileQueue {
    // Declared first, dropped first: the ring lets go of all memory before the jobs free it.
    carrier: Carrier,
    shared: Arc<Shared>,
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Jobs whose next stage is to be handed to the carrier.
    staged: VecDeque<usize>,
    /// Completions that needed no system operation.
    ready: VecDeque<Completion>,
    zeros: Option<Buf>,
    results: Vec<(u64, i32)>,
}

impl FileQueue {
    pub(crate) fn open(shared: Arc<Shared>) -> Result<FileQueue> {
        let depth = shared.queue_depth;
        let carrier = match shared.engine {
            Engine::Psync => Carrier::Psync(Psync::default()),
            Engine::IoUring | Engine::Auto => match Ring::new(&shared.file, depth) {
                Ok(ring) => Carrier::Ring(Box::new(ring)),
                Err(e) if shared.engine == Engine::Auto => {
                    tracing::warn!(
                        file = shared.info.name,
                        "no io_uring ({e}): using system calls"
                    );
                    Carrier::Psync(Psync::default())
                }
                Err(e) => {
                    let why = "io_uring was demanded and the system refuses it";
                    return Err(Error::from_io(&shared.info.name, e)
                        .with_kind(ErrorKind::Unsupported)
                        .detail(why));
                }
            },
        };
        Ok(FileQueue {
            carrier,
            shared,
            jobs: (0..depth).map(|_| None).collect(),
            free: (0..depth as usize).rev().collect(),
            staged: VecDeque::new(),
            ready: VecDeque::new(),
            zeros: None,
            results: Vec::new(),
        })
    }

    /// Whether O_DIRECT takes the buffers where they are.
    fn memory_is_aligned(&self, op: &Op) -> bool {
        let align = self.shared.memory_align as usize;
        match op {
            Op::Read { bufs, .. } | Op::Write { bufs, .. } => {
                align <= 1
                    || bufs
                        .iter()
                        .all(|b| (b.as_ptr() as usize).is_multiple_of(align))
            }
            _ => true,
        }
    }

    /// Hands staged jobs to the carrier as far as it takes them.
    fn feed(&mut self) {
        while let Some(&index) = self.staged.front() {
            let Some(job) = self.jobs[index].as_mut() else {
                unreachable!("staged jobs exist")
            };
            if matches!(job.stage, Stage::Zeros { .. }) && self.zeros.is_none() {
                self.zeros = Some(Buf::zeroed(ZEROS_BYTES));
            }
            let sys = job.next_operation(self.zeros.as_deref());
            let taken = match &mut self.carrier {
                Carrier::Ring(ring) => ring.push(index as u64, &sys),
                Carrier::Psync(psync) => psync.carry_out(&self.shared.file, index as u64, &sys),
            };
            if !taken {
                return;
            }
            self.staged.pop_front();
        }
    }

    /// Moves on the jobs whose operations have ended.
    fn settle_all(&mut self) {
        let mut results = std::mem::take(&mut self.results);
        for (index, result) in results.drain(..) {
            self.settle(index as usize, result);
        }
        self.results = results;
    }

    fn settle(&mut self, index: usize, result: i32) {
        let job = self.jobs[index]
            .as_mut()
            .expect("each result stands for a job");
        match job.after(result) {
            After::Again => self.staged.push_back(index),
            After::Done => self.finish(index, Ok(())),
            After::Failed(errno) => {
                let error = Error::from_io(
                    &self.shared.info.name,
                    std::io::Error::from_raw_os_error(errno),
                );
                self.finish(index, Err(error));
            }
            After::Ended => {
                let why =
                    "the file ends before the end of the device; it was cut off by somebody else";
                let error = Error::new(ErrorKind::Media, &self.shared.info.name, why);
                self.finish(index, Err(error));
            }
        }
    }

    fn finish(&mut self, index: usize, result: Result<()>) {
        let Some(Job { tag, op, .. }) = self.jobs[index].take() else {
            unreachable!("a job ends once")
        };
        let result = result.map_err(|e| e.in_op(&op));
        self.free.push(index);
        self.ready.push_back(Completion { tag, op, result });
    }
}

impl Queue for FileQueue {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn capacity(&self) -> usize {
        self.jobs.len()
    }

    fn in_flight(&self) -> usize {
        self.jobs.len() - self.free.len() + self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.jobs.len() {
            return Err(request);
        }
        let Request { tag, op } = request;
        let empty = op.range().is_some_and(|(_, len)| len == 0);
        let checked = self.shared.info.check(&op).and_then(|()| {
            if self.memory_is_aligned(&op) {
                return Ok(());
            }
            let why = format!(
                "a buffer in memory is not aligned to {} bytes, as O_DIRECT wants it",
                self.shared.memory_align
            );
            Err(Error::new(ErrorKind::Misaligned, &self.shared.info.name, why).in_op(&op))
        });
        // A sync of what was opened for reading has nothing to do.
        let idle = matches!(op, Op::Flush) && self.shared.info.read_only;
        match checked {
            Ok(()) if !empty && !idle => {
                let index = self
                    .free
                    .pop()
                    .expect("fewer than `capacity` are in flight");
                self.jobs[index] = Some(Job::new(tag, op));
                self.staged.push_back(index);
            }
            result => self.ready.push_back(Completion { tag, op, result }),
        }
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        self.feed();
        if let Carrier::Ring(ring) = &mut self.carrier {
            ring.submit()
                .map_err(|e| Error::from_io(&self.shared.info.name, e))?;
        }
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let until = match wait {
            // A time too long to be counted is for ever.
            Wait::AtMost(time) => std::time::Instant::now().checked_add(time),
            Wait::Poll | Wait::Block => None,
        };
        loop {
            self.feed();
            let busy = self.free.len() < self.jobs.len();
            match &mut self.carrier {
                Carrier::Psync(psync) => psync.drain(&mut self.results),
                Carrier::Ring(ring) if busy => {
                    let wait = if !self.ready.is_empty() {
                        Wait::Poll
                    } else {
                        remaining(wait, until)
                    };
                    ring.reap(wait, &mut self.results)
                        .map_err(|e| Error::from_io(&self.shared.info.name, e))?;
                }
                Carrier::Ring(_) => {}
            }
            self.settle_all();
            let idle = self.free.len() == self.jobs.len();
            let count = self.ready.len();
            let late = until.is_some_and(|until| std::time::Instant::now() >= until);
            if count > 0 || idle || late || (wait == Wait::Poll && self.staged.is_empty()) {
                // Stages that follow earlier ones start before the caller sleeps.
                self.kick()?;
                done.extend(self.ready.drain(..));
                return Ok(count);
            }
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.carrier {
            Carrier::Ring(ring) => Some(ring.fd()),
            Carrier::Psync(_) => None,
        }
    }

    fn register(&mut self, pool: &BufPool) {
        if let Carrier::Ring(ring) = &mut self.carrier {
            ring.register(pool);
        }
    }
}

fn remaining(wait: Wait, until: Option<std::time::Instant>) -> Wait {
    match until {
        Some(until) => Wait::AtMost(until.saturating_duration_since(std::time::Instant::now())),
        None => wait,
    }
}
