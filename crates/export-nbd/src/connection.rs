//! One client connection: converts its input to requests, and the results of requests to replies.

mod input;
mod output;
mod progress;
mod reply;
mod resume;

use crate::admission::ConnectionSlot;
use crate::config::{Export, Limits};
use crate::engine::{REQUEST_BYTES_MAX, SHARE_BYTES};
use crate::hub::Hub;
use crate::kept::{self, Place};
use crate::request::Taken;
use crate::session::{Fence, Session};
use crate::socket::{Pipe, Raw, Socket};
use block::Buf;
use input::{Filled, Input};
use nbd_proto::{Command, Errno, Handshake, REQUEST_BYTES, RequestHeader, ServerStep, TlsPolicy};
use output::Output;
use progress::Progress;
use reply::FirstReply;
pub(crate) use resume::{Again, Resumed};
use rustls::ServerConnection;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use survival::Area;

/// Maximum number of requests in flight; more stay in the socket.
const REQUESTS_MAX: usize = 128;
/// Maximum time to wait for a client's close notice.
const GOODBYE: Duration = Duration::from_secs(2);

/// Next input of a client.
pub(crate) enum Next {
    /// A request, with its payload or with buffers for its result.
    Request {
        export: usize,
        request: Taken,
        payload: Vec<Buf>,
    },
    /// No request is available now.
    Nothing,
}

/// Events of its socket that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// State of a connection for its worker.
pub(crate) enum Status {
    /// Wait for the socket; `changed` is the new interest, if it has changed.
    Waiting { changed: Option<Interest> },
    /// The connection has ended.
    Closed,
}

enum Phase {
    Handshake(Box<Handshake>),
    /// Receiving requests; `incoming` is the payload being received.
    Transmission {
        export: usize,
        incoming: Option<Incoming>,
    },
    /// No more input is read; pending output is sent.
    Closing,
    /// All output is sent, including the close notice of TLS. Closing the socket before the
    /// client's close notice was read would reset the connection, which the client reports as an
    /// error.
    Lingering {
        until: Instant,
    },
}

/// A write whose payload has not arrived completely.
struct Incoming {
    request: Taken,
    /// Position of the request in the input.
    at: u64,
    bufs: Vec<Buf>,
    /// Capacity of the buffers in bytes: none before payload arrives, then a share, then all.
    room: usize,
    /// The connection held no other buffers when the write began.
    empty_handed: bool,
    /// Bytes that have arrived, or that were discarded for lack of buffers.
    got: usize,
    refused: Option<Errno>,
}

/// Allocates buffers for this number of bytes, or returns `None` for now. The flag says that the
/// connection holds no other buffers, and so may use the reserve.
pub(crate) type Take<'a> = &'a mut dyn FnMut(usize, bool) -> Option<Vec<Buf>>;

/// A connection that no worker has accepted yet.
pub(crate) struct Newcomer {
    pub(crate) raw: Raw,
    pub(crate) slot: ConnectionSlot,
    /// Its place in the table, if it is to be continued after a crash.
    pub(crate) kept: Option<Kept>,
}

/// Place of a connection in the table for a successor, with a pipe if it has a Unix socket. Leaves
/// the table when it is dropped.
pub(crate) struct Kept(pub(crate) Option<Box<InTable>>);

/// The place, its input areas, and the pipe of a Unix socket.
type InTable = (Place, [Area; 2], Option<Pipe>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some((place, areas, _)) = self.0.take().map(|kept| *kept) {
            place.leave(areas);
        }
    }
}

pub(crate) struct Connection {
    socket: Socket,
    /// Its place in the table for a successor.
    place: Option<Place>,
    slot: ConnectionSlot,
    began: Instant,
    progress: Progress,
    phase: Phase,
    hub: Arc<Hub>,
    /// Session under the key that the client has sent, if any.
    session: Option<Arc<Session>>,
    /// A fence of another session, whose end the negotiation waits for.
    fence: Option<Fence>,
    input: Input,
    output: Output,
    /// The client has negotiated structured replies.
    structured: bool,
    /// Reply that a predecessor has sent in part, and others, which follow it.
    first: Option<FirstReply>,
    /// Number of requests that the worker has taken and not completed.
    in_flight: usize,
    /// Reading is paused by the server, not for lack of input: it waits for buffers or for replies
    /// to be sent.
    held: bool,
    broken: bool,
    /// The client has closed its side.
    left: bool,
    waits_for: Interest,
}

impl Connection {
    pub(crate) fn new(newcomer: Newcomer, hub: Arc<Hub>) -> Connection {
        let policy = tls_policy(&hub, &newcomer.raw);
        let handshake = Handshake::new(hub.infos(), policy);
        let (place, input, pipe) = match newcomer.kept.and_then(|mut kept| kept.0.take()) {
            None => (None, Input::default(), None),
            Some(kept) => (Some(kept.0), Input::kept(kept.1), kept.2),
        };
        let socket = Socket::new(newcomer.raw, pipe);
        let phase = Phase::Handshake(Box::new(handshake));
        let mut connection = Connection::without_requests(socket, newcomer.slot, hub, phase);
        connection.place = place;
        connection.input = input;
        connection.push_negotiation();
        connection
    }

    /// Creates a connection without a place in the table, input, output and requests.
    fn without_requests(
        socket: Socket,
        slot: ConnectionSlot,
        hub: Arc<Hub>,
        phase: Phase,
    ) -> Connection {
        let began = Instant::now();
        Connection {
            socket,
            place: None,
            slot,
            began,
            progress: Progress::new(began),
            phase,
            hub,
            session: None,
            fence: None,
            input: Input::default(),
            output: Output::default(),
            structured: false,
            first: None,
            in_flight: 0,
            held: false,
            broken: false,
            left: false,
            waits_for: Interest {
                read: true,
                write: false,
            },
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Returns the session, which each request holds until it has ended.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.session.clone()
    }

    /// Reports whether it waits for the end of another session.
    pub(crate) fn is_fencing(&self) -> bool {
        self.fence.is_some() && !self.broken
    }

    /// Reports whether only the client's close notice is missing.
    pub(crate) fn is_lingering(&self) -> bool {
        matches!(self.phase, Phase::Lingering { .. }) && !self.broken
    }

    /// Closes the connection if its session is fenced, and returns whether it is. Input that is not
    /// a complete request yet is dropped.
    pub(crate) fn close_if_fenced(&mut self) -> bool {
        let fenced = self.session.as_ref().is_some_and(|s| s.is_fenced());
        if fenced && !self.broken {
            self.break_off("its session is fenced");
        }
        fenced
    }

    /// Closes the connection if its place was assigned to another stranger, and returns whether it
    /// was.
    pub(crate) fn close_if_evicted(&mut self) -> bool {
        let leaves = self.slot.is_evicted();
        if leaves && !self.broken {
            self.break_off("it is still negotiating, and another client needs its place");
        }
        leaves
    }

    /// Closes the connection if its negotiation takes too long, or if a payload or a reply stalls;
    /// returns whether it is closed.
    pub(crate) fn is_overdue(&mut self, now: Instant, limits: &Limits) -> bool {
        if self.broken {
            return true;
        }
        if matches!(self.phase, Phase::Handshake(_)) {
            let over = now.duration_since(self.began) >= limits.handshake;
            if over && self.fence.is_none() {
                self.break_off("its negotiation timed out");
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
        if self.progress.has_stalled(now, waits, limits.stall) {
            self.break_off("a payload or a reply stalled");
        }
        self.broken
    }

    /// Handles a hangup: no client waits for the answer to a fence any more.
    pub(crate) fn hung_up(&mut self) {
        if self.is_fencing() {
            self.break_off("its client disconnected during a fence");
        }
    }

    /// Reports whether it may have received requests that wait for buffers, or for other requests
    /// to end. No event of its socket reports when it can continue.
    pub(crate) fn is_held(&self) -> bool {
        self.held && !self.broken
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.broken && (!self.output.is_empty() || self.socket.wants_write())
    }

    /// Reads the next request, as far as the socket has it.
    pub(crate) fn next(&mut self, take: Take<'_>) -> Next {
        self.held = false;
        loop {
            if self.close_if_fenced() || self.broken {
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
                Step::NeedBytes => match self.fill() {
                    Ok(Filled::Some) => {}
                    Ok(Filled::NotNow) => return Next::Nothing,
                    Ok(Filled::End) => {
                        self.end();
                        return Next::Nothing;
                    }
                    Err(e) => self.break_off(&e.to_string()),
                },
                Step::Wait => return Next::Nothing,
            }
        }
    }

    fn fill(&mut self) -> io::Result<Filled> {
        let negotiates = matches!(self.phase, Phase::Handshake(_));
        self.input
            .fill(&mut self.socket, self.place.as_mut(), negotiates)
    }

    fn negotiate(&mut self) -> Step {
        let Phase::Handshake(handshake) = &mut self.phase else {
            return Step::Wait;
        };
        if let Some(fence) = &self.fence {
            let Some(result) = self.hub.sessions.outcome(fence) else {
                return Step::Wait;
            };
            self.fence = None;
            handshake.fenced(result);
        }
        match handshake.handle_input(self.input.rest()) {
            Ok(consumed) => self.input.consume(consumed),
            Err(e) => {
                self.break_off(&e.to_string());
                return Step::Wait;
            }
        }
        let outcome = handshake.outcome();
        self.push_negotiation();
        match outcome {
            None => Step::NeedBytes,
            Some(ServerStep::Close) => {
                self.phase = Phase::Closing;
                Step::Wait
            }
            Some(ServerStep::Fence { key }) => {
                // A successor could not tell the same result.
                if let Some(place) = &self.place {
                    place.enter(kept::Phase::Unfit);
                }
                self.fence = Some(self.hub.sessions.fence(key));
                Step::Again
            }
            Some(ServerStep::Transmission {
                export,
                structured,
                session,
            }) => {
                let session = session.map(|key| self.hub.sessions.join(key, self.slot.address()));
                let session = session.transpose();
                match session.and_then(|session| self.slot.establish().map(|()| session)) {
                    Ok(session) => self.session = session,
                    Err(why) => {
                        tracing::warn!(name: "EVFS-0503", "refused an NBD client: {why}");
                        self.break_off(why);
                        return Step::Wait;
                    }
                }
                self.progress.postpone(Instant::now());
                self.structured = structured;
                self.phase = Phase::Transmission {
                    export,
                    incoming: None,
                };
                self.keep_transmission(export);
                Step::Again
            }
            Some(ServerStep::StartTls) => {
                self.start_tls();
                Step::Again
            }
        }
    }

    /// Queues the output of the negotiation.
    fn push_negotiation(&mut self) {
        let Phase::Handshake(handshake) = &mut self.phase else {
            return;
        };
        let output = handshake.take_output();
        if output.is_empty() {
            return;
        }
        if let Some(place) = &mut self.place {
            place.negotiated(output.len());
        }
        self.output.push_bytes(output);
    }

    /// Lets a successor continue with requests. It does not repeat the negotiation, so the replies of
    /// that must have been sent.
    fn keep_transmission(&mut self, export: usize) {
        self.send();
        let Some(place) = &self.place else { return };
        if !self.output.is_empty() || self.output.is_skipping() {
            return self.break_off("it does not read the replies of its negotiation");
        }
        place.parsed(self.input.at(), false);
        place.enter(kept::Phase::Transmission {
            export,
            structured: self.structured,
            key: self.session.as_ref().map(|session| session.key()),
            left: false,
        });
    }

    /// Starts TLS after the last plaintext reply is sent. Plaintext that the client sent after its
    /// request was unprotected and ends the connection (CVE-2021-3716).
    fn start_tls(&mut self) {
        self.send();
        if let Some(place) = &self.place {
            place.enter(kept::Phase::Unfit);
        }
        let clean = self.input.rest().is_empty() && self.output.is_empty();
        let connection = self.hub.tls().cloned().map(ServerConnection::new);
        match connection {
            Some(Ok(connection)) if clean && !self.broken => {
                self.socket.start_tls(connection);
                let handshake = Handshake::new(self.hub.infos(), TlsPolicy::Active);
                self.phase = Phase::Handshake(Box::new(handshake));
            }
            _ => self.break_off("cannot start TLS"),
        }
    }

    fn take_header(&mut self, take: Take<'_>) -> Step {
        let empty_handed = self.in_flight == 0 && self.output.is_empty();
        let Phase::Transmission { export, .. } = &self.phase else {
            return Step::Wait;
        };
        let export = *export;
        let Some((bytes, _)) = self.input.rest().split_first_chunk::<REQUEST_BYTES>() else {
            return Step::NeedBytes;
        };
        let bytes = *bytes;
        let header = match RequestHeader::parse(&bytes) {
            Ok(header) => header,
            Err(e) => {
                self.break_off(&e.to_string());
                return Step::Wait;
            }
        };
        if matches!(header.command, Command::Disconnect) {
            self.close_input();
            return Step::Wait;
        }
        let exported = &self.hub.exports[export];
        let refused = refusal(exported, &header);
        let mut payload = Vec::new();
        if matches!(header.command, Command::Read) && refused.is_none() {
            payload = match take(read_bytes(exported, &header), empty_handed) {
                Some(bufs) => bufs,
                None => return Step::Starved,
            };
        }
        let at = self.input.at();
        let slot = match &mut self.place {
            None => None,
            // Slots become free as replies are sent.
            Some(place) => match place.begin(at, &bytes) {
                None => return Step::Starved,
                slot => slot,
            },
        };
        self.input.consume(REQUEST_BYTES);
        if let Some(place) = &self.place {
            place.parsed(self.input.at(), false);
        }
        let request = Taken { header, slot };
        if matches!(header.command, Command::Write) {
            self.receive(Incoming {
                request,
                at,
                bufs: Vec::new(),
                room: 0,
                got: 0,
                empty_handed,
                refused,
            });
            return Step::Again;
        }
        if refused.is_some() {
            self.reply(request, refused, Vec::new());
            return Step::Again;
        }
        Step::Request(Next::Request {
            export,
            request,
            payload,
        })
    }

    fn receive(&mut self, write: Incoming) {
        if let Phase::Transmission { incoming, .. } = &mut self.phase {
            *incoming = Some(write);
        }
    }

    /// Ends the input: the client has sent its last request.
    fn close_input(&mut self) {
        if let (Some(place), Phase::Transmission { export, .. }) = (&self.place, &self.phase) {
            place.enter(kept::Phase::Transmission {
                export: *export,
                structured: self.structured,
                key: self.session.as_ref().map(|session| session.key()),
                left: true,
            });
        }
        self.phase = Phase::Closing;
    }

    /// Moves payload into its buffers: first the part that came with the header, then from the
    /// socket.
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
        let total = write.request.header.len as usize;
        while write.got < total {
            let here = self.input.rest();
            if write.refused.is_none() && write.got == write.room {
                // Buffers are allocated for payload that arrives: a header alone costs nothing, and
                // more than a share requires that one has arrived.
                let (len, step) = match write.room {
                    0 if here.is_empty() => (0, Step::NeedBytes),
                    0 => (total.min(SHARE_BYTES), Step::Starved),
                    room => (total - room, Step::Starved),
                };
                match take(len, write.empty_handed).filter(|bufs| !bufs.is_empty()) {
                    Some(bufs) => {
                        if let Some(place) = &self.place {
                            place.own(write.at, write.bufs.len(), &bufs);
                        }
                        write.bufs.extend(bufs);
                    }
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
                self.input.consume(len);
                Ok(len)
            } else {
                let left = total - write.got;
                self.input.bypass(self.place.as_ref());
                let read = match write.place() {
                    Some(to) => self.socket.read(to),
                    None => self.socket.read(&mut vec![0; left.min(64 * 1024)]),
                };
                if let Ok(n) = read {
                    self.input.bypassed(n);
                    if let Some(place) = &mut self.place
                        && let Err(e) = place.received(n, self.socket.raw())
                    {
                        self.break_off(&e.to_string());
                        return Step::Wait;
                    }
                }
                read
            };
            match step {
                Ok(0) => {
                    self.end();
                    return Step::Wait;
                }
                Ok(n) => {
                    write.got += n;
                    self.progress.add(n);
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
        if let Some(place) = &self.place {
            place.parsed(self.input.at(), self.input.is_bypassed());
        }
        if let Some(error) = write.refused {
            self.reply(write.request, Some(error), Vec::new());
            return Step::Again;
        }
        self.progress.complete();
        Step::Request(Next::Request {
            export,
            request: write.request,
            payload: write.bufs,
        })
    }

    /// Sends as much as the socket accepts.
    pub(crate) fn send(&mut self) {
        while !self.broken && !self.output.is_empty() {
            match self.output.send(&mut self.socket, self.place.as_mut()) {
                Ok(true) => self.progress.complete(),
                Ok(false) => {}
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

    /// Determines the state for the worker: closed, or the events to wait for.
    pub(crate) fn status(&mut self) -> Status {
        let mut closing = matches!(self.phase, Phase::Closing);
        let idle = self.in_flight == 0 && !self.has_output();
        if closing && idle {
            self.broken |= !self.socket.send_close_notify() || self.left;
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
        let wanted = Interest {
            read: !closing && !self.held && self.fence.is_none(),
            write: self.has_output(),
        };
        let changed = (wanted != self.waits_for).then_some(wanted);
        self.waits_for = wanted;
        Status::Waiting { changed }
    }

    /// Handles the end of the client's input: pending replies are still sent.
    fn end(&mut self) {
        self.close_input();
        self.left = true;
    }

    fn break_off(&mut self, why: &str) {
        tracing::debug!("closing an NBD connection: {why}");
        self.broken = true;
    }
}

impl Drop for Connection {
    /// Closes the connection, also if another process has its socket.
    fn drop(&mut self) {
        let input = std::mem::take(&mut self.input);
        if let (Some(place), Some(areas)) = (self.place.take(), input.into_areas()) {
            let _ = self.socket.raw().shut_down();
            place.leave(areas);
        }
    }
}

fn tls_policy(hub: &Hub, raw: &Raw) -> TlsPolicy {
    if matches!(raw, Raw::Tcp(_)) && hub.tls().is_some() {
        TlsPolicy::Required
    } else {
        TlsPolicy::Never
    }
}

/// Returns the number of bytes that buffers are needed for: none if the device would refuse a read.
fn read_bytes(export: &Export, header: &RequestHeader) -> usize {
    let end = header.offset.checked_add(u64::from(header.len));
    let sane = end.is_some_and(|end| end <= export.device.info().size);
    if sane { header.len as usize } else { 0 }
}

/// Returns the error of a request that is not passed to the device; the payload of a write is
/// received first.
fn refusal(export: &Export, header: &RequestHeader) -> Option<Errno> {
    let read_only = export.is_read_only();
    match header.command {
        Command::Write if read_only => Some(Errno::Permission),
        _ if header.unknown_flags => Some(Errno::Invalid),
        Command::Read | Command::Write if header.len > REQUEST_BYTES_MAX => Some(Errno::Overflow),
        Command::Trim | Command::WriteZeroes if read_only => Some(Errno::Permission),
        _ => None,
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
    /// Finds the destination of the next bytes; `None` if they are discarded.
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
