//! Pages for secrets. Each secret has its own mapping: there are few secrets (a volume key, its
//! round keys, an identity), and a separate mapping has guard pages and leaves nothing behind when
//! unmapped.
//!
//! `memfd_secret(2)` removes pages from the kernel's direct map, so that even a kernel bug that
//! reads arbitrary memory cannot find them. If the kernel does not provide it, the memory is
//! anonymous, locked, and excluded from core dumps and forked children.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a secret was ever placed in memory that could not be locked.
static SWAPPABLE: AtomicBool = AtomicBool::new(false);

/// Reports whether all secrets so far are in memory that is never swapped out. This depends on
/// `RLIMIT_MEMLOCK` if `memfd_secret` is disabled or the limit is too low for it.
pub fn all_locked() -> bool {
    !SWAPPABLE.load(Ordering::Relaxed)
}

/// Private mapping between two inaccessible guard pages.
pub(crate) struct Pages {
    base: NonNull<u8>,
    mapped: usize,
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone and is not bound to a thread.
unsafe impl Send for Pages {}
// SAFETY: shared access only reads; writing needs `&mut`.
unsafe impl Sync for Pages {}

fn page_size() -> usize {
    // SAFETY: sysconf only reads a constant of the system.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

impl Pages {
    /// Maps at least `len` zero bytes.
    ///
    /// # Panics
    /// Panics if the kernel provides no memory: a process that cannot hold its key cannot continue.
    pub(crate) fn new(len: usize) -> Pages {
        let page = page_size();
        let body = len.max(1).next_multiple_of(page);
        let mapped = body + 2 * page;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing; the
        // inner mapping replaces pages of that mapping only.
        unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert!(
                base != libc::MAP_FAILED,
                "no address space for key material"
            );
            let inner = base.cast::<u8>().add(page);
            if !map_secret(inner, body) {
                map_locked(inner, body);
            }
            libc::madvise(inner.cast(), body, libc::MADV_DONTDUMP);
            let base = NonNull::new(base.cast()).expect("mmap does not return null");
            let data = NonNull::new(inner).expect("base plus a page is not null");
            Pages {
                base,
                mapped,
                data,
                len,
            }
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Replaces `len` bytes at `at` by secret memory. Returns `false` if the kernel refuses.
///
/// # Safety
/// `at..at + len` must be whole pages of a mapping owned by the caller.
unsafe fn map_secret(at: *mut u8, len: usize) -> bool {
    // SAFETY: the descriptor is created and closed here; MAP_FIXED affects the caller's pages only.
    unsafe {
        let fd = libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) as libc::c_int;
        if fd < 0 {
            return false;
        }
        let sized = libc::ftruncate(fd, len as libc::off_t) == 0;
        let mapped = sized
            && libc::mmap(
                at.cast(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                fd,
                0,
            ) != libc::MAP_FAILED;
        libc::close(fd);
        if mapped {
            libc::madvise(at.cast(), len, libc::MADV_DONTFORK);
        }
        mapped
    }
}

/// Replaces `len` bytes at `at` by anonymous memory, locked as far as `RLIMIT_MEMLOCK` allows.
///
/// # Safety
/// `at..at + len` must be whole pages of a mapping owned by the caller.
unsafe fn map_locked(at: *mut u8, len: usize) {
    // SAFETY: MAP_FIXED affects the caller's pages only.
    unsafe {
        let got = libc::mmap(
            at.cast(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        );
        assert!(got != libc::MAP_FAILED, "no memory for key material");
        if libc::mlock(at.cast(), len) != 0 {
            SWAPPABLE.store(true, Ordering::Relaxed);
        }
        libc::madvise(at.cast(), len, libc::MADV_DONTFORK);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by this value, and no reference into it can exist any more.
        // It is zeroed first, because the kernel frees secret memory page by page, at an unspecified
        // time; the barrier keeps the compiler from dropping the stores.
        unsafe {
            let body = std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len.max(1));
            body.fill(0);
            zeroize::optimization_barrier(body);
            libc::munmap(self.base.as_ptr().cast(), self.mapped);
        }
    }
}
