//! A pager whose files are parts of one device, so that the small devices of `block` can hold the
//! files of a cache.
#![allow(dead_code, reason = "each test uses a part of it")]

use block::{
    BlockDevice, Blocking, BufPool, Completion, Error, ErrorKind, Op, Queue, Result, Wait,
};
use cache::{FileId, FileRequest, Pager, PagerInfo, PagerQueue};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Files of `span` bytes side by side on a device.
pub struct Parts {
    device: Arc<dyn BlockDevice>,
    info: PagerInfo,
    span: u64,
    /// Pages cannot become dirty: the pager has no space.
    pub full: AtomicBool,
}

impl Parts {
    pub fn new(device: Arc<dyn BlockDevice>, span: u64) -> Parts {
        let below = device.info();
        let info = PagerInfo {
            name: below.name.clone(),
            block_size: below.logical_block_size,
            optimal_io_size: below.optimal_io_size,
            max_transfer: below.max_transfer,
            numa_node: None,
            read_only: false,
            discard: below.discard,
            flushes_all: false,
        };
        Parts {
            device,
            info,
            span,
            full: AtomicBool::new(false),
        }
    }

    /// Zeroes the file from `offset` on, as a file system does when a file is truncated.
    pub fn forget_from(&self, file: FileId, offset: u64) {
        let from = offset.next_multiple_of(4096);
        let mut blocking = Blocking::open(&*self.device).unwrap();
        while blocking
            .write_zeroes(file.0 * self.span + from, self.span - from)
            .is_err()
        {}
    }
}

impl Pager for Parts {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn queue(&self) -> Result<Box<PagerQueue>> {
        Ok(Box::new(PartsQueue {
            info: self.info.clone(),
            queue: self.device.queue()?,
            span: self.span,
        }))
    }

    fn will_write(&self, _: FileId, _: Range<u64>) -> Result<()> {
        if self.full.load(Relaxed) {
            Err(Error::new(ErrorKind::NoSpace, &self.info.name, ""))
        } else {
            Ok(())
        }
    }
}

struct PartsQueue {
    info: PagerInfo,
    queue: Box<dyn Queue>,
    span: u64,
}

impl Queue<FileRequest, PagerInfo> for PartsQueue {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn submit(&mut self, request: FileRequest) -> std::result::Result<(), FileRequest> {
        let FileRequest { file, mut request } = request;
        let base = file.0 * self.span;
        shift(&mut request.op, |at| at + base);
        self.queue.submit(request).map_err(|mut request| {
            shift(&mut request.op, |at| at - base);
            FileRequest { file, request }
        })
    }

    fn kick(&mut self) -> Result<()> {
        self.queue.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        self.queue.reap(wait, done)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.queue.register(pool);
    }
}

fn shift(op: &mut Op, by: impl Fn(u64) -> u64) {
    match op {
        Op::Read { offset, .. }
        | Op::Write { offset, .. }
        | Op::Discard { offset, .. }
        | Op::WriteZeroes { offset, .. } => *offset = by(*offset),
        Op::Flush => {}
    }
}

/// Waits for an event that must happen.
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(30), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a number"))
}
