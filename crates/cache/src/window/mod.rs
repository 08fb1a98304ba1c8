//! Windows: file pages as memory that faults in, is dirtied by plain stores, and can be taken away.
//!
//! ```text
//!                 Home (the index: who has page p, is it dirty, its latch)
//!                   │ fault(p, access, then)          │ under p's latch:
//!                   │                                 │ allocate, write, read, protect, revoke, punch
//!    user view A ───┤  userfaultfd: missing, minor,   │
//!    user view B ───┘  write-protected                ▼
//!         └───────────────► sparse memfd of the window ◄──── cache view (never waits)
//! ```
//!
//! A page of a mapped file has one home at a time: a frame of the pool, or its place in the window.
//! The first touch through a mapping moves it into the window, and there `read` and `write` of the
//! same page go on through the cache view, so all see the same bytes.
//!
//! **Invariants.** Everything below happens under the latch of the page, which the [`Home`] holds.
//! * A page is writable in a user view only while the home has it as dirty. The dirty mark and the
//!   lifting of the protection happen under one latch.
//! * Nobody copies a page out to clean or evict it before it is protected or revoked in every user
//!   view. (Look first and take away afterwards loses the stores between.)
//! * Nobody resolves a fault without the latch: a protection lifted late would hit the page that was
//!   loaded after.
//!
//! `tests/window_race.rs` breaks each of the rules on purpose and sees stores lost.
//!
//! **Threads.** Faults are served by threads of the cache, so that system calls on a missing page
//! work like loads and stores. A SIGBUS handler instead (userfaultfd's FEATURE_SIGBUS) would save
//! the way to another thread, but it may neither wait for a latch that its own thread holds, nor
//! allocate, nor do I/O, it takes the signal from the program and from the standard library's stack
//! guard, and system calls on a missing page fail. [`Mapping::prefault`] saves the same way, and more.
//!
//! **Errors.** A page that cannot be had is poisoned: touching it is a SIGBUS, as with mmap(2), and
//! does not ask again. The poison goes when the page is had after all, by [`Mapping::prefault`] or by a
//! fault in another mapping, and with [`Window::heal`]. Every page wholly behind the end of the file
//! is poisoned when it is touched, too. The signal's code is BUS_ADRERR, or BUS_MCEERR_AR on a kernel
//! with CONFIG_MEMORY_FAILURE, whose log then speaks of a hardware error: it knows no other poison.
//!
//! **Not sound, and not prevented:** I/O that pins pages (O_DIRECT, buffers registered with a ring)
//! into a mapping, because a pinned page is written behind the protection; take a [`Lease`] for the
//! time. A forked child does not have the mappings at all.

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
use block::{Error, ErrorKind, Result};
use memory::Memory;
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use uffd::{PAGE, Uffd};
use view::View;

/// Bytes of a page of a window.
pub const PAGE_BYTES: usize = PAGE;
/// Pages a window reaches: 128 TiB, all the address space of a process.
const PAGES_MAX: u64 = 1 << 35;
/// Most threads that serve faults.
const THREADS_MAX: usize = 256;

/// What somebody wants of a page, or of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    Store,
}

/// What a [`Home`] found about pages that it has latched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Their bytes are in the window; the first store is to be reported.
    Clean,
    /// Their bytes are in the window and they are marked dirty; stores need no report.
    Dirty,
    /// They cannot be had, or not for this access.
    Failed,
}

/// The index that knows where pages are and latches them; a vnode of the cache.
///
/// **Deadlock.** Under a latch no memory of a mapping may be touched: the touch may need the same
/// latch. A `write` whose source may be mapped copies it before it latches; [`covers`] says when.
pub trait Home: Send + Sync {
    /// Latches `page` exclusively, makes its bytes be in the window (loads it, or moves it there out
    /// of the pool), for [`Access::Store`] marks it dirty, then calls `then` with the outcome, and only
    /// after that unlatches.
    ///
    /// * `then` is called for `page` exactly once, and may be called for neighbours that happen to be
    ///   latched and in the window as well; ranges are pages, and one range has one outcome.
    /// * With an error, `then` is called with [`Outcome::Failed`] while the latch, or for the end of
    ///   the file whatever excludes a change of size, still keeps the answer true.
    /// * A page is [`Outcome::Dirty`] if it is marked so, whatever the access: then its stores need not
    ///   fault once more.
    ///
    /// `keep` is what the calling thread has from its faults before. Called from threads of [`Windows`]
    /// and from threads that prefault; it may wait for I/O. It must
    /// not panic: a thread would wait for ever, so the process is aborted.
    fn fault(
        &self,
        keep: &mut Keep,
        page: u64,
        access: Access,
        then: &mut dyn FnMut(Range<u64>, Outcome),
    ) -> Result<()>;

    /// Makes the bytes of a range of the file durable, as `fsync` does for all of it. A page that
    /// [`Window::protect`] cannot protect is written and stays dirty.
    fn flush(&self, bytes: Range<u64>) -> Result<()>;

    /// A mapping of these pages is gone. Nothing has to happen: what was stored is marked dirty, and
    /// pages may stay in the window until they are evicted.
    fn unmapped(&self, pages: Range<u64>);
}

/// What a [`Home`] keeps for a thread from one fault to the next, such as a queue to the device that is
/// for that thread alone.
#[derive(Default)]
pub struct Keep(Option<Box<dyn Any>>);

impl Keep {
    /// What is kept, made if there is nothing or something of another kind.
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

    /// Forgets it.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

/// How windows are to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Threads that serve faults, 1 to 256. One that loads a page waits for it, so this is the number
    /// of loads that faults have in flight.
    pub threads: usize,
    /// Serve faults of user mode only: a system call on a missing page then fails with EFAULT. This
    /// is what a process gets anyway whom the system does not trust with more.
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

/// What has passed since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Faults answered.
    pub faults: u64,
    /// Of these, first stores.
    pub stores: u64,
    /// Of these, answered with poison.
    pub failed: u64,
}

/// The windows of a cache: one userfaultfd and the threads that serve it.
pub struct Windows {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the threads see of it.
struct Shared {
    uffd: Uffd,
    /// Readable once the threads are to end.
    stop: OwnedFd,
    /// All user views, by their first address.
    views: RwLock<BTreeMap<usize, Arc<View>>>,
    faults: AtomicU64,
    stores: AtomicU64,
    failed: AtomicU64,
}

impl Windows {
    /// Opens the userfaultfd and starts the threads.
    ///
    /// # Errors
    /// Unsupported, if the kernel lacks something (it has all since Linux 6.6) or the machine's pages
    /// are not 4 KiB; Permission, if the system forbids userfaultfd; the detail says how to change it.
    pub fn start(config: &Config) -> Result<Arc<Windows>> {
        let invalid = |kind, detail: String| Err(Error::new(kind, "cache window", detail));
        if !(1..=THREADS_MAX).contains(&config.threads) {
            let detail = format!("{} threads; 1 to {THREADS_MAX} may be", config.threads);
            return invalid(ErrorKind::Invalid, detail);
        }
        // SAFETY: asks the system for a constant.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if size != PAGE as libc::c_long {
            let detail = format!("the machine's pages have {size} bytes and not {PAGE}");
            return invalid(ErrorKind::Unsupported, detail);
        }
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(|e| Error::from_io("cache window", e.into()))?;
        let shared = Arc::new(Shared {
            uffd: Uffd::open(config.user_faults_only)?,
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

    /// Whether system calls on a missing page are served like loads and stores. If not, they fail
    /// with EFAULT unless the page was prefaulted and not evicted since.
    pub fn kernel_faults(&self) -> bool {
        self.shared.uffd.kernel_faults()
    }

    /// What has passed so far.
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
        rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes()).expect("an eventfd takes a one");
        let threads = self.threads.get_mut().expect("no panic under this lock");
        for thread in threads.drain(..) {
            // The last reference may have been the view that a thread has just served.
            if thread.thread().id() != std::thread::current().id() {
                thread.join().expect("a handler that panics aborts");
            }
        }
    }
}

/// The window of one file: its memory, and all mappings of it.
///
/// The methods that take pages are for the [`Home`], which calls them under the latches of all these
/// pages; they say where that is not needed. Ranges are page numbers.
pub struct Window {
    windows: Arc<Windows>,
    memory: Memory,
    /// Its user views. Whoever changes what a view maps holds this for reading, so that none is
    /// unmapped, and its addresses given to somebody else, meanwhile.
    views: RwLock<Vec<Arc<View>>>,
    leases: Mutex<Vec<(Range<u64>, Access)>>,
    /// Leases there are, to be asked without the lock.
    leased: AtomicUsize,
    /// Some page may be poisoned in some view.
    poisoned: AtomicBool,
}

impl Window {
    /// A window without pages.
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

    /// Gives pages memory: zeros, or what they hold already. Call it before bytes are put there.
    ///
    /// # Errors
    /// No memory is left, or the pages lie outside every range that was ever mapped.
    pub fn allocate(&self, pages: Range<u64>) -> Result<()> {
        self.memory.allocate(pages.clone()).map_err(|e| {
            let detail = format!("memory for pages {} to {}", pages.start, pages.end);
            Error::from_io("cache window", e).detail(detail)
        })
    }

    /// The cache's own view of a page: 4096 bytes that never fault to a handler. Good while the page
    /// is latched or pinned; programs may store to it at any time, so no reference may be made of it.
    /// An optimistic reader must not use it: touching a page that was punched allocates it again.
    ///
    /// # Panics
    /// When nothing near the page was ever allocated.
    pub fn page(&self, page: u64) -> *mut u8 {
        self.memory.page(page)
    }

    /// Copies bytes of an allocated page out, from `at` in the page on.
    pub fn read(&self, page: u64, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= PAGE, "a copy stays in its page");
        // SAFETY: the page is mapped in the cache view while the window lives; `out` is borrowed.
        unsafe { copy::out_of_page(self.page(page).add(at), out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes into an allocated page, from `at` in the page on. `data` must not be mapped memory
    /// of a window (see [`Home`]).
    pub fn write(&self, page: u64, at: usize, data: &[u8]) {
        assert!(at + data.len() <= PAGE, "a copy stays in its page");
        // SAFETY: as above, the other way.
        unsafe { copy::into_page(data.as_ptr(), self.page(page).add(at), data.len()) }
    }

    /// Makes an allocated page zero from byte `at` on: what lies behind the new end of the file.
    pub fn zero(&self, page: u64, at: usize) {
        assert!(at <= PAGE, "the tail of a page begins in it");
        // SAFETY: as above.
        unsafe { copy::zero_page(self.page(page).add(at), PAGE - at) }
    }

    /// Makes the next store into each page fault, in every mapping; after this, and before the latch
    /// is given back, what the pages hold may be copied out and the pages called clean.
    ///
    /// False if a lease for stores holds one of them: somebody may store at any time. They may be
    /// written out as they are, but stay dirty.
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

    /// Takes the pages out of every mapping: the next touch faults. After this, and before the latch
    /// is given back, they may be copied out and [`Window::punch`]ed.
    ///
    /// False if a lease holds one of them: they stay where they are.
    #[must_use]
    pub fn revoke(&self, pages: Range<u64>) -> bool {
        if self.holds(&pages, Access::Read) {
            return false;
        }
        self.unmap(&pages);
        true
    }

    /// Gives the memory of revoked pages back to the system. One call for a run of 64 pages costs a
    /// quarter, for each page, of what single calls cost.
    pub fn punch(&self, pages: Range<u64>) {
        self.memory.punch(pages).expect("a hole in our own memfd");
    }

    /// Takes pages out of every mapping and forgets what they hold, leases or not: the file was cut
    /// short. A lease sees zeros there from now on. Of these pages, those in the window are latched.
    pub fn discard(&self, pages: Range<u64>) {
        self.unmap(&pages);
        self.punch(pages);
    }

    /// Takes all poison away, so that touching a page asks the [`Home`] again. Called without latches:
    /// after the file has grown, and when a device works again.
    pub fn heal(&self) {
        if !self.poisoned.load(Relaxed) {
            return;
        }
        // For writing, so that no poison is on its way.
        let views = self.views.write().expect("no panic under this lock");
        if self.poisoned.swap(false, Relaxed) {
            for view in views.iter() {
                view.unmap(&(0..PAGES_MAX));
            }
        }
    }

    /// Pages that are in some mapping or under a lease at the moment, as ranges in order of their
    /// beginnings.
    pub fn wanted(&self) -> Vec<Range<u64>> {
        let views = self.views.read().expect("no panic under this lock");
        let mut wanted: Vec<Range<u64>> = views.iter().map(|view| view.pages.clone()).collect();
        drop(views);
        let leases = self.leases.lock().expect("no panic under this lock");
        wanted.extend(leases.iter().map(|(pages, _)| pages.clone()));
        wanted.sort_unstable_by_key(|pages| pages.start);
        wanted
    }

    /// Whether a lease holds a page.
    pub fn is_leased(&self, page: u64) -> bool {
        self.holds(&(page..page + 1), Access::Read)
    }

    /// Whether the system refused to keep some of this window's pages out of swap space.
    pub fn swappable(&self) -> bool {
        self.memory.swappable()
    }

    fn unmap(&self, pages: &Range<u64>) {
        for view in self.views.read().expect("no panic under this lock").iter() {
            view.unmap(pages);
        }
    }

    /// Whether a lease for at least this access lies on any of the pages.
    ///
    /// A lease is entered here first and latches its pages afterwards. Whoever holds a latch thus
    /// either sees the lease, or is done with the page before the lease looks at it.
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
