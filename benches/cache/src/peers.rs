//! The cache and its competitors, filled with the same pages: memory, the kernel's page cache,
//! foyer, moka.

use block::{BlockDevice, Buf, BufPool};
use cache::{Cache, Config, DEVICE_FILE, DevicePager, OpenFile, Session, Vnode, Volume};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

pub const PAGE: usize = 4096;

/// Value type of the other caches: a reference-counted page.
pub type Page = Arc<[u8; PAGE]>;
pub type Foyer = foyer_memory::Cache<u64, Page>;
pub type Moka = moka::sync::Cache<u64, Page>;

/// A cache with one volume over one device.
pub struct Cached {
    pub cache: Arc<Cache>,
    pub volume: Arc<Volume>,
    pub vnode: Arc<Vnode>,
}

impl Cached {
    pub fn over(device: Arc<dyn BlockDevice>, max_bytes: u64) -> Cached {
        let cache = Cache::new(Config::new(max_bytes)).expect("a cache");
        let size = device.info().size;
        let pager = Arc::new(DevicePager::new(device).expect("pages fit"));
        let volume = cache.volume(pager).expect("a volume");
        let vnode = volume.vnode(DEVICE_FILE, size);
        Cached {
            cache,
            volume,
            vnode,
        }
    }

    /// Opens a session and the file for a thread.
    pub fn open(&self) -> (Session, OpenFile) {
        let session = self.volume.session().expect("a session");
        (session, self.volume.open(&self.vnode))
    }

    /// Reads the whole device into the cache.
    pub fn fill(&self) {
        let (mut session, mut open) = self.open();
        let mut block = vec![0; 1 << 20];
        let size = self.vnode.size();
        for at in (0..size).step_by(block.len()) {
            session
                .read(&mut open, at, &mut block)
                .expect("nothing fails here");
        }
    }
}

/// Allocates plain memory of the kind that the cache's pages use, with large pages where the system
/// provides them.
pub fn memory(bytes: usize) -> Buf {
    let mut memory = BufPool::new(bytes, 1).take(bytes).expect("there is one");
    memory.fill(1);
    memory
}

/// Creates an unnamed file in `dir` whose bytes are in the kernel's page cache.
pub fn kernel_file(dir: &Path, bytes: u64) -> File {
    let file = tempfile::tempfile_in(dir).expect("a file");
    let block = vec![1; 1 << 20];
    for at in (0..bytes).step_by(block.len()) {
        file.write_all_at(&block, at).expect("room");
    }
    // Dirty pages would be written back during other measurements.
    file.sync_all().expect("the disk works");
    file
}

pub fn foyer(pages: usize, eviction: impl Into<foyer_memory::EvictionConfig>) -> Foyer {
    let builder = foyer_memory::CacheBuilder::new(pages).with_shards(SHARDS);
    builder.with_eviction_config(eviction).build()
}

/// Number of foyer's shards, as in its own benchmarks.
const SHARDS: usize = 64;

pub fn moka(pages: usize) -> Moka {
    moka::sync::Cache::new(pages as u64)
}

pub fn a_page() -> Page {
    Arc::new([1; PAGE])
}

/// Returns the first eight bytes of a page.
#[inline]
pub fn word(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[..8].try_into().expect("eight bytes"))
}
