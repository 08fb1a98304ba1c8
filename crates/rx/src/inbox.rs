//! What the program has of a call under the lock: an inbox that the thread of the socket fills while the
//! call is being read, so that the peer need not wait for the reader.
//!
//! **Invariant:** an inbox holds at most [`INBOX_BYTES`] and a datagram, and nothing before the first
//! read: only as many inboxes are filled as there are workers and callers.

use crate::bytes::Bytes;
use crate::error::Error;
use crate::shard::State;
use rx_proto::{CallError, CallId, End, Read, Timestamp};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar};

/// Bytes of an inbox that is full: most of a window.
const INBOX_BYTES: usize = 256 * 1024;

/// Pieces of an inbox that is full, however small they are.
const INBOX_PIECES: usize = 512;

/// A call in the program's hands.
pub(crate) struct Open {
    inbox: VecDeque<Bytes>,
    bytes: usize,
    at_end: bool,
    /// Somebody began to read.
    pub(crate) reads: bool,
    /// Somebody waits for news.
    pub(crate) waits: bool,
    pub(crate) wake: Arc<Condvar>,
    pub(crate) ended: Option<End>,
}

impl Open {
    pub(crate) fn new() -> Open {
        Open {
            inbox: VecDeque::new(),
            bytes: 0,
            at_end: false,
            reads: false,
            waits: false,
            wake: Arc::new(Condvar::new()),
            ended: None,
        }
    }
}

impl State {
    /// Moves data from the endpoint to the inbox of a call, as far as it has room.
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

    /// Takes everything out of the inbox of a call into `ready`: whether there was anything before
    /// the end, or `None` if there is nothing yet.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        call: CallId,
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
        if !open.inbox.is_empty() {
            std::mem::swap(&mut open.inbox, ready);
            open.bytes = 0;
            // What was held back for want of room goes on at once.
            self.fill(now, call);
            return Some(Ok(true));
        }
        match (open.at_end, open.ended) {
            (true, _) => Some(Ok(false)),
            (false, Some(reason)) => Some(Err(Error::Ended(reason))),
            (false, None) => {
                open.waits = true;
                None
            }
        }
    }
}
