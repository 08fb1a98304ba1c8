//! Queue of one thread for page requests of a fileset.

use super::below;
use super::gather::{Carried, Gather};
use super::sync::{Inbox, SyncHandle};
use crate::data::content::Allocate;
use crate::data::plan::{Part, WritePlan, blocks_of};
use crate::error::{Error, Kind};
use crate::fileset::Fileset;
use crate::format::key::Ino;
use block::{BufPool, Completion, Op, Queue, Request, Wait};
use cache::{FileId, PagerInfo, PagerQueue};
use layer_cpu::{Layer, within};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// See [`crate::FsPager`].
pub(super) struct FsQueue {
    fileset: Fileset,
    name: String,
    below: Box<dyn Queue>,
    sync: SyncHandle,
    inbox: Arc<Inbox>,
    /// Epoll descriptor, readable when the device or the inbox has completions.
    both: OwnedFd,
    /// Requests of the caller by slot.
    running: Vec<Option<Running>>,
    /// Device requests by number, and the unused numbers.
    children: Vec<Option<Child>>,
    free: Vec<usize>,
    /// Device requests for which the device's queue has no room yet.
    waiting: VecDeque<Request>,
    ready: VecDeque<Completion>,
    /// Number of outstanding syncs.
    syncing: usize,
}

/// Request of the caller.
struct Running {
    tag: u64,
    ino: Ino,
    what: What,
    /// Number of outstanding device requests.
    left: usize,
    error: Option<block::Error>,
    /// Number returned by [`crate::space::Space::enter`].
    entered: u64,
}

enum What {
    Read {
        offset: u64,
        bufs: Gather,
        zeros: Vec<Range<u64>>,
    },
    Write {
        offset: u64,
        bufs: Gather,
        fua: bool,
        plan: WritePlan,
    },
    /// Waits for the journal; the operation is returned unchanged.
    Sync(Op),
}

/// Device request.
struct Child {
    of: usize,
    carried: Carried,
}

impl FsQueue {
    pub fn open(fileset: &Fileset, info: &PagerInfo, sync: SyncHandle) -> block::Result<FsQueue> {
        let below = fileset.fs.device.queue()?;
        let inbox = Inbox::new(&info.name)?;
        let failed = |e: rustix::io::Errno| block::Error::from_io(&info.name, e.into());
        let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for fd in [Some(inbox.fd()), below.wait_fd()].into_iter().flatten() {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&both, fd, data, epoll::EventFlags::IN).map_err(failed)?;
        }
        let capacity = below.capacity();
        Ok(FsQueue {
            fileset: fileset.clone(),
            name: info.name.clone(),
            below,
            sync,
            inbox: Arc::new(inbox),
            both,
            running: (0..capacity).map(|_| None).collect(),
            children: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            syncing: 0,
        })
    }

    /// Starts a request; if it completes immediately, adds it to `ready`.
    fn start(&mut self, slot: usize, ino: Ino, tag: u64, op: Op) {
        let space = Arc::clone(&self.fileset.fs.space);
        let entered = space.enter();
        let planned = self.plan(ino, op);
        let (what, parts) = match planned {
            Ok(planned) => planned,
            Err((op, error)) => {
                space.leave(entered, false);
                // The data of a removed file is not needed: the write counts as done.
                let unwanted = error.kind() == Kind::Stale && matches!(op, Op::Write { .. });
                let result = if unwanted {
                    Ok(())
                } else {
                    Err(below(&self.name, ino, error).in_op(&op))
                };
                self.ready.push_back(Completion { tag, op, result });
                return;
            }
        };
        self.running[slot] = Some(Running {
            tag,
            ino,
            what,
            left: 0,
            error: None,
            entered,
        });
        self.start_children(slot, &parts);
        if self.running[slot]
            .as_ref()
            .is_some_and(|running| running.left == 0)
        {
            self.end(slot);
        }
    }

    /// Determines the device I/O that a request needs.
    fn plan(&self, ino: Ino, op: Op) -> Result<(What, Vec<Part>), (Op, Error)> {
        let range = op.range();
        let blocks = match range {
            Some((offset, len)) => match blocks_of(offset, len) {
                Ok(blocks) => blocks,
                Err(error) => return Err((op, error)),
            },
            None => 0..0,
        };
        match op {
            Op::Read { offset, bufs } => match self.fileset.plan_read(ino, blocks) {
                Ok(plan) => {
                    let holes = plan.parts.iter().filter(|part| part.device.is_none());
                    let mut zeros: Vec<Range<u64>> = holes.map(|part| part.bytes.clone()).collect();
                    zeros.extend(plan.zeros);
                    let bufs = Gather::new(bufs);
                    let what = What::Read {
                        offset,
                        bufs,
                        zeros,
                    };
                    Ok((what, plan.parts))
                }
                Err(error) => Err((Op::Read { offset, bufs }, error)),
            },
            Op::Write { offset, bufs, fua } => match self.fileset.plan_write(ino, blocks) {
                Ok(plan) => {
                    let parts = plan.parts();
                    let bufs = Gather::new(bufs);
                    let what = What::Write {
                        offset,
                        bufs,
                        fua,
                        plan,
                    };
                    Ok((what, parts))
                }
                Err(error) => Err((Op::Write { offset, bufs, fua }, error)),
            },
            Op::Flush => Ok((What::Sync(Op::Flush), Vec::new())),
            Op::Discard { offset, len } | Op::WriteZeroes { offset, len, .. } => {
                let bytes = offset..offset + len;
                match self.fileset.allocate(ino, bytes, Allocate::Punch) {
                    Ok(_) => Ok((What::Sync(op), Vec::new())),
                    Err(error) => Err((op, error)),
                }
            }
        }
    }

    fn start_children(&mut self, slot: usize, parts: &[Part]) {
        let Some(running) = &mut self.running[slot] else {
            return;
        };
        let (bufs, write) = match &mut running.what {
            What::Read { bufs, .. } => (bufs, false),
            What::Write { bufs, .. } => (bufs, true),
            What::Sync(_) => return,
        };
        for part in parts {
            for (offset, carried, bufs) in bufs.lend(part, write) {
                let fua = false;
                let op = if write {
                    Op::Write { offset, bufs, fua }
                } else {
                    Op::Read { offset, bufs }
                };
                let number = self.free.pop().unwrap_or(self.children.len());
                if number == self.children.len() {
                    self.children.push(None);
                }
                self.children[number] = Some(Child { of: slot, carried });
                let tag = number as u64;
                self.waiting.push_back(Request { tag, op });
                running.left += 1;
            }
        }
    }

    /// Submits waiting device requests as far as the queue has room.
    fn submit_waiting(&mut self) {
        while let Some(request) = self.waiting.pop_front() {
            if let Err(request) = self.below.submit(request) {
                self.waiting.push_front(request);
                return;
            }
        }
    }

    /// Handles a completion from the device.
    fn child_done(&mut self, done: Completion) {
        let number = done.tag as usize;
        let child = self.children.get_mut(number).and_then(Option::take);
        let Some(Child { of, carried }) = child else {
            return;
        };
        self.free.push(number);
        let Some(running) = &mut self.running[of] else {
            return;
        };
        match (&mut running.what, done.op) {
            (What::Read { bufs, .. }, Op::Read { bufs: back, .. }) => {
                bufs.put_back(carried, back, true);
            }
            (What::Write { bufs, .. }, Op::Write { bufs: back, .. }) => {
                bufs.put_back(carried, back, false);
            }
            _ => {}
        }
        if let Err(error) = done.result {
            running.error.get_or_insert(error);
        }
        running.left -= 1;
        if running.left == 0 {
            self.end(of);
        }
    }

    /// Ends a request whose device requests have all completed.
    fn end(&mut self, slot: usize) {
        let Some(running) = self.running[slot].take() else {
            return;
        };
        let Running {
            tag,
            ino,
            what,
            error,
            entered,
            ..
        } = running;
        let space = &self.fileset.fs.space;
        let wrote = matches!(what, What::Write { .. });
        space.leave(entered, wrote);
        let mut result = error.map_or(Ok(()), Err);
        let op = match what {
            What::Read {
                offset,
                mut bufs,
                zeros,
            } => {
                zeros.into_iter().for_each(|bytes| bufs.zero(bytes));
                let bufs = bufs.finish();
                Op::Read { offset, bufs }
            }
            What::Write {
                offset,
                bufs,
                fua,
                plan,
            } => {
                let ended = self.fileset.end_write(plan, result.is_ok());
                if let (Ok(()), Err(error)) = (&result, ended) {
                    result = Err(below(&self.name, ino, error));
                }
                let bufs = bufs.finish();
                let op = Op::Write { offset, bufs, fua };
                if fua && result.is_ok() {
                    return self.start_sync(slot, tag, ino, op);
                }
                op
            }
            What::Sync(op @ (Op::Flush | Op::WriteZeroes { fua: true, .. })) => {
                return self.start_sync(slot, tag, ino, op);
            }
            What::Sync(op) => op,
        };
        self.complete(tag, ino, op, result);
    }

    fn start_sync(&mut self, slot: usize, tag: u64, ino: Ino, op: Op) {
        self.running[slot] = Some(Running {
            tag,
            ino,
            what: What::Sync(op),
            left: 1,
            error: None,
            entered: 0,
        });
        self.syncing += 1;
        self.sync.sync(slot, &self.inbox);
    }

    fn complete(&mut self, tag: u64, ino: Ino, op: Op, result: block::Result<()>) {
        let named = |e: block::Error| e.detail(format!("inode {ino}"));
        let result = result.map_err(|e| {
            if e.range().is_some() {
                named(e)
            } else {
                e.in_op(&op)
            }
        });
        self.ready.push_back(Completion { tag, op, result });
    }

    /// Makes all progress that is possible without blocking, except for `wait` at the device.
    fn advance(&mut self, wait: Wait) -> block::Result<()> {
        self.submit_waiting();
        let mut done = Vec::new();
        self.below.reap(wait, &mut done)?;
        for done in done {
            self.child_done(done);
        }
        for (slot, result) in self.inbox.take() {
            let Some(running) = self.running.get_mut(slot).and_then(Option::take) else {
                continue;
            };
            self.syncing -= 1;
            let What::Sync(op) = running.what else {
                continue;
            };
            let result = result.map_err(|e| below(&self.name, running.ino, e));
            self.complete(running.tag, running.ino, op, result);
        }
        self.submit_waiting();
        Ok(())
    }

    /// Sleeps until there may be a completion, at most until `until`.
    fn sleep(&mut self, until: Option<Instant>) -> block::Result<()> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if self.syncing == 0 {
            return self.advance(left.map_or(Wait::Block, Wait::AtMost));
        }
        self.below.kick()?;
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(&self.both, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(block::Error::from_io(&self.name, e.into())),
        }
    }
}

impl PagerQueue for FsQueue {
    fn capacity(&self) -> usize {
        self.running.len()
    }

    fn in_flight(&self) -> usize {
        self.running.iter().flatten().count() + self.ready.len()
    }

    fn submit(&mut self, file: FileId, request: Request) -> Result<(), Request> {
        let _here = within(Layer::Fs);
        let slot = self.running.iter().position(Option::is_none);
        let (Some(slot), true) = (slot, self.in_flight() < self.capacity()) else {
            return Err(request);
        };
        let FileId(ino) = file;
        self.start(slot, ino, request.tag, request.op);
        self.submit_waiting();
        Ok(())
    }

    fn kick(&mut self) -> block::Result<()> {
        let _here = within(Layer::Fs);
        self.submit_waiting();
        self.below.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
        let _here = within(Layer::Fs);
        let until = match wait {
            Wait::AtMost(time) => Instant::now().checked_add(time),
            _ => None,
        };
        self.advance(Wait::Poll)?;
        while self.ready.is_empty() && wait != Wait::Poll && self.in_flight() > 0 {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            self.sleep(until)?;
            self.advance(Wait::Poll)?;
        }
        let count = self.ready.len();
        done.extend(self.ready.drain(..));
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.both.as_fd())
    }

    fn register(&mut self, pool: &BufPool) {
        self.below.register(pool);
    }
}

impl Drop for FsQueue {
    /// Waits for the device, so that allocated blocks are either mapped or released.
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self
            .running
            .iter()
            .flatten()
            .any(|running| running.left > 0)
        {
            if self.reap(Wait::Block, &mut done).is_err() {
                // The device's queue has failed; the blocks stay allocated until the next open.
                return;
            }
        }
    }
}
