//! A mapping: a program's access to a window.

use super::lease::Lease;
use super::uffd::PAGE;
use super::view::View;
use super::{Access, FaultOutcome, Keep, PAGES_MAX, PageSource, Window, covers};
use block::{Error, ErrorKind, Result};
use std::ops::Range;
use std::sync::Arc;

/// Memory of this process that is a range of a file. Unmapped on drop; data stored by then is in
/// the cache and will be written back.
///
/// Loads and stores through [`Mapping::as_ptr`] fault pages in on demand. Other threads, other
/// mappings, and `write` change the same bytes at any time: use raw pointers, volatile or atomic
/// accesses, and never a reference.
pub struct Mapping {
    view: Arc<View>,
    bytes: Range<u64>,
    access: Access,
}

impl Window {
    /// Maps bytes of a file, starting at a multiple of 4096. The range may extend behind the end of
    /// the file: accessing a page wholly behind it raises SIGBUS until the file has grown there.
    ///
    /// # Errors
    /// Invalid for a range that is empty, not aligned, or behind 128 TiB; otherwise the system's
    /// error when it has no address space, or no mapping, left.
    pub fn map(
        self: &Arc<Window>,
        home: Arc<dyn PageSource>,
        bytes: Range<u64>,
        access: Access,
    ) -> Result<Mapping> {
        let page = PAGE as u64;
        if bytes.is_empty() || !bytes.start.is_multiple_of(page) || bytes.end > PAGES_MAX * page {
            return Err(invalid(format!(
                "cannot map {bytes:?}: the range is empty, unaligned or too large"
            )));
        }
        let pages = bytes.start / page..bytes.end.div_ceil(page);
        let view = View::map(self, home, pages, access).map_err(|e| {
            Error::from_io("cache window", e).detail(format!("cannot map {bytes:?}"))
        })?;
        Ok(Mapping {
            view,
            bytes,
            access,
        })
    }
}

impl Mapping {
    /// Returns the address of the first byte. Valid until the mapping is dropped; after that the
    /// addresses may be reused.
    pub fn as_ptr(&self) -> *mut u8 {
        self.view.base().as_ptr()
    }

    /// Returns the number of bytes mapped; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "no mapping is empty")]
    pub fn len(&self) -> usize {
        (self.bytes.end - self.bytes.start) as usize
    }

    /// Loads the pages of `range` (bytes relative to the start of the mapping) and maps them, so
    /// that accesses do not fault until they are evicted; with [`Access::Store`] they are dirty
    /// from then on.
    ///
    /// It also returns errors as values, and retries a poisoned page.
    ///
    /// # Errors
    /// OutOfRange behind the end of the file, Invalid outside of the mapping or for stores into a
    /// read-only one, otherwise the error of loading, or of reserving space. Pages before the one
    /// that failed have been loaded.
    pub fn prefault(&self, range: Range<usize>, access: Access) -> Result<()> {
        self.may(access)?;
        let pages = self.pages(&range)?;
        self.view.load(&mut Keep::default(), pages, access)
    }

    /// Makes stores to `range` durable, like msync(2) with MS_SYNC.
    pub fn flush(&self, range: Range<usize>) -> Result<()> {
        self.pages(&range)?;
        let byte = |at| self.bytes.start + at as u64;
        self.view.home.flush(byte(range.start)..byte(range.end))
    }

    /// Copies bytes out, starting at `at`, under the latch of each page in turn: no fault, no
    /// signal.
    ///
    /// # Errors
    /// As [`Mapping::prefault`].
    pub fn copy_out(&self, at: usize, out: &mut [u8]) -> Result<()> {
        Mapping::not_mapped(out.as_ptr(), out.len())?;
        self.each(at, out.len(), Access::Read, |window, page, from, part| {
            window.read(page, from, &mut out[part]);
        })
    }

    /// Copies bytes in, starting at `at`, under the latch of each page in turn. `data` must not be
    /// memory of a mapping.
    ///
    /// # Errors
    /// As [`Mapping::prefault`].
    pub fn copy_in(&self, at: usize, data: &[u8]) -> Result<()> {
        Mapping::not_mapped(data.as_ptr(), data.len())?;
        self.each(at, data.len(), Access::Store, |window, page, from, part| {
            window.write(page, from, &data[part]);
        })
    }

    /// Pins pages, for another process or for I/O that pins memory; see [`Lease`].
    pub fn lease(&self, range: Range<usize>, access: Access) -> Result<Lease> {
        self.may(access)?;
        let pages = self.pages(&range)?;
        Lease::take(&self.view, pages, access)
    }

    fn each(
        &self,
        at: usize,
        len: usize,
        access: Access,
        mut copy: impl FnMut(&Window, u64, usize, Range<usize>),
    ) -> Result<()> {
        self.may(access)?;
        let end = at.saturating_add(len);
        let mut keep = Keep::default();
        for page in self.pages(&(at..end))? {
            let start = (page - self.view.pages.start) as usize * PAGE;
            let (from, to) = (at.max(start), end.min(start + PAGE));
            let mut then = |pages: Range<u64>, outcome| {
                if outcome != FaultOutcome::Failed && pages.contains(&page) {
                    copy(&self.view.window, page, from - start, from - at..to - at);
                }
            };
            self.view.home.fault(&mut keep, page, access, &mut then)?;
        }
        Ok(())
    }

    /// Computes the pages of a range of the mapping's bytes.
    fn pages(&self, range: &Range<usize>) -> Result<Range<u64>> {
        if range.start > range.end || range.end > self.len() {
            return Err(invalid(format!(
                "{range:?} is outside the mapping of {} bytes",
                self.len()
            )));
        }
        let first = self.view.pages.start;
        let (from, to) = (range.start / PAGE, range.end.div_ceil(PAGE));
        Ok(first + from as u64..first + to as u64)
    }

    fn may(&self, access: Access) -> Result<()> {
        match (access, self.access) {
            (Access::Store, Access::Read) => Err(invalid("the mapping is read-only".into())),
            _ => Ok(()),
        }
    }

    /// Rejects memory of a mapping: a copy under a latch must not fault.
    fn not_mapped(at: *const u8, len: usize) -> Result<()> {
        if covers(at, len) {
            Err(invalid("the caller's buffer is itself a mapping".into()))
        } else {
            Ok(())
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.view.end();
        self.view.home.unmapped(self.view.pages.clone());
    }
}

pub(super) fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::Invalid, "cache window", detail)
}
