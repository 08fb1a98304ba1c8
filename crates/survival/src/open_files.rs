//! Files that the kernel has open, by handle: what the successor opens again.
//!
//! ```text
//!   slot n:   inode, 0 for none │ handle │ checksum and flags │ spare
//! ```
//!
//! The slot is the handle modulo the number of slots. The inode is stored last, which makes the entry
//! count, and it is cleared first.

use crate::Damaged;
use crate::memory::Memory;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Words of a slot.
const SLOT_WORDS: usize = 4;

/// Open files that a table can hold.
pub const OPEN_FILES_MAX: usize = 1 << 20;

/// The entry of an open file in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFile {
    /// Number of the handle.
    pub handle: u64,
    /// Inode of the file, not 0.
    pub inode: u64,
    /// Flags of the owner of the table.
    pub flags: u32,
}

impl OpenFile {
    /// Returns the second word of the slot.
    fn check(&self) -> u64 {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.handle.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_le_bytes());
        bytes[16..].copy_from_slice(&self.flags.to_le_bytes());
        u64::from(crc32c::crc32c(&bytes)) << 32 | u64::from(self.flags)
    }
}

/// Table of open files.
pub struct OpenFiles(Memory);

impl OpenFiles {
    /// Creates an empty table.
    ///
    /// # Errors
    /// As [`Memory::create`].
    pub fn create() -> io::Result<OpenFiles> {
        Memory::create("evfs-open-files", OPEN_FILES_MAX * SLOT_WORDS).map(OpenFiles)
    }

    /// Takes over the table of a predecessor.
    ///
    /// # Errors
    /// As [`Memory::adopt`]; it has another size.
    pub fn adopt(file: OwnedFd) -> io::Result<OpenFiles> {
        let memory = Memory::adopt(file)?;
        if memory.words().len() == OPEN_FILES_MAX * SLOT_WORDS {
            Ok(OpenFiles(memory))
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    /// Lists a file, instead of one whose handle has the same slot.
    pub fn set(&self, file: OpenFile) {
        let [inode, handle, rest, _] = self.slot(file.handle);
        inode.store(0, Release);
        handle.store(file.handle, Release);
        rest.store(file.check(), Release);
        inode.store(file.inode, Release);
    }

    /// Removes the file with this handle.
    pub fn clear(&self, handle: u64) {
        let [inode, listed, ..] = self.slot(handle);
        if listed.load(Relaxed) == handle {
            inode.store(0, Release);
        }
    }

    fn slot(&self, handle: u64) -> &[AtomicU64; SLOT_WORDS] {
        let slot = (handle % OPEN_FILES_MAX as u64) as usize;
        let (slots, _) = self.0.words().as_chunks();
        &slots[slot]
    }

    /// Reads all files, in the order of their handles.
    ///
    /// # Errors
    /// An entry differs from its checksum.
    pub fn entries(&self) -> Result<Vec<OpenFile>, Damaged> {
        let slots = self.0.words().chunks_exact(SLOT_WORDS).enumerate();
        let listed = slots.filter_map(|(handle, slot)| {
            let word = |index: usize| slot[index].load(Acquire);
            let (inode, rest) = (word(0), word(2));
            let file = OpenFile {
                handle: word(1),
                inode,
                flags: rest as u32,
            };
            let is_here = file.handle % OPEN_FILES_MAX as u64 == handle as u64;
            let whole = is_here && file.check() == rest;
            (inode != 0).then(|| {
                whole
                    .then_some(file)
                    .ok_or(Damaged("the table of open files"))
            })
        });
        listed.collect()
    }

    /// Returns the memfd, for a successor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.file()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(handle: u64, inode: u64, flags: u32) -> OpenFile {
        OpenFile {
            handle,
            inode,
            flags,
        }
    }

    fn successor(of: &OpenFiles) -> OpenFiles {
        OpenFiles::adopt(of.file().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn a_successor_reads_what_is_open() {
        let table = OpenFiles::create().unwrap();
        let most = OPEN_FILES_MAX as u64;
        let files = [
            file(7 * most, 9, 3),
            file(5, 9, 0),
            file(most - 1, 7, u32::MAX),
        ];
        files.iter().for_each(|file| table.set(*file));
        table.set(file(6, 1, 1));
        table.clear(6);
        // The handle of an earlier file in the same slot.
        table.clear(most + 5);
        assert_eq!(successor(&table).entries().unwrap(), files);
        table.set(file(most + 5, 8, 0));
        table.clear(5);
        assert_eq!(
            successor(&table).entries().unwrap()[1],
            file(most + 5, 8, 0)
        );
        let other = Memory::create("evfs-test", 64).unwrap();
        assert!(OpenFiles::adopt(other.file().try_clone_to_owned().unwrap()).is_err());
    }

    #[test]
    fn a_flipped_bit_of_an_entry_is_noticed() {
        let table = OpenFiles::create().unwrap();
        table.set(file(3, 9, 2));
        for bit in 0..192 {
            let word = &table.0.words()[3 * SLOT_WORDS + bit / 64];
            let was = word.fetch_xor(1 << (bit % 64), Relaxed);
            let read = successor(&table).entries();
            assert!(read.is_err(), "bit {bit}: {read:?}");
            word.store(was, Relaxed);
        }
        assert_eq!(table.entries().unwrap().len(), 1);
    }
}
