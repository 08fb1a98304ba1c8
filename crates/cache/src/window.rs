//! Windows: file pages as memory that is faulted in, dirtied by plain stores, and revocable.
//!
//! ```text
//!              Home (the index: where page p is, whether it is dirty, its latch)
//!                │ fault(p, access, then)        │ under p's latch:
//!                │                               │ allocate, write, read, protect, revoke, punch
//!    user view A ┤  userfaultfd: missing, minor, │
//!    user view B ┘  write-protected              ▼
//!         └───────────► sparse memfd of the window ◄──── cache view (never blocks)
//! ```
//!
//! A page of a mapped file has one home at a time: a frame of the pool, or its place in the window.
//! The first access through a mapping moves it into the window, where `read` and `write` then use
//! the cache view of the same page, so all users see the same bytes.
//!
//! **Invariants.** Each of these operations happens under the latch of the page, which the
//! [`PageSource`] holds.
//! * A page is writable in a user view only while the home has it as dirty. The dirty mark is set
//!   and the protection removed under one latch.
//! * A page is write-protected or revoked in every user view before it is copied out to be cleaned
//!   or evicted. (Copying first would lose the stores made in between.)
//! * A fault is resolved only under the latch: a protection removed late would apply to the page
//!   that was loaded afterwards.
//!
//! `tests/window_race.rs` violates each rule on purpose and observes lost stores.
//!
//! **Threads.** Faults are served by threads of the cache, so that system calls on a missing page
//! work like loads and stores. A SIGBUS handler instead (userfaultfd's FEATURE_SIGBUS) would avoid
//! the switch to another thread, but it may neither wait for a latch that its own thread holds, nor
//! allocate, nor do I/O; it takes the signal from the program and from the standard library's stack
//! guard; and system calls on a missing page fail. [`Mapping::prefault`] avoids the switch too, and
//! the fault itself.
//!
//! **Errors.** A page that cannot be loaded is poisoned: accessing it raises SIGBUS, as with
//! mmap(2), and does not retry the load. The poison is removed when the page is loaded after all,
//! by [`Mapping::prefault`] or by a fault in another mapping, and by [`Window::unpoison`]. A page
//! wholly behind the end of the file is poisoned on access, too. The signal's code is BUS_ADRERR,
//! or BUS_MCEERR_AR on a kernel with CONFIG_MEMORY_FAILURE, which then logs a hardware error: it
//! knows no other poison.
//!
//! **Unsound, and not prevented:** I/O that pins pages (O_DIRECT, buffers registered with a ring)
//! into a mapping, because a pinned page is written despite the protection; take a [`Lease`] for
//! the duration. A forked child does not have the mappings at all.

mod addresses;
mod handler;
mod lease;
mod mapping;
mod memory;
mod uffd;
mod view;

pub use addresses::covers;
pub use lease::Lease;
pub use mapping::Mapping;

use crate::copy;
use block::{Error, ErrorKind, Result, Waker};
use memory::Memory;
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use uffd::{Faults, PAGE, Uffd};
use view::View;

/// Size of a window page in bytes.
pub const PAGE_BYTES: usize = PAGE;
/// Largest size of a window in pages: 128 TiB, all the address space of a process.
const PAGES_MAX: u64 = 1 << 35;
/// Upper limit of the number of fault-serving threads.
const THREADS_MAX: usize = 256;

/// Requested access to a page or a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    Store,
}

/// Result of a fault for pages that a [`PageSource`] has latched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOutcome {
    /// The bytes are in the window; the first store must fault.
    Clean,
    /// The bytes are in the window and the pages are marked dirty; stores need not fault.
    Dirty,
    /// The pages are not available, or not for this access.
    Failed,
}

/// The index that knows where pages are and latches them; a vnode of the cache.
///
/// **Deadlock.** Under a latch, memory of a mapping must not be accessed: the access may need the
/// same latch. A `write` whose source may be mapped copies it before latching; see [`covers`].
pub trait PageSource: Send + Sync {
    /// Latches `page` exclusively, ensures that its bytes are in the window (by loading it, or
    /// moving it there from the pool), for [`Access::Store`] marks it dirty, then calls `then` with
    /// the outcome, and only after that unlatches.
    ///
    /// * `then` is called for `page` exactly once, and may also be called for neighbors that happen
    ///   to be latched and in the window; ranges are pages, and each range has one outcome.
    /// * On an error, `then` is called with [`FaultOutcome::Failed`] while the outcome cannot
    ///   change: under the latch or, for a page behind the end of the file, while size changes are
    ///   excluded.
    /// * A page is [`FaultOutcome::Dirty`] if it is marked so, whatever the access: its stores then
    ///   need no second fault.
    ///
    /// `keep` is state of the calling thread from its earlier faults. Called from threads of
    /// [`Windows`] and from threads that prefault; may block on I/O. Must not panic: a faulting
    /// thread would block indefinitely, so the process is aborted.
    fn fault(
        &self,
        keep: &mut Keep,
        page: u64,
        access: Access,
        then: &mut dyn FnMut(Range<u64>, FaultOutcome),
    ) -> Result<()>;

    /// Makes the bytes of a range of the file durable, as `fsync` does for the whole file. A page
    /// that [`Window::protect`] cannot protect is written and stays dirty.
    fn flush(&self, bytes: Range<u64>) -> Result<()>;

    /// Reports that a mapping of these pages was removed. No action is required: stored pages are
    /// marked dirty, and pages may stay in the window until they are evicted.
    fn unmapped(&self, pages: Range<u64>);
}

/// State that a [`PageSource`] keeps for a thread between faults, such as a device queue that only
/// this thread uses.
#[derive(Default)]
pub struct Keep(Option<Box<dyn Any>>);

impl Keep {
    /// Returns the kept value, created if there is none of type `T`.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get<T: 'static>(&mut self, make: impl FnOnce() -> Result<T>) -> Result<&mut T> {
        if !self.0.as_ref().is_some_and(|kept| kept.is::<T>()) {
            self.0 = Some(Box::new(make()?));
        }
        let kept = self.0.as_mut().and_then(|kept| kept.downcast_mut());
        Ok(kept.expect("it is of that kind by now"))
    }

    /// Drops the kept value.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

/// Configuration of fault handling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Threads that serve faults, 1 to 256. A thread blocks while it loads a page, so this is also
    /// the number of loads that faults can have in flight.
    pub threads: usize,
    /// Serves only faults of user mode: a system call on a missing page then fails with EFAULT. A
    /// process without the privilege for more gets this mode in any case.
    pub user_faults_only: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            threads: 4,
            user_faults_only: false,
        }
    }
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Faults served.
    pub faults: u64,
    /// Of these, store faults.
    pub stores: u64,
    /// Of these, resolved with poison.
    pub failed: u64,
}

/// The windows of a cache: one userfaultfd and the threads that serve it.
pub struct Windows {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State shared with the fault-serving threads.
struct Shared {
    uffd: Uffd,
    /// Readable once the threads are to exit.
    stop: Waker,
    /// All user views, by start address.
    views: RwLock<BTreeMap<usize, Arc<View>>>,
    faults: AtomicU64,
    stores: AtomicU64,
    failed: AtomicU64,
}

impl Windows {
    /// Opens the userfaultfd and starts the threads.
    ///
    /// # Errors
    /// Unsupported, if the kernel lacks a feature (Linux 6.6 has all of them) or the machine's
    /// pages are not 4 KiB; Permission, if the system forbids userfaultfd; the detail says how to
    /// change it.
    pub fn start(config: &Config) -> Result<Arc<Windows>> {
        let invalid = |kind, detail: String| Err(Error::new(kind, "cache window", detail));
        if !(1..=THREADS_MAX).contains(&config.threads) {
            let detail = format!(
                "{} threads are out of range; use 1 to {THREADS_MAX}",
                config.threads
            );
            return invalid(ErrorKind::Invalid, detail);
        }
        // SAFETY: reads a system constant.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if size != PAGE as libc::c_long {
            let detail = format!("the page size of the machine is {size} bytes, not {PAGE}");
            return invalid(ErrorKind::Unsupported, detail);
        }
        let faults = if config.user_faults_only {
            Faults::UserOnly
        } else {
            Faults::All
        };
        let stop = Waker::new().map_err(|e| Error::from_io("cache window", e))?;
        let shared = Arc::new(Shared {
            uffd: Uffd::open(faults)?,
            stop,
            views: RwLock::default(),
            faults: AtomicU64::new(0),
            stores: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let windows = Arc::new(Windows {
            shared,
            threads: Mutex::default(),
        });
        for _ in 0..config.threads {
            let thread = handler::start(Arc::clone(&windows.shared))
                .map_err(|e| Error::from_io("cache window", e))?;
            let mut threads = windows.threads.lock().expect("no panic under this lock");
            threads.push(thread);
        }
        Ok(windows)
    }

    /// Reports whether system calls on a missing page are served like loads and stores. If not,
    /// they fail with EFAULT unless the page was prefaulted and not evicted since.
    pub fn kernel_faults(&self) -> bool {
        self.shared.uffd.kernel_faults()
    }

    /// Returns the counters.
    pub fn served(&self) -> Served {
        Served {
            faults: self.shared.faults.load(Relaxed),
            stores: self.shared.stores.load(Relaxed),
            failed: self.shared.failed.load(Relaxed),
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.shared.stop.wake();
        let threads = self.threads.get_mut().expect("no panic under this lock");
        for thread in threads.drain(..) {
            // The last reference may have been held by the view that one of these threads just
            // served.
            if thread.thread().id() != std::thread::current().id() {
                thread.join().expect("a handler that panics aborts");
            }
        }
    }
}

/// The window of one file: its memory, and all mappings of it.
///
/// Unless stated otherwise, the methods that take pages are for the [`PageSource`], which calls
/// them under the latches of all these pages. Ranges are page numbers.
pub struct Window {
    windows: Arc<Windows>,
    memory: Memory,
    /// User views. A thread that changes the page tables of a view holds a read lock, so that no
    /// view is unmapped, and its addresses reused, at the same time.
    views: RwLock<Vec<Arc<View>>>,
    leases: Mutex<Vec<(Range<u64>, Access)>>,
    /// Number of leases, readable without the lock.
    leased: AtomicUsize,
    /// A page may be poisoned in a view.
    poisoned: AtomicBool,
}

impl Window {
    /// Creates a window without pages.
    pub fn new(windows: &Arc<Windows>) -> Result<Arc<Window>> {
        Ok(Arc::new(Window {
            windows: Arc::clone(windows),
            memory: Memory::new().map_err(|e| Error::from_io("cache window", e))?,
            views: RwLock::default(),
            leases: Mutex::default(),
            leased: AtomicUsize::new(0),
            poisoned: AtomicBool::new(false),
        }))
    }

    /// Allocates memory for pages: zeros, or their existing contents. Must precede writing to them.
    ///
    /// # Errors
    /// Out of memory, or the pages lie outside every range that was ever mapped.
    pub fn allocate(&self, pages: Range<u64>) -> Result<()> {
        self.memory.allocate(pages.clone()).map_err(|e| {
            let detail = format!(
                "cannot allocate memory for pages {} to {}",
                pages.start, pages.end
            );
            Error::from_io("cache window", e).detail(detail)
        })
    }

    /// Returns the address of a page in the cache's own view: 4096 bytes that never fault to a
    /// handler. Valid while the page is latched or pinned; programs may store to it at any time, so
    /// no reference may be made of it. An optimistic reader must not use it: accessing a page that
    /// was punched allocates it again.
    ///
    /// # Panics
    /// When no page of its segment was ever allocated.
    pub fn page(&self, page: u64) -> *mut u8 {
        self.memory.page(page)
    }

    /// Copies bytes out of an allocated page, starting at byte `at`.
    pub fn read(&self, page: u64, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= PAGE, "a copy stays in its page");
        // SAFETY: the page is mapped in the cache view while the window lives; `out` is borrowed.
        unsafe { copy::out_of_page(self.page(page).add(at), out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes into an allocated page, starting at byte `at`. `data` must not be mapped memory
    /// of a window (see [`PageSource`]).
    pub fn write(&self, page: u64, at: usize, data: &[u8]) {
        assert!(at + data.len() <= PAGE, "a copy stays in its page");
        // SAFETY: as above, in the other direction.
        unsafe { copy::into_page(data.as_ptr(), self.page(page).add(at), data.len()) }
    }

    /// Zeroes an allocated page from byte `at` on: the part behind a new end of the file.
    pub fn zero(&self, page: u64, at: usize) {
        assert!(at <= PAGE, "the tail of a page begins in it");
        // SAFETY: as above.
        unsafe { copy::zero_page(self.page(page).add(at), PAGE - at) }
    }

    /// Makes the next store to each page fault, in every mapping. After this, and before the latch
    /// is released, the pages may be copied out and marked clean.
    ///
    /// Returns `false` if a store lease covers one of them: its holder may store at any time. They
    /// may be written back in their current state, but stay dirty.
    #[must_use]
    pub fn protect(&self, pages: Range<u64>) -> bool {
        if self.holds(&pages, Access::Store) {
            return false;
        }
        for view in self.views.read().expect("no panic under this lock").iter() {
            view.protect(&pages);
        }
        true
    }

    /// Removes the pages from every mapping: the next access faults. After this, and before the
    /// latch is released, they may be copied out and [`Window::punch`]ed.
    ///
    /// Returns `false` if a lease covers one of them: they stay where they are.
    #[must_use]
    pub fn revoke(&self, pages: Range<u64>) -> bool {
        if self.holds(&pages, Access::Read) {
            return false;
        }
        self.unmap(&pages);
        true
    }

    /// Releases the memory of revoked pages to the system. One call for a run of 64 pages costs a
    /// quarter, per page, of single calls.
    pub fn punch(&self, pages: Range<u64>) {
        self.memory.punch(pages).expect("a hole in our own memfd");
    }

    /// Removes pages from every mapping and discards their contents, leases or not: the file was
    /// truncated. A lease reads zeros there from now on. Those of these pages that lie in the
    /// window must be latched.
    pub fn discard(&self, pages: Range<u64>) {
        self.unmap(&pages);
        self.punch(pages);
    }

    /// Removes all poison, so that accessing a page calls the [`PageSource`] again. Called without
    /// latches: after the file has grown, and when a device works again.
    pub fn unpoison(&self) {
        if !self.poisoned.load(Relaxed) {
            return;
        }
        // The write lock excludes concurrent poisoning.
        let views = self.views.write().expect("no panic under this lock");
        if self.poisoned.swap(false, Relaxed) {
            for view in views.iter() {
                view.unmap(&(0..PAGES_MAX));
            }
        }
    }

    /// Returns the pages that are currently mapped or leased, as ranges sorted by their start.
    pub fn wanted(&self) -> Vec<Range<u64>> {
        let views = self.views.read().expect("no panic under this lock");
        let mut wanted: Vec<Range<u64>> = views.iter().map(|view| view.pages.clone()).collect();
        drop(views);
        let leases = self.leases.lock().expect("no panic under this lock");
        wanted.extend(leases.iter().map(|(pages, _)| pages.clone()));
        wanted.sort_unstable_by_key(|pages| pages.start);
        wanted
    }

    /// Checks whether a page is leased.
    pub fn is_leased(&self, page: u64) -> bool {
        self.holds(&(page..page + 1), Access::Read)
    }

    /// Reports whether the system refused to keep some of this window's pages out of swap space.
    pub fn swappable(&self) -> bool {
        self.memory.swappable()
    }

    fn unmap(&self, pages: &Range<u64>) {
        for view in self.views.read().expect("no panic under this lock").iter() {
            view.unmap(pages);
        }
    }

    /// Checks whether a lease for at least this access covers any of the pages.
    ///
    /// A lease is entered here first and latches its pages afterwards. A latch holder thus either
    /// sees the lease, or is done with the page before the lease accesses it.
    fn holds(&self, pages: &Range<u64>, access: Access) -> bool {
        if self.leased.load(Relaxed) == 0 {
            return false;
        }
        let leases = self.leases.lock().expect("no panic under this lock");
        leases.iter().any(|(held, theirs)| {
            let strong = access == Access::Read || *theirs == Access::Store;
            strong && held.start < pages.end && pages.start < held.end
        })
    }
}
