//! Memory-mapped files. The only file workload module with unsafe code.
//!
//! **Invariant:** bytes are copied in and out; no reference into the mapping leaves this module,
//! because another process may change the file at any moment. If another process truncates a mapped
//! file, SIGBUS ends this process, because a load cannot return an error.

use super::{Mapped, Msync};
use crate::Direction;
use rustix::mm::{self, MapFlags, MsyncFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};

/// Largest page size of all supported CPUs; an address aligned to it is aligned to a page.
const PAGE_MAX: u64 = 64 << 10;

/// A shared mapping of the first bytes of a file.
pub struct Mapping {
    start: *mut c_void,
    len: usize,
}

// SAFETY: the mapping is memory of the process, not of a thread. Concurrent copies through it do
// the same as two processes that access the file: they may see a mix of old and new bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, which must be at least that long.
    pub fn new(file: &File, len: u64, direction: Direction) -> Result<Mapping> {
        let len = usize::try_from(len).map_err(|_| ErrorKind::InvalidInput)?;
        if len == 0 || file.metadata()?.len() < len as u64 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a mapping must lie within the file and must not be empty",
            ));
        }
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, direction == Direction::Write);
        // SAFETY: a new mapping at an address chosen by the kernel touches no memory in use.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        Ok(Mapping { start, len })
    }

    /// Computes the address of `len` bytes at offset `at`.
    fn at(&self, at: u64, len: usize) -> *mut u8 {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let end = at.saturating_add(len);
        assert!(end <= self.len, "{at}+{len} is outside of the mapping");
        self.start.cast::<u8>().wrapping_add(at)
    }
}

impl Mapped for Mapping {
    fn read(&self, at: u64, out: &mut [u8]) {
        let from = self.at(at, out.len());
        // SAFETY: `at` checked that the bytes lie within the mapping, which lives as long as
        // `self`; `out` does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) }
    }

    fn write(&self, at: u64, data: &[u8]) {
        let to = self.at(at, data.len());
        // SAFETY: as in `read`; a write to a read-only mapping faults.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
    }

    fn sync(&self, at: u64, len: usize, msync: Msync) -> Result<()> {
        let first = at / PAGE_MAX * PAGE_MAX;
        let len = len + (at - first) as usize;
        let flags = match msync {
            Msync::Sync => MsyncFlags::SYNC,
            Msync::Async => MsyncFlags::ASYNC,
        };
        let start = self.at(first, len).cast();
        // SAFETY: the pages lie within the mapping; msync reads them and changes no memory.
        Ok(unsafe { mm::msync(start, len, flags) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping with these bounds, and nothing refers to it any longer.
        let unmapped = unsafe { munmap(self.start, self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be taken down");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_file_and_the_mapping_are_the_same_bytes() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        let mapping = Mapping::new(&file, 10_000, Direction::Write).unwrap();
        let mut out = [0; 3];
        file.write_all_at(b"abc", 5_000).unwrap();
        mapping.read(5_000, &mut out);
        assert_eq!(&out, b"abc");
        mapping.write(9_997, b"xyz");
        mapping.sync(9_997, 3, Msync::Sync).unwrap();
        file.read_exact_at(&mut out, 9_997).unwrap();
        assert_eq!(&out, b"xyz");
        assert!(Mapping::new(&file, 10_001, Direction::Write).is_err());
        assert!(Mapping::new(&file, 0, Direction::Write).is_err());
    }

    #[test]
    #[should_panic(expected = "outside of the mapping")]
    fn nothing_is_read_beyond_the_end() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 100], 0).unwrap();
        Mapping::new(&file, 100, Direction::Read)
            .unwrap()
            .read(98, &mut [0; 3]);
    }
}
