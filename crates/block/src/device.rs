//! The two traits of the waist.

use crate::{AccessSign, BufPool, Completion, Error, ErrorKind, Op, Request, Result};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What a device says about itself. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name for messages and statistics, for example the path of the file.
    pub name: String,
    /// World-wide ID: equal for two paths to one disk, different for two disks. Never empty.
    pub wwid: String,
    /// Size of the device, a multiple of `logical_block_size`.
    pub size: u64,
    /// Offsets, lengths and each buffer are multiples of this. A power of two, 512 or more.
    pub logical_block_size: u32,
    /// A length at which transfers run well.
    pub optimal_io_size: u32,
    /// Longest read or write. A multiple of `logical_block_size`.
    pub max_transfer: u32,
    /// Writes may sit in volatile memory until a flush or FUA.
    pub volatile_write_cache: bool,
    /// Writes end in [`ErrorKind::ReadOnly`].
    pub read_only: bool,
    /// [`Op::Discard`] does something; where it does not, it ends in [`ErrorKind::Unsupported`].
    pub discard: bool,
    /// NUMA node the device is attached to, where known.
    pub numa_node: Option<u32>,
}

impl DeviceInfo {
    /// Whether `op` may be carried out at all. Every device checks with this before it acts, so
    /// that all of them answer alike.
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

/// Something with blocks: a path to a disk, or a layer over another device.
pub trait BlockDevice: Send + Sync {
    /// What the device is. Does not change while it is open.
    fn info(&self) -> &DeviceInfo;

    /// Opens a queue for the calling thread. Any number may be open at once, on any threads.
    fn queue(&self) -> Result<Box<dyn Queue>>;
}

impl<D: BlockDevice + ?Sized> BlockDevice for std::sync::Arc<D> {
    fn info(&self) -> &DeviceInfo {
        (**self).info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        (**self).queue()
    }
}

/// How long [`Queue::reap`] waits for a first completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// Until there is one. Returns at once when nothing is in flight.
    Block,
    /// Until there is one, or this much time has passed. Any duration will do: one that reaches
    /// beyond what a clock can tell means for ever.
    AtMost(Duration),
}

/// One thread's way to a device.
///
/// ```text
///            submit              kick or reap               reap
///  caller ───────────► staged ───────────────► in flight ─────────► caller
/// ```
///
/// * Every request that [`Queue::submit`] took comes back through [`Queue::reap`] exactly once.
///   What a device refuses (range, alignment, read-only) comes back too, with an error.
/// * Requests in flight are not ordered among themselves. A [`Op::Flush`] covers the writes whose
///   completions were *reaped* before it was submitted.
/// * Dropping a queue with requests in flight waits until the device has let go of their buffers;
///   the requests may or may not have been carried out.
pub trait Queue {
    /// The device behind the queue.
    fn info(&self) -> &DeviceInfo;

    /// Requests that may be submitted and not yet reaped.
    fn capacity(&self) -> usize;

    /// Requests that are submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Requests that are worth submitting now. Fewer than [`Queue::submit`] takes where the other
    /// side has said that its own queue is full, or that it wants to be left alone for a while.
    fn room(&self) -> usize {
        self.capacity().saturating_sub(self.in_flight())
    }

    /// Takes a request; gives it back when `capacity` requests are in flight, and then the caller
    /// reaps first. Does not block. May leave the request staged until [`Queue::kick`].
    fn submit(&mut self, request: Request) -> std::result::Result<(), Request>;

    /// Hands what is staged to the device, as one batch. Does not block.
    ///
    /// # Errors
    /// The queue is beyond use. Errors of requests come with their completions.
    fn kick(&mut self) -> Result<()>;

    /// Kicks, then moves completions to the end of `done` and says how many.
    ///
    /// # Errors
    /// The queue is beyond use. Errors of requests come with their completions.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize>;

    /// A descriptor that becomes readable when [`Queue::reap`] has something to give, so that a
    /// caller can wait for it beside a socket. `None`: everything in flight comes with the next
    /// reap. It is the same for as long as the queue is open. Before sleeping on it, kick, and reap
    /// once with [`Wait::Poll`]: what a layer holds ready by itself does not make it readable.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether a reap may give something that does not make [`Queue::wait_fd`] readable. Tells who
    /// has many queues which of them need a reap after a kick; costs no system call.
    fn holds_answers(&self) -> bool {
        true
    }

    /// Takes back a request in flight that the other side has left unanswered, so that it can go
    /// another way. Its answer, should it come after all, is thrown away and touches no buffer. The
    /// other side may still carry it out; [`Queue::late`] says when that is settled.
    ///
    /// `None`: no request with this tag is in flight, or the device holds its memory until it is done
    /// (a kernel ring), and then the completion comes as ever.
    fn take_back(&mut self, tag: u64) -> Option<Request> {
        let _ = tag;
        None
    }

    /// Moves the tags of requests that were taken back, and have been answered since, to the end of
    /// `tags`. Looks only at what [`Queue::reap`] has read.
    fn late(&mut self, tags: &mut Vec<u64>) {
        let _ = tags;
    }

    /// What the other side has said about access to the unit since this was last asked. Looks only at
    /// what [`Queue::reap`] has read.
    fn access_sign(&mut self) -> Option<AccessSign> {
        None
    }

    /// Why the other side is gone for good, once that is known: everything submitted from now on ends
    /// in [`crate::ErrorKind::PathLost`]. Looks only at what [`Queue::reap`] has read.
    fn lost(&self) -> Option<&str> {
        None
    }

    /// A hint that buffers of `pool` will come often; a ring registers its memory with the kernel.
    /// Called before the first submit.
    fn register(&mut self, pool: &BufPool) {
        let _ = pool;
    }
}
