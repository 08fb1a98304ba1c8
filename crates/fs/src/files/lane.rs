//! Access to the content of files for one thread.

mod copy;

use super::{Change, Files, Handle, Node};
use crate::data::content::{Allocate, Stamp};
use crate::error::{Error, Kind, Result};
use crate::fileset::Attr;
use crate::format::flags::InodeFlags;
use crate::format::key::Ino;
use crate::format::record::{BLOCK_BYTES, FILE_SIZE_MAX, FileType};
use crate::names::attributes::SetAttr;
use block::Buf;
use cache::{CacheMode, FileId, Loan, OpenFile, Session};
use layer_cpu::{Layer, within};
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Number of most recently used files that a lane keeps open.
const RECENT: usize = 8;

/// Largest direct request in bytes.
const DIRECT_BYTES: usize = 1 << 20;

const BLOCK: usize = BLOCK_BYTES as usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePosition {
    /// At this byte.
    Offset(u64),
    /// At the end of the file, as of the moment the write is carried out.
    End,
    /// At the end, as the first part of a longer append: until this client writes to the end again,
    /// other clients may not, for [`REST`] at most.
    EndOfMore,
}

/// How long other clients wait for the rest of an append made in several writes.
pub const REST: Duration = Duration::from_millis(100);

/// Append of a client that is not complete yet.
pub(super) struct Unfinished {
    client: u64,
    until: Instant,
}

/// See [`Files`].
pub struct Lane {
    files: Arc<Files>,
    session: Session,
    /// Recently used files, the last one first.
    recent: Recent,
    /// Buffer for direct reads.
    direct: Option<Buf>,
}

#[derive(Default)]
struct Recent(Vec<(Ino, OpenFile)>);

impl Lane {
    pub(super) fn open(files: &Arc<Files>) -> Result<Lane> {
        Ok(Lane {
            files: Arc::clone(files),
            session: files.shared.volume.session()?,
            recent: Recent::default(),
            direct: None,
        })
    }

    /// Returns the files that this lane accesses.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Reads from `offset` on. Returns the number of bytes before the end of the file.
    ///
    /// # Errors
    /// A page could not be loaded.
    pub fn read(&mut self, file: &Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let _here = within(Layer::Fs);
        let open = self.recent.open(&self.files, &file.node);
        let len = self.session.read(open, offset, out)?;
        // Failing to record the access time is no reason to fail the read.
        let _ = self.files.note_read(file.ino());
        Ok(len)
    }

    /// Passes loans of the pages of a range, up to the end of the file, to `take`, for zero-copy
    /// sending; each with the part of it that lies in the range. A loaned page does not change and
    /// keeps its memory until it is returned, so a caller limits the number it holds.
    ///
    /// # Errors
    /// A page could not be loaded, or is mapped by a program; [`Lane::read`] works in that case.
    pub fn lend(
        &mut self,
        file: &Handle,
        bytes: Range<u64>,
        mut take: impl FnMut(Loan, Range<usize>),
    ) -> Result<()> {
        let _here = within(Layer::Fs);
        let bytes = bytes.start..bytes.end.min(file.node.vnode.size());
        if bytes.is_empty() {
            return Ok(());
        }
        let open = self.recent.open(&self.files, &file.node);
        let first = bytes.start / BLOCK_BYTES;
        let up_to = |page: u64, end: u64| end.saturating_sub(page * BLOCK_BYTES).min(BLOCK_BYTES);
        let pages = self.session.pages(open, bytes.clone())?;
        for (page, held) in (first..).zip(&pages) {
            let part = up_to(page, bytes.start) as usize..up_to(page, bytes.end) as usize;
            take(held.lend(), part);
        }
        drop(pages);
        // As in `read`.
        let _ = self.files.note_read(file.ino());
        Ok(())
    }

    /// Reads bypassing the cache, after writing back dirty pages. A range that is not made of whole
    /// blocks is read through the cache.
    ///
    /// # Errors
    /// Those of the device; a dirty page could not be written.
    pub fn read_direct(&mut self, file: &Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let _here = within(Layer::Fs);
        let size = file.node.vnode.size();
        let len = size.saturating_sub(offset).min(out.len() as u64) as usize;
        if !are_blocks(offset, out.len()) || len == 0 {
            return self.read(file, offset, out);
        }
        let (mut done, open) = (0, self.recent.open(&self.files, &file.node));
        while done < len {
            let part = (len - done).min(DIRECT_BYTES);
            let buf = match self.direct.take() {
                Some(mut buf) if buf.capacity() >= part.next_multiple_of(BLOCK) => {
                    buf.set_len(part.next_multiple_of(BLOCK));
                    buf
                }
                _ => Buf::zeroed(part.next_multiple_of(BLOCK)),
            };
            let at = offset + done as u64;
            let bufs = self.session.read_direct(open, at, buf.into())?;
            let Some(buf) = bufs.into_first() else { break };
            out[done..done + part].copy_from_slice(&buf[..part]);
            self.direct = Some(buf);
            done += part;
        }
        let _ = self.files.note_read(file.ino());
        // Bytes truncated during the read do not count.
        Ok(file
            .node
            .vnode
            .size()
            .saturating_sub(offset)
            .min(len as u64) as usize)
    }

    /// Writes data, extending the file as needed. Returns the offset.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], [`Kind::Quota`], [`Kind::FileTooLarge`], [`Kind::ReadOnly`]: nothing was
    /// written. A partly written page could not be loaded: a part of the data may be written.
    pub fn write(&mut self, file: &Handle, at: WritePosition, data: &[u8]) -> Result<u64> {
        self.change_content(file, at, data, CacheMode::Cached, Stamp::Change)
    }

    /// Writes another part of a change that began with [`Lane::write`] or a new length, without
    /// raising the data version again.
    ///
    /// # Errors
    /// As [`Lane::write`].
    pub fn write_more(&mut self, file: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.change_content(
            file,
            WritePosition::Offset(offset),
            data,
            CacheMode::Cached,
            Stamp::More,
        )
        .map(drop)
    }

    /// Writes data that a client held back in its own cache, and leaves the times unchanged: the
    /// client sets them itself, before or after. Of an append-only file the client writes the last
    /// page again, with its old bytes.
    ///
    /// # Errors
    /// As [`Lane::write`].
    pub fn write_late(&mut self, file: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        let inode = file.attr()?.inode;
        let mut known = 0;
        if inode.flags.has(InodeFlags::APPEND_ONLY) {
            known = inode.size.saturating_sub(offset).min(data.len() as u64) as usize;
            let mut old = vec![0; known];
            if self.read(file, offset, &mut old)? != known || old != data[..known] {
                return inode.flags.check_unlocked();
            }
        }
        let (offset, data) = (offset + known as u64, &data[known..]);
        self.change_content(
            file,
            WritePosition::Offset(offset),
            data,
            CacheMode::Cached,
            Stamp::Late,
        )
        .map(drop)
    }

    /// Writes bypassing the cache, which drops its pages of the range. A range that is not made of
    /// whole blocks is written through the cache. When this returns, the device has the bytes; a
    /// power failure may still lose them.
    ///
    /// # Errors
    /// As [`Lane::write`]; those of the device. Data that the device has refused stays in the
    /// cache, to be written later.
    pub fn write_direct(&mut self, file: &Handle, at: WritePosition, data: &[u8]) -> Result<u64> {
        self.change_content(file, at, data, CacheMode::Direct, Stamp::Change)
    }

    fn change_content(
        &mut self,
        file: &Handle,
        at: WritePosition,
        data: &[u8],
        way: CacheMode,
        stamp: Stamp,
    ) -> Result<u64> {
        let _here = within(Layer::Fs);
        let node = &file.node;
        let mut alone = alone(node);
        let offset = match at {
            WritePosition::Offset(offset) => offset,
            WritePosition::End | WritePosition::EndOfMore => {
                alone = others_finished(node, alone, self.files.client);
                self.files.attr(node.ino)?.inode.size
            }
        };
        let end = offset.checked_add(data.len() as u64);
        let end = end
            .filter(|end| *end <= FILE_SIZE_MAX)
            .ok_or(Kind::FileTooLarge)?;
        if data.is_empty() {
            return Ok(offset);
        }
        let fileset = &self.files.shared.fileset;
        fileset.prepare_write(node.ino, offset..end, stamp)?;
        let open = self.recent.open(&self.files, &file.node);
        let written = if way == CacheMode::Direct && are_blocks(offset, data.len()) {
            write_past(&mut self.session, open, offset, data)
        } else {
            self.session.write(open, offset, data)
        };
        if written.is_err() {
            // The metadata has the new size already, and some of the pages may have been written.
            node.vnode.extend(end);
        } else if at == WritePosition::EndOfMore {
            *alone = Some(Unfinished {
                client: self.files.client,
                until: Instant::now() + REST,
            });
        }
        drop(alone);
        self.files
            .notify_others(&[Change::Content(node.ino, offset..end)]);
        written?;
        Ok(offset)
    }

    /// Changes attributes, including the length.
    ///
    /// # Errors
    /// As [`crate::Fileset::set_attr`]; the last page of a truncated file could not be loaded.
    pub fn set_attr(&mut self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let _here = within(Layer::Fs);
        let old = self.files.attr(ino)?;
        let (attr, change) = match set.size {
            // Anything but a regular file is refused there.
            Some(size) if old.inode.kind == FileType::File => {
                let attr = self.set_size(&old, set, size)?;
                let from = size.min(old.inode.size);
                (attr, Change::Content(ino, from..u64::MAX))
            }
            _ => {
                let attr = self.files.shared.fileset.set_attr(ino, set)?;
                (attr, Change::Attributes(ino))
            }
        };
        self.files.notify_others(&[change]);
        Ok(attr)
    }

    fn set_size(&mut self, attr: &Attr, set: &SetAttr, size: u64) -> Result<Attr> {
        let (ino, node) = (attr.ino, self.files.node(attr));
        let _alone = alone(&node);
        if size >= node.vnode.size() {
            let attr = self.files.shared.fileset.set_attr(ino, set)?;
            node.vnode.extend(size);
            return Ok(attr);
        }
        // Prepare the last page, which can fail, before the metadata drops the rest.
        let mut held = self.files.shared.volume.open(&node.vnode);
        let last = match size % BLOCK_BYTES {
            0 => None,
            _ => {
                let page = size / BLOCK_BYTES;
                let bytes = page * BLOCK_BYTES..(page + 1) * BLOCK_BYTES;
                self.files.shared.fileset.will_write(ino, bytes)?;
                Some(self.session.page(&mut held, page)?)
            }
        };
        let attr = self.files.shared.fileset.set_attr(ino, set)?;
        let open = self.recent.open(&self.files, &node);
        self.session.truncate(open, size)?;
        drop(last);
        Ok(attr)
    }

    /// Allocates space, punches a hole or zeroes a range, as fallocate(2).
    ///
    /// # Errors
    /// As [`crate::Fileset::allocate`]; a page at either end could not be loaded.
    pub fn allocate(&mut self, file: &Handle, bytes: Range<u64>, how: Allocate) -> Result<Attr> {
        let _here = within(Layer::Fs);
        let node = &file.node;
        let alone = alone(node);
        if bytes.is_empty() {
            return Err(Kind::Invalid.into());
        }
        if bytes.end > FILE_SIZE_MAX {
            return Err(Kind::FileTooLarge.into());
        }
        self.files.shared.fileset.check_allocate(node.ino, how)?;
        let then = match how {
            Allocate::Grow | Allocate::KeepSize => how,
            Allocate::Punch | Allocate::Zero | Allocate::ZeroKeepSize => {
                let open = self.recent.open(&self.files, node);
                self.session.punch(open, bytes.clone())?;
                match how {
                    Allocate::Zero => Allocate::Grow,
                    Allocate::ZeroKeepSize => Allocate::KeepSize,
                    other => other,
                }
            }
        };
        let fileset = &self.files.shared.fileset;
        let attr = fileset.allocate(node.ino, bytes.clone(), then)?;
        node.vnode.extend(attr.inode.size);
        drop(alone);
        self.files.notify_others(&[match how {
            Allocate::Grow | Allocate::KeepSize => Change::Attributes(node.ino),
            _ => Change::Content(node.ino, bytes),
        }]);
        Ok(attr)
    }

    /// Punches or zeroes whole blocks, also those beyond the end, without a write to the block that
    /// contains the end. No other client uses the file.
    ///
    /// # Errors
    /// As [`crate::Fileset::allocate`]; a page could not be written.
    pub(crate) fn allocate_blocks(
        &mut self,
        file: &Handle,
        bytes: Range<u64>,
        how: Allocate,
    ) -> Result<()> {
        let open = self.recent.open(&self.files, &file.node);
        self.session.invalidate(open, bytes.clone())?;
        let fileset = &self.files.shared.fileset;
        fileset.allocate(file.ino(), bytes, how).map(drop)
    }

    /// Shortens a file without a write to its last block. The file is not open.
    ///
    /// # Errors
    /// As [`crate::Fileset::truncate`]; a page could not be written.
    pub(crate) fn cut(&mut self, ino: Ino, size: u64) -> Result<()> {
        let attr = self.files.attr(ino)?;
        let node = self.files.node(&attr);
        let open = self.recent.open(&self.files, &node);
        self.session.invalidate(open, 0..attr.inode.size)?;
        self.recent.0.retain(|(recent, _)| *recent != ino);
        drop(node);
        self.files.shared.volume.forget(FileId(ino));
        self.files.shared.fileset.truncate(ino, size).map(drop)
    }

    /// Writes back a file, and makes it and all earlier changes of names durable, as fsync(2).
    ///
    /// # Errors
    /// Pages that could not be written, now or by write-behind since the file was opened.
    pub fn sync(&mut self, file: &Handle) -> Result<()> {
        let _here = within(Layer::Fs);
        let mut told = file.reported.lock().map_err(|_| Error::from(Kind::Io))?;
        Ok(self.session.flush(&mut told)?)
    }
}

/// Locks the content of a file against changes by other threads.
fn alone(node: &Node) -> MutexGuard<'_, Option<Unfinished>> {
    node.change.lock().expect("no panic under this lock")
}

/// Waits until no other client has an unfinished append, and ends that of this client.
fn others_finished<'a>(
    node: &Node,
    mut alone: MutexGuard<'a, Option<Unfinished>>,
    client: u64,
) -> MutexGuard<'a, Option<Unfinished>> {
    while let Some(other) = alone.as_ref().filter(|who| who.client != client) {
        let left = other.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        block::about_to_sleep();
        let waited = node.finished.wait_timeout(alone, left);
        alone = waited.expect("no panic under this lock").0;
    }
    if alone.take().is_some() {
        node.finished.notify_all();
    }
    alone
}

/// Checks whether a range of a file consists of whole blocks.
fn are_blocks(offset: u64, len: usize) -> bool {
    offset.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK)
}

/// Writes whole blocks bypassing the cache. Data that the device refuses goes into the cache,
/// because the metadata already expects the write.
fn write_past(
    session: &mut Session,
    open: &mut OpenFile,
    offset: u64,
    data: &[u8],
) -> block::Result<()> {
    let mut at = offset;
    for part in data.chunks(DIRECT_BYTES) {
        let written = session.write_direct(open, at, Buf::copy_of(part).into());
        if written.is_err() {
            session.write(open, at, &data[(at - offset) as usize..])?;
            return written;
        }
        at += part.len() as u64;
    }
    Ok(())
}

impl Recent {
    /// Returns this thread's open file of a node, opening it if needed.
    fn open(&mut self, files: &Files, node: &Arc<Node>) -> &mut OpenFile {
        let recent = &mut self.0;
        match recent.iter().position(|(ino, _)| *ino == node.ino) {
            Some(at) => recent[..=at].rotate_right(1),
            None => {
                recent.truncate(RECENT - 1);
                let open = files.shared.volume.open(&node.vnode);
                recent.insert(0, (node.ino, open));
            }
        }
        &mut recent[0].1
    }
}
