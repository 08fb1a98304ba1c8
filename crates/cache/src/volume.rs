//! A cache, and the volumes in it.

use crate::config::Config;
use crate::core::{Below, Core};
use crate::frames::{Emptied, PAGE_BYTES};
use crate::keeper::{self, Errands};
use crate::memory::Backing;
use crate::open::OpenFile;
use crate::pager::{FileId, Pager, PagerInfo};
use crate::session::{Session, drop_all_pages};
use crate::stats::{CacheStats, FileStats};
use crate::vnode::Vnode;
use block::{Error, Result};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The pages of any number of volumes in one pool.
pub struct Cache {
    core: Arc<Core>,
}

/// One pager's files in a cache.
pub struct Volume {
    below: Arc<Below>,
    vnodes: Mutex<Vnodes>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Vnodes {
    by_file: HashMap<FileId, Arc<Vnode>>,
    /// How many there were after the last look for those nobody needs.
    kept: usize,
}

/// Vnodes that may be there before it is worth looking for those nobody needs.
const VNODES_MIN: usize = 1024;

impl Cache {
    /// A cache without volumes.
    ///
    /// # Errors
    /// [`block::ErrorKind::Invalid`] for settings that make no sense, or that the system refuses.
    pub fn new(config: Config) -> Result<Arc<Cache>> {
        let core = Arc::new(Core::new(config)?);
        Ok(Arc::new(Cache { core }))
    }

    /// Puts the files of `pager` under the cache, and starts the volume's background thread.
    ///
    /// # Errors
    /// The pager gives no queue, or the system no thread.
    pub fn volume(&self, pager: Arc<dyn Pager>) -> Result<Arc<Volume>> {
        let below = Below::new(Arc::clone(&self.core), pager, Errands::new()?);
        let below = Arc::new(below);
        self.core.add_volume(&below);
        let (started, starts) = std::sync::mpsc::channel();
        let name = below.info.name.clone();
        let thread = {
            let below = Arc::clone(&below);
            let run = move || keeper::run(below, started);
            std::thread::Builder::new().name("cache".into()).spawn(run)
        };
        let thread = thread.map_err(|e| Error::from_io(name, e))?;
        // The thread says how it got its queue; if it is gone without a word it has panicked.
        starts.recv().expect("the background thread reports")?;
        Ok(Arc::new(Volume {
            below,
            vnodes: Mutex::default(),
            keeper: Mutex::new(Some(thread)),
        }))
    }

    /// Sets how many bytes pages may take; `filecache_max`. When it returns, pages have left as far
    /// as they could; dirty ones leave when they have been written out.
    pub fn set_max_bytes(&self, bytes: u64) {
        let mut emptied = Emptied::new();
        let frames = bytes as usize / PAGE_BYTES;
        self.core.pool.set_limit(frames, &mut emptied);
        self.core.give_up_leaves(emptied);
        keeper::trim(&self.core);
        if self.core.pool.used() > self.core.pool.limit() {
            self.core.ask_for_clean();
        }
    }

    /// Makes clean pages leave until pages take at most `bytes`, without changing the limit: for a
    /// system that is short of memory. Gives the bytes that pages take then.
    pub fn shrink(&self, bytes: u64) -> u64 {
        let mut emptied = Emptied::new();
        self.core
            .pool
            .shrink_to(bytes as usize / PAGE_BYTES, &mut emptied);
        self.core.give_up_leaves(emptied);
        keeper::trim(&self.core);
        (self.core.pool.used() * PAGE_BYTES) as u64
    }

    /// The cache in numbers.
    pub fn stats(&self) -> CacheStats {
        let pool = &self.core.pool;
        CacheStats {
            counts: self.core.counts(),
            evicted: pool.evicted(),
            dropped: self.core.dropped.load(Relaxed),
            used_bytes: (pool.used() * PAGE_BYTES) as u64,
            max_bytes: (pool.limit() * PAGE_BYTES) as u64,
            resident_bytes: pool.resident_bytes() as u64,
            index_bytes: self.core.slab.bytes() as u64,
            dirty_bytes: (self.core.dirty_pages() * PAGE_BYTES) as u64,
            backing: pool.memory().backing(),
            swappable: pool.memory().swappable(),
        }
    }

    /// The file behind all frames, for a process that is to map it; `None` for [`Backing::Anonymous`].
    pub fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        debug_assert!(
            self.core.pool.memory().backing() != Backing::Anonymous
                || self.core.pool.memory().file().is_none()
        );
        self.core.pool.memory().file()
    }
}

impl Volume {
    /// What lies below.
    pub fn info(&self) -> &PagerInfo {
        &self.below.info
    }

    /// The vnode of a file, with the pages it still has from before. `size` is that of a file that
    /// has no vnode yet.
    pub fn vnode(&self, file: FileId, size: u64) -> Arc<Vnode> {
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
        let below = Arc::clone(&self.below);
        let vnode = self
            .below
            .core
            .register(|number| Vnode::new(number, file, size, below));
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
    /// The pager gives no queue, or the system no descriptor.
    pub fn session(&self) -> Result<Session> {
        Session::open(Arc::clone(&self.below))
    }

    /// A file was removed: its pages go at once, dirty or not, and whoever still has it open finds
    /// it gone. Pages on their way go when they arrive.
    pub fn forget(&self, file: FileId) {
        let mut vnodes = self.vnodes.lock().expect("no panic under this lock");
        let vnode = vnodes.by_file.remove(&file);
        drop(vnodes);
        if let Some(vnode) = vnode {
            vnode.die();
            drop_all_pages(&vnode);
        }
    }

    /// The files of which there is something in the cache, in numbers.
    pub fn files(&self) -> Vec<FileStats> {
        self.all().iter().map(|vnode| vnode.stats()).collect()
    }

    /// Flushes every file with dirty pages.
    ///
    /// # Errors
    /// The first file that could not be flushed; the others were tried all the same.
    pub fn flush(&self) -> Result<()> {
        let mut session = self.session()?;
        let mut first = Ok(());
        for vnode in self.all() {
            let result = session.flush(&mut self.open(&vnode));
            if first.is_ok() {
                first = result;
            }
        }
        first
    }

    /// Flushes, then makes all pages leave and wipes what they held, because the key of the volume
    /// goes. Nobody uses the volume any more.
    ///
    /// # Errors
    /// Something could not be written. The volume stays as it is then, and may be closed again, or
    /// dropped, and then what is not below is lost.
    pub fn close(&self) -> Result<()> {
        self.flush()?;
        self.abandon();
        Ok(())
    }

    fn abandon(&self) {
        self.below.errands.stop();
        let keeper = self.keeper.lock().expect("no panic under this lock").take();
        if let Some(thread) = keeper
            && thread.join().is_err()
        {
            tracing::error!(
                volume = self.below.info.name,
                "the background thread has panicked"
            );
        }
        for vnode in self.all() {
            self.forget(vnode.file());
        }
        self.below.core.pool.wipe_free();
    }

    fn all(&self) -> Vec<Arc<Vnode>> {
        let vnodes = self.vnodes.lock().expect("no panic under this lock");
        vnodes.by_file.values().cloned().collect()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.all().is_empty() && self.keeper.get_mut().is_ok_and(|k| k.is_none()) {
            return;
        }
        if let Err(error) = self.flush() {
            let name = &self.below.info.name;
            tracing::error!(volume = name, %error, "a volume goes with pages that could not be written out");
        }
        self.abandon();
    }
}
