//! Counted references to bytes: what is sent, and what was received.

use rx_proto::Payload;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Memory that is kept as long as something refers to it.
#[derive(Clone)]
enum Memory {
    /// Bytes of their own.
    Own(Arc<[u8]>),
    /// A receive buffer, with the datagrams beside this one.
    Buffer(Arc<Box<[u8]>>),
    /// Somebody else's: a page of a cache.
    Owner(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

/// Part of some memory that is counted and not copied.
///
/// What is written to a call is referred to until its peer has it; what was read refers to the
/// buffer that it was received in, which is one of a limited number: whoever wants to keep it
/// for long copies it.
#[derive(Clone)]
pub struct Bytes {
    memory: Memory,
    range: Range<usize>,
}

impl Bytes {
    /// The bytes of an owner, who is dropped when they are sent and acknowledged. They must stay as
    /// many; if they change meanwhile, some may be sent as they were and some as they are.
    pub fn from_owner(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Bytes {
        let range = 0..(*owner).as_ref().len();
        Bytes {
            memory: Memory::Owner(owner),
            range,
        }
    }

    /// Part of a receive buffer.
    pub(crate) fn from_buffer(buffer: &Arc<Box<[u8]>>, range: Range<usize>) -> Bytes {
        Bytes {
            memory: Memory::Buffer(Arc::clone(buffer)),
            range,
        }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A reference to a part; what lies beyond the end is left out.
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
