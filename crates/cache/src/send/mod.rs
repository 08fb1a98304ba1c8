//! Sends: bytes of pages go into sockets from the frames they lie in, with a caller's bytes between
//! them.
//!
//! ```text
//!   Session::pages ──► PageRef ──► Parts ──────► a TCP socket         send_range does all of it
//!                         │          └─ Datagrams ──► a UDP socket, a batch at a time
//!                         └─ lend ──► Loan: for what may have to be sent again
//! ```
//!
//! The kernel copies what it is given while the call runs, and reads no frame after it. That is the
//! cheapest way that is sound. `sendfile` and `splice` make the socket refer to the frame and never
//! say when the last reader is done: a receiver on the same machine reads the frame after it has
//! acknowledged the bytes, so that an empty send queue (`SIOCOUTQ`) means nothing, and a frame used
//! again by then gives it another page's bytes. `MSG_ZEROCOPY` does say when, and for such a receiver
//! copies all the same. For UDP the copy is not what costs: it is a trip through the stack for each
//! datagram, and a batch makes the trip once (`UDP_SEGMENT`, udp(7)).
//!
//! **Invariant:** a page is sent as it was at one moment, whoever writes to it meanwhile: its frame is
//! held from before the call until after it, and a writer goes on in another. Nothing is held between
//! two calls but what the caller holds, so a receiver that does not read keeps no page from going.
//!
//! Absent on purpose: a queue of things to be sent, and waiting. A caller polls its sockets.

mod parts;
mod udp;

pub use parts::Parts;
pub use udp::{Datagrams, UdpSender};

use crate::frames::PAGE_BYTES;
use crate::open::OpenFile;
use crate::session::Session;
use block::Error;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes that are held and handed to the socket at a time: enough that the call is paid once for
/// many pages, little enough that what a full socket does not take is soon held again.
const CHUNK: u64 = 256 << 10;

/// Why a range could not be sent.
#[derive(Debug)]
pub enum SendError {
    /// A page could not be brought.
    File(Error),
    /// What the socket says: [`io::ErrorKind::WouldBlock`] when it takes nothing now.
    Socket(io::Error),
}

impl SendError {
    /// The socket is full: go on when it can be written to.
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

/// Sends a range of bytes of a file into a stream socket; its start moves up to what has not been
/// taken. Bytes beyond the end of the file are not sent. Waits for pages that have to be brought,
/// never for the socket. The bytes of a page are of one moment during the call.
///
/// # Errors
/// [`SendError::would_block`] when the socket is full; the start says how far it got, as it does with
/// any other error. A page that programs have mapped is sent by way of a copy, whole pages of which
/// are not of one moment, because programs store into it as they like.
pub fn send_range(
    socket: impl AsFd,
    session: &mut Session,
    open: &mut OpenFile,
    range: &mut Range<u64>,
) -> Result<(), SendError> {
    loop {
        let (cuts, size) = (open.vnode().cuts(), open.vnode().size());
        let end = range.end.min(size);
        if range.start >= end {
            return Ok(());
        }
        let chunk = range.start..end.min((range.start / CHUNK + 1) * CHUNK);
        let more = chunk.end < end;
        let taken = send_chunk(&socket, session, open, chunk, cuts, more)?;
        range.start += taken;
    }
}

/// Sends some bytes of a range and says how many; none if the file was cut since `cuts`.
fn send_chunk(
    socket: impl AsFd,
    session: &mut Session,
    open: &mut OpenFile,
    chunk: Range<u64>,
    cuts: u64,
    more: bool,
) -> Result<u64, SendError> {
    let vnode = Arc::clone(open.vnode());
    let within = (chunk.start % PAGE_BYTES as u64) as usize;
    let len = (chunk.end - chunk.start) as usize;
    let held = session.pages(open, chunk.clone());
    if let Ok(pages) = held {
        // What was brought since the file was cut may be zeros that came later.
        if vnode.cuts() != cuts {
            return Ok(0);
        }
        let mut parts = Parts::new();
        parts.pages(&pages, within..within + len);
        return Ok(parts.send_some(socket, more)? as u64);
    }
    let error = held.err();
    let mut pages = crate::open::pages_of(chunk.start, len as u64);
    match error {
        Some(error) if !pages.any(|page| open.is_in_window(page)) => Err(error.into()),
        _ => {
            let mut copy = vec![0; len];
            let len = session.read(open, chunk.start, &mut copy)?;
            let mut parts = Parts::new();
            parts.bytes(&copy[..len]);
            Ok(parts.send_some(socket, more)? as u64)
        }
    }
}
