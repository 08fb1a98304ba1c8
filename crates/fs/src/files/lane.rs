//! One thread's way to the content of files.

use super::{Files, Handle, Node};
use crate::error::{Error, Kind, Result};
use crate::file::Allocate;
use crate::fileset::{Attr, SetAttr};
use crate::key::Ino;
use crate::record::{BLOCK_BYTES, FILE_SIZE_MAX, FileType};
use cache::{Loan, OpenFile, Session, Volume};
use std::ops::Range;
use std::sync::{Arc, MutexGuard};

/// Files whose last access is remembered.
const RECENT: usize = 8;

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// To this byte.
    Offset(u64),
    /// To the end of the file, wherever that is when it is this write's turn.
    End,
}

/// See [`Files`].
pub struct Lane {
    files: Arc<Files>,
    session: Session,
    /// The files of the last accesses, the last one first.
    recent: Vec<(Ino, OpenFile)>,
}

impl Lane {
    pub(super) fn open(files: &Arc<Files>) -> Result<Lane> {
        Ok(Lane {
            files: Arc::clone(files),
            session: files.volume.session()?,
            recent: Vec::new(),
        })
    }

    /// The files it leads to.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Reads from `offset` on; gives the bytes there were before the end.
    ///
    /// # Errors
    /// A page could not be brought.
    pub fn read(&mut self, file: &Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let open = recent(&mut self.recent, &self.files.volume, &file.node);
        let len = self.session.read(open, offset, out)?;
        // A time that cannot be noted is no reason to refuse the bytes.
        let _ = self.files.note_read(file.ino());
        Ok(len)
    }

    /// Lends the pages of a range, as far as there are bytes, to whoever sends them: gives each with the
    /// part of it that counts. What is lent stays as it is and keeps its memory until it is given back,
    /// so a caller limits how much it has.
    ///
    /// # Errors
    /// A page could not be brought, or lies where programs have it mapped; then [`Lane::read`] has it.
    pub fn lend(
        &mut self,
        file: &Handle,
        bytes: Range<u64>,
        mut take: impl FnMut(Loan, Range<usize>),
    ) -> Result<()> {
        let bytes = bytes.start..bytes.end.min(file.node.vnode.size());
        if bytes.is_empty() {
            return Ok(());
        }
        let open = recent(&mut self.recent, &self.files.volume, &file.node);
        let first = bytes.start / BLOCK_BYTES;
        let within = |page: u64, end: u64| end.saturating_sub(page * BLOCK_BYTES).min(BLOCK_BYTES);
        let pages = self.session.pages(open, bytes.clone())?;
        for (page, held) in (first..).zip(&pages) {
            let part = within(page, bytes.start) as usize..within(page, bytes.end) as usize;
            take(held.lend(), part);
        }
        drop(pages);
        // As for a read.
        let _ = self.files.note_read(file.ino());
        Ok(())
    }

    /// Writes; gives the offset. The file grows to hold it.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], [`Kind::Quota`], [`Kind::FileTooLarge`], [`Kind::ReadOnly`]: nothing was
    /// written. A page that is only written in part could not be brought: some may be written.
    pub fn write(&mut self, file: &Handle, at: At, data: &[u8]) -> Result<u64> {
        self.put(file, at, data, true)
    }

    /// Writes a further part of a change that has begun with [`Lane::write`] or a new length, and leaves
    /// the data version as that has made it.
    ///
    /// # Errors
    /// As [`Lane::write`].
    pub fn write_more(&mut self, file: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.put(file, At::Offset(offset), data, false).map(drop)
    }

    fn put(&mut self, file: &Handle, at: At, data: &[u8], is_new: bool) -> Result<u64> {
        let node = &file.node;
        let _alone = alone(node);
        let offset = match at {
            At::Offset(offset) => offset,
            At::End => self.files.attr(node.ino)?.inode.size,
        };
        let end = offset.checked_add(data.len() as u64);
        let end = end
            .filter(|end| *end <= FILE_SIZE_MAX)
            .ok_or(Kind::FileTooLarge)?;
        if data.is_empty() {
            return Ok(offset);
        }
        match is_new {
            true => self.files.fileset.prepare_write(node.ino, offset..end)?,
            false => self.files.fileset.prepare_more(node.ino, offset..end)?,
        }
        let open = recent(&mut self.recent, &self.files.volume, node);
        let written = self.session.write(open, offset, data);
        if written.is_err() {
            // The metadata has the new size already, and some of the pages may be there.
            node.vnode.extend(end);
        }
        written?;
        Ok(offset)
    }

    /// Changes attributes, the length among them.
    ///
    /// # Errors
    /// As [`crate::Fileset::set_attr`]; the last page of a file that is cut could not be brought.
    pub fn set_attr(&mut self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let Some(size) = set.size else {
            return self.files.fileset.set_attr(ino, set);
        };
        let attr = self.files.attr(ino)?;
        if attr.inode.kind != FileType::File {
            // It is refused there.
            return self.files.fileset.set_attr(ino, set);
        }
        let node = self.files.node(&attr);
        let _alone = alone(&node);
        if size >= node.vnode.size() {
            let attr = self.files.fileset.set_attr(ino, set)?;
            node.vnode.extend(size);
            return Ok(attr);
        }
        // What could fail about the last page comes before the metadata says that the rest is gone.
        let mut held = self.files.volume.open(&node.vnode);
        let last = match size % BLOCK_BYTES {
            0 => None,
            _ => {
                let page = size / BLOCK_BYTES;
                let bytes = page * BLOCK_BYTES..(page + 1) * BLOCK_BYTES;
                self.files.fileset.will_write(ino, bytes)?;
                Some(self.session.page(&mut held, page)?)
            }
        };
        let attr = self.files.fileset.set_attr(ino, set)?;
        let open = recent(&mut self.recent, &self.files.volume, &node);
        self.session.truncate(open, size)?;
        drop(last);
        Ok(attr)
    }

    /// Allocates, punches or zeroes, as fallocate(2).
    ///
    /// # Errors
    /// As [`crate::Fileset::allocate`]; a page at the edge could not be brought.
    pub fn allocate(&mut self, file: &Handle, bytes: Range<u64>, how: Allocate) -> Result<Attr> {
        let node = &file.node;
        let _alone = alone(node);
        if bytes.is_empty() {
            return Err(Kind::Invalid.into());
        }
        if bytes.end > FILE_SIZE_MAX {
            return Err(Kind::FileTooLarge.into());
        }
        let then = match how {
            Allocate::Grow | Allocate::KeepSize => how,
            Allocate::Punch | Allocate::Zero | Allocate::ZeroKeepSize => {
                let open = recent(&mut self.recent, &self.files.volume, node);
                self.session.punch(open, bytes.clone())?;
                match how {
                    Allocate::Zero => Allocate::Grow,
                    Allocate::ZeroKeepSize => Allocate::KeepSize,
                    other => other,
                }
            }
        };
        let attr = self.files.fileset.allocate(node.ino, bytes, then)?;
        node.vnode.extend(attr.inode.size);
        Ok(attr)
    }

    /// Writes a file out, and makes it and all that has happened to names before durable, as fsync(2).
    ///
    /// # Errors
    /// What could not be written, now or behind the back of whoever opened the file.
    pub fn sync(&mut self, file: &Handle) -> Result<()> {
        let mut told = file.told.lock().map_err(|_| Error::from(Kind::Io))?;
        Ok(self.session.flush(&mut told)?)
    }
}

/// Waits until nobody else changes the content of a file.
fn alone(node: &Node) -> MutexGuard<'_, ()> {
    node.change.lock().expect("no panic under this lock")
}

/// The file as this thread has it open.
fn recent<'a>(
    recent: &'a mut Vec<(Ino, OpenFile)>,
    volume: &Volume,
    node: &Arc<Node>,
) -> &'a mut OpenFile {
    match recent.iter().position(|(ino, _)| *ino == node.ino) {
        Some(at) => recent[..=at].rotate_right(1),
        None => {
            recent.truncate(RECENT - 1);
            recent.insert(0, (node.ino, volume.open(&node.vnode)));
        }
    }
    &mut recent[0].1
}
