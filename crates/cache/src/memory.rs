//! The memory of the pool: one mapping, sized for the largest pool, of which only the chunks in use
//! are populated.
//!
//! Its backing is the first of these that the system allows, reported as [`Backing`]: a private
//! tmpfs with large pages that is mounted nowhere, a memfd, anonymous memory. Plaintext must not
//! leak to a disk, so the mapping is excluded from core dumps, and kept out of swap by the mount
//! option `noswap` or by locking each chunk.

use block::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Unit in bytes by which the pool grows and shrinks: a large page of x86-64.
pub const CHUNK_BYTES: usize = 2 << 20;

/// Kind of memory behind the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// A detached tmpfs with large pages.
    HugeTmpfs,
    /// A memfd with small pages.
    Memfd,
    /// Anonymous memory, which no other process can map.
    Anonymous,
}

/// A mapping whose chunks are populated and released individually.
pub struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    file: Option<OwnedFd>,
    backing: Backing,
    /// The backing itself is excluded from swap.
    noswap: bool,
    swappable: AtomicBool,
}

// SAFETY: the mapping is memory at a fixed address; the words of the pages that lie in it control
// who may access which part.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Reserves addresses for `bytes`, rounded up to whole chunks; takes no memory yet.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn reserve(bytes: usize) -> Result<Memory> {
        let bytes = bytes.max(1).next_multiple_of(CHUNK_BYTES);
        let (file, backing, noswap) = backing_file(bytes);
        let base = map(bytes, file.as_ref().map(|f| f.as_fd()))?;
        // SAFETY: the range was mapped just now. Both are advice that may be refused.
        unsafe {
            libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTDUMP);
            libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Ok(Memory {
            base,
            bytes,
            file,
            backing,
            noswap,
            swappable: AtomicBool::new(false),
        })
    }

    pub fn chunks(&self) -> usize {
        self.bytes / CHUNK_BYTES
    }

    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the file behind the mapping, for other processes to map, or for sends.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|f| f.as_fd())
    }

    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Reports whether memory could be swapped out, because the system allows neither prevention.
    pub fn swappable(&self) -> bool {
        self.swappable.load(Relaxed)
    }

    /// Populates a chunk, so that the data path takes no page faults: from `node`, if given, as
    /// long as that has free memory.
    pub fn populate(&self, chunk: usize, node: Option<u32>) {
        let at = self.chunk(chunk);
        if let Some(node) = node {
            prefer(at, node);
        }
        // SAFETY: the chunk lies in the mapping. Memory that is not available now is faulted in
        // later.
        unsafe { libc::madvise(at, CHUNK_BYTES, libc::MADV_POPULATE_WRITE) };
        if self.noswap {
            return;
        }
        // SAFETY: as above.
        let locked = unsafe { libc::mlock(at, CHUNK_BYTES) } == 0;
        if !locked && !self.swappable.swap(true, Relaxed) {
            tracing::warn!(
                name: "EVFS-0105",
                "cannot lock the file cache's memory: decrypted data may be swapped out; raise \
                 RLIMIT_MEMLOCK, or disable swap"
            );
        }
    }

    /// Releases a chunk's memory; it reads as zeros when populated again. Its frames must be
    /// unused.
    pub fn release(&self, chunk: usize) {
        let how = match self.backing {
            Backing::Anonymous => libc::MADV_DONTNEED,
            Backing::HugeTmpfs | Backing::Memfd => libc::MADV_REMOVE,
        };
        let at = self.chunk(chunk);
        // SAFETY: the chunk lies in the mapping, and the caller guarantees that no frame of it is
        // in use.
        unsafe {
            libc::munlock(at, CHUNK_BYTES);
            libc::madvise(at, CHUNK_BYTES, how);
        }
    }

    fn chunk(&self, chunk: usize) -> *mut libc::c_void {
        assert!(chunk < self.chunks());
        // SAFETY: inside the mapping, by the assertion above.
        unsafe { self.base.as_ptr().add(chunk * CHUNK_BYTES).cast() }
    }
}

/// Number of nodes that the mask of [`prefer`] covers.
const NODES_MAX: usize = 1024;

/// Makes memory of a chunk come from `node`, or from other nodes when that has none: mbind(2),
/// `MPOL_PREFERRED`. If the kernel refuses, the chunk's placement is left to it.
fn prefer(at: *mut libc::c_void, node: u32) {
    let mut mask = [0u64; NODES_MAX / 64];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return;
    };
    *word = 1 << (node % 64);
    // SAFETY: the caller's chunk lies in the mapping, and the mask has the stated length.
    let bound = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            at,
            CHUNK_BYTES,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            NODES_MAX + 1,
            0,
        )
    };
    if bound != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(node, %error, "cannot bind memory to a NUMA node");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: every holder of a pointer into the mapping also holds the pool that owns it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Creates the file to map; also returns its kind, and whether swap excludes it by itself.
fn backing_file(bytes: usize) -> (Option<OwnedFd>, Backing, bool) {
    for noswap in [true, false] {
        if let Ok(file) = huge_tmpfs(bytes, noswap) {
            return (Some(file), Backing::HugeTmpfs, noswap);
        }
    }
    match memfd(bytes) {
        Ok(file) => (Some(file), Backing::Memfd, false),
        Err(_) => (None, Backing::Anonymous, false),
    }
}

/// Creates a file on a tmpfs that is mounted nowhere, so that no path leads to it.
fn huge_tmpfs(bytes: usize, noswap: bool) -> rustix::io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(fs.as_fd(), "huge", "always")?;
    rustix::mount::fsconfig_set_string(fs.as_fd(), "size", bytes.to_string())?;
    if noswap {
        rustix::mount::fsconfig_set_flag(fs.as_fd(), "noswap")?;
    }
    rustix::mount::fsconfig_create(fs.as_fd())?;
    let root = rustix::mount::fsmount(
        fs.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&root, ".", flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    Ok(file)
}

fn memfd(bytes: usize) -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("evfs-cache", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    Ok(file)
}

/// Maps `bytes` at a multiple of the chunk size, so that large pages fit.
fn map(bytes: usize, file: Option<BorrowedFd<'_>>) -> Result<NonNull<u8>> {
    let failed = |e: rustix::io::Errno| {
        Error::from_io("cache", e.into())
            .detail(format!("cannot map {bytes} bytes for pages"))
            .with_kind(ErrorKind::Invalid)
    };
    let (read_write, none) = (ProtFlags::READ | ProtFlags::WRITE, ProtFlags::empty());
    let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let room = bytes + CHUNK_BYTES;
    // SAFETY: an anonymous mapping at an address of the kernel's choice aliases nothing; the
    // mapping that replaces part of it lies inside it, and the excess at both ends is unmapped.
    unsafe {
        let whole = rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, none, reserve)
            .map_err(failed)?;
        let skip = whole.align_offset(CHUNK_BYTES);
        let at = whole.byte_add(skip);
        let fixed = MapFlags::FIXED | MapFlags::NORESERVE;
        let mapped = match file {
            Some(file) => {
                rustix::mm::mmap(at, bytes, read_write, fixed | MapFlags::SHARED, file, 0)
            }
            None => rustix::mm::mmap_anonymous(at, bytes, read_write, fixed | MapFlags::PRIVATE),
        };
        if let Err(e) = mapped {
            let _ = rustix::mm::munmap(whole, room);
            return Err(failed(e));
        }
        if skip > 0 {
            let _ = rustix::mm::munmap(whole, skip);
        }
        let _ = rustix::mm::munmap(at.byte_add(bytes), CHUNK_BYTES - skip);
        Ok(NonNull::new(at.cast()).expect("a mapping is not at zero"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_and_go_and_come_back_as_zeros() {
        let memory = Memory::reserve(3 * CHUNK_BYTES + 1).unwrap();
        assert_eq!(memory.chunks(), 4);
        assert!((memory.base().as_ptr() as usize).is_multiple_of(CHUNK_BYTES));
        for chunk in [0, 3] {
            memory.populate(chunk, None);
            let at = memory.chunk(chunk).cast::<u8>();
            // SAFETY: inside the mapping, and no other thread knows it.
            unsafe {
                assert_eq!(at.read(), 0);
                at.write(7);
                memory.release(chunk);
                assert_eq!(at.read(), 0);
            }
        }
    }
}
