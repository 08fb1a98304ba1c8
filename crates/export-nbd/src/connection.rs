//! One client: what it sends becomes requests, what the device answers becomes replies.

use crate::Limits;
use crate::door::Guest;
use crate::engine::{REQUEST_BYTES_MAX, SHARE_BYTES};
use crate::session::{Fence, Session};
use crate::socket::{Raw, Socket};
use crate::worker::{Hub, Newcomer, REQUESTS_MAX};
use block::{Buf, Bufs};
use nbd_proto::{
    Command, Errno, Handshake, Outcome, REQUEST_BYTES, RequestHeader, TlsPolicy, constants as c,
    simple_reply, structured_data, structured_done, structured_error,
};
use rustls::ServerConnection;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are received at once when a header is expected: many headers, or a header and a
/// small payload. What belongs to a large payload beyond this goes straight to its buffer.
const HEAD_BYTES: usize = 8 * 1024;
/// Most that is held of a negotiation that has not come to its end.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;
/// Longest that a client's goodbye is waited for.
const GOODBYE: Duration = Duration::from_secs(2);
/// A payload or reply that has moved by so many bytes has not stood still.
const PROGRESS_BYTES: usize = 128 * 1024;
/// Slices of one write to the socket.
const SLICES: usize = 64;

/// What a client asks for next.
pub(crate) enum Next {
    /// A request, with its payload or with buffers for its answer.
    Request {
        export: usize,
        header: RequestHeader,
        payload: Vec<Buf>,
    },
    /// Not now.
    Nothing,
}

/// What has to be done about a connection.
pub(crate) enum Status {
    /// Wait for it; `changed` says what for, if that is not what it was: to read, to write.
    Waiting { changed: Option<(bool, bool)> },
    /// It is over.
    Closed,
}

enum Phase {
    Handshake(Box<Handshake>),
    /// Requests; the payload on its way, if one is.
    Transmission {
        export: usize,
        structured: bool,
        incoming: Option<Incoming>,
    },
    /// Nothing more is read; what is left is sent.
    Closing,
    /// All is said, TLS' goodbye too. A socket that is closed before the client's goodbye was read
    /// would be reset, which the client takes for an accident.
    Lingering {
        until: Instant,
    },
}

/// A write whose payload has not arrived whole.
struct Incoming {
    header: RequestHeader,
    bufs: Vec<Buf>,
    /// Bytes that the buffers hold: none before payload arrives, then a share, then all.
    room: usize,
    /// Its connection held no other buffers when it began.
    empty_handed: bool,
    /// Bytes that have arrived, or that are thrown away when there are no buffers.
    got: usize,
    refused: Option<Errno>,
}

/// A piece of a reply on its way out.
enum Out {
    Head([u8; 28], usize),
    Bytes(Vec<u8>),
    Data(Buf),
}

impl Out {
    fn bytes(&self) -> &[u8] {
        match self {
            Out::Head(bytes, len) => &bytes[..*len],
            Out::Bytes(bytes) => bytes,
            Out::Data(buf) => buf,
        }
    }
}

/// Gives buffers for so many bytes, or nothing for now. The flag says that the connection holds no
/// others, and so may have what is kept back.
pub(crate) type Take<'a> = &'a mut dyn FnMut(usize, bool) -> Option<Vec<Buf>>;

pub(crate) struct Connection {
    socket: Socket,
    guest: Guest,
    began: Instant,
    /// Since when a payload or reply has stood still, and how many bytes have moved since.
    still_since: Instant,
    moved: usize,
    phase: Phase,
    hub: Arc<Hub>,
    /// What the client named it by, if it did.
    session: Option<Arc<Session>>,
    /// The end of another session, which the negotiation waits for.
    fence: Option<Fence>,
    head: Vec<u8>,
    /// Bytes of `head` that have been dealt with.
    used: usize,
    out: VecDeque<Out>,
    /// Bytes of the first piece that have been sent.
    sent: usize,
    in_flight: usize,
    /// Stopped by us, not for want of bytes: it waits for buffers or for replies to go out.
    held: bool,
    broken: bool,
    /// The client has closed its side.
    left: bool,
    waits_for: (bool, bool),
}

impl Connection {
    pub(crate) fn new(newcomer: Newcomer, hub: Arc<Hub>) -> Connection {
        let policy = if newcomer.forced_tls {
            TlsPolicy::Required
        } else {
            TlsPolicy::Never
        };
        let mut handshake = Handshake::new(Arc::clone(hub.infos()), policy);
        let greeting = handshake.take_output();
        let began = Instant::now();
        Connection {
            socket: Socket::Plain(newcomer.raw),
            guest: newcomer.guest,
            began,
            still_since: began,
            moved: 0,
            phase: Phase::Handshake(Box::new(handshake)),
            hub,
            session: None,
            fence: None,
            head: Vec::with_capacity(HEAD_BYTES),
            used: 0,
            out: VecDeque::from([Out::Bytes(greeting)]),
            sent: 0,
            in_flight: 0,
            held: false,
            broken: false,
            left: false,
            waits_for: (true, false),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// What its requests hold until they have ended.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.session.clone()
    }

    /// Whether it waits for the end of another session.
    pub(crate) fn is_fencing(&self) -> bool {
        self.fence.is_some() && !self.broken
    }

    /// Whether only the client's goodbye is missing.
    pub(crate) fn is_lingering(&self) -> bool {
        matches!(self.phase, Phase::Lingering { .. }) && !self.broken
    }

    /// Ends it if its session is fenced, and says so: what has arrived and is no request yet
    /// becomes none.
    pub(crate) fn obey_fence(&mut self) -> bool {
        let fenced = self.session.as_ref().is_some_and(|s| s.is_fenced());
        if fenced && !self.broken {
            self.break_off("its session is fenced");
        }
        fenced
    }

    /// Ends it if its place is another stranger's now, and says so.
    pub(crate) fn obey_door(&mut self) -> bool {
        let leaves = self.guest.must_leave();
        if leaves && !self.broken {
            self.break_off("it negotiates, and others wait for its place");
        }
        leaves
    }

    /// Ends it if its negotiation takes too long, or a payload or a reply stands still, and says so.
    pub(crate) fn is_overdue(&mut self, now: Instant, limits: &Limits) -> bool {
        if self.broken {
            return true;
        }
        if matches!(self.phase, Phase::Handshake(_)) {
            let over = now.duration_since(self.began) >= limits.handshake;
            if over && self.fence.is_none() {
                self.break_off("its negotiation took too long");
            }
            return self.broken;
        }
        let receives = matches!(
            self.phase,
            Phase::Transmission {
                incoming: Some(_),
                ..
            }
        );
        let waits = receives && !self.held || self.has_output();
        if !waits || self.moved >= PROGRESS_BYTES {
            (self.still_since, self.moved) = (now, 0);
        } else if now.duration_since(self.still_since) >= limits.stall {
            self.break_off("a payload or a reply stands still");
        }
        self.broken
    }

    /// The other side is gone, so nobody waits for the answer to a fence.
    pub(crate) fn hung_up(&mut self) {
        if self.is_fencing() {
            self.break_off("its client left during a fence");
        }
    }

    /// Whether it may have requests that were received and wait for buffers, or for others to end.
    /// No event of its socket says when it can go on.
    pub(crate) fn is_held(&self) -> bool {
        self.held && !self.broken
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.broken && (!self.out.is_empty() || self.socket.wants_write())
    }

    /// The next request, as far as the socket has it.
    pub(crate) fn next(&mut self, take: Take<'_>) -> Next {
        self.held = false;
        loop {
            if self.obey_fence() || self.broken {
                return Next::Nothing;
            }
            if self.in_flight >= REQUESTS_MAX {
                self.held = true;
                return Next::Nothing;
            }
            let step = match &self.phase {
                Phase::Handshake(_) => self.negotiate(),
                Phase::Transmission {
                    incoming: Some(_), ..
                } => self.receive_payload(take),
                Phase::Transmission { .. } => self.take_header(take),
                Phase::Closing => return Next::Nothing,
                Phase::Lingering { .. } => {
                    self.broken = self.socket.has_ended();
                    return Next::Nothing;
                }
            };
            match step {
                Step::Again => {}
                Step::Request(next) => {
                    self.in_flight += 1;
                    return next;
                }
                Step::Starved => {
                    self.held = true;
                    return Next::Nothing;
                }
                Step::NeedBytes => match self.fill_head() {
                    Ok(true) => {}
                    Ok(false) => return Next::Nothing,
                    Err(e) => self.break_off(&e.to_string()),
                },
                Step::Wait => return Next::Nothing,
            }
        }
    }

    /// Receives into `head`; false when there is nothing now.
    fn fill_head(&mut self) -> io::Result<bool> {
        self.head.drain(..self.used);
        self.used = 0;
        let had = self.head.len();
        if had >= HANDSHAKE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the negotiation is too long",
            ));
        }
        self.head.resize(had + HEAD_BYTES, 0);
        let got = self.socket.read(&mut self.head[had..]);
        self.head.truncate(had + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => {
                self.end();
                Ok(false)
            }
            Ok(_) => Ok(true),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn negotiate(&mut self) -> Step {
        let Phase::Handshake(handshake) = &mut self.phase else {
            return Step::Wait;
        };
        if let Some(fence) = &self.fence {
            let Some(ended) = self.hub.sessions.outcome(fence) else {
                return Step::Wait;
            };
            self.fence = None;
            handshake.fenced(ended);
        }
        match handshake.handle_input(&self.head[self.used..]) {
            Ok(consumed) => self.used += consumed,
            Err(e) => {
                self.break_off(&e.to_string());
                return Step::Wait;
            }
        }
        let output = handshake.take_output();
        let outcome = handshake.outcome();
        if !output.is_empty() {
            self.out.push_back(Out::Bytes(output));
        }
        match outcome {
            None => Step::NeedBytes,
            Some(Outcome::Close) => {
                self.phase = Phase::Closing;
                Step::Wait
            }
            Some(Outcome::Fence { key }) => {
                self.fence = Some(self.hub.fence(key));
                Step::Again
            }
            Some(Outcome::Transmission {
                export,
                structured,
                session,
            }) => {
                let session = session.map(|key| self.hub.session(key, self.guest.address()));
                let session = session.transpose();
                match session.and_then(|session| self.guest.establish().map(|()| session)) {
                    Ok(session) => self.session = session,
                    Err(why) => {
                        tracing::warn!("an NBD client was refused: {why}");
                        self.break_off(why);
                        return Step::Wait;
                    }
                }
                self.still_since = Instant::now();
                self.phase = Phase::Transmission {
                    export,
                    structured,
                    incoming: None,
                };
                Step::Again
            }
            Some(Outcome::StartTls) => {
                self.start_tls();
                Step::Again
            }
        }
    }

    /// The last reply in the clear goes out first. What the client sent after its request in the
    /// clear was not protected by anybody and ends the connection (CVE-2021-3716).
    fn start_tls(&mut self) {
        self.send();
        let clean = self.used == self.head.len() && self.out.is_empty();
        let connection = self.hub.tls().cloned().map(ServerConnection::new);
        match connection {
            Some(Ok(connection)) if clean && !self.broken => {
                let raw = std::mem::replace(&mut self.socket, closed_socket());
                self.socket = raw.into_tls(connection);
                let handshake = Handshake::new(Arc::clone(self.hub.infos()), TlsPolicy::Active);
                self.phase = Phase::Handshake(Box::new(handshake));
            }
            _ => self.break_off("TLS could not be started"),
        }
    }

    fn take_header(&mut self, take: Take<'_>) -> Step {
        let empty_handed = self.in_flight == 0 && self.out.is_empty();
        let Phase::Transmission {
            export, incoming, ..
        } = &mut self.phase
        else {
            return Step::Wait;
        };
        let Some((bytes, _)) = self.head[self.used..].split_first_chunk::<REQUEST_BYTES>() else {
            return Step::NeedBytes;
        };
        let header = match RequestHeader::parse(bytes) {
            Ok(header) => header,
            Err(e) => {
                self.break_off(&e.to_string());
                return Step::Wait;
            }
        };
        let export = *export;
        match header.command {
            _ if header.unknown_flags
                && !matches!(header.command, Command::Write | Command::Disconnect) =>
            {
                self.used += REQUEST_BYTES;
                self.in_flight += 1;
                self.reply(&header, Some(Errno::Invalid), Vec::new());
                Step::Again
            }
            Command::Disconnect => {
                self.phase = Phase::Closing;
                Step::Wait
            }
            Command::Write => {
                let read_only = self.hub.infos()[export].flags & c::FLAG_READ_ONLY != 0;
                let refused = match header.len {
                    _ if read_only => Some(Errno::Permission),
                    _ if header.unknown_flags => Some(Errno::Invalid),
                    len if len > REQUEST_BYTES_MAX => Some(Errno::Overflow),
                    _ => None,
                };
                *incoming = Some(Incoming {
                    header,
                    bufs: Vec::new(),
                    room: 0,
                    got: 0,
                    empty_handed,
                    refused,
                });
                self.used += REQUEST_BYTES;
                Step::Again
            }
            Command::Read if header.len > REQUEST_BYTES_MAX => {
                self.used += REQUEST_BYTES;
                self.in_flight += 1;
                self.reply(&header, Some(Errno::Overflow), Vec::new());
                Step::Again
            }
            Command::Read => {
                let end = header.offset.checked_add(u64::from(header.len));
                let sane = end.is_some_and(|end| end <= self.hub.infos()[export].size);
                let payload = match take(if sane { header.len as usize } else { 0 }, empty_handed) {
                    Some(bufs) => bufs,
                    None => return Step::Starved,
                };
                self.used += REQUEST_BYTES;
                Step::Request(Next::Request {
                    export,
                    header,
                    payload,
                })
            }
            _ => {
                let read_only = self.hub.infos()[export].flags & c::FLAG_READ_ONLY != 0;
                self.used += REQUEST_BYTES;
                if read_only && matches!(header.command, Command::Trim | Command::WriteZeroes) {
                    self.in_flight += 1;
                    self.reply(&header, Some(Errno::Permission), Vec::new());
                    return Step::Again;
                }
                Step::Request(Next::Request {
                    export,
                    header,
                    payload: Vec::new(),
                })
            }
        }
    }

    /// Moves payload to its buffers: first what came with the header, then from the socket.
    fn receive_payload(&mut self, take: Take<'_>) -> Step {
        let Phase::Transmission {
            export, incoming, ..
        } = &mut self.phase
        else {
            return Step::Wait;
        };
        let Some(mut write) = incoming.take() else {
            return Step::Again;
        };
        let export = *export;
        let total = write.header.len as usize;
        while write.got < total {
            let here = &self.head[self.used..];
            if write.refused.is_none() && write.got == write.room {
                // Buffers are for payload that arrives: a header alone costs nothing, and more than
                // a share is for those who have sent one.
                let (len, step) = match write.room {
                    0 if here.is_empty() => (0, Step::NeedBytes),
                    0 => (total.min(SHARE_BYTES), Step::Starved),
                    room => (total - room, Step::Starved),
                };
                match take(len, write.empty_handed).filter(|bufs| !bufs.is_empty()) {
                    Some(bufs) => write.bufs.extend(bufs),
                    None => {
                        *incoming = Some(write);
                        return step;
                    }
                }
                write.room += len;
            }
            let step = if !here.is_empty() {
                let len = here.len().min(total - write.got);
                let len = match write.place() {
                    Some(to) => {
                        let len = len.min(to.len());
                        to[..len].copy_from_slice(&here[..len]);
                        len
                    }
                    None => len,
                };
                self.used += len;
                Ok(len)
            } else {
                let left = total - write.got;
                match write.place() {
                    Some(to) => self.socket.read(to),
                    None => self.socket.read(&mut vec![0; left.min(64 * 1024)]),
                }
            };
            match step {
                Ok(0) => {
                    self.end();
                    return Step::Wait;
                }
                Ok(n) => {
                    write.got += n;
                    self.moved = self.moved.saturating_add(n);
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) =>
                {
                    if let Phase::Transmission { incoming, .. } = &mut self.phase {
                        *incoming = Some(write);
                    }
                    return Step::Wait;
                }
                Err(e) => {
                    self.break_off(&e.to_string());
                    return Step::Wait;
                }
            }
        }
        if let Some(error) = write.refused {
            self.in_flight += 1;
            self.reply(&write.header, Some(error), Vec::new());
            return Step::Again;
        }
        self.moved = PROGRESS_BYTES;
        Step::Request(Next::Request {
            export,
            header: write.header,
            payload: write.bufs,
        })
    }

    /// Puts the answer to a request on its way.
    pub(crate) fn reply(
        &mut self,
        header: &RequestHeader,
        error: Option<Errno>,
        data: Vec<(u64, Bufs)>,
    ) {
        self.in_flight -= 1;
        let Phase::Transmission { structured, .. } = self.phase else {
            // The client said that it goes, but it is owed this one.
            return self.reply_simple(header, error, data);
        };
        if !structured {
            return self.reply_simple(header, error, data);
        }
        match (error, header.command) {
            (Some(error), _) => self.push_head(&structured_error(header.cookie, error)),
            (None, Command::Read) if header.len > 0 => {
                self.push_head(&structured_data(header.cookie, header.offset, header.len));
                self.push_data(data);
            }
            (None, _) => self.push_head(&structured_done(header.cookie)),
        }
    }

    fn reply_simple(
        &mut self,
        header: &RequestHeader,
        error: Option<Errno>,
        data: Vec<(u64, Bufs)>,
    ) {
        self.push_head(&simple_reply(header.cookie, error));
        if error.is_none() {
            self.push_data(data);
        }
    }

    fn push_head(&mut self, bytes: &[u8]) {
        let mut head = [0; 28];
        head[..bytes.len()].copy_from_slice(bytes);
        self.out.push_back(Out::Head(head, bytes.len()));
    }

    fn push_data(&mut self, data: Vec<(u64, Bufs)>) {
        for (_, bufs) in data {
            self.out.extend(bufs.into_vec().into_iter().map(Out::Data));
        }
    }

    /// Sends as much as the socket takes.
    pub(crate) fn send(&mut self) {
        while !self.broken && !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.out) {
                let skip = if count == 0 { self.sent } else { 0 };
                *slice = IoSlice::new(&piece.bytes()[skip..]);
                count += 1;
            }
            match self.socket.write_vectored(&slices[..count]) {
                Ok(n) => self.sent_bytes(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => self.break_off(&e.to_string()),
            }
        }
        match self.socket.push() {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock && !self.broken => {
                self.break_off(&e.to_string());
            }
            _ => {}
        }
    }

    fn sent_bytes(&mut self, n: usize) {
        self.sent += n;
        while let Some(piece) = self.out.front() {
            let len = piece.bytes().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            self.out.pop_front();
            self.moved = PROGRESS_BYTES;
        }
    }

    /// What to wait for.
    pub(crate) fn status(&mut self) -> Status {
        let mut closing = matches!(self.phase, Phase::Closing);
        let idle = self.in_flight == 0 && !self.has_output();
        if closing && idle {
            self.broken |= !self.socket.say_goodbye() || self.left;
            let until = Instant::now() + GOODBYE;
            self.phase = Phase::Lingering { until };
            self.send();
            closing = false;
        }
        if self.broken
            || matches!(self.phase, Phase::Lingering { until } if until <= Instant::now())
        {
            return Status::Closed;
        }
        let read = !closing && !self.held && self.fence.is_none();
        let wanted = (read, self.has_output());
        let changed = (wanted != self.waits_for).then_some(wanted);
        self.waits_for = wanted;
        Status::Waiting { changed }
    }

    /// The client closed its side: what it is owed is still sent.
    fn end(&mut self) {
        self.phase = Phase::Closing;
        self.left = true;
    }

    fn break_off(&mut self, why: &str) {
        tracing::debug!("an NBD connection is closed: {why}");
        self.broken = true;
    }
}

enum Step {
    Again,
    Request(Next),
    NeedBytes,
    Wait,
    Starved,
}

impl Incoming {
    /// Where the next bytes go; `None` when they are thrown away.
    fn place(&mut self) -> Option<&mut [u8]> {
        if self.refused.is_some() {
            return None;
        }
        let mut skip = self.got;
        for buf in &mut self.bufs {
            if skip < buf.len() {
                return Some(&mut buf[skip..]);
            }
            skip -= buf.len();
        }
        None
    }
}

/// Stands in for a socket that has moved elsewhere, for the moment of the move.
fn closed_socket() -> Socket {
    let (a, _) = std::os::unix::net::UnixStream::pair().expect("the system gives a socket pair");
    Socket::Plain(Raw::Unix(a))
}
