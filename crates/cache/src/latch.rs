//! A page that one thread has for itself, and pages that many hold.
//!
//! **Invariant:** a latch is given back before anything that may wait: no I/O, no other page's latch,
//! no message to anybody happens under it.

use crate::copy;
use crate::frames::{PAGE_BYTES, Pool};
use crate::leaf::{LEAF_PAGES, Leaf, LeafAt};
use crate::policy::FrameNo;
use crate::vnode::Vnode;
use crate::word::{Home, Snap, Word};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Where the pages of a vnode lie that are mapped by programs: the window.
///
/// All calls come under the latch of the page, except [`View::at`].
pub trait View: Send + Sync {
    /// The page in the cache's own view of the window, where no fault happens.
    fn at(&self, page: u64) -> NonNull<u8>;

    /// Takes care that no program stores into the page until it has asked again.
    fn seal(&self, page: u64);

    /// The page leaves the window: programs cannot reach it, and its memory is given back.
    fn vacate(&self, page: u64);
}

/// The latch of a resident page. Dropped, it gives the page back, with a new version if it changed.
pub struct Latch<'a> {
    vnode: &'a Vnode,
    leaf: &'a Leaf,
    at: LeafAt,
    page: u64,
    snap: Snap,
    home: Home,
    changed: bool,
}

/// Looks at a word that takes another thread a copy's time; then the thread may have lost its
/// processor, and ours is better given away.
const SPINS: u32 = 64;

/// Waits a moment for somebody who has a latch.
pub(crate) fn pause(turn: &mut u32) {
    *turn += 1;
    if *turn < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

impl<'a> Latch<'a> {
    /// Takes the latch of a page; waits for others who have it. `None`: the page is not there, or on
    /// its way, or the leaf is another's by now.
    pub(crate) fn take(vnode: &'a Vnode, at: LeafAt, index: u32, page: u64) -> Option<Latch<'a>> {
        let leaf = vnode.index().leaf(at);
        let word = leaf.word(index);
        let pool = &vnode.below().core.pool;
        let mut turn = 0;
        loop {
            let snap = word.look();
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
                pause(&mut turn);
                continue;
            };
            if !vnode.owns(leaf, page) {
                word.unlatch(latched);
                return None;
            }
            let home = match snap.in_window() {
                true => Home::Window,
                false => Home::Frame(snap.frame()),
            };
            return Some(Latch {
                vnode,
                leaf,
                at,
                page,
                snap: latched,
                home,
                changed: false,
            });
        }
    }

    /// Where the page lies.
    pub fn home(&self) -> Home {
        self.home
    }

    /// The bytes of the page. Whoever changes them has called [`Latch::make_private`].
    pub fn data(&self) -> NonNull<u8> {
        match self.home {
            Home::Frame(frame) => self.pool().at(FrameNo(frame)),
            Home::Window => {
                let view = self.vnode.view();
                view.expect("a page in a window has one").at(self.page)
            }
        }
    }

    /// The page holds what is not below yet.
    pub fn is_dirty(&self) -> bool {
        self.leaf.dirty() & self.bit() != 0
    }

    /// The page's content is on its way below.
    pub fn is_in_writeback(&self) -> bool {
        self.leaf.writeback() & self.bit() != 0
    }

    /// Somebody holds the frame of the page.
    pub fn is_held(&self) -> bool {
        match self.home {
            Home::Frame(frame) => self.pool().holds(FrameNo(frame)).any(),
            Home::Window => false,
        }
    }

    /// Makes the page's bytes the latch holder's to change: if somebody holds the frame, the page
    /// moves to one of `spare`, with its content if `keep`. `None`: there is no spare frame.
    #[must_use]
    pub fn make_private(&mut self, spare: &mut Vec<FrameNo>, keep: bool) -> Option<bool> {
        self.changed = true;
        if !self.is_held() {
            return Some(false);
        }
        let Some(to) = spare.pop() else {
            self.changed = false;
            return None;
        };
        self.move_to(to, keep);
        Some(true)
    }

    /// Moves the page to another frame of the pool, with its content if `keep`.
    pub fn move_to(&mut self, to: FrameNo, keep: bool) {
        let pool = self.pool();
        if keep {
            // SAFETY: the latch keeps others from changing the page, and `to` is nobody's yet.
            unsafe {
                copy::out_of_page(self.data().as_ptr(), pool.at(to).as_ptr(), PAGE_BYTES);
            }
        }
        match self.home {
            Home::Frame(from) => {
                pool.moved(FrameNo(from), to);
                self.settle(Home::Frame(to.0));
                pool.abandon(FrameNo(from));
            }
            Home::Window => {
                self.vnode.view().expect("it lies there").vacate(self.page);
                pool.assign(to, self.at, self.index());
                let key = self.leaf.key(self.index());
                pool.inserted([(to, key)], crate::policy::Entry::Read);
                self.settle(Home::Frame(to.0));
            }
        }
    }

    /// Moves the page from its frame to its place in the window. The caller has put the content
    /// there, with the latch held.
    pub fn move_to_window(&mut self) {
        let Home::Frame(from) = self.home else { return };
        self.pool().removed(FrameNo(from));
        self.settle(Home::Window);
        self.pool().abandon(FrameNo(from));
    }

    /// Notes that the page has changed and is not below yet.
    pub fn mark_dirty(&mut self) {
        self.changed = true;
        self.vnode.mark_dirty(self.at, self.page);
    }

    /// Sends a dirty page on its way: clean from here on, and the frame given is held until
    /// [`Latch::end_writeback`]. A page in a window is sealed and copied to one of `spare`. `None`:
    /// it is clean, on its way already, or there is no spare frame.
    pub(crate) fn begin_writeback(&mut self, spare: &mut Vec<FrameNo>) -> Option<FrameNo> {
        if !self.is_dirty() || self.is_in_writeback() {
            return None;
        }
        let frame = match self.home {
            Home::Frame(frame) => FrameNo(frame),
            Home::Window => {
                let copy = spare.pop()?;
                self.vnode.view().expect("it lies there").seal(self.page);
                let to = self.pool().at(copy).as_ptr();
                // SAFETY: programs cannot store into the page, the latch keeps everybody else away,
                // and the frame is nobody's yet.
                unsafe { copy::out_of_page(self.data().as_ptr(), to, PAGE_BYTES) };
                copy
            }
        };
        self.pool().holds(frame).add(1);
        if self.home == Home::Window {
            let held = !self.pool().holds(frame).orphan();
            debug_assert!(held, "it is held by the line above");
        }
        self.leaf.set_writeback(self.index());
        self.leaf.clear_dirty(self.index());
        Some(frame)
    }

    /// The page has arrived below, or not, and then it is dirty again.
    pub(crate) fn end_writeback(&mut self, good: bool) {
        if !good {
            self.vnode.mark_dirty(self.at, self.page);
        }
        self.leaf.clear_writeback(self.index());
        if !self.is_dirty() {
            self.vnode.count_clean();
        }
    }

    /// Makes the page vanish, dirty or not. It must not be on its way below.
    pub fn discard(self) {
        debug_assert!(!self.is_in_writeback());
        if self.leaf.clear_dirty(self.index()) {
            self.vnode.count_clean();
        }
        let pool = Arc::clone(self.pool());
        match self.home {
            Home::Frame(frame) => pool.removed(FrameNo(frame)),
            Home::Window => self.vnode.view().expect("it lies there").vacate(self.page),
        }
        self.word().clear(self.snap);
        if let Home::Frame(frame) = self.home {
            pool.abandon(FrameNo(frame));
        }
        self.vnode.below().core.dropped.fetch_add(1, Relaxed);
        self.vnode.index().let_go(self.page / LEAF_PAGES, self.at);
        std::mem::forget(self);
    }

    fn settle(&mut self, home: Home) {
        self.home = home;
        self.changed = true;
    }

    fn pool(&self) -> &'a Arc<Pool> {
        &self.vnode.below().core.pool
    }

    fn word(&self) -> &'a Word {
        self.leaf.word(self.index())
    }

    fn index(&self) -> u32 {
        (self.page % LEAF_PAGES) as u32
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

/// A page that is held in place: its bytes do not change, whatever happens to the file.
pub struct PageRef<'a> {
    at: NonNull<u8>,
    word: &'a Word,
    frame: u32,
    vnode: &'a Vnode,
}

impl<'a> PageRef<'a> {
    /// Of a pin that the caller has taken.
    #[inline]
    pub(crate) fn of(vnode: &'a Vnode, leaf: LeafAt, index: u32, frame: u32) -> PageRef<'a> {
        PageRef {
            at: vnode.base().at(FrameNo(frame)),
            word: vnode.index().leaf(leaf).word(index),
            frame,
            vnode,
        }
    }

    /// The address of the page, good while the reference lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    #[cold]
    fn release(&self) {
        let pool = &self.vnode.below().core.pool;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cache, Config, DEVICE_FILE, DevicePager};
    use block::Mem;
    use std::sync::Mutex;

    /// A window that is plain memory, and what was asked of it.
    struct Plain {
        pages: Box<[std::cell::UnsafeCell<[u8; PAGE_BYTES]>]>,
        asked: Mutex<Vec<(&'static str, u64)>>,
    }

    // SAFETY: the pages are used under the latches of the cache's pages.
    unsafe impl Send for Plain {}
    // SAFETY: as above.
    unsafe impl Sync for Plain {}

    impl View for Plain {
        fn at(&self, page: u64) -> NonNull<u8> {
            NonNull::new(self.pages[page as usize].get().cast()).expect("memory")
        }

        fn seal(&self, page: u64) {
            self.asked.lock().unwrap().push(("seal", page));
        }

        fn vacate(&self, page: u64) {
            self.asked.lock().unwrap().push(("vacate", page));
        }
    }

    fn move_in(vnode: &Vnode, view: &Plain, page: u64) {
        let mut latch = vnode.latch(page).expect("it is there");
        // SAFETY: both are pages, and the latch keeps others away.
        unsafe {
            copy::into_page(latch.data().as_ptr(), view.at(page).as_ptr(), PAGE_BYTES);
        }
        latch.move_to_window();
    }

    #[test]
    fn a_page_in_a_window_is_read_written_sent_below_and_moved_back() {
        let cache = Cache::new(Config::new(1 << 20)).unwrap();
        let disk = Arc::new(Mem::new(1 << 20, 512));
        let volume = cache
            .volume(Arc::new(DevicePager::new(disk.clone()).unwrap()))
            .unwrap();
        let vnode = volume.vnode(DEVICE_FILE, 1 << 20);
        let (mut session, mut open) = (volume.session().unwrap(), volume.open(&vnode));
        let view = Arc::new(Plain {
            pages: (0..4).map(|_| [0; PAGE_BYTES].into()).collect(),
            asked: Mutex::default(),
        });
        assert!(vnode.set_view(view.clone()));
        session.write(&mut open, 0, &[1; 3 * PAGE_BYTES]).unwrap();
        session.flush(&mut open).unwrap();
        let used = cache.stats().used_bytes;
        (0..2).for_each(|page| move_in(&vnode, &view, page));
        assert_eq!(cache.stats().used_bytes, used - 2 * PAGE_BYTES as u64);
        session.write(&mut open, 10, &[2; PAGE_BYTES]).unwrap();
        let mut back = [0; 2 * PAGE_BYTES];
        session.read(&mut open, 0, &mut back).unwrap();
        assert_eq!((back[9], back[10], back[10 + PAGE_BYTES]), (1, 2, 1));
        assert!(
            session.page(&mut open, 0).is_err(),
            "programs may change it"
        );
        session.flush(&mut open).unwrap();
        let mut below = [0; 2 * PAGE_BYTES];
        disk.peek(0, &mut below);
        assert!(below == back);
        let mut frames = Vec::new();
        assert_eq!(vnode.below().core.take_frames(1, &mut frames), 1);
        vnode.latch(0).unwrap().move_to(frames[0], true);
        assert!(*session.page(&mut open, 0).unwrap() == back[..PAGE_BYTES]);
        session.invalidate(&mut open, 0..1 << 20).unwrap();
        assert_eq!(cache.stats().used_bytes, 0);
        let asked = view.asked.lock().unwrap().clone();
        assert_eq!(
            asked,
            [("seal", 0), ("seal", 1), ("vacate", 0), ("vacate", 1)]
        );
    }
}
