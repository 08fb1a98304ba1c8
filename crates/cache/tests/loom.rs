//! Model check of the word and of holds over every interleaving, by loom:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p evfs-cache --release --test loom
//! ```
//!
//! The page is one byte in an atomic of its own, so that a torn or late read shows as a wrong
//! value; a frame that is freed twice, or changed while it is held, fails an assertion.
#![cfg(loom)]

use cache::page_state::{Atom, FrameRefs, PageLocation, PageState};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use loom::thread;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Adapts loom's atomics to the word.
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
/// The frame that stands for the page's place in its window.
const WINDOW: u32 = 2;

/// A page and a pool of three frames.
struct Page {
    word: PageState<A64>,
    data: [[AtomicUsize; 2]; FRAMES],
    holds: [FrameRefs<A32>; FRAMES],
    /// Number of times that each frame was freed.
    freed: [AtomicUsize; FRAMES],
}

impl Page {
    /// Returns a page resident in frame 0, both halves holding 1.
    fn resident() -> Arc<Page> {
        let page = Page {
            word: PageState::empty(),
            data: std::array::from_fn(|_| [AtomicUsize::new(0), AtomicUsize::new(0)]),
            holds: std::array::from_fn(|_| FrameRefs::none()),
            freed: std::array::from_fn(|_| AtomicUsize::new(0)),
        };
        assert!(page.word.begin_load(page.word.load(), 0));
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

    /// Writes like a session: in place if the frame is not held, else in `spare`. `None`: there is
    /// no page, or another thread has its latch.
    fn write(&self, value: usize, spare: u32) -> Option<u32> {
        let snap = self.word.load();
        let frame = snap.frame();
        let holds = &self.holds[frame as usize];
        let latched = self.word.latch(snap, holds, || self.free(frame))?;
        let to = if holds.any() { spare } else { frame };
        self.set(to, value);
        if to != frame && holds.orphan() {
            self.free(frame);
        }
        self.word.unlatch_changed(latched, PageLocation::Frame(to));
        Some(to)
    }

    /// Copies like a lock-free reader.
    fn copy(&self) -> Option<(usize, usize)> {
        let snap = self.word.load();
        if !snap.is_resident() || snap.in_window() {
            return None;
        }
        let seen = self.get(snap.frame());
        self.word.is_unchanged(snap).then_some(seen)
    }

    fn pin(&self) -> Option<u32> {
        self.word.pin(self.word.load())
    }

    fn unpin(&self, frame: u32) {
        if !self.word.unpin(frame) && self.holds[frame as usize].release(1) {
            self.free(frame);
        }
    }

    /// Reads like a reader of a page that lies in the window, which is frame 2 here.
    fn read_in_window(&self) -> Option<(usize, usize)> {
        let snap = self.word.load();
        if !self.word.begin_read(snap) {
            return None;
        }
        let seen = self.get(WINDOW);
        let there = self.freed[WINDOW as usize].load(SeqCst) == 0;
        assert!(there, "a reader touched memory that was given back");
        self.word.end_read();
        Some(seen)
    }

    /// Moves the page into the window like a fault.
    fn move_to_window(&self) -> bool {
        let snap = self.word.load();
        if snap.in_window() {
            return false;
        }
        let holds = &self.holds[snap.frame() as usize];
        let free = || self.free(snap.frame());
        let Some(latched) = self.word.latch(snap, holds, free) else {
            return false;
        };
        let (one, _) = self.get(snap.frame());
        self.set(WINDOW, one);
        if holds.orphan() {
            self.free(snap.frame());
        }
        self.word.unlatch_changed(latched, PageLocation::Window);
        true
    }

    /// Latches the page in the window, to change it or to release its memory.
    fn latch_in_window(&self, act: impl FnOnce(&Self)) -> bool {
        for _ in 0..2 {
            let snap = self.word.load();
            let Some(latched) = self.word.latch(snap, &self.holds[0], || ()) else {
                self.word.want(snap);
                thread::yield_now();
                continue;
            };
            act(self);
            if self.freed[WINDOW as usize].load(SeqCst) > 0 {
                self.word.clear(latched);
            } else {
                self.word.unlatch_changed(latched, PageLocation::Window);
            }
            return true;
        }
        false
    }

    /// Evicts like the pool.
    fn evict(&self) -> bool {
        let snap = self.word.load();
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
        // A writer that had to move abandoned frame 0, which is free once it is not held.
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
fn a_page_that_is_evicted_was_not_pinned() {
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
        assert_eq!(page.word.load().is_empty(), gone);
    });
}

#[test]
fn eviction_and_a_writer_that_loses_the_latch_free_the_frame_once() {
    loom::model(|| {
        let page = Page::resident();
        let pinned = page.pin().unwrap();
        // The writer counts the pin while it is being released and the page evicted.
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
            let won = page.word.begin_load(page.word.load(), frame);
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
        let awaited = page.word.await_load(page.word.load());
        let mine = bring(&page, 2);
        let theirs = other.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "one brings it");
        if awaited {
            assert_eq!(theirs, Some(true), "who waits is told of");
        }
        assert_eq!(page.copy(), Some((7, 7)));
    });
}

#[test]
fn a_page_in_a_window_is_read_whole_and_while_it_is_there() {
    loom::model(|| {
        let page = Page::resident();
        assert!(page.move_to_window());
        let other = {
            let page = page.clone();
            thread::spawn(move || page.latch_in_window(|page| page.set(WINDOW, 2)))
        };
        if let Some((one, two)) = page.read_in_window() {
            assert_eq!(one, two, "a reader met a writer");
        }
        other.join().unwrap();
        page.latch_in_window(|page| page.free(WINDOW));
        assert_eq!(page.read_in_window(), None);
    });
}

#[test]
fn the_memory_of_a_window_is_given_back_under_no_reader() {
    loom::model(|| {
        let page = Page::resident();
        assert!(page.move_to_window());
        let gone = {
            let page = page.clone();
            thread::spawn(move || page.latch_in_window(|page| page.free(WINDOW)))
        };
        // Twice, so that the thread that wants the latch meets a reader and excludes the next.
        page.read_in_window();
        page.read_in_window();
        let gone = gone.join().unwrap();
        assert_eq!(page.word.load().is_empty(), gone);
        assert_eq!(page.word.load().pins(), 0);
    });
}

#[test]
fn who_moves_a_page_into_a_window_frees_its_frame_once() {
    loom::model(|| {
        let page = Page::resident();
        let mover = {
            let page = page.clone();
            thread::spawn(move || page.move_to_window())
        };
        if let Some(frame) = page.pin() {
            assert_eq!(page.get(frame), (1, 1), "a held frame changed");
            page.unpin(frame);
        }
        if let Some(seen) = page.copy() {
            assert_eq!(seen, (1, 1));
        }
        let moved = mover.join().unwrap();
        assert_eq!(page.freed[0].load(SeqCst), usize::from(moved));
        assert!(!page.holds[0].any());
    });
}

#[test]
fn what_was_read_ahead_is_used_once_or_wasted() {
    loom::model(|| {
        let page = Page::resident();
        assert!(page.evict());
        page.freed[0].store(0, SeqCst);
        assert!(page.word.begin_load(page.word.load(), 0));
        page.word.publish_ahead();
        let reader = |page: &Arc<Page>| {
            let page = page.clone();
            thread::spawn(move || {
                let snap = page.word.load();
                snap.is_resident() && page.word.touch(snap)
            })
        };
        let readers = [reader(&page), reader(&page)];
        let snap = page.word.load();
        let latched = page.word.latch(snap, &page.holds[0], || ());
        let wasted = latched.is_some_and(|latched| {
            page.word.clear(latched);
            latched.is_ahead()
        });
        let used = readers.map(|r| usize::from(r.join().unwrap()));
        let there = page.word.load().is_ahead();
        assert_eq!(
            used[0] + used[1] + usize::from(wasted) + usize::from(there),
            1
        );
    });
}
