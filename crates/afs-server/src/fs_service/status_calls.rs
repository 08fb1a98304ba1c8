//! Status procedures.

use super::{RequestContext, fid_of};
use crate::callback::GrantedPromise;
use crate::error::{CallResult, DENIED, Fault};
use crate::status;
use crate::volume::Volume;
use afs_proto::fs::{AfsFetchStatus, Reply};
use afs_proto::{AfsCallBack, AfsFid, List, Rights};
use fs::{Attr, FileType, Ino};
use std::sync::Arc;

/// Returns the rights required to read an inode's status or data: `READ` for a file, `LOOKUP` for
/// other kinds.
pub(super) fn rights_to_look(attr: &Attr) -> Rights {
    match attr.inode.kind {
        FileType::File => Rights::READ,
        _ => Rights::LOOKUP,
    }
}

impl RequestContext<'_> {
    pub(super) fn fetch_status(&self, fid: &AfsFid) -> CallResult<Reply<'static>> {
        let (volume, status, callback) = self.status_and_promise(fid)?;
        Ok(Reply::FetchStatus {
            status,
            callback: self.told(&callback),
            sync: volume.sync(),
        })
    }

    pub(super) fn inline_bulk_status(&self, fids: &[AfsFid]) -> CallResult<Reply<'static>> {
        let errno_form = self.host.errno_form();
        let mut sync = Default::default();
        let mut statuses = Vec::with_capacity(fids.len());
        let mut callbacks = Vec::with_capacity(fids.len());
        for fid in fids {
            let (status, callback) = match self.status_and_promise(fid) {
                Ok((volume, status, callback)) => {
                    sync = volume.sync();
                    (status, Some(callback))
                }
                Err(Fault::Call(error)) => return Err(error.into()),
                Err(fault) => {
                    let status = AfsFetchStatus::failed(fault.code(errno_form));
                    (status, None)
                }
            };
            statuses.push(status);
            callbacks.push(callback);
        }
        let shown = |given: Option<GrantedPromise>| {
            given.map_or_else(AfsCallBack::default, |g| self.told(&g))
        };
        Ok(Reply::InlineBulkStatus {
            statuses: List::new(statuses)?,
            callbacks: List::new(callbacks.into_iter().map(shown).collect())?,
            sync,
        })
    }

    pub(super) fn bulk_status(&self, fids: &[AfsFid]) -> CallResult<Reply<'static>> {
        let mut sync = Default::default();
        let mut statuses = Vec::with_capacity(fids.len());
        let mut callbacks = Vec::with_capacity(fids.len());
        for fid in fids {
            let (volume, status, callback) = self.status_and_promise(fid)?;
            sync = volume.sync();
            statuses.push(status);
            callbacks.push(callback);
        }
        Ok(Reply::BulkStatus {
            statuses: List::new(statuses)?,
            callbacks: List::new(callbacks.iter().map(|g| self.told(g)).collect())?,
            sync,
        })
    }

    pub(super) fn lookup(&self, directory: &AfsFid, name: &[u8]) -> CallResult<Reply<'static>> {
        let volume = self.volume(directory)?;
        let dir = volume.ino(directory)?;
        self.check(&volume, &volume.files.attr(dir)?, Rights::LOOKUP)?;
        let found = volume.files.lookup(dir, name)?;
        let fid = fid_of(&found)?.within(volume.id);
        let (_, status, callback) = self.status_and_promise(&fid)?;
        Ok(Reply::Lookup {
            fid,
            status,
            directory_status: self.status(&volume, dir)?,
            callback: self.told(&callback),
            sync: volume.sync(),
        })
    }

    /// Reads the status of a file, with a promise made before the status was read.
    fn status_and_promise(
        &self,
        fid: &AfsFid,
    ) -> CallResult<(Arc<Volume>, AfsFetchStatus, GrantedPromise)> {
        let volume = self.volume(fid)?;
        let ino = volume.ino(fid)?;
        self.check_look(&volume, &volume.files.attr(ino)?)?;
        let callback = self.promise(&volume, ino);
        let status = self.status(&volume, ino)?;
        Ok((volume, status, callback))
    }

    fn check_look(&self, volume: &Volume, attr: &Attr) -> CallResult<()> {
        let allowed = volume.allowed(attr, &self.caller)?;
        if allowed.caller.has(rights_to_look(attr)) {
            Ok(())
        } else {
            Err(DENIED)
        }
    }

    /// Reads the status of an inode that the caller may read.
    pub(super) fn status(&self, volume: &Volume, ino: Ino) -> CallResult<AfsFetchStatus> {
        let attr = volume.attr(ino)?;
        if attr.inode.is_dir() {
            let directory = volume.directories.of(ino);
            let mut pages = directory.lock();
            let (attr, bytes) = pages.read(&volume.files)?;
            let length = bytes.len() as u64;
            let change = pages.change_seen();
            drop(pages);
            volume.directories.make_durable(&volume.files, change)?;
            return self.status_of(volume, &attr, length);
        }
        volume.stores.make_durable(&volume.files, ino)?;
        self.status_of(volume, &attr, attr.inode.size)
    }

    /// Builds the status of an inode from its attributes.
    pub(super) fn status_of(
        &self,
        volume: &Volume,
        attr: &Attr,
        length: u64,
    ) -> CallResult<AfsFetchStatus> {
        let allowed = volume.allowed(attr, &self.caller)?;
        let locks = self.lock_count(volume, attr.ino);
        Ok(status::of(volume, attr, length, allowed, locks))
    }
}
