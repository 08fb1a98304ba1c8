//! The word of a page: where the page is, and who may touch it, in one atomic of 64 bits.
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
//! * A version changes whenever what the page holds may have changed: at publish, at clear, and when
//!   a latch is given back after a change. Two equal looks at a resident word with a copy between
//!   them mean that the copy is whole.
//! * A frame somebody holds is never changed. A hold is a pin in the word or a count in the frame's
//!   [`Holds`]; a latch turns the pins it finds into counts first, so that a writer never waits for
//!   a reader: it sees the counts and takes another frame.
//! * A page that was read ahead says so until its first use, which is no note of use yet. Either one
//!   reader takes that away, or whoever takes the page away finds it: used and wasted are exact.
//! * A frame that left its page while it was held is an orphan; whoever drops the last hold frees it,
//!   and nobody else does.
//! * A page in a window has no other place to go to, and its memory goes when the page does. So who
//!   reads it counts itself in for the time of the copy, and a latch waits until nobody is. Who wants
//!   the latch says so in the word, and then no reader begins before that latch was given back.
//!
//! A version has 23 bits, so a copy that stalls while one page is changed exactly 2^23 times could
//! pass for whole; at the speed of memory that is a stall of seconds that ends on one write of
//! eight million. A frame has 30 bits: 4 TiB of pages.
//!
//! Everything here is generic over the atomics, so that `tests/loom.rs` can try every interleaving.

use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// An atomic integer and the fence that goes with it: the standard library's, or a model checker's.
pub trait Atom {
    /// What it holds.
    type Int: Copy;
    /// One that holds `value`.
    fn new(value: Self::Int) -> Self;
    /// Reads.
    fn load(&self, order: Ordering) -> Self::Int;
    /// Replaces `old` by `new`, or gives what was there.
    fn cas(&self, old: Self::Int, new: Self::Int, good: Ordering) -> Result<Self::Int, Self::Int>;
    /// A fence of the same world.
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
/// What is noted of the use of a page.
const NOTES: u64 = FREQUENCY_MASK | AHEAD;
const STATE_ONE: u64 = 1 << STATE_SHIFT;
const STATE_MASK: u64 = 0x7f << STATE_SHIFT;
const WINDOW: u64 = 1 << 63;
/// In place of the frame of a page that lies in a window: somebody wants the latch.
const WANTED: u64 = 1;

const EMPTY: u64 = 0;
const LOADING: u64 = 1;
const LOADING_AWAITED: u64 = 2;
const EXCLUSIVE: u64 = 3;
const RESIDENT: u64 = 4;

/// Frames a word can name.
pub const FRAMES_MAX: u32 = 1 << FRAME_BITS;
/// Pins a word can count.
pub const PINS_MAX: u32 = (0x7f - RESIDENT) as u32;

/// What a word said at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snap(u64);

impl Snap {
    #[inline]
    fn state(self) -> u64 {
        (self.0 & STATE_MASK) >> STATE_SHIFT
    }

    /// There is no page.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.state() == EMPTY
    }

    /// Somebody brings the page.
    #[inline]
    pub fn is_loading(self) -> bool {
        matches!(self.state(), LOADING | LOADING_AWAITED)
    }

    /// Somebody changes the page, for no longer than a copy takes.
    #[inline]
    pub fn is_exclusive(self) -> bool {
        self.state() == EXCLUSIVE
    }

    /// The page is there.
    #[inline]
    pub fn is_resident(self) -> bool {
        self.state() >= RESIDENT
    }

    /// Pins in the word.
    #[inline]
    pub fn pins(self) -> u32 {
        self.state().saturating_sub(RESIDENT) as u32
    }

    /// The frame, where there is one.
    #[inline]
    pub fn frame(self) -> u32 {
        (self.0 & FRAME_MASK) as u32
    }

    /// The page lies in its vnode's window; the frame means nothing then.
    #[inline]
    pub fn in_window(self) -> bool {
        self.0 & WINDOW != 0
    }

    /// Where a page lies that is there.
    #[inline]
    pub fn home(self) -> Home {
        match self.in_window() {
            true => Home::Window,
            false => Home::Frame(self.frame()),
        }
    }

    /// The page is there, in a frame, and there is room for another pin.
    #[inline]
    pub fn has_room(self) -> bool {
        // One comparison of the top byte: the window's bit makes it too large.
        (self.0 >> STATE_SHIFT).wrapping_sub(RESIDENT) < u64::from(PINS_MAX)
    }

    /// The page lies in a window and may be read now.
    #[inline]
    fn admits_reader(self) -> bool {
        self.in_window() && self.is_resident() && !self.is_full() && self.0 & WANTED == 0
    }

    /// There is no room for another pin.
    #[inline]
    pub fn is_full(self) -> bool {
        self.pins() == PINS_MAX
    }

    /// The same with the pin that was taken on it.
    #[inline]
    pub fn pinned(self) -> Snap {
        Snap(self.0 + STATE_ONE)
    }

    /// How often the page was touched since somebody asked, 0 to 3.
    #[inline]
    pub fn frequency(self) -> u8 {
        ((self.0 & FREQUENCY_MASK) >> FREQUENCY_SHIFT) as u8
    }

    /// The page was read ahead, and nobody has used it yet.
    #[inline]
    pub fn is_ahead(self) -> bool {
        self.0 & AHEAD != 0
    }

    /// The same after a use by the holder of the latch.
    pub fn used(self) -> Snap {
        if self.is_ahead() {
            return Snap(self.0 & !AHEAD);
        }
        if self.frequency() == 3 {
            return self;
        }
        Snap(self.0 + FREQUENCY_ONE)
    }

    /// The same without notes of use.
    #[inline]
    pub fn untouched(self) -> Snap {
        Snap(self.0 & !FREQUENCY_MASK)
    }

    /// Whether a page that was resident at `self` has been there unchanged until `later`.
    #[inline]
    pub fn still(self, later: Snap) -> bool {
        const SAME: u64 = WINDOW | VERSION_MASK | FRAME_MASK;
        later.is_resident() && (self.0 ^ later.0) & SAME == 0
    }

    fn with_state(self, state: u64) -> u64 {
        self.0 & !STATE_MASK | state << STATE_SHIFT
    }

    fn next_version(self) -> Snap {
        let version = self.0.wrapping_add(1 << VERSION_SHIFT) & VERSION_MASK;
        Snap(self.0 & !VERSION_MASK | version)
    }

    fn at(self, home: Home) -> Snap {
        let place = match home {
            Home::Frame(frame) => u64::from(frame),
            Home::Window => WINDOW,
        };
        Snap(self.0 & !(FRAME_MASK | WINDOW) | place)
    }
}

/// Where a page lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// In this frame of the pool.
    Frame(u32),
    /// At its place in the window of its vnode.
    Window,
}

/// The word of one page.
pub struct Word<A = AtomicU64>(A);

impl<A: Atom<Int = u64>> Word<A> {
    /// The word of a page that is not there.
    pub fn empty() -> Self {
        Word(A::new(0))
    }

    /// A look, before a copy.
    #[inline]
    pub fn look(&self) -> Snap {
        Snap(self.0.load(Ordering::Acquire))
    }

    /// Whether what was copied since `snap` is whole.
    #[inline]
    pub fn still(&self, snap: Snap) -> bool {
        A::fence(Ordering::Acquire);
        snap.still(Snap(self.0.load(Ordering::Relaxed)))
    }

    /// Notes that the page was used; saturates, so a page in heavy use is not written to. Says
    /// whether it was the first use of a page that was read ahead.
    #[inline]
    pub fn touch(&self, snap: Snap) -> bool {
        // A page that is still ahead has no notes of use.
        snap.0 & FREQUENCY_MASK != FREQUENCY_MASK && self.note_use(snap)
    }

    fn note_use(&self, snap: Snap) -> bool {
        if snap.is_ahead() {
            return self.take_ahead(snap);
        }
        // Losing the race to another change loses one note, which is all it costs.
        let _ = self
            .0
            .cas(snap.0, snap.0 + FREQUENCY_ONE, Ordering::Relaxed);
        false
    }

    /// Takes away that the page is ahead, if this is the first to try and the page is still there.
    #[cold]
    fn take_ahead(&self, snap: Snap) -> bool {
        let mut now = snap;
        while now.is_ahead() && snap.still(now) {
            match self.0.cas(now.0, now.0 & !AHEAD, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = Snap(other),
            }
        }
        false
    }

    /// Takes the notes of use away.
    pub fn forget_touches(&self) {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & FREQUENCY_MASK != 0 {
            match self.0.cas(now, now & !FREQUENCY_MASK, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Holds the frame of a resident page in place by a pin in the word; `None`: the word says
    /// something else by now, or has no room for a pin.
    #[inline]
    pub fn pin(&self, snap: Snap) -> Option<u32> {
        if !snap.has_room() {
            return None;
        }
        let pinned = snap.0 + STATE_ONE;
        self.0.cas(snap.0, pinned, Ordering::Acquire).ok()?;
        Some(snap.frame())
    }

    /// Gives a hold on `frame` back. `false`: its pin has become a count in the frame's [`Holds`],
    /// and the caller releases one there.
    ///
    /// Pins and counts of one frame are alike, so it does not matter whose pin is taken: a frame
    /// that is held does not return to another page, and the sum is what counts.
    #[inline]
    pub fn unpin(&self, frame: u32) -> bool {
        let mut now = Snap(self.0.load(Ordering::Relaxed));
        while now.pins() > 0 && (now.0 ^ u64::from(frame)) & (WINDOW | FRAME_MASK) == 0 {
            match self.0.cas(now.0, now.0 - STATE_ONE, Ordering::Release) {
                Ok(_) => return true,
                Err(other) => now = Snap(other),
            }
        }
        false
    }

    /// Begins to read a page that lies in a window, which stays there until [`Word::end_read`].
    /// `false`: the word says something else by now, or somebody wants the latch first.
    pub fn begin_read(&self, snap: Snap) -> bool {
        let reading = snap.0.wrapping_add(STATE_ONE);
        snap.admits_reader() && self.0.cas(snap.0, reading, Ordering::Acquire).is_ok()
    }

    /// Ends what [`Word::begin_read`] has begun.
    pub fn end_read(&self) {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(Snap(now).in_window() && Snap(now).pins() > 0);
            match self.0.cas(now, now - STATE_ONE, Ordering::Release) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Keeps further readers of a page in a window from beginning. By who goes on trying for the
    /// latch until it has it, or the page is gone.
    pub fn want(&self, snap: Snap) {
        if snap.in_window() && snap.pins() > 0 && snap.0 & WANTED == 0 {
            let _ = self.0.cas(snap.0, snap.0 | WANTED, Ordering::Relaxed);
        }
    }

    /// Makes a page that is not there one that the caller brings, into `frame`.
    pub fn begin_load(&self, snap: Snap, frame: u32) -> bool {
        debug_assert!(frame < FRAMES_MAX);
        if !snap.is_empty() {
            return false;
        }
        let loading = snap.at(Home::Frame(frame)).with_state(LOADING);
        let won = self.0.cas(snap.0, loading, Ordering::AcqRel).is_ok();
        // Whoever locks a range registers it and then looks at the words; whoever brings a page
        // changes the word and then looks at the ranges. One of them sees the other.
        A::fence(Ordering::SeqCst);
        won
    }

    /// Asks to be told when a page that is being brought is there. `false`: it is by now.
    pub fn await_load(&self, snap: Snap) -> bool {
        match snap.state() {
            LOADING_AWAITED => true,
            LOADING => {
                let awaited = snap.with_state(LOADING_AWAITED);
                self.0.cas(snap.0, awaited, Ordering::AcqRel).is_ok()
            }
            _ => false,
        }
    }

    /// Ends a load: everybody may read. Says whether somebody waits.
    pub fn publish(&self) -> bool {
        self.end_load(|now| now.next_version().with_state(RESIDENT))
    }

    /// Ends the load of a page that was read ahead: everybody may read. Says whether somebody waits.
    pub fn publish_ahead(&self) -> bool {
        self.end_load(|now| now.next_version().with_state(RESIDENT) | AHEAD)
    }

    /// Ends a load without a page. Says whether somebody waits.
    pub fn abort_load(&self) -> bool {
        self.end_load(|now| now.next_version().at(Home::Frame(0)).with_state(EMPTY) & !NOTES)
    }

    fn end_load(&self, next: impl Fn(Snap) -> u64) -> bool {
        let mut now = Snap(self.0.load(Ordering::Relaxed));
        loop {
            debug_assert!(now.is_loading());
            match self.0.cas(now.0, next(now), Ordering::AcqRel) {
                Ok(_) => return now.state() == LOADING_AWAITED,
                Err(other) => now = Snap(other),
            }
        }
    }

    /// Takes a resident page for the caller alone. Pins that are there become counts in `holds`,
    /// which are those of the frame in `snap`. `None`: the word says something else by now, or
    /// somebody reads the page in its window.
    ///
    /// `released` is told when the counts had to be taken back and the frame turned out to be an
    /// orphan of nobody: the caller frees it.
    pub fn latch<H: Atom<Int = u32>>(
        &self,
        snap: Snap,
        holds: &Holds<H>,
        released: impl FnOnce(),
    ) -> Option<Snap> {
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
            // A reader that sees a byte of what follows must also see that the word has changed.
            A::fence(Ordering::Release);
            return Some(Snap(latched));
        }
        if pins > 0 && holds.release(pins) {
            released();
        }
        None
    }

    /// Gives a latched page back as it was.
    pub fn unlatch(&self, latched: Snap) {
        self.settle(latched.with_state(RESIDENT));
    }

    /// Gives a latched page back changed, wherever it lies now.
    pub fn unlatch_changed(&self, latched: Snap, home: Home) {
        self.settle(latched.next_version().at(home).with_state(RESIDENT));
    }

    /// Takes a latched page away.
    pub fn clear(&self, latched: Snap) {
        let gone = latched.next_version().at(Home::Frame(0)).with_state(EMPTY);
        self.settle(gone & !NOTES);
    }

    /// Nobody but the holder changes an exclusive word, except for notes of use taken away.
    fn settle(&self, next: u64) {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(Snap(now).is_exclusive());
            match self.0.cas(now, next, Ordering::Release) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }
}

/// The top bit of [`Holds`]: the frame belongs to no page any more.
const ORPHAN: u32 = 1 << 31;

/// Who holds a frame beyond the pins in its page's word.
pub struct Holds<A = AtomicU32>(A);

impl<A: Atom<Int = u32>> Holds<A> {
    /// Of a frame that nobody holds.
    pub fn none() -> Self {
        Holds(A::new(0))
    }

    /// Whether somebody holds the frame. Asked by who has the page's latch, after which the answer
    /// `false` stays true until the latch is given back.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) & !ORPHAN != 0
    }

    /// Holds the frame `count` times. The caller has the page's latch, or holds the frame already, or
    /// takes back what it adds.
    pub fn add(&self, count: u32) {
        self.change(|now| now + count);
    }

    /// Gives `count` holds back. `true`: the frame was an orphan and is the caller's to free.
    #[must_use = "an orphan has to be freed"]
    pub fn release(&self, count: u32) -> bool {
        let after = self.change(|now| match now - count {
            ORPHAN => 0,
            rest => rest,
        });
        after.0 & ORPHAN != 0 && after.1 == 0
    }

    /// The frame leaves its page. `true`: nobody holds it, and it is the caller's to free.
    #[must_use = "a frame that nobody holds has to be freed"]
    pub fn orphan(&self) -> bool {
        self.change(|now| if now == 0 { 0 } else { now | ORPHAN }).1 == 0
    }

    /// What was there and what is there now.
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

    fn resident(frame: u32) -> Word {
        let word = Word::<AtomicU64>::empty();
        assert!(word.begin_load(word.look(), frame));
        assert!(!word.publish());
        word
    }

    fn latch(word: &Word, holds: &Holds) -> Snap {
        word.latch(word.look(), holds, || panic!("not free"))
            .expect("it is resident")
    }

    #[test]
    fn a_page_is_loaded_read_changed_and_taken_away() {
        let (word, holds) = (resident(7), Holds::<AtomicU32>::none());
        let before = word.look();
        assert_eq!((before.frame(), before.pins()), (7, 0));
        word.touch(before);
        assert!(word.still(before), "a note of use is no change");
        let latched = latch(&word, &holds);
        assert!(!word.still(before) && word.look().is_exclusive());
        word.unlatch(latched);
        assert!(word.still(before));
        word.unlatch_changed(latch(&word, &holds), Home::Frame(7));
        assert!(!word.still(before), "the version has changed");
        word.clear(latch(&word, &holds));
        assert!(word.look().is_empty());
        assert_eq!((word.look().frame(), word.look().frequency()), (0, 0));
    }

    #[test]
    fn touches_saturate_and_are_forgotten() {
        let word = resident(1);
        for expected in [1, 2, 3, 3] {
            word.touch(word.look());
            assert_eq!(word.look().frequency(), expected);
        }
        word.forget_touches();
        assert_eq!(word.look().frequency(), 0);
    }

    #[test]
    fn a_page_read_ahead_is_used_once_and_referenced_from_then_on() {
        let word = Word::<AtomicU64>::empty();
        let holds = Holds::<AtomicU32>::none();
        assert!(word.begin_load(word.look(), 1));
        assert!(!word.publish_ahead());
        let before = word.look();
        assert!(before.is_ahead() && word.pin(before).is_some());
        assert!(word.touch(before), "a pin in between does not hide it");
        assert!(!word.touch(before) && !word.touch(word.look()));
        assert_eq!(
            (word.look().is_ahead(), word.look().frequency()),
            (false, 1)
        );
        assert!(word.unpin(1));
        let latched = latch(&word, &holds);
        assert_eq!(latched.used().frequency(), 2);
        word.unlatch(latched);
        word.clear(latch(&word, &holds));
        assert!(word.begin_load(word.look(), 1));
        assert!(!word.publish_ahead());
        let unused = word.look();
        word.clear(latch(&word, &holds));
        assert!(!word.touch(unused), "it is gone");
        assert!(!word.look().is_ahead());
    }

    #[test]
    fn a_latch_turns_pins_into_counts_and_the_last_holder_of_an_orphan_frees_it() {
        let (word, holds) = (resident(5), Holds::<AtomicU32>::none());
        assert_eq!(word.pin(word.look()), Some(5));
        assert_eq!(word.pin(word.look()), Some(5));
        assert!(word.unpin(5));
        let latched = latch(&word, &holds);
        assert!(holds.any());
        assert!(!holds.orphan(), "it is held");
        word.unlatch_changed(latched, Home::Frame(6));
        assert!(!word.unpin(5), "the pin is a count now");
        assert!(holds.release(1), "the last one frees it");
        assert!(!holds.any());
        assert!(holds.orphan(), "nobody holds it");
    }

    #[test]
    fn a_word_full_of_pins_takes_no_more() {
        let word = resident(5);
        (0..PINS_MAX).for_each(|_| assert!(word.pin(word.look()).is_some()));
        assert!(word.pin(word.look()).is_none());
    }

    #[test]
    fn who_waits_for_a_load_is_reported() {
        let word = Word::<AtomicU64>::empty();
        assert!(word.begin_load(word.look(), 3));
        assert!(!word.begin_load(word.look(), 4));
        assert!(word.await_load(word.look()));
        assert!(word.await_load(word.look()));
        assert!(word.abort_load());
        assert!(word.look().is_empty() && !word.await_load(word.look()));
    }

    #[test]
    fn a_page_in_the_window_cannot_be_pinned() {
        let (word, holds) = (resident(5), Holds::<AtomicU32>::none());
        word.unlatch_changed(latch(&word, &holds), Home::Window);
        assert!(word.look().in_window() && word.pin(word.look()).is_none());
        word.unlatch_changed(latch(&word, &holds), Home::Frame(9));
        assert_eq!((word.look().in_window(), word.look().frame()), (false, 9));
        assert!(!word.begin_read(word.look()), "it is in a frame");
    }

    #[test]
    fn readers_in_a_window_keep_the_latch_away_until_it_is_wanted() {
        let (word, holds) = (resident(5), Holds::<AtomicU32>::none());
        word.unlatch_changed(latch(&word, &holds), Home::Window);
        word.want(word.look());
        assert!(word.begin_read(word.look()) && word.begin_read(word.look()));
        let refused = |word: &Word| word.latch(word.look(), &holds, || ()).is_none();
        assert!(refused(&word));
        word.want(word.look());
        assert!(!word.begin_read(word.look()));
        word.end_read();
        assert!(refused(&word));
        word.end_read();
        word.unlatch(latch(&word, &holds));
        assert!(word.begin_read(word.look()), "the wish went with the latch");
        assert!(!holds.any());
    }
}
