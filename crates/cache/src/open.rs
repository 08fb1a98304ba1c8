//! An open file: where its last access was, how far its opener has been told of errors, and what it
//! has counted.
//!
//! **Invariant:** a hit takes no lock, allocates nothing, and writes to no memory that another
//! opener's hit writes to, except for the first three notes of use in a page's word.

use crate::copy;
use crate::errors::ErrorCursor;
use crate::frames::PAGE_BYTES;
use crate::latch::{PageRef, pause};
use crate::leaf::{LEAF_PAGES, LeafAt};
use crate::stats::{Counters, add};
use crate::vnode::Vnode;
use std::ops::Range;
use std::sync::Arc;

/// A file that somebody has open. One thread uses it at a time.
pub struct OpenFile {
    pub(crate) state: Arc<OpenState>,
    /// The leaf of the last access.
    last: Last,
}

/// What requests in flight share with the open file they came from.
pub(crate) struct OpenState {
    pub(crate) vnode: Arc<Vnode>,
    pub(crate) counters: Counters,
    pub(crate) cursor: ErrorCursor,
}

/// A leaf that was found before, so that a stream searches once in 56 pages.
#[derive(Clone, Copy, Default)]
pub(crate) struct Last(Option<(u64, LeafAt)>);

/// A pin that was taken, and that a [`PageRef`] is to give back.
#[derive(Clone, Copy)]
pub(crate) struct Pinned {
    at: LeafAt,
    index: u32,
    frame: u32,
}

/// What a look at a page gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// It was there and has been copied.
    Hit,
    /// It is not there.
    Absent,
    /// Somebody brings it.
    Loading,
}

impl OpenFile {
    pub(crate) fn new(vnode: Arc<Vnode>) -> OpenFile {
        let state = Arc::new(OpenState {
            counters: Counters::default(),
            cursor: vnode.errors.cursor(),
            vnode,
        });
        state.vnode.add_opener(&state);
        OpenFile {
            state,
            last: Last::default(),
        }
    }

    /// The file.
    pub fn vnode(&self) -> &Arc<Vnode> {
        &self.state.vnode
    }

    /// Copies from `offset` on what is there, page by page, until one is not; gives the bytes copied.
    /// The caller has seen to it that the range lies in the file.
    #[inline]
    pub(crate) fn copy_hits(&mut self, offset: u64, out: &mut [u8]) -> usize {
        let within = offset as usize % PAGE_BYTES;
        if within + out.len() <= PAGE_BYTES {
            let page = offset / PAGE_BYTES as u64;
            let look = copy_page(&self.state.vnode, &mut self.last, page, within, out);
            let hit = look == Look::Hit;
            add(&self.state.counters.hits, hit.into());
            return if hit { out.len() } else { 0 };
        }
        self.copy_many(offset, out)
    }

    /// The same for more than one page.
    fn copy_many(&mut self, offset: u64, out: &mut [u8]) -> usize {
        let mut done = 0;
        let mut pages = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE_BYTES as u64, at as usize % PAGE_BYTES);
            let part = &mut out[done..];
            let len = part.len().min(PAGE_BYTES - within);
            let part = &mut part[..len];
            let vnode = &*self.state.vnode;
            if copy_page(vnode, &mut self.last, page, within, part) != Look::Hit {
                break;
            }
            done += len;
            pages += 1;
        }
        add(&self.state.counters.hits, pages);
        done
    }

    /// Holds a page that is there in place. `None`: it is not there, or lies in a window.
    #[inline]
    pub fn page(&mut self, page: u64) -> Option<PageRef<'_>> {
        let pinned = self.pin(page)?;
        Some(self.held(pinned))
    }

    /// The reference that goes with a pin, which it takes over.
    #[inline]
    pub(crate) fn held(&self, pinned: Pinned) -> PageRef<'_> {
        let vnode = &*self.state.vnode;
        PageRef::of(vnode, pinned.at, pinned.index, pinned.frame)
    }

    /// Whether a page lies in a window at the moment.
    pub(crate) fn is_in_window(&mut self, page: u64) -> bool {
        let vnode = &*self.state.vnode;
        vnode.find_surely(page).is_some_and(|(at, index)| {
            let leaf = vnode.index().leaf(at);
            leaf.word(index).look().in_window() && vnode.owns(leaf, page)
        })
    }

    /// Pins a page that is there.
    #[inline]
    pub(crate) fn pin(&mut self, page: u64) -> Option<Pinned> {
        let vnode = &*self.state.vnode;
        if let Some((at, index)) = self.last.guess(vnode, page) {
            let leaf = vnode.index().leaf(at);
            let word = leaf.word(index);
            let snap = word.look();
            // A leaf asked between the look and a pin that finds the word unchanged was the page's
            // all the time.
            if snap.has_room()
                && vnode.owns(leaf, page)
                && let Some(frame) = word.pin(snap)
            {
                word.touch(snap.pinned());
                self.last.is(page, at);
                add(&self.state.counters.hits, 1);
                return Some(Pinned { at, index, frame });
            }
        }
        self.pin_slowly(page)
    }

    #[cold]
    fn pin_slowly(&mut self, page: u64) -> Option<Pinned> {
        let vnode = &*self.state.vnode;
        let mut turn = 0;
        loop {
            let (at, index) = vnode.find_surely(page)?;
            let leaf = vnode.index().leaf(at);
            let word = leaf.word(index);
            let snap = word.look();
            if vnode.owns(leaf, page) {
                if let Some(frame) = word.pin(snap) {
                    word.touch(snap.pinned());
                    self.last.is(page, at);
                    add(&self.state.counters.hits, 1);
                    return Some(Pinned { at, index, frame });
                }
                if snap.in_window() || snap.is_empty() || snap.is_loading() {
                    return None;
                }
                if snap.is_full() {
                    // Taking the latch turns the pins into counts, which have room.
                    drop(vnode.latch(page));
                }
            }
            pause(&mut turn);
        }
    }
}

impl Drop for OpenState {
    fn drop(&mut self) {
        self.vnode.gone.fold(self.counters.get());
    }
}

impl Last {
    /// The leaf and the index of a page, probably: the caller asks the leaf.
    #[inline]
    fn guess(&self, vnode: &Vnode, page: u64) -> Option<(LeafAt, u32)> {
        let (number, index) = (page / LEAF_PAGES, (page % LEAF_PAGES) as u32);
        match self.0 {
            Some((last, at)) if last == number => Some((at, index)),
            _ => Some((vnode.index().guess(number)?, index)),
        }
    }

    /// The leaf of a page was this.
    #[inline]
    fn is(&mut self, page: u64, at: LeafAt) {
        self.0 = Some((page / LEAF_PAGES, at));
    }
}

/// Copies from a page of `vnode`, if it is there.
#[inline]
pub(crate) fn copy_page(
    vnode: &Vnode,
    last: &mut Last,
    page: u64,
    within: usize,
    out: &mut [u8],
) -> Look {
    debug_assert!(within + out.len() <= PAGE_BYTES);
    if let Some((at, index)) = last.guess(vnode, page)
        && try_copy(vnode, at, index, page, within, out) == Some(Look::Hit)
    {
        last.is(page, at);
        return Look::Hit;
    }
    copy_page_slowly(vnode, last, page, within, out)
}

#[cold]
fn copy_page_slowly(
    vnode: &Vnode,
    last: &mut Last,
    page: u64,
    within: usize,
    out: &mut [u8],
) -> Look {
    let mut turn = 0;
    loop {
        let Some((at, index)) = vnode.find_surely(page) else {
            return Look::Absent;
        };
        if let Some(look) = try_copy(vnode, at, index, page, within, out) {
            last.is(page, at);
            return look;
        }
        pause(&mut turn);
    }
}

/// One attempt at a copy. `None`: the leaf is another's, or the page changed meanwhile.
#[inline]
fn try_copy(
    vnode: &Vnode,
    at: LeafAt,
    index: u32,
    page: u64,
    within: usize,
    out: &mut [u8],
) -> Option<Look> {
    let leaf = vnode.index().leaf(at);
    let word = leaf.word(index);
    let snap = word.look();
    if !vnode.owns(leaf, page) {
        return None;
    }
    if snap.is_resident() {
        let from = vnode.place(snap, page).as_ptr();
        // SAFETY: the frame lies in the pool or the window, which are mapped while the vnode lives;
        // `out` is ours. If the page changes meanwhile, the look below tells.
        unsafe { copy::out_of_page(from.add(within), out.as_mut_ptr(), out.len()) };
        if word.still(snap) {
            word.touch(snap);
            return Some(Look::Hit);
        }
        return None;
    }
    if snap.is_exclusive() {
        return None;
    }
    Some(match snap.is_empty() {
        true => Look::Absent,
        false => Look::Loading,
    })
}

/// The pages that a range of bytes touches.
pub(crate) fn pages_of(offset: u64, len: u64) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    if len == 0 {
        return offset / page..offset / page;
    }
    offset / page..(offset + len).div_ceil(page)
}
