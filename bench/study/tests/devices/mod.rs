//! An in-memory device with a known cost: each request uses a set amount of its thread's CPU time.

use block::{
    BlockDevice, Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Result, Wait,
};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub struct Memory {
    pub info: DeviceInfo,
    pub shared: Arc<Shared>,
}

#[derive(Default)]
pub struct Shared {
    pub bytes: Mutex<Vec<u8>>,
    /// CPU time per read or write, in nanoseconds.
    pub burn_ns: u64,
    /// CPU time used so far, in nanoseconds.
    pub burned_ns: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub flushes: AtomicU64,
    /// Offsets and lengths in request order.
    pub log: Mutex<Vec<(u64, usize)>>,
    pub keep_log: bool,
    /// Writes succeed without an effect.
    pub forget_writes: bool,
    /// Number of the request that fails, counted from 1; 0: none.
    pub fail_at: u64,
    pub requests: AtomicU64,
    /// Number of a request, counted from 1, and its extra duration.
    pub stall: Option<(u64, std::time::Duration)>,
}

impl Memory {
    pub fn new(size: usize, shared: Shared) -> Memory {
        *shared.bytes.lock().unwrap() = vec![0; size];
        Memory {
            info: DeviceInfo {
                name: "memory".into(),
                wwid: "memory".into(),
                size: size as u64,
                logical_block_size: 512,
                optimal_io_size: 65536,
                max_transfer: 1 << 20,
                volatile_write_cache: false,
                read_only: false,
                discard: false,
                numa_node: None,
            },
            shared: Arc::new(shared),
        }
    }
}

impl BlockDevice for Memory {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(MemoryQueue {
            info: self.info.clone(),
            shared: Arc::clone(&self.shared),
            waiting: VecDeque::new(),
        }))
    }
}

struct MemoryQueue {
    info: DeviceInfo,
    shared: Arc<Shared>,
    waiting: VecDeque<Request>,
}

impl Queue for MemoryQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        8
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.waiting.len() == self.capacity() {
            return Err(request);
        }
        self.waiting.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, _: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let count = self.waiting.len();
        for mut request in self.waiting.drain(..) {
            let result = self
                .info
                .check(&request.op)
                .and_then(|()| self.shared.carry_out(&mut request.op));
            done.push(Completion {
                tag: request.tag,
                op: request.op,
                result,
            });
        }
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Shared {
    fn carry_out(&self, op: &mut Op) -> Result<()> {
        let number = self.requests.fetch_add(1, Relaxed) + 1;
        if let Some((_, long)) = self.stall.filter(|(at, _)| *at == number) {
            std::thread::sleep(long);
        }
        if number == self.fail_at {
            return Err(Error::new(ErrorKind::Media, "memory", "asked to fail").in_op(op));
        }
        if let (true, Some((offset, len))) = (self.keep_log, op.range()) {
            self.log.lock().unwrap().push((offset, len as usize));
        }
        match op {
            Op::Read { offset, bufs } => {
                self.reads.fetch_add(1, Relaxed);
                let bytes = self.bytes.lock().unwrap();
                let mut at = *offset as usize;
                for buf in bufs.iter_mut() {
                    let len = buf.len();
                    buf.copy_from_slice(&bytes[at..at + len]);
                    at += len;
                }
            }
            Op::Write { offset, bufs, .. } => {
                self.writes.fetch_add(1, Relaxed);
                let mut bytes = self.bytes.lock().unwrap();
                let mut at = *offset as usize;
                for buf in bufs.iter().filter(|_| !self.forget_writes) {
                    bytes[at..at + buf.len()].copy_from_slice(buf);
                    at += buf.len();
                }
            }
            Op::Flush => {
                self.flushes.fetch_add(1, Relaxed);
                return Ok(());
            }
            _ => unreachable!("a run reads, writes and flushes"),
        }
        self.burned_ns.fetch_add(burn(self.burn_ns), Relaxed);
        Ok(())
    }
}

/// Uses at least `ns` of this thread's CPU time and returns the exact amount.
fn burn(ns: u64) -> u64 {
    let now = || {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    };
    let start = now();
    loop {
        let used = now() - start;
        if used >= ns {
            return used;
        }
    }
}
