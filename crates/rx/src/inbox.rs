//! State of a call under the lock: an inbox that the socket's thread fills while the call is being
//! read, so that the peer does not have to wait for the reader.
//!
//! **Invariant:** an inbox holds at most [`INBOX_BYTES`] plus one datagram, and at most two
//! datagrams before the first read: only as many inboxes are filled as there are workers and
//! callers.

use crate::bytes::Bytes;
use crate::error::Error;
use crate::shard::State;
use rx_proto::{CallError, CallId, End, Read, Timestamp};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar};

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
    at_end: bool,
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

    /// Checks whether the waiting reader has enough data, or no more will arrive.
    pub(crate) fn is_enough(&self) -> bool {
        let enough = self.bytes >= self.wanted || self.inbox.len() >= WANTED_PIECES;
        self.at_end || self.ended.is_some() || enough
    }
}

impl State {
    /// Moves data from the endpoint to the inbox of a call, as far as there is room.
    pub(crate) fn fill(&mut self, now: Timestamp, call: CallId) {
        let Some(open) = self.open.get_mut(&call) else {
            return;
        };
        while !open.at_end && open.bytes < INBOX_BYTES && open.inbox.len() < INBOX_PIECES {
            match self.endpoint.read(now, call) {
                Ok(Read::Data(data)) => {
                    open.bytes += data.len();
                    open.inbox.push_back(data);
                }
                Ok(Read::End) => open.at_end = true,
                Ok(Read::Pending) => return,
                Err(CallError::Ended(reason)) => {
                    open.ended = Some(reason);
                    return;
                }
                Err(CallError::Unknown) => {
                    open.ended = open.ended.or(Some(End::Closed));
                    return;
                }
            }
        }
    }

    /// Moves everything from the inbox of a call into `ready`. Returns whether the end was reached,
    /// or `None` if nothing is available yet, or less than `wanted` bytes while more are to come.
    /// At the end a client's call is over and removed.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        call: CallId,
        client: bool,
        wanted: usize,
        ready: &mut VecDeque<Bytes>,
    ) -> Option<Result<bool, Error>> {
        if self.stopped {
            return Some(Err(Error::Stopped));
        }
        self.fill(now, call);
        let Some(open) = self.open.get_mut(&call) else {
            return Some(Err(Error::Ended(End::Closed)));
        };
        open.reads = true;
        open.wanted = wanted.min(WANTED_MAX);
        if !open.is_enough() {
            open.waits = true;
            return None;
        }
        std::mem::swap(&mut open.inbox, ready);
        open.bytes = 0;
        if !ready.is_empty() && !open.at_end {
            // Data that was held back for lack of room can be moved now.
            self.fill(now, call);
        }
        let open = self.open.get_mut(&call)?;
        if open.at_end && open.inbox.is_empty() {
            if client {
                self.open.remove(&call);
            }
            return Some(Ok(true));
        }
        if !ready.is_empty() {
            return Some(Ok(false));
        }
        if let Some(reason) = open.ended {
            return Some(Err(Error::Ended(reason)));
        }
        open.waits = true;
        None
    }

    /// Reads the beginning of a client's call, up to one datagram, so that the thread that serves a
    /// short request need not take the lock for it. Returns it, and whether it was the whole
    /// request.
    pub(crate) fn beginning(&mut self, now: Timestamp, call: CallId) -> (Option<Bytes>, bool) {
        let first = match self.endpoint.read(now, call) {
            Ok(Read::Data(first)) => Some(first),
            Ok(Read::Pending | Read::End) | Err(_) => None,
        };
        let mut open = OpenCall::new();
        match self.endpoint.read(now, call) {
            Ok(Read::End) => open.at_end = true,
            Ok(Read::Data(second)) => {
                open.bytes = second.len();
                open.inbox.push_back(second);
            }
            Ok(Read::Pending) | Err(_) => {}
        }
        let at_end = open.at_end;
        self.open.insert(call, open);
        (first, at_end)
    }
}
