//! Copies of ranges between files, requested by copy_file_range(2) and `cp`.
//!
//! The kernel writes back its pages of both ranges before the request, and drops those of the
//! target after the reply. It copies a range itself if the reply is EXDEV; ENOSYS would be its last
//! request of this kind.

use super::{Tree, errno, snapshots};
use fuse_mount::fuse_proto::{CopyFileRange, Header};
use fuse_mount::{Errno, Reply};

impl Tree {
    pub(super) fn copy_range(&self, header: &Header, copy: &CopyFileRange, reply: Reply<'_>) {
        match self.copied(header, copy) {
            Ok(bytes) => reply.copied(bytes, copy.is_64),
            Err(e) => reply.error(e),
        }
    }

    /// Copies a range, and returns the number of bytes. Of a file in a snapshot, only whole blocks
    /// are shared.
    fn copied(&self, header: &Header, copy: &CopyFileRange) -> Result<u64, Errno> {
        if copy.flags != 0 {
            return Err(Errno::INVAL);
        }
        if snapshots::is_in(copy.to_node) {
            return Err(Errno::ROFS);
        }
        let is_of_snapshot = snapshots::is_in(header.node);
        let handles = if is_of_snapshot {
            &self.snapshot_handles
        } else {
            &self.handles
        };
        let from = handles.get(copy.handle).ok_or(Errno::BADF)?;
        let to = self.handles.get(copy.to_handle).ok_or(Errno::BADF)?;
        // Not every kernel announces beforehand that the file loses its privileges.
        if header.uid != 0 {
            self.drop_set_ids(to.handle.ino())?;
        }
        if to.how.had_capabilities || self.capabilities.were_given(to.handle.ino()) {
            self.drop_capabilities(to.handle.ino())?;
        }
        let source = (&from.handle, copy.offset);
        let target = (&to.handle, copy.to_offset);
        self.with_lane(|lane, _| {
            let copied = if is_of_snapshot {
                match lane.share(source, target, copy.length) {
                    Ok(0) => return Err(Errno::XDEV),
                    shared => shared,
                }
            } else {
                lane.copy(source, target, copy.length)
            };
            let bytes = copied.map_err(errno)?;
            if to.how.syncs && bytes > 0 {
                lane.sync(&to.handle).map_err(errno)?;
            }
            Ok(bytes)
        })
    }
}
