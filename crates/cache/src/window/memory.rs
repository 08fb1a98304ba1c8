//! The memory of one window: a sparse memfd, and a view of it for the cache that never waits for a
//! fault handler.
//!
//! ```text
//!   page    0        512       1024              2048          ...
//!           | 2 MiB  | 2 MiB   | 4 MiB           | 8 MiB       ...     segments, mapped on demand
//! ```
//!
//! **Invariants.** The file never shrinks (and is sealed, so that no process that receives its
//! descriptor can shrink it): the cache view never extends beyond its end. A segment does not move
//! while the window lives, so a pointer into it stays valid however far the file grows.
//!
//! Truncating a file therefore only frees pages here, and the fault handler enforces the end of the
//! file.

use super::uffd::PAGE;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Pages of the first segment: the number that one page table maps.
const FIRST: u64 = 512;
/// Number of segments; together they cover 2^45 pages, far beyond any address space.
const SEGMENTS: usize = 37;

pub(super) struct Memory {
    file: OwnedFd,
    segments: [OnceLock<Segment>; SEGMENTS],
    swappable: AtomicBool,
}

struct Segment {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a segment is an address and a length; its users control access to the bytes.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Memory {
    pub fn new() -> io::Result<Memory> {
        let file = rustix::fs::memfd_create(
            "cache-window",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        // By default any user can open a memfd through /proc; this one is restricted to its owner.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Memory {
            file,
            segments: [const { OnceLock::new() }; SEGMENTS],
            swappable: AtomicBool::new(false),
        })
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reports whether the system refused to keep some of the memory out of swap space.
    pub fn swappable(&self) -> bool {
        self.swappable.load(Relaxed)
    }

    /// Extends the file to at least `pages` pages; never shrinks it. Calls must be serialized.
    pub fn grow_to(&self, pages: u64) -> io::Result<()> {
        let bytes = pages * PAGE as u64;
        if rustix::fs::fstat(&self.file)?.st_size as u64 >= bytes {
            return Ok(());
        }
        Ok(rustix::fs::ftruncate(&self.file, bytes)?)
    }

    /// Populates pages (with zeros, where they had no memory), so that the cache view accesses them
    /// without a fault and without the risk of a SIGBUS for lack of memory.
    pub fn allocate(&self, pages: Range<u64>) -> io::Result<()> {
        for (index, part) in parts(pages) {
            let segment = self.segment(index)?;
            let at = segment.at(index, part.start);
            let bytes = (part.end - part.start) as usize * PAGE;
            // SAFETY: `at..at + bytes` lies in the segment; populating changes no content.
            if unsafe { libc::madvise(at.cast(), bytes, libc::MADV_POPULATE_WRITE) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Returns the address of a page in the cache view.
    ///
    /// # Panics
    /// When no page of its segment was ever allocated.
    pub fn page(&self, page: u64) -> *mut u8 {
        let index = index_of(page);
        let segment = self.segments[index].get();
        segment.expect("the page was allocated").at(index, page)
    }

    /// Releases the memory of pages in every view; they read as zeros from now on.
    pub fn punch(&self, pages: Range<u64>) -> io::Result<()> {
        rustix::fs::fallocate(
            &self.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            pages.start * PAGE as u64,
            (pages.end - pages.start) * PAGE as u64,
        )?;
        Ok(())
    }

    fn segment(&self, index: usize) -> io::Result<&Segment> {
        if let Some(segment) = self.segments[index].get() {
            return Ok(segment);
        }
        // Two threads may map it at once; one of the mappings is then dropped.
        let (segment, locked) = Segment::map(self.file(), pages_of(index))?;
        if !locked && !self.swappable.swap(true, Relaxed) {
            tracing::warn!(
                name: "EVFS-0105",
                "cannot lock mapped file pages in memory: decrypted data may be swapped out"
            );
        }
        Ok(self.segments[index].get_or_init(|| segment))
    }
}

impl Segment {
    /// Maps a segment, and returns whether its pages stay out of swap space.
    fn map(file: BorrowedFd<'_>, pages: Range<u64>) -> io::Result<(Segment, bool)> {
        let bytes = usize::try_from((pages.end - pages.start) * PAGE as u64)
            .map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let base = map_file(file, pages.start, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let at = base.as_ptr().cast();
        // SAFETY: all calls affect only the mapping just made. The segment is excluded from
        // children and core dumps; a page must take 4 KiB and not 2 MiB of memory.
        let locked = unsafe {
            libc::madvise(at, bytes, libc::MADV_DONTFORK);
            libc::madvise(at, bytes, libc::MADV_DONTDUMP);
            libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE);
            libc::mlock2(at, bytes, libc::MLOCK_ONFAULT) == 0
        };
        Ok((Segment { base, bytes }, locked))
    }

    fn at(&self, index: usize, page: u64) -> *mut u8 {
        let offset = (page - pages_of(index).start) as usize * PAGE;
        assert!(offset < self.bytes, "page {page} lies in segment {index}");
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is the segment's own, and no pointer into it outlives the segment.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Maps `bytes` of the file from page `first` on, at an address of the kernel's choice.
pub(super) fn map_file(
    file: BorrowedFd<'_>,
    first: u64,
    bytes: usize,
    protection: libc::c_int,
) -> io::Result<NonNull<u8>> {
    use std::os::fd::AsRawFd;
    let offset = i64::try_from(first * PAGE as u64)
        .map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: a new mapping at a free address aliases no memory of Rust's.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            protection,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            offset,
        )
    };
    match at {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        at => Ok(NonNull::new(at.cast()).expect("mmap does not return null")),
    }
}

fn index_of(page: u64) -> usize {
    (page / FIRST).checked_ilog2().map_or(0, |n| n as usize + 1)
}

fn pages_of(index: usize) -> Range<u64> {
    match index {
        0 => 0..FIRST,
        n => FIRST << (n - 1)..FIRST << n,
    }
}

/// Splits a range into pieces, each in one segment.
fn parts(pages: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
    let mut at = pages.start;
    std::iter::from_fn(move || {
        let index = index_of(at);
        let part = at..pages.end.min(pages_of(index).end);
        at = part.end;
        (part.start < part.end).then_some((index, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_every_page_once_and_in_order() {
        let all: Vec<_> = parts(0..5000).collect();
        assert_eq!(
            all,
            [
                (0, 0..512),
                (1, 512..1024),
                (2, 1024..2048),
                (3, 2048..4096),
                (4, 4096..5000)
            ]
        );
        for page in [0, 1, 511, 512, 513, 1023, 1024, 1 << 31, (1 << 40) - 1] {
            assert!(pages_of(index_of(page)).contains(&page), "page {page}");
        }
        assert_eq!(parts(7..7).count(), 0);
        assert!(index_of(super::super::PAGES_MAX) < SEGMENTS);
    }

    #[test]
    fn memory_is_sealed_against_shrinking_and_punched_pages_are_zeros() {
        let memory = Memory::new().unwrap();
        memory.grow_to(2000).unwrap();
        memory.grow_to(10).unwrap();
        assert_eq!(
            rustix::fs::fstat(memory.file()).unwrap().st_size,
            2000 * PAGE as i64
        );
        assert!(rustix::fs::ftruncate(memory.file(), 0).is_err());
        memory.allocate(500..520).unwrap();
        // SAFETY: the page has just been allocated, and no other thread uses it.
        unsafe { *memory.page(515) = 7 };
        memory.punch(500..520).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { *memory.page(515) }, 0);
    }
}
