//! Requests in the device queues of a worker, and their buffers.

use crate::kept::Kept;
use crate::request::Taken;
use crate::session::Session;
use block::{Backlog, Buf, BufPool, Bufs, Completion, Op, OpKind, Queue, Request, Wait};
use nbd_proto::{Command, Errno};
use slab::Slab;
use std::io;
use std::sync::Arc;

/// Longest payload buffer, in bytes: a 64 KiB or 128 KiB request fits one.
const BUF_BYTES: usize = 128 * 1024;
/// Payload buffers of a worker, in bytes: twice the largest request.
const POOL_BYTES: usize = 64 << 20;
/// Payload buffers reserved for connections that hold none, in bytes.
const RESERVE_BYTES: usize = 16 << 20;
/// Maximum share of the reserve for one connection, in bytes.
pub(crate) const SHARE_BYTES: usize = 256 * 1024;
/// Longest accepted request, in bytes: the size that every server must accept from a client that
/// has received no limit ("Block size constraints").
pub(crate) const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Memory of one worker, in bytes: its payload buffers.
pub const WORKER_MEMORY_BYTES: usize = POOL_BYTES + RESERVE_BYTES;

const _: () = assert!(REQUEST_BYTES_MAX as usize <= POOL_BYTES / 2);

/// A client request that the device is working on.
pub(crate) struct Pending {
    pub(crate) connection: u64,
    pub(crate) request: Taken,
    /// Number of device operations that have not completed.
    left: usize,
    pub(crate) error: Option<Errno>,
    /// Buffers of a read, by the offset of their operation.
    pub(crate) data: Vec<(u64, Bufs)>,
    /// Submit a flush once the operations are done (FUA on an operation without it).
    then_flush: bool,
    export: usize,
    /// Held until the request ends: a fence waits for this.
    _session: Option<Arc<Session>>,
}

/// Device queues of a worker, with the requests in flight.
pub(crate) struct Engine {
    pool: BufPool,
    /// Length of a buffer in bytes.
    piece: usize,
    /// Used in shares when `pool` is empty, by connections that hold no payload.
    reserve: BufPool,
    /// By export.
    queues: Vec<Backlog>,
    /// Keyed by the tag of their operations.
    pending: Slab<Pending>,
    done: Vec<Completion>,
    /// A completion has caused another request.
    followed: bool,
}

impl Engine {
    /// Creates an engine over unused queues, whose buffers a successor finds if they are `kept` for
    /// the worker of this number.
    ///
    /// # Errors
    /// The buffers cannot be kept.
    pub(crate) fn new(
        queues: Vec<Box<dyn Queue>>,
        kept: Option<(&Kept, usize)>,
    ) -> io::Result<Engine> {
        // No buffer exceeds the shortest maximum transfer of the devices, so a request is split
        // between buffers and never inside one.
        let limits = queues.iter().map(|queue| buf_bytes(queue.info()));
        let bytes = limits.min().unwrap_or(BUF_BYTES);
        let counts = [POOL_BYTES / bytes, RESERVE_BYTES / bytes];
        let [pool, reserve] = match kept {
            None => counts.map(|count| BufPool::new(bytes, count)),
            Some((kept, worker)) => kept.pools(worker, bytes, counts)?,
        };
        let mut queues: Vec<Backlog> = queues.into_iter().map(Backlog::new).collect();
        for queue in &mut queues {
            queue.register(&pool);
        }
        Ok(Engine {
            pool,
            piece: bytes,
            reserve,
            queues,
            pending: Slab::new(),
            done: Vec::new(),
            followed: false,
        })
    }

    /// Returns the pool and the reserve.
    pub(crate) fn pools(&self) -> [&BufPool; 2] {
        [&self.pool, &self.reserve]
    }

    /// Allocates buffers for `len` bytes that a predecessor had, from the pool and the reserve.
    pub(crate) fn take_again(&self, len: usize) -> Option<Vec<Buf>> {
        let from_pool = take_from(&self.pool, self.piece, len);
        from_pool.or_else(|| take_from(&self.reserve, self.piece, len))
    }

    /// Iterates over the queues by export.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &dyn Queue> {
        self.queues.iter().map(Backlog::queue)
    }

    /// Reports whether requests are in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Allocates buffers for `len` bytes, all or none. `empty_handed`: the connection holds no
    /// others.
    pub(crate) fn take(&self, len: usize, empty_handed: bool) -> Option<Vec<Buf>> {
        let from_pool = take_from(&self.pool, self.piece, len);
        if from_pool.is_none() && empty_handed && len <= SHARE_BYTES {
            return take_from(&self.reserve, self.piece, len);
        }
        from_pool
    }

    /// Submits a request to its device; returns an error if the request fails at once.
    pub(crate) fn begin(
        &mut self,
        connection: u64,
        export: usize,
        request: Taken,
        bufs: Vec<Buf>,
        session: Option<Arc<Session>>,
    ) -> Option<Errno> {
        let header = request.header;
        let info = self.queues[export].queue().info();
        let (offset, len) = (header.offset, u64::from(header.len));
        let block = u64::from(info.logical_block_size);
        let flush = matches!(header.command, Command::Flush);
        if !flush {
            if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
                return Some(Errno::Invalid);
            }
            if offset.checked_add(len).is_none_or(|end| end > info.size) {
                let writes = !matches!(header.command, Command::Read);
                // "NBD_CMD_WRITE": ENOSPC beyond the end; for reads EINVAL.
                return Some(if writes {
                    Errno::NoSpace
                } else {
                    Errno::Invalid
                });
            }
        }
        let max = info.max_transfer;
        let tag = self.pending.vacant_key() as u64;
        // No operation completes before the next poll, so the request is entered when its
        // operations have been counted.
        let mut left = 0;
        let mut start = |op| {
            left += 1;
            self.queues[export].submit(Request { tag, op });
        };
        match header.command {
            // No data to transfer: an empty read gets its answer from the device.
            Command::Read | Command::Write if bufs.is_empty() => start(Op::Read {
                offset,
                bufs: bufs.into(),
            }),
            Command::Read => split(bufs, offset, max, |offset, bufs| {
                start(Op::Read { offset, bufs });
            }),
            Command::Write => split(bufs, offset, max, |offset, bufs| {
                let fua = header.fua;
                start(Op::Write { offset, bufs, fua });
            }),
            Command::Flush => start(Op::Flush),
            Command::Trim => start(Op::Discard { offset, len }),
            Command::WriteZeroes => start(Op::WriteZeroes {
                offset,
                len,
                fua: header.fua,
                unmap: !header.no_hole,
            }),
            Command::Disconnect | Command::Unknown(_) => return Some(Errno::Invalid),
        }
        self.pending.insert(Pending {
            connection,
            request,
            left,
            error: None,
            data: Vec::new(),
            then_flush: header.fua && matches!(header.command, Command::Trim),
            export,
            _session: session,
        });
        None
    }

    /// Kicks and reaps all queues, and adds the completed requests to `finished`.
    pub(crate) fn poll(&mut self, finished: &mut Vec<Pending>) -> block::Result<()> {
        for export in 0..self.queues.len() {
            loop {
                let mut done = std::mem::take(&mut self.done);
                self.queues[export].reap(Wait::Poll, &mut done)?;
                let made_room = !done.is_empty();
                for completion in done.drain(..) {
                    finished.extend(self.complete(completion));
                }
                self.done = done;
                // A request submitted since, or a backlog that now has room, needs the kick of
                // another reap.
                let waits = made_room && self.queues[export].is_waiting();
                if !std::mem::take(&mut self.followed) && !waits {
                    break;
                }
            }
        }
        Ok(())
    }

    fn complete(&mut self, completion: Completion) -> Option<Pending> {
        let Completion { tag, op, result } = completion;
        let pending = self.pending.get_mut(tag as usize)?;
        pending.left -= 1;
        if let Err(e) = &result {
            tracing::warn!(name: "EVFS-0507", "{e}");
            pending.error = pending.error.or(Some(errno(e)));
        }
        let kind = op.kind();
        if let (Op::Read { offset, bufs }, Ok(())) = (op, &result) {
            pending.data.push((offset, bufs));
        }
        if pending.left > 0 {
            return None;
        }
        if pending.then_flush && kind != OpKind::Flush && pending.error.is_none() {
            pending.left = 1;
            let export = pending.export;
            self.queues[export].submit(Request { tag, op: Op::Flush });
            self.followed = true;
            return None;
        }
        let mut pending = self.pending.remove(tag as usize);
        pending.data.sort_by_key(|(offset, _)| *offset);
        Some(pending)
    }
}

/// Chooses the buffer size that a device accepts in one transfer: whole pages, unless a page is too
/// long.
fn buf_bytes(info: &block::DeviceInfo) -> usize {
    let most = (info.max_transfer as usize).min(BUF_BYTES);
    match most - most % block::BUF_ALIGN {
        0 => most,
        pages => pages,
    }
}

fn take_from(pool: &BufPool, size: usize, len: usize) -> Option<Vec<Buf>> {
    let mut bufs = Vec::with_capacity(len.div_ceil(size));
    let mut left = len;
    while left > 0 {
        let part = left.min(size);
        bufs.push(pool.take(part)?);
        left -= part;
    }
    Some(bufs)
}

/// Groups buffers into operations of at most `max` bytes, and starts each.
fn split(mut bufs: Vec<Buf>, offset: u64, max: u32, mut start: impl FnMut(u64, Bufs)) {
    if let [one] = &bufs[..]
        && one.len() <= max as usize
    {
        start(offset, bufs.remove(0).into());
        return;
    }
    let (mut group, mut len, mut at) = (Vec::new(), 0, offset);
    for buf in bufs {
        if len + buf.len() > max as usize && !group.is_empty() {
            start(at, std::mem::take(&mut group).into());
            at += len as u64;
            len = 0;
        }
        len += buf.len();
        group.push(buf);
    }
    if !group.is_empty() {
        start(at, group.into());
    }
}

/// Maps a device error to one of the few errors of the protocol; the default is an I/O error.
fn errno(error: &block::Error) -> Errno {
    use block::ErrorKind as K;
    match error.kind() {
        K::ReadOnly | K::Permission => Errno::Permission,
        K::NoSpace => Errno::NoSpace,
        K::OutOfRange | K::Misaligned | K::TooLarge | K::Invalid => Errno::Invalid,
        K::Unsupported => Errno::NotSupported,
        K::Cancelled => Errno::Shutdown,
        _ => Errno::Io,
    }
}
