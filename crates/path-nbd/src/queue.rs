//! One connection, used by a single thread.
//!
//! `kick` sends queued requests, many in one system call. Replies are received into one large
//! scratch buffer; a long payload bypasses it and is read directly into the request's buffers.

use crate::connect::Negotiated;
use crate::message::{Abilities, Job, Next};
use crate::wire::Wire;
use block::{Completion, DeviceInfo, Error, ErrorKind, Op, Queue, Request, Result, Wait};
use layer_cpu::{Layer, within};
use lunpath::{AccessHint, PathQueue};
use nbd_proto::ProtocolError;
use nbd_proto::client::{ERROR_BYTES_MAX, Reply, chunk_error, chunk_hole, request};
use nbd_proto::constants as c;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Size of the scratch buffer, in bytes: 60 replies of 4 KiB in one system call.
const SCRATCH_BYTES: usize = 256 * 1024;
/// A payload with at least this many missing bytes is read directly into its buffers.
const STRAIGHT_BYTES: usize = 16 * 1024;
/// Maximum number of slices per system call; the kernel's limit is 1024.
const SLICES_MAX: usize = 512;

/// Maximum time that dropping a queue waits for requests in flight.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// An entry of the send queue.
enum Out {
    /// The message of a job.
    Job(u32),
    /// The remainder of a message whose request was taken back while it was being sent.
    Rest(Vec<u8>),
}

/// Expected content of the next bytes from the server.
#[derive(Clone, Copy)]
enum Expect {
    /// A reply header.
    Head,
    /// Data of a read: its slot, the position in it, the missing bytes, and whether the reply ends
    /// after them.
    Data {
        slot: u32,
        at: usize,
        left: usize,
        done: bool,
    },
    /// Data of a read that was taken back; it is discarded.
    Drop { slot: u32, left: usize, done: bool },
}

/// Request queue on a connection.
pub(crate) struct NbdQueue {
    wire: Wire,
    epoll: OwnedFd,
    watches_output: bool,
    info: DeviceInfo,
    can: Abilities,
    structured: bool,
    capacity: usize,
    /// Jobs by slot, each with a generation counter, so that a stale reply matches no job.
    slots: Vec<(u32, Option<Job>)>,
    free: Vec<u32>,
    in_flight: usize,
    out: VecDeque<Out>,
    /// Bytes already sent of the first entry of `out`.
    sent: usize,
    expect: Expect,
    scratch: Vec<u8>,
    start: usize,
    end: usize,
    ready: VecDeque<Completion>,
    late: Vec<u64>,
    lost: Option<String>,
}

impl NbdQueue {
    pub(crate) fn open(negotiated: Negotiated, info: DeviceInfo, depth: u32) -> Result<NbdQueue> {
        let Negotiated { wire, export, rest } = negotiated;
        let system = |e: rustix::io::Errno| Error::from_io(&info.name, e.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, wire.fd(), data, epoll::EventFlags::IN).map_err(system)?;
        let mut scratch = vec![0; SCRATCH_BYTES.max(rest.len())];
        scratch[..rest.len()].copy_from_slice(&rest);
        Ok(NbdQueue {
            epoll,
            watches_output: false,
            can: Abilities::of(&export, info.max_transfer),
            structured: export.structured,
            capacity: depth as usize,
            slots: Vec::with_capacity(depth as usize),
            free: Vec::new(),
            in_flight: 0,
            out: VecDeque::new(),
            sent: 0,
            expect: Expect::Head,
            scratch,
            start: 0,
            end: rest.len(),
            ready: VecDeque::new(),
            late: Vec::new(),
            lost: None,
            wire,
            info,
        })
    }

    fn cookie(&self, slot: u32) -> u64 {
        u64::from(self.slots[slot as usize].0) << 32 | u64::from(slot)
    }

    /// Finds the slot of the job with this cookie if the job is still pending.
    fn slot_of(&self, cookie: u64) -> std::result::Result<u32, ProtocolError> {
        let slot = cookie as u32;
        match self.slots.get(slot as usize) {
            Some((turn, Some(_))) if *turn == (cookie >> 32) as u32 => Ok(slot),
            _ => Err(bad("a reply to no pending request")),
        }
    }

    fn job(&mut self, slot: u32) -> &mut Job {
        let job = &mut self.slots[slot as usize].1;
        job.as_mut().expect("the slot is in use until its answer")
    }

    fn take_slot(&mut self, job: Job) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize].1 = Some(job);
                slot
            }
            None => {
                self.slots.push((0, Some(job)));
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Frees a slot; its next job gets another cookie.
    fn release(&mut self, slot: u32) -> Job {
        let entry = &mut self.slots[slot as usize];
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(slot);
        entry.1.take().expect("the slot is in use until its answer")
    }

    /// Continues a job after the reply to its message.
    fn advance(&mut self, slot: u32) {
        let (can, cookie) = (self.can, self.cookie(slot));
        match self.job(slot).answered(can, cookie) {
            Next::Send => self.out.push_back(Out::Job(slot)),
            Next::End => self.finish(slot),
        }
    }

    fn finish(&mut self, slot: u32) {
        let job = self.release(slot);
        if job.op.is_none() {
            self.late.push(job.tag);
        } else if let Some(done) = job.complete(&self.info.name) {
            self.ready.push_back(done);
        }
    }

    /// Marks the connection as lost. All requests in flight fail, and so do all later ones.
    fn lose(&mut self, why: String) {
        if self.lost.is_some() {
            return;
        }
        tracing::debug!(path = self.info.name, "connection lost: {why}");
        self.out.clear();
        // A dead socket must not keep waking a thread that polls the descriptor.
        let _ = epoll::delete(&self.epoll, self.wire.fd());
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].1.is_none() {
                continue;
            }
            let job = self.release(slot);
            let tag = job.tag;
            if let Some(op) = job.op {
                let result = Err(self.gone(&why).in_op(&op));
                self.ready.push_back(Completion { tag, op, result });
            }
        }
        self.lost = Some(why);
    }

    fn gone(&self, why: &str) -> Error {
        Error::new(ErrorKind::PathLost, &self.info.name, why)
    }

    /// Sends as much output as the socket accepts.
    fn push(&mut self) {
        if self.lost.is_some() {
            return;
        }
        while !self.out.is_empty() || self.wire.holds_output() {
            match self.send_some() {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    // Data received before the failure may still contain replies.
                    self.receive();
                    self.lose(format!("sending failed: {e}"));
                    return;
                }
            }
        }
        self.watch(!self.out.is_empty() || self.wire.holds_output());
    }

    fn send_some(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return self.wire.push();
        }
        let mut slices = Vec::with_capacity(self.out.len().min(SLICES_MAX) * 2);
        let mut skip = self.sent;
        for out in &self.out {
            match out {
                Out::Job(slot) => {
                    let job = self.slots[*slot as usize].1.as_ref();
                    job.expect("what is to be sent is in its slot")
                        .gather(skip, &mut slices);
                }
                Out::Rest(bytes) => slices.push(IoSlice::new(&bytes[skip..])),
            }
            skip = 0;
            if slices.len() >= SLICES_MAX {
                slices.truncate(SLICES_MAX);
                break;
            }
        }
        let mut sent = self.wire.send(&slices)? + self.sent;
        while let Some(out) = self.out.front() {
            let len = match out {
                Out::Job(slot) => {
                    let job = self.slots[*slot as usize].1.as_ref();
                    job.expect("what is to be sent is in its slot")
                        .message_len()
                }
                Out::Rest(bytes) => bytes.len(),
            };
            if sent < len {
                break;
            }
            sent -= len;
            self.out.pop_front();
        }
        self.sent = sent;
        Ok(())
    }

    fn watch(&mut self, output: bool) {
        if output == self.watches_output {
            return;
        }
        let flags = if output {
            epoll::EventFlags::IN | epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::IN
        };
        let data = epoll::EventData::new_u64(0);
        if epoll::modify(&self.epoll, self.wire.fd(), data, flags).is_ok() {
            self.watches_output = output;
        }
    }

    /// Receives and processes all available input.
    fn receive(&mut self) {
        while self.lost.is_none() {
            match self.receive_some() {
                Ok(false) => return,
                Ok(true) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return self.lose(e.to_string()),
            }
        }
    }

    /// Receives with one system call and processes the result. Returns `false` when the socket has
    /// no more data.
    fn receive_some(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.scratch.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let mut straight = 0;
        let mut slices = Vec::new();
        if let Expect::Data { slot, at, left, .. } = self.expect
            && self.end == 0
            && left >= STRAIGHT_BYTES
        {
            let job = self.slots[slot as usize].1.as_mut();
            let job = job.expect("the slot is in use until its answer");
            job.targets(at, |piece| {
                let len = piece.len().min(left - straight);
                straight += len;
                slices.push(IoSliceMut::new(&mut piece[..len]));
                straight < left && slices.len() < SLICES_MAX
            });
        }
        let room = self.scratch.len() - self.end;
        slices.push(IoSliceMut::new(&mut self.scratch[self.end..]));
        let read = self.wire.recv(&mut slices)?;
        drop(slices);
        if read == 0 {
            let why = "the server closed the connection";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        let placed = read.min(straight);
        if let Expect::Data { at, left, .. } = &mut self.expect {
            *at += placed;
            *left -= placed;
        }
        self.end += read - placed;
        self.digest().map_err(io::Error::other)?;
        // A short read means that the socket is empty; TLS may still hold decrypted bytes.
        Ok(read == straight + room || self.wire.is_tls())
    }

    /// Processes the contents of the scratch buffer.
    fn digest(&mut self) -> std::result::Result<(), ProtocolError> {
        loop {
            match self.expect {
                Expect::Head => {
                    if !self.head()? {
                        return Ok(());
                    }
                }
                Expect::Data {
                    slot,
                    mut at,
                    mut left,
                    done,
                } => {
                    let have = (self.end - self.start).min(left);
                    let from = &self.scratch[self.start..self.start + have];
                    let mut copied = 0;
                    let job = self.slots[slot as usize].1.as_mut();
                    let job = job.expect("the slot is in use until its answer");
                    job.targets(at, |piece| {
                        let len = piece.len().min(have - copied);
                        piece[..len].copy_from_slice(&from[copied..copied + len]);
                        copied += len;
                        copied < have
                    });
                    self.start += have;
                    at += have;
                    left -= have;
                    if left > 0 {
                        self.expect = Expect::Data {
                            slot,
                            at,
                            left,
                            done,
                        };
                        return Ok(());
                    }
                    self.expect = Expect::Head;
                    if done {
                        self.advance(slot);
                    }
                }
                Expect::Drop { slot, left, done } => {
                    let have = (self.end - self.start).min(left);
                    self.start += have;
                    let left = left - have;
                    if left > 0 {
                        self.expect = Expect::Drop { slot, left, done };
                        return Ok(());
                    }
                    self.expect = Expect::Head;
                    if done {
                        self.advance(slot);
                    }
                }
            }
        }
    }

    /// Parses a reply header. Returns `false` if bytes are missing.
    fn head(&mut self) -> std::result::Result<bool, ProtocolError> {
        let bytes = &self.scratch[self.start..self.end];
        let Some((reply, head)) = Reply::parse(bytes)? else {
            return Ok(false);
        };
        match reply {
            Reply::Simple { cookie, errno } => {
                let slot = self.slot_of(cookie)?;
                if self.structured && matches!(self.job(slot).op, Some(Op::Read { .. })) {
                    return Err(bad(
                        "a simple reply to a read, although structured replies were negotiated",
                    ));
                }
                self.start += head;
                let len = self.job(slot).awaited();
                if errno != 0 {
                    self.job(slot).fail(errno, String::new());
                } else if len > 0 {
                    self.expect_data(slot, 0, len, true)?;
                    return Ok(true);
                }
                self.advance(slot);
            }
            Reply::Chunk {
                cookie,
                done,
                kind,
                len,
            } => {
                if !self.structured {
                    return Err(bad("a structured reply that was not negotiated"));
                }
                let slot = self.slot_of(cookie)?;
                return self.chunk(slot, head, done, kind, len as usize);
            }
        }
        Ok(true)
    }

    fn chunk(
        &mut self,
        slot: u32,
        head: usize,
        done: bool,
        kind: u16,
        len: usize,
    ) -> std::result::Result<bool, ProtocolError> {
        let payload = self.start + head;
        if kind == c::REPLY_OFFSET_DATA {
            let Some(offset) = self.scratch[payload..self.end].first_chunk::<8>() else {
                return Ok(false);
            };
            let offset = u64::from_be_bytes(*offset);
            let len = len.checked_sub(8).filter(|l| *l > 0);
            let len = len.ok_or_else(|| bad("a data chunk without data"))?;
            let at = offset.checked_sub(self.job(slot).offset());
            let at = at.and_then(|at| usize::try_from(at).ok());
            let at = at.ok_or_else(|| bad("data before the requested range"))?;
            self.start = payload + 8;
            self.expect_data(slot, at, len, done)?;
            return Ok(true);
        }
        if len > ERROR_BYTES_MAX as usize {
            return Err(bad("a chunk that is too long for its type"));
        }
        let Some(bytes) = self.scratch[payload..self.end].get(..len) else {
            return Ok(false);
        };
        if kind & c::REPLY_ERROR_BIT != 0 {
            let (errno, words) = chunk_error(bytes);
            self.job(slot).fail(errno, words);
        } else if kind == c::REPLY_OFFSET_HOLE {
            let (offset, hole) = chunk_hole(bytes)?;
            let job = self.job(slot);
            let start = offset.saturating_sub(job.offset()) as usize;
            if job.op.is_some() {
                if offset < job.offset() || !job.cover(start, start + hole as usize) {
                    return Err(bad("a hole outside the requested range"));
                }
                let mut left = hole as usize;
                job.targets(start, |piece| {
                    let len = piece.len().min(left);
                    piece[..len].fill(0);
                    left -= len;
                    left > 0
                });
            }
        } else if kind != c::REPLY_NONE || !done {
            return Err(bad("a chunk of a type that was not negotiated"));
        }
        self.start = payload + len;
        if done {
            self.advance(slot);
        }
        Ok(true)
    }

    fn expect_data(
        &mut self,
        slot: u32,
        at: usize,
        left: usize,
        done: bool,
    ) -> std::result::Result<(), ProtocolError> {
        let job = self.job(slot);
        self.expect = if job.op.is_none() {
            if left > job.awaited() {
                return Err(bad("more data than requested"));
            }
            Expect::Drop { slot, left, done }
        } else if at.checked_add(left).is_some_and(|end| job.cover(at, end)) {
            Expect::Data {
                slot,
                at,
                left,
                done,
            }
        } else {
            return Err(bad("data outside the requested range"));
        };
        Ok(())
    }
}

fn bad(why: &str) -> ProtocolError {
    ProtocolError(why.to_owned())
}

impl Queue for NbdQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let _here = within(Layer::Path);
        if self.in_flight >= self.capacity {
            return Err(request);
        }
        self.in_flight += 1;
        let refused = match (&self.lost, self.info.check(&request.op)) {
            (Some(why), _) => Some(self.gone(why).in_op(&request.op)),
            (None, Err(e)) => Some(e),
            (None, Ok(())) => None,
        };
        if let Some(error) = refused {
            self.ready.push_back(Completion {
                tag: request.tag,
                op: request.op,
                result: Err(error),
            });
            return Ok(());
        }
        let slot = self.take_slot(Job::new(request));
        let (can, cookie) = (self.can, self.cookie(slot));
        match self.job(slot).begin(can, cookie) {
            Next::Send => self.out.push_back(Out::Job(slot)),
            Next::End => self.finish(slot),
        }
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        let _here = within(Layer::Path);
        self.push();
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let _here = within(Layer::Path);
        let until = wait.deadline();
        self.push();
        self.receive();
        self.push();
        while self.ready.is_empty() && self.in_flight > 0 && wait != Wait::Poll {
            let left = until.map(|u| u.saturating_duration_since(Instant::now()));
            if left.is_some_and(|l| l.is_zero()) {
                break;
            }
            let left = left.and_then(|l| Timespec::try_from(l).ok());
            let mut flags = PollFlags::IN;
            if self.watches_output {
                flags |= PollFlags::OUT;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.wire.fd(), flags)];
            match rustix::event::poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::from_io(&self.info.name, e.into())),
            }
            self.receive();
            self.push();
        }
        let count = self.ready.len();
        self.in_flight -= count;
        done.extend(self.ready.drain(..));
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn holds_answers(&self) -> bool {
        !self.ready.is_empty() || !self.late.is_empty()
    }
}

impl PathQueue for NbdQueue {
    fn withdraw(&mut self, tag: u64) -> Option<Request> {
        let slot = self.slots.iter().position(|(_, job)| {
            job.as_ref()
                .is_some_and(|job| job.tag == tag && job.op.is_some())
        })?;
        let slot = slot as u32;
        let place = self
            .out
            .iter()
            .position(|out| matches!(out, Out::Job(s) if *s == slot));
        let mut unsent = false;
        if let Some(place) = place {
            if place == 0 && self.sent > 0 {
                let mut slices = Vec::new();
                self.job(slot).gather(0, &mut slices);
                let rest: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
                self.out[0] = Out::Rest(rest);
            } else {
                self.out.remove(place);
                unsent = true;
            }
        }
        if let Expect::Data {
            slot: s,
            left,
            done,
            ..
        } = self.expect
            && s == slot
        {
            self.expect = Expect::Drop { slot, left, done };
        }
        let op = self.job(slot).withdraw();
        self.in_flight -= 1;
        if unsent {
            self.finish(slot);
        }
        Some(Request { tag, op })
    }

    fn drain_late(&mut self, tags: &mut Vec<u64>) {
        tags.append(&mut self.late);
    }

    /// An NBD server has no access states.
    fn access_sign(&mut self) -> Option<AccessHint> {
        None
    }

    fn lost_reason(&self) -> Option<&str> {
        self.lost.as_deref()
    }
}

impl Drop for NbdQueue {
    /// Waits for requests in flight, except those that were taken back, then sends a disconnect
    /// request. With replies outstanding the connection is reset instead, so that the server does
    /// not execute its requests later.
    fn drop(&mut self) {
        let until = Instant::now() + LEAVE_TIMEOUT;
        while self.lost.is_none() && self.in_flight > self.ready.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.reap(Wait::AtMost(left), &mut Vec::new()).is_err() {
                break;
            }
        }
        if self.lost.is_none() && self.slots.iter().all(|(_, job)| job.is_none()) {
            let goodbye = request(c::CMD_DISC, 0, 0, 0, 0);
            self.wire.send_last(&goodbye);
        }
    }
}
