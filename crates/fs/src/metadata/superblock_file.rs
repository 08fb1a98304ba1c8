//! The superblock of an open file system, and its copies on the device.

use crate::device_io::{Barrier, DeviceIo};
use crate::error::{Error, Result};
use crate::format::record::{BLOCK_BYTES, DeviceOffset};
use crate::format::superblock::{ACCOUNTS, CHECKSUMS, COPIES, Features, Superblock};
use crate::integrity::IntegrityKey;
use block::{BlockDevice, Buf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

const BLOCK: usize = BLOCK_BYTES as usize;

/// The superblock in memory, and writing it to the device.
pub(crate) struct SuperblockFile {
    io: Arc<DeviceIo>,
    current: Mutex<Superblock>,
    /// Whether writes are suppressed because the superblock does not describe the device yet.
    held: bool,
    /// Keys of the checksums, if they are keyed.
    key: Option<Arc<IntegrityKey>>,
    /// Bytes read beyond the end of the metadata, which only damaged metadata causes.
    beyond: AtomicU64,
    /// Blocks of the metadata written since the open.
    written: AtomicU64,
}

impl SuperblockFile {
    pub fn new(
        io: Arc<DeviceIo>,
        superblock: Superblock,
        key: Option<Arc<IntegrityKey>>,
    ) -> SuperblockFile {
        SuperblockFile {
            key,
            io,
            current: Mutex::new(superblock),
            held: false,
            beyond: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    /// Creates a superblock that stays in memory, for a metadata file under construction.
    pub fn in_memory(
        io: Arc<DeviceIo>,
        superblock: Superblock,
        key: Option<Arc<IntegrityKey>>,
    ) -> SuperblockFile {
        SuperblockFile {
            held: true,
            ..SuperblockFile::new(io, superblock, key)
        }
    }

    /// Reads both copies and keeps the newer valid one. `device` is the one of `io`, which derives
    /// the keys.
    pub fn read(io: Arc<DeviceIo>, device: &dyn BlockDevice) -> Result<SuperblockFile> {
        let mut copies = [vec![0; BLOCK], vec![0; BLOCK]];
        let mut unread = None;
        for (offset, out) in COPIES.into_iter().zip(&mut copies) {
            // If one copy cannot be read, the other one serves.
            if let Err(error) = io.read(DeviceOffset::of_bytes(offset), out) {
                unread = Some(error);
            }
        }
        let device_blocks = io.info().size / BLOCK_BYTES;
        let decode = |bytes: &Vec<u8>| {
            let superblock = Superblock::decode(bytes, device_blocks)?;
            if superblock.has_integrity() {
                let key = IntegrityKey::of(device, &superblock.uuid)?;
                Superblock::check_tag(bytes, &key)?;
            }
            Ok(superblock)
        };
        let superblock = Superblock::newer([decode(&copies[0]), decode(&copies[1])]);
        match (superblock, unread) {
            (Ok(superblock), _) => {
                let uuid = superblock.uuid;
                let keyed = superblock.has_integrity();
                let key = keyed.then(|| IntegrityKey::of(device, &uuid)).transpose()?;
                Ok(SuperblockFile::new(io, superblock, key))
            }
            // A device that ends before the second copy has no file system of ours, whatever else
            // is wrong with it.
            (Err(_), Some(unread)) if unread.kind() != block::ErrorKind::OutOfRange => {
                Err(unread.into())
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Returns the defects of the copies on the device, of which one may still be usable. The next
    /// writable open rewrites both.
    pub fn damaged_copies(&self) -> Vec<String> {
        let device_blocks = self.io.info().size / BLOCK_BYTES;
        let mut wrong = Vec::new();
        for offset in COPIES {
            let mut bytes = vec![0; BLOCK];
            let read = self.io.read(DeviceOffset::of_bytes(offset), &mut bytes);
            let read = read.map_err(Error::from);
            let check = |()| {
                Superblock::decode(&bytes, device_blocks)?;
                let key = self.key.as_ref();
                key.map_or(Ok(()), |key| Superblock::check_tag(&bytes, key))
            };
            if let Err(error) = read.and_then(check) {
                wrong.push(format!("copy at byte {offset}: {error}"));
            }
        }
        wrong
    }

    /// Returns the number of bytes that damaged metadata made `redb` read beyond the end, and
    /// allocate memory for at that time.
    pub fn beyond(&self) -> u64 {
        self.beyond.load(Relaxed)
    }

    /// Counts bytes read beyond the end.
    pub fn note_beyond(&self, bytes: usize) {
        self.beyond.fetch_add(bytes as u64, Relaxed);
    }

    /// Returns the number of blocks of the metadata that were written since the open.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Counts a written block of the metadata.
    pub fn note_written(&self) {
        self.written.fetch_add(1, Relaxed);
    }

    /// Returns the keys of the checksums, if they are keyed.
    pub fn key(&self) -> Option<&Arc<IntegrityKey>> {
        self.key.as_ref()
    }

    pub fn lock(&self) -> MutexGuard<'_, Superblock> {
        self.current.lock().expect("no panic under this lock")
    }

    /// Makes programs that do not know these features refuse the file system. Durable when this
    /// returns.
    pub fn need_features(&self, incompatible: u64) -> Result<()> {
        self.set_features(|features| features.incompatible |= incompatible)
    }

    /// Makes programs that do not know checksums of file data leave the file system unchanged.
    /// Durable when this returns.
    pub fn need_checksums(&self) -> Result<()> {
        self.set_features(|features| features.read_compatible |= CHECKSUMS)
    }

    /// Makes programs that do not know accounts of users and groups leave the file system unchanged.
    /// Durable when this returns.
    pub fn need_accounts(&self) -> Result<()> {
        self.set_features(|features| features.read_compatible |= ACCOUNTS)
    }

    fn set_features(&self, set: impl FnOnce(&mut Features)) -> Result<()> {
        let (before, after) = {
            let features = &mut self.lock().features;
            let before = *features;
            set(features);
            (before, *features)
        };
        if before != after
            && let Err(error) = self.write()
        {
            self.lock().features = before;
            return Err(error.into());
        }
        Ok(())
    }

    /// Writes both copies, one after the other, so that one is valid at every moment. They are
    /// durable when this returns.
    pub fn write(&self) -> block::Result<()> {
        if self.held {
            return Ok(());
        }
        let mut superblock = self.lock();
        for _ in COPIES {
            superblock.generation += 1;
            let place = DeviceOffset::of_bytes(COPIES[(superblock.generation % 2) as usize]);
            let bytes = Buf::copy_of(&superblock.encode_with(self.key.as_deref()));
            self.io.write_through(Barrier::Flush, place, bytes)?;
        }
        Ok(())
    }
}
