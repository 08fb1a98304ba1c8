//! The io_uring of one queue.
//!
//! **Drop order.** The kernel may write to a buffer until the completion of its operation has been
//! reaped. [`Ring`]'s drop therefore waits for every operation in flight before the queue frees its
//! jobs and their buffers. The ring holds registered pools, so their memory outlives the
//! registration.

use crate::sys::Sys;
use block::{BufPool, Wait};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Index of the file among the ring's registered files.
const FILE: types::Fixed = types::Fixed(0);
/// `IORING_ENTER_GETEVENTS` of <linux/io_uring.h>: run completion work, and wait if requested.
const ENTER_GETEVENTS: u32 = 1;
/// Largest region to register: the kernel's limit for one buffer.
const REGISTERED_MAX: usize = 1 << 30;
/// Number of operations in the memory of a pool after which it is registered. Pinning the 8 MiB of
/// a pool takes milliseconds and saves a microsecond per operation; most queues are used for only a
/// few operations, all reads.
const USES_BEFORE_PINNED: u32 = 1000;

/// Checks whether this process may create a ring. The ring is closed again.
///
/// # Errors
/// The error of the system: the kernel has no io_uring, or a setting or a filter forbids it.
pub fn io_uring_usable() -> io::Result<()> {
    IoUring::<squeue::Entry>::builder().build(1).map(drop)
}

pub(crate) struct Ring {
    ring: IoUring,
    in_flight: usize,
    /// Pools in the order of the kernel's table.
    pools: Vec<Pool>,
    /// Whether the kernel's table has been created, with a slot for each pool.
    table: bool,
}

/// Pool whose buffers are used frequently.
struct Pool {
    memory: BufPool,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Not registered; number of operations so far.
    Used(u32),
    Registered,
    /// Refused by the kernel.
    Refused,
}

impl Ring {
    /// Creates a ring for `file` with room for `depth` operations.
    pub(crate) fn new(file: &File, depth: u32) -> io::Result<Ring> {
        // One thread submits, and completions do not interrupt it while it computes (5.19, 6.0); an
        // older kernel gets a plain ring. Deferring completions to the reap altogether
        // (DEFER_TASKRUN) is not used: a sleep on the ring's descriptor is then not ended by every
        // kind of completion. A child process would keep the ring, and with it the file and its lock.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .dontfork()
            .build(depth)
            .or_else(|_| IoUring::builder().dontfork().build(depth))?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Ring {
            ring,
            in_flight: 0,
            pools: Vec::new(),
            table: false,
        })
    }

    /// Adds a pool, which is registered once it has been used often. If the limit on locked memory
    /// forbids it, or the kernel is older than 5.19, I/O works without registration.
    pub(crate) fn register(&mut self, pool: &BufPool) {
        if !self.table && pool.region().1 <= REGISTERED_MAX {
            self.pools.push(Pool {
                memory: pool.clone(),
                state: State::Used(0),
            });
        }
    }

    fn pin(&mut self, index: usize) -> io::Result<()> {
        let submitter = self.ring.submitter();
        if !self.table {
            submitter.register_buffers_sparse(self.pools.len() as u32)?;
            self.table = true;
        }
        let (base, len) = self.pools[index].memory.region();
        let iov = libc::iovec {
            iov_base: base.as_ptr().cast(),
            iov_len: len,
        };
        // SAFETY: the region is mapped for as long as the pool lives, and the ring holds a clone of
        // the pool until it is dropped.
        unsafe { submitter.register_buffers_update(index as u32, &[iov], None) }
    }

    /// Finds the index of the registered pool that contains all of these bytes.
    fn fixed(&mut self, ptr: *const u8, len: u32) -> Option<u16> {
        let from = ptr as usize;
        let inside = |pool: &Pool| {
            let (base, size) = pool.memory.region();
            let base = base.as_ptr() as usize;
            from >= base && from + len as usize <= base + size
        };
        let index = self.pools.iter().position(inside)?;
        let state = match self.pools[index].state {
            State::Used(uses) if uses < USES_BEFORE_PINNED => State::Used(uses + 1),
            State::Used(_) => match self.pin(index) {
                Ok(()) => State::Registered,
                Err(e) => {
                    tracing::debug!("cannot register buffers with the ring: {e}");
                    State::Refused
                }
            },
            known => known,
        };
        self.pools[index].state = state;
        (state == State::Registered).then_some(index as u16)
    }

    /// Puts an operation on the submission queue. Returns `false` if that is full.
    pub(crate) fn push(&mut self, index: u64, sys: &Sys<'_>) -> bool {
        let entry = self.entry(sys).user_data(index);
        // SAFETY: the memory that the entry refers to belongs to the job `index`, which stays in
        // place until its completion has been reaped (see "Drop order").
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return false;
        }
        self.in_flight += 1;
        true
    }

    fn entry(&mut self, sys: &Sys<'_>) -> squeue::Entry {
        let flags = |fua: bool| if fua { libc::RWF_DSYNC } else { 0 };
        match *sys {
            Sys::Read { offset, ptr, len } => match self.fixed(ptr, len) {
                Some(pool) => opcode::ReadFixed::new(FILE, ptr, len, pool)
                    .offset(offset)
                    .build(),
                None => opcode::Read::new(FILE, ptr, len).offset(offset).build(),
            },
            Sys::Write {
                offset,
                ptr,
                len,
                fua,
            } => match self.fixed(ptr, len) {
                Some(pool) => opcode::WriteFixed::new(FILE, ptr, len, pool)
                    .offset(offset)
                    .rw_flags(flags(fua))
                    .build(),
                None => opcode::Write::new(FILE, ptr, len)
                    .offset(offset)
                    .rw_flags(flags(fua))
                    .build(),
            },
            Sys::ReadV { offset, iov } => {
                opcode::Readv::new(FILE, iov.as_ptr().cast(), iov.len() as u32)
                    .offset(offset)
                    .build()
            }
            Sys::WriteV { offset, iov, fua } => {
                opcode::Writev::new(FILE, iov.as_ptr().cast(), iov.len() as u32)
                    .offset(offset)
                    .rw_flags(flags(fua))
                    .build()
            }
            Sys::Sync => opcode::Fsync::new(FILE)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
            Sys::Fallocate { offset, len, mode } => opcode::Fallocate::new(FILE, len)
                .offset(offset)
                .mode(mode)
                .build(),
        }
    }

    /// Passes the submission queue to the kernel.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.enter(0, 0)
    }

    /// Submits, waits according to `wait`, and appends the results to `out`.
    pub(crate) fn reap(&mut self, wait: Wait, out: &mut Vec<(u64, i32)>) -> io::Result<()> {
        // Existing completions need no system call, unless there is something to submit.
        if self.ring.completion().is_empty() {
            match wait {
                Wait::Block => self.enter(1, ENTER_GETEVENTS)?,
                Wait::Poll => self.enter(0, ENTER_GETEVENTS)?,
                Wait::AtMost(time) => {
                    self.submit()?;
                    self.wait_readable(time)?;
                    self.enter(0, ENTER_GETEVENTS)?;
                }
            }
        } else {
            self.submit()?;
        }
        for completion in self.ring.completion() {
            self.in_flight -= 1;
            out.push((completion.user_data(), completion.result()));
        }
        Ok(())
    }

    fn wait_readable(&self, time: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let fd = self.fd();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn enter(&mut self, wanted: u32, flags: u32) -> io::Result<()> {
        let to_submit = {
            let mut queue = self.ring.submission();
            queue.sync();
            queue.len() as u32
        };
        // SAFETY: no argument is passed that the kernel would read.
        let entered = unsafe {
            self.ring
                .submitter()
                .enter::<libc::sigset_t>(to_submit, wanted, flags, None)
        };
        match entered {
            Ok(_) => Ok(()),
            // Interrupted, or the completion queue has to be drained first: the caller retries.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Returns a descriptor that is readable when there are completions.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor open as long as it lives, and so does the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut results = Vec::new();
        while self.in_flight > 0 {
            if let Err(e) = self.reap(Wait::Block, &mut results) {
                // The kernel may still own buffers of this queue, and there is no way to tell.
                // Ending the process is the only way to keep the kernel from writing to freed
                // memory.
                tracing::error!(
                    name: "EVFS-0411",
                    "io_uring failed with operations in flight, so the process ends: {e}"
                );
                std::process::abort();
            }
            results.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_pool_is_registered_when_it_was_used_often_and_its_bytes_stay_right() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        file.write_all_at(&[9; 4096], 4096).unwrap();
        let (used, unused) = (BufPool::new(4096, 2), BufPool::new(4096, 2));
        let mut ring = Ring::new(&file, 4).unwrap();
        ring.register(&unused);
        ring.register(&used);
        let mut buf = used.take(4096).unwrap();
        for n in 0..u64::from(USES_BEFORE_PINNED) + 10 {
            let page = n % 2;
            let read = Sys::Read {
                offset: page * 4096,
                ptr: buf.as_mut_ptr(),
                len: 4096,
            };
            assert!(ring.push(n, &read));
            let mut done = Vec::new();
            while done.is_empty() {
                ring.reap(Wait::Block, &mut done).unwrap();
            }
            assert_eq!(done, [(n, 4096)]);
            assert!(buf.iter().all(|b| *b == 7 + 2 * page as u8), "read {n}");
        }
        let states: Vec<bool> = ring
            .pools
            .iter()
            .map(|pool| pool.state == State::Registered)
            .collect();
        assert_eq!(states, [false, true]);
    }
}
