//! A bounded pool of equal buffers in one mapping, so that the data path neither allocates nor
//! takes page faults, and a ring can register all of it once.
//!
//! Buffers are not zeroed between uses, only when the pool is freed: the user of a buffer fills it
//! before other code can read it.

use crate::Buf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// A pool of buffers of one size, of which at most `count` are in use at a time.
///
/// Memory: `buf_size * count` bytes, mapped when the pool is created and populated on first use.
#[derive(Clone)]
pub struct BufPool {
    arena: Arc<Arena>,
}

/// The mapping behind a pool. Exists until the pool and all its buffers are dropped.
pub(crate) struct Arena {
    base: NonNull<u8>,
    buf_size: usize,
    count: usize,
    free: Mutex<Vec<u32>>,
}

// SAFETY: the mapping belongs to the arena; the free list, which decides which buffer owns which
// part of it, is behind a mutex.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl BufPool {
    /// Creates a pool of `count` buffers of `buf_size` bytes, rounded up to whole pages.
    ///
    /// # Panics
    /// When the system has no memory to map.
    pub fn new(buf_size: usize, count: usize) -> BufPool {
        let buf_size = buf_size.max(1).next_multiple_of(crate::BUF_ALIGN);
        let count = count.max(1);
        let bytes = buf_size
            .checked_mul(count)
            .expect("a pool fits the address space");
        // SAFETY: an anonymous mapping at an address of the kernel's choice aliases nothing. It is
        // zero, so all of it is initialized.
        let base = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert!(
                at != libc::MAP_FAILED,
                "cannot allocate a pool of {bytes} bytes"
            );
            // Plaintext must not reach a core dump; large pages save TLB misses. Miri supports
            // neither call and needs neither.
            if !cfg!(miri) {
                libc::madvise(at, bytes, libc::MADV_DONTDUMP);
                libc::madvise(at, bytes, libc::MADV_HUGEPAGE);
            }
            NonNull::new(at.cast::<u8>()).expect("mmap does not return null")
        };
        let free = Mutex::new((0..count as u32).rev().collect());
        BufPool {
            arena: Arc::new(Arena {
                base,
                buf_size,
                count,
                free,
            }),
        }
    }

    /// Takes a buffer of `len` bytes with the content that its previous user left; `None` while all
    /// buffers are in use.
    ///
    /// # Panics
    /// When `len` is more than [`BufPool::buf_size`].
    pub fn take(&self, len: usize) -> Option<Buf> {
        let arena = &self.arena;
        assert!(
            len <= arena.buf_size,
            "{len} bytes requested from a pool of {}",
            arena.buf_size
        );
        let slot = arena.free.lock().expect("no panic under this lock").pop()? as usize;
        // SAFETY: `slot < count`, so the sum stays inside the mapping.
        let ptr = unsafe { arena.base.add(slot * arena.buf_size) };
        Some(Buf::of_arena(ptr, len, arena.buf_size, Arc::clone(arena)))
    }

    /// Returns the capacity of each buffer in bytes.
    pub fn buf_size(&self) -> usize {
        self.arena.buf_size
    }

    /// Returns the number of buffers in the pool, in use or free.
    pub fn count(&self) -> usize {
        self.arena.count
    }

    /// Returns the whole memory of the pool, for registration with a ring. It stays mapped while a
    /// clone of the pool exists.
    pub fn region(&self) -> (NonNull<u8>, usize) {
        (self.arena.base, self.arena.buf_size * self.arena.count)
    }
}

impl Arena {
    pub(crate) fn take_back(&self, ptr: NonNull<u8>) {
        let slot = (ptr.as_ptr() as usize - self.base.as_ptr() as usize) / self.buf_size;
        self.free
            .lock()
            .expect("no panic under this lock")
            .push(slot as u32);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let bytes = self.buf_size * self.count;
        // SAFETY: every buffer holds an `Arc` of the arena, so no buffer remains. Unmapping private
        // anonymous memory returns the pages to the kernel, which zeroes them before it reuses
        // them; zeroing them here would only fault in pages that were never used.
        unsafe { libc::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_buffers_are_apart_aligned_and_inside_the_region() {
        let pool = BufPool::new(5000, 4);
        assert_eq!((pool.buf_size(), pool.count()), (8192, 4));
        let (base, bytes) = pool.region();
        let mut bufs: Vec<Buf> = std::iter::from_fn(|| pool.take(5000)).collect();
        assert_eq!((bufs.len(), bytes), (4, 4 * 8192));
        for (value, buf) in bufs.iter_mut().enumerate() {
            let at = buf.as_ptr() as usize - base.as_ptr() as usize;
            assert!(at.is_multiple_of(8192) && at < bytes);
            assert_eq!((buf.len(), buf.capacity()), (5000, 8192));
            buf.fill(value as u8);
        }
        for (value, buf) in bufs.iter().enumerate() {
            assert!(buf.iter().all(|b| *b == value as u8), "buffers overlap");
        }
    }

    #[test]
    fn an_empty_pool_gives_nothing_until_a_buffer_comes_back() {
        let pool = BufPool::new(4096, 1);
        let buf = pool.take(1).unwrap();
        assert!(pool.clone().take(1).is_none());
        std::thread::spawn(move || drop(buf)).join().unwrap();
        assert!(pool.take(4096).is_some());
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = BufPool::new(4096, 2);
        let mut buf = pool.take(4096).unwrap();
        drop(pool);
        buf.fill(3);
        assert!(buf.iter().all(|b| *b == 3));
    }

    #[test]
    #[should_panic(expected = "4097 bytes requested from a pool of 4096")]
    fn a_longer_buffer_than_the_pool_has_is_a_bug() {
        BufPool::new(4096, 1).take(4097);
    }
}
