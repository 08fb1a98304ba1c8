//! A vnode that programs have mapped: its window, which of its pages lie there, and what mappings
//! change about its size.
//!
//! ```text
//!   fault: pool or nowhere ──► window          home.rs
//!   unmapped: window ──► pool                  reclaim.rs, by the background
//!   memory is short: window ──► nowhere        reclaim.rs, clean pages not touched of late
//! ```
//!
//! **Invariants.** A page is in one place, which its word says, and goes from one to another under its
//! latch alone. Behind the end of the file no page is in the window, and in the last page what lies
//! behind the end never goes below and never becomes part of the file: a program may have stored
//! there, so it is made zero when the file grows over it.
//!
//! Pages that are mapped do not count against the limit of the cache, as with HP-UX; they are counted
//! beside it. Pages that nobody maps any more go back to the pool.

mod home;
mod reclaim;

pub(crate) use reclaim::Sent;

use crate::core::Below;
use crate::frames::PAGE_BYTES;
use crate::open::OpenFile;
use crate::vnode::Vnode;
use crate::window::{Access, Mapping, Window};
use crate::word::Home;
use block::{Error, ErrorKind, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: u64 = PAGE_BYTES as u64;

/// What a vnode has once it was mapped.
pub(crate) struct Mapped {
    below: Arc<Below>,
    window: Arc<Window>,
    /// The pages that lie in the window; changed under their latches.
    resident: Mutex<BTreeSet<u64>>,
    /// Where the search for pages to evict goes on.
    hand: AtomicU64,
    /// Held to find that a page lies behind the end of the file, and to make the file longer.
    growing: Mutex<()>,
}

impl OpenFile {
    /// Maps bytes of the file, from a multiple of 4096 on, for loads or for loads and stores. What
    /// sessions write is there at once, and what programs store is read and flushed by sessions; the
    /// range may reach behind the end of the file. See [`Mapping`] and [`crate::window`] for what
    /// becomes of errors, and of memory that is passed to system calls.
    ///
    /// Faults have their own cursor for errors of write-behind: [`Mapping::flush`] tells of those since
    /// this call.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::Permission`] if the system has, or allows, no
    /// userfaultfd as windows need it; [`ErrorKind::ReadOnly`] for stores into a volume that is;
    /// [`ErrorKind::Invalid`] for a range that is empty or not aligned; otherwise what the system says
    /// when it has no address space, or no mapping, left.
    pub fn map(&self, bytes: Range<u64>, access: Access) -> Result<Mapping> {
        let vnode = self.vnode();
        let info = &vnode.below().info;
        if access == Access::Store && info.read_only {
            let detail = "a mapping for stores";
            return Err(Error::new(ErrorKind::ReadOnly, &info.name, detail));
        }
        let mapped = Mapped::of(vnode)?;
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        let home = home::MappedFile::new(vnode, pages);
        mapped.window.map(Arc::new(home), bytes, access)
    }
}

impl Mapped {
    /// What the vnode has, made if this is the first time.
    fn of(vnode: &Arc<Vnode>) -> Result<&Mapped> {
        if let Some(mapped) = vnode.mapped() {
            return Ok(mapped);
        }
        let below = vnode.below();
        let window = Window::new(&below.windows()?)?;
        // If two come at once, one of the windows goes again, with no page in it.
        Ok(vnode.become_mapped(Mapped {
            below: Arc::clone(below),
            window,
            resident: Mutex::default(),
            hand: AtomicU64::new(0),
            growing: Mutex::default(),
        }))
    }

    /// A page in the cache's own view of the window, where no fault happens. By the holder of the
    /// page's latch, or of a read of it in the window, while it lies there.
    pub(crate) fn at(&self, page: u64) -> NonNull<u8> {
        NonNull::new(self.window.page(page)).expect("a mapping is not at zero")
    }

    /// Makes memory in the window for a page that is about to lie there.
    pub(crate) fn make_room(&self, page: u64) -> Result<NonNull<u8>> {
        self.window.allocate(page..page + 1)?;
        let new = self.resident().insert(page);
        debug_assert!(new, "page {page} is in the window already");
        self.below.core.window_pages.fetch_add(1, Relaxed);
        Ok(self.at(page))
    }

    /// Takes care that no program stores into the page until it has asked again. `false`: somebody
    /// with a lease may.
    pub(crate) fn seal(&self, page: u64) -> bool {
        self.window.protect(page..page + 1)
    }

    /// Takes the page out of all mappings. `false`: somebody has a lease.
    pub(crate) fn revoke(&self, page: u64) -> bool {
        self.window.revoke(page..page + 1)
    }

    /// The page leaves the window, out of all mappings and leases.
    pub(crate) fn vacate(&self, page: u64) {
        self.window.discard(page..page + 1);
        let was = self.resident().remove(&page);
        debug_assert!(was, "page {page} is not in the window");
        self.below.core.window_pages.fetch_sub(1, Relaxed);
    }

    /// Whether somebody has a lease on the page.
    pub(crate) fn is_leased(&self, page: u64) -> bool {
        self.window.is_leased(page)
    }

    /// Somebody has mapped some of it, or has a lease.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.window.wanted().is_empty()
    }

    /// Pages that lie in the window.
    pub(crate) fn pages(&self) -> usize {
        self.resident().len()
    }

    /// Makes the file at least `size` bytes long. By a caller without a latch.
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
            // Whoever writes into the last page makes the file longer under its latch.
            if vnode.size() != old {
                continue;
            }
            let latch = latch.map(|mut latch| {
                if latch.home() == Home::Window {
                    latch.zero(keep..PAGE_BYTES);
                }
                latch
            });
            vnode.raise(size);
            drop(latch);
            break;
        }
        drop(growing);
        self.window.heal();
    }

    /// Pages lie in the file that did not: who finds them poisoned is to ask again.
    pub(crate) fn heal(&self) {
        // Who looked at the size before it was raised has poisoned by now what lay behind the end.
        drop(self.growing());
        self.window.heal();
    }

    fn growing(&self) -> MutexGuard<'_, ()> {
        self.growing.lock().expect("no panic under this lock")
    }

    fn resident(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.resident.lock().expect("no panic under this lock")
    }
}
