//! One client: what it sends becomes requests, what the device answers becomes replies.
//!
//! **Invariant:** bytes move in both directions without a copy of payload but for what comes along
//! with a header; and a request leaves here only when its payload is whole.

use crate::memory::{Grant, Memory};
use crate::out::Output;
use crate::socket::{Raw, Socket};
use block::Bufs;
use nbd_proto::{
    Command, Errno, Event, ExportInfo, REQUEST_BYTES, RequestHeader, Server, TlsPolicy,
};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are received at once when requests without payload, or small ones, are expected.
const HEAD_BYTES: usize = 16 * 1024;
/// From this length on, payload is received straight to its buffers and nothing is read ahead but
/// the next header. Copying less than that costs about as much as a system call.
const DIRECT_BYTES: u32 = 16 * 1024;
/// Most that is held of a message of the negotiation: the longest option and its header.
const OPTION_BYTES_MAX: usize = 80 * 1024;
/// Pieces of replies that may wait to be sent before nothing more is read: a client that does not
/// take its replies gets no further.
const OUTPUT_PIECES_MAX: usize = 512;
/// Slices of one read from the socket.
const READ_SLICES: usize = 16;
/// Bytes that are thrown away at once.
const DISCARD_BYTES: usize = 16 * 1024;

/// A request that is whole, with its payload or with buffers for its data.
pub(crate) struct Job {
    pub(crate) request: RequestHeader,
    pub(crate) bufs: Bufs,
    pub(crate) grant: Grant,
}

/// What comes of a look at the socket.
pub(crate) enum Next {
    /// A request for this export.
    Job(usize, Job),
    /// Nothing for now.
    Nothing,
}

/// The fixed facts that a connection looks up.
pub(crate) struct Terms<'a> {
    /// Bytes of each buffer, by export.
    pub(crate) pieces: &'a [usize],
    /// TLS, where there is one.
    pub(crate) tls: Option<&'a Arc<ServerConfig>>,
    /// Requests in flight.
    pub(crate) max_requests: usize,
    /// New requests end in ESHUTDOWN.
    pub(crate) stopping: bool,
}

pub(crate) struct Connection {
    socket: Socket,
    server: Server,
    export: usize,
    head: Vec<u8>,
    /// `head[used..filled]` has arrived and not been dealt with.
    used: usize,
    filled: usize,
    /// A write whose payload has not arrived whole; its bytes so far.
    incoming: Option<(Job, usize)>,
    /// A request whose payload is thrown away, and what it ends with.
    refused: Option<(RequestHeader, Errno)>,
    /// A request that waits for buffers.
    starved: Option<RequestHeader>,
    /// The last write was long: its like is expected next.
    expect_direct: bool,
    output: Output,
    /// Buffers of its share that it holds.
    pub(crate) held: usize,
    in_flight: usize,
    /// The socket has nothing more, until epoll says so.
    drained: bool,
    /// The client closed its side; short reads no longer mean that the socket is empty.
    hung_up: bool,
    /// Nothing more is read before replies have gone out.
    paused: bool,
    closing: bool,
    broken: bool,
    /// Requests that were answered here, with an error.
    refusals: u64,
    since: Instant,
    /// When it last sent or took a byte while it held a large grant.
    progress: Instant,
    waits_to_write: bool,
}

impl Connection {
    pub(crate) fn new(raw: Raw, policy: TlsPolicy, infos: &Arc<[ExportInfo]>) -> Connection {
        let now = Instant::now();
        Connection {
            socket: Socket::new(raw),
            server: Server::new(Arc::clone(infos), policy),
            export: 0,
            head: vec![0; HEAD_BYTES],
            used: 0,
            filled: 0,
            incoming: None,
            refused: None,
            starved: None,
            expect_direct: false,
            output: Output::default(),
            held: 0,
            in_flight: 0,
            drained: false,
            hung_up: false,
            paused: false,
            closing: false,
            broken: false,
            refusals: 0,
            since: now,
            progress: now,
            waits_to_write: false,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Whether it waits for buffers.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.is_some()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Replies are on their way out.
    pub(crate) fn has_output(&self) -> bool {
        !self.broken && (!self.output.is_empty() || self.socket.wants_write())
    }

    /// What epoll saw: bytes to read, and perhaps the end.
    pub(crate) fn readable(&mut self, hung_up: bool) {
        self.drained = false;
        self.hung_up |= hung_up;
    }

    /// The next request, as far as the socket has it.
    pub(crate) fn next(&mut self, terms: &Terms<'_>, memory: &mut Memory) -> Next {
        loop {
            let full =
                self.in_flight >= terms.max_requests || self.output.count() >= OUTPUT_PIECES_MAX;
            if self.broken || self.closing || full {
                self.paused = full;
                return Next::Nothing;
            }
            let step = if self.incoming.is_some() {
                self.receive_payload()
            } else if let Some(request) = self.starved.take() {
                self.admit(request, terms, memory)
            } else if self.refused.is_some() {
                self.discard_payload()
            } else {
                self.interpret(terms, memory)
            };
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Job(job)) => {
                    self.in_flight += 1;
                    return Next::Job(self.export, job);
                }
                Ok(Step::Wait) => return Next::Nothing,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.drained = true;
                    return Next::Nothing;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => self.break_off(&e.to_string()),
            }
        }
    }

    /// Hands to the core what has arrived, receives more where that is not enough, and does what
    /// the core asks for.
    fn interpret(&mut self, terms: &Terms<'_>, memory: &mut Memory) -> io::Result<Step> {
        if self.server.is_negotiating() {
            // Who asks has to listen: nothing more is read before the answers are out.
            self.send(memory);
            if !self.output.is_empty() {
                self.paused = true;
                return Ok(Step::Wait);
            }
        }
        let consumed = self
            .server
            .handle_input(&self.head[self.used..self.filled])
            .map_err(io::Error::other)?;
        self.used += consumed;
        while let Some(bytes) = self.server.poll_transmit() {
            self.output.bytes(bytes);
        }
        match self.server.poll_event() {
            None if consumed > 0 => Ok(Step::Again),
            None => self.fill_head(),
            Some(Event::StartTls) => self.start_tls(terms, memory),
            Some(Event::Ready { export }) => {
                self.export = export;
                Ok(Step::Again)
            }
            Some(Event::Disconnect) => {
                self.closing = true;
                Ok(Step::Wait)
            }
            Some(Event::Request { request, refused }) => {
                let stopping = terms.stopping.then_some(Errno::Shutdown);
                match refused.or(stopping) {
                    Some(errno) => {
                        self.refused = Some((request, errno));
                        Ok(Step::Again)
                    }
                    None => self.admit(request, terms, memory),
                }
            }
        }
    }

    /// Gives a request its buffers, or lets it wait for them.
    fn admit(
        &mut self,
        request: RequestHeader,
        terms: &Terms<'_>,
        memory: &mut Memory,
    ) -> io::Result<Step> {
        let len = match request.command {
            Command::Read | Command::Write => request.len as usize,
            _ => 0,
        };
        let Some((bufs, grant)) = memory.take(&mut self.held, len, terms.pieces[self.export])
        else {
            self.starved = Some(request);
            return Ok(Step::Wait);
        };
        self.progress = Instant::now();
        let job = Job {
            request,
            bufs,
            grant,
        };
        if request.command == Command::Write {
            self.expect_direct = request.len >= DIRECT_BYTES;
            self.incoming = Some((job, 0));
            return Ok(Step::Again);
        }
        Ok(Step::Job(job))
    }

    /// Receives behind what is there; `Wait` when the client has closed its side.
    fn fill_head(&mut self) -> io::Result<Step> {
        self.check_drained()?;
        self.head.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        if self.filled == self.head.len() {
            if self.filled >= OPTION_BYTES_MAX {
                return Err(io::Error::other("a message is too long"));
            }
            self.head.resize(OPTION_BYTES_MAX, 0);
        }
        let wanted = if self.expect_direct && self.filled < REQUEST_BYTES {
            REQUEST_BYTES - self.filled
        } else {
            self.head.len() - self.filled
        };
        let to = &mut self.head[self.filled..self.filled + wanted];
        let got = self.socket.read_vectored(&mut [IoSliceMut::new(to)])?;
        self.filled += got;
        self.received(got, wanted)
    }

    /// Moves payload to its buffers: first what came with the header, then from the socket, and
    /// behind it, in the same call, the next header.
    fn receive_payload(&mut self) -> io::Result<Step> {
        let Some((job, got)) = &mut self.incoming else {
            return Ok(Step::Again);
        };
        let total = job.request.len as usize;
        let here = &self.head[self.used..self.filled];
        if !here.is_empty() && *got < total {
            let n = scatter(&here[..here.len().min(total - *got)], &mut job.bufs, *got);
            self.used += n;
            *got += n;
            self.server.payload_moved(n as u32);
        }
        if *got == total {
            return match self.incoming.take() {
                Some((job, _)) => Ok(Step::Job(job)),
                None => Ok(Step::Again),
            };
        }
        self.check_drained()?;
        // All of the head was payload, so it is free.
        (self.used, self.filled) = (0, 0);
        let Some((job, got)) = &mut self.incoming else {
            return Ok(Step::Again);
        };
        let mut slices = Vec::with_capacity(READ_SLICES + 1);
        let mut skip = *got;
        for buf in job.bufs.iter_mut() {
            let len = buf.len();
            if skip < len && slices.len() < READ_SLICES {
                slices.push(IoSliceMut::new(&mut buf[skip..]));
            }
            skip = skip.saturating_sub(len);
        }
        let room: usize = slices.iter().map(|s| s.len()).sum();
        if room == total - *got {
            slices.push(IoSliceMut::new(&mut self.head[..REQUEST_BYTES]));
        }
        let wanted: usize = slices.iter().map(|s| s.len()).sum();
        let n = self.socket.read_vectored(&mut slices)?;
        let payload = n.min(room);
        *got += payload;
        self.filled = n - payload;
        self.server.payload_moved(payload as u32);
        self.progress = Instant::now();
        self.received(n, wanted)
    }

    /// Throws the payload of a refused request away, then answers it.
    fn discard_payload(&mut self) -> io::Result<Step> {
        let left = self.server.payload_left() as usize;
        let here = left.min(self.filled - self.used);
        self.used += here;
        self.server.payload_moved(here as u32);
        if left == here {
            if let Some((request, errno)) = self.refused.take() {
                self.refusals += 1;
                self.output.head(self.server.reply(&request, Some(errno)));
            }
            return Ok(Step::Again);
        }
        self.check_drained()?;
        let mut waste = [0; DISCARD_BYTES];
        let wanted = waste.len().min(left - here);
        let slice = IoSliceMut::new(&mut waste[..wanted]);
        let n = self.socket.read_vectored(&mut [slice])?;
        self.server.payload_moved(n as u32);
        self.received(n, wanted)
    }

    fn check_drained(&self) -> io::Result<()> {
        if self.drained {
            Err(ErrorKind::WouldBlock.into())
        } else {
            Ok(())
        }
    }

    fn received(&mut self, n: usize, wanted: usize) -> io::Result<Step> {
        if n == 0 {
            // The client closed its side: what it is owed is still sent.
            self.closing = true;
            return Ok(Step::Wait);
        }
        // epoll(7), question 9: a short read has emptied a stream socket, and news come as an edge.
        self.drained = n < wanted && self.socket.short_read_is_empty() && !self.hung_up;
        Ok(Step::Again)
    }

    /// The last reply in the clear goes out first. What the client sent after its request in the
    /// clear was not protected by anybody and ends the connection (CVE-2021-3716).
    fn start_tls(&mut self, terms: &Terms<'_>, memory: &mut Memory) -> io::Result<Step> {
        self.send(memory);
        if self.used < self.filled || !self.output.is_empty() {
            return Err(io::Error::other("bytes in the clear behind STARTTLS"));
        }
        let config = terms.tls.ok_or(io::Error::other("no TLS is configured"))?;
        let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        self.socket.start_tls(tls);
        self.server.tls_started();
        Ok(Step::Again)
    }

    /// Puts the answer to a job on its way: `data` in order, for a read that went well.
    pub(crate) fn reply(
        &mut self,
        request: &RequestHeader,
        error: Option<Errno>,
        data: impl IntoIterator<Item = Bufs>,
        grant: Grant,
    ) {
        self.in_flight -= 1;
        self.output.head(self.server.reply(request, error));
        self.output.data(data, grant);
    }

    /// Requests that were answered with an error since this was asked last, without the device.
    pub(crate) fn take_refusals(&mut self) -> u64 {
        std::mem::take(&mut self.refusals)
    }

    /// Whether it stopped reading for replies that have gone out by now.
    pub(crate) fn may_resume(&mut self) -> bool {
        let resumes = self.paused && self.output.is_empty();
        self.paused &= !resumes;
        resumes
    }

    /// Sends as much as the socket takes.
    pub(crate) fn send(&mut self, memory: &mut Memory) {
        if self.broken {
            return;
        }
        let sent = self.output.send(&mut self.socket);
        while let Some(grant) = self.output.pop_grant() {
            memory.give_back(Some(&mut self.held), grant);
        }
        match sent {
            Ok(0) => {}
            Ok(_) => self.progress = Instant::now(),
            Err(e) => self.break_off(&e.to_string()),
        }
    }

    /// Whether nothing more will come of it: everything that is owed has been sent.
    pub(crate) fn is_over(&self) -> bool {
        self.broken || (self.closing && self.in_flight == 0 && !self.has_output())
    }

    /// Whether epoll has to be told anew what to wait for, and whether that is room to write.
    pub(crate) fn changed_interest(&mut self) -> Option<bool> {
        let wants = self.has_output();
        let changed = wants != self.waits_to_write;
        self.waits_to_write = wants;
        changed.then_some(wants)
    }

    /// Cuts off a client that is late: with its negotiation, or while others wait for what it holds.
    pub(crate) fn check_time(&mut self, now: Instant, handshake: Duration, stall: Duration) {
        let holds_large = self.output.holds_large()
            || matches!(&self.incoming, Some((job, _)) if job.grant == Grant::Large);
        if self.server.is_negotiating() && now.duration_since(self.since) > handshake {
            self.break_off("the negotiation takes too long");
        } else if holds_large && now.duration_since(self.progress) > stall {
            self.break_off("it stalls with a large request");
        }
    }

    /// Whether time plays a part at the moment.
    pub(crate) fn is_negotiating(&self) -> bool {
        self.server.is_negotiating()
    }

    /// Gives back what it holds; for the end.
    pub(crate) fn close(mut self, memory: &mut Memory) {
        if !self.broken {
            self.socket.close();
        }
        if let Some((Job { bufs, grant, .. }, _)) = self.incoming.take() {
            drop(bufs);
            memory.give_back(None, grant);
        }
        self.output.abandon();
        while let Some(grant) = self.output.pop_grant() {
            memory.give_back(None, grant);
        }
    }

    fn break_off(&mut self, why: &str) {
        tracing::debug!(why, "an NBD connection is cut off");
        self.broken = true;
    }
}

enum Step {
    Again,
    Job(Job),
    Wait,
}

/// Copies to the buffers, from their byte `at` on; says how many bytes found a place.
fn scatter(mut from: &[u8], bufs: &mut Bufs, mut at: usize) -> usize {
    let all = from.len();
    for buf in bufs.iter_mut() {
        if at >= buf.len() {
            at -= buf.len();
            continue;
        }
        let n = from.len().min(buf.len() - at);
        buf[at..at + n].copy_from_slice(&from[..n]);
        from = &from[n..];
        at = 0;
        if from.is_empty() {
            break;
        }
    }
    all - from.len()
}
