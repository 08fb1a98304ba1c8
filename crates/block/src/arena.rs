//! The memory of a buffer pool: one mapping in equal parts, and the list of free ones.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Mutex;

/// Alignment of a buffer's first byte: a page, which O_DIRECT and every ring accept.
pub const BUF_ALIGN: usize = 4096;

/// The mapping behind a pool. Exists until the pool and all its buffers are dropped.
pub(crate) struct Arena {
    base: NonNull<u8>,
    buf_size: usize,
    count: usize,
    /// Number of the first part.
    first: u32,
    free: Mutex<Vec<u32>>,
}

// SAFETY: the mapping belongs to the arena; the free list, which decides which buffer owns which
// part of it, is behind a mutex.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `count` parts of `buf_size` bytes, rounded up to whole pages.
    ///
    /// # Panics
    /// When the system has no memory to map.
    pub(crate) fn new(buf_size: usize, count: usize) -> Arena {
        let arena = Arena::map(buf_size, count, None, 0);
        arena.unwrap_or_else(|e| panic!("cannot allocate a pool of {count} buffers: {e}"))
    }

    /// Maps the beginning of a file in memory in the same way. Its parts are numbered from `first`.
    pub(crate) fn shared(
        file: BorrowedFd<'_>,
        buf_size: usize,
        count: usize,
        first: u32,
    ) -> io::Result<Arena> {
        Arena::map(buf_size, count, Some(file), first)
    }

    fn map(
        buf_size: usize,
        count: usize,
        file: Option<BorrowedFd<'_>>,
        first: u32,
    ) -> io::Result<Arena> {
        let buf_size = buf_size.max(1).next_multiple_of(BUF_ALIGN);
        let count = count.max(1);
        let bytes = buf_size
            .checked_mul(count)
            .expect("a pool fits the address space");
        let (flags, file) = match file {
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        };
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing in this process.
        // All of it is initialized: anonymous memory is zero, and a file has some content. The caller
        // has sealed the file's size.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0);
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // Plaintext must not reach a core dump; large pages save TLB misses. Miri supports
            // neither call and needs neither.
            if !cfg!(miri) {
                libc::madvise(at, bytes, libc::MADV_DONTDUMP);
                libc::madvise(at, bytes, libc::MADV_HUGEPAGE);
            }
            NonNull::new(at.cast::<u8>()).expect("mmap does not return null")
        };
        Ok(Arena {
            base,
            buf_size,
            count,
            first,
            free: Mutex::new((0..count as u32).rev().collect()),
        })
    }

    /// Takes a part with the content that its previous user left; `None` while all are in use.
    pub(crate) fn take(&self) -> Option<NonNull<u8>> {
        let slot = self.free.lock().expect("no panic under this lock").pop()? as usize;
        // SAFETY: `slot < count`, so the sum stays inside the mapping.
        Some(unsafe { self.base.add(slot * self.buf_size) })
    }

    /// Takes the part with a number; `None` if it is in use, or there is none.
    pub(crate) fn take_number(&self, number: u32) -> Option<NonNull<u8>> {
        let slot = number.checked_sub(self.first)?;
        let mut free = self.free.lock().expect("no panic under this lock");
        let at = free.iter().position(|other| *other == slot)?;
        free.swap_remove(at);
        // SAFETY: all free slots are less than `count`, so the sum stays inside the mapping.
        Some(unsafe { self.base.add(slot as usize * self.buf_size) })
    }

    /// Finds the number of a part.
    pub(crate) fn number(&self, ptr: NonNull<u8>) -> u32 {
        self.first + self.slot(ptr)
    }

    /// Takes a part back.
    pub(crate) fn take_back(&self, ptr: NonNull<u8>) {
        let slot = self.slot(ptr);
        self.free
            .lock()
            .expect("no panic under this lock")
            .push(slot);
    }

    fn slot(&self, ptr: NonNull<u8>) -> u32 {
        ((ptr.as_ptr() as usize - self.base.as_ptr() as usize) / self.buf_size) as u32
    }

    pub(crate) fn buf_size(&self) -> usize {
        self.buf_size
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn region(&self) -> (NonNull<u8>, usize) {
        (self.base, self.buf_size * self.count)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let bytes = self.buf_size * self.count;
        // SAFETY: every buffer holds an `Arc` of the arena, so no buffer remains. Unmapping private
        // anonymous memory returns the pages to the kernel, which zeroes them before it reuses
        // them; zeroing them here would only fault in pages that were never used. Those of a file
        // follow when no process has its descriptor.
        unsafe { libc::munmap(self.base.as_ptr().cast(), bytes) };
    }
}
