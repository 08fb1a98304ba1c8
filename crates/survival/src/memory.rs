//! A sealed memfd, mapped as words that threads and successors share.
//!
//! Words are atomic, so no reader depends on what a writer does, and a process that is killed between
//! two stores leaves exactly those before. The memory is excluded from core dumps and, where the limits
//! of the user permit it, from swap. No name leads to it, and it cannot change its size.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Length of a word in bytes.
pub const WORD_BYTES: usize = 8;

/// Most bytes of one memory, so that no size from outside overflows an address.
const BYTES_MAX: u64 = 1 << 40;

/// Words that a server shares with its successor.
pub struct Memory {
    base: NonNull<AtomicU64>,
    words: usize,
    file: OwnedFd,
}

// SAFETY: the mapping is memory at a fixed address, reached as atomic words only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates memory of `words` zeros; the system takes pages for it as they are first written.
    ///
    /// # Errors
    /// The system refuses the memfd or the mapping.
    pub fn create(name: &str, words: usize) -> io::Result<Memory> {
        let file = create_file(name, (words * WORD_BYTES) as u64)?;
        Memory::map(file, words)
    }

    /// Maps the memory of a predecessor.
    ///
    /// # Errors
    /// The descriptor is not a memfd that is sealed as [`Memory::create`] does, or has no whole number
    /// of words.
    pub fn adopt(file: OwnedFd) -> io::Result<Memory> {
        let bytes = file_bytes(&file)?;
        if bytes == 0 || bytes > BYTES_MAX || !bytes.is_multiple_of(WORD_BYTES as u64) {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Memory::map(file, bytes as usize / WORD_BYTES)
    }

    fn map(file: OwnedFd, words: usize) -> io::Result<Memory> {
        let bytes = words * WORD_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the system chooses.
        let base = unsafe {
            let at = std::ptr::null_mut();
            rustix::mm::mmap(at, bytes, access, MapFlags::SHARED, &file, 0)?
        };
        // SAFETY: the range was mapped just now. Both may be refused: dumps are excluded for the whole
        // process as well, and an ordinary user may lock little memory.
        unsafe {
            libc::madvise(base, bytes, libc::MADV_DONTDUMP);
            libc::mlock2(base, bytes, libc::MLOCK_ONFAULT);
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { base, words, file })
    }

    /// Returns all words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this length for as long as `self` lives, its seals forbid to shrink
        // the file, and any bytes are valid words.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// Returns the memfd, for a successor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value, and no reference to its words outlives it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * WORD_BYTES) };
    }
}

/// Creates a memfd of `bytes` zeros that cannot change its size.
///
/// # Errors
/// The system refuses it.
pub fn create_file(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, sealed())?;
    Ok(file)
}

/// Returns the length of a memfd in bytes.
///
/// # Errors
/// It is no memfd that is sealed as [`create_file`] does.
pub fn file_bytes(file: impl AsFd) -> io::Result<u64> {
    if !rustix::fs::fcntl_get_seals(&file)?.contains(sealed()) {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    Ok(rustix::fs::fstat(&file)?.st_size as u64)
}

fn sealed() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn a_successor_sees_every_store() {
        let memory = Memory::create("evfs-test", 1000).unwrap();
        memory.words()[999].store(7, SeqCst);
        let other = Memory::adopt(memory.file().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(other.words().len(), 1000);
        assert_eq!(other.words()[999].load(SeqCst), 7);
        other.words()[0].store(8, SeqCst);
        assert_eq!(memory.words()[0].load(SeqCst), 8);
    }

    #[test]
    fn memory_that_could_shrink_and_other_files_are_refused() {
        let memfd = rustix::fs::memfd_create("evfs-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memfd, 4096).unwrap();
        assert!(Memory::adopt(memfd).is_err());
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(Memory::adopt(file.into()).is_err());
    }
}
