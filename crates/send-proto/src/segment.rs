//! Segments: records, the position after them, and a digest of the stream up to here.

use crate::fields::In;
use crate::record::{Position, Record};
use crate::{Error, Result};
use sha2::{Digest as _, Sha256};

/// Longest payload of a segment in bytes.
pub const SEGMENT_BYTES_MAX: usize = 4 << 20;
/// Bytes of an authentication code.
pub const CODE_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"EVsg";
/// Bytes before the payload.
pub(crate) const HEAD_BYTES: usize = 20;
/// Bytes after the payload: digest and authentication code.
pub(crate) const TAIL_BYTES: usize = 32 + CODE_BYTES;
/// Room that a builder leaves for the position.
const POSITION_BYTES: usize = 21;

/// Digest of a stream up to a segment: the SHA-256 of the digest before, and of the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest(pub [u8; 32]);

/// Segment under construction.
#[derive(Debug)]
pub struct SegmentBuilder {
    bytes: Vec<u8>,
    number: u64,
    before: Digest,
}

impl SegmentBuilder {
    /// Begins the segment `number`, counted from 0, after the digest of the one before, or the
    /// identity of the stream.
    pub fn new(number: u64, before: Digest) -> SegmentBuilder {
        SegmentBuilder {
            bytes: vec![0; HEAD_BYTES],
            number,
            before,
        }
    }

    /// Returns the length of the records in bytes.
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len() - HEAD_BYTES
    }

    /// Adds a record, if it fits. Returns whether it did.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        let before = self.bytes.len();
        record.encode(&mut self.bytes);
        let fits = self.payload_bytes() + POSITION_BYTES <= SEGMENT_BYTES_MAX;
        if !fits {
            self.bytes.truncate(before);
        }
        fits
    }

    /// Completes the segment. Returns its bytes, with an empty authentication code, and its digest.
    pub fn finish(mut self, after: Position) -> (Vec<u8>, Digest) {
        Record::Position(after).encode(&mut self.bytes);
        let len = u32::try_from(self.payload_bytes()).unwrap_or(u32::MAX);
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend(MAGIC);
        head.extend(len.to_le_bytes());
        head.extend(self.number.to_le_bytes());
        head.extend(crc32c::crc32c(&head).to_le_bytes());
        let place = self.bytes.get_mut(..HEAD_BYTES);
        place
            .into_iter()
            .for_each(|place| place.copy_from_slice(&head));
        let digest = digest_of(self.before, &self.bytes);
        self.bytes.extend(digest.0);
        self.bytes.extend([0; CODE_BYTES]);
        (self.bytes, digest)
    }
}

/// Computes the digest after a segment, from the bytes of its header and its payload.
pub fn digest_of(before: Digest, segment: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(before.0);
    hash.update(segment);
    Digest(hash.finalize().into())
}

/// Determines the length of the segment that begins with these bytes; `None` if there are too few.
pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>> {
    let Some((head, sum)) = bytes
        .get(..HEAD_BYTES)
        .and_then(<[u8]>::split_last_chunk::<4>)
    else {
        return Ok(None);
    };
    let mut fields = In(head);
    if fields.array()? != MAGIC || crc32c::crc32c(head) != u32::from_le_bytes(*sum) {
        return Err(Error::Damaged("a segment has no valid header"));
    }
    let payload = usize::try_from(fields.u32()?).unwrap_or(usize::MAX);
    if payload > SEGMENT_BYTES_MAX {
        return Err(Error::Damaged("a segment is too long"));
    }
    Ok(Some(HEAD_BYTES + payload + TAIL_BYTES))
}

/// Bytes of a segment, of which only the frame was checked.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    number: u64,
    hashed: &'a [u8],
    payload: &'a [u8],
    digest: Digest,
}

impl<'a> Segment<'a> {
    /// Splits the bytes of one segment into their parts.
    ///
    /// # Errors
    /// They are not exactly one segment.
    pub fn parse(bytes: &'a [u8]) -> Result<Segment<'a>> {
        if length(bytes)? != Some(bytes.len()) {
            return Err(Error::Damaged("a segment is incomplete"));
        }
        let mut fields = In(bytes);
        let hashed = fields.bytes(bytes.len() - TAIL_BYTES)?;
        let digest = Digest(fields.array()?);
        let mut fields = In(hashed);
        fields.bytes(8)?;
        let number = fields.u64()?;
        fields.u32()?;
        Ok(Segment {
            number,
            hashed,
            payload: fields.rest(),
            digest,
        })
    }

    /// Checks that this is the segment `number` of a stream whose digest before it is `before`, and
    /// that its bytes are complete. Returns the digest after it.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn verify(&self, number: u64, before: Digest) -> Result<Digest> {
        if self.number != number {
            return Err(Error::Damaged(
                "a segment is missing, or follows another one",
            ));
        }
        if digest_of(before, self.hashed) != self.digest {
            return Err(Error::Damaged("wrong digest of a segment"));
        }
        Ok(self.digest)
    }

    /// Returns the number of the segment.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Iterates over the records; the last one is the position. An error ends the iteration.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'a>>> + use<'a> {
        let mut rest = self.payload;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            Some(match Record::decode(rest) {
                Ok((record, after)) => {
                    rest = after;
                    Ok(record)
                }
                Err(error) => {
                    rest = &[];
                    Err(error)
                }
            })
        })
    }

    /// Checks that all records can be decoded, and that exactly the last one is a position. Returns
    /// it.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::UnknownRecord`].
    pub fn position(&self) -> Result<Position> {
        let mut last = None;
        for record in self.records() {
            if last.is_some() {
                return Err(Error::Damaged("a record follows the position"));
            }
            if let Record::Position(position) = record? {
                last = Some(position);
            }
        }
        last.ok_or(Error::Damaged("a segment has no position"))
    }
}

/// Returns the digest and the authentication code of the bytes of a segment.
///
/// # Errors
/// They are not exactly one segment.
pub fn code_of(bytes: &[u8]) -> Result<(Digest, [u8; CODE_BYTES])> {
    let digest = Segment::parse(bytes)?.digest;
    let code = bytes
        .last_chunk()
        .ok_or(Error::Damaged("a segment is incomplete"))?;
    Ok((digest, *code))
}

/// Sets the authentication code in the bytes of a segment, which is that of its digest.
///
/// # Errors
/// They are not exactly one segment.
pub fn set_code(bytes: &mut [u8], code: impl FnOnce(Digest) -> [u8; CODE_BYTES]) -> Result<()> {
    let digest = Segment::parse(bytes)?.digest;
    let place = bytes.last_chunk_mut();
    *place.ok_or(Error::Damaged("a segment is incomplete"))? = code(digest);
    Ok(())
}
