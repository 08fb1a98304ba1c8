//! A cache, and the volumes in it.

use crate::attributes::Attributes;
use crate::background;
use crate::config::Config;
use crate::frames::{EvictionBatch, PAGE_BYTES};
use crate::leaf::FILE_BYTES_MAX;
use crate::mapped::Mapped;
use crate::memory::Backing;
use crate::open::OpenFile;
use crate::pager::{FileId, Pager, PagerInfo, Tree};
use crate::reclaim::evict_mapped;
use crate::session::Session;
use crate::stats::{CacheStats, DirtyData, EvictReason, FileActivity, FileStats};
use crate::tree::{BackgroundQueue, CacheShared, Death, FileClass, Vnode, VolumeShared};
use crate::tunables::{self, Settings, Tunables};
use block::{Error, ErrorKind, Result};
use foldhash::HashMap;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use survival::Pages;

/// The pages of any number of volumes in one pool.
pub struct Cache {
    core: Arc<CacheShared>,
    volumes: Mutex<Vec<Weak<Volume>>>,
}

/// One pager's files in a cache.
pub struct Volume {
    shared: Arc<VolumeShared>,
    vnodes: Mutex<Vnodes>,
    background_thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Vnodes {
    by_file: HashMap<FileId, Arc<Vnode>>,
    /// Number of vnodes left after the last removal of unused ones.
    kept: usize,
}

/// Number of vnodes below which unused ones are not searched for.
const VNODES_MIN: usize = 1024;

impl Cache {
    /// Creates a cache without volumes.
    ///
    /// # Errors
    /// [`block::ErrorKind::Invalid`] for settings that are inconsistent or that the system refuses.
    pub fn new(config: Config) -> Result<Arc<Cache>> {
        let core = Arc::new(CacheShared::new(config)?);
        let volumes = Mutex::default();
        Ok(Arc::new(Cache { core, volumes }))
    }

    /// Adds a volume with the files of `pager`, and starts the volume's background thread.
    ///
    /// # Errors
    /// The pager cannot open a queue, or the system cannot start a thread.
    /// [`ErrorKind::Invalid`]: [`Config::surviving`] is for another file system.
    pub fn volume(&self, pager: Arc<dyn Pager>) -> Result<Arc<Volume>> {
        let below = VolumeShared::new(Arc::clone(&self.core), pager, BackgroundQueue::new()?)?;
        let below = Arc::new(below);
        self.core.add_volume(&below);
        let (started, starts) = std::sync::mpsc::channel();
        let name = below.info.name.clone();
        let thread = {
            let below = Arc::clone(&below);
            let run = move || background::run(below, started);
            std::thread::Builder::new().name("cache".into()).spawn(run)
        };
        let thread = thread.map_err(|e| Error::from_io(name, e))?;
        // The thread reports whether it got its queue; a closed channel means that it has panicked.
        starts.recv().expect("the background thread reports")?;
        let volume = Arc::new(Volume {
            shared: below,
            vnodes: Mutex::default(),
            background_thread: Mutex::new(Some(thread)),
        });
        let mut volumes = self.volumes.lock().expect("no panic under this lock");
        volumes.retain(|volume| volume.strong_count() > 0);
        volumes.push(Arc::downgrade(&volume));
        Ok(volume)
    }

    /// Returns the volumes in use.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        let volumes = self.volumes.lock().expect("no panic under this lock");
        volumes.iter().filter_map(Weak::upgrade).collect()
    }

    /// Applies settings, all at once, while the cache is in use. When it returns, pages have been
    /// evicted as far as possible for a lower `filecache_max`; dirty ones are evicted once they
    /// have been written back.
    ///
    /// # Errors
    /// The settings contradict one another or the available memory; nothing has changed then.
    pub fn set(&self, tunables: &Tunables) -> std::result::Result<Settings, tunables::Error> {
        let mut emptied = EvictionBatch::new();
        let set = self
            .core
            .settings
            .set(tunables, &self.core.pool, &mut emptied);
        self.apply_limits(emptied);
        set
    }

    /// Returns the settings in force, as they were specified.
    pub fn tunables(&self) -> Tunables {
        self.core.settings.get().0
    }

    /// Returns the settings in force, resolved to absolute values.
    pub fn settings(&self) -> Settings {
        self.core.settings.get().1
    }

    /// Sets `filecache_max`, the limit of bytes in pages. When it returns, pages have been evicted
    /// as far as possible; dirty ones are evicted once they have been written back.
    pub fn set_max_bytes(&self, bytes: u64) {
        let mut emptied = EvictionBatch::new();
        let pool = &self.core.pool;
        self.core.settings.set_max(bytes, pool, &mut emptied);
        self.apply_limits(emptied);
    }

    /// Completes a change of settings, which may have lowered the limit.
    fn apply_limits(&self, emptied: EvictionBatch) {
        self.core.give_up_leaves(emptied);
        background::trim(&self.core);
        if self.core.pool.used() > self.core.pool.limit() {
            self.core.request_clean();
        }
    }

    /// Evicts clean pages until pages take at most `bytes`, or `filecache_min` if that is more,
    /// without changing the limit: for a system that is short of memory. Evicts pages in frames
    /// first, then mapped ones that were not used recently. Returns the bytes in pages afterwards;
    /// if that is still too much, the background threads write dirty pages back, for another call
    /// to evict.
    pub fn shrink(&self, bytes: u64) -> u64 {
        let mut emptied = EvictionBatch::new();
        let core = &self.core;
        let bytes = bytes.max(core.settings.min_bytes.load(Relaxed));
        let wanted = bytes as usize / PAGE_BYTES;
        let left = || core.pool.used() + core.windows.pages();
        let mapped = core.windows.pages();
        let for_pool = wanted.saturating_sub(mapped);
        core.pool
            .shrink_to(for_pool, EvictReason::Pressure, &mut emptied);
        core.give_up_leaves(emptied);
        evict_mapped(core, left().saturating_sub(wanted));
        background::trim(core);
        if left() > wanted {
            core.request_clean();
        }
        (left() * PAGE_BYTES) as u64
    }

    /// Returns the cache's statistics.
    pub fn stats(&self) -> CacheStats {
        let pool = &self.core.pool;
        let counts = self.core.counts();
        let now = self.core.now_ms();
        CacheStats {
            counts,
            evicted: counts.evicted(),
            mapped_evicted: self.core.windows.evicted(),
            used_bytes: (pool.used() * PAGE_BYTES) as u64,
            max_bytes: (pool.maximum() * PAGE_BYTES) as u64,
            resident_bytes: pool.resident_bytes() as u64,
            index_bytes: self.core.slab.bytes() as u64,
            metadata_bytes: (pool.metadata() * PAGE_BYTES) as u64,
            mapped_bytes: (self.core.windows.pages() * PAGE_BYTES) as u64,
            dirty_bytes: (self.core.dirty_pages() * PAGE_BYTES) as u64,
            oldest_dirty_ms: self.core.oldest_dirty_ms().map(|at| now.saturating_sub(at)),
            backing: pool.memory().backing(),
            swappable: pool.memory().swappable(),
        }
    }

    /// Flushes every volume.
    ///
    /// # Errors
    /// The first file that could not be flushed; the others were still attempted.
    pub fn flush(&self) -> Result<()> {
        first_error(self.volumes().iter().map(|volume| volume.flush()))
    }

    /// Writes back all dirty pages and evicts every page that is not held.
    ///
    /// # Errors
    /// The error of the first file that could not be written completely; its pages stay, those of
    /// the other files have been evicted.
    pub fn drop_pages(&self) -> Result<()> {
        first_error(self.volumes().iter().map(|volume| volume.drop_pages()))
    }

    /// Returns the NUMA nodes that memory is requested from and the bytes requested from each;
    /// empty on a machine with uniform memory.
    pub fn nodes(&self) -> Vec<(u32, u64)> {
        let nodes = self.core.pool.nodes().into_iter();
        nodes.map(|(node, bytes)| (node, bytes as u64)).collect()
    }

    /// Returns the file behind all frames, for a process that is to map it; `None` for
    /// [`Backing::Anonymous`].
    pub fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        debug_assert!(
            self.core.pool.memory().backing() != Backing::Anonymous
                || self.core.pool.memory().file().is_none()
        );
        self.core.pool.memory().file()
    }

    /// Returns the table of pages that survive this process, if it has one.
    pub fn surviving(&self) -> Option<&Pages> {
        self.core.pool.surviving.as_ref()
    }
}

impl Volume {
    /// Returns the pager's properties.
    pub fn info(&self) -> &PagerInfo {
        &self.shared.info
    }

    /// Returns the name by which a successor finds its files.
    pub(crate) fn tree(&self) -> Option<Tree> {
        self.shared.pager.tree()
    }

    /// Returns the vnode of a file, with the pages it still has in the cache. `size` applies only
    /// if the file has no vnode yet.
    pub fn vnode(&self, file: FileId, size: u64) -> Arc<Vnode> {
        self.vnode_of(file, size, FileClass::Data)
    }

    /// Returns the vnode of a file of metadata, like [`Volume::vnode`]: its pages count towards
    /// `metadata_share`, and within that share are not evicted for data. A file's class is fixed
    /// when its vnode is created.
    pub fn metadata_vnode(&self, file: FileId, size: u64) -> Arc<Vnode> {
        self.vnode_of(file, size, FileClass::Metadata)
    }

    fn vnode_of(&self, file: FileId, size: u64, class: FileClass) -> Arc<Vnode> {
        let mut vnodes = self.vnodes.lock().expect("no panic under this lock");
        if let Some(vnode) = vnodes.by_file.get(&file) {
            return Arc::clone(vnode);
        }
        if vnodes.by_file.len() >= VNODES_MIN.max(2 * vnodes.kept) {
            let needed =
                |vnode: &Arc<Vnode>| Arc::strong_count(vnode) > 1 || vnode.index().len() > 0;
            vnodes.by_file.retain(|_, vnode| needed(vnode));
            vnodes.kept = vnodes.by_file.len();
        }
        let below = Arc::clone(&self.shared);
        let vnode = self
            .shared
            .core
            .vnodes
            .add(|number| Vnode::new(number, file, size, class, below));
        vnodes.by_file.insert(file, Arc::clone(&vnode));
        vnode
    }

    /// Opens a file.
    pub fn open(&self, vnode: &Arc<Vnode>) -> OpenFile {
        OpenFile::new(Arc::clone(vnode))
    }

    /// Opens a session for the calling thread.
    ///
    /// # Errors
    /// The pager cannot open a queue, or the system has no file descriptor left.
    pub fn session(&self) -> Result<Session> {
        Session::open(Arc::clone(&self.shared))
    }

    /// Drops all pages of a removed file at once, dirty or not; open files find it empty. Pages
    /// under write-back are dropped when that ends.
    pub fn forget(&self, file: FileId) {
        let mut vnodes = self.vnodes.lock().expect("no panic under this lock");
        let vnode = vnodes.by_file.remove(&file);
        drop(vnodes);
        if let Some(vnode) = vnode {
            vnode.die(Death::Unlinked);
        }
    }

    /// Returns the statistics of all files that the cache knows.
    pub fn files(&self) -> Vec<FileStats> {
        self.all().iter().map(|vnode| vnode.stats()).collect()
    }

    /// Returns the files that lead in at least one respect, at most `count` for each: pages read
    /// and written since the cache knows the file, dirty pages, and cached pages. Reads a few
    /// counters of every file, and holds no lock that a hit takes.
    pub fn leading_files(&self, count: usize) -> Vec<FileActivity> {
        let all = self.all();
        let respects = |vnode: &Vnode| {
            let leaves = vnode.index().len() as u64;
            [vnode.counts().accesses(), vnode.dirty_pages(), leaves]
        };
        let keys = all.iter().enumerate();
        let mut keys: Vec<_> = keys.map(|(at, vnode)| (at, respects(vnode))).collect();
        let mut leading = BTreeSet::new();
        for respect in 0..3 {
            let value = |key: &(usize, [u64; 3])| key.1[respect];
            if keys.len() > count {
                keys.select_nth_unstable_by(count, |a, b| value(b).cmp(&value(a)));
            }
            let first = keys.iter().take(count).filter(|key| value(key) > 0);
            leading.extend(first.map(|(at, _)| *at));
        }
        leading.into_iter().map(|at| all[at].activity()).collect()
    }

    /// Returns the data that is in memory only. Visits the files with dirty pages, and no others.
    pub fn dirty(&self) -> DirtyData {
        let core = &self.shared.core;
        let now = core.now_ms();
        let mut dirty = DirtyData::default();
        let numbers = self.shared.background.dirty.numbers().into_iter();
        for vnode in numbers.filter_map(|number| core.vnodes.get(number)) {
            dirty.bytes += vnode.dirty_pages() * PAGE_BYTES as u64;
            let age = vnode
                .oldest_dirty_ms()
                .map(|since| now.saturating_sub(since));
            dirty.oldest_ms = dirty.oldest_ms.max(age);
        }
        dirty
    }

    /// Returns the last write-behind error, if pages that were dirty when it happened are still
    /// dirty. Later successful write-back of other pages does not hide it.
    pub fn held_back(&self) -> Option<Error> {
        let (error, at) = self.shared.failed()?;
        let all = self.all();
        let mut oldest = all.iter().filter_map(|vnode| vnode.oldest_dirty_ms());
        oldest.any(|since| since <= at).then_some(error)
    }

    /// Flushes every file with dirty pages.
    ///
    /// # Errors
    /// The first file that could not be flushed; the others were still attempted.
    pub fn flush(&self) -> Result<()> {
        let mut session = self.session()?;
        let all = self.all();
        if !self.shared.info.flushes_all {
            let flush = |vnode| session.flush(&mut self.open(vnode));
            return first_error(all.iter().map(flush));
        }
        let written = self.write_out();
        // Each file tells its earlier errors to those that have it open.
        let flush = |vnode| session.flush_pager(&self.open(vnode));
        written.and(all.first().map_or(Ok(()), flush))
    }

    /// Writes all dirty pages to the pager, without a flush of the pager.
    ///
    /// # Errors
    /// The error of the first file that could not be written completely; the others were still
    /// attempted.
    pub fn write_out(&self) -> Result<()> {
        let mut session = self.session()?;
        let core = &self.shared.core;
        let numbers = self.shared.background.dirty.numbers();
        let dirty: Vec<Arc<Vnode>> = numbers
            .into_iter()
            .filter_map(|n| core.vnodes.get(n))
            .collect();
        session.store_many(&dirty)?;
        let unwritten = dirty.iter().filter(|vnode| vnode.dirty_pages() > 0);
        let wait = |vnode| session.write_out(&mut self.open(vnode), 0..FILE_BYTES_MAX);
        first_error(unwritten.map(wait))
    }

    /// Flushes a file; one that the cache does not know has nothing to flush.
    ///
    /// # Errors
    /// The write error; the affected pages stay dirty.
    pub fn flush_file(&self, file: FileId) -> Result<()> {
        let Some(vnode) = self.known(file) else {
            return Ok(());
        };
        self.session()?.flush(&mut self.open(&vnode))
    }

    /// Writes back all dirty pages and evicts every page that is not held.
    ///
    /// # Errors
    /// The error of the first file that could not be written completely; its pages stay, those of
    /// the other files have been evicted.
    pub fn drop_pages(&self) -> Result<()> {
        let mut session = self.session()?;
        let all = self.all();
        let drop = |vnode| session.invalidate(&mut self.open(vnode), 0..FILE_BYTES_MAX);
        first_error(all.iter().map(drop))
    }

    /// Writes back and evicts the pages of one file, like [`Volume::drop_pages`].
    ///
    /// # Errors
    /// The write error; the pages stay.
    pub fn drop_file(&self, file: FileId) -> Result<()> {
        let Some(vnode) = self.known(file) else {
            return Ok(());
        };
        let mut open = self.open(&vnode);
        self.session()?.invalidate(&mut open, 0..FILE_BYTES_MAX)
    }

    /// Changes attributes of a file, given as (name, value) pairs, all or none, and returns the
    /// resulting attributes. `None`: the cache does not know the file.
    ///
    /// # Errors
    /// As [`Attributes::with`].
    pub fn advise<'a>(
        &self,
        file: FileId,
        changes: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> std::result::Result<Option<Attributes>, tunables::Error> {
        let Some(vnode) = self.known(file) else {
            return Ok(None);
        };
        let attributes = vnode.attributes().with(changes)?;
        vnode.set_attributes(attributes);
        Ok(Some(attributes))
    }

    fn known(&self, file: FileId) -> Option<Arc<Vnode>> {
        let vnodes = self.vnodes.lock().expect("no panic under this lock");
        vnodes.by_file.get(&file).cloned()
    }

    /// Flushes, then drops all pages and wipes their contents, because the volume's key is about to
    /// be discarded. The volume must not be in use.
    ///
    /// # Errors
    /// [`block::ErrorKind::Busy`] while a file of the volume is mapped or leased: its stores would
    /// be lost. Otherwise a write error. In both cases the volume is unchanged and may be closed
    /// again; if it is dropped instead, the data not written back is lost.
    pub fn close(&self) -> Result<()> {
        for vnode in self.all() {
            if vnode.mapped().is_some_and(Mapped::is_in_use) {
                let detail = format!("file {} is mapped", vnode.file().0);
                return Err(Error::new(ErrorKind::Busy, &self.shared.info.name, detail));
            }
        }
        self.flush()?;
        self.abandon();
        Ok(())
    }

    fn abandon(&self) {
        self.shared.background.stop();
        let keeper = self
            .background_thread
            .lock()
            .expect("no panic under this lock")
            .take();
        if let Some(thread) = keeper
            && thread.join().is_err()
        {
            tracing::error!(
                name: "EVFS-0104",
                volume = self.shared.info.name,
                "the background thread ended unexpectedly"
            );
        }
        let mut vnodes = self.vnodes.lock().expect("no panic under this lock");
        let mut all: Vec<_> = std::mem::take(&mut *vnodes).by_file.into_values().collect();
        drop(vnodes);
        // Files that were opened one after the other lie side by side in memory.
        all.sort_unstable_by_key(|vnode| vnode.number());
        for vnode in all {
            vnode.die(Death::Closed);
        }
        self.shared.core.pool.wipe_free();
    }

    fn all(&self) -> Vec<Arc<Vnode>> {
        let vnodes = self.vnodes.lock().expect("no panic under this lock");
        vnodes.by_file.values().cloned().collect()
    }
}

/// Consumes all results and returns the first error.
fn first_error(results: impl Iterator<Item = Result<()>>) -> Result<()> {
    results
        .reduce(|first, result| first.and(result))
        .unwrap_or(Ok(()))
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.all().is_empty() && self.background_thread.get_mut().is_ok_and(|k| k.is_none()) {
            return;
        }
        if let Err(error) = self.flush() {
            let name = &self.shared.info.name;
            tracing::error!(
                name: "EVFS-0102",
                volume = name, %error,
                "the volume is closed with dirty pages that could not be written back: data is lost"
            );
        }
        self.abandon();
    }
}
