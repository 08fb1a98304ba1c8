//! A call owned by the program: bytes in one direction, then bytes in the other.

use crate::bytes::Bytes;
use crate::error::Error;
use crate::inbox::OpenCall;
use crate::ledger::Entry;
use crate::link::Link;
use crate::shard::{Job, Shard};
use rx_proto::{CallId, PACKET_DATA_BYTES, Seq, WriteError, code};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

/// Bytes passed to the endpoint at once: it takes whole pieces, and must not take much more than it
/// has room for.
const SLICE_BYTES: usize = 16 * 1024;

/// Number of small pieces that are collected before they are passed to the endpoint, however short.
const UNSENT_PIECES: usize = 64;

/// State of a call's written bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// More bytes may follow.
    Open,
    /// All bytes were written.
    Finished,
}

/// A call, at a server or at a client.
///
/// A client writes its request, calls [`finish`](Call::finish), and reads the reply to its end. A
/// server ([`Handler`](crate::Handler)) reads as much of the request as it needs, and writes the
/// reply. Both block where the peer or the network has to act first. A call that is dropped before
/// its end is aborted.
pub struct Call {
    shard: Arc<Shard>,
    id: CallId,
    wake: Arc<Condvar>,
    /// Pieces taken out of the inbox.
    ready: VecDeque<Bytes>,
    /// Whether everything was read.
    at_end: bool,
    /// Pieces written but not yet passed on: less than a packet.
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// Whether the program no longer owns the call.
    over: bool,
    peer: SocketAddr,
    local: Option<IpAddr>,
    service: u16,
    user_status: u8,
    /// At a client: keeps the connection open.
    link: Option<Arc<Link>>,
    /// What another server needs to continue it.
    kept: Option<Box<Kept>>,
}

/// A call that another server could continue.
struct Kept {
    entry: Entry,
    position: Position,
    reply: Reply,
}

/// What was read of a stream: the next packet, and the bytes before it; and the bytes of this packet
/// that were put back.
#[derive(Debug, Clone, Copy)]
struct Position {
    next: Seq,
    bytes: u64,
    back: usize,
}

/// State of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// The client has no part of it.
    Unsent,
    /// The client may have a part of it.
    Begun,
}

impl Call {
    pub(crate) fn incoming(job: Job) -> Call {
        let first_bytes = job.first.as_ref().map_or(0, Bytes::len) as u64;
        Call {
            shard: job.shard,
            id: job.incoming.call,
            wake: job.wake,
            ready: job.first.into_iter().collect(),
            at_end: job.at_end,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            over: false,
            peer: job.incoming.peer,
            local: job.local,
            service: job.incoming.service,
            user_status: job.incoming.user_status,
            link: None,
            kept: job.entry.map(|entry| {
                Box::new(Kept {
                    position: Position::before(&entry, first_bytes),
                    entry,
                    reply: Reply::Unsent,
                })
            }),
        }
    }

    pub(crate) fn outgoing(link: &Arc<Link>, id: CallId, open: &OpenCall) -> Call {
        Call {
            shard: Arc::clone(&link.shard),
            id,
            wake: Arc::clone(&open.wake),
            ready: VecDeque::new(),
            at_end: false,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            over: false,
            peer: link.route.peer,
            local: link.route.local,
            service: link.service,
            user_status: 0,
            link: Some(Arc::clone(link)),
            kept: None,
        }
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Returns the address of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the local address that the peer uses, if known.
    pub fn local(&self) -> Option<IpAddr> {
        self.local
    }

    /// Returns the service id.
    pub fn service(&self) -> u16 {
        self.service
    }

    /// Returns the user status byte of the client's packets, at a server. Linux sends 1 to ask
    /// whether the server speaks AuriStor's protocol; answering as the service that was called
    /// means no.
    pub fn user_status(&self) -> u8 {
        self.user_status
    }

    /// Reads the next bytes, as they were received, or `None` at the end. They refer to a receive
    /// buffer: a caller that keeps them for long should copy them.
    ///
    /// # Errors
    /// [`Error::Ended`] if the call ended early, [`Error::Stopped`].
    pub fn read(&mut self) -> Result<Option<Bytes>, Error> {
        self.read_by(None)
    }

    /// Reads like [`read`](Call::read), but waits at most until `deadline`, if set.
    ///
    /// # Errors
    /// Those of [`read`](Call::read); [`Error::Late`] at the deadline. The call continues.
    pub fn read_by(&mut self, deadline: Option<Instant>) -> Result<Option<Bytes>, Error> {
        self.wait(0, || deadline)?;
        let piece = self.ready.pop_front();
        if let (Some(piece), Some(kept)) = (&piece, &mut self.kept) {
            kept.position.read(piece.len());
        }
        Ok(piece)
    }

    /// Returns the entry in the table of calls for another server; `None` if the call ends with this
    /// one.
    pub fn entry(&self) -> Option<&Entry> {
        self.kept.as_ref().map(|kept| &kept.entry)
    }

    /// Returns the number of bytes of the request that a killed server has [kept](Call::keep) beyond
    /// the first packet: reading goes on behind them. 0 if it has not.
    pub fn kept_bytes(&self) -> u64 {
        let stored = self.entry().and_then(|entry| entry.stored);
        stored.map_or(0, |(_, bytes)| bytes)
    }

    /// Records that another server has the effect of all that was read, so that the client need not
    /// keep it. Does nothing in the middle of a packet.
    pub fn keep(&self) {
        let Some(kept) = self.kept.as_ref().filter(|kept| kept.position.back == 0) else {
            return;
        };
        kept.entry.keep(kept.position.next, kept.position.bytes);
        let (id, next) = (self.id, kept.position.next);
        self.shard
            .run(|state, now| state.endpoint.keep(now, id, Some(next)));
    }

    /// Waits until data is available, and if it has to wait, until `wanted` bytes, a good part of
    /// them, or all remaining bytes have arrived: a caller that needs them anyway is woken once and
    /// not for each datagram.
    ///
    /// # Errors
    /// Those of [`read`](Call::read).
    pub fn await_bytes(&mut self, wanted: usize) -> Result<(), Error> {
        self.wait(wanted, || None)
    }

    /// Waits like [`await_bytes`](Call::await_bytes), but at most for `limit`. Reads the clock only
    /// if it has to wait.
    ///
    /// # Errors
    /// Those of [`read_by`](Call::read_by).
    pub fn await_bytes_within(&mut self, wanted: usize, limit: Duration) -> Result<(), Error> {
        self.wait(wanted, || Instant::now().checked_add(limit))
    }

    fn wait(
        &mut self,
        wanted: usize,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<(), Error> {
        if self.ready.is_empty() && !self.at_end {
            let (id, client, ready) = (self.id, self.link.is_some(), &mut self.ready);
            self.at_end = self.shard.until(&self.wake, deadline(), |state, now| {
                state.take(now, id, client, wanted, ready)
            })?;
            self.over |= client && self.at_end;
        }
        Ok(())
    }

    /// Reads exactly as many bytes as fit `buffer`.
    ///
    /// # Errors
    /// Those of [`read`](Call::read); [`Error::Short`] if the stream ends earlier.
    pub fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<(), Error> {
        while !buffer.is_empty() {
            self.await_bytes(buffer.len())?;
            let piece = self.read_up_to(buffer.len())?.ok_or(Error::Short)?;
            let (filled, rest) = buffer.split_at_mut(piece.len());
            filled.copy_from_slice(piece.as_ref());
            buffer = rest;
        }
        Ok(())
    }

    /// Reads the next bytes, at most `max` of them; leaves the data after a part of known length.
    ///
    /// # Errors
    /// Those of [`read`](Call::read).
    pub fn read_up_to(&mut self, max: usize) -> Result<Option<Bytes>, Error> {
        let Some(piece) = self.read()? else {
            return Ok(None);
        };
        if piece.len() > max {
            self.ready.push_front(piece.slice(max..piece.len()));
            if let Some(kept) = &mut self.kept {
                kept.position.put_back(piece.len() - max);
            }
        }
        Ok(Some(piece.slice(0..max)))
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// Those of [`read`](Call::read); [`Error::Long`] if there are more than `max` bytes.
    pub fn read_to_end(&mut self, max: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        loop {
            self.await_bytes(max)?;
            let Some(piece) = self.read()? else {
                return Ok(all);
            };
            if all.len() + piece.len() > max {
                return Err(Error::Long(max));
            }
            all.extend_from_slice(piece.as_ref());
        }
    }

    /// Writes bytes, and references them until the peer has acknowledged them. Blocks while more
    /// than two windows are unacknowledged. Less than a packet is sent together with the bytes that
    /// follow.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Stopped`]; [`Error::Finished`] after [`finish`](Call::finish).
    pub fn write(&mut self, bytes: impl Into<Bytes>) -> Result<(), Error> {
        self.write_all([bytes.into()])
    }

    /// Writes several pieces, like [`write`](Call::write).
    ///
    /// # Errors
    /// Those of [`write`](Call::write).
    pub fn write_all(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> Result<(), Error> {
        if self.over {
            return Err(Error::Finished);
        }
        for piece in pieces {
            self.unsent_bytes += piece.len();
            self.unsent.push_back(piece);
        }
        if self.unsent_bytes <= PACKET_DATA_BYTES && self.unsent.len() < UNSENT_PIECES {
            return Ok(());
        }
        self.send(Stream::Open)
    }

    /// Marks the end of the written data. At a server this ends the program's ownership of the
    /// call, and the reply is delivered; it happens automatically when a handler returns.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Stopped`].
    pub fn finish(&mut self) -> Result<(), Error> {
        if self.over {
            return Ok(());
        }
        let sent = self.send(Stream::Finished);
        if sent.is_err() {
            self.end(code::USER_ABORT);
        }
        self.over |= self.link.is_none();
        sent
    }

    /// Passes written data, and the end of a finished stream, to the endpoint.
    fn send(&mut self, stream: Stream) -> Result<(), Error> {
        let is_long = stream == Stream::Open || self.unsent_bytes > PACKET_DATA_BYTES;
        if is_long
            && let Some(kept) = &mut self.kept
            && kept.reply == Reply::Unsent
        {
            kept.entry.set_replying();
            kept.reply = Reply::Begun;
        }
        let (id, server) = (self.id, self.link.is_none());
        let unsent = &mut self.unsent;
        self.unsent_bytes = 0;
        self.shard.until(&self.wake, None, |state, now| {
            if state.stopped {
                return Some(Err(Error::Stopped));
            }
            while let Some(bytes) = unsent.pop_front() {
                let slice = bytes.slice(0..SLICE_BYTES);
                match state.endpoint.write(now, id, slice) {
                    Ok(_) if bytes.len() > SLICE_BYTES => {
                        unsent.push_front(bytes.slice(SLICE_BYTES..bytes.len()));
                    }
                    Ok(_) => {}
                    Err(WriteError::Blocked(_)) => {
                        unsent.push_front(bytes);
                        state.open.get_mut(&id)?.waits = true;
                        return None;
                    }
                    Err(WriteError::Finished(_)) => return Some(Err(Error::Finished)),
                    Err(WriteError::Call(_, error)) => return Some(Err(error.into())),
                }
            }
            if stream == Stream::Open {
                return Some(Ok(()));
            }
            if server {
                state.open.remove(&id);
            }
            Some(state.endpoint.finish(now, id).map_err(Error::from))
        })
    }

    /// Ends the call with a code for the peer's application.
    pub fn abort(mut self, code: i32) {
        self.end(code);
    }

    fn end(&mut self, code: i32) {
        if !std::mem::replace(&mut self.over, true) {
            let id = self.id;
            self.shard.run(|state, now| {
                state.open.remove(&id);
                state.endpoint.abort(now, id, code);
            });
        }
    }
}

impl Position {
    /// Returns that before the first piece of `bytes` bytes, which is the last packet before those
    /// that are still to be received.
    fn before(entry: &Entry, bytes: u64) -> Position {
        let (next, end) = entry.stored.unwrap_or((Seq(2), bytes));
        Position {
            next: Seq(next.0 - 1),
            bytes: end.saturating_sub(bytes),
            back: 0,
        }
    }

    fn read(&mut self, bytes: usize) {
        self.next = self.next.next();
        self.bytes += bytes as u64;
        self.back = 0;
    }

    fn put_back(&mut self, bytes: usize) {
        self.next = Seq(self.next.0 - 1);
        self.bytes -= bytes as u64;
        self.back = bytes;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(code::USER_ABORT);
    }
}
