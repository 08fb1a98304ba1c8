//! Mapping a file, and handling a fault in a mapping: the page is loaded, moved into the window, and
//! mapped, under its latch.

use crate::frames::PAGE_BYTES;
use crate::leaf::LeafNo;
use crate::mapped::Mapped;
use crate::open::OpenFile;
use crate::session::Session;
use crate::tree::{OpenState, Vnode};
use crate::window::{Access, FaultOutcome, Keep, Mapping, PageSource};
use block::{Error, ErrorKind, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const PAGE: u64 = PAGE_BYTES as u64;

/// Pages that are loaded and mapped together: 64 KiB, aligned to that size.
const CLUSTER: u64 = 16;

type Then<'a> = dyn FnMut(Range<u64>, FaultOutcome) + 'a;

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
        let mapped = mapping_state(vnode)?;
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        let home = MappedFile::new(vnode, pages);
        mapped.window.map(Arc::new(home), bytes, access)
    }
}

/// Returns the mapping state of the vnode, creating it on first use.
fn mapping_state(vnode: &Arc<Vnode>) -> Result<&Mapped> {
    if let Some(mapped) = vnode.mapped() {
        return Ok(mapped);
    }
    let shared = vnode.shared();
    if shared.core.pool.surviving.is_some() {
        let detail = "pages that programs have mapped would not survive this process";
        return Err(Error::new(ErrorKind::Invalid, &shared.info.name, detail));
    }
    // Of two concurrent callers, one drops its new window, which has no page in it.
    let mapped = Mapped::new(&shared.windows()?, &shared.core.windows)?;
    Ok(vnode.become_mapped(mapped))
}

/// A file as the home of one mapping.
struct MappedFile {
    /// The mapping's own open file, which reports errors.
    open: Arc<OpenState>,
    /// The mapped range.
    pages: Range<u64>,
    /// The mapping was removed.
    ended: AtomicBool,
}

impl MappedFile {
    fn new(vnode: &Arc<Vnode>, pages: Range<u64>) -> MappedFile {
        MappedFile {
            open: OpenState::new(Arc::clone(vnode)),
            pages,
            ended: AtomicBool::new(false),
        }
    }

    fn vnode(&self) -> &Arc<Vnode> {
        &self.open.vnode
    }

    fn error(&self, kind: ErrorKind, detail: String) -> Error {
        Error::new(kind, &self.vnode().shared().info.name, detail)
    }

    /// Computes the pages to load together with this one.
    fn cluster(&self, page: u64) -> Range<u64> {
        let attributes = self.vnode().attributes();
        if attributes.no_read_ahead || attributes.no_cache {
            return page..page + 1;
        }
        let first = page / CLUSTER * CLUSTER;
        let end = (first + CLUSTER).min(self.vnode().size().div_ceil(PAGE));
        // A concurrent truncation may have moved the end before the page.
        first.max(self.pages.start)..end.min(self.pages.end).max(page + 1)
    }

    /// Loads a page into the cache.
    fn load(&self, keep: &mut Keep, page: u64) -> Result<()> {
        let vnode = self.vnode();
        let below = vnode.shared();
        let open = OpenFile::new(Arc::clone(vnode));
        let session = keep.get(|| Session::open(Arc::clone(below)))?;
        let cluster = self.cluster(page);
        let mut result = session.load_pages(&open, cluster.clone());
        if result.is_err() && cluster.end - cluster.start > 1 {
            // The error may concern a neighbor, so this page is tried alone.
            result = session.load_pages(&open, page..page + 1);
        }
        if result.is_err() {
            // The session's queue may have failed; the next fault opens a new session.
            keep.clear();
        }
        result
    }

    /// Notifies the pager that a clean page becomes dirty.
    fn announce(&self, page: u64) -> Result<()> {
        let below = self.vnode().shared();
        let bytes = page * PAGE..(page + 1) * PAGE;
        below.pager.will_write(self.vnode().file(), bytes)
    }

    /// Fails the fault if the page lies behind the end.
    fn behind_end(&self, page: u64, then: &mut Then) -> Result<()> {
        let mapped = self.vnode().mapped().expect("a mapping of it exists");
        if page * PAGE < self.vnode().size() {
            return Ok(());
        }
        let _still = mapped.growing();
        let size = self.vnode().size();
        if page * PAGE < size {
            return Ok(());
        }
        then(page..page + 1, FaultOutcome::Failed);
        let detail = format!("page {page} is beyond the end of the file ({size} bytes)");
        Err(self.error(ErrorKind::OutOfRange, detail))
    }

    /// Maps the resident pages of the cluster, so that they do not fault.
    fn map_around(&self, page: u64, then: &mut Then) {
        for near in self.cluster(page).filter(|near| *near != page) {
            if let Some(mut latch) = self.vnode().latch(near)
                && latch.move_to_window().is_ok()
            {
                then(near..near + 1, outcome(latch.is_dirty()));
            }
        }
    }
}

impl PageSource for MappedFile {
    fn fault(&self, keep: &mut Keep, page: u64, access: Access, then: &mut Then) -> Result<()> {
        let vnode = self.vnode();
        let only = page..page + 1;
        let (mut announced, mut refused, mut failed) = (false, None, None);
        loop {
            if vnode.is_dead() {
                then(only, FaultOutcome::Failed);
                let detail = "the file was removed".to_owned();
                return Err(self.error(ErrorKind::NotFound, detail));
            }
            self.behind_end(page, then)?;
            if let Some(mut latch) = vnode.latch(page) {
                if access == Access::Store && !latch.is_dirty() && !announced {
                    drop(latch);
                    announced = true;
                    refused = self.announce(page).err();
                    continue;
                }
                let there = match refused.take() {
                    Some(error) if !latch.is_dirty() => Err(error),
                    _ => latch.move_to_window(),
                };
                if let Err(error) = there {
                    then(only, FaultOutcome::Failed);
                    return Err(error);
                }
                if access == Access::Store {
                    latch.mark_dirty();
                }
                then(only, outcome(latch.is_dirty()));
                break;
            }
            if let Some(error) = failed.take() {
                if vnode.while_absent(page, &mut || then(only.clone(), FaultOutcome::Failed)) {
                    return Err(error);
                }
                continue;
            }
            failed = self.load(keep, page).err();
        }
        vnode.touch(page);
        if access == Access::Read {
            self.map_around(page, then);
        }
        if self.ended.load(SeqCst) {
            // The mapping was removed during the fault, possibly before these pages entered the
            // window.
            vnode.shared().background.unmapped(vnode.number());
        }
        Ok(())
    }

    fn flush(&self, bytes: Range<u64>) -> Result<()> {
        let mut session = Session::open(Arc::clone(self.vnode().shared()))?;
        session.flush_range(&self.open, bytes)
    }

    fn unmapped(&self, _: Range<u64>) {
        let vnode = self.vnode();
        self.ended.store(true, SeqCst);
        vnode.shared().background.unmapped(vnode.number());
    }
}

fn outcome(dirty: bool) -> FaultOutcome {
    if dirty {
        FaultOutcome::Dirty
    } else {
        FaultOutcome::Clean
    }
}

impl Vnode {
    /// Calls `act` while a page is absent and cannot be loaded. `false`: it is resident, or being
    /// loaded.
    fn while_absent(&self, page: u64, act: &mut dyn FnMut()) -> bool {
        let (number, index) = LeafNo::of_page(page);
        let at = self.index().acquire(number);
        let word = self.index().leaf(at).word(index);
        // Occupies the word like a load; its frame number is never used.
        let absent = word.begin_load(word.load(), 0);
        if absent {
            act();
            if word.abort_load() {
                let address = std::ptr::from_ref(word) as usize;
                self.shared().core.loads.of(address).wake_all();
            }
        }
        self.index().release(number, at);
        absent
    }

    /// Records a use of a page.
    fn touch(&self, page: u64) {
        if let Some((at, index)) = self.find_exact(page) {
            let word = self.index().leaf(at).word(index);
            word.touch(word.load());
        }
    }
}
