//! Compression of the bytes of a chunk, without I/O.
//!
//! **Invariant:** bytes are stored compressed only after they were decompressed again and are equal,
//! so an error of an encoder loses no data. Any bytes are decompressed or refused, in memory that
//! is bounded by the length of the content and [`WINDOW_BYTES`].

use crate::format::chunk::{CHUNK_BLOCKS, Chunk, Compression};
use crate::format::record::BLOCK_BYTES;
use ruzstd::decoding::FrameDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Largest window that a compressed chunk may ask for.
const WINDOW_BYTES: u64 = 1 << 20;

/// Content of a chunk, compressed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// First block of the chunk in the file.
    pub first: u64,
    /// Number of blocks of the content.
    pub content: u8,
    pub method: Compression,
    /// Number of compressed bytes, without the zeros that fill the last block.
    pub bytes: u16,
    /// Compressed bytes, in whole blocks.
    pub data: Vec<u8>,
}

impl Packed {
    /// Compresses the content of a chunk, which is whole blocks; `None` if that does not save a
    /// block.
    pub fn of(method: Compression, first: u64, content: &[u8]) -> Option<Packed> {
        const BLOCK: usize = BLOCK_BYTES as usize;
        let blocks = content.len() / BLOCK;
        debug_assert!(content.len().is_multiple_of(BLOCK) && blocks as u64 <= CHUNK_BLOCKS);
        let mut data = compress(method, content);
        let bytes = data.len();
        if bytes == 0 || bytes.div_ceil(BLOCK) >= blocks {
            return None;
        }
        if decompress(method, &data, content.len()).as_deref() != Some(content) {
            return None;
        }
        data.resize(bytes.next_multiple_of(BLOCK), 0);
        Some(Packed {
            first,
            content: blocks as u8,
            method,
            bytes: bytes as u16,
            data,
        })
    }

    /// Returns the number of blocks on the device.
    pub fn blocks(&self) -> u64 {
        self.data.len() as u64 / BLOCK_BYTES
    }

    /// Returns the record of the chunk at block `start` of the device, from which these blocks of the
    /// file are read.
    pub fn record(&self, start: u64, valid: u16) -> Chunk {
        Chunk {
            start,
            blocks: self.blocks() as u8,
            content: self.content,
            method: self.method,
            bytes: self.bytes,
            valid,
            tail: None,
        }
    }
}

/// Decompresses the content of a chunk from its blocks; `None` if they are damaged.
pub(crate) fn unpack(chunk: &Chunk, data: &[u8]) -> Option<Vec<u8>> {
    let bytes = data.get(..chunk.bytes.into())?;
    decompress(chunk.method, bytes, chunk.content_bytes())
}

fn compress(method: Compression, content: &[u8]) -> Vec<u8> {
    match method {
        Compression::Lz4 => lz4_flex::block::compress(content),
        Compression::Zstd => compress_to_vec(content, CompressionLevel::Fastest),
    }
}

/// Decompresses to exactly `len` bytes.
fn decompress(method: Compression, bytes: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut content = vec![0; len];
    let decoded = match method {
        Compression::Lz4 => lz4_flex::block::decompress_into(bytes, &mut content).ok()?,
        Compression::Zstd => {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(WINDOW_BYTES);
            decoder.decode_all(bytes, &mut content).ok()?
        }
    };
    (decoded == len).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    fn text(blocks: usize) -> Vec<u8> {
        let words = (0..).flat_map(|n: u32| format!("line {n} of a text\n").into_bytes());
        words.take(blocks * 4096).collect()
    }

    fn noise(blocks: usize) -> Vec<u8> {
        let mut bytes = vec![0; blocks * 4096];
        Random::new(11).fill(&mut bytes);
        bytes
    }

    fn record(packed: &Packed) -> Chunk {
        packed.record(9, ((1u32 << packed.content) - 1) as u16)
    }

    #[test]
    fn content_is_stored_in_fewer_blocks_and_comes_back() {
        for method in Compression::ALL {
            for blocks in 2..=16 {
                for content in [text(blocks), vec![0; blocks * 4096], vec![7; blocks * 4096]] {
                    let packed = Packed::of(method, 32, &content).expect("it compresses");
                    assert!(packed.blocks() < blocks as u64);
                    let chunk = record(&packed);
                    assert_eq!(Chunk::decode(&chunk.encode()).unwrap(), chunk);
                    assert_eq!(unpack(&chunk, &packed.data), Some(content));
                }
            }
        }
    }

    #[test]
    fn content_that_saves_no_block_is_not_stored_compressed() {
        for method in Compression::ALL {
            assert_eq!(Packed::of(method, 0, &noise(16)), None);
            assert_eq!(Packed::of(method, 0, &text(1)), None);
            // Half a block less is no block less.
            let mut mixed = noise(16);
            mixed[..2048].fill(0);
            assert_eq!(Packed::of(method, 0, &mixed), None);
            mixed[..3 * 4096].fill(0);
            assert!(Packed::of(method, 0, &mixed).is_some());
        }
    }

    #[test]
    fn hostile_bytes_are_decompressed_or_refused() {
        let mut random = Random::new(3);
        let mut refused = 0;
        for method in Compression::ALL {
            let packed = Packed::of(method, 0, &text(16)).expect("it compresses");
            for round in 0..4000 {
                let mut data = packed.data.clone();
                for _ in 0..=random.below(6) {
                    let at = random.below(u64::from(packed.bytes)) as usize;
                    data[at] = random.next_u64() as u8;
                }
                if round % 8 == 0 {
                    random.fill(&mut data);
                }
                let mut chunk = record(&packed);
                if round % 3 == 0 {
                    chunk.bytes = 1 + random.below(u64::from(chunk.bytes)) as u16;
                }
                match unpack(&chunk, &data) {
                    Some(content) => assert_eq!(content.len(), 16 * 4096),
                    None => refused += 1,
                }
            }
        }
        assert!(refused > 1000);
        let chunk = Chunk {
            bytes: 5000,
            ..record(&Packed::of(Compression::Lz4, 0, &text(16)).expect("it compresses"))
        };
        assert_eq!(unpack(&chunk, &[0; 4096]), None);
    }
}
