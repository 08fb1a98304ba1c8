//! The pages of the metadata as stored on the device, each compared with its checksum.
//!
//! The open database reads a page on demand and trusts it; a scan does not even read the separator
//! keys of a branch, which can lead a lookup astray. So the check opens the last commit a second
//! time, read-only and bypassing all caches, and has `redb` read every page and recount the pages
//! in use. The time is linear in the size of the metadata; the memory is a small cache of pages.

use super::TELL_EVERY;
use super::meter::Meter;
use crate::device_io::DeviceIo;
use crate::error::{Error, Result};
use crate::format::superblock::Superblock;
use crate::integrity::IntegrityKey;
use crate::metadata::database::{Checksums, Db, Epoch};
use crate::metadata::database_file::DatabaseFile;
use crate::metadata::superblock_file::SuperblockFile;
use crate::space::Space;
use block::Access;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

/// Size of the page cache in bytes.
const CACHE_BYTES: usize = 16 << 20;

/// Reads all pages of commit `epoch`, which must not change during this.
///
/// # Errors
/// [`crate::Kind::Corrupt`]: a page is damaged, or the commit does not exist. The device failed.
pub(super) fn verify(
    io: &Arc<DeviceIo>,
    (superblock, key): (&Superblock, Option<&Arc<IntegrityKey>>),
    epoch: Epoch,
    meter: &mut Meter,
) -> Result<()> {
    meter.begin(meter.pages());
    let superblock = SuperblockFile::new(Arc::clone(io), superblock.clone(), key.cloned());
    let space = Arc::new(Space::new(0));
    let file = DatabaseFile::new(
        Arc::clone(io),
        Arc::new(superblock),
        space,
        Access::ReadOnly,
    );
    let read = Arc::new(AtomicU64::new(0));
    let file = Counted {
        file,
        read: Arc::clone(&read),
    };
    let (over, wait) = sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(move || over.send(read_all(file, epoch)));
        loop {
            match wait.recv_timeout(TELL_EVERY) {
                Ok(result) => return result,
                // Everything is read about twice: for the checksums, and for the pages in use.
                Err(RecvTimeoutError::Timeout) => meter.at(read.load(Relaxed) / 2),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::corrupt("the metadata pages cannot be read"));
                }
            }
        }
    })
}

fn read_all(file: Counted, epoch: Epoch) -> Result<()> {
    let mut db = Db::open(file, CACHE_BYTES, Checksums::Trust)?;
    db.verify()?;
    if db.epoch()? == epoch {
        Ok(())
    } else {
        Err(Error::corrupt(
            "the last commit is incomplete on the device",
        ))
    }
}

/// Backend that counts the bytes read.
#[derive(Debug)]
struct Counted {
    file: DatabaseFile,
    read: Arc<AtomicU64>,
}

impl redb::StorageBackend for Counted {
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.read.fetch_add(out.len() as u64, Relaxed);
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.file.write(offset, data)
    }
}
