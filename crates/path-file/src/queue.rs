//! Queue of one thread for a file: the life of a request, independent of the engine.
//!
//! A request passes through *stages* of one system operation each. Most have one; a write-zeroes
//! that the file system does not support natively writes zeros piece by piece, and syncs afterwards
//! if it has FUA; a short read or write continues where it stopped.

use crate::open_file::OpenFile;
use crate::options::Engine;
use crate::psync::Psync;
use crate::ring::Ring;
use crate::sys::Sys;
use block::{
    Buf, BufPool, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Result, Wait,
};
use layer_cpu::{Layer, within};
use slab::Slab;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Size in bytes of the zero buffer that replaces a native write-zeroes.
const ZEROS_BYTES: usize = 256 * 1024;
/// Number of retries of an interrupted operation before it fails.
const RETRIES_MAX: u32 = 1000;

/// Request between submit and reap.
pub(crate) struct Job {
    tag: u64,
    op: Op,
    stage: Stage,
    retries: u32,
    /// Vector that the kernel reads while a scattered transfer is in flight. Its heap memory stays
    /// in place while the job does.
    pub(crate) iov: Vec<libc::iovec>,
}

/// Current or next system operation of a job.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The operation itself; the first `done` bytes are transferred.
    Main { done: usize },
    /// Zeros in place of a native write-zeroes, from this offset on.
    Zeros { at: u64 },
    /// Sync after an operation that lacks FUA.
    Sync,
}

/// Executor of system operations.
enum Carrier {
    Ring(Box<Ring>),
    Psync(Psync),
}

pub(crate) struct FileQueue {
    // Declared first, dropped first: the ring releases all memory before the jobs free it.
    carrier: Carrier,
    shared: Arc<OpenFile>,
    /// Keyed by the tags of their operations.
    jobs: Slab<Job>,
    /// Jobs whose next stage waits to be passed to the carrier.
    staged: VecDeque<usize>,
    /// Completions to be reaped.
    ready: VecDeque<Completion>,
    zeros: Option<Buf>,
    results: Vec<(u64, i32)>,
}

impl FileQueue {
    pub(crate) fn open(shared: Arc<OpenFile>) -> Result<FileQueue> {
        let depth = shared.queue_depth;
        let jobs = Slab::with_capacity(depth as usize);
        let carrier = match shared.engine {
            Engine::Psync => Carrier::Psync(Psync::default()),
            Engine::IoUring | Engine::Auto => match Ring::new(&shared.file, depth) {
                Ok(ring) => Carrier::Ring(Box::new(ring)),
                Err(e) if shared.engine == Engine::Auto => {
                    tracing::warn!(
                        name: "EVFS-0410",
                        file = shared.info.name,
                        "io_uring is unavailable ({e}); using system calls"
                    );
                    Carrier::Psync(Psync::default())
                }
                Err(e) => {
                    let why = "io_uring was requested, but the system refuses it";
                    return Err(Error::from_io(&shared.info.name, e)
                        .with_kind(ErrorKind::Unsupported)
                        .detail(why));
                }
            },
        };
        Ok(FileQueue {
            carrier,
            shared,
            jobs,
            staged: VecDeque::new(),
            ready: VecDeque::new(),
            zeros: None,
            results: Vec::new(),
        })
    }

    /// Checks whether the alignment of the buffers suffices for O_DIRECT.
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

    /// Passes staged jobs to the carrier until it is full.
    fn feed(&mut self) {
        while let Some(&index) = self.staged.front() {
            let job = &mut self.jobs[index];
            if matches!(job.stage, Stage::Zeros { .. }) && self.zeros.is_none() {
                self.zeros = Some(Buf::zeroed(ZEROS_BYTES));
            }
            let sys = job.next_operation(self.zeros.as_deref());
            let taken = match &mut self.carrier {
                Carrier::Ring(ring) => ring.push(index as u64, &sys),
                Carrier::Psync(psync) => psync.execute(&self.shared.file, index as u64, &sys),
            };
            if !taken {
                return;
            }
            self.staged.pop_front();
        }
    }

    /// Advances the jobs whose operations have completed.
    fn settle_all(&mut self) {
        let mut results = std::mem::take(&mut self.results);
        for (index, result) in results.drain(..) {
            self.complete(index as usize, result);
        }
        self.results = results;
    }

    fn complete(&mut self, index: usize, result: i32) {
        match self.jobs[index].after(result) {
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
                    "the file ends before the end of the device: another process truncated it";
                let error = Error::new(ErrorKind::Media, &self.shared.info.name, why);
                self.finish(index, Err(error));
            }
        }
    }

    fn finish(&mut self, index: usize, result: Result<()>) {
        let Job { tag, op, .. } = self.jobs.remove(index);
        let result = result.map_err(|e| e.in_op(&op));
        self.ready.push_back(Completion { tag, op, result });
    }
}

/// Next step after a system operation.
enum After {
    Again,
    Done,
    Failed(i32),
    /// The end of the file was reached.
    Ended,
}

impl Job {
    fn new(tag: u64, op: Op) -> Job {
        Job {
            tag,
            op,
            stage: Stage::Main { done: 0 },
            retries: 0,
            iov: Vec::new(),
        }
    }

    fn next_operation(&mut self, zeros: Option<&[u8]>) -> Sys<'_> {
        use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
        match (self.stage, &mut self.op) {
            (Stage::Sync, _) | (_, Op::Flush) => Sys::Sync,
            (Stage::Main { done }, Op::Read { offset, bufs }) => {
                let offset = *offset + done as u64;
                if let [buf] = bufs.as_mut_slice() {
                    let rest = &mut buf[done..];
                    return Sys::Read {
                        offset,
                        ptr: rest.as_mut_ptr(),
                        len: rest.len() as u32,
                    };
                }
                self.iov = vector(bufs.iter_mut().map(|b| (b.as_mut_ptr(), b.len())), done);
                Sys::ReadV {
                    offset,
                    iov: &self.iov,
                }
            }
            (Stage::Main { done }, Op::Write { offset, bufs, fua }) => {
                let (offset, fua) = (*offset + done as u64, *fua);
                if let [buf] = bufs.as_slice() {
                    let rest = &buf[done..];
                    return Sys::Write {
                        offset,
                        ptr: rest.as_ptr(),
                        len: rest.len() as u32,
                        fua,
                    };
                }
                self.iov = vector(bufs.iter().map(|b| (b.as_ptr().cast_mut(), b.len())), done);
                Sys::WriteV {
                    offset,
                    iov: &self.iov,
                    fua,
                }
            }
            (Stage::Main { .. }, Op::Discard { offset, len }) => Sys::Fallocate {
                offset: *offset,
                len: *len,
                mode: FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            },
            (
                Stage::Main { .. },
                Op::WriteZeroes {
                    offset, len, unmap, ..
                },
            ) => {
                let how = if *unmap {
                    FALLOC_FL_PUNCH_HOLE
                } else {
                    FALLOC_FL_ZERO_RANGE
                };
                Sys::Fallocate {
                    offset: *offset,
                    len: *len,
                    mode: how | FALLOC_FL_KEEP_SIZE,
                }
            }
            (Stage::Zeros { at }, op) => {
                let (offset, len) = op.range().expect("write-zeroes has a range");
                let zeros = zeros.expect("zeros are made before they are needed");
                let left = (offset + len - at).min(zeros.len() as u64) as u32;
                Sys::Write {
                    offset: at,
                    ptr: zeros.as_ptr(),
                    len: left,
                    fua: false,
                }
            }
        }
    }

    /// Processes the result of the operation from [`Job::next_operation`]: a byte count, or a
    /// negative errno.
    fn after(&mut self, result: i32) -> After {
        if result < 0 {
            return self.after_error(-result);
        }
        let fua_left = matches!(self.op, Op::WriteZeroes { fua: true, .. });
        match &mut self.stage {
            Stage::Main { done } => match &self.op {
                Op::Read { bufs, .. } | Op::Write { bufs, .. } => {
                    *done += result as usize;
                    if *done >= bufs.total_len() {
                        After::Done
                    } else if result == 0 {
                        After::Ended
                    } else {
                        After::Again
                    }
                }
                Op::WriteZeroes { .. } if fua_left => {
                    self.stage = Stage::Sync;
                    After::Again
                }
                _ => After::Done,
            },
            Stage::Zeros { at } => {
                *at += result as u64;
                let (offset, len) = self.op.range().expect("write-zeroes has a range");
                if *at < offset + len {
                    return if result == 0 {
                        After::Ended
                    } else {
                        After::Again
                    };
                }
                if fua_left {
                    self.stage = Stage::Sync;
                    return After::Again;
                }
                After::Done
            }
            Stage::Sync => After::Done,
        }
    }

    fn after_error(&mut self, errno: i32) -> After {
        match (errno, &self.op, self.stage) {
            (libc::EINTR | libc::EAGAIN, ..) if self.retries < RETRIES_MAX => {
                self.retries += 1;
                After::Again
            }
            // Native write-zeroes is not supported (some file systems, some disks): write zeros.
            (
                libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS,
                Op::WriteZeroes { offset, .. },
                Stage::Main { .. },
            ) => {
                self.stage = Stage::Zeros { at: *offset };
                After::Again
            }
            _ => After::Failed(errno),
        }
    }
}

/// Builds a vector of the buffers without their first `done` bytes.
fn vector(bufs: impl Iterator<Item = (*mut u8, usize)>, mut done: usize) -> Vec<libc::iovec> {
    let mut iov = Vec::new();
    for (ptr, len) in bufs {
        let skip = done.min(len);
        done -= skip;
        if len > skip {
            let base = ptr.wrapping_add(skip).cast();
            iov.push(libc::iovec {
                iov_base: base,
                iov_len: len - skip,
            });
        }
    }
    iov
}

impl Queue for FileQueue {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn capacity(&self) -> usize {
        self.shared.queue_depth as usize
    }

    fn in_flight(&self) -> usize {
        self.jobs.len() + self.ready.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let _here = within(Layer::Path);
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        let Request { tag, op } = request;
        let empty = op.range().is_some_and(|(_, len)| len == 0);
        let checked = self.shared.info.check(&op).and_then(|()| {
            if self.memory_is_aligned(&op) {
                return Ok(());
            }
            let why = format!(
                "a memory buffer is not aligned to {} bytes, as O_DIRECT requires",
                self.shared.memory_align
            );
            Err(Error::new(ErrorKind::Misaligned, &self.shared.info.name, why).in_op(&op))
        });
        // A flush of a read-only file has nothing to do.
        let idle = matches!(op, Op::Flush) && self.shared.info.read_only;
        match checked {
            Ok(()) if !empty && !idle => {
                let index = self.jobs.insert(Job::new(tag, op));
                self.staged.push_back(index);
            }
            result => self.ready.push_back(Completion { tag, op, result }),
        }
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        let _here = within(Layer::Path);
        self.feed();
        if let Carrier::Ring(ring) = &mut self.carrier {
            ring.submit()
                .map_err(|e| Error::from_io(&self.shared.info.name, e))?;
        }
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let _here = within(Layer::Path);
        let until = wait.deadline();
        loop {
            self.feed();
            let busy = !self.jobs.is_empty();
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
            let idle = self.jobs.is_empty();
            let count = self.ready.len();
            let late = until.is_some_and(|until| std::time::Instant::now() >= until);
            if count > 0 || idle || late || (wait == Wait::Poll && self.staged.is_empty()) {
                // Follow-up stages are submitted before the caller sleeps.
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
