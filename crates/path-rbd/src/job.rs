//! A request in flight, and the calls that carry it out.

use crate::handle::{Io, Parts};
use block::{Error, ErrorKind, Op};

/// Maximum length in bytes of one discard or one write of zeros: 256 objects of the usual size. A
/// longer request is carried out in pieces, so that it does not start a request for each object of
/// the image at once.
const PIECE_BYTES: u64 = 1 << 30;

/// A request that `librbd` carries out.
pub(crate) struct Job {
    pub(crate) tag: u64,
    pub(crate) op: Op,
    /// Addresses of the buffers; `librbd` keeps a reference to the list while it reads.
    parts: Parts,
    /// First byte of the current piece.
    at: u64,
}

impl Job {
    pub(crate) fn new(tag: u64, mut op: Op) -> Job {
        let mut parts = Parts::default();
        if let Op::Read { bufs, .. } | Op::Write { bufs, .. } = &mut op {
            bufs.iter_mut().for_each(|buf| parts.push(buf));
        }
        Job {
            tag,
            at: op.range().map_or(0, |(offset, _)| offset),
            op,
            parts,
        }
    }

    /// Returns the length in bytes of the current piece.
    fn piece(&self) -> u64 {
        let end = self.op.range().map_or(0, |(offset, len)| offset + len);
        (end - self.at).min(PIECE_BYTES)
    }

    /// Returns the current call.
    pub(crate) fn io(&self) -> Io<'_> {
        let (offset, parts) = (self.at, self.parts.as_slice());
        match self.op {
            Op::Read { .. } => Io::Read { offset, parts },
            Op::Write { .. } => Io::Write { offset, parts },
            Op::Flush => Io::Flush,
            Op::Discard { .. } => Io::Discard {
                offset,
                len: self.piece(),
            },
            Op::WriteZeroes { unmap, .. } => Io::Zeroes {
                offset,
                len: self.piece(),
                thick: !unmap,
            },
        }
    }

    /// Advances after a call that succeeded with this result. Returns whether another one follows.
    pub(crate) fn advance(&mut self, result: usize, name: &str) -> Result<bool, Error> {
        match &self.op {
            Op::Read { bufs, .. } if result != bufs.total_len() => {
                let why = "the image has become smaller; restore its size";
                Err(Error::new(ErrorKind::OutOfRange, name, why))
            }
            Op::Read { .. } | Op::Write { .. } | Op::Flush => Ok(false),
            Op::Discard { .. } | Op::WriteZeroes { .. } => {
                self.at += self.piece();
                Ok(self.piece() > 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Buf;

    #[test]
    fn a_long_discard_is_cut_in_pieces_that_cover_it_once() {
        let (offset, len) = (4096, 2 * PIECE_BYTES + 512);
        let mut job = Job::new(1, Op::Discard { offset, len });
        let mut pieces = Vec::new();
        loop {
            let Io::Discard { offset, len } = job.io() else {
                panic!("a discard")
            };
            pieces.push((offset, len));
            if !job.advance(0, "x").unwrap() {
                break;
            }
        }
        let expected = [
            (4096, PIECE_BYTES),
            (4096 + PIECE_BYTES, PIECE_BYTES),
            (4096 + 2 * PIECE_BYTES, 512),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn a_short_read_is_an_error() {
        let bufs = Buf::zeroed(1024).into();
        let mut job = Job::new(1, Op::Read { offset: 0, bufs });
        assert!(!job.advance(1024, "x").unwrap());
        let short = job.advance(512, "x").unwrap_err();
        assert_eq!(short.kind(), ErrorKind::OutOfRange);
    }
}
