//! Requests on their way through the device queues of a worker.
//!
//! **Invariant:** each job that [`Engine::begin`] took comes back from [`Engine::turn`] exactly once,
//! with its buffers and its grant.

use crate::connection::Job;
use crate::memory::{Grant, piece_bytes};
use block::{
    Buf, BufPool, Bufs, Completion, DeviceInfo, Error, ErrorKind, Op, OpKind, Queue, Request, Wait,
};
use nbd_proto::{Command, Errno, RequestHeader};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// The queues of a worker, one for each export.
pub(crate) struct Engine {
    lanes: Vec<Lane>,
    /// Jobs under way, by the tag of their operations.
    jobs: Vec<Option<Pending>>,
    free: Vec<usize>,
    done: Vec<Completion>,
}

struct Lane {
    queue: Box<dyn Queue>,
    /// Operations that the queue had no room for.
    backlog: VecDeque<Request>,
    piece: usize,
    /// There may be something to reap.
    stirred: bool,
}

/// A job while the device works on it.
struct Pending {
    connection: u64,
    export: usize,
    request: RequestHeader,
    grant: Grant,
    /// Operations below that have not come back.
    left: usize,
    error: Option<Errno>,
    /// The buffers of a read, with the offset of their operation.
    data: Vec<(u64, Bufs)>,
    /// A flush follows when the rest is done: FUA on what has none of its own.
    then_flush: bool,
}

/// A job that is complete.
pub(crate) struct Finished {
    pub(crate) connection: u64,
    pub(crate) request: RequestHeader,
    pub(crate) grant: Grant,
    pub(crate) error: Option<Errno>,
    /// The data of a read, in order.
    pub(crate) data: Vec<(u64, Bufs)>,
}

impl Engine {
    /// Over these queues, which are told of the pool.
    pub(crate) fn new(queues: Vec<Box<dyn Queue>>, pool: &BufPool) -> Engine {
        let lane = |mut queue: Box<dyn Queue>| {
            queue.register(pool);
            Lane {
                piece: piece_bytes(queue.info()),
                backlog: VecDeque::new(),
                stirred: false,
                queue,
            }
        };
        Engine {
            lanes: queues.into_iter().map(lane).collect(),
            jobs: Vec::new(),
            free: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Bytes of each buffer, by export.
    pub(crate) fn pieces(&self) -> Vec<usize> {
        self.lanes.iter().map(|lane| lane.piece).collect()
    }

    /// What to wait for, by export.
    pub(crate) fn wait_fds(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let fds = self.lanes.iter().map(|lane| lane.queue.wait_fd());
        fds.enumerate()
            .filter_map(|(export, fd)| Some((export, fd?)))
    }

    /// The descriptor of an export became readable.
    pub(crate) fn stir(&mut self, export: usize) {
        if let Some(lane) = self.lanes.get_mut(export) {
            lane.stirred = true;
        }
    }

    /// Whether [`Engine::turn`] may have something to give without waiting.
    pub(crate) fn is_stirred(&self) -> bool {
        self.lanes.iter().any(|lane| lane.stirred)
    }

    /// Whether no job is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.jobs.len()
    }

    /// Hands a job to its device; one that asks nothing of the device comes back at once.
    pub(crate) fn begin(&mut self, connection: u64, export: usize, job: Job) -> Option<Finished> {
        let Job {
            request,
            bufs,
            grant,
        } = job;
        let (offset, len) = (request.offset, u64::from(request.len));
        let info = self.lanes[export].queue.info();
        let (most, piece) = (info.max_transfer as usize, self.lanes[export].piece);
        let fua = request.fua();
        let mut then_flush = false;
        let ops = match request.command {
            Command::Flush => vec![Op::Flush],
            _ if len == 0 => Vec::new(),
            Command::Read => split(bufs, offset, most, piece, |offset, bufs| Op::Read {
                offset,
                bufs,
            }),
            Command::Write => split(bufs, offset, most, piece, |offset, bufs| Op::Write {
                offset,
                bufs,
                fua,
            }),
            Command::Trim => {
                then_flush = fua;
                vec![Op::Discard { offset, len }]
            }
            Command::WriteZeroes => vec![Op::WriteZeroes {
                offset,
                len,
                fua,
                unmap: !request.no_hole(),
            }],
            Command::Disconnect | Command::Unknown(_) => Vec::new(),
        };
        if ops.is_empty() {
            return Some(Finished {
                connection,
                request,
                grant,
                error: None,
                data: Vec::new(),
            });
        }
        let tag = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            self.jobs.len() - 1
        });
        self.jobs[tag] = Some(Pending {
            connection,
            export,
            request,
            grant,
            left: ops.len(),
            error: None,
            data: Vec::new(),
            then_flush,
        });
        for op in ops {
            let tag = tag as u64;
            self.lanes[export].submit(Request { tag, op });
        }
        None
    }

    /// Kicks and reaps once the queues where something may have happened; adds the jobs that are
    /// complete.
    ///
    /// # Errors
    /// A queue is beyond use.
    pub(crate) fn turn(&mut self, finished: &mut Vec<Finished>) -> block::Result<()> {
        for export in 0..self.lanes.len() {
            let lane = &mut self.lanes[export];
            if !lane.stirred {
                continue;
            }
            lane.refill();
            let mut done = std::mem::take(&mut self.done);
            let count = lane.queue.reap(Wait::Poll, &mut done)?;
            // "Before sleeping on it, kick, and reap once": until a reap gives nothing.
            lane.stirred =
                lane.queue.in_flight() > 0 && (count > 0 || lane.queue.wait_fd().is_none());
            for completion in done.drain(..) {
                finished.extend(self.settle(completion));
            }
            self.done = done;
        }
        Ok(())
    }

    fn settle(&mut self, completion: Completion) -> Option<Finished> {
        let Completion { tag, op, result } = completion;
        let tag = tag as usize;
        let slot = self.jobs.get_mut(tag)?;
        let pending = slot.as_mut()?;
        pending.left -= 1;
        if let Err(e) = &result {
            tracing::debug!("{e}");
            pending.error = pending.error.or(Some(errno(e)));
        }
        let kind = op.kind();
        if let (Op::Read { offset, bufs }, Ok(())) = (op, &result) {
            pending.data.push((offset, bufs));
        }
        let lane = &mut self.lanes[pending.export];
        // A place in the queue came free.
        lane.stirred |= !lane.backlog.is_empty();
        if pending.left > 0 {
            return None;
        }
        if pending.then_flush && kind != OpKind::Flush && pending.error.is_none() {
            pending.left = 1;
            lane.submit(Request {
                tag: tag as u64,
                op: Op::Flush,
            });
            return None;
        }
        let mut pending = slot.take()?;
        self.free.push(tag);
        if pending.error.is_some() {
            // Back to the pool before the grant is.
            pending.data.clear();
        }
        pending.data.sort_unstable_by_key(|(offset, _)| *offset);
        Some(Finished {
            connection: pending.connection,
            request: pending.request,
            grant: pending.grant,
            error: pending.error,
            data: pending.data,
        })
    }

    /// Makes everything durable that was written through any queue; for the end, when nothing is
    /// under way.
    ///
    /// # Errors
    /// The first that a device gives; the others are flushed all the same.
    pub(crate) fn flush(&mut self) -> block::Result<()> {
        let mut outcome = Ok(());
        for lane in &mut self.lanes {
            if lane.queue.info().read_only {
                continue;
            }
            let name = lane.queue.info().name.clone();
            let op = Op::Flush;
            let one: block::Result<()> = match lane.queue.submit(Request { tag: 0, op }) {
                Ok(()) => {
                    let mut done = Vec::new();
                    lane.queue
                        .reap(Wait::Block, &mut done)
                        .and_then(|_| done.into_iter().map(|c| c.result).collect())
                }
                Err(_) => Err(Error::new(
                    ErrorKind::Busy,
                    name,
                    "the queue takes no flush",
                )),
            };
            if let Err(e) = one {
                tracing::error!("the last flush failed: {e}");
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    }
}

impl Lane {
    fn submit(&mut self, request: Request) {
        self.stirred = true;
        if !self.backlog.is_empty() {
            self.backlog.push_back(request);
        } else if let Err(request) = self.queue.submit(request) {
            self.backlog.push_back(request);
        }
    }

    fn refill(&mut self) {
        while let Some(request) = self.backlog.pop_front() {
            if let Err(request) = self.queue.submit(request) {
                self.backlog.push_front(request);
                return;
            }
        }
    }
}

/// Groups the buffers of a request, `piece` bytes each, into operations of at most `most` bytes.
fn split(
    bufs: Bufs,
    offset: u64,
    most: usize,
    piece: usize,
    make: impl Fn(u64, Bufs) -> Op,
) -> Vec<Op> {
    if bufs.total_len() <= most {
        return vec![make(offset, bufs)];
    }
    let group = (most / piece).max(1);
    let mut bufs = bufs.into_vec().into_iter();
    let mut ops = Vec::new();
    let mut at = offset;
    loop {
        let part: Vec<Buf> = bufs.by_ref().take(group).collect();
        if part.is_empty() {
            return ops;
        }
        let len: usize = part.iter().map(|b| b.len()).sum();
        ops.push(make(at, part.into()));
        at += len as u64;
    }
}

/// The protocol has few errors; what has none of its own is an I/O error.
fn errno(error: &block::Error) -> Errno {
    match error.kind() {
        ErrorKind::ReadOnly | ErrorKind::Permission => Errno::Permission,
        ErrorKind::NoSpace => Errno::NoSpace,
        ErrorKind::OutOfRange
        | ErrorKind::Misaligned
        | ErrorKind::TooLarge
        | ErrorKind::Invalid => Errno::Invalid,
        ErrorKind::Unsupported => Errno::NotSupported,
        ErrorKind::Cancelled => Errno::Shutdown,
        ErrorKind::PathLost
        | ErrorKind::TimedOut
        | ErrorKind::Media
        | ErrorKind::Busy
        | ErrorKind::NotFound
        | ErrorKind::Io => Errno::Io,
    }
}

/// Whether the server can work with blocks of this size.
pub(crate) fn check(info: &DeviceInfo) -> block::Result<()> {
    let piece = piece_bytes(info);
    if piece == 0 || !piece.is_multiple_of(info.logical_block_size as usize) {
        let why = format!("blocks of {} bytes are too large", info.logical_block_size);
        return Err(Error::new(ErrorKind::Unsupported, &info.name, why));
    }
    Ok(())
}
