//! State of a call under the lock: an inbox that the socket's thread fills while the call is being
//! read, so that the peer does not have to wait for the reader.
//!
//! **Invariant:** an inbox holds at most [`INBOX_BYTES`] plus one datagram, and at most two
//! datagrams before the first read: only as many inboxes are filled as there are workers and
//! callers.

use crate::bytes::Bytes;
use crate::error::Error;
use rx_proto::{CallError, CallId, End, Read, Timestamp};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar};

/// The protocol, with the bytes of this crate in both directions.
pub(crate) type Endpoint = rx_proto::Endpoint<Bytes, Bytes>;

/// Bytes of a full inbox: most of a window.
const INBOX_BYTES: usize = 256 * 1024;

/// Pieces of a full inbox, however small they are.
const INBOX_PIECES: usize = 512;

/// Largest number of bytes that a reader may wait for: well before the inbox is full, so that the
/// peer never waits for a reader that waits for the peer.
const WANTED_MAX: usize = INBOX_BYTES / 4;
const WANTED_PIECES: usize = INBOX_PIECES / 4;

/// A call owned by the program.
pub(crate) struct OpenCall {
    inbox: VecDeque<Bytes>,
    bytes: usize,
    /// Whether everything was received.
    pub(crate) at_end: bool,
    /// Whether the program has begun to read.
    pub(crate) reads: bool,
    /// Whether a thread waits for a change of the call.
    pub(crate) waits: bool,
    /// Number of bytes that the waiting reader wants at once.
    wanted: usize,
    pub(crate) wake: Arc<Condvar>,
    pub(crate) ended: Option<End>,
}

impl OpenCall {
    pub(crate) fn new() -> OpenCall {
        OpenCall {
            inbox: VecDeque::new(),
            bytes: 0,
            at_end: false,
            reads: false,
            waits: false,
            wanted: 0,
            wake: Arc::new(Condvar::new()),
            ended: None,
        }
    }

    /// Creates a call of which a predecessor has received the first packet, all of it if `whole`.
    pub(crate) fn continued(whole: bool) -> OpenCall {
        OpenCall {
            at_end: whole,
            ..OpenCall::new()
        }
    }

    /// Checks whether the waiting reader has enough data, or no more will arrive.
    pub(crate) fn is_enough(&self) -> bool {
        let enough = self.bytes >= self.wanted || self.inbox.len() >= WANTED_PIECES;
        self.at_end || self.ended.is_some() || enough
    }

    /// Moves data from the endpoint to the inbox, as far as there is room.
    pub(crate) fn fill(&mut self, endpoint: &mut Endpoint, now: Timestamp, call: CallId) {
        while !self.at_end && self.bytes < INBOX_BYTES && self.inbox.len() < INBOX_PIECES {
            match endpoint.read(now, call) {
                Ok(Read::Data(data)) => {
                    self.bytes += data.len();
                    self.inbox.push_back(data);
                }
                Ok(Read::End) => self.at_end = true,
                Ok(Read::Pending) => return,
                Err(CallError::Ended(reason)) => {
                    self.ended = Some(reason);
                    return;
                }
                Err(CallError::Unknown) => {
                    self.ended = self.ended.or(Some(End::Closed));
                    return;
                }
            }
        }
    }

    /// Moves everything from the inbox into `ready`, which is empty. Returns whether the end was
    /// reached, or `None` if nothing is available yet, or less than `wanted` bytes while more are
    /// to come.
    pub(crate) fn take(
        &mut self,
        endpoint: &mut Endpoint,
        now: Timestamp,
        call: CallId,
        wanted: usize,
        ready: &mut VecDeque<Bytes>,
    ) -> Option<Result<bool, Error>> {
        self.fill(endpoint, now, call);
        self.reads = true;
        self.wanted = wanted.min(WANTED_MAX);
        if !self.is_enough() {
            self.waits = true;
            return None;
        }
        std::mem::swap(&mut self.inbox, ready);
        self.bytes = 0;
        if !ready.is_empty() && !self.at_end {
            // Data that was held back for lack of room can be moved now.
            self.fill(endpoint, now, call);
        }
        if self.at_end && self.inbox.is_empty() {
            return Some(Ok(true));
        }
        if !ready.is_empty() {
            return Some(Ok(false));
        }
        if let Some(reason) = self.ended {
            return Some(Err(Error::Ended(reason)));
        }
        self.waits = true;
        None
    }

    /// Reads the beginning of a client's call, up to one datagram, so that the thread that serves a
    /// short request need not take the lock for it. Returns it with the call.
    pub(crate) fn begin(
        endpoint: &mut Endpoint,
        now: Timestamp,
        call: CallId,
    ) -> (Option<Bytes>, OpenCall) {
        let first = match endpoint.read(now, call) {
            Ok(Read::Data(first)) => Some(first),
            Ok(Read::Pending | Read::End) | Err(_) => None,
        };
        let mut open = OpenCall::new();
        match endpoint.read(now, call) {
            Ok(Read::End) => open.at_end = true,
            Ok(Read::Data(second)) => {
                open.bytes = second.len();
                open.inbox.push_back(second);
            }
            Ok(Read::Pending) | Err(_) => {}
        }
        (first, open)
    }
}
