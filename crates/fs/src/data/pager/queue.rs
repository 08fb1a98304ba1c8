//! Queue of one thread for page requests of a fileset.

use super::below;
use super::chunk_io::{ChunkIo, ChunkReading};
use super::gather::{Carried, Gather, Transfer};
use super::sync::{Inbox, SyncHandle};
use crate::data::codec::Packed;
use crate::data::content::Allocate;
use crate::data::plan::{Part, WritePlan, blocks_of};
use crate::error::{Error, Kind};
use crate::fileset::Fileset;
use crate::format::key::Ino;
use crate::format::record::BLOCK_BYTES;
use crate::format::sums::{NO_SUM, Sum};
use crate::space::ChangeSet;
use block::{Backlog, BufPool, Completion, Op, Queue, Request, Summer, Wait, WaitPair};
use cache::{FileId, FileRequest, PagerInfo};
use layer_cpu::{Layer, within};
use slab::Slab;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// See [`crate::FsPager`].
pub(super) struct FsQueue {
    fileset: Fileset,
    info: PagerInfo,
    below: Backlog,
    sync: SyncHandle,
    inbox: Arc<Inbox>,
    /// Readable when the device or the inbox has completions.
    pair: WaitPair,
    /// Maximum number of requests of the caller.
    capacity: usize,
    /// Requests of the caller.
    running: Slab<Running>,
    /// Device requests, by their tags.
    children: Slab<Child>,
    ready: Vec<Completion>,
    /// Number of outstanding syncs.
    syncing: usize,
    /// Function of the checksums that the device is asked for. `None`: it has not computed them. One
    /// that encrypts does: it has the bytes in the CPU's cache, which at the end of a request they
    /// have left.
    asks: Option<Arc<dyn Summer>>,
}

/// Request of the caller.
struct Running {
    tag: u64,
    ino: Ino,
    what: What,
    /// Number of outstanding device requests.
    left: usize,
    error: Option<block::Error>,
    /// Change set returned by [`crate::space::Space::enter`].
    entered: ChangeSet,
    /// Device I/O that begins when the metadata is durable.
    held: Option<Vec<Part>>,
}

enum What {
    Read {
        offset: u64,
        bufs: Gather,
        zeros: Vec<Range<u64>>,
        /// See [`crate::data::plan::ReadPlan`].
        sums: Vec<Sum>,
        parts: Vec<Part>,
        chunks: Vec<ChunkReading>,
    },
    Write {
        offset: u64,
        bufs: Gather,
        fua: bool,
        plan: WritePlan,
        /// Compressed chunks, in the order of the plan.
        chunks: Vec<ChunkIo>,
    },
    /// Waits for the journal; the operation is returned unchanged.
    Sync(Op),
}

/// Whether a write is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packs {
    /// If the settings of the file say so.
    AsSet,
    No,
}

/// Device request.
struct Child {
    of: usize,
    /// Index of the compressed chunk whose blocks are transferred.
    chunk: Option<usize>,
    carried: Carried,
}

impl FsQueue {
    pub fn open(fileset: &Fileset, info: &PagerInfo, sync: SyncHandle) -> block::Result<FsQueue> {
        let below = fileset.fs.device.queue()?;
        let inbox = Inbox::new(&info.name)?;
        let pair = WaitPair::new(&*below, inbox.fd())?;
        Ok(FsQueue {
            fileset: fileset.clone(),
            info: info.clone(),
            capacity: below.capacity(),
            below: Backlog::new(below),
            sync,
            inbox: Arc::new(inbox),
            pair,
            running: Slab::new(),
            children: Slab::new(),
            ready: Vec::new(),
            syncing: 0,
            asks: Some(fileset.fs.summer.shared()),
        })
    }

    /// Starts a request; if it completes immediately, adds it to `ready`.
    fn start(&mut self, ino: Ino, tag: u64, op: Op, packs: Packs) {
        let space = Arc::clone(&self.fileset.fs.space);
        let entered = space.enter();
        let planned = self.plan(ino, op, packs);
        let (what, parts) = match planned {
            Ok(planned) => planned,
            Err((op, error)) => {
                space.leave(entered);
                // The data of a removed file is not needed: the write counts as done.
                let unwanted = error.kind() == Kind::Stale && matches!(op, Op::Write { .. });
                let result = if unwanted {
                    Ok(())
                } else {
                    Err(below(&self.info.name, ino, error).in_op(&op))
                };
                self.ready.push(Completion { tag, op, result });
                return;
            }
        };
        let key = self.running.insert(Running {
            tag,
            ino,
            what,
            left: 0,
            error: None,
            entered,
            held: None,
        });
        let running = &mut self.running[key];
        if matches!(&running.what, What::Write { plan, .. } if plan.needs_sync()) {
            (running.left, running.held) = (1, Some(parts));
            self.syncing += 1;
            self.sync.sync(key, &self.inbox);
            return;
        }
        self.start_children(key, &parts);
        if self.running[key].left == 0 {
            self.end(key);
        }
    }

    /// Begins the device I/O of a request that waited for the metadata.
    fn resume(&mut self, key: usize, parts: &[Part], synced: Result<(), Error>) {
        let running = &mut self.running[key];
        running.left = 0;
        match synced {
            Ok(()) => self.start_children(key, parts),
            Err(error) => running.error = Some(below(&self.info.name, running.ino, error)),
        }
        if self.running[key].left == 0 {
            self.end(key);
        }
    }

    /// Determines the device I/O that a request needs.
    fn plan(&self, ino: Ino, op: Op, packs: Packs) -> Result<(What, Vec<Part>), (Op, Error)> {
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
                    let bufs = Gather::new(bufs);
                    let chunks = plan.chunks.into_iter();
                    let what = What::Read {
                        offset,
                        bufs,
                        zeros: plan.zeros,
                        sums: plan.sums,
                        parts: plan.parts.clone(),
                        chunks: chunks
                            .map(|read| ChunkReading::new(read, self.info.max_transfer))
                            .collect(),
                    };
                    Ok((what, plan.parts))
                }
                Err(error) => Err((Op::Read { offset, bufs }, error)),
            },
            Op::Write { offset, bufs, fua } => {
                let bufs = Gather::new(bufs);
                let at = |block: u64| block * BLOCK_BYTES - offset;
                let read = |range: Range<u64>| bufs.copy_out(at(range.start)..at(range.end));
                let packed = match packs {
                    Packs::AsSet => self.fileset.pack(ino, &blocks, read),
                    Packs::No => Vec::new(),
                };
                self.plan_write(ino, (offset, bufs, fua), blocks, &packed)
            }
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

    /// Determines the device I/O that a write needs.
    fn plan_write(
        &self,
        ino: Ino,
        (offset, bufs, fua): (u64, Gather, bool),
        blocks: Range<u64>,
        packed: &[Packed],
    ) -> Result<(What, Vec<Part>), (Op, Error)> {
        let mut plan = match self.fileset.plan_write(ino, blocks, packed) {
            Ok(plan) => plan,
            Err(error) => {
                let bufs = bufs.finish();
                return Err((Op::Write { offset, bufs, fua }, error));
            }
        };
        let parts = plan.parts();
        if plan.needs_sums() && self.asks.is_none() {
            plan.set_sums(bufs.sums(&self.fileset.fs.summer));
        }
        let chunks = plan.chunks().iter().map(|write| {
            let data = &packed[write.index].data;
            ChunkIo::write(write.chunk.run(), data, self.info.max_transfer)
        });
        let what = What::Write {
            offset,
            bufs,
            fua,
            chunks: chunks.collect(),
            plan,
        };
        Ok((what, parts))
    }

    fn start_children(&mut self, key: usize, parts: &[Part]) {
        let (running, asks) = (&mut self.running[key], self.asks.as_ref());
        let mut lent = Vec::new();
        let transfer = match &mut running.what {
            What::Read {
                bufs, sums, chunks, ..
            } => {
                let asks_bufs = asks.filter(|_| !sums.is_empty());
                for part in parts {
                    let pieces = bufs.lend(part, Transfer::Read, asks_bufs);
                    lent.extend(pieces.into_iter().map(|piece| (None, piece)));
                }
                for (index, chunk) in chunks.iter_mut().enumerate() {
                    let asks = asks.filter(|_| !chunk.read.sums.is_empty());
                    let pieces = chunk.io.lend(Transfer::Read, asks);
                    lent.extend(pieces.map(|piece| (Some(index), piece)));
                }
                Transfer::Read
            }
            What::Write {
                bufs, plan, chunks, ..
            } => {
                let asks = asks.filter(|_| plan.has_checksums());
                for part in parts {
                    let pieces = bufs.lend(part, Transfer::Write, asks);
                    lent.extend(pieces.into_iter().map(|piece| (None, piece)));
                }
                for (index, chunk) in chunks.iter_mut().enumerate() {
                    let pieces = chunk.lend(Transfer::Write, asks);
                    lent.extend(pieces.map(|piece| (Some(index), piece)));
                }
                Transfer::Write
            }
            What::Sync(_) => return,
        };
        running.left += lent.len();
        for (chunk, (offset, carried, bufs)) in lent {
            let (offset, fua) = (offset.bytes(), false);
            let op = match transfer {
                Transfer::Read => Op::Read { offset, bufs },
                Transfer::Write => Op::Write { offset, bufs, fua },
            };
            let child = Child {
                of: key,
                chunk,
                carried,
            };
            let tag = self.children.insert(child) as u64;
            self.below.submit(Request { tag, op });
        }
    }

    /// Handles a completion from the device.
    fn child_done(&mut self, done: Completion) {
        let Child { of, chunk, carried } = self.children.remove(done.tag as usize);
        let running = &mut self.running[of];
        if let (Op::Read { bufs, .. } | Op::Write { bufs, .. }, Ok(())) = (&done.op, &done.result)
            && bufs.is_asking()
        {
            self.asks = None;
        }
        match (&mut running.what, done.op) {
            (What::Read { bufs, chunks, .. }, Op::Read { bufs: back, .. }) => {
                let bufs = chunk.map_or(bufs, |index| &mut chunks[index].io.bufs);
                bufs.put_back(carried, back, Transfer::Read);
            }
            (What::Write { bufs, chunks, .. }, Op::Write { bufs: back, .. }) => {
                let bufs = chunk.map_or(bufs, |index| &mut chunks[index].bufs);
                bufs.put_back(carried, back, Transfer::Write);
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
    fn end(&mut self, key: usize) {
        let running = self.running.remove(key);
        let Running {
            tag,
            ino,
            what,
            error,
            entered,
            ..
        } = running;
        let space = &self.fileset.fs.space;
        match what {
            What::Write { .. } => space.leave_after_write(entered),
            What::Sync(_) => space.leave(entered),
            // After the comparison, which looks up checksums again.
            What::Read { .. } => {}
        }
        let mut result = error.map_or(Ok(()), Err);
        let op = match what {
            What::Read {
                offset,
                mut bufs,
                zeros,
                sums,
                parts,
                mut chunks,
            } => {
                let needs = |i: usize| sums.get(i).is_some_and(|sum| *sum != NO_SUM);
                if result.is_ok() && (0..sums.len()).any(needs) {
                    let found = bufs.take_sums(&self.fileset.fs.summer, needs);
                    result = self.verify(ino, offset, (&found, &sums), &parts);
                }
                for part in parts.iter().filter(|part| part.device.is_none()) {
                    bufs.zero(part.bytes.clone());
                }
                for chunk in &mut chunks {
                    if result.is_ok() {
                        result = self.read_chunk(ino, offset, chunk, &mut bufs);
                    }
                }
                self.fileset.fs.space.leave(entered);
                zeros.into_iter().for_each(|bytes| bufs.zero(bytes));
                let bufs = bufs.finish();
                Op::Read { offset, bufs }
            }
            What::Write {
                offset,
                mut bufs,
                fua,
                mut plan,
                chunks,
            } => {
                let summer = &self.fileset.fs.summer;
                if result.is_ok() && plan.needs_sums() {
                    let written = plan.written_blocks() as usize;
                    let sums = if chunks.is_empty() {
                        bufs.take_sums(summer, |i| i < written)
                    } else {
                        bufs.take_sums(summer, |i| plan.is_written(i))
                    };
                    plan.set_sums(sums);
                }
                if result.is_ok() && plan.has_checksums() {
                    for (write, mut chunk) in plan.chunks().iter_mut().zip(chunks) {
                        write.sums = chunk.bufs.take_sums(summer, |_| true);
                    }
                }
                let ended = self.fileset.end_write(plan, result.is_ok());
                let bufs = bufs.finish();
                let op = Op::Write { offset, bufs, fua };
                match ended {
                    Err(error) if error.kind() == Kind::Busy && result.is_ok() => {
                        // Another write or a copy put a chunk there first.
                        return self.start(ino, tag, op, Packs::No);
                    }
                    Err(error) if result.is_ok() => {
                        result = Err(below(&self.info.name, ino, error));
                    }
                    _ => {}
                }
                if fua && result.is_ok() {
                    return self.start_sync(tag, ino, op);
                }
                op
            }
            What::Sync(op @ (Op::Flush | Op::WriteZeroes { fua: true, .. })) => {
                return self.start_sync(tag, ino, op);
            }
            What::Sync(op) => op,
        };
        self.complete(tag, ino, op, result);
    }

    /// Compares what the device returned with the checksums. Reports the blocks that differ.
    fn verify(
        &self,
        ino: Ino,
        offset: u64,
        (found, expected): (&[Sum], &[Sum]),
        parts: &[Part],
    ) -> block::Result<()> {
        let mut damaged = Vec::new();
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            if *expected == NO_SUM || found == expected {
                continue;
            }
            let at = i as u64 * BLOCK_BYTES;
            let part = parts.iter().find(|part| part.bytes.contains(&at));
            let device = part.and_then(|part| Some(part.device?.plus(at - part.bytes.start)));
            let is_damaged = device.map_or(Ok(true), |device| {
                let block = device.bytes() / BLOCK_BYTES;
                self.fileset.fs.is_mismatch(block, *expected)
            });
            if is_damaged.map_err(|e| below(&self.info.name, ino, e))? {
                damaged.push(offset + at);
            }
        }
        let path = || self.fileset.damaged_path(ino);
        self.fileset.note_mismatches(ino, &damaged, path);
        match damaged.first() {
            None => Ok(()),
            Some(at) => {
                let text = format!(
                    "inode {ino}: the block at byte {at} does not match its checksum; restore the \
                     file from a backup"
                );
                let kind = block::ErrorKind::Media;
                Err(block::Error::new(kind, &self.info.name, text))
            }
        }
    }

    /// Compares the blocks of a compressed chunk with their checksums, and decompresses those that a
    /// request reads into its buffers.
    fn read_chunk(
        &self,
        ino: Ino,
        offset: u64,
        chunk: &mut ChunkReading,
        bufs: &mut Gather,
    ) -> block::Result<()> {
        let sums = &chunk.read.sums;
        let first = chunk.read.placed.0 * BLOCK_BYTES;
        let needs = |i: usize| sums.get(i).is_some_and(|sum| *sum != NO_SUM);
        if (0..sums.len()).any(needs) {
            let found = chunk.io.bufs.take_sums(&self.fileset.fs.summer, needs);
            self.verify(ino, first, (&found, sums), &chunk.io.parts)?;
        }
        if chunk.unpack_to(offset / BLOCK_BYTES, bufs) {
            return Ok(());
        }
        let path = || self.fileset.damaged_path(ino);
        self.fileset.note_mismatches(ino, &[first], path);
        let text = format!(
            "inode {ino}: the compressed chunk at byte {first} is damaged; restore the file from a \
             backup"
        );
        let kind = block::ErrorKind::Media;
        Err(block::Error::new(kind, &self.info.name, text))
    }

    fn start_sync(&mut self, tag: u64, ino: Ino, op: Op) {
        let key = self.running.insert(Running {
            tag,
            ino,
            what: What::Sync(op),
            left: 1,
            error: None,
            entered: ChangeSet::default(),
            held: None,
        });
        self.syncing += 1;
        self.sync.sync(key, &self.inbox);
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
        self.ready.push(Completion { tag, op, result });
    }

    /// Makes all progress that is possible without blocking, except for `wait` at the device.
    fn advance(&mut self, wait: Wait) -> block::Result<()> {
        let mut done = Vec::new();
        self.below.reap(wait, &mut done)?;
        for done in done {
            self.child_done(done);
        }
        for (key, result) in self.inbox.take() {
            self.syncing -= 1;
            if let Some(parts) = self.running[key].held.take() {
                self.resume(key, &parts, result);
                continue;
            }
            let running = self.running.remove(key);
            let What::Sync(op) = running.what else {
                continue;
            };
            let result = result.map_err(|e| below(&self.info.name, running.ino, e));
            self.complete(running.tag, running.ino, op, result);
        }
        self.below.resume();
        Ok(())
    }

    /// Sleeps until there may be a completion, at most until `until`.
    fn sleep(&mut self, until: Option<Instant>) -> block::Result<()> {
        if self.syncing == 0 {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            return self.advance(left.map_or(Wait::Block, Wait::AtMost));
        }
        self.below.kick()?;
        self.pair.sleep(until, &self.info.name)
    }
}

impl Queue<FileRequest, PagerInfo> for FsQueue {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn in_flight(&self) -> usize {
        self.running.len() + self.ready.len()
    }

    fn submit(&mut self, request: FileRequest) -> Result<(), FileRequest> {
        let _here = within(Layer::Fs);
        if self.in_flight() >= self.capacity {
            return Err(request);
        }
        let FileRequest { file, request } = request;
        let FileId(ino) = file;
        self.start(ino, request.tag, request.op, Packs::AsSet);
        Ok(())
    }

    fn kick(&mut self) -> block::Result<()> {
        let _here = within(Layer::Fs);
        self.below.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
        let _here = within(Layer::Fs);
        let until = wait.deadline();
        self.advance(Wait::Poll)?;
        while self.ready.is_empty() && wait != Wait::Poll && self.in_flight() > 0 {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            self.sleep(until)?;
            self.advance(Wait::Poll)?;
        }
        let count = self.ready.len();
        done.append(&mut self.ready);
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pair.fd())
    }

    fn register(&mut self, pool: &BufPool) {
        self.below.register(pool);
    }
}

impl Drop for FsQueue {
    /// Waits for the device, so that allocated blocks are either mapped or released.
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.running.iter().any(|(_, running)| running.left > 0) {
            if self.reap(Wait::Block, &mut done).is_err() {
                // The device's queue has failed; the blocks stay allocated until the next open.
                return;
            }
        }
    }
}
