//! Counted references to bytes, sent or received.

use rx_proto::Payload;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Memory that is kept as long as a reference to it exists.
#[derive(Clone)]
enum Memory {
    /// A separate allocation.
    Own(Arc<[u8]>),
    /// A receive buffer, which may hold other datagrams too.
    Buffer(Arc<Box<[u8]>>),
    /// Memory owned by another component, for example a cache page.
    Owner(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

/// Part of reference-counted memory that is not copied.
///
/// Bytes written to a call are referenced until the peer has acknowledged them. Bytes read refer to
/// the buffer in which they were received, one of a limited number: a caller that keeps them for
/// long should copy them.
#[derive(Clone)]
pub struct Bytes {
    memory: Memory,
    range: Range<usize>,
}

impl Bytes {
    /// Wraps the bytes of an owner, which is dropped when they are sent and acknowledged. Their
    /// number must not change; if their content changes in between, a mix of old and new content
    /// may be sent.
    pub fn from_owner(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Bytes {
        let range = 0..(*owner).as_ref().len();
        Bytes {
            memory: Memory::Owner(owner),
            range,
        }
    }

    /// Wraps a part of a receive buffer.
    pub(crate) fn from_buffer(buffer: &Arc<Box<[u8]>>, range: Range<usize>) -> Bytes {
        Bytes {
            memory: Memory::Buffer(Arc::clone(buffer)),
            range,
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Reports whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns a reference to a part; the part of `range` beyond the end is ignored.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        Payload::into_slice(self.clone(), range)
    }
}

impl AsRef<[u8]> for Bytes {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        let all: &[u8] = match &self.memory {
            Memory::Own(bytes) => bytes,
            Memory::Buffer(buffer) => buffer,
            Memory::Owner(owner) => (**owner).as_ref(),
        };
        all.get(self.range.clone()).unwrap_or_default()
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        Bytes {
            range: 0..bytes.len(),
            memory: Memory::Own(bytes.into()),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes {
            range: 0..bytes.len(),
            memory: Memory::Buffer(Arc::new(bytes.into_boxed_slice())),
        }
    }
}

impl Payload for Bytes {
    #[inline]
    fn len(&self) -> usize {
        self.range.len()
    }

    #[inline]
    fn slice(&self, range: Range<usize>) -> Bytes {
        self.clone().into_slice(range)
    }

    #[inline]
    fn into_slice(mut self, range: Range<usize>) -> Bytes {
        let end = self.range.end.min(self.range.start + range.end);
        let start = end.min(self.range.start + range.start);
        self.range = start..end;
        self
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_kinds_refer_to_the_same_bytes() {
        let page: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(b"abcdef".to_vec());
        let kinds = [
            Bytes::from(&b"abcdef"[..]),
            Bytes::from(b"abcdef".to_vec()),
            Bytes::from_owner(Arc::clone(&page)),
        ];
        for bytes in kinds {
            let part = bytes.slice(1..5).slice(1..9);
            assert_eq!((part.as_ref(), part.len()), (&b"cde"[..], 3));
            assert!(bytes.slice(6..6).is_empty());
        }
        assert_eq!(Arc::strong_count(&page), 1);
    }
}
