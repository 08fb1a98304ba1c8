//! A session on its non-blocking socket: many PDUs per `writev` on output, few long reads on input.

use iscsi_proto::{Event, OutPdu, Payload, Session, TaskId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, writev};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Size of the scratch buffer in bytes: as much data as the target may send in one PDU.
const SCRATCH_BYTES: usize = 256 * 1024;
/// Bytes of the scratch buffer used per read while PDUs are long: less data has to be copied.
const SCRATCH_SHORT: usize = 16 * 1024;
/// Remaining length in bytes from which a PDU counts as long.
const LONG_MIN: u32 = 64 * 1024;
/// Remaining data of this length or more is read directly into its buffers; below it, a copy costs
/// less than another system call.
const DIRECT_MIN: u32 = 16 * 1024;
/// Maximum number of consecutive reads before the caller processes the events.
const READS_MAX: usize = 16;
/// Maximum number of PDUs prepared at a time.
const PDUS_MAX: usize = 64;
/// Maximum number of slices per `writev`: three for each PDU with data.
const PARTS_MAX: usize = 192;

/// Buffers of the tasks in flight.
pub(crate) trait Memory {
    /// Calls `each` with the parts of a write's data in order.
    fn gather<'a>(&'a self, task: TaskId, offset: u32, len: u32, each: impl FnMut(&'a [u8]));

    /// Finds the buffer space for a read's data at `offset`, up to the end of one buffer.
    fn room(&mut self, task: TaskId, offset: u32) -> &mut [u8];
}

/// Reason why a connection is unusable.
pub(crate) type LossReason = String;

/// A session and its socket.
pub(crate) struct Wire {
    stream: TcpStream,
    pub(crate) session: Session,
    out: VecDeque<OutPdu>,
    /// Bytes already sent of the first PDU.
    sent: usize,
    /// The socket accepts no more output for now.
    blocked: bool,
    scratch: Box<[u8]>,
    /// Bytes at the start of `scratch` that were received with the login.
    early: usize,
    /// The most recent PDUs were long.
    long: bool,
}

impl Wire {
    /// Creates a wire. `early` holds the bytes received after the last login response.
    pub(crate) fn new(stream: TcpStream, session: Session, early: &[u8]) -> Wire {
        let mut scratch = vec![0; SCRATCH_BYTES.max(early.len())].into_boxed_slice();
        scratch[..early.len()].copy_from_slice(early);
        Wire {
            stream,
            session,
            out: VecDeque::new(),
            sent: 0,
            blocked: false,
            scratch,
            early: early.len(),
            long: false,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reports whether the socket refused output.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Reports whether nothing is in flight in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_empty() && self.session.in_flight() == 0
    }

    /// Sends the session's output until the socket accepts no more.
    pub(crate) fn flush(&mut self, memory: &impl Memory) -> Result<(), LossReason> {
        self.blocked = false;
        loop {
            while self.out.len() < PDUS_MAX {
                let Some(mut pdu) = self.session.next_pdu() else {
                    break;
                };
                let payload = pdu.payload.clone();
                pdu.seal(|each| parts(&payload, memory, each));
                self.out.push_back(pdu);
            }
            if self.out.is_empty() {
                return Ok(());
            }
            match self.write(memory) {
                Ok(n) => self.advance(n),
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(format!("sending failed: {}", std::io::Error::from(e))),
            }
        }
    }

    fn write(&self, memory: &impl Memory) -> Result<usize, Errno> {
        let mut parts = Parts {
            iov: [IoSlice::new(&[]); PARTS_MAX],
            used: 0,
            skip: self.sent,
            full: false,
        };
        for pdu in &self.out {
            parts.push(pdu.header());
            match &pdu.payload {
                Payload::None => {}
                Payload::Own(bytes) => parts.push(bytes),
                Payload::Task { task, offset, len } => {
                    memory.gather(*task, *offset, *len, |part| {
                        parts.push(part);
                    });
                }
            }
            parts.push(pdu.trailer());
            if parts.full {
                break;
            }
        }
        writev(&self.stream, &parts.iov[..parts.used])
    }

    /// Removes PDUs that were sent completely, after `n` more bytes were sent.
    fn advance(&mut self, n: usize) {
        self.sent += n;
        while let Some(pdu) = self.out.front() {
            let len = pdu.header().len() + pdu.payload.len() as usize + pdu.trailer().len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.out.pop_front();
        }
    }

    /// Copies the task data that queued PDUs still need, so that the task's buffers can be
    /// released.
    pub(crate) fn detach(&mut self, id: TaskId, memory: &impl Memory) {
        for pdu in &mut self.out {
            if matches!(pdu.payload, Payload::Task { task, .. } if task == id) {
                let mut copy = Vec::with_capacity(pdu.payload.len() as usize);
                parts(&pdu.payload, memory, &mut |part| {
                    copy.extend_from_slice(part)
                });
                pdu.payload = Payload::Own(copy);
            }
        }
    }

    /// Reads available input: data into its buffers, everything else to the end of `events`.
    pub(crate) fn receive(
        &mut self,
        memory: &mut impl Memory,
        events: &mut Vec<Event>,
    ) -> Result<(), LossReason> {
        if self.early > 0 {
            let early = std::mem::take(&mut self.early);
            self.parse(early, memory, events)?;
        }
        for _ in 0..READS_MAX {
            let direct = self.session.direct().filter(|d| d.left >= DIRECT_MIN);
            let mut straight: &mut [u8] = match direct {
                Some(direct) => memory.room(direct.task, direct.offset),
                None => &mut [],
            };
            let most = direct.map_or(0, |d| d.left as usize).min(straight.len());
            straight = &mut straight[..most];
            let short = if self.long {
                SCRATCH_SHORT
            } else {
                self.scratch.len()
            };
            let scratch = &mut self.scratch[..short];
            let got = if straight.is_empty() {
                rustix::io::read(&self.stream, scratch)
            } else {
                let mut iov = [IoSliceMut::new(straight), IoSliceMut::new(scratch)];
                readv(&self.stream, &mut iov)
            };
            let n = match got {
                Ok(0) => return Err("the target closed the connection".into()),
                Ok(n) => n,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(format!("receiving failed: {}", std::io::Error::from(e))),
            };
            let placed = n.min(most);
            if placed > 0 {
                self.session.took(&straight[..placed]);
            }
            let before = events.len();
            self.parse(n - placed, memory, events)?;
            if self.session.direct().is_some_and(|d| d.left >= LONG_MIN) {
                self.long = true;
            } else if events.len() > before + 1 {
                self.long = false;
            }
            if n < most + short {
                // A short read: the socket is almost certainly empty.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Processes the first `len` bytes of the scratch buffer.
    fn parse(
        &mut self,
        len: usize,
        memory: &mut impl Memory,
        events: &mut Vec<Event>,
    ) -> Result<(), LossReason> {
        let mut at = 0;
        loop {
            let taken = self.session.handle_input(&self.scratch[at..len]);
            let taken = taken.map_err(|e| e.to_string())?;
            at += taken.bytes;
            match taken.event {
                None => return Ok(()),
                Some(Event::Data {
                    task,
                    offset,
                    bytes,
                }) => place(memory, task, offset, &self.scratch[at - bytes..at]),
                Some(event) => events.push(event),
            }
        }
    }

    /// Blocks until the socket is readable, a blocked socket is writable, or `time` has passed.
    pub(crate) fn wait(&self, time: Option<Duration>) -> rustix::io::Result<()> {
        let mut flags = PollFlags::IN;
        if self.blocked {
            flags |= PollFlags::OUT;
        }
        // A timeout too long for a `Timespec` waits indefinitely.
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut [PollFd::new(&self.stream, flags)], time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

fn parts<M: Memory>(payload: &Payload, memory: &M, each: &mut dyn FnMut(&[u8])) {
    match payload {
        Payload::None => {}
        Payload::Own(bytes) => each(bytes),
        Payload::Task { task, offset, len } => memory.gather(*task, *offset, *len, each),
    }
}

/// Slices of one `writev`.
struct Parts<'a> {
    iov: [IoSlice<'a>; PARTS_MAX],
    used: usize,
    /// Bytes to skip because they were already sent.
    skip: usize,
    /// A slice did not fit; nothing is added after it.
    full: bool,
}

impl<'a> Parts<'a> {
    fn push(&mut self, part: &'a [u8]) {
        if self.skip >= part.len() {
            self.skip -= part.len();
        } else if let Some(place) = self.iov.get_mut(self.used).filter(|_| !self.full) {
            *place = IoSlice::new(&part[self.skip..]);
            self.used += 1;
            self.skip = 0;
        } else {
            self.full = true;
        }
    }
}

fn place(memory: &mut impl Memory, task: TaskId, mut offset: u32, mut data: &[u8]) {
    while !data.is_empty() {
        let room = memory.room(task, offset);
        let n = room.len().min(data.len());
        if n == 0 {
            // Not expected: the session has validated the range.
            return;
        }
        room[..n].copy_from_slice(&data[..n]);
        data = &data[n..];
        offset += n as u32;
    }
}
