//! A raw device as the one file of a pager.
//!
//! **Invariant:** the file ends at a page boundary. If the device ends inside its last page, the
//! rest of the page reads as zeros and is not written.

use crate::frames::PAGE_BYTES;
use crate::pager::{FileId, FileRequest, Pager, PagerInfo, PagerQueue, Tree};
use block::{
    BlockDevice, Buf, BufPool, Bufs, Completion, Error, ErrorKind, Op, Queue, Request, Result, Wait,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The file number of a raw device.
pub const DEVICE_FILE: FileId = FileId(0);

/// The number of the only tree of a device.
const DEVICE_TREE: u64 = 0;

/// A pager over a block device.
pub struct DevicePager {
    device: Arc<dyn BlockDevice>,
    info: PagerInfo,
    /// UUID of what is on the device, by which a successor finds its pages.
    uuid: Option<[u8; 16]>,
}

impl DevicePager {
    /// Creates a pager over `device`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if its blocks are longer than a page, or its largest transfer is
    /// shorter.
    pub fn new(device: Arc<dyn BlockDevice>) -> Result<DevicePager> {
        let below = device.info();
        let page = PAGE_BYTES as u32;
        if below.logical_block_size > page || below.max_transfer < page {
            let detail = format!(
                "a cache needs blocks of at most {page} bytes and transfers of at least {page}; \
                 this device has {} and {}",
                below.logical_block_size, below.max_transfer
            );
            return Err(Error::new(ErrorKind::Invalid, &below.name, detail));
        }
        let info = PagerInfo {
            name: below.name.clone(),
            block_size: below.logical_block_size,
            optimal_io_size: below.optimal_io_size,
            max_transfer: below.max_transfer,
            numa_node: below.numa_node,
            read_only: below.read_only,
            discard: below.discard,
            flushes_all: false,
        };
        Ok(DevicePager {
            device,
            info,
            uuid: None,
        })
    }

    /// Lets a successor of this process find the pages by the UUID of what is on the device.
    #[must_use]
    pub fn known_by(self, uuid: [u8; 16]) -> DevicePager {
        DevicePager {
            uuid: Some(uuid),
            ..self
        }
    }

    /// Returns the underlying device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }
}

impl Pager for DevicePager {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn tree(&self) -> Option<Tree> {
        self.uuid.map(|file_system| Tree {
            file_system,
            number: DEVICE_TREE,
        })
    }

    fn queue(&self) -> Result<Box<PagerQueue>> {
        Ok(Box::new(DevicePagerQueue {
            info: self.info.clone(),
            queue: self.device.queue()?,
            shortened: Vec::new(),
        }))
    }
}

struct DevicePagerQueue {
    info: PagerInfo,
    queue: Box<dyn Queue>,
    /// Tags of the requests in flight that reached beyond the device; few, because only its last
    /// page does.
    shortened: Vec<u64>,
}

impl DevicePagerQueue {
    /// Counts the bytes of the range beyond the device if they are less than a page, the last page
    /// of the device. A range that reaches further is an error, which the device reports.
    fn excess(&self, op: &Op) -> usize {
        match op.range() {
            Some((offset, len)) if offset < self.queue.info().size => {
                let end = offset.saturating_add(len);
                let beyond = end.saturating_sub(self.queue.info().size);
                if beyond < PAGE_BYTES as u64 {
                    beyond as usize
                } else {
                    0
                }
            }
            _ => 0,
        }
    }
}

/// Shortens the last buffers by `excess` bytes; a buffer that becomes empty stays in the list.
fn shorten(bufs: &mut Bufs, mut excess: usize) {
    for buf in bufs.as_mut_slice().iter_mut().rev() {
        let cut = excess.min(buf.len());
        buf.set_len(buf.len() - cut);
        excess -= cut;
    }
}

/// Restores the buffers of a write to their full capacity.
fn lengthen(bufs: &mut Bufs) {
    let restore = |buf: &mut Buf| buf.set_len(buf.capacity());
    bufs.iter_mut().for_each(restore);
}

/// Restores the buffers of a read to their full capacity, and zeroes the added bytes.
fn lengthen_with_zeros(bufs: &mut Bufs) {
    let restore = |buf: &mut Buf| {
        let len = buf.len();
        buf.set_len(buf.capacity());
        buf[len..].fill(0);
    };
    bufs.iter_mut().for_each(restore);
}

impl Queue<FileRequest, PagerInfo> for DevicePagerQueue {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn submit(&mut self, request: FileRequest) -> std::result::Result<(), FileRequest> {
        let FileRequest { file, request } = request;
        let Request { tag, mut op } = request;
        let excess = self.excess(&op);
        if excess > 0 && self.queue.in_flight() < self.queue.capacity() {
            self.shortened.push(tag);
            match &mut op {
                Op::Read { bufs, .. } | Op::Write { bufs, .. } => shorten(bufs, excess),
                Op::Discard { len, .. } | Op::WriteZeroes { len, .. } => *len -= excess as u64,
                Op::Flush => {}
            }
        }
        let submitted = self.queue.submit(Request { tag, op });
        submitted.map_err(|request| FileRequest { file, request })
    }

    fn kick(&mut self) -> Result<()> {
        self.queue.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let had = done.len();
        let count = self.queue.reap(wait, done)?;
        for completion in &mut done[had..] {
            if let Some(at) = self.shortened.iter().position(|t| *t == completion.tag) {
                self.shortened.swap_remove(at);
                match &mut completion.op {
                    Op::Read { bufs, .. } => lengthen_with_zeros(bufs),
                    Op::Write { bufs, .. } => lengthen(bufs),
                    _ => {}
                }
            }
        }
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.wait_fd()
    }

    fn holds_answers(&self) -> bool {
        self.queue.holds_answers()
    }

    fn register(&mut self, pool: &BufPool) {
        self.queue.register(pool);
    }
}
