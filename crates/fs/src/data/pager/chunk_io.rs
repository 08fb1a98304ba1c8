//! Transfers of compressed chunks between memory and the device.

use super::gather::{Carried, Gather, Transfer};
use crate::data::codec::unpack;
use crate::data::plan::{ChunkRead, Part};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, Run};
use block::{Buf, Bufs, Summer};
use std::sync::Arc;

/// Buffers for the blocks of a chunk, and where they are on the device.
pub(super) struct ChunkIo {
    pub bufs: Gather,
    pub parts: Vec<Part>,
}

impl ChunkIo {
    /// Prepares a read in requests of at most `most` bytes.
    pub fn read(run: Run, most: u32) -> ChunkIo {
        ChunkIo::of(run, most, |start, end| Buf::zeroed((end - start) as usize))
    }

    /// Prepares a write of whole blocks in requests of at most `most` bytes.
    pub fn write(run: Run, data: &[u8], most: u32) -> ChunkIo {
        ChunkIo::of(run, most, |start, end| {
            Buf::copy_of(&data[start as usize..end as usize])
        })
    }

    /// Passes the buffers on to requests of the device; see [`Gather::lend`].
    pub fn lend(
        &mut self,
        transfer: Transfer,
        asks: Option<&Arc<dyn Summer>>,
    ) -> impl Iterator<Item = (DeviceOffset, Carried, Bufs)> {
        let bufs = &mut self.bufs;
        let parts = self.parts.iter();
        parts.flat_map(move |part| bufs.lend(part, transfer, asks))
    }

    fn of(run: Run, most: u32, buf: impl Fn(u64, u64) -> Buf) -> ChunkIo {
        let (mut bufs, mut parts) = (Vec::new(), Vec::new());
        let (mut at, len) = (0, run.blocks * BLOCK_BYTES);
        while at < len {
            let end = len.min(at + u64::from(most));
            bufs.push(buf(at, end));
            parts.push(Part {
                bytes: at..end,
                device: Some(DeviceOffset::of_block(run.start).plus(at)),
            });
            at = end;
        }
        ChunkIo {
            bufs: Gather::new(bufs.into()),
            parts,
        }
    }
}

/// Chunk that a request reads.
pub(super) struct ChunkReading {
    pub read: ChunkRead,
    pub io: ChunkIo,
}

impl ChunkReading {
    pub fn new(read: ChunkRead, most: u32) -> ChunkReading {
        let io = ChunkIo::read(read.placed.1.run(), most);
        ChunkReading { read, io }
    }

    /// Decompresses the blocks of the file that the request reads into its buffers, which begin at
    /// block `start` of the file. Returns `false` if the chunk is damaged.
    pub fn unpack_to(&self, start: u64, bufs: &mut Gather) -> bool {
        let (first, chunk) = &self.read.placed;
        let data = self.io.bufs.copy_out(0..chunk.run().blocks * BLOCK_BYTES);
        let Some(content) = unpack(chunk, &data) else {
            return false;
        };
        for blocks in &self.read.blocks {
            let bytes = |block: u64| ((block - first) * BLOCK_BYTES) as usize;
            let content = &content[bytes(blocks.start)..bytes(blocks.end)];
            bufs.fill((blocks.start - start) * BLOCK_BYTES, content);
        }
        true
    }
}
