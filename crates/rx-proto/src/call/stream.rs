//! The bytes that one side of a call sends: references in order, found by offset.
//!
//! A reference is released when all of its bytes have been hard-acknowledged.

use crate::payload::Payload;
use std::collections::VecDeque;

#[derive(Debug)]
struct Piece<P> {
    payload: P,
    /// Stream offset of the byte after the last one.
    end: u64,
}

/// References to the bytes of a stream, from the first that may be needed again to the last
/// written.
#[derive(Debug)]
pub(crate) struct Stream<P> {
    pieces: VecDeque<Piece<P>>,
    /// Offset of the first referenced byte.
    start: u64,
    /// Offset after the last byte.
    end: u64,
    /// Index of the piece found last: the next byte is in it or in the piece after it.
    hint: usize,
}

impl<P: Payload> Stream<P> {
    pub(crate) const fn new() -> Stream<P> {
        Stream {
            pieces: VecDeque::new(),
            start: 0,
            end: 0,
            hint: 0,
        }
    }

    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of referenced bytes.
    pub(crate) const fn held(&self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn push(&mut self, payload: P) {
        let len = payload.len() as u64;
        if len > 0 {
            self.end += len;
            let end = self.end;
            self.pieces.push_back(Piece { payload, end });
        }
    }

    /// Releases all references that end at or before `offset`.
    pub(crate) fn release(&mut self, offset: u64) {
        while self.pieces.front().is_some_and(|p| p.end <= offset) {
            if let Some(piece) = self.pieces.pop_front() {
                self.start = piece.end;
            }
            self.hint = self.hint.saturating_sub(1);
        }
    }

    /// Releases all references.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.start = self.end;
        self.hint = 0;
    }

    /// Calls the closure with references to the `len` bytes from `offset` on, in order.
    pub(crate) fn slices(&mut self, offset: u64, len: usize, mut give: impl FnMut(P)) {
        let mut at = self.find(offset);
        self.hint = at;
        let (mut from, until) = (offset, offset + len as u64);
        while from < until {
            let Some(piece) = self.pieces.get(at) else {
                return;
            };
            let first = piece.end - piece.payload.len() as u64;
            let to = until.min(piece.end);
            give(
                piece
                    .payload
                    .slice(within(from - first)..within(to - first)),
            );
            from = to;
            self.hint = at;
            at += 1;
        }
    }

    fn find(&self, offset: u64) -> usize {
        let ends_after = |at: usize| self.pieces.get(at).is_some_and(|p| p.end > offset);
        let begins_after = self.hint > 0 && ends_after(self.hint - 1);
        if !begins_after && ends_after(self.hint) {
            return self.hint;
        }
        if !begins_after && ends_after(self.hint + 1) {
            return self.hint + 1;
        }
        self.pieces.partition_point(|p| p.end <= offset)
    }
}

/// Converts an offset within one payload, whose length is a `usize`.
fn within(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Shared;

    fn read(stream: &mut Stream<Shared>, offset: u64, len: usize) -> String {
        let mut all = Vec::new();
        stream.slices(offset, len, |p| all.extend(p.as_ref()));
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn bytes_are_found_across_pieces_in_any_order() {
        let mut stream = Stream::new();
        let text = "abcdefghijklmnopqrstuvwxyz";
        for piece in ["abc", "", "d", "efghijklmnop", "qrstuvwxy", "z"] {
            stream.push(Shared::from(piece.as_bytes()));
        }
        assert_eq!((stream.end(), stream.pieces()), (26, 5));
        for offset in (0..26).chain((0..26).rev()) {
            for len in [0, 1, 5, 26 - offset] {
                let to = (offset + len).min(26);
                let found = read(&mut stream, offset as u64, to - offset);
                assert_eq!(found, text[offset..to]);
            }
        }
    }

    #[test]
    fn pieces_are_let_go_when_all_of_them_arrived() {
        let mut stream = Stream::new();
        for piece in ["abcd", "efgh", "ijkl"] {
            stream.push(Shared::from(piece.as_bytes()));
        }
        assert_eq!(read(&mut stream, 8, 4), "ijkl");
        stream.release(3);
        assert_eq!((stream.pieces(), stream.held()), (3, 12));
        stream.release(9);
        assert_eq!((stream.pieces(), stream.held()), (1, 4));
        assert_eq!(read(&mut stream, 8, 4), "ijkl");
        stream.clear();
        assert_eq!((stream.pieces(), stream.held(), stream.end()), (0, 0, 12));
    }
}
