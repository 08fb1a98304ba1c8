//! The frames of a stream: bytes in pieces of any size become a header and verified segments.

use crate::header::Header;
use crate::segment::{self, Digest};
use crate::{Error, Result, Segment};

/// Frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The header; always the first event.
    Header(Header),
    /// A segment whose digest, and all before it, are right.
    Segment {
        /// Number of the segment.
        number: u64,
        /// Digest of the stream before it.
        before: Digest,
        /// Its bytes, for [`Segment::parse`].
        bytes: Vec<u8>,
    },
}

/// Decoder of the frames of one stream.
#[derive(Debug, Default)]
pub struct Decoder {
    held: Vec<u8>,
    state: State,
    /// Number of the next segment, and the digest before it.
    number: u64,
    digest: Digest,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Header,
    Segments,
    Ended,
}

impl Decoder {
    /// Adds bytes. The caller takes all events before it adds more, which bounds the memory.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Returns the next frame; `None` if it is not complete yet.
    ///
    /// # Errors
    /// The bytes are no stream, or damaged.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        match self.state {
            State::Header => {
                let Some(bytes) = self.take(Header::length)? else {
                    return Ok(None);
                };
                let header = Header::decode(&bytes)?;
                self.state = State::Segments;
                (self.number, self.digest) = match &header.resume {
                    Some(resume) => (resume.segments, resume.digest),
                    None => (0, header.stream_id()),
                };
                Ok(Some(Event::Header(header)))
            }
            State::Segments => {
                let Some(bytes) = self.take(segment::length)? else {
                    return Ok(None);
                };
                let segment = Segment::parse(&bytes)?;
                let (number, before) = (self.number, self.digest);
                let digest = segment.verify(number, before)?;
                if segment.position()?.is_end() {
                    self.state = State::Ended;
                }
                (self.number, self.digest) = (number.saturating_add(1), digest);
                Ok(Some(Event::Segment {
                    number,
                    before,
                    bytes,
                }))
            }
            State::Ended if self.held.is_empty() => Ok(None),
            State::Ended => Err(Error::Trailing),
        }
    }

    /// Reports whether the last segment has been returned.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Takes the next frame from the bytes, if they have all of it.
    fn take(&mut self, length: impl Fn(&[u8]) -> Result<Option<usize>>) -> Result<Option<Vec<u8>>> {
        let len = length(&self.held)?.filter(|len| *len <= self.held.len());
        Ok(len.map(|len| self.held.drain(..len).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Id, Position, Record, SegmentBuilder};
    use block_testing::Random;

    fn stream() -> (Header, Vec<u8>) {
        let header = Header {
            snapshot: Id([1; 16]),
            ..Header::default()
        };
        let mut bytes = header.encode();
        let mut digest = header.stream_id();
        for number in 0..3 {
            let mut segment = SegmentBuilder::new(number, digest);
            for ino in 0..number + 1 {
                assert!(segment.push(&Record::ClearXattrs { ino }));
            }
            let after = match number {
                2 => Position::END,
                object => Position {
                    phase: 1,
                    object,
                    step: 0,
                },
            };
            let (segment, after) = segment.finish(after);
            bytes.extend(segment);
            digest = after;
        }
        (header, bytes)
    }

    /// Reads a stream in pieces. Returns the digest at the end, or the first error.
    fn read(bytes: &[u8], piece: usize) -> Result<Option<Digest>> {
        let mut decoder = Decoder::default();
        for piece in bytes.chunks(piece) {
            decoder.feed(piece);
            while decoder.next_event()?.is_some() {}
        }
        Ok(decoder.has_ended().then_some(decoder.digest))
    }

    #[test]
    fn a_stream_in_pieces_is_the_same_stream() {
        let (_, bytes) = stream();
        let whole = read(&bytes, bytes.len()).unwrap();
        assert!(whole.is_some());
        for piece in [1, 2, 7, 100] {
            assert_eq!(read(&bytes, piece).unwrap(), whole);
        }
    }

    #[test]
    fn a_changed_bit_or_a_missing_byte_never_passes_for_a_whole_stream() {
        let (_, bytes) = stream();
        let whole = read(&bytes, 64).unwrap();
        let mut codes = 0;
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match read(&damaged, 64) {
                Ok(None) | Err(_) => {}
                // The codes are those of a key, which the reader here does not have.
                Ok(digest) => {
                    assert_eq!(digest, whole);
                    codes += 1;
                }
            }
        }
        assert_eq!(codes, 3 * 8 * crate::CODE_BYTES);
        for len in 0..bytes.len() {
            assert!(matches!(read(&bytes[..len], 64), Ok(None) | Err(_)));
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(read(&longer, 64), Err(Error::Trailing));
    }

    #[test]
    fn exchanged_repeated_and_missing_segments_are_refused() {
        let (header, bytes) = stream();
        let start = header.encode().len();
        let mut parts = Vec::new();
        let mut rest = &bytes[start..];
        while let Some(len) = segment::length(rest).unwrap() {
            parts.push(&rest[..len]);
            rest = &rest[len..];
        }
        for order in [&[1, 0, 2][..], &[0, 2], &[0, 0, 1, 2], &[2]] {
            let mut other = header.encode();
            order.iter().for_each(|at| other.extend(parts[*at]));
            assert!(read(&other, 64).is_err(), "{order:?}");
        }
    }

    #[test]
    fn random_bytes_are_refused_within_bounded_memory() {
        let mut random = Random::new(1);
        for _ in 0..2000 {
            let (_, mut bytes) = stream();
            for _ in 0..1 + random.below(6) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            let _ = read(&bytes, 1 + random.below(300) as usize);
        }
    }
}
