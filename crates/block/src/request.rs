//! What a queue can be asked to do, and what comes back.

use crate::{Bufs, Error};
use std::fmt;

/// An operation on a device. Offsets and lengths are bytes, multiples of the logical block size.
#[derive(Debug)]
pub enum Op {
    /// Fill `bufs` from `offset` on.
    Read {
        /// First byte.
        offset: u64,
        /// Where the data goes, in order.
        bufs: Bufs,
    },
    /// Write `bufs` from `offset` on.
    Write {
        /// First byte.
        offset: u64,
        /// What is written, in order. Comes back unchanged.
        bufs: Bufs,
        /// Force unit access: complete only when the data is on stable storage.
        fua: bool,
    },
    /// Make every write whose completion was reaped before this was submitted survive a power cut.
    Flush,
    /// The range is not needed any more; what it reads as is undefined until it is
    /// written again (an encrypted volume deciphers whatever is below).
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The range reads as zeros afterwards.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Complete only when the zeros are on stable storage.
        fua: bool,
        /// The device may free the space.
        unmap: bool,
    },
}

/// The kind of an [`Op`], for counters and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// [`Op::Read`]
    Read,
    /// [`Op::Write`]
    Write,
    /// [`Op::Flush`]
    Flush,
    /// [`Op::Discard`]
    Discard,
    /// [`Op::WriteZeroes`]
    WriteZeroes,
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Discard => "discard",
            OpKind::WriteZeroes => "write-zeroes",
        })
    }
}

impl Op {
    /// Which operation this is.
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Read { .. } => OpKind::Read,
            Op::Write { .. } => OpKind::Write,
            Op::Flush => OpKind::Flush,
            Op::Discard { .. } => OpKind::Discard,
            Op::WriteZeroes { .. } => OpKind::WriteZeroes,
        }
    }

    /// First byte and length in bytes; `None` for a flush.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Op::Read { offset, bufs } | Op::Write { offset, bufs, .. } => {
                Some((*offset, bufs.total_len() as u64))
            }
            Op::Discard { offset, len } | Op::WriteZeroes { offset, len, .. } => {
                Some((*offset, *len))
            }
            Op::Flush => None,
        }
    }

    /// Whether the operation changes what is on the device.
    pub fn changes_data(&self) -> bool {
        matches!(
            self,
            Op::Write { .. } | Op::Discard { .. } | Op::WriteZeroes { .. }
        )
    }
}

/// An operation and the name its submitter gives it.
#[derive(Debug)]
pub struct Request {
    /// Chosen by the submitter and given back with the completion. Need not be unique for the
    /// queue; it has to be for a submitter that wants to tell its requests apart.
    pub tag: u64,
    /// What to do.
    pub op: Op,
}

/// A request that has ended. The operation comes back whole, with its buffers, so that it can be
/// submitted again elsewhere.
#[derive(Debug)]
#[must_use = "a completion carries the result and the buffers of a request"]
pub struct Completion {
    /// The tag of the request.
    pub tag: u64,
    /// The operation of the request; after a read that went well its buffers hold the data.
    pub op: Op,
    /// How it went.
    pub result: Result<(), Error>,
}
