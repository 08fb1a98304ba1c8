//! A small cache to hunt in, which violates one of the rules of windows on request ([`Flaw`]): a
//! pool of a few frames, an index whose latch is a mutex for each page, and an evictor that removes
//! dirty pages from the window, too.

use super::{Actor, Ground, PAGE, PAGES};
use block::Result;
use block_testing::{Mem, Random};
use cache::window::{
    Access, Config, FaultOutcome, Keep, Mapping, PAGE_BYTES, PageSource, Window, Windows,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Frames of the pool.
const FRAMES: usize = 4;

type Frame = Box<[u8; PAGE_BYTES]>;

/// A rule that is violated on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The evictor copies a page out and marks it clean before it removes it from the mappings.
    CopyThenRevoke,
    /// The protection of a page is removed after its latch has been released.
    UnlatchedStore,
}

/// The small cache.
pub struct Small(Arc<File>);

struct File {
    flaw: Option<Flaw>,
    window: Arc<Window>,
    device: Mem,
    index: [Mutex<Page>; PAGES as usize],
    /// Number of free frames.
    frames: AtomicUsize,
    evictions: AtomicU64,
}

#[derive(Default)]
struct Page {
    place: Place,
    dirty: bool,
}

#[derive(Default)]
enum Place {
    #[default]
    Nowhere,
    Pool(Frame),
    Window,
}

impl Small {
    pub fn new(flaw: Option<Flaw>) -> Small {
        let windows = Windows::start(&Config::default()).unwrap();
        let small = Small(Arc::new(File {
            flaw,
            window: Window::new(&windows).unwrap(),
            device: Mem::new(PAGES * PAGE, 4096),
            index: Default::default(),
            frames: AtomicUsize::new(FRAMES),
            evictions: AtomicU64::new(0),
        }));
        // Reads and writes load pages into the window, too, so all of it must have been mapped.
        drop(small.map(0..PAGES));
        small
    }
}

impl Ground for Small {
    fn map(&self, pages: Range<u64>) -> Mapping {
        let bytes = pages.start * PAGE..pages.end * PAGE;
        let home = Arc::clone(&self.0) as Arc<dyn PageSource>;
        self.0.window.map(home, bytes, Access::Store).unwrap()
    }

    fn actor(&self) -> Box<dyn Actor + '_> {
        Box::new(&*self.0)
    }

    fn evictions(&self) -> u64 {
        self.0.evictions.load(Relaxed)
    }

    fn finish(&self) -> Vec<u8> {
        (0..PAGES).for_each(|page| _ = self.0.evict(page));
        self.0.drain_pool();
        self.0.flush(0..PAGES * PAGE).unwrap();
        self.0.device.to_vec()
    }
}

impl Actor for &File {
    fn read(&mut self, at: u64, out: &mut [u8]) {
        let (page, from) = (at / PAGE, (at % PAGE) as usize);
        let mut latch = self.latch(page);
        self.bring(page, &mut latch);
        match &latch.place {
            Place::Pool(frame) => out.copy_from_slice(&frame[from..from + out.len()]),
            _ => self.window.read(page, from, out),
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        let (page, from) = (at / PAGE, (at % PAGE) as usize);
        let mut latch = self.latch(page);
        self.bring(page, &mut latch);
        match &mut latch.place {
            Place::Pool(frame) => frame[from..from + data.len()].copy_from_slice(data),
            _ => self.window.write(page, from, data),
        }
        latch.dirty = true;
    }

    fn evict(&mut self, random: &mut Random) {
        if random.below(8) == 0 {
            self.sweep();
        }
        let first = random.below(PAGES);
        if (first..PAGES)
            .filter(|page| File::evict(self, *page))
            .count()
            == 0
        {
            std::thread::yield_now();
        }
        if random.below(8) == 0 {
            self.drain_pool();
        }
    }

    fn flush(&mut self, from_page: u64) {
        PageSource::flush(*self, from_page * PAGE..PAGES * PAGE).unwrap();
    }
}

impl File {
    /// Removes a page from the window: into the pool, or out of memory.
    fn evict(&self, page: u64) -> bool {
        let Ok(mut latch) = self.index[page as usize].try_lock() else {
            return false;
        };
        if !matches!(latch.place, Place::Window) {
            return false;
        }
        let late = self.flaw == Some(Flaw::CopyThenRevoke);
        if !late {
            assert!(self.window.revoke(page..page + 1));
        }
        let mut place = Place::Nowhere;
        if latch.dirty {
            let mut frame = frame();
            self.window.read(page, 0, &mut frame[..]);
            if self.take_frame() {
                place = Place::Pool(frame);
            } else {
                self.device.poke(page * PAGE, &frame[..]);
                latch.dirty = false;
            }
        }
        if late {
            assert!(self.window.revoke(page..page + 1));
        }
        latch.place = place;
        // A protection removed late should affect the page that was loaded afterwards, or its old
        // memory, and not a hole: that would be noticed at once.
        if self.flaw != Some(Flaw::UnlatchedStore) {
            self.window.punch(page..page + 1);
        }
        self.evictions.fetch_add(1, Relaxed);
        true
    }

    /// Removes every page from the mappings, and nothing else, wherever it is. Pages in the window
    /// fault once more; others are not mapped, unless a rule was violated.
    fn sweep(&self) {
        for page in 0..PAGES {
            let _latch = self.latch(page);
            assert!(self.window.revoke(page..page + 1));
        }
    }

    /// Frees all frames of the pool, after writing dirty ones.
    fn drain_pool(&self) {
        for page in 0..PAGES {
            let mut latch = self.latch(page);
            if let Place::Pool(frame) = &latch.place {
                if latch.dirty {
                    self.device.poke(page * PAGE, &frame[..]);
                }
                *latch = Page::default();
                self.frames.fetch_add(1, Relaxed);
            }
        }
    }

    fn latch(&self, page: u64) -> MutexGuard<'_, Page> {
        self.index[page as usize].lock().unwrap()
    }

    /// Ensures that a latched page is in memory: in the pool, if that has a frame.
    fn bring(&self, page: u64, latch: &mut Page) {
        if let Place::Nowhere = latch.place {
            if self.take_frame() {
                latch.place = Place::Pool(self.load(page))
            } else {
                self.bring_into_window(page, latch)
            }
        }
    }

    /// Ensures that a latched page is in the window.
    fn bring_into_window(&self, page: u64, latch: &mut Page) {
        let frame = match std::mem::replace(&mut latch.place, Place::Window) {
            Place::Window => return,
            Place::Pool(frame) => {
                self.frames.fetch_add(1, Relaxed);
                frame
            }
            Place::Nowhere => self.load(page),
        };
        self.window.allocate(page..page + 1).unwrap();
        self.window.write(page, 0, &frame[..]);
    }

    fn take_frame(&self) -> bool {
        let less = |free: usize| free.checked_sub(1);
        self.frames.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    fn load(&self, page: u64) -> Frame {
        let mut frame = frame();
        self.device.peek(page * PAGE, &mut frame[..]);
        frame
    }
}

impl PageSource for File {
    fn fault(
        &self,
        _: &mut Keep,
        page: u64,
        access: Access,
        then: &mut dyn FnMut(Range<u64>, FaultOutcome),
    ) -> Result<()> {
        let mut latch = self.latch(page);
        self.bring_into_window(page, &mut latch);
        latch.dirty |= access == Access::Store;
        let outcome = if latch.dirty {
            FaultOutcome::Dirty
        } else {
            FaultOutcome::Clean
        };
        if self.flaw == Some(Flaw::UnlatchedStore) && access == Access::Store {
            drop(latch);
            // The violation is that it may take this long, not that it does.
            std::thread::sleep(Duration::from_micros(300));
        }
        then(page..page + 1, outcome);
        Ok(())
    }

    fn flush(&self, bytes: Range<u64>) -> Result<()> {
        for page in bytes.start / PAGE..bytes.end.div_ceil(PAGE) {
            let mut latch = self.latch(page);
            if !std::mem::take(&mut latch.dirty) {
                continue;
            }
            let mut copy = frame();
            match &latch.place {
                Place::Nowhere => unreachable!("a dirty page is somewhere"),
                Place::Pool(frame) => copy.copy_from_slice(&frame[..]),
                Place::Window => {
                    assert!(self.window.protect(page..page + 1));
                    self.window.read(page, 0, &mut copy[..]);
                }
            }
            self.device.poke(page * PAGE, &copy[..]);
        }
        Ok(())
    }

    fn unmapped(&self, _: Range<u64>) {}
}

fn frame() -> Frame {
    Box::new([0; PAGE_BYTES])
}
