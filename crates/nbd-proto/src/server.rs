//! The server's side of one connection: negotiation, then requests.

use crate::transmission::reply_head;
use crate::{
    Command, Errno, ExportInfo, Handshake, Outcome, ProtocolError, REQUEST_BYTES, ReplyHead,
    RequestHeader, Result, TlsPolicy,
};
use std::sync::Arc;

/// Longest payload of a refused write that is read and thrown away to stay in step, in bytes. A
/// longer one ends the connection.
const DISCARD_BYTES_MAX: u32 = 64 << 20;

/// What the driver has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Send what there is to send, start TLS, then call [`Server::tls_started`]. Bytes that came
    /// in the clear behind the option were protected by nobody: with any of them left over, close
    /// the connection instead (CVE-2021-3716).
    StartTls,
    /// The negotiation is over; requests for this export follow.
    Ready {
        /// Index of the export.
        export: usize,
    },
    /// A request. When it is a write, the next `len` bytes of the stream are its payload: move them
    /// away, and account for them with [`Server::payload_moved`].
    Request {
        /// The request, to be answered with [`Server::reply`].
        request: RequestHeader,
        /// The error that it has to be answered with; its payload is thrown away.
        refused: Option<Errno>,
    },
    /// The client goes. Answer what is in flight, send what there is to send, and close.
    Disconnect,
}

/// The server's side of one connection, without a socket.
///
/// ```text
///   handle_input(bytes) ─► poll_transmit() ─► poll_event()       after each mutation, in this order
///   payload_moved(n)    ─► (the driver moved n bytes of payload past the core)
///   reply(request, …)   ─► head to send, then the data of a read
/// ```
///
/// At most one event is held; while it has not been taken, and while payload is expected, no input
/// is consumed.
pub struct Server {
    exports: Arc<[ExportInfo]>,
    phase: Phase,
    structured: bool,
    event: Option<Event>,
}

enum Phase {
    Handshake(Box<Handshake>),
    Transmission {
        export: usize,
        /// Bytes of payload that have not been moved yet.
        payload: u32,
    },
    Over,
}

impl Server {
    /// Begins a connection; the greeting is to be sent.
    pub fn new(exports: Arc<[ExportInfo]>, tls: TlsPolicy) -> Server {
        Server {
            phase: Phase::Handshake(Box::new(Handshake::new(Arc::clone(&exports), tls))),
            exports,
            structured: false,
            event: None,
        }
    }

    /// Takes messages from the beginning of `bytes` up to the next event, and says how many bytes
    /// they were. What it did not take is to be handed in again, with more behind it.
    ///
    /// # Errors
    /// The client does not speak the protocol or goes beyond a limit: close the connection.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.event.is_some() {
            return Ok(0);
        }
        match &mut self.phase {
            Phase::Handshake(handshake) => {
                let consumed = handshake.handle_input(bytes)?;
                if let Some(outcome) = handshake.outcome() {
                    self.settle(outcome);
                }
                Ok(consumed)
            }
            Phase::Transmission { payload: 0, .. } => self.request(bytes),
            Phase::Transmission { .. } | Phase::Over => Ok(0),
        }
    }

    fn settle(&mut self, outcome: Outcome) {
        self.event = Some(match outcome {
            Outcome::StartTls => Event::StartTls,
            Outcome::Close => Event::Disconnect,
            Outcome::Transmission { export, structured } => {
                self.structured = structured;
                Event::Ready { export }
            }
        });
    }

    fn request(&mut self, bytes: &[u8]) -> Result<usize> {
        let Phase::Transmission { export, payload } = &mut self.phase else {
            return Ok(0);
        };
        let Some((head, _)) = bytes.split_first_chunk::<REQUEST_BYTES>() else {
            return Ok(0);
        };
        let request = RequestHeader::parse(head)?;
        if request.command == Command::Disconnect {
            self.phase = Phase::Over;
            self.event = Some(Event::Disconnect);
            return Ok(REQUEST_BYTES);
        }
        let refused = match self.exports.get(*export) {
            Some(info) => request.refusal(info, self.structured),
            None => Some(Errno::Io),
        };
        if request.command == Command::Write {
            if refused.is_some() && request.len > DISCARD_BYTES_MAX {
                let len = request.len;
                return Err(ProtocolError(format!("a write of {len} bytes")));
            }
            *payload = request.len;
        }
        self.event = Some(Event::Request { request, refused });
        Ok(REQUEST_BYTES)
    }

    /// Bytes of the negotiation to send. Nothing after [`Event::Ready`]: replies come from
    /// [`Server::reply`].
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        match &mut self.phase {
            Phase::Handshake(handshake) => {
                Some(handshake.take_output()).filter(|output| !output.is_empty())
            }
            Phase::Transmission { .. } | Phase::Over => None,
        }
    }

    /// What to do next, after [`Server::poll_transmit`] has nothing more.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.event.take()?;
        match event {
            Event::Ready { export } => self.phase = Phase::Transmission { export, payload: 0 },
            Event::Disconnect => self.phase = Phase::Over,
            Event::StartTls | Event::Request { .. } => {}
        }
        Some(event)
    }

    /// TLS is on, after [`Event::StartTls`].
    pub fn tls_started(&mut self) {
        if let Phase::Handshake(handshake) = &mut self.phase {
            handshake.tls_started();
        }
    }

    /// Bytes of payload that the stream goes on with, before the next request.
    pub fn payload_left(&self) -> u32 {
        match self.phase {
            Phase::Transmission { payload, .. } => payload,
            Phase::Handshake(_) | Phase::Over => 0,
        }
    }

    /// The driver took `n` bytes of payload from the stream.
    pub fn payload_moved(&mut self, n: u32) {
        if let Phase::Transmission { payload, .. } = &mut self.phase {
            debug_assert!(n <= *payload, "{n} bytes of a payload of {payload}");
            *payload = payload.saturating_sub(n);
        }
    }

    /// The head of the reply to `request`; behind that of a read without an error send its `len`
    /// bytes of data. Replies may be given in any order, and after [`Event::Disconnect`].
    pub fn reply(&self, request: &RequestHeader, error: Option<Errno>) -> ReplyHead {
        reply_head(self.structured, request, error)
    }

    /// Whether the negotiation is still going on.
    pub fn is_negotiating(&self) -> bool {
        matches!(self.phase, Phase::Handshake(_))
    }
}
