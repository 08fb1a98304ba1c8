//! Every interleaving of the word and of holds, by loom:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p cache --release --test loom
//! ```
//!
//! The page is one byte in an atomic of its own, so that a torn or late read shows as a wrong value;
//! a frame that is freed twice, or changed while it is held, shows as an assertion.
#![cfg(loom)]

use cache::word::{Atom, Holds, Home, Word};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use loom::thread;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// loom's atomics in the word's clothes.
struct A64(AtomicU64);
struct A32(AtomicU32);

macro_rules! atom {
    ($name:ident, $inner:ident, $int:ty) => {
        impl Atom for $name {
            type Int = $int;

            fn new(value: $int) -> Self {
                $name($inner::new(value))
            }

            fn load(&self, order: Ordering) -> $int {
                self.0.load(order)
            }

            fn cas(&self, old: $int, new: $int, good: Ordering) -> Result<$int, $int> {
                self.0.compare_exchange(old, new, good, Relaxed)
            }

            fn fence(order: Ordering) {
                fence(order);
            }
        }
    };
}

atom!(A64, AtomicU64, u64);
atom!(A32, AtomicU32, u32);

const FRAMES: usize = 3;

/// A page and a pool of three frames.
struct Page {
    word: Word<A64>,
    data: [[AtomicUsize; 2]; FRAMES],
    holds: [Holds<A32>; FRAMES],
    /// How often each frame was freed.
    freed: [AtomicUsize; FRAMES],
}

impl Page {
    /// Resident in frame 0, both halves holding 1.
    fn resident() -> Arc<Page> {
        let page = Page {
            word: Word::empty(),
            data: std::array::from_fn(|_| [AtomicUsize::new(0), AtomicUsize::new(0)]),
            holds: std::array::from_fn(|_| Holds::none()),
            freed: std::array::from_fn(|_| AtomicUsize::new(0)),
        };
        assert!(page.word.begin_load(page.word.look(), 0));
        page.set(0, 1);
        page.word.publish();
        Arc::new(page)
    }

    fn set(&self, frame: u32, value: usize) {
        let [one, two] = &self.data[frame as usize];
        one.store(value, Relaxed);
        two.store(value, Relaxed);
    }

    fn get(&self, frame: u32) -> (usize, usize) {
        let [one, two] = &self.data[frame as usize];
        (one.load(Relaxed), two.load(Relaxed))
    }

    fn free(&self, frame: u32) {
        assert_eq!(
            self.freed[frame as usize].fetch_add(1, SeqCst),
            0,
            "freed twice"
        );
    }

    /// As a writer does it: in place if nobody holds the frame, else in `spare`. `None`: no page, or
    /// somebody else has it.
    fn write(&self, value: usize, spare: u32) -> Option<u32> {
        let snap = self.word.look();
        let frame = snap.frame();
        let holds = &self.holds[frame as usize];
        let latched = self.word.latch(snap, holds, || self.free(frame))?;
        let to = if holds.any() { spare } else { frame };
        self.set(to, value);
        if to != frame && holds.orphan() {
            self.free(frame);
        }
        self.word.unlatch_changed(latched, Home::Frame(to));
        Some(to)
    }

    /// As a reader does it that copies.
    fn copy(&self) -> Option<(usize, usize)> {
        let snap = self.word.look();
        if !snap.is_resident() {
            return None;
        }
        let seen = self.get(snap.frame());
        self.word.still(snap).then_some(seen)
    }

    fn pin(&self) -> Option<u32> {
        self.word.pin(self.word.look())
    }

    fn unpin(&self, frame: u32) {
        if !self.word.unpin(frame) && self.holds[frame as usize].release(1) {
            self.free(frame);
        }
    }

    /// As eviction does it.
    fn evict(&self) -> bool {
        let snap = self.word.look();
        let frame = snap.frame();
        if snap.pins() > 0 {
            return false;
        }
        let holds = &self.holds[frame as usize];
        let Some(latched) = self.word.latch(snap, holds, || ()) else {
            return false;
        };
        if holds.any() {
            self.word.unlatch(latched);
            return false;
        }
        self.word.clear(latched);
        if holds.orphan() {
            self.free(frame);
        }
        true
    }
}

#[test]
fn a_copy_that_passes_is_whole() {
    loom::model(|| {
        let page = Page::resident();
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.write(2, 1))
        };
        if let Some((one, two)) = page.copy() {
            assert_eq!(one, two, "a torn copy passed");
        }
        writer.join().unwrap();
        assert_eq!(page.copy(), Some((2, 2)));
    });
}

#[test]
fn a_pinned_frame_does_not_change_and_is_freed_once() {
    loom::model(|| {
        let page = Page::resident();
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.write(2, 1))
        };
        if let Some(frame) = page.pin() {
            let before = page.get(frame);
            assert_eq!(before.0, before.1);
            thread::yield_now();
            assert_eq!(page.get(frame), before, "a held frame changed");
            page.unpin(frame);
        }
        let home = writer.join().unwrap();
        let freed = page.freed[0].load(SeqCst);
        // A writer that had to move left frame 0 behind, which is free once nobody holds it.
        assert_eq!(freed, usize::from(home == Some(1)));
        assert!(!page.holds[0].any() && !page.holds[1].any());
    });
}

#[test]
fn two_holders_and_a_writer_free_the_frame_once() {
    loom::model(|| {
        let page = Page::resident();
        let holder = |page: &Arc<Page>| {
            let page = page.clone();
            thread::spawn(move || {
                if let Some(frame) = page.pin() {
                    page.unpin(frame);
                }
            })
        };
        let threads = [holder(&page), holder(&page)];
        let home = page.write(2, 1);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(page.freed[0].load(SeqCst), usize::from(home == Some(1)));
        assert!(!page.holds[0].any());
    });
}

#[test]
fn a_page_that_is_evicted_was_held_by_nobody() {
    loom::model(|| {
        let page = Page::resident();
        let evictor = {
            let page = page.clone();
            thread::spawn(move || page.evict())
        };
        if let Some(frame) = page.pin() {
            assert_eq!(page.freed[0].load(SeqCst), 0, "a held frame was freed");
            assert_eq!(page.get(frame), (1, 1));
            page.unpin(frame);
        }
        let gone = evictor.join().unwrap();
        assert_eq!(page.freed[0].load(SeqCst), usize::from(gone));
        assert_eq!(page.word.look().is_empty(), gone);
    });
}

#[test]
fn eviction_and_a_writer_that_loses_the_latch_free_the_frame_once() {
    loom::model(|| {
        let page = Page::resident();
        let pinned = page.pin().unwrap();
        // The writer counts the pin while it goes away and the page is evicted.
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.write(2, 1))
        };
        page.unpin(pinned);
        let gone = page.evict();
        let home = writer.join().unwrap();
        let freed = page.freed[0].load(SeqCst);
        match (gone, home) {
            (true, Some(0) | None) => assert_eq!(freed, 1),
            (true, _) | (false, Some(1)) => assert_eq!(freed, 1),
            (false, _) => assert_eq!(freed, 0),
        }
        assert!(!page.holds[0].any());
    });
}

#[test]
fn one_of_two_brings_the_page_and_who_waits_is_told() {
    loom::model(|| {
        let page = Page::resident();
        assert!(page.evict());
        let bring = |page: &Page, frame: u32| {
            let won = page.word.begin_load(page.word.look(), frame);
            if won {
                page.set(frame, 7);
                return Some(page.word.publish());
            }
            None
        };
        let other = {
            let page = page.clone();
            thread::spawn(move || bring(&page, 1))
        };
        let awaited = page.word.await_load(page.word.look());
        let mine = bring(&page, 2);
        let theirs = other.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "one brings it");
        if awaited {
            assert_eq!(theirs, Some(true), "who waits is told of");
        }
        assert_eq!(page.copy(), Some((7, 7)));
    });
}
