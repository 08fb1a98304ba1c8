//! Creation and removal of names.
//!
//! The directory stays locked from before the change until its pages are updated, but not while
//! clients are notified.

use super::{ANONYMOUS, Change, RequestContext, SET_ID, fid_of};
use crate::callback::GrantedPromise;
use crate::directories::Pages;
use crate::error::{CallResult, Fault};
use crate::fid;
use crate::lanes;
use crate::volume::Volume;
use afs_proto::fs::{AfsFetchStatus, AfsStoreStatus, Reply};
use afs_proto::{Abort, AfsFid, Fid, Rights};
use fs::{Attr, FileType, Files, Ino, Kind, New, SetAttr, SetTime, Time};
use std::sync::Arc;

/// Mode of a file if the client sends none.
const FILE_MODE: u32 = 0o644;
/// Mode of a directory if the client sends none.
const DIRECTORY_MODE: u32 = 0o755;
/// Mode of a symbolic link. Clients treat a link without execute permission as a mount point.
const LINK_MODE: u32 = 0o777;

/// Created file.
struct Made {
    volume: Arc<Volume>,
    fid: AfsFid,
    ino: Ino,
    callback: GrantedPromise,
    directory_status: AfsFetchStatus,
}

impl RequestContext<'_> {
    pub(super) fn create_file(
        &self,
        directory: &AfsFid,
        name: &[u8],
        wanted: &AfsStoreStatus,
    ) -> CallResult<Reply<'static>> {
        let kind = (FileType::File, FILE_MODE);
        let made = self.make_inode(directory, name, wanted, kind)?;
        Ok(Reply::CreateFile {
            fid: made.fid,
            status: self.status(&made.volume, made.ino)?,
            directory_status: made.directory_status,
            callback: self.told(&made.callback),
            sync: made.volume.sync(),
        })
    }

    pub(super) fn make_dir(
        &self,
        directory: &AfsFid,
        name: &[u8],
        wanted: &AfsStoreStatus,
    ) -> CallResult<Reply<'static>> {
        let kind = (FileType::Directory, DIRECTORY_MODE);
        let made = self.make_inode(directory, name, wanted, kind)?;
        Ok(Reply::MakeDir {
            fid: made.fid,
            status: self.status(&made.volume, made.ino)?,
            directory_status: made.directory_status,
            callback: self.told(&made.callback),
            sync: made.volume.sync(),
        })
    }

    pub(crate) fn symlink(
        &self,
        directory: &AfsFid,
        name: &[u8],
        contents: &[u8],
        wanted: &AfsStoreStatus,
    ) -> CallResult<Reply<'static>> {
        let mode = wanted.unix_mode_bits.unwrap_or(LINK_MODE) & 0o777;
        let set = SetAttr {
            permissions: (mode != LINK_MODE).then_some(mode),
            ..SetAttr::default()
        };
        let made = self.make(directory, name, wanted, Some(&set), |volume, dir| {
            let (uid, gid) = (ANONYMOUS, dir.inode.gid);
            volume.files.symlink(dir.ino, name, contents, uid, gid)
        })?;
        Ok(Reply::Symlink {
            fid: made.fid,
            status: self.status(&made.volume, made.ino)?,
            directory_status: made.directory_status,
            sync: made.volume.sync(),
        })
    }

    /// Creates a file or directory; `mode` applies if the client sends none.
    fn make_inode(
        &self,
        directory: &AfsFid,
        name: &[u8],
        wanted: &AfsStoreStatus,
        (kind, mode): (FileType, u32),
    ) -> CallResult<Made> {
        self.make(directory, name, wanted, None, |volume, dir| {
            let new = new(kind, dir, wanted, mode);
            volume.files.create(dir.ino, name, &new)
        })
    }

    /// Runs `make` to create an inode in a directory, in one operation, sets its attributes, and
    /// updates the directory's pages.
    fn make(
        &self,
        directory: &AfsFid,
        name: &[u8],
        wanted: &AfsStoreStatus,
        set: Option<&SetAttr>,
        make: impl FnOnce(&Arc<Volume>, &Attr) -> fs::Result<Attr>,
    ) -> CallResult<Made> {
        let (volume, dir, _) = self.directory(directory, Rights::INSERT)?;
        let locked = volume.directories.of(dir.ino);
        let mut pages = locked.lock();
        let is_done = self.turn.is_done();
        let before = pages.prepare(&volume.files, (!is_done).then_some(name))?;
        let made = if is_done {
            volume.files.lookup(dir.ino, name).map_err(later_if_gone)
        } else {
            let made = self.turn.once(|| make(&volume, &dir));
            made.map_err(Fault::from)
        };
        let made = made.and_then(|attr| {
            let attr = match set {
                Some(set) => set_attr(&volume, attr.ino, set)?,
                None => attr,
            };
            let fid = fid_of(&attr)?;
            if !is_done {
                // Pages that were built after it have the name.
                pages.insert(name, fid);
            }
            let callback = self.promise(&volume, attr.ino);
            if let Some(seconds) = wanted.client_mod_time {
                let seconds = seconds.into();
                let set = SetAttr {
                    modified: Some(SetTime::To(Time { seconds, nanos: 0 })),
                    ..SetAttr::default()
                };
                set_attr(&volume, attr.ino, &set)?;
            }
            Ok(Made {
                fid: fid.within(volume.id),
                ino: attr.ino,
                callback,
                directory_status: self.finish_change(&volume, &mut pages)?,
                volume: Arc::clone(&volume),
            })
        });
        drop(pages);
        let changed = [Change::answered(dir.ino, directory.into())];
        self.commit_and_notify(&volume, (dir.ino, before), &changed, made)
    }

    pub(super) fn link(
        &self,
        directory: &AfsFid,
        name: &[u8],
        existing: &AfsFid,
    ) -> CallResult<Reply<'static>> {
        let (volume, dir, _) = self.directory(directory, Rights::INSERT)?;
        if existing.volume != directory.volume {
            return Err(Fault::Errno(libc::EXDEV));
        }
        let ino = volume.ino(existing)?;
        let locked = volume.directories.of(dir.ino);
        let mut pages = locked.lock();
        let attr = volume.files.attr(ino)?;
        // A file is subject to the access list of its directory, so it can be in only one.
        if !attr.inode.is_dir() && attr.inode.parent != dir.ino {
            return Err(Fault::Errno(libc::EXDEV));
        }
        let is_done = self.turn.is_done();
        let before = pages.prepare(&volume.files, (!is_done).then_some(name))?;
        if !is_done {
            self.turn.once(|| volume.files.link(ino, dir.ino, name))?;
            pages.insert(name, Fid::from(existing));
        }
        let linked = self.finish_change(&volume, &mut pages);
        drop(pages);
        let changed = [
            Change::answered(dir.ino, directory.into()),
            Change::answered(ino, existing.into()),
        ];
        let directory_status =
            self.commit_and_notify(&volume, (dir.ino, before), &changed, linked)?;
        Ok(Reply::Link {
            status: self.status(&volume, ino)?,
            directory_status,
            sync: volume.sync(),
        })
    }

    pub(super) fn remove_file(
        &self,
        directory: &AfsFid,
        name: &[u8],
    ) -> CallResult<Reply<'static>> {
        let (volume, directory_status) = self.remove(directory, name, Files::unlink)?;
        Ok(Reply::RemoveFile {
            directory_status,
            sync: volume.sync(),
        })
    }

    pub(super) fn remove_dir(&self, directory: &AfsFid, name: &[u8]) -> CallResult<Reply<'static>> {
        let (volume, directory_status) = self.remove(directory, name, Files::rmdir)?;
        Ok(Reply::RemoveDir {
            directory_status,
            sync: volume.sync(),
        })
    }

    fn remove(
        &self,
        directory: &AfsFid,
        name: &[u8],
        remove: fn(&Files, Ino, &[u8]) -> fs::Result<Attr>,
    ) -> CallResult<(Arc<Volume>, AfsFetchStatus)> {
        let (volume, dir, _) = self.directory(directory, Rights::DELETE)?;
        let locked = volume.directories.of(dir.ino);
        let mut pages = locked.lock();
        let mut changed = vec![Change::answered(dir.ino, directory.into())];
        let (before, removed) = if self.turn.is_done() {
            // All clients know that their promises have ended.
            let before = pages.prepare(&volume.files, None)?;
            (before, self.finish_change(&volume, &mut pages))
        } else {
            // Check first, so that a missing name leaves no mark.
            let named = volume.files.lookup(dir.ino, name)?;
            let before = pages.prepare(&volume.files, None)?;
            let removed = self.turn.once(|| remove(&volume.files, dir.ino, name));
            changed.extend(lost_a_name(removed.as_ref().unwrap_or(&named)));
            let removed = removed.map_err(Fault::from).and_then(|gone| {
                pages.remove(name);
                self.drop_if_removed(&volume, &gone);
                self.finish_change(&volume, &mut pages)
            });
            (before, removed)
        };
        drop(pages);
        let directory_status =
            self.commit_and_notify(&volume, (dir.ino, before), &changed, removed)?;
        Ok((volume, directory_status))
    }

    /// Drops the state of an inode that has lost a name, if it was the last one.
    pub(super) fn drop_if_removed(&self, volume: &Volume, attr: &Attr) {
        if attr.inode.is_dir() {
            volume.directories.forget(attr.ino);
        } else if attr.inode.links == 0 {
            self.shared.locks.forget((volume.id, attr.ino));
        }
    }

    /// Completes a change of a locked directory and returns its status.
    pub(super) fn finish_change(
        &self,
        volume: &Volume,
        pages: &mut Pages,
    ) -> CallResult<AfsFetchStatus> {
        let (attr, length) = pages.finish_change(&volume.files)?;
        self.status_of(volume, &attr, length)
    }

    /// Makes a change of directory `dir` durable and notifies clients. Does so even for a failed
    /// change that has taken effect: the version is no longer `before`. In that case the caller is
    /// notified too, because its reply carries no status.
    pub(super) fn commit_and_notify<T>(
        &self,
        volume: &Volume,
        (dir, before): (Ino, u64),
        changed: &[Change],
        done: CallResult<T>,
    ) -> CallResult<T> {
        let fault = match done {
            Ok(done) => return self.durable(volume, changed).map(|()| done),
            Err(fault) => fault,
        };
        let now = volume.files.attr(dir).map(|attr| attr.inode.data_version);
        if now.ok() != Some(before) {
            let told = |change: &Change| Change {
                is_answered: false,
                ..*change
            };
            let changed: Vec<_> = changed.iter().map(told).collect();
            self.durable(volume, &changed)?;
        }
        Err(fault)
    }

    /// Makes a change durable and notifies clients.
    pub(super) fn durable(&self, volume: &Volume, changed: &[Change]) -> CallResult<()> {
        let durable = volume.directories.sync(&volume.files);
        self.notify_holders(volume, changed);
        Ok(durable?)
    }
}

/// Builds the change of an inode that has lost a name. Replies do not cover a file that has other
/// names left.
pub(super) fn lost_a_name(attr: &Attr) -> Option<Change> {
    let is_answered = attr.inode.is_dir() || attr.inode.links == 0;
    fid::of(attr).map(|fid| Change {
        ino: attr.ino,
        fid,
        is_answered,
    })
}

/// Builds the attributes of a new inode, without the set-ID bits, which only administrators may
/// set.
fn new(kind: FileType, dir: &Attr, wanted: &AfsStoreStatus, mode: u32) -> New {
    New {
        kind,
        permissions: wanted.unix_mode_bits.unwrap_or(mode) & 0o7777 & !SET_ID,
        umask: 0,
        uid: ANONYMOUS,
        gid: dir.inode.gid,
        rdev: 0,
    }
}

/// Lets the client make again what a killed server has made, if others have removed it before the
/// client had the reply.
fn later_if_gone(error: fs::Error) -> Fault {
    match error.kind() {
        Kind::NotFound => Abort::VBUSY.into(),
        _ => error.into(),
    }
}

fn set_attr(volume: &Arc<Volume>, ino: Ino, set: &SetAttr) -> CallResult<Attr> {
    Ok(lanes::with(volume, |lane| lane.set_attr(ino, set))??)
}
