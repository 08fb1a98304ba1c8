//! Queue of one thread for page requests of a tree.

use crate::changes::Changes;
use crate::disk::Disk;
use crate::error::{Error, Kind};
use crate::guard::guarded;
use crate::tree::{Node, Piece, Place, Tree};
use block::{Backlog, Buf, BufPool, Bufs, Completion, ErrorKind, Op, Queue, Request, Wait};
use cache::{FileId, FileRequest, PagerInfo};
use layer_cpu::{Layer, within};
use slab::Slab;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// See [`super::TreePager`].
pub(super) struct TreeQueue {
    tree: Arc<dyn Tree>,
    changes: Option<Arc<dyn Changes>>,
    disk: Disk,
    below: Backlog,
    info: PagerInfo,
    /// Requests of the caller that wait for the device.
    running: Slab<Running>,
    /// Device requests, by their tags.
    children: Slab<Child>,
    ready: Vec<Completion>,
}

/// Request of the caller.
struct Running {
    tag: u64,
    kind: Work,
    offset: u64,
    /// The caller's buffers, unless a device request has them.
    bufs: Option<Bufs>,
    /// Number of bytes of the file in the buffers.
    filled: usize,
    /// Number of outstanding device requests.
    left: usize,
    error: Option<block::Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Read,
    Write { fua: bool },
    Flush,
}

/// Device request.
struct Child {
    of: usize,
    /// For a read with buffers of its own: position of its bytes in the caller's buffers, offset
    /// in its own, and length.
    copy: Option<(usize, usize, usize)>,
}

impl TreeQueue {
    pub(super) fn new(
        (tree, changes): (Arc<dyn Tree>, Option<Arc<dyn Changes>>),
        disk: Disk,
        below: Box<dyn Queue>,
        info: PagerInfo,
    ) -> TreeQueue {
        TreeQueue {
            tree,
            changes,
            disk,
            below: Backlog::new(below),
            info,
            running: Slab::new(),
            children: Slab::new(),
            ready: Vec::new(),
        }
    }

    fn failed(&self, node: Node, error: &Error) -> block::Error {
        let name = format!("{}: file {node}", self.info.name);
        let source = std::io::Error::from_raw_os_error(error.errno());
        block::Error::from_io(name, source).detail(error.to_string())
    }

    fn answer(&mut self, tag: u64, op: Op, result: block::Result<()>) {
        let result = result.map_err(|e| if e.range().is_some() { e } else { e.in_op(&op) });
        self.ready.push(Completion { tag, op, result });
    }

    /// Starts a read.
    fn read(&mut self, node: Node, tag: u64, offset: u64, bufs: Bufs) {
        let mut bufs = bufs;
        let planned = self.plan(node, offset, &mut bufs);
        let (filled, pieces) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                let error = self.failed(node, &error);
                return self.answer(tag, Op::Read { offset, bufs }, Err(error));
            }
        };
        let running = Running {
            tag,
            kind: Work::Read,
            offset,
            bufs: Some(bufs),
            filled,
            left: 0,
            error: None,
        };
        let key = self.running.insert(running);
        let mut at = 0;
        for piece in pieces {
            if let Place::Device(from) = piece.place {
                self.read_piece(key, at, from, piece.len as usize);
            }
            at += piece.len as usize;
        }
        if self.running[key].left == 0 {
            self.end(key);
        }
    }

    /// Finds the pieces of a read, and computes those that are not on the device. Returns the number
    /// of bytes of the file in the buffers.
    fn plan(
        &mut self,
        node: Node,
        offset: u64,
        bufs: &mut Bufs,
    ) -> Result<(usize, Vec<Piece>), Error> {
        let (tree, disk, changes) = (&*self.tree, &mut self.disk, self.changes.as_deref());
        let len = bufs.total_len();
        let pieces = guarded(|| {
            let size = match changes {
                Some(changes) => changes.stored(disk, node)?,
                None => tree.attr(disk, node)?.size,
            };
            let end = offset.saturating_add(len as u64).min(size);
            if offset >= end {
                return Ok(Vec::new());
            }
            let pieces = tree.map(disk, node, offset..end)?;
            let total = pieces
                .iter()
                .try_fold(0u64, |sum, p| sum.checked_add(p.len));
            if total != Some(end - offset) {
                return Err(Error::corrupt(
                    "the storage of a file is not as long as the file",
                ));
            }
            Ok(pieces)
        })?;
        let mut at = 0;
        for piece in &pieces {
            let len = piece.len as usize;
            if piece.place == Place::Computed {
                let mut bytes = vec![0; len];
                guarded(|| tree.compute(disk, node, offset + at as u64, &mut bytes))?;
                put(bufs, at, &bytes);
            }
            if piece.place == Place::Zeros {
                zero(bufs, at, at + len);
            }
            at += len;
        }
        Ok((at, pieces))
    }

    /// Submits the device request for a piece: into the caller's buffers if it is all that they
    /// need, otherwise into one of its own, of whole blocks of the device.
    fn read_piece(&mut self, key: usize, at: usize, from: u64, len: usize) {
        let device = self.below.queue().info();
        let unit = u64::from(device.logical_block_size);
        let (size, longest) = (device.size, u64::from(device.max_transfer));
        let running = &mut self.running[key];
        let total = running.bufs.as_ref().map_or(0, Bufs::total_len) as u64;
        let whole = at == 0
            && len == running.filled
            && from.is_multiple_of(unit)
            && total <= longest
            && from.checked_add(total).is_some_and(|end| end <= size);
        if whole && let Some(bufs) = running.bufs.take() {
            running.left += 1;
            let tag = self.children.insert(Child {
                of: key,
                copy: None,
            }) as u64;
            let op = Op::Read { offset: from, bufs };
            return self.below.submit(Request { tag, op });
        }
        let most = (longest - longest % unit).saturating_sub(unit).max(unit);
        let (mut at, mut from, mut len) = (at, from, len as u64);
        while len > 0 {
            let first = from - from % unit;
            let part = len.min(most - (from - first));
            let end = from.saturating_add(part).checked_next_multiple_of(unit);
            let Some(end) = end.filter(|end| *end <= size) else {
                let why = "a file lies behind the end of the device";
                let error = block::Error::new(ErrorKind::OutOfRange, &self.info.name, why);
                running.error.get_or_insert(error);
                return;
            };
            let copy = Some((at, (from - first) as usize, part as usize));
            let tag = self.children.insert(Child { of: key, copy }) as u64;
            let bufs = Buf::zeroed((end - first) as usize).into();
            let op = Op::Read {
                offset: first,
                bufs,
            };
            running.left += 1;
            self.below.submit(Request { tag, op });
            at += part as usize;
            from += part;
            len -= part;
        }
    }

    /// Starts a write of whole pages, whose bytes behind the clusters of the file are zeros.
    fn write(&mut self, node: Node, tag: u64, (offset, bufs, fua): (u64, Bufs, bool)) {
        let len = bufs.total_len() as u64;
        let pieces = match &self.changes {
            Some(changes) => guarded(|| changes.store(node, offset..offset.saturating_add(len))),
            None => Err(Kind::ReadOnly.into()),
        };
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) => {
                let error = self.failed(node, &error);
                return self.answer(tag, Op::Write { offset, bufs, fua }, Err(error));
            }
        };
        let key = self.running.insert(Running {
            tag,
            kind: Work::Write { fua },
            offset,
            bufs: None,
            filled: 0,
            left: 0,
            error: None,
        });
        let longest = u64::from(self.below.queue().info().max_transfer);
        match &pieces[..] {
            [piece] if piece.len == len && len <= longest => {
                if let Place::Device(to) = piece.place {
                    self.submit_part(
                        key,
                        Op::Write {
                            offset: to,
                            bufs,
                            fua,
                        },
                    );
                }
            }
            pieces => {
                let mut at = 0;
                for piece in pieces {
                    let Place::Device(to) = piece.place else {
                        continue;
                    };
                    let mut done = 0;
                    while done < piece.len {
                        let part = longest.min(piece.len - done);
                        let part_bufs = copy_of(&bufs, (at + done) as usize, part as usize).into();
                        let op = Op::Write {
                            offset: to + done,
                            bufs: part_bufs,
                            fua,
                        };
                        self.submit_part(key, op);
                        done += part;
                    }
                    at += piece.len;
                }
                self.running[key].bufs = Some(bufs);
            }
        }
        if self.running[key].left == 0 {
            self.end(key);
        }
    }

    fn flush(&mut self, tag: u64) {
        let key = self.running.insert(Running {
            tag,
            kind: Work::Flush,
            offset: 0,
            bufs: None,
            filled: 0,
            left: 0,
            error: None,
        });
        self.submit_part(key, Op::Flush);
    }

    fn submit_part(&mut self, key: usize, op: Op) {
        self.running[key].left += 1;
        let child = Child {
            of: key,
            copy: None,
        };
        let tag = self.children.insert(child) as u64;
        self.below.submit(Request { tag, op });
    }

    fn child_done(&mut self, done: Completion) {
        let Child { of, copy } = self.children.remove(done.tag as usize);
        let running = &mut self.running[of];
        if let Op::Write { bufs, .. } = done.op {
            // Otherwise these were copies.
            running.bufs.get_or_insert(bufs);
        } else if let Op::Read { bufs, .. } = done.op {
            match (copy, &mut running.bufs) {
                (None, place) => *place = Some(bufs),
                (Some((at, from, len)), Some(place)) => {
                    let bytes = bufs.into_first();
                    if let Some(part) = bytes.as_deref().and_then(|b| b.get(from..from + len)) {
                        put(place, at, part);
                    }
                }
                (Some(_), None) => {}
            }
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
    fn end(&mut self, key: usize) {
        let running = self.running.remove(key);
        let mut bufs = running.bufs.unwrap_or_else(|| Vec::new().into());
        let (offset, total) = (running.offset, bufs.total_len());
        let op = match running.kind {
            Work::Read => {
                zero(&mut bufs, running.filled, total);
                Op::Read { offset, bufs }
            }
            Work::Write { fua } => Op::Write { offset, bufs, fua },
            Work::Flush => Op::Flush,
        };
        self.answer(running.tag, op, running.error.map_or(Ok(()), Err));
    }
}

/// Calls `work` with the parts of the buffers that hold the bytes `from..to`, and the position of
/// each part after `from`.
fn parts(bufs: &mut Bufs, from: usize, to: usize, mut work: impl FnMut(&mut [u8], usize)) {
    let mut start = 0;
    for buf in bufs.iter_mut() {
        let end = start + buf.len();
        let (first, last) = (from.max(start), to.min(end));
        if first < last {
            work(&mut buf[first - start..last - start], first - from);
        }
        start = end;
    }
}

fn put(bufs: &mut Bufs, at: usize, bytes: &[u8]) {
    parts(bufs, at, at + bytes.len(), |part, from| {
        part.copy_from_slice(&bytes[from..from + part.len()]);
    });
}

/// Copies `len` bytes of the buffers.
fn copy_of(bufs: &Bufs, at: usize, len: usize) -> Buf {
    let mut copy = Buf::zeroed(len);
    let mut start = 0;
    for buf in bufs.iter() {
        let end = start + buf.len();
        let (first, last) = (at.max(start), (at + len).min(end));
        if first < last {
            copy[first - at..last - at].copy_from_slice(&buf[first - start..last - start]);
        }
        start = end;
    }
    copy
}

fn zero(bufs: &mut Bufs, from: usize, to: usize) {
    parts(bufs, from, to, |part, _| part.fill(0));
}

impl Queue<FileRequest, PagerInfo> for TreeQueue {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.below.queue().capacity()
    }

    fn in_flight(&self) -> usize {
        self.running.len() + self.ready.len()
    }

    fn submit(&mut self, request: FileRequest) -> Result<(), FileRequest> {
        let _here = within(Layer::Fs);
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        let FileRequest { file, request } = request;
        let (FileId(node), Request { tag, op }) = (file, request);
        match op {
            Op::Read { offset, bufs } => self.read(node, tag, offset, bufs),
            Op::Write { offset, bufs, fua } => self.write(node, tag, (offset, bufs, fua)),
            Op::Flush if self.changes.is_some() => self.flush(tag),
            Op::Flush => self.answer(tag, op, Ok(())),
            op => {
                let error = block::Error::new(ErrorKind::ReadOnly, &self.info.name, "");
                self.answer(tag, op, Err(error));
            }
        }
        Ok(())
    }

    fn kick(&mut self) -> block::Result<()> {
        self.below.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
        let _here = within(Layer::Fs);
        let until = wait.deadline();
        let mut wait_now = Wait::Poll;
        loop {
            let mut completed = Vec::new();
            self.below.reap(wait_now, &mut completed)?;
            completed.into_iter().for_each(|done| self.child_done(done));
            self.below.resume();
            if !self.ready.is_empty() || self.in_flight() == 0 || wait == Wait::Poll {
                break;
            }
            wait_now = match until {
                None => Wait::Block,
                Some(until) => {
                    let left = until.saturating_duration_since(std::time::Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    Wait::AtMost(left)
                }
            };
        }
        let count = self.ready.len();
        done.append(&mut self.ready);
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.queue().wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.below.register(pool);
    }
}
