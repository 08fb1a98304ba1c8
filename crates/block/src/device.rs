//! The traits [`BlockDevice`] and [`Queue`].

use crate::{BufPool, Completion, Error, ErrorKind, Op, Request, Result};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Access to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Writes are refused.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

impl Access {
    /// Chooses [`Access::ReadOnly`] if `read_only` is set.
    pub fn read_only_if(read_only: bool) -> Access {
        if read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        }
    }

    /// Checks whether writes are refused.
    pub fn is_read_only(self) -> bool {
        self == Access::ReadOnly
    }
}

/// Properties of a device. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name in messages and statistics, for example the path of the file.
    pub name: String,
    /// World-wide ID: equal for two paths to the same disk, different for two disks. Never empty.
    pub wwid: String,
    /// Size of the device, a multiple of `logical_block_size`.
    pub size: u64,
    /// Required multiple of offsets, lengths and each buffer's length. A power of two, at least
    /// 512.
    pub logical_block_size: u32,
    /// Preferred transfer length.
    pub optimal_io_size: u32,
    /// Longest read or write. A multiple of `logical_block_size`.
    pub max_transfer: u32,
    /// Writes may stay in volatile memory until a flush or FUA.
    pub volatile_write_cache: bool,
    /// Writes fail with [`ErrorKind::ReadOnly`].
    pub read_only: bool,
    /// [`Op::Discard`] is supported; otherwise it fails with [`ErrorKind::Unsupported`].
    pub discard: bool,
    /// NUMA node of the device, where known.
    pub numa_node: Option<u32>,
}

impl DeviceInfo {
    /// Checks whether the device accepts `op`: range, alignment, length, and supported operations.
    /// Every device calls this before it acts, so that all devices report the same errors.
    pub fn check(&self, op: &Op) -> Result<()> {
        let refuse = |kind| Err(Error::new(kind, &self.name, "").in_op(op));
        if self.read_only && op.changes_data() {
            return refuse(ErrorKind::ReadOnly);
        }
        if !self.discard && matches!(op, Op::Discard { .. }) {
            return refuse(ErrorKind::Unsupported);
        }
        let Some((offset, len)) = op.range() else {
            return Ok(());
        };
        let block = u64::from(self.logical_block_size);
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return refuse(ErrorKind::Misaligned);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => {}
            _ => return refuse(ErrorKind::OutOfRange),
        }
        if let Op::Read { bufs, .. } | Op::Write { bufs, .. } = op {
            if len > u64::from(self.max_transfer) {
                return refuse(ErrorKind::TooLarge);
            }
            if bufs.iter().any(|b| !(b.len() as u64).is_multiple_of(block)) {
                return refuse(ErrorKind::Misaligned);
            }
        }
        Ok(())
    }
}

/// A block device: a path to a disk, or a layer over another device.
pub trait BlockDevice: Send + Sync {
    /// Returns the properties of the device. Only the size may change while it is open, and only
    /// increase: when [`BlockDevice::update_size`] finds more storage.
    fn info(&self) -> &DeviceInfo;

    /// Finds the current size of the storage, and adopts it if it has increased: requests to the
    /// new part are accepted from then on, also by queues that are open. Returns the size of the
    /// device then.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: the size of the device is fixed while it is open.
    /// [`ErrorKind::Media`]: the storage has become smaller. The storage does not report its size.
    fn update_size(&self) -> Result<u64> {
        let why = "its size is fixed while it is open";
        Err(Error::new(ErrorKind::Unsupported, &self.info().name, why))
    }

    /// Opens a queue for the calling thread. Any number of queues may be open, on any threads.
    fn queue(&self) -> Result<Box<dyn Queue>>;
}

impl<D: BlockDevice + ?Sized> BlockDevice for std::sync::Arc<D> {
    fn info(&self) -> &DeviceInfo {
        (**self).info()
    }

    fn update_size(&self) -> Result<u64> {
        (**self).update_size()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        (**self).queue()
    }
}

/// How long [`Queue::reap`] waits for a first completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Does not wait.
    Poll,
    /// Waits for a completion. Returns at once when nothing is in flight.
    Block,
    /// Waits for a completion, at most this long. A deadline past the clock's range waits
    /// indefinitely.
    AtMost(Duration),
}

impl Wait {
    /// Computes the deadline of a wait that begins now; `None`: no deadline, or one beyond the
    /// clock's range.
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Wait::AtMost(time) => Instant::now().checked_add(time),
            Wait::Poll | Wait::Block => None,
        }
    }
}

/// A queue of requests to a device, used by one thread. `R`: kind of request, where one names more
/// than a range of the device; `I`: properties of the storage behind the queue. A completion is the
/// same for all kinds.
///
/// ```text
///            submit              kick or reap               reap
///  caller ───────────► staged ───────────────► in flight ─────────► caller
/// ```
///
/// * Every request that [`Queue::submit`] accepted returns through [`Queue::reap`] exactly once. A
///   request that the device refuses (range, alignment, read-only) returns with an error.
/// * Requests in flight have no order among themselves. A [`Op::Flush`] covers the writes whose
///   completions were *reaped* before it was submitted.
/// * Dropping a queue with requests in flight waits until the device no longer uses their buffers;
///   the requests may or may not have been carried out.
pub trait Queue<R = Request, I = DeviceInfo> {
    /// Describes the storage behind the queue.
    fn info(&self) -> &I;

    /// Returns the maximum number of requests that are submitted and not yet reaped.
    fn capacity(&self) -> usize;

    /// Returns the number of requests that are submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Returns the number of requests worth submitting now. Less than [`Queue::submit`] accepts
    /// when the peer has reported that its own queue is full, or has asked for a pause.
    fn room(&self) -> usize {
        self.capacity().saturating_sub(self.in_flight())
    }

    /// Takes a request, or returns it when `capacity` requests are in flight; the caller then reaps
    /// first. Does not block. May leave the request staged until [`Queue::kick`].
    fn submit(&mut self, request: R) -> std::result::Result<(), R>;

    /// Passes all staged requests to the device as one batch. Does not block.
    ///
    /// # Errors
    /// Fatal: the queue must be dropped. Errors of requests are in their completions.
    fn kick(&mut self) -> Result<()>;

    /// Kicks, then appends completions to `done` and returns their number.
    ///
    /// # Errors
    /// Fatal: the queue must be dropped. Errors of requests are in their completions.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize>;

    /// Returns a descriptor that becomes readable when [`Queue::reap`] has a completion, so that a
    /// caller can wait for it and for a socket at the same time. `None`: the next reap returns
    /// everything in flight. The descriptor stays the same while the queue is open. Before sleeping
    /// on it, kick, and reap once with [`Wait::Poll`]: a completion that a layer already holds does
    /// not make the descriptor readable.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Reports whether a reap may return completions that do not make [`Queue::wait_fd`] readable.
    /// With it a caller with many queues knows which of them need a reap after a kick. Makes no
    /// system call.
    fn holds_answers(&self) -> bool {
        true
    }

    /// Announces that many requests will use buffers of `pool`; a ring registers its memory with
    /// the kernel. Must be called before the first submit.
    fn register(&mut self, pool: &BufPool) {
        let _ = pool;
    }
}
