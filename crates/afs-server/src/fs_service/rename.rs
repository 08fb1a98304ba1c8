//! Renaming within a directory and between directories.

use super::names::lost_a_name;
use super::{Change, RequestContext, fid_of};
use crate::directories::{Directory, Pages};
use crate::error::{CallResult, Fault};
use crate::fid;
use crate::volume::Volume;
use afs_proto::fs::{AfsFetchStatus, Reply};
use afs_proto::{Abort, AfsFid, Fid, Rights};
use fs::{Attr, Ino, Kind};
use std::sync::{Arc, MutexGuard};

/// Attempts to lock the source while others rename it.
const TRIES: usize = 10;

/// Directory and a name in it.
type Name<'n> = (&'n AfsFid, &'n [u8]);

/// Result of a rename.
struct Renamed {
    old_status: AfsFetchStatus,
    new_status: AfsFetchStatus,
    changed: Vec<Change>,
    replaced: Option<Attr>,
}

impl RequestContext<'_> {
    pub(super) fn rename(&self, old: Name<'_>, new: Name<'_>) -> CallResult<Reply<'static>> {
        if old.0.volume != new.0.volume {
            return Err(Fault::Errno(libc::EXDEV));
        }
        let (volume, old_dir, _) = self.directory(old.0, Rights::DELETE)?;
        let (_, new_dir, allowed) = self.directory(new.0, Rights::INSERT)?;
        let may_replace = allowed.caller.has(Rights::DELETE);
        let dirs = (old_dir.ino, new_dir.ino);
        if self.turn.is_done() {
            return self.renamed_before(&volume, dirs, (old.0, new.0));
        }
        for _ in 0..TRIES {
            let moved = volume.files.lookup(dirs.0, old.1)?;
            let above = moved.inode.is_dir() && dirs.0 != dirs.1;
            let locked = Locked::new(&volume, &[dirs.0, dirs.1], above.then_some(moved.ino));
            let mut guards = locked.lock();
            // Look it up again under the lock: it may have been replaced, or its links changed.
            let before = moved.ino;
            let moved = volume.files.lookup(dirs.0, old.1)?;
            if moved.ino != before {
                continue;
            }
            let version = volume.files.attr(dirs.0)?.inode.data_version;
            let done = self.rename_locked(&volume, &mut guards, (old, new), &moved, may_replace);
            drop(guards);
            let changed = match &done {
                Ok(done) => done.changed.clone(),
                // A failed rename may have taken effect.
                Err(_) => {
                    let dirs = [(dirs.0, Fid::from(old.0)), (dirs.1, Fid::from(new.0))];
                    let moved = fid::of(&moved).map(|fid| (moved.ino, fid));
                    let all = dirs.into_iter().chain(moved);
                    all.map(|(ino, fid)| Change::answered(ino, fid)).collect()
                }
            };
            let done = self.commit_and_notify(&volume, (dirs.0, version), &changed, done)?;
            if let Some(gone) = &done.replaced {
                self.drop_if_removed(&volume, gone);
            }
            return Ok(Reply::Rename {
                old_directory_status: done.old_status,
                new_directory_status: done.new_status,
                sync: volume.sync(),
            });
        }
        Err(Abort::VBUSY.into())
    }

    /// Answers a rename that a killed server has carried out.
    fn renamed_before(
        &self,
        volume: &Volume,
        dirs: (Ino, Ino),
        fids: (&AfsFid, &AfsFid),
    ) -> CallResult<Reply<'static>> {
        let locked = Locked::new(volume, &[dirs.0, dirs.1], None);
        let mut guards = locked.lock();
        for (_, pages) in &mut guards {
            pages.prepare(&volume.files, None)?;
        }
        let old_status = self.finish_change(volume, at(&mut guards, dirs.0)?)?;
        let new_status = self.finish_change(volume, at(&mut guards, dirs.1)?)?;
        drop(guards);
        let changed = [
            Change::answered(dirs.0, Fid::from(fids.0)),
            Change::answered(dirs.1, Fid::from(fids.1)),
        ];
        self.durable(volume, &changed)?;
        Ok(Reply::Rename {
            old_directory_status: old_status,
            new_directory_status: new_status,
            sync: volume.sync(),
        })
    }

    fn rename_locked(
        &self,
        volume: &Volume,
        guards: &mut [(Ino, MutexGuard<'_, Pages>)],
        (old, new): (Name<'_>, Name<'_>),
        moved: &Attr,
        may_replace: bool,
    ) -> CallResult<Renamed> {
        let files = &volume.files;
        let dirs = (volume.ino(old.0)?, volume.ino(new.0)?);
        let target = match files.lookup(dirs.1, new.1) {
            Ok(target) => Some(target),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        if target.is_some() && !may_replace {
            return Err(crate::error::DENIED);
        }
        let same = target
            .as_ref()
            .is_some_and(|target| target.ino == moved.ino);
        if dirs.0 != dirs.1 && !same && !moved.inode.is_dir() && moved.inode.links > 1 {
            // The file would be in two directories, with an access list each.
            return Err(Fault::Errno(libc::EXDEV));
        }
        for (ino, pages) in guards.iter_mut() {
            let comes = (*ino == dirs.1 && target.is_none()).then_some(new.1);
            pages.prepare(files, comes)?;
        }
        let replaced = self
            .turn
            .once(|| files.rename((dirs.0, old.1), (dirs.1, new.1), fs::Rename::Replace))?;
        if !same {
            // In the order in which clients update their copies.
            at(guards, dirs.0)?.remove(old.1);
            if target.is_some() {
                at(guards, dirs.1)?.remove(new.1);
            }
            at(guards, dirs.1)?.insert(new.1, fid_of(moved)?);
            if moved.inode.is_dir() && dirs.0 != dirs.1 {
                at(guards, moved.ino)?.moved(Fid::from(new.0));
            }
        }
        let mut changed = vec![Change::answered(dirs.0, old.0.into())];
        if dirs.0 != dirs.1 {
            changed.push(Change::answered(dirs.1, new.0.into()));
            changed.push(Change {
                ino: moved.ino,
                fid: fid_of(moved)?,
                // The pages of a moved directory contain its parent.
                is_answered: !moved.inode.is_dir(),
            });
        }
        changed.extend(replaced.as_ref().and_then(lost_a_name));
        if let Some((_, pages)) = guards.iter_mut().find(|(ino, _)| *ino == moved.ino) {
            pages.finish_change(files)?;
        }
        Ok(Renamed {
            old_status: self.finish_change(volume, at(guards, dirs.0)?)?,
            new_status: self.finish_change(volume, at(guards, dirs.1)?)?,
            changed,
            replaced,
        })
    }
}

fn at<'g, 'm>(
    guards: &'g mut [(Ino, MutexGuard<'m, Pages>)],
    ino: Ino,
) -> CallResult<&'g mut MutexGuard<'m, Pages>> {
    let found = guards.iter_mut().find(|(of, _)| *of == ino);
    found
        .map(|(_, pages)| pages)
        .ok_or(Fault::Code(Abort::VBUSY))
}

/// Directories to lock together: each once, in the order of their inode numbers.
struct Locked(Vec<(Ino, Arc<Directory>)>);

impl Locked {
    fn new(volume: &Volume, dirs: &[Ino], moved: Option<Ino>) -> Locked {
        let mut inos: Vec<Ino> = dirs.iter().copied().chain(moved).collect();
        inos.sort_unstable();
        inos.dedup();
        let of = |ino: Ino| (ino, volume.directories.of(ino));
        Locked(inos.into_iter().map(of).collect())
    }

    fn lock(&self) -> Vec<(Ino, MutexGuard<'_, Pages>)> {
        let locked = self
            .0
            .iter()
            .map(|(ino, directory)| (*ino, directory.lock()));
        locked.collect()
    }
}
