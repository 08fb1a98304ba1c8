//! A block device behind the cache: the pages of file 0 of a volume on a raw device.
//!
//! **Invariant:** a flush and FUA reach the raw device. Direct and cached queues on one volume see
//! the same content.

use crate::device_pager::{DEVICE_FILE, DevicePager};
use crate::frames::PAGE_BYTES;
use crate::open::OpenFile;
use crate::predecessor::Predecessor;
use crate::session::{CacheMode, Session};
use crate::tree::Vnode;
use crate::volume::{Cache, Volume};
use block::{
    BlockDevice, Completion, DeviceInfo, Error, ErrorKind, GrowingInfo, Op, Queue, Request, Result,
    Wait,
};
use layer_cpu::{Layer, within};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A device whose data is cached.
#[derive(Clone)]
pub struct CachedDevice {
    info: Arc<GrowingInfo>,
    lower: Arc<dyn BlockDevice>,
    volume: Arc<Volume>,
    vnode: Arc<Vnode>,
    mode: CacheMode,
}

impl CachedDevice {
    /// Puts `device` behind `cache`.
    ///
    /// # Errors
    /// As [`DevicePager::new`] and [`Cache::volume`].
    pub fn new(cache: &Cache, device: Arc<dyn BlockDevice>) -> Result<CachedDevice> {
        let pager = DevicePager::new(Arc::clone(&device))?;
        CachedDevice::over(cache, device, pager)
    }

    /// As [`CachedDevice::new`]; a successor of this process finds its dirty pages by the UUID of what
    /// is on the device.
    ///
    /// # Errors
    /// As [`CachedDevice::new`]; the cache's pages are those of another device.
    pub fn known_by(
        uuid: [u8; 16],
        cache: &Cache,
        device: Arc<dyn BlockDevice>,
    ) -> Result<CachedDevice> {
        let pager = DevicePager::new(Arc::clone(&device))?.known_by(uuid);
        CachedDevice::over(cache, device, pager)
    }

    fn over(
        cache: &Cache,
        device: Arc<dyn BlockDevice>,
        pager: DevicePager,
    ) -> Result<CachedDevice> {
        let info = DeviceInfo {
            volatile_write_cache: true,
            ..device.info().clone()
        };
        let volume = cache.volume(Arc::new(pager))?;
        let vnode = volume.vnode(DEVICE_FILE, info.size);
        Ok(CachedDevice {
            info: Arc::new(info.into()),
            lower: device,
            volume,
            vnode,
            mode: CacheMode::Cached,
        })
    }

    /// Takes over the dirty pages that a killed process left behind, before the first request. They are
    /// dirty in this cache afterwards. Returns their number.
    ///
    /// # Errors
    /// The pages belong to another device; they cannot be written to the cache. The predecessor has the
    /// only copy then.
    pub fn adopt(&self, predecessor: &Predecessor) -> Result<u64> {
        let name = &self.info.name;
        let tree = self
            .volume
            .tree()
            .filter(|tree| tree.file_system == predecessor.file_system());
        let Some(tree) = tree else {
            let text = "the pages of the process before this one belong to another device";
            return Err(Error::new(ErrorKind::Invalid, name, text));
        };
        let mut session = self.volume.session()?;
        let mut open = self.volume.open(&self.vnode);
        let mut page_bytes = [0; PAGE_BYTES];
        let mut count = 0;
        for page in predecessor.pages(tree) {
            let offset = page.page * PAGE_BYTES as u64;
            let len = self.info.size.saturating_sub(offset).min(PAGE_BYTES as u64) as usize;
            if page.file != DEVICE_FILE || len == 0 {
                let text = "a page of the process before this one lies outside the device";
                return Err(Error::new(ErrorKind::Invalid, name, text));
            }
            predecessor.read(&page, &mut page_bytes[..len])?;
            session.write(&mut open, offset, &page_bytes[..len])?;
            count += 1;
        }
        Ok(count)
    }

    /// Returns the same device with requests that bypass the cache, coherently with it.
    pub fn direct(&self) -> CachedDevice {
        CachedDevice {
            info: Arc::clone(&self.info),
            lower: Arc::clone(&self.lower),
            volume: Arc::clone(&self.volume),
            vnode: Arc::clone(&self.vnode),
            mode: CacheMode::Direct,
        }
    }

    /// Returns the volume, for closing it and for its statistics.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns the vnode, for its attributes and statistics.
    pub fn vnode(&self) -> &Arc<Vnode> {
        &self.vnode
    }
}

impl BlockDevice for CachedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn update_size(&self) -> Result<u64> {
        let size = self.lower.update_size()?;
        // First the file: a request to the new part finds pages that belong to it.
        self.vnode.raise(size);
        self.info.grow(size)
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(CachedQueue {
            info: Arc::clone(&self.info),
            session: self.volume.session()?,
            open: self.volume.open(&self.vnode),
            mode: self.mode,
        }))
    }

    fn derive_key(&self, label: &[u8], key: &mut [u8; block::DERIVED_KEY_BYTES]) -> bool {
        self.lower.derive_key(label, key)
    }
}

struct CachedQueue {
    info: Arc<GrowingInfo>,
    session: Session,
    open: OpenFile,
    mode: CacheMode,
}

impl Queue for CachedQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.session.capacity()
    }

    fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let _here = within(Layer::Cache);
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        match self.info.check(&request.op) {
            // A read-only device has nothing to flush.
            Ok(()) if self.info.read_only && matches!(request.op, Op::Flush) => {
                self.session.answer(request, Ok(()));
                Ok(())
            }
            Ok(()) => self.session.submit(&mut self.open, self.mode, request),
            Err(error) => {
                self.session.answer(request, Err(error));
                Ok(())
            }
        }
    }

    fn kick(&mut self) -> Result<()> {
        let _here = within(Layer::Cache);
        self.session.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let _here = within(Layer::Cache);
        self.session.reap(wait, done)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.session.wait_fd())
    }

    fn holds_answers(&self) -> bool {
        self.session.holds_answers()
    }
}
