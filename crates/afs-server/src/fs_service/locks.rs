//! File lock procedures.

use super::RequestContext;
use crate::error::{CallResult, Fault};
use crate::locks::LockError;
use crate::volume::{Volume, VolumeId};
use afs_proto::fs::{LockType, Reply};
use afs_proto::{AfsFid, Rights, WireError};
use fs::Ino;
use std::sync::Arc;
use std::time::Instant;

impl RequestContext<'_> {
    pub(super) fn set_lock(&self, fid: &AfsFid, kind: LockType) -> CallResult<Reply<'static>> {
        let (volume, file) = self.lockable(fid)?;
        if !matches!(kind, LockType::Read | LockType::Write) {
            let (what, value) = ("lock type", kind as u32);
            return Err(WireError::Undefined { what, value }.into());
        }
        if !self.turn.is_done() {
            let (locks, by) = (&self.shared.locks, self.turn.id());
            let set = locks.set(Instant::now(), file, kind, by);
            set.map_err(refused)?;
        }
        Ok(Reply::SetLock {
            sync: volume.sync(),
        })
    }

    pub(super) fn extend_lock(&self, fid: &AfsFid) -> CallResult<Reply<'static>> {
        let (volume, file) = self.lockable(fid)?;
        self.shared
            .locks
            .extend(Instant::now(), file)
            .map_err(refused)?;
        Ok(Reply::ExtendLock {
            sync: volume.sync(),
        })
    }

    pub(super) fn release_lock(&self, fid: &AfsFid) -> CallResult<Reply<'static>> {
        let (volume, file) = self.lockable(fid)?;
        if !self.turn.is_done() {
            let (locks, by) = (&self.shared.locks, self.turn.id());
            let released = locks.release(Instant::now(), file, by);
            released.map_err(refused)?;
        }
        Ok(Reply::ReleaseLock {
            sync: volume.sync(),
        })
    }

    fn lockable(&self, fid: &AfsFid) -> CallResult<(Arc<Volume>, (VolumeId, Ino))> {
        let volume = self.volume(fid)?;
        let ino = volume.ino(fid)?;
        self.check(&volume, &volume.files.attr(ino)?, Rights::LOCK)?;
        let file = (volume.id, ino);
        Ok((volume, file))
    }
}

/// Maps to the two codes that Linux understands; it retries after the first.
fn refused(why: LockError) -> Fault {
    Fault::Errno(match why {
        LockError::Busy => libc::EAGAIN,
        LockError::NotLocked => libc::EINVAL,
    })
}
