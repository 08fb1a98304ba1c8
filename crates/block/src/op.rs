//! Operations on a device.

use crate::buf::Bufs;
use std::fmt;

/// An operation on a device. Offsets and lengths are bytes, multiples of the logical block size.
#[derive(Debug)]
pub enum Op {
    /// Read into `bufs` from `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// Destination buffers, in order.
        bufs: Bufs,
    },
    /// Write `bufs` at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// Data to write, in order. The completion returns it unchanged.
        bufs: Bufs,
        /// Force unit access: complete only once the data is on stable storage.
        fua: bool,
    },
    /// Put every write whose completion was reaped before this was submitted on stable storage.
    Flush,
    /// Declare the range unused. Its content is undefined until it is written again (an encrypted
    /// volume decrypts the content of the lower device).
    Discard {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Fill the range with zeros.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Complete only once the zeros are on stable storage.
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
    /// Returns the kind of this operation.
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Read { .. } => OpKind::Read,
            Op::Write { .. } => OpKind::Write,
            Op::Flush => OpKind::Flush,
            Op::Discard { .. } => OpKind::Discard,
            Op::WriteZeroes { .. } => OpKind::WriteZeroes,
        }
    }

    /// Returns the first byte and the length in bytes; `None` for a flush.
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

    /// Reports whether the operation changes data on the device.
    pub fn changes_data(&self) -> bool {
        matches!(
            self,
            Op::Write { .. } | Op::Discard { .. } | Op::WriteZeroes { .. }
        )
    }
}
