//! Assembles a value from the pieces of a stream: the packets of a call, as they arrive.
//!
//! **Invariant:** at most the largest possible value is buffered, and nothing if the first piece
//! contains the whole value, which is the rule: the fixed part of a request fits into one packet.

use crate::{Reader, Result, WireError};

/// Size in bytes of the largest request: `SetVolumeStatus` with a name and two messages at their
/// limits. The data of `StoreData` does not count.
pub const REQUEST_BYTES_MAX: usize = 2336;

/// Size in bytes of the largest reply: `BulkStatus` of 50 files. The data of `FetchData` does not
/// count.
pub const REPLY_BYTES_MAX: usize = 4832;

/// Received part of one value.
#[derive(Debug)]
pub struct Gather {
    held: Vec<u8>,
    max: usize,
}

impl Gather {
    /// Creates a buffer for a value of at most `max` bytes: [`REQUEST_BYTES_MAX`] or
    /// [`REPLY_BYTES_MAX`].
    pub fn new(max: usize) -> Gather {
        let held = Vec::new();
        Gather { held, max }
    }

    /// Takes the next piece of the stream. Returns `None` if the piece was consumed and more is
    /// needed, otherwise the value and the number of bytes of `piece` that belong to it; the
    /// remaining bytes are file data or surplus. Call [`Gather::clear`] before the next value.
    ///
    /// `read` starts over with each piece. A reply without results parses from an empty piece.
    pub fn offer<'a, T>(
        &'a mut self,
        piece: &'a [u8],
        read: impl FnOnce(&mut Reader<'a>) -> Result<T>,
    ) -> Result<Option<(T, usize)>> {
        let before = self.held.len();
        if before == 0 {
            return match read_front(piece, read) {
                Err(WireError::Incomplete) => {
                    self.hold(piece)?;
                    Ok(None)
                }
                whole => whole.map(Some),
            };
        }
        let room = self.max.saturating_sub(before).min(piece.len());
        let (fitting, surplus) = piece.split_at_checked(room).unwrap_or((piece, &[]));
        self.hold(fitting)?;
        match read_front(&self.held, read) {
            Err(WireError::Incomplete) if surplus.is_empty() => Ok(None),
            Err(WireError::Incomplete) => Err(too_long(before + piece.len(), self.max)),
            whole => whole.map(|(value, taken)| Some((value, taken - before))),
        }
    }

    /// Discards the received bytes.
    pub fn clear(&mut self) {
        self.held.clear();
    }

    fn hold(&mut self, piece: &[u8]) -> Result<()> {
        let length = self.held.len() + piece.len();
        if length > self.max {
            return Err(too_long(length, self.max));
        }
        self.held.extend_from_slice(piece);
        Ok(())
    }
}

fn read_front<'a, T>(
    bytes: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T>,
) -> Result<(T, usize)> {
    let mut from = Reader::new(bytes);
    let value = read(&mut from)?;
    Ok((value, bytes.len() - from.rest().len()))
}

fn too_long(length: usize, max: usize) -> WireError {
    let what = "a message";
    WireError::TooLong { what, length, max }
}
