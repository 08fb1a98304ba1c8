//! Output of a connection: the negotiation, and replies with their data.

use crate::kept::Place;
use crate::socket::Socket;
use crate::step::step;
use block::{Buf, Bufs};
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// Maximum number of slices in one write to the socket.
const SLICES: usize = 64;

/// Part of a reply to send.
enum Part {
    Head([u8; 28], usize),
    Bytes(Vec<u8>),
    Data(Buf),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Part::Head(bytes, len) => &bytes[..*len],
            Part::Bytes(bytes) => bytes,
            Part::Data(buf) => buf,
        }
    }
}

/// Parts to send, in order.
#[derive(Default)]
pub(super) struct Output {
    parts: VecDeque<Part>,
    /// Bytes of the first part that have been sent.
    sent: usize,
    /// Bytes that a predecessor has sent of what is added next.
    skip: usize,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Drops the next `bytes`, which a predecessor has sent.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.skip = bytes;
    }

    /// Reports whether not all has been added that a predecessor has sent.
    pub(super) fn is_skipping(&self) -> bool {
        self.skip > 0
    }

    /// Adds bytes of the negotiation.
    pub(super) fn push_bytes(&mut self, bytes: Vec<u8>) {
        self.push(Part::Bytes(bytes));
    }

    fn push(&mut self, part: Part) {
        let len = part.bytes().len();
        if self.skip > 0 && self.skip >= len {
            self.skip -= len;
            return;
        }
        if self.parts.is_empty() {
            self.sent = std::mem::take(&mut self.skip);
        }
        self.parts.push_back(part);
    }

    /// Adds the head of a reply.
    pub(super) fn push_head(&mut self, bytes: &[u8]) {
        let mut head = [0; 28];
        head[..bytes.len()].copy_from_slice(bytes);
        self.push(Part::Head(head, bytes.len()));
    }

    /// Adds the data of a reply.
    pub(super) fn push_data(&mut self, data: Vec<(u64, Bufs)>) {
        for (_, bufs) in data {
            for buf in bufs.into_vec() {
                self.push(Part::Data(buf));
            }
        }
    }

    /// Writes to the socket once. Returns whether the last byte of a part was sent.
    pub(super) fn send(
        &mut self,
        socket: &mut Socket,
        place: Option<&mut Place>,
    ) -> io::Result<bool> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            let skip = if count == 0 { self.sent } else { 0 };
            *slice = IoSlice::new(&part.bytes()[skip..]);
            count += 1;
        }
        self.sent += match place {
            None => socket.write_vectored(&slices[..count])?,
            Some(place) => write_counted(socket, &slices[..count], place)?,
        };
        let mut completed = false;
        while let Some(part) = self.parts.front() {
            let len = part.bytes().len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.parts.pop_front();
            completed = true;
        }
        Ok(completed)
    }
}

/// Writes to the socket, so that a successor knows how much was sent.
fn write_counted(
    socket: &mut Socket,
    slices: &[IoSlice<'_>],
    place: &mut Place,
) -> io::Result<usize> {
    if !socket.has_pipe() {
        let sent = socket.write_vectored(slices)?;
        step();
        place.sent(sent);
        return Ok(sent);
    }
    // A pipe is written to when it is empty, so that what is in it afterwards was written.
    socket.push()?;
    place.piped(place.output_at(), true);
    let sent = socket.write_vectored(slices);
    let taken = *sent.as_ref().unwrap_or(&0);
    place.piped(place.output_at() + taken as u64, false);
    place.sent(taken);
    sent
}
