//! An open file: the position of its last access, its error cursor and its counters.
//!
//! **Invariant:** a hit takes no lock, allocates nothing, and writes to no memory that a hit of
//! another open file writes to, except for the first three use marks in a page's word.

use crate::copy;
use crate::frames::PAGE_BYTES;
use crate::latch::{PageRef, pause};
use crate::leaf::{LeafAt, LeafNo};
use crate::page_state::{PageState, StateSnapshot};
use crate::policy::{Entry, FrameNo};
use crate::stats::add;
use crate::stream::{Access, Limits, ReadAhead, Streams};
use crate::tree::{OpenState, Vnode};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Load unit of a file with large pages.
const CLUSTER_BYTES: u64 = 64 << 10;

/// An open file. One thread uses it at a time.
pub struct OpenFile {
    pub(crate) state: Arc<OpenState>,
    /// Leaf of the last access.
    last: Last,
    /// `None` before the first miss: most files are small, and opened often.
    streams: Option<Box<Streams>>,
    /// First byte of the last access, and the byte after its end.
    before: (u64, u64),
}

/// Queued read-ahead requests per open file; with more, the background thread is not keeping up.
const ASKED_MAX: u32 = 4;

/// The leaf found last, so that a stream searches the index once in 56 pages.
#[derive(Clone, Copy, Default)]
pub(crate) struct Last(Option<(LeafNo, LeafAt)>);

/// A pin that was taken, to be released by a [`PageRef`].
#[derive(Clone, Copy)]
pub(crate) struct Pinned {
    at: LeafAt,
    index: u32,
    frame: u32,
}

/// Whether an access counts as a use of its page for the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A use.
    New,
    /// Part of a use that was counted before.
    Repeated,
}

impl Reference {
    /// Classifies an access that is, or is not, part of an earlier use.
    #[inline]
    fn repeated_if(repeated: bool) -> Reference {
        if repeated {
            Reference::Repeated
        } else {
            Reference::New
        }
    }
}

/// Result of a page lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The page was resident and has been copied.
    Hit,
    /// The page is not in the cache.
    Absent,
    /// Another thread is loading the page.
    Loading,
}

impl OpenFile {
    pub(crate) fn new(vnode: Arc<Vnode>) -> OpenFile {
        OpenFile {
            state: OpenState::new(vnode),
            last: Last::default(),
            streams: None,
            before: (0, 0),
        }
    }

    /// Returns the file's vnode.
    pub fn vnode(&self) -> &Arc<Vnode> {
        &self.state.vnode
    }

    /// Records a read for stream detection, requests read-ahead, and returns how the policy is to
    /// classify pages that this read loads. `hit`: all of its pages were resident.
    #[inline]
    pub(crate) fn accessed(&mut self, offset: u64, len: u64, hit: bool) -> Entry {
        if self.note_access(offset, len, hit) {
            Entry::Stream
        } else {
            Entry::Read
        }
    }

    /// Records a read of one resident page, like [`OpenFile::accessed`].
    #[inline]
    pub(crate) fn accessed_resident(&mut self, page: u64) -> Entry {
        let hit = true;
        self.accessed(page * PAGE_BYTES as u64, PAGE_BYTES as u64, hit)
    }

    /// Records a write like [`OpenFile::accessed`].
    pub(crate) fn writes(&mut self, offset: u64, len: u64) -> Entry {
        let end = offset.saturating_add(len);
        let size = self.state.vnode.size();
        // Records smaller than a page load each page that they change. A longer write loads at most
        // one page at each end, which does not predict the next access.
        let part = |at: u64| at < size && self.is_absent(at);
        let hit = len >= PAGE_BYTES as u64 || !(part(offset) || part(end.saturating_sub(1)));
        if self.note_access(offset, len, hit) {
            Entry::WrittenStream
        } else {
            Entry::Written
        }
    }

    /// Records an access and reports whether it belongs to a stream.
    #[inline]
    fn note_access(&mut self, offset: u64, len: u64, hit: bool) -> bool {
        self.before = (offset, offset.saturating_add(len));
        if hit
            && self
                .streams
                .as_ref()
                .is_none_or(|streams| streams.is_idle())
        {
            return false;
        }
        self.note_in_streams(offset, len, hit)
    }

    /// Handles the slow path of [`OpenFile::note_access`]: a miss, or streams are tracked.
    #[inline(never)]
    fn note_in_streams(&mut self, offset: u64, len: u64, hit: bool) -> bool {
        let vnode = &*self.state.vnode;
        if !hit && vnode.has_large_pages() {
            self.bring_clusters(offset, len);
        }
        let access = Access {
            offset,
            len,
            file_size: vnode.size(),
            // Queued read-ahead counts as being loaded.
            hit: hit || self.state.asked.load(Relaxed) > 0,
        };
        let streams = self.streams.get_or_insert_with(|| {
            Box::new(Streams::new(Limits {
                page: PAGE_BYTES as u64,
                ..Limits::default()
            }))
        });
        if !hit {
            streams.set_most(most_ahead(vnode));
        }
        let advice = streams.accessed(access);
        if let Some(ahead) = advice.ahead {
            self.read_ahead(ahead);
        }
        advice.in_stream
    }

    /// Requests the rest of the clusters in which a read of a file with large pages has missed.
    #[cold]
    fn bring_clusters(&self, offset: u64, len: u64) {
        let vnode = &self.state.vnode;
        let from = offset / CLUSTER_BYTES * CLUSTER_BYTES;
        let end = offset.saturating_add(len).div_ceil(CLUSTER_BYTES);
        let end = end.saturating_mul(CLUSTER_BYTES).min(vnode.size());
        let pages = pages_of(from, end.saturating_sub(from));
        vnode.shared().background.prefetch(vnode, pages);
    }

    #[cold]
    fn read_ahead(&self, ahead: ReadAhead) {
        let vnode = &self.state.vnode;
        if vnode.reads_ahead() && self.state.asked.load(Relaxed) < ASKED_MAX {
            vnode.shared().background.read_ahead(&self.state, ahead);
        }
    }

    /// Checks whether the page of this byte is neither resident nor being loaded.
    #[cold]
    pub(crate) fn is_absent(&self, offset: u64) -> bool {
        let page = offset / PAGE_BYTES as u64;
        let vnode = &*self.state.vnode;
        vnode.find_exact(page).is_none_or(|(at, index)| {
            let leaf = vnode.index().leaf(at);
            leaf.word(index).load().is_empty() || !vnode.owns(leaf, page)
        })
    }

    /// Finds the page that this access shares with the previous, adjoining access: records
    /// smaller than a page count as one use of it.
    #[inline]
    fn page_again(&self, offset: u64, end: u64) -> Option<u64> {
        let page = PAGE_BYTES as u64;
        if offset == self.before.1 && !offset.is_multiple_of(page) {
            return Some(offset / page);
        }
        (end == self.before.0 && !end.is_multiple_of(page)).then_some(end / page)
    }

    /// Copies resident pages from `offset` on until one is missing and returns the bytes copied.
    /// The caller ensures that the range lies within the file.
    #[inline]
    pub(crate) fn copy_hits(&mut self, offset: u64, out: &mut [u8]) -> usize {
        let within = offset as usize % PAGE_BYTES;
        if within + out.len() <= PAGE_BYTES {
            let page = offset / PAGE_BYTES as u64;
            let again = self.page_again(offset, offset + out.len() as u64);
            let reference = Reference::repeated_if(again.is_some());
            let last = &mut self.last;
            let look = copy_page(&self.state, last, page, within, out, reference);
            let hit = look == Lookup::Hit;
            add(&self.state.counters.hits, hit.into());
            return if hit { out.len() } else { 0 };
        }
        self.copy_many(offset, out)
    }

    /// Copies like [`OpenFile::copy_hits`], for more than one page.
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
            let last = &mut self.last;
            let reference = Reference::repeated_if(again == Some(page));
            if copy_page(&self.state, last, page, within, part, reference) != Lookup::Hit {
                break;
            }
            done += len;
            pages += 1;
        }
        add(&self.state.counters.hits, pages);
        done
    }

    /// Returns a reference that holds a resident page in place, or `None` if the page is absent or
    /// lies in a window.
    #[inline]
    pub fn page(&mut self, page: u64) -> Option<PageRef<'_>> {
        let pinned = self.pin(page)?;
        self.accessed_resident(page);
        Some(self.held(pinned))
    }

    /// Creates the reference for a pin and takes over the pin.
    #[inline]
    pub(crate) fn held(&self, pinned: Pinned) -> PageRef<'_> {
        let vnode = &*self.state.vnode;
        PageRef::of(vnode, pinned.at, pinned.index, pinned.frame)
    }

    /// Checks whether a page currently lies in a window.
    pub(crate) fn is_in_window(&mut self, page: u64) -> bool {
        let vnode = &*self.state.vnode;
        vnode.find_exact(page).is_some_and(|(at, index)| {
            let leaf = vnode.index().leaf(at);
            leaf.word(index).load().in_window() && vnode.owns(leaf, page)
        })
    }

    /// Pins a resident page.
    #[inline]
    pub(crate) fn pin(&mut self, page: u64) -> Option<Pinned> {
        let vnode = &*self.state.vnode;
        if let Some((at, index)) = self.last.guess(vnode, page) {
            let leaf = vnode.index().leaf(at);
            let word = leaf.word(index);
            let snap = word.load();
            // A leaf checked between the lookup and a pin that finds the word unchanged was the
            // page's throughout.
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
            let (at, index) = vnode.find_exact(page)?;
            let leaf = vnode.index().leaf(at);
            let word = leaf.word(index);
            let snap = word.load();
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
                    // Taking the latch turns the pins into hold counts, which have room.
                    drop(vnode.latch(page));
                }
            }
            pause(&mut turn);
        }
    }
}

/// Computes the size of the largest read-ahead window in bytes: the setting, or less in a small
/// cache.
fn most_ahead(vnode: &Vnode) -> u64 {
    let core = &vnode.shared().core;
    let page = PAGE_BYTES as u64;
    let room = core.pool.limit() as u64 / POOL_SHARE * page;
    (core.settings.read_ahead_max.load(Relaxed) / page * page).min(room)
}

/// A read-ahead window takes at most 1/`POOL_SHARE` of the cache's frames.
const POOL_SHARE: u64 = 16;

impl Last {
    /// Looks up the probable leaf and index of a page; the caller verifies the leaf's tag.
    #[inline]
    fn guess(&self, vnode: &Vnode, page: u64) -> Option<(LeafAt, u32)> {
        let (number, index) = LeafNo::of_page(page);
        match self.0 {
            Some((last, at)) if last == number => Some((at, index)),
            _ => Some((vnode.index().guess(number)?, index)),
        }
    }

    /// Records that this is the page's leaf.
    #[inline]
    fn is(&mut self, page: u64, at: LeafAt) {
        self.0 = Some((LeafNo::of_page(page).0, at));
    }
}

/// Copies from a page if it is resident.
#[inline]
pub(crate) fn copy_page(
    open: &OpenState,
    last: &mut Last,
    page: u64,
    within: usize,
    out: &mut [u8],
    reference: Reference,
) -> Lookup {
    debug_assert!(within + out.len() <= PAGE_BYTES);
    if let Some((at, index)) = last.guess(&open.vnode, page)
        && try_copy(open, (at, index), page, within, out, reference) == Some(Lookup::Hit)
    {
        last.is(page, at);
        return Lookup::Hit;
    }
    copy_page_slowly(open, last, page, within, out, reference)
}

#[cold]
fn copy_page_slowly(
    open: &OpenState,
    last: &mut Last,
    page: u64,
    within: usize,
    out: &mut [u8],
    reference: Reference,
) -> Lookup {
    let mut turn = 0;
    loop {
        let Some((at, index)) = open.vnode.find_exact(page) else {
            return Lookup::Absent;
        };
        if let Some(look) = try_copy(open, (at, index), page, within, out, reference) {
            last.is(page, at);
            return look;
        }
        pause(&mut turn);
    }
}

/// Attempts a copy once. `None`: the leaf belongs to another range, or the page changed during the
/// copy.
#[inline]
fn try_copy(
    open: &OpenState,
    (at, index): (LeafAt, u32),
    page: u64,
    within: usize,
    out: &mut [u8],
    reference: Reference,
) -> Option<Lookup> {
    let vnode = &*open.vnode;
    let leaf = vnode.index().leaf(at);
    let word = leaf.word(index);
    let snap = word.load();
    if !vnode.owns(leaf, page) {
        return None;
    }
    if snap.is_resident() {
        if snap.in_window() {
            return copy_in_window(vnode, word, snap, page, within, out);
        }
        let from = vnode.base().at(FrameNo(snap.frame())).as_ptr();
        // SAFETY: the frame lies in the pool, which is mapped while the vnode lives; `out` is ours.
        // A change of the page during the copy is detected by `is_unchanged` below.
        unsafe { copy::out_of_page(from.add(within), out.as_mut_ptr(), out.len()) };
        if word.is_unchanged(snap) {
            if reference == Reference::New && word.touch(snap) {
                add(&open.counters.read_ahead_used, 1);
            }
            return Some(Lookup::Hit);
        }
        return None;
    }
    if snap.is_exclusive() {
        return None;
    }
    Some(if snap.is_empty() {
        Lookup::Absent
    } else {
        Lookup::Loading
    })
}

/// Attempts once to copy a page that lies in the window. A window page's memory is released with
/// the page, and touching it afterwards would allocate it again; so the copy registers as a reader.
#[cold]
fn copy_in_window(
    vnode: &Vnode,
    word: &PageState,
    snap: StateSnapshot,
    page: u64,
    within: usize,
    out: &mut [u8],
) -> Option<Lookup> {
    if !word.begin_read(snap) {
        return None;
    }
    let mapped = vnode.mapped().expect("a page in a window has one");
    let from = mapped.at(page).as_ptr();
    // SAFETY: the page is in the window until the read is ended, and `out` is ours and no mapping,
    // so the copy cannot block on a fault. Programs may store during the copy, as into any mapped
    // file that is being read.
    unsafe { copy::out_of_page(from.add(within), out.as_mut_ptr(), out.len()) };
    word.end_read();
    word.touch(word.load());
    Some(Lookup::Hit)
}

/// Computes the pages that a range of bytes touches.
pub(crate) fn pages_of(offset: u64, len: u64) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    if len == 0 {
        return offset / page..offset / page;
    }
    offset / page..(offset + len).div_ceil(page)
}
