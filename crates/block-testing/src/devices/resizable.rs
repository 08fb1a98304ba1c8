//! A device that shows the start of another one, and more of it later.

use block::{
    BlockDevice, BufPool, Completion, DeviceInfo, GrowingInfo, Queue, Request, Result, Wait,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A device whose storage changes its size, as that of a LUN on an array.
#[derive(Clone)]
pub struct Resizable {
    lower: Arc<dyn BlockDevice>,
    info: Arc<GrowingInfo>,
    storage: Arc<AtomicU64>,
}

impl Resizable {
    /// Creates a device with the first `size` bytes of `lower`.
    pub fn new(lower: Arc<dyn BlockDevice>, size: u64) -> Resizable {
        let info = DeviceInfo {
            size,
            ..lower.info().clone()
        };
        Resizable {
            lower,
            info: Arc::new(info.into()),
            storage: Arc::new(AtomicU64::new(size)),
        }
    }

    /// Sets the size of the storage, which is at most that of the lower device. The device uses it after
    /// [`BlockDevice::update_size`].
    pub fn resize(&self, size: u64) {
        assert!(size <= self.lower.info().size);
        self.storage.store(size, SeqCst);
    }
}

impl BlockDevice for Resizable {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn update_size(&self) -> Result<u64> {
        self.info.grow(self.storage.load(SeqCst))
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(ResizableQueue {
            lower: self.lower.queue()?,
            info: Arc::clone(&self.info),
            refused: Vec::new(),
        }))
    }
}

struct ResizableQueue {
    lower: Box<dyn Queue>,
    info: Arc<GrowingInfo>,
    refused: Vec<Completion>,
}

impl Queue for ResizableQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight() + self.refused.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        match self.info.check(&request.op) {
            Ok(()) => self.lower.submit(request),
            result => {
                let Request { tag, op } = request;
                self.refused.push(Completion { tag, op, result });
                Ok(())
            }
        }
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let own = self.refused.len();
        done.append(&mut self.refused);
        let wait = if own > 0 { Wait::Poll } else { wait };
        Ok(own + self.lower.reap(wait, done)?)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}
