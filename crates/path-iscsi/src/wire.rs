//! A session on its socket, which never blocks: PDUs out by one `writev` for many, data in by few
//! long reads.

use iscsi_proto::{Event, OutPdu, Payload, Session, TaskId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, writev};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Bytes that one read takes: as much data as the target may send in one PDU.
const SCRATCH_BYTES: usize = 256 * 1024;
/// Bytes that one read takes beside what goes straight to its place, while PDUs are long: less is
/// copied then.
const SCRATCH_SHORT: usize = 16 * 1024;
/// A PDU of which this much is still to come is long.
const LONG_MIN: u32 = 64 * 1024;
/// Data that is still to come from this length on is read straight to its place; below it a copy is
/// cheaper than another system call.
const DIRECT_MIN: u32 = 16 * 1024;
/// Reads in a row before the caller sees what they brought.
const READS_MAX: usize = 16;
/// PDUs that are made ready at a time.
const PDUS_MAX: usize = 64;
/// Parts of one `writev`: three for each PDU with data.
const PARTS_MAX: usize = 192;

/// Where the data of tasks is.
pub(crate) trait Memory {
    /// Gives the parts of a write's data in order.
    fn gather<'a>(&'a self, task: TaskId, offset: u32, len: u32, each: impl FnMut(&'a [u8]));

    /// The place of a read's data from `offset` on, as far as it is in one piece.
    fn room(&mut self, task: TaskId, offset: u32) -> &mut [u8];
}

/// Why a connection cannot be used any more.
pub(crate) type Lost = String;

/// A session and its socket.
pub(crate) struct Wire {
    stream: TcpStream,
    pub(crate) session: Session,
    out: VecDeque<OutPdu>,
    /// Bytes of the first PDU that are sent.
    sent: usize,
    /// The socket takes no more for now.
    blocked: bool,
    scratch: Box<[u8]>,
    /// Bytes at the start of `scratch` that came with the login.
    early: usize,
    /// The last PDUs were long.
    long: bool,
}

impl Wire {
    /// `early` came behind the login's last answer.
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

    /// Whether there is output that the socket did not take.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether nothing is under way, in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_empty() && self.session.in_flight() == 0
    }

    /// Sends what the session has, as far as the socket takes it.
    pub(crate) fn flush(&mut self, memory: &impl Memory) -> Result<(), Lost> {
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

    /// Drops the PDUs that are sent whole.
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

    /// Copies what PDUs on their way still need of a task's data, so that its buffers can go.
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

    /// Reads what has come: data goes to its place, everything else to the end of `events`.
    pub(crate) fn receive(
        &mut self,
        memory: &mut impl Memory,
        events: &mut Vec<Event>,
    ) -> Result<(), Lost> {
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
                Ok(0) => return Err("the target has closed the connection".into()),
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
                // The socket is empty, as good as certainly.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes the first `len` bytes of the scratch buffer.
    fn parse(
        &mut self,
        len: usize,
        memory: &mut impl Memory,
        events: &mut Vec<Event>,
    ) -> Result<(), Lost> {
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

    /// Waits until the socket has something to read, or takes output again, or `time` has passed.
    pub(crate) fn wait(&self, time: Option<Duration>) -> rustix::io::Result<()> {
        let mut flags = PollFlags::IN;
        if self.blocked {
            flags |= PollFlags::OUT;
        }
        // A time too long to be told is for ever.
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

/// The parts of one `writev`.
struct Parts<'a> {
    iov: [IoSlice<'a>; PARTS_MAX],
    used: usize,
    /// Bytes before the first that is to be sent.
    skip: usize,
    /// A part did not fit; nothing comes after it.
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
            // The session has checked the range, so there is room.
            return;
        }
        room[..n].copy_from_slice(&data[..n]);
        data = &data[n..];
        offset += n as u32;
    }
}
