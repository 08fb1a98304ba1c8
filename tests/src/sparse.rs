//! The content of images, which consist of holes and zeros for the most part.

use rustix::fs::{SeekFrom, seek};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of a chunk.
const CHUNK: u64 = 64 * 1024;

/// The content of a file: its size, and its chunks of 64 KiB that are not all zero, by offset.
#[derive(Debug, PartialEq, Eq)]
pub struct Content {
    size: u64,
    chunks: BTreeMap<u64, Vec<u8>>,
}

impl Content {
    /// Reads a file, but not its holes.
    pub fn read(path: &Path) -> Content {
        let file = File::open(path).expect("the file opens");
        let size = file.metadata().expect("its size").len();
        let mut content = Content {
            size,
            chunks: BTreeMap::new(),
        };
        let mut at = 0;
        while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
            at = data / CHUNK * CHUNK;
            let mut chunk = vec![0; CHUNK.min(size - at) as usize];
            file.read_exact_at(&mut chunk, at).expect("it reads");
            content.insert(at, chunk);
            at += CHUNK;
        }
        content
    }

    fn insert(&mut self, offset: u64, chunk: Vec<u8>) {
        // The tests are not optimized, but a comparison of slices is one call of the C library.
        static ZEROS: [u8; CHUNK as usize] = [0; CHUNK as usize];
        if chunk != ZEROS[..chunk.len()] {
            self.chunks.insert(offset, chunk);
        }
    }

    /// Replaces a range inside one chunk by zeros.
    pub fn clear(&mut self, offset: u64, bytes: usize) {
        let start = offset / CHUNK * CHUNK;
        if let Some(mut chunk) = self.chunks.remove(&start) {
            let from = (offset - start) as usize;
            chunk[from..from + bytes].fill(0);
            self.insert(start, chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_between_holes_is_found_and_a_change_is_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((10 << 20) + 5).unwrap();
        let empty = Content::read(file.path());
        assert!(empty.chunks.is_empty());
        for at in [0, (3 << 20) + 7, (10 << 20) + 4] {
            file.as_file().write_all_at(&[1], at).unwrap();
        }
        let mut one = Content::read(file.path());
        assert!(one.chunks.keys().eq(&[0, 3 << 20, 10 << 20]), "{one:?}");
        file.as_file().write_all_at(&[0], (3 << 20) + 7).unwrap();
        let other = Content::read(file.path());
        assert_ne!(one, other);
        one.clear((3 << 20) + 7, 1);
        assert_eq!(one, other);
    }
}
