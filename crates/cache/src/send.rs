//! Sending page data: bytes of pages are sent to sockets directly from their frames, with the
//! caller's bytes between them.
//!
//! ```text
//!   Session::pages ──► PageRef ──► Parts ──────► a TCP socket         RangeSend does all of this
//!                         │          └─ Datagrams ──► a UDP socket, a batch at a time
//!                         └─ lend ──► Loan: for data that may have to be sent again
//! ```
//!
//! The kernel copies the data during the call, and reads no frame after it. That is the cheapest
//! sound way. `sendfile` and `splice` make the socket refer to the frame and never report when the
//! last reader is done: a receiver on the same machine reads the frame after it has acknowledged
//! the bytes, so that an empty send queue (`SIOCOUTQ`) proves nothing, and a frame reused by then
//! delivers another page's bytes. `MSG_ZEROCOPY` does report completion, and for such a receiver
//! copies all the same. For UDP the copy is not the main cost: that is the traversal of the network
//! stack for each datagram, and a batch traverses it once (`UDP_SEGMENT`, udp(7)).
//!
//! **Invariant:** a page is sent as it was at one moment, regardless of concurrent writers: its
//! frame is held from before its first byte is taken until after its last, and a writer continues
//! in another frame. Between two calls a [`RangeSend`] holds at most one page, of which a full
//! socket has taken a part, so a receiver that does not read prevents the eviction of no other
//! page.
//!
//! Deliberately absent: a queue of pending sends, and waiting. A caller polls its sockets.

mod parts;
mod udp;

pub use parts::{Parts, Push};
pub use udp::{Datagrams, UdpSender};

use crate::frames::PAGE_BYTES;
use crate::loan::Loan;
use crate::open::{OpenFile, pages_of};
use crate::session::Session;
use block::{Error, ErrorKind};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes that are held and passed to the socket at a time: large enough to amortize the call over
/// many pages, small enough that it is cheap to hold the unsent part again when the socket is full.
const CHUNK: u64 = 256 << 10;

/// Reason why a range could not be sent.
#[derive(Debug)]
pub enum SendError {
    /// A page could not be loaded.
    File(Error),
    /// The socket's error; [`io::ErrorKind::WouldBlock`] when it is full.
    Socket(io::Error),
}

impl SendError {
    /// Reports whether the socket is full: the send may continue when it is writable.
    pub fn would_block(&self) -> bool {
        matches!(self, SendError::Socket(e) if e.kind() == io::ErrorKind::WouldBlock)
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::File(error) => error.fmt(f),
            SendError::Socket(error) => write!(f, "cannot send: {error}"),
        }
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SendError::File(error) => error.source(),
            SendError::Socket(error) => Some(error),
        }
    }
}

impl From<Error> for SendError {
    fn from(error: Error) -> SendError {
        SendError::File(error)
    }
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> SendError {
        SendError::Socket(error)
    }
}

/// A range of bytes of a file that is being sent to a stream socket.
pub struct RangeSend {
    left: Range<u64>,
    /// The page of which the socket has taken the first bytes: the rest is sent in the same state.
    begun: Option<Loan>,
}

impl RangeSend {
    /// Creates the send of a range.
    pub fn new(range: Range<u64>) -> RangeSend {
        RangeSend {
            left: range,
            begun: None,
        }
    }

    /// Returns the bytes that the socket has not taken. If the file ends before the range does, the
    /// rest of the range remains.
    pub fn left(&self) -> Range<u64> {
        self.left.clone()
    }

    /// Sends as much as the socket takes. `Ok` means that the send is complete. Waits for pages to
    /// be loaded, but never for the socket. Each call must pass the same file and the same socket.
    ///
    /// # Errors
    /// [`SendError::would_block`] when the socket is full: call again when it is writable. A page
    /// that programs have mapped is sent through a copy, which is consistent only if they do not
    /// store into it during the copy.
    pub fn send(
        &mut self,
        socket: impl AsFd,
        session: &mut Session,
        open: &mut OpenFile,
    ) -> Result<(), SendError> {
        loop {
            // The socket may have room again at once, after it took a part of a page.
            self.finish_page(&socket)?;
            let (cuts, size) = (open.vnode().truncations(), open.vnode().size());
            let end = self.left.end.min(size);
            if self.left.start >= end {
                return Ok(());
            }
            let chunk = self.left.start..end.min((self.left.start / CHUNK + 1) * CHUNK);
            let push = push_at(chunk.end, end);
            match self.send_held(&socket, session, open, chunk.clone(), cuts, push) {
                Err(SendError::File(error)) if is_mapped(open, &chunk, &error) => {
                    self.send_copy(&socket, session, open, chunk)?;
                }
                sent => sent?,
            }
        }
    }

    /// Sends the rest of a partially sent page.
    fn finish_page(&mut self, socket: impl AsFd) -> io::Result<()> {
        while let Some(page) = &self.begun {
            let within = (self.left.start % PAGE) as usize;
            let end = self.left.end.min((self.left.start / PAGE + 1) * PAGE);
            let len = (end - self.left.start) as usize;
            let mut parts = Parts::new();
            parts.pages(std::slice::from_ref(page), within..within + len);
            let sent = parts.send_some(&socket, push_at(end, self.left.end))?;
            self.left.start += sent as u64;
            if sent == len {
                self.begun = None;
            }
        }
        Ok(())
    }

    /// Sends some bytes of a chunk; none if the file was truncated since `cuts`.
    fn send_held(
        &mut self,
        socket: impl AsFd,
        session: &mut Session,
        open: &mut OpenFile,
        chunk: Range<u64>,
        cuts: u64,
        push: Push,
    ) -> Result<(), SendError> {
        let vnode = Arc::clone(open.vnode());
        let within = (chunk.start % PAGE) as usize;
        let len = (chunk.end - chunk.start) as usize;
        let held = session.pages(open, chunk)?;
        // Pages loaded since a truncation may hold zeros instead of the earlier data.
        if vnode.truncations() != cuts {
            return Ok(());
        }
        let mut parts = Parts::new();
        parts.pages(&held, within..within + len);
        let sent = parts.send_some(socket, push)?;
        self.left.start += sent as u64;
        let last = within + sent;
        if sent < len && !last.is_multiple_of(PAGE_BYTES) {
            self.begun = Some(held[last / PAGE_BYTES].lend());
        }
        Ok(())
    }

    /// Sends like [`RangeSend::send_held`], for a chunk with a page that lies in a window.
    fn send_copy(
        &mut self,
        socket: impl AsFd,
        session: &mut Session,
        open: &mut OpenFile,
        chunk: Range<u64>,
    ) -> Result<(), SendError> {
        let mut copy = vec![0; (chunk.end - chunk.start) as usize];
        let len = session.read(open, chunk.start, &mut copy)?;
        let mut parts = Parts::new();
        parts.bytes(&copy[..len]);
        if !parts.is_empty() {
            self.left.start += parts.send_some(socket, Push::Now)? as u64;
        }
        Ok(())
    }
}

/// Chooses how to send bytes up to `sent` of a send that ends at `end`.
fn push_at(sent: u64, end: u64) -> Push {
    if sent < end { Push::Later } else { Push::Now }
}

/// Checks whether the pages of a chunk could not be held because one of them lies in a window.
fn is_mapped(open: &mut OpenFile, chunk: &Range<u64>, error: &Error) -> bool {
    let mut pages = pages_of(chunk.start, chunk.end - chunk.start);
    error.kind() == ErrorKind::Busy && pages.any(|page| open.is_in_window(page))
}

const PAGE: u64 = PAGE_BYTES as u64;
