//! File lock procedures.

use super::Visit;
use crate::error::{Fault, Outcome};
use crate::locks::Refused;
use crate::volume::{Volume, VolumeId};
use afs_proto::fs::{LockType, Reply};
use afs_proto::{AfsFid, Rights, WireError};
use fs::Ino;
use std::sync::Arc;
use std::time::Instant;

impl Visit<'_> {
    pub(super) fn set_lock(&self, fid: &AfsFid, kind: LockType) -> Outcome<Reply<'static>> {
        let (volume, file) = self.lockable(fid)?;
        if !matches!(kind, LockType::Read | LockType::Write) {
            let (what, value) = ("lock type", kind as u32);
            return Err(WireError::Undefined { what, value }.into());
        }
        self.shared
            .locks
            .set(Instant::now(), file, kind)
            .map_err(refused)?;
        Ok(Reply::SetLock {
            sync: volume.sync(),
        })
    }

    pub(super) fn extend_lock(&self, fid: &AfsFid) -> Outcome<Reply<'static>> {
        let (volume, file) = self.lockable(fid)?;
        self.shared
            .locks
            .extend(Instant::now(), file)
            .map_err(refused)?;
        Ok(Reply::ExtendLock {
            sync: volume.sync(),
        })
    }

    pub(super) fn release_lock(&self, fid: &AfsFid) -> Outcome<Reply<'static>> {
        let (volume, file) = self.lockable(fid)?;
        self.shared
            .locks
            .release(Instant::now(), file)
            .map_err(refused)?;
        Ok(Reply::ReleaseLock {
            sync: volume.sync(),
        })
    }

    fn lockable(&self, fid: &AfsFid) -> Outcome<(Arc<Volume>, (VolumeId, Ino))> {
        let volume = self.volume(fid)?;
        let ino = volume.ino(fid)?;
        self.check(&volume, &volume.files.attr(ino)?, Rights::LOCK)?;
        let file = (volume.id, ino);
        Ok((volume, file))
    }
}

/// Maps to the two codes that Linux understands; it retries after the first.
fn refused(why: Refused) -> Fault {
    Fault::Errno(match why {
        Refused::Busy => libc::EAGAIN,
        Refused::NotLocked => libc::EINVAL,
    })
}
