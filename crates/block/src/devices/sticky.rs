//! A device that never takes a failed flush back.
//!
//! A disk, and the kernel in front of a file, report lost writes to one flush and answer the next one
//! well, although nothing was written again. With several clients the second answer goes to somebody
//! whose data is lost.
//!
//! **Invariant:** once a flush, or the flush that is part of a write with FUA, has failed, no later
//! flush on any queue succeeds.

use crate::{
    AccessSign, BlockDevice, BufPool, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request,
    Result, Wait,
};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// A device whose flushes fail for good after the first failure.
pub struct StickyFlush {
    lower: Arc<dyn BlockDevice>,
    failed: Arc<OnceLock<Error>>,
}

impl StickyFlush {
    /// Over `lower`, which has lost nothing yet.
    pub fn new(lower: Arc<dyn BlockDevice>) -> StickyFlush {
        StickyFlush {
            lower,
            failed: Arc::default(),
        }
    }

    /// The first failure, in a cell that fills when it happens.
    pub fn failure(&self) -> Arc<OnceLock<Error>> {
        Arc::clone(&self.failed)
    }
}

impl BlockDevice for StickyFlush {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(StickyQueue {
            lower: self.lower.queue()?,
            failed: Arc::clone(&self.failed),
        }))
    }
}

struct StickyQueue {
    lower: Box<dyn Queue>,
    failed: Arc<OnceLock<Error>>,
}

impl StickyQueue {
    fn judge(&self, op: &Op, result: &mut Result<()>) {
        let flushes = matches!(op, Op::Flush);
        let durable = matches!(
            op,
            Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. }
        );
        match result {
            Err(error) if flushes || durable && may_have_flushed(error.kind()) => {
                // Another queue may have been first.
                let _ = self.failed.set(error.clone());
            }
            Ok(()) if flushes => {
                if let Some(first) = self.failed.get() {
                    let why = format!(
                        "a flush failed before ({first}), so data that was acknowledged may be lost"
                    );
                    *result = Err(Error::new(first.kind(), &self.info().name, why).in_op(op));
                }
            }
            _ => {}
        }
    }
}

/// Whether a write with FUA that ended like this may have been a write and a flush that failed. The
/// other kinds refuse the write itself, and nothing that was written before is in doubt.
fn may_have_flushed(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::OutOfRange
            | ErrorKind::Misaligned
            | ErrorKind::TooLarge
            | ErrorKind::ReadOnly
            | ErrorKind::NoSpace
            | ErrorKind::Unsupported
            | ErrorKind::Invalid
            | ErrorKind::Permission
    )
}

impl Queue for StickyQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight()
    }

    fn room(&self) -> usize {
        self.lower.room()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        self.lower.submit(request)
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let had = done.len();
        let reaped = self.lower.reap(wait, done);
        for completion in &mut done[had..] {
            self.judge(&completion.op, &mut completion.result);
        }
        reaped
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn holds_answers(&self) -> bool {
        self.lower.holds_answers()
    }

    fn take_back(&mut self, tag: u64) -> Option<Request> {
        self.lower.take_back(tag)
    }

    fn late(&mut self, tags: &mut Vec<u64>) {
        self.lower.late(tags);
    }

    fn access_sign(&mut self) -> Option<AccessSign> {
        self.lower.access_sign()
    }

    fn lost(&self) -> Option<&str> {
        self.lower.lost()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, ErrorDevice, Failure, Mem, OpKind};

    #[test]
    fn conforms() {
        crate::conformance::run(&|| Arc::new(StickyFlush::new(Arc::new(Mem::new(16 << 20, 512)))));
    }

    #[test]
    fn after_a_flush_that_failed_no_queue_flushes_well_again() {
        let (device, errors) = ErrorDevice::new(Arc::new(Mem::new(1 << 20, 512)));
        let sticky = StickyFlush::new(Arc::new(device));
        let (mut one, mut two) = (
            Blocking::open(&sticky).unwrap(),
            Blocking::open(&sticky).unwrap(),
        );
        one.flush().unwrap();
        errors.set(Some(Failure::nth(1, ErrorKind::Media).of(OpKind::Flush)));
        assert!(one.flush().is_err() && sticky.failure().get().is_some());
        for client in [&mut two, &mut one] {
            client.write_at(0, &[1; 512]).unwrap();
            assert_eq!(client.flush().unwrap_err().kind(), ErrorKind::Media);
        }
        assert!(Blocking::open(&sticky).unwrap().flush().is_err());
    }
}
