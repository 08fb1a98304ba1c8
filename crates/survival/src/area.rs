//! Parts of one memory for bytes that the kernel writes, each with one owner.

use crate::memory::{Memory, WORD_BYTES};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// A part of a memory. While it exists it is the only access to its bytes in this process.
pub struct Area {
    at: NonNull<u8>,
    len: usize,
    _home: Arc<Memory>,
}

// SAFETY: an area owns its bytes, and the mapping is not bound to a thread.
unsafe impl Send for Area {}
// SAFETY: a shared area only provides `&[u8]`.
unsafe impl Sync for Area {}

impl Area {
    /// Divides a memory into areas of `len` bytes, whole words; a rest is not used.
    pub fn divide(memory: Memory, len: usize) -> Vec<Area> {
        let home = Arc::new(memory);
        let words = len / WORD_BYTES;
        let parts = home.words().chunks_exact(words.max(1));
        let parts: Vec<NonNull<u8>> = parts.map(|part| NonNull::from(part).cast()).collect();
        let area = |at| Area {
            at,
            len: words * WORD_BYTES,
            _home: Arc::clone(&home),
        };
        parts.into_iter().map(area).collect()
    }
}

impl Deref for Area {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping exists as long as its memory, whose size is sealed. The parts do not
        // overlap, and nothing else refers to the words of the memory.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Area {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the words are atomic, so they may be written by any means.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_apart_and_a_successor_finds_their_bytes() {
        let memory = Memory::create("evfs-test", 1000).unwrap();
        let file = memory.file().try_clone_to_owned().unwrap();
        let mut areas = Area::divide(memory, 3000);
        assert_eq!(areas.len(), 2);
        for (value, area) in areas.iter_mut().enumerate() {
            area.fill(value as u8 + 1);
        }
        drop(areas);
        let again = Area::divide(Memory::adopt(file).unwrap(), 3000);
        assert_eq!((again[0].len(), again[1].len()), (3000, 3000));
        assert!(again[0].iter().all(|byte| *byte == 1));
        assert!(again[1].iter().all(|byte| *byte == 2));
    }
}
