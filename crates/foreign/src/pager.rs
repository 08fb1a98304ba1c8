//! The regular files of a tree for the cache: page requests in, device requests out.
//!
//! ```text
//!   submit(file, read) ──Tree::map──► pieces ──► device requests ──reap──► zeros, copies ─► completion
//!                                        └─────► Tree::compute
//! ```
//!
//! A write of pages becomes requests for the pieces that [`Changes::store`] returns.
//!
//! **Invariant:** a page has no byte that is not of its file: the rest of the last page is zeros.

mod queue;

use crate::changes::Changes;
use crate::disk::{Blocks, Disk};
use crate::tree::Tree;
use block::BlockDevice;
use cache::{PAGE_BYTES, Pager, PagerInfo, PagerQueue};
use std::sync::Arc;

/// Pager for the files of a tree. The number of a file is its node.
pub(crate) struct TreePager {
    tree: Arc<dyn Tree>,
    changes: Option<Arc<dyn Changes>>,
    device: Arc<dyn BlockDevice>,
    blocks: Arc<Blocks>,
    info: PagerInfo,
}

impl TreePager {
    pub(crate) fn new(
        tree: &Arc<dyn Tree>,
        changes: Option<&Arc<dyn Changes>>,
        device: &Arc<dyn BlockDevice>,
        blocks: &Arc<Blocks>,
    ) -> TreePager {
        let page = PAGE_BYTES as u32;
        let below = device.info();
        let info = PagerInfo {
            name: below.name.clone(),
            block_size: page,
            optimal_io_size: below.optimal_io_size.max(page),
            max_transfer: (below.max_transfer - below.max_transfer % page).max(page),
            numa_node: below.numa_node,
            read_only: changes.is_none(),
            discard: false,
            flushes_all: true,
        };
        TreePager {
            tree: Arc::clone(tree),
            changes: changes.cloned(),
            device: Arc::clone(device),
            blocks: Arc::clone(blocks),
            info,
        }
    }
}

impl Pager for TreePager {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn queue(&self) -> block::Result<Box<PagerQueue>> {
        let failed = |e: crate::Error| {
            let source = std::io::Error::from_raw_os_error(e.errno());
            block::Error::from_io(&self.info.name, source).detail(e.to_string())
        };
        let disk = Disk::open(&*self.device, &self.blocks).map_err(failed)?;
        let below = self.device.queue()?;
        let files = (Arc::clone(&self.tree), self.changes.clone());
        let queue = queue::TreeQueue::new(files, disk, below, self.info.clone());
        Ok(Box::new(queue))
    }
}
