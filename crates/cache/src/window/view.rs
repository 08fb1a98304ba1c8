//! One user view: the addresses at which a program has pages of a window.
//!
//! **Invariant:** the page tables of a view are changed only while its window's list of views is
//! locked, so never after the view was unmapped, when its addresses may have been reused.

use super::memory::map_file;
use super::uffd::PAGE;
use super::{Access, FaultOutcome, Keep, PageSource, Window, addresses};
use block::{Error, Result};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub(super) struct View {
    pub window: Arc<Window>,
    pub home: Arc<dyn PageSource>,
    pub pages: Range<u64>,
    base: NonNull<u8>,
    /// Still mapped; accessed under the lock of the window's list of views.
    mapped: AtomicBool,
}

// SAFETY: the view is an address range; only the kernel, and the program through raw pointers,
// access the memory.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Maps pages, and enters the view in both lists.
    pub fn map(
        window: &Arc<Window>,
        home: Arc<dyn PageSource>,
        pages: Range<u64>,
        access: Access,
    ) -> io::Result<Arc<View>> {
        let shared = &window.windows.shared;
        let mut views = window.views.write().expect("no panic under this lock");
        window.memory.grow_to(pages.end)?;
        let bytes = usize::try_from((pages.end - pages.start) * PAGE as u64)
            .map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Store => libc::PROT_READ | libc::PROT_WRITE,
        };
        let base = map_file(window.memory.file(), pages.start, bytes, protection)?;
        let view = Arc::new(View {
            window: Arc::clone(window),
            home,
            pages,
            base,
            mapped: AtomicBool::new(true),
        });
        // A forked child would inherit the view without the userfaultfd, and read holes as zeros.
        // SAFETY: both calls affect only the mapping just made.
        unsafe {
            libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTFORK);
            libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTDUMP);
        }
        // The address is not known to other code yet, so nothing is accessed before it is
        // registered.
        if let Err(e) = shared.uffd.register(view.addresses()) {
            view.give_back();
            return Err(e);
        }
        views.push(Arc::clone(&view));
        addresses::enter(view.addresses());
        let mut all = shared.views.write().expect("no panic under this lock");
        all.insert(base.as_ptr() as usize, Arc::clone(&view));
        Ok(view)
    }

    /// Removes the view from both lists and unmaps it. A fault still in progress then maps nothing.
    pub fn end(self: &Arc<View>) {
        let shared = &self.window.windows.shared;
        let mut views = self.window.views.write().expect("no panic under this lock");
        let mut all = shared.views.write().expect("no panic under this lock");
        all.remove(&(self.base.as_ptr() as usize));
        drop(all);
        views.retain(|view| !Arc::ptr_eq(view, self));
        addresses::remove(&self.addresses());
        self.give_back();
    }

    fn give_back(&self) {
        self.mapped.store(false, Relaxed);
        // SAFETY: the view's own mapping, unmapped once. The contract of `Mapping::as_ptr` is that
        // the addresses are no longer used.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.addresses().len()) };
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn addresses(&self) -> Range<usize> {
        let start = self.base.as_ptr() as usize;
        start..start + (self.pages.end - self.pages.start) as usize * PAGE
    }

    /// Computes the page at an address of the view.
    pub fn page_at(&self, address: usize) -> u64 {
        self.pages.start + ((address - self.addresses().start) / PAGE) as u64
    }

    /// Computes the addresses of the pages of a range that lie in the view; `None` if none do.
    fn part(&self, pages: &Range<u64>) -> Option<Range<usize>> {
        let from = pages.start.max(self.pages.start);
        let to = pages.end.min(self.pages.end);
        let at = |page| self.addresses().start + (page - self.pages.start) as usize * PAGE;
        (from < to).then(|| at(from)..at(to))
    }

    /// Resolves faults in pages that their home has latched.
    pub fn answer(&self, pages: Range<u64>, outcome: FaultOutcome) -> io::Result<()> {
        let window = &*self.window;
        let views = window.views.read().expect("no panic under this lock");
        let Some(part) = self.part(&pages) else {
            return Ok(());
        };
        if !self.mapped.load(Relaxed) {
            return Ok(());
        }
        let uffd = &window.windows.shared.uffd;
        if outcome == FaultOutcome::Failed {
            window.poisoned.store(true, Relaxed);
            // Only an unmapped page can be poisoned; this one may be mapped for loads.
            zap(&part);
            return uffd.poison(part);
        }
        if window.poisoned.load(Relaxed) {
            // The pages are available again; remove the poison of an earlier failure.
            for view in views.iter() {
                view.unmap(&pages);
            }
        }
        let access = match outcome {
            FaultOutcome::Dirty => Access::Store,
            FaultOutcome::Clean | FaultOutcome::Failed => Access::Read,
        };
        uffd.map(part, access)
    }

    /// Makes stores fault. The caller holds the latches and the window's list of views.
    pub fn protect(&self, pages: &Range<u64>) {
        if let Some(part) = self.part(pages) {
            let uffd = &self.window.windows.shared.uffd;
            uffd.protect(part)
                .expect("a registered range can be write-protected");
        }
    }

    /// Makes every access fault. The caller holds the latches and the window's list of views.
    pub fn unmap(&self, pages: &Range<u64>) {
        if let Some(part) = self.part(pages) {
            zap(&part);
        }
    }

    /// Makes the home load pages and resolves pending faults on them, without poison: the error is
    /// returned instead. Neighbors that the home loads together with a page are not requested
    /// again.
    pub fn load(&self, keep: &mut Keep, pages: Range<u64>, access: Access) -> Result<()> {
        let mut next = pages.start;
        while next < pages.end {
            let page = next;
            let mut answered = Ok(());
            self.home.fault(keep, page, access, &mut |pages, outcome| {
                if outcome == FaultOutcome::Failed {
                    return;
                }
                let result = self.answer(pages.clone(), outcome);
                if pages.contains(&page) {
                    answered = result;
                    next = next.max(pages.end);
                } else if result.is_ok() && pages.start == next {
                    next = pages.end;
                }
            })?;
            answered.map_err(|e| {
                Error::from_io("cache window", e).detail(format!("cannot map page {page}"))
            })?;
        }
        Ok(())
    }
}

/// Drops page table entries; the pages stay in the file. Returns after the TLBs of all CPUs have
/// been flushed.
fn zap(part: &Range<usize>) {
    // SAFETY: the range is part of a shared mapping of a file, so no content is lost.
    let result = unsafe {
        libc::madvise(
            part.start as *mut libc::c_void,
            part.len(),
            // Plain MADV_DONTNEED fails if the program has locked all its memory.
            libc::MADV_DONTNEED_LOCKED,
        )
    };
    assert!(
        result == 0,
        "cannot unmap a view: {}",
        io::Error::last_os_error()
    );
}
