//! Replies on their way to a client: heads and data in order, sent together without a copy.

use crate::memory::Grant;
use crate::socket::Socket;
use block::Bufs;
use nbd_proto::ReplyHead;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

/// Slices of one write to the socket.
const SLICES: usize = 64;

/// What waits to be sent.
#[derive(Default)]
pub(crate) struct Output {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have been sent.
    sent: usize,
    /// Grants whose buffers have been sent.
    done: Vec<Grant>,
}

enum Piece {
    Head(ReplyHead),
    Bytes(Vec<u8>),
    Data(Bufs),
    /// The buffers in front of it were held by this.
    Held(Grant),
}

impl Piece {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (one, many): (&[u8], &[block::Buf]) = match self {
            Piece::Head(head) => (head.as_bytes(), &[]),
            Piece::Bytes(bytes) => (bytes, &[]),
            Piece::Data(bufs) => (&[], bufs.as_slice()),
            Piece::Held(_) => (&[], &[]),
        };
        std::iter::once(one).chain(many.iter().map(|b| &b[..]))
    }

    fn len(&self) -> usize {
        self.slices().map(<[u8]>::len).sum()
    }
}

impl Output {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Pieces that wait.
    pub(crate) fn count(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn bytes(&mut self, bytes: Vec<u8>) {
        self.pieces.push_back(Piece::Bytes(bytes));
    }

    pub(crate) fn head(&mut self, head: ReplyHead) {
        self.pieces.push_back(Piece::Head(head));
    }

    /// Data, and the grant that ends when it has been sent.
    pub(crate) fn data(&mut self, data: impl IntoIterator<Item = Bufs>, grant: Grant) {
        self.pieces.extend(data.into_iter().map(Piece::Data));
        if grant != Grant::Nothing {
            self.pieces.push_back(Piece::Held(grant));
        }
    }

    /// A grant that has come free.
    pub(crate) fn pop_grant(&mut self) -> Option<Grant> {
        self.done.pop()
    }

    pub(crate) fn holds_large(&self) -> bool {
        self.pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Held(Grant::Large)))
    }

    /// Sends as much as the socket takes; says how many bytes.
    pub(crate) fn send(&mut self, socket: &mut Socket) -> io::Result<usize> {
        let mut total = 0;
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            let mut skip = self.sent;
            let all = self.pieces.iter().flat_map(Piece::slices);
            for bytes in all {
                let rest = &bytes[skip.min(bytes.len())..];
                skip = skip.saturating_sub(bytes.len());
                if rest.is_empty() {
                    continue;
                }
                if count == SLICES {
                    break;
                }
                slices[count] = IoSlice::new(rest);
                count += 1;
            }
            if count == 0 {
                // Only ends of grants are left.
                self.advance(0);
                break;
            }
            match socket.write_vectored(&slices[..count]) {
                Ok(n) => {
                    total += n;
                    self.advance(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        match socket.push() {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
            _ => Ok(total),
        }
    }

    fn advance(&mut self, n: usize) {
        self.sent += n;
        while let Some(piece) = self.pieces.front() {
            let len = piece.len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            if let Some(Piece::Held(grant)) = self.pieces.pop_front() {
                self.done.push(grant);
            }
        }
    }

    /// Nothing more is sent.
    pub(crate) fn abandon(&mut self) {
        for piece in self.pieces.drain(..) {
            if let Piece::Held(grant) = piece {
                self.done.push(grant);
            }
        }
        self.sent = 0;
    }
}
