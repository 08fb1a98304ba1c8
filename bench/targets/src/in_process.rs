//! Files of an EVFS file system without a mount: workloads access it by function calls.
//!
//! **Invariant:** each call of a workload does the work that a mount would do, without the kernel
//! in between: names are looked up component by component, and content passes through a lane of the
//! calling thread.
//!
//! Deliberately absent: mappings, which require a kernel, and dropping the cache of a single file.

use crate::own_fs::OwnFs;
use ::fs::{Attr, FileType, Handle, Lane, New, ROOT, Rename, SetAttr, WritePosition};
use bench_core::files::{Files, Open, OpenFile, Stat};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of nested symbolic links.
const LINKS_MAX: u32 = 8;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The lanes of this thread, by the ID of their file system.
    static LANES: RefCell<HashMap<u64, Lane>> = RefCell::new(HashMap::new());
}

/// The file system.
pub struct InProcessFs {
    id: u64,
    name: String,
    own: Arc<OwnFs>,
}

/// Treatment of a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Follow,
    Keep,
}

impl InProcessFs {
    pub fn new(name: &str, own: OwnFs) -> InProcessFs {
        InProcessFs {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: name.to_owned(),
            own: Arc::new(own),
        }
    }

    fn files(&self) -> &Arc<::fs::Files> {
        self.own.files()
    }

    fn attr(&self, path: &str) -> Result<Attr> {
        self.walk(ROOT, path, Link::Follow, 0)
    }

    /// Same as `attr`, but of a symbolic link itself.
    fn link_attr(&self, path: &str) -> Result<Attr> {
        self.walk(ROOT, path, Link::Keep, 0)
    }

    /// Resolves a path from a directory on; `links` symbolic links were followed before.
    fn walk(&self, from: u64, path: &str, at_end: Link, links: u32) -> Result<Attr> {
        let mut attr = self.files().attr(from).map_err(system)?;
        let mut parts = path
            .split('/')
            .filter(|p| !matches!(*p, "" | "."))
            .peekable();
        while let Some(part) = parts.next() {
            let dir = attr.ino;
            attr = self.files().lookup(dir, part.as_bytes()).map_err(system)?;
            let last = parts.peek().is_none();
            if attr.inode.kind == FileType::Symlink && (at_end == Link::Follow || !last) {
                if links == LINKS_MAX {
                    return Err(Error::from_raw_os_error(libc::ELOOP));
                }
                let text = text(self.files().read_link(attr.ino).map_err(system)?)?;
                attr = self.walk(dir, &text, Link::Follow, links + 1)?;
            }
        }
        Ok(attr)
    }

    /// Finds the directory of a path, and the name in it.
    fn place<'a>(&self, path: &'a str) -> Result<(u64, &'a [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.attr(dir)?.ino, name.as_bytes()))
    }

    fn make(&self, path: &str, kind: FileType, permissions: u32) -> Result<Attr> {
        let (dir, name) = self.place(path)?;
        let new = New {
            kind,
            permissions,
            umask: 0,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
        };
        self.files().create(dir, name, &new).map_err(system)
    }

    fn with_lane<T>(&self, work: impl FnOnce(&mut Lane) -> ::fs::Result<T>) -> Result<T> {
        in_lane(self.id, &self.own, work)
    }

    fn set(&self, ino: u64, set: SetAttr) -> Result<()> {
        self.with_lane(|lane| lane.set_attr(ino, &set)).map(drop)
    }
}

impl Drop for InProcessFs {
    fn drop(&mut self) {
        // Threads of workloads have ended, and their lanes with them; this thread continues.
        LANES.with_borrow_mut(|lanes| lanes.remove(&self.id));
    }
}

fn in_lane<T>(id: u64, own: &OwnFs, work: impl FnOnce(&mut Lane) -> ::fs::Result<T>) -> Result<T> {
    LANES.with_borrow_mut(|lanes| {
        let lane = match lanes.entry(id) {
            std::collections::hash_map::Entry::Occupied(lane) => lane.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(own.files().lane().map_err(system)?)
            }
        };
        work(lane).map_err(system)
    })
}

fn system(error: ::fs::Error) -> Error {
    Error::from_raw_os_error(error.errno())
}

fn text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
}

struct InsideFile {
    id: u64,
    // Dropped before the file system that it belongs to.
    handle: Handle,
    own: Arc<OwnFs>,
    how: Open,
}

impl OpenFile for InsideFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        in_lane(self.id, &self.own, |lane| {
            if self.how.direct {
                lane.read_direct(&self.handle, offset, out)
            } else {
                lane.read(&self.handle, offset, out)
            }
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let at = if self.how.append {
            WritePosition::End
        } else {
            WritePosition::Offset(offset)
        };
        in_lane(self.id, &self.own, |lane| {
            if self.how.direct {
                lane.write_direct(&self.handle, at, data)?
            } else {
                lane.write(&self.handle, at, data)?
            };
            if self.how.sync || self.how.data_sync {
                lane.sync(&self.handle)
            } else {
                Ok(())
            }
        })
    }

    fn size(&self) -> Result<u64> {
        Ok(self.handle.attr().map_err(system)?.inode.size)
    }

    fn sync(&self) -> Result<()> {
        in_lane(self.id, &self.own, |lane| lane.sync(&self.handle))
    }
}

impl Files for InProcessFs {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self, path: &str, how: Open) -> Result<Box<dyn OpenFile>> {
        let ino = match self.attr(path) {
            Err(e) if e.kind() == ErrorKind::NotFound && how.create => {
                self.make(path, FileType::File, 0o644)?.ino
            }
            found => found?.ino,
        };
        let handle = self.files().open(ino).map_err(system)?;
        if how.truncate {
            let size = Some(0);
            self.set(
                ino,
                SetAttr {
                    size,
                    ..SetAttr::default()
                },
            )?;
        }
        Ok(Box::new(InsideFile {
            id: self.id,
            handle,
            own: Arc::clone(&self.own),
            how,
        }))
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = self.place(path)?;
        self.files().unlink(dir, name).map(drop).map_err(system)
    }

    fn mkdir(&self, path: &str) -> Result<()> {
        self.make(path, FileType::Directory, 0o755).map(drop)
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.place(path)?;
        self.files().rmdir(dir, name).map(drop).map_err(system)
    }

    fn stat(&self, path: &str) -> Result<Stat> {
        let attr = self.attr(path)?;
        Ok(Stat {
            size: attr.inode.size,
            links: u64::from(attr.inode.links),
            mode: attr.inode.permissions,
        })
    }

    fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let ino = self.attr(path)?.ino;
        let permissions = Some(mode);
        self.set(
            ino,
            SetAttr {
                permissions,
                ..SetAttr::default()
            },
        )
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let renamed = self.files().rename(from, to, Rename::Replace);
        renamed.map(drop).map_err(system)
    }

    fn link(&self, old: &str, new: &str) -> Result<()> {
        let ino = self.link_attr(old)?.ino;
        let (dir, name) = self.place(new)?;
        self.files().link(ino, dir, name).map(drop).map_err(system)
    }

    fn symlink(&self, text: &str, path: &str) -> Result<()> {
        let (dir, name) = self.place(path)?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let made = self
            .files()
            .symlink(dir, name, text.as_bytes(), uid.as_raw(), gid.as_raw());
        made.map(drop).map_err(system)
    }

    fn readlink(&self, path: &str) -> Result<String> {
        let ino = self.link_attr(path)?.ino;
        text(self.files().read_link(ino).map_err(system)?)
    }

    fn is_symlink(&self, path: &str) -> Result<bool> {
        Ok(self.link_attr(path)?.inode.kind == FileType::Symlink)
    }

    fn readdir(&self, path: &str) -> Result<Vec<String>> {
        let ino = self.attr(path)?.ino;
        let mut names = Vec::new();
        let mut wrong = false;
        let listed = self.files().read_dir(ino, 0, |entry| {
            match std::str::from_utf8(entry.name) {
                Ok(name) => names.push(name.to_owned()),
                Err(_) => wrong = true,
            }
            Ok(true)
        });
        listed.map_err(system)?;
        if wrong {
            Err(ErrorKind::InvalidData.into())
        } else {
            Ok(names)
        }
    }

    fn getcwd(&self) -> Result<String> {
        Ok("/".into())
    }

    fn statfs(&self) -> Result<u64> {
        let stat = self.files().statfs().map_err(system)?;
        Ok(stat.available * ::fs::BLOCK_BYTES)
    }

    fn sync(&self) -> Result<()> {
        self.own.sync().map_err(|e| Error::other(e.chain()))
    }

    fn drop_caches(&self) -> Result<()> {
        self.own.drop_caches().map_err(|e| Error::other(e.chain()))
    }
}
