//! Output of a connection: the negotiation, and replies with their data.

use crate::socket::Socket;
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
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds bytes of the negotiation.
    pub(super) fn push_bytes(&mut self, bytes: Vec<u8>) {
        self.parts.push_back(Part::Bytes(bytes));
    }

    /// Adds the head of a reply.
    pub(super) fn push_head(&mut self, bytes: &[u8]) {
        let mut head = [0; 28];
        head[..bytes.len()].copy_from_slice(bytes);
        self.parts.push_back(Part::Head(head, bytes.len()));
    }

    /// Adds the data of a reply.
    pub(super) fn push_data(&mut self, data: Vec<(u64, Bufs)>) {
        for (_, bufs) in data {
            self.parts
                .extend(bufs.into_vec().into_iter().map(Part::Data));
        }
    }

    /// Writes to the socket once. Returns whether the last byte of a part was sent.
    pub(super) fn send(&mut self, socket: &mut Socket) -> io::Result<bool> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            let skip = if count == 0 { self.sent } else { 0 };
            *slice = IoSlice::new(&part.bytes()[skip..]);
            count += 1;
        }
        self.sent += socket.write_vectored(&slices[..count])?;
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
