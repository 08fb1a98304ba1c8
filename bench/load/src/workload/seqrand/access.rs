//! Access methods of `seqrand`: by system calls, through a mapping, or through a buffer.

use super::{Access, Config};
use bench_core::Direction;
use bench_core::files::{Mapped, Msync, OpenFile};
use std::io::Result;

/// Size of the buffer in bytes, as stdio uses on the usual file systems (`st_blksize`).
const BUFFER: usize = 4096;

/// An open file, ready for one thread.
pub(super) enum Way {
    Calls(Box<dyn OpenFile>),
    Mapped {
        file: Box<dyn OpenFile>,
        map: Box<dyn Mapped>,
        access: Access,
    },
    Buffered(Buffer),
}

impl Way {
    /// Prepares a file. A file to be mapped for writing is extended to its length here, outside the
    /// timed section, by writing its last byte.
    pub(super) fn new(
        file: Box<dyn OpenFile>,
        config: &Config,
        direction: Direction,
    ) -> Result<Way> {
        match config.access {
            Access::Calls => Ok(Way::Calls(file)),
            Access::Buffered => Ok(Way::Buffered(Buffer::new(file))),
            access => {
                if direction == Direction::Write && file.size()? < config.file {
                    file.write_at(config.file - 1, &[0])?;
                }
                let map = file.map(config.file, direction)?;
                Ok(Way::Mapped { file, map, access })
            }
        }
    }

    pub(super) fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize> {
        match self {
            Way::Calls(file) => file.read_at(at, out),
            Way::Mapped { map, .. } => {
                map.read(at, out);
                Ok(out.len())
            }
            Way::Buffered(buffer) => buffer.read(at, out),
        }
    }

    pub(super) fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        match self {
            Way::Calls(file) => file.write_at(at, data),
            Way::Mapped { map, access, .. } => {
                map.write(at, data);
                match access {
                    Access::MappedSync => map.sync(at, data.len(), Msync::Sync),
                    Access::MappedAsync => map.sync(at, data.len(), Msync::Async),
                    _ => Ok(()),
                }
            }
            Way::Buffered(buffer) => buffer.write(at, data),
        }
    }

    /// Ends a writing phase: flushes the buffer, if any, and syncs the file if requested.
    pub(super) fn finish(&mut self, sync: bool) -> Result<()> {
        if let Way::Buffered(buffer) = self {
            buffer.flush()?;
        }
        if !sync {
            return Ok(());
        }
        match self {
            Way::Calls(file) => file.sync(),
            // fsync also writes the pages of shared mappings.
            Way::Mapped { file, .. } => file.sync(),
            Way::Buffered(buffer) => buffer.file.sync(),
        }
    }
}

/// A buffer for sequential file access. Like stdio, it bypasses itself for transfers at least as
/// long as the buffer.
pub(super) struct Buffer {
    file: Box<dyn OpenFile>,
    bytes: Vec<u8>,
    /// Offset of the buffer in the file.
    start: u64,
}

impl Buffer {
    fn new(file: Box<dyn OpenFile>) -> Buffer {
        Buffer {
            file,
            bytes: Vec::with_capacity(BUFFER),
            start: 0,
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        if self.bytes.len() + data.len() > BUFFER {
            self.flush()?;
        }
        if data.len() >= BUFFER {
            return self.file.write_at(at, data);
        }
        if self.bytes.is_empty() {
            self.start = at;
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            self.file.write_at(self.start, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize> {
        let within = at.checked_sub(self.start).unwrap_or(u64::MAX) as usize;
        if let Some(have) = self.bytes.get(within..).filter(|have| !have.is_empty()) {
            let n = have.len().min(out.len());
            out[..n].copy_from_slice(&have[..n]);
            return Ok(n);
        }
        if out.len() >= BUFFER {
            return self.file.read_at(at, out);
        }
        self.bytes.resize(BUFFER, 0);
        let n = self.file.read_at(at, &mut self.bytes)?;
        self.bytes.truncate(n);
        self.start = at;
        let n = n.min(out.len());
        out[..n].copy_from_slice(&self.bytes[..n]);
        Ok(n)
    }
}
