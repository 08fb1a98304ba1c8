//! A row of bytes in many places, on its way into a stream.

use crate::frames::PAGE_BYTES;
use crate::latch::PageRef;
use crate::loan::Loan;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::ops::{Deref, Range};
use std::os::fd::AsFd;

/// Most places in one call (`UIO_MAXIOV`).
pub(super) const SLICES_MAX: usize = 1024;

/// What holds a page in place: [`PageRef`] or [`Loan`].
pub trait Held: Deref<Target = [u8]> + sealed::Sealed {}

impl Held for PageRef<'_> {}
impl Held for Loan {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::latch::PageRef<'_> {}
    impl Sealed for crate::loan::Loan {}
}

/// A row of bytes that lie in many places: a caller's, and those of pages that are held.
#[derive(Default)]
pub struct Parts<'a> {
    slices: Vec<IoSlice<'a>>,
    /// Those before this have gone.
    next: usize,
    len: usize,
}

impl<'a> Parts<'a> {
    /// Of no bytes.
    pub fn new() -> Parts<'a> {
        Parts::default()
    }

    /// Adds a caller's bytes, a header for example.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> &mut Parts<'a> {
        if !bytes.is_empty() {
            self.slices.push(IoSlice::new(bytes));
            self.len += bytes.len();
        }
        self
    }

    /// Adds a range of the bytes of a row of pages, counted from the first byte of the first. Pages
    /// in neighbouring frames are one place: a call with a place for each page of 64 took the sender a
    /// tenth more processor time.
    ///
    /// # Panics
    /// The range ends beyond the pages.
    pub fn pages<H: Held>(&mut self, pages: &'a [H], range: Range<usize>) -> &mut Parts<'a> {
        let mut at = range.start;
        let mut row: &'a [u8] = &[];
        while at < range.end {
            let page = &pages[at / PAGE_BYTES];
            let within = at % PAGE_BYTES;
            let len = (range.end - at).min(PAGE_BYTES - within);
            let part = &page[within..within + len];
            row = joined(row, part).unwrap_or_else(|| {
                self.bytes(row);
                part
            });
            at += len;
        }
        self.bytes(row)
    }

    /// Bytes that have not gone.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Everything has gone.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends everything into a stream socket; what it has taken is gone from the row. `more`: the end
    /// of the row is no reason to send a packet that is not full (`MSG_MORE`).
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when the socket takes no more now, and what else it says: a peer
    /// that is gone is an error, and no signal.
    pub fn send(&mut self, socket: impl AsFd, more: bool) -> io::Result<()> {
        while !self.is_empty() {
            self.send_some(&socket, more)?;
        }
        Ok(())
    }

    /// One call's worth of it: says how many bytes the socket took.
    pub(super) fn send_some(&mut self, socket: impl AsFd, more: bool) -> io::Result<usize> {
        let slices = self.places();
        let all = slices.len() == self.slices.len() - self.next;
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more || !all);
        let control = &mut SendAncillaryBuffer::default();
        let sent = rustix::io::retry_on_intr(|| sendmsg(&socket, slices, control, flags))?;
        self.gone(sent);
        Ok(sent)
    }

    /// The places of the first bytes, as many as one call takes.
    fn places(&self) -> &[IoSlice<'a>] {
        let rest = &self.slices[self.next..];
        &rest[..rest.len().min(SLICES_MAX)]
    }

    /// The places of the range of slices.
    pub(super) fn slices(&self) -> &[IoSlice<'a>] {
        &self.slices
    }

    fn gone(&mut self, bytes: usize) {
        self.len -= bytes;
        let mut rest = &mut self.slices[self.next..];
        let before = rest.len();
        IoSlice::advance_slices(&mut rest, bytes);
        self.next += before - rest.len();
    }
}

/// Two parts of held pages as one, if the second follows the first in memory.
fn joined<'a>(first: &'a [u8], second: &'a [u8]) -> Option<&'a [u8]> {
    if first.as_ptr_range().end != second.as_ptr() {
        return None;
    }
    // SAFETY: both are bytes of frames that are held for as long, so neither changes, and side by
    // side in mapped memory; what the joined slice is given to is the kernel.
    Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), first.len() + second.len()) })
}
