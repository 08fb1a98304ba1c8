//! A bounded pool of equal buffers in one mapping, so that the data path neither allocates nor
//! takes page faults, and a ring can register all of it once.
//!
//! Buffers are not zeroed between uses, only when the pool is freed: the user of a buffer fills it
//! before other code can read it.

use crate::arena::Arena;
use crate::buf::Buf;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pool of buffers of one size, of which at most `count` are in use at a time.
///
/// Memory: `buf_size * count` bytes, mapped when the pool is created and populated on first use.
#[derive(Clone)]
pub struct BufPool {
    arena: Arc<Arena>,
}

impl BufPool {
    /// Creates a pool of `count` buffers of `buf_size` bytes, rounded up to whole pages.
    ///
    /// # Panics
    /// When the system has no memory to map.
    pub fn new(buf_size: usize, count: usize) -> BufPool {
        BufPool {
            arena: Arc::new(Arena::new(buf_size, count)),
        }
    }

    /// As [`BufPool::new`], in memory that another process can read after this one: the beginning of a
    /// memfd of at least `buf_size * count` bytes, `buf_size` in whole pages, which cannot shrink. Its
    /// buffers are numbered from `first`.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn shared(
        file: BorrowedFd<'_>,
        buf_size: usize,
        count: usize,
        first: u32,
    ) -> io::Result<BufPool> {
        let arena = Arena::shared(file, buf_size, count, first)?;
        Ok(BufPool {
            arena: Arc::new(arena),
        })
    }

    /// Takes the buffer with a number; `None` if it is in use, or not of this pool, or shorter.
    pub fn take_number(&self, number: u32, len: usize) -> Option<Buf> {
        let size = self.buf_size();
        let ptr = (len <= size).then(|| self.arena.take_number(number))??;
        Some(Buf::of_arena(ptr, len, size, Arc::clone(&self.arena)))
    }

    /// Takes a buffer of `len` bytes with the content that its previous user left; `None` while all
    /// buffers are in use.
    ///
    /// # Panics
    /// When `len` is more than [`BufPool::buf_size`].
    pub fn take(&self, len: usize) -> Option<Buf> {
        let size = self.buf_size();
        assert!(len <= size, "{len} bytes requested from a pool of {size}");
        let ptr = self.arena.take()?;
        Some(Buf::of_arena(ptr, len, size, Arc::clone(&self.arena)))
    }

    /// Returns the capacity of each buffer in bytes.
    pub fn buf_size(&self) -> usize {
        self.arena.buf_size()
    }

    /// Returns the number of buffers in the pool, in use or free.
    pub fn count(&self) -> usize {
        self.arena.count()
    }

    /// Returns the whole memory of the pool, for registration with a ring. It stays mapped while a
    /// clone of the pool exists.
    pub fn region(&self) -> (NonNull<u8>, usize) {
        self.arena.region()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

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
    #[cfg(not(miri))] // It has no memfd.
    fn another_pool_over_the_same_memory_finds_a_buffer_by_its_number() {
        let file = rustix::fs::memfd_create("evfs-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4 * 8192).unwrap();
        let shared = || BufPool::shared(file.as_fd(), 8192, 4, 100).unwrap();
        let (first, second) = (shared(), shared());
        let mut one = first.take(5000).unwrap();
        one.fill(7);
        let number = one.number().unwrap();
        assert!((100..104).contains(&number) && Buf::zeroed(1).number().is_none());
        let found = second.take_number(number, 5000).unwrap();
        assert_eq!(found[..], one[..]);
        assert!(second.take_number(number, 1).is_none(), "it is in use");
        assert!(second.take_number(99, 1).is_none() && second.take_number(104, 1).is_none());
        assert!(second.take_number(101, 8193).is_none());
        let others: Vec<Buf> = std::iter::from_fn(|| second.take(1)).collect();
        assert_eq!(others.len(), 3);
    }

    #[test]
    #[should_panic(expected = "4097 bytes requested from a pool of 4096")]
    fn a_longer_buffer_than_the_pool_has_is_a_bug() {
        BufPool::new(4096, 1).take(4097);
    }
}
