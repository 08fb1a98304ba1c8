//! The files of a fileset for a cache: page requests in, device requests out.
//!
//! ```text
//!   submit(file, read)  ──plan_read──► parts ──► device requests ──reap──► zeros for holes
//!   submit(file, write) ──plan_write─► parts ──► device requests ──reap──► end_write ─► completion
//!   submit(file, flush) ──────────────────────► the sync thread ──────────────────────► completion
//! ```
//!
//! **Invariant:** a write completes only when the metadata refers to its blocks; a buffer is owned
//! by the device, by the queue or by the caller. Deliberately absent: caching, and ordering between
//! requests in flight, which the contract does not promise.

mod chunk_io;
mod gather;
mod queue;
mod sync;

use crate::error::Error;
use crate::fileset::Fileset;
use crate::format::key::Ino;
use crate::format::record::BLOCK_BYTES;
use cache::{FileId, Pager, PagerInfo, PagerQueue, Tree};
use std::ops::Range;
use sync::SyncThread;

/// Pager for the files of a fileset or a snapshot. The number of a file is its inode number.
pub struct FsPager {
    fileset: Fileset,
    info: PagerInfo,
    sync: SyncThread,
}

impl FsPager {
    /// Creates a pager for a fileset, or for a snapshot, which is read-only.
    ///
    /// # Errors
    /// [`crate::Kind::NotFound`]; no thread could be started.
    pub fn new(fileset: &Fileset) -> Result<FsPager, Error> {
        let fs = &fileset.fs;
        let device = fs.device.info();
        let info = PagerInfo {
            name: format!("{}:{}", fs.name, fileset.record()?.name),
            block_size: BLOCK_BYTES as u32,
            optimal_io_size: device.optimal_io_size.max(BLOCK_BYTES as u32),
            max_transfer: device.max_transfer - device.max_transfer % BLOCK_BYTES as u32,
            numa_node: device.numa_node,
            read_only: fs.options.read_only || fileset.is_snapshot()?,
            discard: true,
            flushes_all: true,
        };
        Ok(FsPager {
            fileset: fileset.clone(),
            info,
            sync: SyncThread::start(fileset)?,
        })
    }
}

impl Pager for FsPager {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn queue(&self) -> block::Result<Box<PagerQueue>> {
        let queue = queue::FsQueue::open(&self.fileset, &self.info, self.sync.handle())?;
        Ok(Box::new(queue))
    }

    fn tree(&self) -> Option<Tree> {
        Some(self.fileset.tree())
    }

    fn will_write(&self, file: FileId, range: Range<u64>) -> block::Result<()> {
        let FileId(ino) = file;
        self.fileset
            .will_write(ino, range)
            .map_err(|e| below(&self.info.name, ino, e))
    }
}

impl Fileset {
    /// Returns the name of the files among those of other filesets and file systems, by which the
    /// successor of a process finds their dirty pages ([`crate::Files::adopt`]).
    pub fn tree(&self) -> Tree {
        Tree {
            file_system: self.fs.superblock.lock().uuid,
            number: self.id.into(),
        }
    }
}

/// Converts an error of the file system into one of the block layer, keeping its errno.
fn below(name: &str, ino: Ino, error: Error) -> block::Error {
    let name = format!("{name}: inode {ino}");
    let source = std::io::Error::from_raw_os_error(error.errno());
    block::Error::from_io(name, source).detail(error.to_string())
}
