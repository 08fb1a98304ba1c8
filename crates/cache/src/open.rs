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
use crate::policy::{Entry, FrameNo};
use crate::stats::{Counters, add};
use crate::stream::{Access, Ahead, Limits, Streams};
use crate::vnode::Vnode;
use crate::word::{Snap, Word};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What a page of a file with large pages is brought with.
const CLUSTER_BYTES: u64 = 64 << 10;

/// A file that somebody has open. One thread uses it at a time.
pub struct OpenFile {
    pub(crate) state: Arc<OpenState>,
    /// The leaf of the last access.
    last: Last,
    streams: Streams,
    /// The first byte of the last access, and the byte behind it.
    before: (u64, u64),
}

/// What requests in flight share with the open file they came from.
pub(crate) struct OpenState {
    pub(crate) vnode: Arc<Vnode>,
    pub(crate) counters: Counters,
    pub(crate) cursor: ErrorCursor,
    /// What was asked to be read ahead and has not been begun.
    pub(crate) asked: AtomicU32,
}

/// Read-ahead of one opener that may wait for the background; beyond that it is not keeping up.
const ASKED_MAX: u32 = 4;

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
        let limits = Limits {
            page: PAGE_BYTES as u64,
            most: most_ahead(&vnode),
            ..Limits::default()
        };
        OpenFile {
            state: OpenState::new(vnode),
            last: Last::default(),
            streams: Streams::new(limits),
            before: (0, 0),
        }
    }

    /// The file.
    pub fn vnode(&self) -> &Arc<Vnode> {
        &self.state.vnode
    }

    /// Notes a read for the streams of this opener, asks for what is to be read ahead of it, and says
    /// how pages come that it brings. `hit`: all of its pages were there.
    #[inline]
    pub(crate) fn accessed(&mut self, offset: u64, len: u64, hit: bool) -> Entry {
        match self.note_access(offset, len, hit) {
            true => Entry::Stream,
            false => Entry::Read,
        }
    }

    /// The same for a write.
    pub(crate) fn writes(&mut self, offset: u64, len: u64) -> Entry {
        let end = offset.saturating_add(len);
        let size = self.state.vnode.size();
        // Records smaller than a page bring each page that they change; of a longer write there is
        // one at each end, which says nothing of what comes next.
        let part = |at: u64| at < size && self.is_absent(at);
        let hit = len >= PAGE_BYTES as u64 || !(part(offset) || part(end.saturating_sub(1)));
        match self.note_access(offset, len, hit) {
            true => Entry::WrittenStream,
            false => Entry::Written,
        }
    }

    /// Says whether the access belongs to a stream.
    #[inline]
    fn note_access(&mut self, offset: u64, len: u64, hit: bool) -> bool {
        self.before = (offset, offset.saturating_add(len));
        if hit && self.streams.is_idle() {
            return false;
        }
        self.note_in_streams(offset, len, hit)
    }

    /// The same where it may matter.
    #[inline(never)]
    fn note_in_streams(&mut self, offset: u64, len: u64, hit: bool) -> bool {
        let vnode = &*self.state.vnode;
        if !hit {
            self.streams.set_most(most_ahead(vnode));
            if vnode.has_large_pages() {
                self.bring_clusters(offset, len);
            }
        }
        let access = Access {
            offset,
            len,
            file_size: vnode.size(),
            // What the background is about to bring is as good as being brought.
            hit: hit || self.state.asked.load(Relaxed) > 0,
        };
        let advice = self.streams.accessed(access);
        if let Some(ahead) = advice.ahead {
            self.read_ahead(ahead);
        }
        advice.in_stream
    }

    /// Asks for the rest of the clusters that a read of a file with large pages has missed in.
    #[cold]
    fn bring_clusters(&self, offset: u64, len: u64) {
        let vnode = &self.state.vnode;
        let from = offset / CLUSTER_BYTES * CLUSTER_BYTES;
        let end = offset.saturating_add(len).div_ceil(CLUSTER_BYTES);
        let end = end.saturating_mul(CLUSTER_BYTES).min(vnode.size());
        let pages = pages_of(from, end.saturating_sub(from));
        vnode.below().errands.prefetch(vnode, pages);
    }

    #[cold]
    fn read_ahead(&self, ahead: Ahead) {
        let vnode = &self.state.vnode;
        if vnode.reads_ahead() && self.state.asked.load(Relaxed) < ASKED_MAX {
            vnode.below().errands.read_ahead(&self.state, ahead);
        }
    }

    /// Whether the page of this byte is neither there nor being brought.
    #[cold]
    pub(crate) fn is_absent(&self, offset: u64) -> bool {
        let page = offset / PAGE_BYTES as u64;
        let vnode = &*self.state.vnode;
        vnode.find_surely(page).is_none_or(|(at, index)| {
            let leaf = vnode.index().leaf(at);
            leaf.word(index).look().is_empty() || !vnode.owns(leaf, page)
        })
    }

    /// The page that an access touches again which goes on where the one before has ended: records
    /// smaller than a page are one use of it.
    #[inline]
    fn page_again(&self, offset: u64, end: u64) -> Option<u64> {
        let page = PAGE_BYTES as u64;
        if offset == self.before.1 && !offset.is_multiple_of(page) {
            return Some(offset / page);
        }
        (end == self.before.0 && !end.is_multiple_of(page)).then_some(end / page)
    }

    /// Copies from `offset` on what is there, page by page, until one is not; gives the bytes copied.
    /// The caller has seen to it that the range lies in the file.
    #[inline]
    pub(crate) fn copy_hits(&mut self, offset: u64, out: &mut [u8]) -> usize {
        let within = offset as usize % PAGE_BYTES;
        if within + out.len() <= PAGE_BYTES {
            let page = offset / PAGE_BYTES as u64;
            let again = self.page_again(offset, offset + out.len() as u64).is_some();
            let last = &mut self.last;
            let look = copy_page(&self.state, last, page, within, out, again);
            let hit = look == Look::Hit;
            add(&self.state.counters.hits, hit.into());
            return if hit { out.len() } else { 0 };
        }
        self.copy_many(offset, out)
    }

    /// The same for more than one page.
    fn copy_many(&mut self, offset: u64, out: &mut [u8]) -> usize {
        let again = self.page_again(offset, offset + out.len() as u64);
        let mut done = 0;
        let mut pages = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE_BYTES as u64, at as usize % PAGE_BYTES);
            let part = &mut out[done..];
            let len = part.len().min(PAGE_BYTES - within);
            let part = &mut part[..len];
            let (last, again) = (&mut self.last, again == Some(page));
            if copy_page(&self.state, last, page, within, part, again) != Look::Hit {
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
        self.accessed(page * PAGE_BYTES as u64, PAGE_BYTES as u64, true);
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
                if word.touch(snap.pinned()) {
                    add(&self.state.counters.read_ahead_used, 1);
                }
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
                    if word.touch(snap.pinned()) {
                        add(&self.state.counters.read_ahead_used, 1);
                    }
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

/// Bytes of the largest window of read-ahead: what is set, in a small cache less.
fn most_ahead(vnode: &Vnode) -> u64 {
    let core = &vnode.below().core;
    let page = PAGE_BYTES as u64;
    let room = core.pool.limit() as u64 / POOL_SHARE * page;
    (core.live.read_ahead_max.load(Relaxed) / page * page).min(room)
}

/// A window takes at most one in so many of the cache's frames.
const POOL_SHARE: u64 = 16;

impl OpenState {
    /// Of a new opener.
    pub(crate) fn new(vnode: Arc<Vnode>) -> Arc<OpenState> {
        let state = Arc::new(OpenState {
            counters: Counters::default(),
            cursor: vnode.errors.cursor(),
            asked: AtomicU32::new(0),
            vnode,
        });
        state.vnode.add_opener(&state);
        state
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

/// Copies from a page, if it is there. `again`: this is no new use of it.
#[inline]
pub(crate) fn copy_page(
    open: &OpenState,
    last: &mut Last,
    page: u64,
    within: usize,
    out: &mut [u8],
    again: bool,
) -> Look {
    debug_assert!(within + out.len() <= PAGE_BYTES);
    if let Some((at, index)) = last.guess(&open.vnode, page)
        && try_copy(open, (at, index), page, within, out, again) == Some(Look::Hit)
    {
        last.is(page, at);
        return Look::Hit;
    }
    copy_page_slowly(open, last, page, within, out, again)
}

#[cold]
fn copy_page_slowly(
    open: &OpenState,
    last: &mut Last,
    page: u64,
    within: usize,
    out: &mut [u8],
    again: bool,
) -> Look {
    let mut turn = 0;
    loop {
        let Some((at, index)) = open.vnode.find_surely(page) else {
            return Look::Absent;
        };
        if let Some(look) = try_copy(open, (at, index), page, within, out, again) {
            last.is(page, at);
            return look;
        }
        pause(&mut turn);
    }
}

/// One attempt at a copy. `None`: the leaf is another's, or the page changed meanwhile.
#[inline]
fn try_copy(
    open: &OpenState,
    (at, index): (LeafAt, u32),
    page: u64,
    within: usize,
    out: &mut [u8],
    again: bool,
) -> Option<Look> {
    let vnode = &*open.vnode;
    let leaf = vnode.index().leaf(at);
    let word = leaf.word(index);
    let snap = word.look();
    if !vnode.owns(leaf, page) {
        return None;
    }
    if snap.is_resident() {
        if snap.in_window() {
            return copy_in_window(vnode, word, snap, page, within, out);
        }
        let from = vnode.base().at(FrameNo(snap.frame())).as_ptr();
        // SAFETY: the frame lies in the pool, which is mapped while the vnode lives; `out` is ours. If
        // the page changes meanwhile, the look below tells.
        unsafe { copy::out_of_page(from.add(within), out.as_mut_ptr(), out.len()) };
        if word.still(snap) {
            if !again && word.touch(snap) {
                add(&open.counters.read_ahead_used, 1);
            }
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

/// One attempt at a copy of a page that lies in the window. Its memory goes with it, so it is counted
/// that somebody reads: to touch it once it is gone would make it again, for nobody.
#[cold]
fn copy_in_window(
    vnode: &Vnode,
    word: &Word,
    snap: Snap,
    page: u64,
    within: usize,
    out: &mut [u8],
) -> Option<Look> {
    if !word.begin_read(snap) {
        return None;
    }
    let mapped = vnode.mapped().expect("a page in a window has one");
    let from = mapped.at(page).as_ptr();
    // SAFETY: the page is in the window until the read is ended, and `out` is ours and no mapping, so
    // that the copy waits for nobody. Programs may store meanwhile, as they may into any mapped file
    // that is read.
    unsafe { copy::out_of_page(from.add(within), out.as_mut_ptr(), out.len()) };
    word.end_read();
    word.touch(word.look());
    Some(Look::Hit)
}

/// The pages that a range of bytes touches.
pub(crate) fn pages_of(offset: u64, len: u64) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    if len == 0 {
        return offset / page..offset / page;
    }
    offset / page..(offset + len).div_ceil(page)
}
