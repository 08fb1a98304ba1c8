//! Payloads that the core references and does not copy.
//!
//! Data to send stays in the application's memory (a cache page, a buffer): the core holds counted
//! references to the packets of its window and hands them out again on retransmission. Received
//! data stays in the datagram in which it arrived.

use std::ops::Range;
use std::sync::Arc;

/// A counted reference to bytes to be sent. The core uses their length and slices of them, never
/// the bytes themselves, which may change as far as their owner tolerates it.
pub trait Payload: Clone {
    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns a reference to a part; `range` lies within the length.
    #[must_use]
    fn slice(&self, range: Range<usize>) -> Self;

    /// Reports whether the payload has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a reference to a part and consumes this one; cheaper than [`Payload::slice`] where
    /// that updates a reference count.
    #[must_use]
    fn into_slice(self, range: Range<usize>) -> Self {
        self.slice(range)
    }
}

/// A counted reference to a received datagram with readable bytes. Parts of it may be kept until
/// the application has read them: for a driver that receives many datagrams into one buffer, the
/// smallest kept part keeps the whole buffer allocated.
pub trait Datagram: Payload + AsRef<[u8]> {}

impl<T: Payload + AsRef<[u8]>> Datagram for T {}

/// Part of a shared allocation: the simplest payload and datagram.
#[derive(Debug, Clone)]
pub struct Shared {
    bytes: Arc<[u8]>,
    range: Range<usize>,
}

impl From<&[u8]> for Shared {
    fn from(bytes: &[u8]) -> Shared {
        Shared {
            range: 0..bytes.len(),
            bytes: bytes.into(),
        }
    }
}

impl From<Vec<u8>> for Shared {
    fn from(bytes: Vec<u8>) -> Shared {
        Shared {
            range: 0..bytes.len(),
            bytes: bytes.into(),
        }
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Shared) -> bool {
        self.as_ref() == other.as_ref()
    }
}

impl Eq for Shared {}

impl AsRef<[u8]> for Shared {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl Payload for Shared {
    #[inline]
    fn len(&self) -> usize {
        self.range.len()
    }

    #[inline]
    fn slice(&self, range: Range<usize>) -> Shared {
        self.clone().into_slice(range)
    }

    #[inline]
    fn into_slice(mut self, range: Range<usize>) -> Shared {
        let end = self.range.end.min(self.range.start + range.end);
        let start = end.min(self.range.start + range.start);
        self.range = start..end;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_part_shares_the_bytes() {
        let whole = Shared::from(&b"abcdef"[..]);
        let part = whole.slice(1..5).into_slice(1..3);
        assert_eq!((part.as_ref(), part.len()), (&b"cd"[..], 2));
        assert!(whole.slice(6..6).is_empty() && whole.slice(4..99).len() == 2);
        assert_eq!(Arc::strong_count(&whole.bytes), 2);
    }
}
