//! Exclusive access to a page by one thread ([`Latch`]), and shared holds on pages ([`PageRef`]).
//!
//! **Invariant:** a latch is released before anything that may block: no I/O, no other page's
//! latch, and no notification happens under it.

use crate::copy;
use crate::frames::{PAGE_BYTES, Pool};
use crate::leaf::{Leaf, LeafAt, LeafNo};
use crate::loan::Loan;
use crate::mapped::Mapped;
use crate::page_state::{PageLocation, PageState, StateSnapshot};
use crate::policy::{Entry, FrameNo};
use crate::stats::EvictReason;
use crate::tree::Vnode;
use block::Result;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Latch of a resident page. Dropping it releases the page, with a new version if it changed.
pub(crate) struct Latch<'a> {
    vnode: &'a Vnode,
    leaf: &'a Leaf,
    at: LeafAt,
    page: u64,
    snap: StateSnapshot,
    home: PageLocation,
    changed: bool,
}

/// Treatment of the content of a page that moves to another frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// It is copied.
    Kept,
    /// It is not copied, because the caller overwrites the whole page.
    Replaced,
}

/// Polls of a word that together take as long as a copy; after that, the other thread may have been
/// preempted, and yielding the CPU is better.
const SPINS: u32 = 64;

/// Backs off briefly while another thread holds a latch.
pub(crate) fn pause(turn: &mut u32) {
    *turn += 1;
    if *turn < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

impl<'a> Latch<'a> {
    /// Takes the latch of a page, waiting for other holders. `None`: the page is absent or being
    /// loaded, or the leaf has been reassigned.
    pub fn take(vnode: &'a Vnode, at: LeafAt, index: u32, page: u64) -> Option<Latch<'a>> {
        let leaf = vnode.index().leaf(at);
        let word = leaf.word(index);
        let pool = &vnode.shared().core.pool;
        let mut turn = 0;
        loop {
            let snap = word.load();
            if snap.is_exclusive() {
                pause(&mut turn);
                continue;
            }
            if !snap.is_resident() {
                return None;
            }
            let frame = FrameNo(if snap.in_window() { 0 } else { snap.frame() });
            let free = || pool.put([frame]);
            let Some(latched) = word.latch(snap, pool.holds(frame), free) else {
                word.want(snap);
                pause(&mut turn);
                continue;
            };
            if !vnode.owns(leaf, page) {
                word.unlatch(latched);
                return None;
            }
            return Some(Latch {
                vnode,
                leaf,
                at,
                page,
                snap: latched,
                home: snap.home(),
                changed: false,
            });
        }
    }

    pub fn home(&self) -> PageLocation {
        self.home
    }

    /// Returns the address of the page's bytes. To change them, call [`Latch::make_private`] first.
    pub fn data(&self) -> NonNull<u8> {
        match self.home {
            PageLocation::Frame(frame) => self.pool().at(FrameNo(frame)),
            PageLocation::Window => self.mapped().at(self.page),
        }
    }

    /// Checks whether the page was used since the last call, and clears the use marks.
    pub fn take_touches(&mut self) -> bool {
        let touched = self.snap.frequency() > 0;
        self.snap = self.snap.untouched();
        touched
    }

    pub fn is_dirty(&self) -> bool {
        self.leaf.dirty() & self.bit() != 0
    }

    pub fn is_in_writeback(&self) -> bool {
        self.leaf.writeback() & self.bit() != 0
    }

    pub fn is_leased(&self) -> bool {
        self.home == PageLocation::Window && self.mapped().is_leased(self.page)
    }

    /// Checks whether the dirty data in the page's leaf has reached the file's maximum age.
    pub fn is_due(&self) -> bool {
        let since = self.leaf.dirty_since_ms();
        since + self.vnode.sync_ms() <= self.vnode.shared().core.now_ms()
    }

    /// Checks whether the frame of the page is held.
    pub fn is_held(&self) -> bool {
        match self.home {
            PageLocation::Frame(frame) => self.pool().holds(FrameNo(frame)).any(),
            PageLocation::Window => false,
        }
    }

    /// Makes the page's bytes writable for the latch holder: if the frame is held, moves the page
    /// to one of `spare`. Returns whether the page moved, or `None` if there is no spare frame.
    #[must_use]
    pub fn make_private(&mut self, spare: &mut Vec<FrameNo>, content: Content) -> Option<bool> {
        self.changed = true;
        if !self.is_held() {
            return Some(false);
        }
        let Some(to) = spare.pop() else {
            self.changed = false;
            return None;
        };
        self.move_to(to, content);
        Some(true)
    }

    /// Zeroes bytes of the page, which must be private to the holder.
    pub fn zero(&mut self, bytes: Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= PAGE_BYTES);
        self.changed = true;
        // SAFETY: inside the page, which is latched and not held.
        unsafe { copy::zero_page(self.data().as_ptr().add(bytes.start), bytes.len()) };
    }

    /// Marks the page dirty after the holder has written `bytes`. The bytes may extend the file if
    /// the page itself begins within or at its end. Returns whether the page began exactly at the
    /// old end.
    pub fn written(&mut self, bytes: Range<usize>) -> bool {
        let first = self.page * PAGE_BYTES as u64;
        let (old, end) = (self.vnode.size(), first + bytes.end as u64);
        self.mark_dirty();
        if old >= end {
            return false;
        }
        debug_assert!(first <= old, "the file reaches to the page");
        let old_end = (old - first) as usize;
        if self.home == PageLocation::Window && old_end < bytes.start {
            self.zero(old_end..bytes.start);
        }
        self.vnode.raise(end);
        old == first
    }

    /// Moves the page from its frame to another.
    pub fn move_to(&mut self, to: FrameNo, content: Content) {
        let PageLocation::Frame(from) = self.home else {
            unreachable!("who moves a page between frames has found it in one");
        };
        // A page that survives the process is whole, also while the caller overwrites it.
        let survives = self.is_dirty() && self.pool().surviving.is_some();
        if content == Content::Kept || survives {
            self.copy_to(to);
        }
        self.pool().moved(FrameNo(from), to);
        self.set_location(PageLocation::Frame(to.0));
        if survives {
            self.vnode.list(self.page, self.home);
            self.pool().unlist(FrameNo(from));
        }
        self.pool().abandon(FrameNo(from));
    }

    /// Moves the page from its frame to its place in the window, unless it is already in the
    /// window.
    ///
    /// # Errors
    /// Out of memory; the page stays where it was.
    pub fn move_to_window(&mut self) -> Result<()> {
        let PageLocation::Frame(from) = self.home else {
            return Ok(());
        };
        let to = self.mapped().make_room(self.page)?;
        // SAFETY: the latch keeps others from changing the page, its place in the window is not
        // mapped yet, and both are pages.
        unsafe { copy::between_pages(self.data().as_ptr(), to.as_ptr(), PAGE_BYTES) };
        self.pool().removed(FrameNo(from));
        self.set_location(PageLocation::Window);
        // From here on programs use the page without updating its word.
        self.note_use();
        self.pool().abandon(FrameNo(from));
        Ok(())
    }

    /// Moves the page from the window to a frame. `false`: a lease keeps it in the window.
    #[must_use]
    pub fn move_to_pool(&mut self, to: FrameNo) -> bool {
        debug_assert!(self.home == PageLocation::Window);
        // First revoke the programs' access, then copy: a store between the two would be lost.
        if !self.mapped().revoke(self.page) {
            return false;
        }
        self.copy_to(to);
        self.zero_beyond_end(to);
        self.mapped().remove_page(self.page);
        self.pool().assign(to, self.at, self.index());
        let key = self.leaf.key(self.index());
        self.pool().inserted([(to, key)], Entry::Read);
        self.set_location(PageLocation::Frame(to.0));
        true
    }

    /// Records a use of the page.
    pub(crate) fn note_use(&mut self) {
        if self.snap.is_ahead() {
            self.vnode
                .opens
                .closed
                .read_ahead_used
                .fetch_add(1, Relaxed);
        }
        self.snap = self.snap.used();
    }

    /// Records that the page has changed and must be written back.
    pub fn mark_dirty(&mut self) {
        self.changed = true;
        self.vnode.mark_dirty(self.at, self.page, self.home);
    }

    /// Starts write-back of a dirty page: marks it clean and holds the returned frame until
    /// [`Latch::end_writeback`]. A page in a window is write-protected and copied to one of
    /// `spare`. `None`: the page is clean or already under write-back, or there is no spare frame.
    pub fn begin_writeback(&mut self, spare: &mut Vec<FrameNo>) -> Option<FrameNo> {
        if !self.is_dirty() || self.is_in_writeback() {
            return None;
        }
        let frame = match self.home {
            PageLocation::Frame(frame) => FrameNo(frame),
            PageLocation::Window => spare.pop()?,
        };
        self.pool().holds(frame).add(1);
        self.leaf.set_writeback(self.index());
        if self.home == PageLocation::Window {
            let held = !self.pool().holds(frame).orphan();
            debug_assert!(held, "it is held by the line above");
            let sealed = self.mapped().seal(self.page);
            self.copy_to(frame);
            self.zero_beyond_end(frame);
            if !sealed {
                // The holder of a lease may store at any time: the page stays dirty, with a new
                // age.
                self.leaf.renew_dirty(self.vnode.shared().core.now_ms());
                return Some(frame);
            }
        }
        self.leaf.clear_dirty(self.index());
        Some(frame)
    }

    /// Ends write-back from `frame`. If it failed (`good` is false), the page is dirty again.
    pub fn end_writeback(&mut self, frame: FrameNo, good: bool) {
        if !good {
            self.vnode.mark_dirty(self.at, self.page, self.home);
        }
        // If the page has moved on, its new frame is dirty, and listed.
        if good || self.home != PageLocation::Frame(frame.0) {
            self.pool().unlist(frame);
        }
        self.leaf.clear_writeback(self.index());
        if !self.is_dirty() {
            self.vnode.count_clean();
        }
    }

    /// Drops the page, dirty or not. It must not be under write-back.
    pub fn discard(self) {
        self.drop_page(EvictReason::Dropped);
    }

    /// Drops the page for this reason, dirty or not. It must not be under write-back.
    pub(crate) fn drop_page(self, reason: EvictReason) {
        debug_assert!(!self.is_in_writeback());
        if self.leaf.clear_dirty(self.index()) {
            self.vnode.count_clean();
        }
        let pool = Arc::clone(self.pool());
        match self.home {
            PageLocation::Frame(frame) => {
                pool.unlist(FrameNo(frame));
                pool.removed(FrameNo(frame));
            }
            PageLocation::Window => self.mapped().remove_page(self.page),
        }
        self.word().clear(self.snap);
        if let PageLocation::Frame(frame) = self.home {
            pool.abandon(FrameNo(frame));
        }
        let wasted = u64::from(self.snap.is_ahead());
        self.vnode.opens.closed.left(reason, 1, wasted);
        let (number, _) = LeafNo::of_page(self.page);
        self.vnode.index().release(number, self.at);
        std::mem::forget(self);
    }

    fn copy_to(&self, to: FrameNo) {
        let to = self.pool().at(to).as_ptr();
        // SAFETY: the latch keeps others from changing the page, except for programs with a lease,
        // of whose stores each byte is seen or not; and no other thread uses `to` yet.
        unsafe { copy::between_pages(self.data().as_ptr(), to, PAGE_BYTES) };
    }

    /// Zeroes a page copy behind the end of the file: stores of programs there are not part of the
    /// file (mmap(2) of POSIX: "the system shall never write out any modified portions of the last
    /// page of an object which are beyond its end").
    fn zero_beyond_end(&self, copy: FrameNo) {
        let end = self
            .vnode
            .size()
            .saturating_sub(self.page * PAGE_BYTES as u64);
        if end < PAGE_BYTES as u64 {
            let keep = end as usize;
            // SAFETY: only the caller uses the frame.
            unsafe {
                let rest = self.pool().at(copy).as_ptr().add(keep);
                copy::zero_page(rest, PAGE_BYTES - keep);
            }
        }
    }

    fn set_location(&mut self, home: PageLocation) {
        self.home = home;
        self.changed = true;
    }

    fn mapped(&self) -> &'a Mapped {
        let mapped = self.vnode.mapped();
        mapped.expect("a page in a window has one")
    }

    fn pool(&self) -> &'a Arc<Pool> {
        &self.vnode.shared().core.pool
    }

    fn word(&self) -> &'a PageState {
        self.leaf.word(self.index())
    }

    fn index(&self) -> u32 {
        LeafNo::index_of(self.page)
    }

    fn bit(&self) -> u64 {
        1 << self.index()
    }
}

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        if self.changed {
            self.word().unlatch_changed(self.snap, self.home);
        } else {
            self.word().unlatch(self.snap);
        }
    }
}

impl Vnode {
    /// Takes a page's latch; waits for other holders, which is always short. `None`: the page is
    /// absent or being loaded.
    pub(crate) fn latch(&self, page: u64) -> Option<Latch<'_>> {
        let (at, index) = self.find_exact(page)?;
        Latch::take(self, at, index, page)
    }
}

/// A page that is held in place: its bytes do not change, whatever happens to the file.
pub struct PageRef<'a> {
    at: NonNull<u8>,
    word: &'a PageState,
    frame: u32,
    vnode: &'a Vnode,
}

impl<'a> PageRef<'a> {
    /// Creates the reference for a pin that the caller has taken.
    #[inline]
    pub(crate) fn of(vnode: &'a Vnode, leaf: LeafAt, index: u32, frame: u32) -> PageRef<'a> {
        PageRef {
            at: vnode.base().at(FrameNo(frame)),
            word: vnode.index().leaf(leaf).word(index),
            frame,
            vnode,
        }
    }

    /// Returns the address of the page, valid while the reference lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// Creates a loan of the page in its current state, which may outlive the reference and the
    /// file.
    pub fn lend(&self) -> Loan {
        Loan::of(&self.vnode.shared().core.pool, FrameNo(self.frame))
    }

    #[cold]
    fn release(&self) {
        let pool = &self.vnode.shared().core.pool;
        pool.release(FrameNo(self.frame), 1);
    }
}

impl Deref for PageRef<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: a frame that is held is not changed, and the pool lives as long as the vnode.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), PAGE_BYTES) }
    }
}

impl Drop for PageRef<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.word.unpin(self.frame) {
            self.release();
        }
    }
}
