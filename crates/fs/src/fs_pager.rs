//! The files of a fileset for a cache: page requests in, device requests out.
//!
//! ```text
//!   submit(file, read)  ──plan_read──►  parts ──► requests below ──reap──► zeros where there is nothing
//!   submit(file, write) ──plan_write─►  parts ──► requests below ──reap──► end_write ─► completion
//!   submit(file, flush) ──────────────────────► the thread that syncs ────────────────► completion
//! ```
//!
//! **Invariant:** a write has completed only when the metadata names its blocks; a buffer is with the
//! device, or here, or with the caller. Deliberately absent: ordering between requests in flight, which
//! the contract does not promise, and caching.

mod gather;
mod queue;
mod sync;

use crate::error::Error;
use crate::fileset::Fileset;
use crate::key::Ino;
use crate::record::BLOCK_BYTES;
use cache::{FileId, Pager, PagerInfo, PagerQueue};
use std::ops::Range;
use sync::SyncThread;

/// The files of a fileset or a snapshot. The number of a file is its inode's.
pub struct FsPager {
    fileset: Fileset,
    info: PagerInfo,
    sync: SyncThread,
}

impl FsPager {
    /// Over a fileset or a snapshot, which is read-only.
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

    fn queue(&self) -> block::Result<Box<dyn PagerQueue>> {
        let queue = queue::FsQueue::open(&self.fileset, &self.info, self.sync.handle())?;
        Ok(Box::new(queue))
    }

    fn will_write(&self, file: FileId, range: Range<u64>) -> block::Result<()> {
        let FileId(ino) = file;
        self.fileset
            .will_write(ino, range)
            .map_err(|e| below(&self.info.name, ino, e))
    }
}

/// An error of the file system for a caller that speaks the waist's. The errno stays.
fn below(name: &str, ino: Ino, error: Error) -> block::Error {
    let name = format!("{name}: inode {ino}");
    let source = std::io::Error::from_raw_os_error(error.errno());
    block::Error::from_io(name, source).detail(error.to_string())
}
