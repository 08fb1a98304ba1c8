//! The word of a page: its location and access state in one 64-bit atomic.
//!
//! ```text
//!   63       62..56      55..54      53      52..30      29..0
//!   window   state       frequency   ahead   version     frame
//! ```
//!
//! ```text
//!            begin_load              publish              latch
//!   EMPTY ──────────────► LOADING ──────────► RESIDENT ──────────► EXCLUSIVE
//!     ▲                      │                 0..=122 pins  ◄──────────┘ │
//!     └──────────────────────┴─── abort_load ───────── unlatch ─── clear ─┘
//! ```
//!
//! **Invariants.**
//! * A version changes whenever the page's contents may have changed: at publish, at clear, and
//!   when a latch is released after a change. Two equal loads of a resident word with a copy
//!   between them prove that the copy is consistent.
//! * A frame that is held is never changed. A hold is a pin in the word or a count in the frame's
//!   [`FrameRefs`]; a latch first turns existing pins into counts, so that a writer never waits for
//!   a reader: it sees the counts and takes another frame.
//! * A page that was read ahead is marked until its first use, which clears that mark and sets no
//!   use mark. Either one reader clears the mark, or the thread that evicts the page finds it: the
//!   numbers of used and wasted pages are exact.
//! * A frame that left its page while it was held is an orphan; only the thread that drops the last
//!   hold frees it.
//! * A page in a window cannot be moved aside for a writer, and its memory is released with the
//!   page. So a reader registers itself for the duration of the copy, and a latch waits until there
//!   is no reader. A thread that wants the latch sets a flag in the word, and no reader begins
//!   until that latch has been released.
//!
//! A version has 23 bits, so a copy that stalls while one page is changed exactly 2^23 times could
//! pass for consistent; at the speed of memory that is a stall of seconds that ends on one write of
//! eight million. A frame number has 30 bits: 4 TiB of pages.
//!
//! The module is generic over the atomics, so that `tests/loom.rs` can explore every interleaving.

use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// An atomic integer and its fence: the standard library's, or a model checker's.
pub trait Atom {
    /// Type of the value.
    type Int: Copy;
    /// Creates an atomic with `value`.
    fn new(value: Self::Int) -> Self;
    /// Loads the value.
    fn load(&self, order: Ordering) -> Self::Int;
    /// Replaces `old` by `new`, or returns the current value as an error.
    fn cas(&self, old: Self::Int, new: Self::Int, good: Ordering) -> Result<Self::Int, Self::Int>;
    /// Issues a fence of the same implementation.
    fn fence(order: Ordering);
}

macro_rules! std_atom {
    ($atomic:ty, $int:ty) => {
        impl Atom for $atomic {
            type Int = $int;

            #[inline]
            fn new(value: $int) -> Self {
                <$atomic>::new(value)
            }

            #[inline]
            fn load(&self, order: Ordering) -> $int {
                self.load(order)
            }

            #[inline]
            fn cas(&self, old: $int, new: $int, good: Ordering) -> Result<$int, $int> {
                self.compare_exchange(old, new, good, Ordering::Relaxed)
            }

            #[inline]
            fn fence(order: Ordering) {
                atomic::fence(order);
            }
        }
    };
}

std_atom!(AtomicU64, u64);
std_atom!(AtomicU32, u32);

const FRAME_BITS: u32 = 30;
const VERSION_BITS: u32 = 23;
const VERSION_SHIFT: u32 = FRAME_BITS;
const AHEAD_SHIFT: u32 = VERSION_SHIFT + VERSION_BITS;
const FREQUENCY_SHIFT: u32 = AHEAD_SHIFT + 1;
const STATE_SHIFT: u32 = FREQUENCY_SHIFT + 2;

const FRAME_MASK: u64 = (1 << FRAME_BITS) - 1;
const VERSION_MASK: u64 = ((1 << VERSION_BITS) - 1) << VERSION_SHIFT;
const AHEAD: u64 = 1 << AHEAD_SHIFT;
const FREQUENCY_ONE: u64 = 1 << FREQUENCY_SHIFT;
const FREQUENCY_MASK: u64 = 3 << FREQUENCY_SHIFT;
/// All marks of a page's use.
const NOTES: u64 = FREQUENCY_MASK | AHEAD;
const STATE_ONE: u64 = 1 << STATE_SHIFT;
const STATE_MASK: u64 = 0x7f << STATE_SHIFT;
const WINDOW: u64 = 1 << 63;
/// In place of the frame of a page that lies in a window: a thread waits for the latch.
const WANTED: u64 = 1;

const EMPTY: u64 = 0;
const LOADING: u64 = 1;
const LOADING_AWAITED: u64 = 2;
const EXCLUSIVE: u64 = 3;
const RESIDENT: u64 = 4;

/// Number of frames that a word can address.
pub const FRAMES_MAX: u32 = 1 << FRAME_BITS;
/// Most pins that a word can count.
pub const PINS_MAX: u32 = (0x7f - RESIDENT) as u32;

/// Value of a word at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSnapshot(u64);

impl StateSnapshot {
    #[inline]
    fn state(self) -> u64 {
        (self.0 & STATE_MASK) >> STATE_SHIFT
    }

    /// Reports whether the word has no page.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.state() == EMPTY
    }

    /// Reports whether a thread is loading the page.
    #[inline]
    pub fn is_loading(self) -> bool {
        matches!(self.state(), LOADING | LOADING_AWAITED)
    }

    /// Reports whether a thread holds the latch, which lasts no longer than a copy takes.
    #[inline]
    pub fn is_exclusive(self) -> bool {
        self.state() == EXCLUSIVE
    }

    /// Reports whether the page is resident.
    #[inline]
    pub fn is_resident(self) -> bool {
        self.state() >= RESIDENT
    }

    /// Returns the number of pins in the word.
    #[inline]
    pub fn pins(self) -> u32 {
        self.state().saturating_sub(RESIDENT) as u32
    }

    /// Returns the frame number; valid for a page that lies in a frame.
    #[inline]
    pub fn frame(self) -> u32 {
        (self.0 & FRAME_MASK) as u32
    }

    /// Reports whether the page lies in its vnode's window; the frame number is then meaningless.
    #[inline]
    pub fn in_window(self) -> bool {
        self.0 & WINDOW != 0
    }

    /// Returns the location of a resident page.
    #[inline]
    pub fn home(self) -> PageLocation {
        if self.in_window() {
            PageLocation::Window
        } else {
            PageLocation::Frame(self.frame())
        }
    }

    /// Checks whether the page is resident in a frame and another pin fits.
    #[inline]
    pub fn has_room(self) -> bool {
        // One comparison of the top byte: the window's bit makes it too large.
        (self.0 >> STATE_SHIFT).wrapping_sub(RESIDENT) < u64::from(PINS_MAX)
    }

    /// Checks whether the page lies in a window and accepts another reader.
    #[inline]
    fn admits_reader(self) -> bool {
        self.in_window() && self.is_resident() && !self.is_full() && self.0 & WANTED == 0
    }

    /// Checks whether no further pin fits.
    #[inline]
    pub fn is_full(self) -> bool {
        self.pins() == PINS_MAX
    }

    /// Returns the value with one pin more.
    #[inline]
    pub fn pinned(self) -> StateSnapshot {
        StateSnapshot(self.0 + STATE_ONE)
    }

    /// Returns the number of uses since the marks were last cleared, 0 to 3.
    #[inline]
    pub fn frequency(self) -> u8 {
        ((self.0 & FREQUENCY_MASK) >> FREQUENCY_SHIFT) as u8
    }

    /// Reports whether the page was read ahead and has not been used.
    #[inline]
    pub fn is_ahead(self) -> bool {
        self.0 & AHEAD != 0
    }

    /// Returns the value after a use by the holder of the latch.
    pub fn used(self) -> StateSnapshot {
        if self.is_ahead() {
            return StateSnapshot(self.0 & !AHEAD);
        }
        if self.frequency() == 3 {
            return self;
        }
        StateSnapshot(self.0 + FREQUENCY_ONE)
    }

    /// Returns the value without use marks.
    #[inline]
    pub fn untouched(self) -> StateSnapshot {
        StateSnapshot(self.0 & !FREQUENCY_MASK)
    }

    /// Checks whether a page that was resident at `self` has been unchanged until `later`.
    #[inline]
    pub fn is_unchanged(self, later: StateSnapshot) -> bool {
        const SAME: u64 = WINDOW | VERSION_MASK | FRAME_MASK;
        later.is_resident() && (self.0 ^ later.0) & SAME == 0
    }

    fn with_state(self, state: u64) -> u64 {
        self.0 & !STATE_MASK | state << STATE_SHIFT
    }

    fn next_version(self) -> StateSnapshot {
        let version = self.0.wrapping_add(1 << VERSION_SHIFT) & VERSION_MASK;
        StateSnapshot(self.0 & !VERSION_MASK | version)
    }

    fn at(self, home: PageLocation) -> StateSnapshot {
        let place = match home {
            PageLocation::Frame(frame) => u64::from(frame),
            PageLocation::Window => WINDOW,
        };
        StateSnapshot(self.0 & !(FRAME_MASK | WINDOW) | place)
    }
}

/// Location of a resident page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageLocation {
    /// This frame of the pool.
    Frame(u32),
    /// The page's place in the window of its vnode.
    Window,
}

/// State word of one page.
pub struct PageState<A = AtomicU64>(A);

impl<A: Atom<Int = u64>> PageState<A> {
    /// Creates the word of an absent page.
    pub fn empty() -> Self {
        PageState(A::new(0))
    }

    /// Reads the current value, to be checked with [`PageState::is_unchanged`] after a copy.
    #[inline]
    pub fn load(&self) -> StateSnapshot {
        StateSnapshot(self.0.load(Ordering::Acquire))
    }

    /// Checks whether a copy made since `snap` is consistent.
    #[inline]
    pub fn is_unchanged(&self, snap: StateSnapshot) -> bool {
        A::fence(Ordering::Acquire);
        snap.is_unchanged(StateSnapshot(self.0.load(Ordering::Relaxed)))
    }

    /// Records a use of the page and returns whether it was the first use of a page that was read
    /// ahead. Saturates, so that a heavily used page is not written to.
    #[inline]
    pub fn touch(&self, snap: StateSnapshot) -> bool {
        // A page that is still marked as read ahead has no use marks.
        snap.0 & FREQUENCY_MASK != FREQUENCY_MASK && self.note_use(snap)
    }

    fn note_use(&self, snap: StateSnapshot) -> bool {
        if snap.is_ahead() {
            return self.take_ahead(snap);
        }
        // Losing the race to another change loses one use mark, which is harmless.
        let _ = self
            .0
            .cas(snap.0, snap.0 + FREQUENCY_ONE, Ordering::Relaxed);
        false
    }

    /// Clears the read-ahead mark; returns whether this call did, on the unchanged page.
    #[cold]
    fn take_ahead(&self, snap: StateSnapshot) -> bool {
        let mut now = snap;
        while now.is_ahead() && snap.is_unchanged(now) {
            match self.0.cas(now.0, now.0 & !AHEAD, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = StateSnapshot(other),
            }
        }
        false
    }

    /// Clears the use marks.
    pub fn forget_touches(&self) {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & FREQUENCY_MASK != 0 {
            match self.0.cas(now, now & !FREQUENCY_MASK, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Pins the frame of a resident page and returns it, or `None` if the word has changed or has
    /// no room for a pin.
    #[inline]
    pub fn pin(&self, snap: StateSnapshot) -> Option<u32> {
        if !snap.has_room() {
            return None;
        }
        let pinned = snap.0 + STATE_ONE;
        self.0.cas(snap.0, pinned, Ordering::Acquire).ok()?;
        Some(snap.frame())
    }

    /// Releases a hold on `frame`. `false`: its pin has become a count in the frame's [`FrameRefs`],
    /// and the caller releases one there.
    ///
    /// Pins and counts of one frame are interchangeable, so it does not matter whose pin is
    /// removed: a frame that is held is not reused for another page, and only the sum counts.
    #[inline]
    pub fn unpin(&self, frame: u32) -> bool {
        let mut now = StateSnapshot(self.0.load(Ordering::Relaxed));
        while now.pins() > 0 && (now.0 ^ u64::from(frame)) & (WINDOW | FRAME_MASK) == 0 {
            match self.0.cas(now.0, now.0 - STATE_ONE, Ordering::Release) {
                Ok(_) => return true,
                Err(other) => now = StateSnapshot(other),
            }
        }
        false
    }

    /// Begins to read a page that lies in a window, which stays there until [`PageState::end_read`].
    /// `false`: the word has changed, or a thread is waiting for the latch.
    pub fn begin_read(&self, snap: StateSnapshot) -> bool {
        let reading = snap.0.wrapping_add(STATE_ONE);
        snap.admits_reader() && self.0.cas(snap.0, reading, Ordering::Acquire).is_ok()
    }

    /// Ends a read begun by [`PageState::begin_read`].
    pub fn end_read(&self) {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(StateSnapshot(now).in_window() && StateSnapshot(now).pins() > 0);
            match self.0.cas(now, now - STATE_ONE, Ordering::Release) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Prevents further readers of a page in a window from beginning. The caller must keep trying
    /// for the latch until it has it or the page is no longer resident.
    pub fn want(&self, snap: StateSnapshot) {
        if snap.in_window() && snap.pins() > 0 && snap.0 & WANTED == 0 {
            let _ = self.0.cas(snap.0, snap.0 | WANTED, Ordering::Relaxed);
        }
    }

    /// Changes an absent page to one that the caller loads into `frame`; returns whether it won.
    pub fn begin_load(&self, snap: StateSnapshot, frame: u32) -> bool {
        debug_assert!(frame < FRAMES_MAX);
        if !snap.is_empty() {
            return false;
        }
        let loading = snap.at(PageLocation::Frame(frame)).with_state(LOADING);
        let won = self.0.cas(snap.0, loading, Ordering::AcqRel).is_ok();
        // A thread that locks a range registers it and then checks the words; a thread that loads a
        // page changes the word and then checks the ranges. One of them sees the other.
        A::fence(Ordering::SeqCst);
        won
    }

    /// Marks a load as awaited, so that its end reports a waiter. `false`: the word has changed.
    pub fn await_load(&self, snap: StateSnapshot) -> bool {
        match snap.state() {
            LOADING_AWAITED => true,
            LOADING => {
                let awaited = snap.with_state(LOADING_AWAITED);
                self.0.cas(snap.0, awaited, Ordering::AcqRel).is_ok()
            }
            _ => false,
        }
    }

    /// Ends a load and makes the page readable. Returns whether a session waits for it.
    pub fn publish(&self) -> bool {
        self.end_load(|now| now.next_version().with_state(RESIDENT))
    }

    /// Ends a load like [`PageState::publish`], for a page that was read ahead.
    pub fn publish_ahead(&self) -> bool {
        self.end_load(|now| now.next_version().with_state(RESIDENT) | AHEAD)
    }

    /// Ends a load without a page. Returns whether a session waits for it.
    pub fn abort_load(&self) -> bool {
        self.end_load(|now| {
            now.next_version()
                .at(PageLocation::Frame(0))
                .with_state(EMPTY)
                & !NOTES
        })
    }

    fn end_load(&self, next: impl Fn(StateSnapshot) -> u64) -> bool {
        let mut now = StateSnapshot(self.0.load(Ordering::Relaxed));
        loop {
            debug_assert!(now.is_loading());
            match self.0.cas(now.0, next(now), Ordering::AcqRel) {
                Ok(_) => return now.state() == LOADING_AWAITED,
                Err(other) => now = StateSnapshot(other),
            }
        }
    }

    /// Takes a resident page for exclusive use. Existing pins become counts in `holds`, which must
    /// be those of the frame in `snap`. `None`: the word has changed, or the page lies in a window
    /// and is being read.
    ///
    /// Calls `released` if the counts had to be undone and the frame turned out to be an unheld
    /// orphan, which the caller must free.
    pub fn latch<H: Atom<Int = u32>>(
        &self,
        snap: StateSnapshot,
        holds: &FrameRefs<H>,
        released: impl FnOnce(),
    ) -> Option<StateSnapshot> {
        if !snap.is_resident() {
            return None;
        }
        let pins = snap.pins();
        if snap.in_window() {
            if pins > 0 {
                return None;
            }
        } else if pins > 0 {
            holds.add(pins);
        }
        let latched = snap.at(snap.home()).with_state(EXCLUSIVE);
        if self.0.cas(snap.0, latched, Ordering::Acquire).is_ok() {
            // A reader that sees a byte of a later store must also see that the word has changed.
            A::fence(Ordering::Release);
            return Some(StateSnapshot(latched));
        }
        if pins > 0 && holds.release(pins) {
            released();
        }
        None
    }

    /// Releases the latch of an unchanged page.
    pub fn unlatch(&self, latched: StateSnapshot) {
        self.store_exclusive(latched.with_state(RESIDENT));
    }

    /// Releases the latch of a changed page, which now lies at `home`.
    pub fn unlatch_changed(&self, latched: StateSnapshot, home: PageLocation) {
        self.store_exclusive(latched.next_version().at(home).with_state(RESIDENT));
    }

    /// Removes a latched page.
    pub fn clear(&self, latched: StateSnapshot) {
        let gone = latched
            .next_version()
            .at(PageLocation::Frame(0))
            .with_state(EMPTY);
        self.store_exclusive(gone & !NOTES);
    }

    /// Stores `next` into an exclusive word. Only the holder changes such a word, except that use
    /// marks may be cleared.
    fn store_exclusive(&self, next: u64) {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(StateSnapshot(now).is_exclusive());
            match self.0.cas(now, next, Ordering::Release) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }
}

/// The top bit of [`FrameRefs`]: the frame no longer belongs to a page.
const ORPHAN: u32 = 1 << 31;

/// Number of holds on a frame beyond the pins in its page's word.
pub struct FrameRefs<A = AtomicU32>(A);

impl<A: Atom<Int = u32>> FrameRefs<A> {
    /// Creates the holds of an unheld frame.
    pub fn none() -> Self {
        FrameRefs(A::new(0))
    }

    /// Checks whether the frame is held. The caller has the page's latch; `false` then stays true
    /// until the latch is released.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) & !ORPHAN != 0
    }

    /// Adds `count` holds. The caller has the page's latch, or holds the frame already, or undoes
    /// the addition.
    pub fn add(&self, count: u32) {
        self.change(|now| now + count);
    }

    /// Releases `count` holds. `true`: the frame was an orphan, and the caller must free it.
    #[must_use = "an orphan must be freed"]
    pub fn release(&self, count: u32) -> bool {
        let after = self.change(|now| match now - count {
            ORPHAN => 0,
            rest => rest,
        });
        after.0 & ORPHAN != 0 && after.1 == 0
    }

    /// Detaches the frame from its page. `true`: it is not held, and the caller must free it.
    #[must_use = "an unpinned frame must be freed"]
    pub fn orphan(&self) -> bool {
        self.change(|now| if now == 0 { 0 } else { now | ORPHAN }).1 == 0
    }

    /// Applies `next` and returns the values before and after.
    fn change(&self, next: impl Fn(u32) -> u32) -> (u32, u32) {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let after = next(now);
            match self.0.cas(now, after, Ordering::AcqRel) {
                Ok(_) => return (now, after),
                Err(other) => now = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(frame: u32) -> PageState {
        let word = PageState::<AtomicU64>::empty();
        assert!(word.begin_load(word.load(), frame));
        assert!(!word.publish());
        word
    }

    fn latch(word: &PageState, holds: &FrameRefs) -> StateSnapshot {
        word.latch(word.load(), holds, || panic!("not free"))
            .expect("it is resident")
    }

    #[test]
    fn a_page_is_loaded_read_changed_and_taken_away() {
        let (word, holds) = (resident(7), FrameRefs::<AtomicU32>::none());
        let before = word.load();
        assert_eq!((before.frame(), before.pins()), (7, 0));
        word.touch(before);
        assert!(word.is_unchanged(before), "a note of use is no change");
        let latched = latch(&word, &holds);
        assert!(!word.is_unchanged(before) && word.load().is_exclusive());
        word.unlatch(latched);
        assert!(word.is_unchanged(before));
        word.unlatch_changed(latch(&word, &holds), PageLocation::Frame(7));
        assert!(!word.is_unchanged(before), "the version has changed");
        word.clear(latch(&word, &holds));
        assert!(word.load().is_empty());
        assert_eq!((word.load().frame(), word.load().frequency()), (0, 0));
    }

    #[test]
    fn touches_saturate_and_are_forgotten() {
        let word = resident(1);
        for expected in [1, 2, 3, 3] {
            word.touch(word.load());
            assert_eq!(word.load().frequency(), expected);
        }
        word.forget_touches();
        assert_eq!(word.load().frequency(), 0);
    }

    #[test]
    fn a_page_read_ahead_is_used_once_and_referenced_from_then_on() {
        let word = PageState::<AtomicU64>::empty();
        let holds = FrameRefs::<AtomicU32>::none();
        assert!(word.begin_load(word.load(), 1));
        assert!(!word.publish_ahead());
        let before = word.load();
        assert!(before.is_ahead() && word.pin(before).is_some());
        assert!(word.touch(before), "a pin in between does not hide it");
        assert!(!word.touch(before) && !word.touch(word.load()));
        assert_eq!(
            (word.load().is_ahead(), word.load().frequency()),
            (false, 1)
        );
        assert!(word.unpin(1));
        let latched = latch(&word, &holds);
        assert_eq!(latched.used().frequency(), 2);
        word.unlatch(latched);
        word.clear(latch(&word, &holds));
        assert!(word.begin_load(word.load(), 1));
        assert!(!word.publish_ahead());
        let unused = word.load();
        word.clear(latch(&word, &holds));
        assert!(!word.touch(unused), "it is gone");
        assert!(!word.load().is_ahead());
    }

    #[test]
    fn a_latch_turns_pins_into_counts_and_the_last_holder_of_an_orphan_frees_it() {
        let (word, holds) = (resident(5), FrameRefs::<AtomicU32>::none());
        assert_eq!(word.pin(word.load()), Some(5));
        assert_eq!(word.pin(word.load()), Some(5));
        assert!(word.unpin(5));
        let latched = latch(&word, &holds);
        assert!(holds.any());
        assert!(!holds.orphan(), "it is held");
        word.unlatch_changed(latched, PageLocation::Frame(6));
        assert!(!word.unpin(5), "the pin is a count now");
        assert!(holds.release(1), "the last one frees it");
        assert!(!holds.any());
        assert!(holds.orphan(), "nobody holds it");
    }

    #[test]
    fn a_word_full_of_pins_takes_no_more() {
        let word = resident(5);
        (0..PINS_MAX).for_each(|_| assert!(word.pin(word.load()).is_some()));
        assert!(word.pin(word.load()).is_none());
    }

    #[test]
    fn who_waits_for_a_load_is_reported() {
        let word = PageState::<AtomicU64>::empty();
        assert!(word.begin_load(word.load(), 3));
        assert!(!word.begin_load(word.load(), 4));
        assert!(word.await_load(word.load()));
        assert!(word.await_load(word.load()));
        assert!(word.abort_load());
        assert!(word.load().is_empty() && !word.await_load(word.load()));
    }

    #[test]
    fn a_page_in_the_window_cannot_be_pinned() {
        let (word, holds) = (resident(5), FrameRefs::<AtomicU32>::none());
        word.unlatch_changed(latch(&word, &holds), PageLocation::Window);
        assert!(word.load().in_window() && word.pin(word.load()).is_none());
        word.unlatch_changed(latch(&word, &holds), PageLocation::Frame(9));
        assert_eq!((word.load().in_window(), word.load().frame()), (false, 9));
        assert!(!word.begin_read(word.load()), "it is in a frame");
    }

    #[test]
    fn readers_in_a_window_keep_the_latch_away_until_it_is_wanted() {
        let (word, holds) = (resident(5), FrameRefs::<AtomicU32>::none());
        word.unlatch_changed(latch(&word, &holds), PageLocation::Window);
        word.want(word.load());
        assert!(word.begin_read(word.load()) && word.begin_read(word.load()));
        let refused = |word: &PageState| word.latch(word.load(), &holds, || ()).is_none();
        assert!(refused(&word));
        word.want(word.load());
        assert!(!word.begin_read(word.load()));
        word.end_read();
        assert!(refused(&word));
        word.end_read();
        word.unlatch(latch(&word, &holds));
        assert!(word.begin_read(word.load()), "the wish went with the latch");
        assert!(!holds.any());
    }
}
