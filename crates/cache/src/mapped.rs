//! A vnode that programs have mapped: its window, the pages that lie there, and the effect of
//! mappings on its size.
//!
//! ```text
//!   fault: pool or absent ──► window           source.rs
//!   unmapped: window ──► pool                  reclaim.rs, by the background thread
//!   memory is short: window ──► evicted        reclaim.rs, clean pages not used recently
//! ```
//!
//! **Invariants.** A page is in one place, recorded in its word, and moves only under its latch. No
//! page behind the end of the file is in the window. In the last page, bytes behind the end are
//! never written to the pager and never become part of the file: a program may have stored there,
//! so they are zeroed when the file grows over them.
//!
//! Mapped pages do not count against the limit of the cache, as in HP-UX; they are counted
//! separately. Pages that are no longer mapped return to the pool.

mod reclaim;
mod source;

pub(crate) use reclaim::ReclaimResult;

use crate::frames::PAGE_BYTES;
use crate::open::OpenFile;
use crate::page_state::PageLocation;
use crate::shared::VolumeShared;
use crate::vnode::Vnode;
use crate::window::{Access, Mapping, Window};
use block::{Error, ErrorKind, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: u64 = PAGE_BYTES as u64;

/// Mapping state of a vnode that was mapped at least once.
pub(crate) struct Mapped {
    shared: Arc<VolumeShared>,
    window: Arc<Window>,
    /// The pages that lie in the window; changed under their latches.
    resident: Mutex<BTreeSet<u64>>,
    /// Position at which the search for pages to evict continues.
    hand: AtomicU64,
    /// Held while a page is determined to lie behind the end, and while the file is extended.
    growing: Mutex<()>,
}

impl OpenFile {
    /// Maps bytes of the file, starting at a multiple of 4096, for loads or for loads and stores.
    /// The mapping and sessions see each other's writes at once, and sessions flush stores of
    /// programs; the range may extend behind the end of the file. See [`Mapping`] and
    /// [`crate::window`] for the handling of errors, and of memory that is passed to system calls.
    ///
    /// A mapping has its own cursor for write-behind errors: [`Mapping::flush`] reports those since
    /// this call.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::Permission`] if the system lacks, or does not
    /// permit, the userfaultfd features that windows need; [`ErrorKind::ReadOnly`] for stores into
    /// a read-only volume; [`ErrorKind::Invalid`] for a range that is empty or not aligned;
    /// otherwise the system's error when it has no address space, or no mapping, left.
    pub fn map(&self, bytes: Range<u64>, access: Access) -> Result<Mapping> {
        let vnode = self.vnode();
        let info = &vnode.shared().info;
        if access == Access::Store && info.read_only {
            let detail = "it cannot be mapped for stores";
            return Err(Error::new(ErrorKind::ReadOnly, &info.name, detail));
        }
        let mapped = Mapped::of(vnode)?;
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        let home = source::MappedFile::new(vnode, pages);
        mapped.window.map(Arc::new(home), bytes, access)
    }
}

impl Mapped {
    /// Returns the mapping state of the vnode, creating it on first use.
    fn of(vnode: &Arc<Vnode>) -> Result<&Mapped> {
        if let Some(mapped) = vnode.mapped() {
            return Ok(mapped);
        }
        let below = vnode.shared();
        let window = Window::new(&below.windows()?)?;
        // Of two concurrent callers, one drops its new window, which has no page in it.
        Ok(vnode.become_mapped(Mapped {
            shared: Arc::clone(below),
            window,
            resident: Mutex::default(),
            hand: AtomicU64::new(0),
            growing: Mutex::default(),
        }))
    }

    /// Returns the address of a page in the cache's own view of the window, where no fault happens.
    /// The caller holds the page's latch, or a read of it in the window, while the page lies there.
    pub(crate) fn at(&self, page: u64) -> NonNull<u8> {
        NonNull::new(self.window.page(page)).expect("a mapping is not at zero")
    }

    /// Allocates memory in the window for a page that is about to move there.
    pub(crate) fn make_room(&self, page: u64) -> Result<NonNull<u8>> {
        self.window.allocate(page..page + 1)?;
        let new = self.resident().insert(page);
        debug_assert!(new, "page {page} is in the window already");
        self.shared.core.window_pages.fetch_add(1, Relaxed);
        Ok(self.at(page))
    }

    /// Write-protects the page in all mappings, so that the next store faults. `false`: the holder
    /// of a lease may still store.
    pub(crate) fn seal(&self, page: u64) -> bool {
        self.window.protect(page..page + 1)
    }

    /// Removes the page from all mappings. `false`: it is leased.
    pub(crate) fn revoke(&self, page: u64) -> bool {
        self.window.revoke(page..page + 1)
    }

    /// Removes the page from the window, and from all mappings and leases.
    pub(crate) fn remove_page(&self, page: u64) {
        self.window.discard(page..page + 1);
        let was = self.resident().remove(&page);
        debug_assert!(was, "page {page} is not in the window");
        self.shared.core.window_pages.fetch_sub(1, Relaxed);
    }

    pub(crate) fn is_leased(&self, page: u64) -> bool {
        self.window.is_leased(page)
    }

    /// Checks whether any page is mapped or leased.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.window.wanted().is_empty()
    }

    /// Returns the number of pages that lie in the window.
    pub(crate) fn pages(&self) -> usize {
        self.resident().len()
    }

    /// Makes the file at least `size` bytes long. The caller holds no latch.
    pub(crate) fn extend(&self, vnode: &Vnode, size: u64) {
        let growing = self.growing();
        loop {
            let old = vnode.size();
            if old >= size {
                return;
            }
            let (page, keep) = (old / PAGE, (old % PAGE) as usize);
            let latch = match keep {
                0 => None,
                _ => vnode.latch(page),
            };
            // A writer to the last page extends the file under that page's latch.
            if vnode.size() != old {
                continue;
            }
            let latch = latch.map(|mut latch| {
                if latch.home() == PageLocation::Window {
                    latch.zero(keep..PAGE_BYTES);
                }
                latch
            });
            vnode.raise(size);
            drop(latch);
            break;
        }
        drop(growing);
        self.window.unpoison();
    }

    /// Un-poisons pages that now lie within the file, so that the next access faults again.
    pub(crate) fn unpoison(&self) {
        // A thread that read the size before it was raised has finished poisoning by now.
        drop(self.growing());
        self.window.unpoison();
    }

    fn growing(&self) -> MutexGuard<'_, ()> {
        self.growing.lock().expect("no panic under this lock")
    }

    fn resident(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.resident.lock().expect("no panic under this lock")
    }
}
