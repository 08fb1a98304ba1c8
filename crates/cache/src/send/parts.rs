//! A gather list: bytes in many places that are sent to a stream.

use crate::frames::PAGE_BYTES;
use crate::latch::PageRef;
use crate::loan::Loan;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::ops::{Deref, Range};
use std::os::fd::AsFd;

/// Most entries in one call (`UIO_MAXIOV`).
pub(super) const SLICES_MAX: usize = 1024;

/// When the last packet of a send leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// At once.
    Now,
    /// When it is full, or another send has pushed it (`MSG_MORE`): more bytes follow.
    Later,
}

/// A handle that holds a page in place: [`PageRef`] or [`Loan`].
pub trait Held: Deref<Target = [u8]> + sealed::Sealed {}

impl Held for PageRef<'_> {}
impl Held for Loan {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::latch::PageRef<'_> {}
    impl Sealed for crate::loan::Loan {}
}

/// A gather list of the caller's bytes and the bytes of held pages.
#[derive(Default)]
pub struct Parts<'a> {
    slices: Vec<IoSlice<'a>>,
    /// Index of the first entry that has not been sent completely.
    next: usize,
    len: usize,
}

impl<'a> Parts<'a> {
    /// Creates an empty list.
    pub fn new() -> Parts<'a> {
        Parts::default()
    }

    /// Appends bytes of the caller, for example a header.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> &mut Parts<'a> {
        if !bytes.is_empty() {
            self.slices.push(IoSlice::new(bytes));
            self.len += bytes.len();
        }
        self
    }

    /// Appends a range of the bytes of consecutive pages, counted from the first byte of the first
    /// one. Pages in neighboring frames become one entry: with one entry for each page of 64, a
    /// call cost the sender a tenth more CPU time.
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

    /// Returns the number of unsent bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether everything has been sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends everything to a stream socket; removes the bytes that it takes from the list.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when the socket is full, and other errors of the socket; a
    /// closed peer is an error, and raises no signal.
    pub fn send(&mut self, socket: impl AsFd, push: Push) -> io::Result<()> {
        while !self.is_empty() {
            self.send_some(&socket, push)?;
        }
        Ok(())
    }

    /// Makes one call, and returns how many bytes the socket took.
    pub(super) fn send_some(&mut self, socket: impl AsFd, push: Push) -> io::Result<usize> {
        let slices = self.places();
        let all = slices.len() == self.slices.len() - self.next;
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, push == Push::Later || !all);
        let control = &mut SendAncillaryBuffer::default();
        let sent = rustix::io::retry_on_intr(|| sendmsg(&socket, slices, control, flags))?;
        self.gone(sent);
        Ok(sent)
    }

    /// Returns the first unsent entries, up to the limit of one call.
    fn places(&self) -> &[IoSlice<'a>] {
        let rest = &self.slices[self.next..];
        &rest[..rest.len().min(SLICES_MAX)]
    }

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

/// Joins two parts of held pages, if the second follows the first in memory.
fn joined<'a>(first: &'a [u8], second: &'a [u8]) -> Option<&'a [u8]> {
    if first.as_ptr_range().end != second.as_ptr() {
        return None;
    }
    // SAFETY: both are bytes of frames that are held for the lifetime `'a`, so neither changes, and
    // they are adjacent in mapped memory; the joined slice is only passed to the kernel.
    Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), first.len() + second.len()) })
}
