//! The stream in which a snapshot is sent, without I/O: bytes in, records out, and back.
//!
//! ```text
//!   Header  Segment  Segment  ...  Segment (the last one)
//!           records, then the position after them, then a digest of everything so far
//! ```
//!
//! `docs/format/send.md` describes the format. A segment is the unit of verification and of
//! resumption: a receiver applies a segment only after its digest was verified, and continues an
//! interrupted stream after the last segment that it applied.
//!
//! **Invariant:** any bytes are parsed or refused; memory is bounded by [`SEGMENT_BYTES_MAX`],
//! whatever a length in the bytes states.
//!
//! # Example
//!
//! ```
//! use send_proto::{Decoder, Event, Header, Id, Position, Record, SegmentBuilder};
//!
//! let header = Header { snapshot: Id([1; 16]), next_ino: 2, ..Header::default() };
//! let mut segment = SegmentBuilder::new(0, header.stream_id());
//! segment.push(&Record::ClearXattrs { ino: 1 });
//! let (bytes, digest) = segment.finish(Position::END);
//!
//! let mut decoder = Decoder::default();
//! decoder.feed(&header.encode());
//! decoder.feed(&bytes);
//! assert!(matches!(decoder.next_event()?, Some(Event::Header(read)) if read == header));
//! let Some(Event::Segment { bytes, .. }) = decoder.next_event()? else { panic!() };
//! let segment = send_proto::Segment::parse(&bytes)?;
//! assert_eq!(segment.verify(0, header.stream_id())?, digest);
//! assert_eq!(segment.records().count(), 2); // with the position
//! assert!(segment.position()?.is_end());
//! # Ok::<(), send_proto::Error>(())
//! ```
//!
//! Deliberately absent: files, encryption, and keys. A signer puts its code into the field that each
//! segment has for it ([`set_code`]).

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation
    )
)]

mod decoder;
mod fields;
mod header;
mod record;
mod segment;
mod token;

pub use decoder::{Decoder, Event};
pub use header::{FEATURE_CODES, HEADER_BYTES_MAX, Header, Id, Resume, VERSION};
pub use record::{Attributes, DATA_BYTES_MAX, Position, Record, Stamp};
pub use segment::{
    CODE_BYTES, Digest, SEGMENT_BYTES_MAX, Segment, SegmentBuilder, code_of, digest_of, set_code,
};
pub use token::Token;

/// Result of parsing.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason to refuse bytes of a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are no stream.
    #[error("this is not a stream of `evfs fileset send`")]
    NotAStream,
    /// Another version of the format.
    #[error("the stream has version {0} of the format; use a newer version of EVFS")]
    Version(u16),
    /// Features that this code does not know.
    #[error(
        "the stream has features that this program does not know ({0:#x}); use a newer version of EVFS"
    )]
    Features(u64),
    /// A record of a type that this code does not know.
    #[error("the stream has a record of an unknown type ({0}); use a newer version of EVFS")]
    UnknownRecord(u8),
    /// The bytes are damaged.
    #[error("the stream is damaged: {0}; send it, or copy it, again")]
    Damaged(&'static str),
    /// Bytes follow the last segment.
    #[error("the stream is damaged: bytes follow its end; send it, or copy it, again")]
    Trailing,
    /// The text is no token.
    #[error("invalid token: copy all of the text that `evfs fileset receive --status` prints")]
    Token,
}
