//! A small cache over which windows are tested: one file on a device, a pool of frames, an index
//! whose latch is a mutex for each page, and an evictor.
//!
//! On request it breaks one of the rules that windows stand on ([`Flaw`]); the race hunt must notice.

use block::{BlockDevice, Blocking, Error, ErrorKind, Result};
use cache::window::{Access, Home, Mapping, Outcome, PAGE_BYTES, Window, Windows};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

pub const PAGE: u64 = PAGE_BYTES as u64;

type Frame = Box<[u8; PAGE_BYTES]>;

/// A rule that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The evictor copies a page out and calls it clean before it takes it out of the mappings.
    CopyThenRevoke,
    /// The protection of a page is lifted after its latch has been given back.
    UnlatchedStore,
}

pub struct Options {
    /// Bytes of the file.
    pub size: u64,
    /// Pages in the window at most, but for the ones being brought.
    pub mapped_max: usize,
    /// Frames of the pool.
    pub frames: usize,
    /// Pages brought with one that is read, itself included.
    pub cluster: u64,
    pub flaw: Option<Flaw>,
}

impl Options {
    pub fn new(pages: u64) -> Options {
        Options {
            size: pages * PAGE,
            mapped_max: 1024,
            frames: 256,
            cluster: 1,
            flaw: None,
        }
    }
}

pub struct File {
    pub window: Arc<Window>,
    options: Options,
    device: Arc<dyn BlockDevice>,
    /// Taken for reading before any latch, for writing to change the size.
    size: RwLock<u64>,
    index: Vec<Mutex<Page>>,
    queue: Mutex<VecDeque<u64>>,
    pool: Mutex<VecDeque<u64>>,
    frames: AtomicUsize,
    resident: AtomicUsize,
    resident_most: AtomicUsize,
    pub evictions: AtomicU64,
    pub unmapped: AtomicU64,
    /// No page can become dirty: the device has no space.
    pub full: AtomicBool,
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

impl File {
    /// The index has room for the device; `options.size` may be less.
    pub fn new(
        windows: &Arc<Windows>,
        device: Arc<dyn BlockDevice>,
        options: Options,
    ) -> Arc<File> {
        let pages = device.info().size / PAGE;
        Arc::new(File {
            window: Window::new(windows).unwrap(),
            size: RwLock::new(options.size),
            index: (0..pages).map(|_| Mutex::default()).collect(),
            queue: Mutex::default(),
            pool: Mutex::default(),
            frames: AtomicUsize::new(options.frames),
            resident: AtomicUsize::new(0),
            resident_most: AtomicUsize::new(0),
            evictions: AtomicU64::new(0),
            unmapped: AtomicU64::new(0),
            full: AtomicBool::new(false),
            device,
            options,
        })
    }

    pub fn map(self: &Arc<File>, bytes: Range<u64>, access: Access) -> Mapping {
        self.try_map(bytes, access).unwrap()
    }

    pub fn try_map(self: &Arc<File>, bytes: Range<u64>, access: Access) -> Result<Mapping> {
        self.window
            .map(Arc::clone(self) as Arc<dyn Home>, bytes, access)
    }

    pub fn all(self: &Arc<File>) -> Mapping {
        self.map(0..self.options.size, Access::Store)
    }

    /// Most pages the window had at once.
    pub fn resident_most(&self) -> usize {
        self.resident_most.load(Relaxed)
    }

    pub fn is_dirty(&self, page: u64) -> bool {
        self.latch(page).dirty
    }

    pub fn in_window(&self, page: u64) -> bool {
        matches!(self.latch(page).place, Place::Window)
    }

    /// As read(2) of a whole range of the file.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        for (page, from, part) in pieces(at, out.len()) {
            let out = &mut out[part];
            let mut latch = self.latch(page);
            if matches!(latch.place, Place::Nowhere) {
                let frame = self.load(page)?;
                self.keep(page, &mut latch, frame);
            }
            match &latch.place {
                Place::Pool(frame) => out.copy_from_slice(&frame[from..from + out.len()]),
                Place::Window => self.window.read(page, from, out),
                Place::Nowhere => self.load(page).map(|frame| {
                    out.copy_from_slice(&frame[from..from + out.len()]);
                })?,
            }
        }
        Ok(())
    }

    /// As write(2) inside the file.
    pub fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        for (page, from, part) in pieces(at, data.len()) {
            let data = &data[part];
            let mut latch = self.latch(page);
            if matches!(latch.place, Place::Nowhere) {
                let frame = self.load(page)?;
                self.keep(page, &mut latch, frame);
            }
            match &mut latch.place {
                Place::Pool(frame) => frame[from..from + data.len()].copy_from_slice(data),
                Place::Window => self.window.write(page, from, data),
                Place::Nowhere => {
                    let mut frame = self.load(page)?;
                    frame[from..from + data.len()].copy_from_slice(data);
                    self.store(page, &frame)?;
                    continue;
                }
            }
            latch.dirty = true;
        }
        Ok(())
    }

    /// Evicts up to `want` pages of the window, in batches of 64: gives how many.
    pub fn evict(&self, want: usize) -> usize {
        let mut done = 0;
        while done < want {
            match self.evict_batch((want - done).min(64)) {
                0 => break,
                n => done += n,
            }
        }
        done
    }

    fn evict_batch(&self, want: usize) -> usize {
        let mut tries = self.queue.lock().unwrap().len();
        let mut batch: Vec<(u64, MutexGuard<'_, Page>)> = Vec::new();
        while batch.len() < want && tries > 0 {
            tries -= 1;
            let Some(page) = self.queue.lock().unwrap().pop_front() else {
                break;
            };
            if let Ok(mut latch) = self.index[page as usize].try_lock() {
                // Truncated meanwhile.
                if !matches!(latch.place, Place::Window) {
                    continue;
                }
                if self.take_out(page, &mut latch) {
                    batch.push((page, latch));
                    continue;
                }
            }
            self.queue.lock().unwrap().push_back(page);
        }
        batch.sort_by_key(|(page, _)| *page);
        // A protection that is lifted late is to hit the page that was loaded after, or its old
        // memory, and not a hole: that would be noticed at once.
        if self.options.flaw != Some(Flaw::UnlatchedStore) {
            for run in batch.chunk_by(|(a, _), (b, _)| a + 1 == *b) {
                self.window.punch(run[0].0..run[0].0 + run.len() as u64);
            }
        }
        self.evictions.fetch_add(batch.len() as u64, Relaxed);
        self.resident.fetch_sub(batch.len(), Relaxed);
        batch.len()
    }

    /// Takes a latched page out of the window, short of punching it; false if it has to stay.
    fn take_out(&self, page: u64, latch: &mut Page) -> bool {
        let late = self.options.flaw == Some(Flaw::CopyThenRevoke);
        if !late && !self.window.revoke(page..page + 1) {
            return false;
        }
        let mut place = Place::Nowhere;
        if latch.dirty {
            let mut frame = frame();
            self.window.read(page, 0, &mut frame[..]);
            if self.take_frame() {
                self.pool.lock().unwrap().push_back(page);
                place = Place::Pool(frame);
            } else if self.store(page, &frame).is_ok() {
                latch.dirty = false;
            } else {
                return false;
            }
        }
        if late {
            assert!(self.window.revoke(page..page + 1));
        }
        latch.place = place;
        true
    }

    /// Takes every page out of the mappings and nothing more, wherever the page is. Pages in the window
    /// fault once more; others are not mapped, unless a rule was broken.
    pub fn sweep(&self) {
        for page in 0..self.index.len() as u64 {
            let _latch = self.latch(page);
            assert!(self.window.revoke(page..page + 1));
        }
    }

    /// Gives all frames of the pool back, dirty ones written.
    pub fn drain_pool(&self) -> Result<()> {
        loop {
            let Some(page) = self.pool.lock().unwrap().pop_front() else {
                return Ok(());
            };
            let mut latch = self.latch(page);
            if let Place::Pool(frame) = &latch.place {
                if latch.dirty {
                    self.store(page, frame)?;
                }
                *latch = Page::default();
                self.frames.fetch_add(1, Relaxed);
            }
        }
    }

    pub fn truncate(&self, len: u64) -> Result<()> {
        let mut size = self.size.write().unwrap();
        let old = std::mem::replace(&mut *size, len);
        if len > old {
            drop(size);
            self.window.heal();
            return Ok(());
        }
        let (first, end) = (len.div_ceil(PAGE), self.index.len() as u64);
        let mut latches: Vec<_> = (first..end).map(|page| self.latch(page)).collect();
        for latch in &mut latches {
            match std::mem::take(&mut **latch).place {
                Place::Nowhere => {}
                Place::Pool(_) => _ = self.frames.fetch_add(1, Relaxed),
                Place::Window => _ = self.resident.fetch_sub(1, Relaxed),
            }
        }
        if first < end {
            self.window.discard(first..end);
            self.blocking()
                .write_zeroes(first * PAGE, (end - first) * PAGE, true)?;
        }
        drop(latches);
        if !len.is_multiple_of(PAGE) {
            let (page, at) = (len / PAGE, (len % PAGE) as usize);
            let mut latch = self.latch(page);
            self.bring(page, &mut latch)?;
            self.window.zero(page, at);
            latch.dirty = true;
        }
        Ok(())
    }

    fn latch(&self, page: u64) -> MutexGuard<'_, Page> {
        self.index[page as usize].lock().unwrap()
    }

    /// Makes a latched page be in the window.
    fn bring(&self, page: u64, latch: &mut Page) -> Result<()> {
        let frame = match &mut latch.place {
            Place::Window => return Ok(()),
            Place::Pool(frame) => &*frame,
            Place::Nowhere => &self.load(page)?,
        };
        self.window.allocate(page..page + 1)?;
        self.window.write(page, 0, &frame[..]);
        if let Place::Pool(_) = std::mem::replace(&mut latch.place, Place::Window) {
            self.frames.fetch_add(1, Relaxed);
        }
        self.queue.lock().unwrap().push_back(page);
        let now = self.resident.fetch_add(1, Relaxed) + 1;
        self.resident_most.fetch_max(now, Relaxed);
        Ok(())
    }

    /// Keeps what was loaded in the pool, if it has a frame.
    fn keep(&self, page: u64, latch: &mut Page, frame: Frame) {
        if self.take_frame() {
            latch.place = Place::Pool(frame);
            self.pool.lock().unwrap().push_back(page);
        }
    }

    fn take_frame(&self) -> bool {
        let less = |free: usize| free.checked_sub(1);
        self.frames.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    fn blocking(&self) -> Blocking {
        Blocking::open(&*self.device).unwrap()
    }

    fn load(&self, page: u64) -> Result<Frame> {
        let mut frame = frame();
        self.blocking().read_at(page * PAGE, &mut frame[..])?;
        Ok(frame)
    }

    fn store(&self, page: u64, frame: &Frame) -> Result<()> {
        self.blocking().write_at(page * PAGE, &frame[..])
    }

    fn neighbours(&self, page: u64, size: u64, then: &mut dyn FnMut(Range<u64>, Outcome)) {
        let first = page / self.options.cluster * self.options.cluster;
        for near in first..(first + self.options.cluster).min(size.div_ceil(PAGE)) {
            let latch = self.index[near as usize].try_lock();
            if let (true, Ok(mut latch)) = (near != page, latch)
                && self.bring(near, &mut latch).is_ok()
            {
                then(near..near + 1, outcome(&latch));
            }
        }
    }
}

impl Home for File {
    fn fault(
        &self,
        page: u64,
        access: Access,
        then: &mut dyn FnMut(Range<u64>, Outcome),
    ) -> Result<()> {
        let over = (self.resident.load(Relaxed) + self.options.cluster as usize)
            .saturating_sub(self.options.mapped_max);
        if over > 0 {
            self.evict(over.max(64));
        }
        let only = page..page + 1;
        let size = self.size.read().unwrap();
        if page * PAGE >= *size {
            then(only, Outcome::Failed);
            let detail = format!("page {page}");
            return Err(Error::new(ErrorKind::OutOfRange, "file", detail));
        }
        let mut latch = self.latch(page);
        let mut result = self.bring(page, &mut latch);
        if access == Access::Store && self.full.load(Relaxed) && !latch.dirty {
            result = result.and(Err(Error::new(ErrorKind::NoSpace, "file", "")));
        }
        if let Err(e) = result {
            then(only, Outcome::Failed);
            return Err(e);
        }
        if access == Access::Store {
            latch.dirty = true;
        }
        let found = outcome(&latch);
        if self.options.flaw == Some(Flaw::UnlatchedStore) && access == Access::Store {
            drop(latch);
            // What breaks the rule is that it may take this long, not that it does.
            std::thread::sleep(Duration::from_micros(300));
            then(only, found);
            return Ok(());
        }
        then(only, found);
        drop(latch);
        if access == Access::Read && self.options.cluster > 1 {
            self.neighbours(page, *size, then);
        }
        Ok(())
    }

    fn flush(&self, bytes: Range<u64>) -> Result<()> {
        for page in bytes.start / PAGE..bytes.end.div_ceil(PAGE) {
            let mut latch = self.latch(page);
            if !latch.dirty {
                continue;
            }
            match &latch.place {
                Place::Nowhere => unreachable!("a dirty page is somewhere"),
                Place::Pool(frame) => self.store(page, frame)?,
                Place::Window => {
                    let clean = self.window.protect(page..page + 1);
                    let mut frame = frame();
                    self.window.read(page, 0, &mut frame[..]);
                    self.store(page, &frame)?;
                    if !clean {
                        continue;
                    }
                }
            }
            latch.dirty = false;
        }
        self.blocking().flush()
    }

    fn unmapped(&self, _: Range<u64>) {
        self.unmapped.fetch_add(1, Relaxed);
    }
}

fn outcome(latch: &Page) -> Outcome {
    match latch.dirty {
        true => Outcome::Dirty,
        false => Outcome::Clean,
    }
}

fn frame() -> Frame {
    Box::new([0; PAGE_BYTES])
}

/// The pages of a range of bytes, with where each begins and which part of the range it is.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let from = ((at + done as u64) % PAGE) as usize;
        let page = (at + done as u64) / PAGE;
        let part = done..len.min(done + PAGE_BYTES - from);
        done = part.end;
        (!part.is_empty()).then_some((page, from, part))
    })
}
