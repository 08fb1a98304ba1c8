//! Requests for the content of files.

use super::handles::{How, Open, syncs};
use super::invalidation::DropPages;
use super::{Tree, errno};
use fs::{
    Allocate, Change, Files, Fileset, Handle, InodeFlags, Kind, Seek, Watcher, WritePosition,
};
use fuse_mount::fuse_proto::{Header, Opened, Read, Write, abi};
use fuse_mount::{Errno, PIECE_BYTES, Reply};
use std::ops::Range;
use std::sync::Arc;

/// Checks whether a write(2) may continue after this request. The kernel ends a request with a page
/// that it does not have in full, so one that begins inside a page ends with it
/// (`fuse_fill_write_pages` of Linux, since 5.15), or at the maximum length.
fn may_go_on(offset: u64, len: usize) -> bool {
    let page = rustix::param::page_size() as u64;
    let ends_it = (offset + len as u64).is_multiple_of(page);
    (ends_it && !offset.is_multiple_of(page)) || len == PIECE_BYTES
}

impl Tree {
    pub(super) fn open_file(&self, ino: u64, flags: u32) -> Result<Opened, Errno> {
        let handle = self.files.open(ino).map_err(errno)?;
        let writes = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let mut append_only = false;
        if writes {
            let inode = handle.attr().map_err(errno)?.inode;
            append_only = inode.flags.has(InodeFlags::APPEND_ONLY);
            let appends = flags as i32 & libc::O_APPEND != 0;
            if inode.flags.has(InodeFlags::IMMUTABLE) || append_only && !appends {
                return Err(Errno::PERM);
            }
        }
        let how = How {
            writes,
            syncs: syncs(flags),
            had_capabilities: writes && self.has_capabilities(ino),
            // Stores to a mapping of an append-only file could not be told from appends. Without
            // cached pages there is no shared mapping.
            uncached: append_only || self.uncached,
        };
        self.opened(handle, how)
    }

    pub(super) fn opened(&self, handle: Handle, how: How) -> Result<Opened, Errno> {
        let flags = if how.uncached {
            abi::FOPEN_DIRECT_IO
        } else {
            // The kernel's cached pages are still valid: it was notified of every change.
            abi::FOPEN_KEEP_CACHE
        };
        Ok(Opened {
            handle: self.handles.insert(handle, how)?,
            flags,
            ..Opened::default()
        })
    }

    /// Writes data. Returns the range that the kernel must invalidate before the reply.
    fn write_to(
        &self,
        open: &Open,
        offset: u64,
        data: &[u8],
        (flags, how): (i32, u32),
    ) -> Result<Option<Range<u64>>, Errno> {
        let (ino, end) = (open.handle.ino(), offset.saturating_add(data.len() as u64));
        if how & abi::FUSE_WRITE_KILL_SUIDGID != 0 {
            self.drop_set_ids(ino)?;
        }
        if open.how.had_capabilities || self.capabilities.were_given(ino) {
            self.drop_capabilities(ino)?;
        }
        let pages = how & abi::FUSE_WRITE_CACHE != 0;
        if pages && self.exclusive {
            // The kernel sets the times itself, and may have done so while this request was queued.
            let written = self.with_lane(|lane, _| {
                let written = lane.write_late(&open.handle, offset, data);
                written.map(|()| None).map_err(errno)
            });
            return written.inspect_err(|e| self.refused_pages(*e, ino, offset..end));
        }
        // A write-back of the kernel's own pages does not carry the flags of an open file.
        let flags = if pages { 0 } else { flags };
        let at = match flags & libc::O_APPEND != 0 {
            true if flags & libc::O_DIRECT == 0 && may_go_on(offset, data.len()) => {
                WritePosition::EndOfMore
            }
            true => WritePosition::End,
            false => WritePosition::Offset(offset),
        };
        let direct = flags & libc::O_DIRECT != 0;
        if !direct {
            open.note_pages();
        }
        let written = self.with_lane(|lane, _| {
            let written = if direct {
                lane.write_direct(&open.handle, at, data)
            } else {
                lane.write(&open.handle, at, data)
            }
            .map_err(errno)?;
            if written != offset {
                // Another client has appended or truncated, and the kernel has cached the data of
                // this write at the offset it assumed to be the end.
                let wrong = Change::Content(ino, offset.min(written)..u64::MAX);
                self.recall.changed(&wrong);
            }
            if syncs(flags as u32) {
                lane.sync(&open.handle).map_err(errno)?;
            }
            // The kernel drops its pages before a direct write, but if the write is asynchronous,
            // readers may cache the old content again before it is done.
            // The pages of a write-back are those that the kernel waits for until the reply.
            let past_cache = direct || open.how.uncached && !pages;
            let stale = past_cache && open.has_pages();
            Ok(stale.then(|| written..written + data.len() as u64))
        });
        written.inspect_err(|e| {
            if pages {
                self.refused_pages(*e, ino, offset..end);
            }
        })
    }

    /// Makes the kernel drop pages that it cannot write back because the flags of the file forbid it.
    fn refused_pages(&self, error: Errno, ino: u64, bytes: Range<u64>) {
        if error == Errno::PERM {
            self.recall.changed(&Change::Content(ino, bytes));
        }
    }

    pub(super) fn read(&self, read: &Read, reply: Reply<'_>) {
        let Some(open) = self.handles.get(read.handle) else {
            return reply.error(Errno::BADF);
        };
        let direct = read.flags as i32 & libc::O_DIRECT != 0;
        if !direct {
            open.note_pages();
        }
        let mut reply = Some(reply);
        let done = self.with_lane(|lane, buf| {
            let size = (read.size as usize).min(buf.len());
            let out = &mut buf[..size];
            let len = if direct {
                lane.read_direct(&open.handle, read.offset, out)
            } else {
                lane.read(&open.handle, read.offset, out)
            }
            .map_err(errno)?;
            if let Some(reply) = reply.take() {
                reply.data(&buf[..len]);
            }
            Ok(())
        });
        if let (Err(e), Some(reply)) = (done, reply) {
            reply.error(e);
        }
    }

    pub(super) fn write(&self, write: &Write<'_>, reply: Reply<'_>) {
        let Some(open) = self.handles.get(write.handle) else {
            return reply.error(Errno::BADF);
        };
        let how = (write.flags as i32, write.write_flags);
        match self.write_to(&open, write.offset, write.data, how) {
            Ok(None) => reply.written(write.data.len() as u32),
            Ok(Some(stale)) => {
                let reply = reply.detach();
                self.recall.reply_after(open.handle.ino(), stale, reply);
            }
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn fsync(&self, handle: u64) -> Result<(), Errno> {
        let open = self.handles.get(handle).ok_or(Errno::BADF)?;
        self.with_lane(|lane, _| lane.sync(&open.handle).map_err(errno))
    }

    pub(super) fn allocate(
        &self,
        header: &Header,
        handle: u64,
        bytes: Range<u64>,
        mode: i32,
    ) -> Result<(), Errno> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        let how = match mode {
            0 => Allocate::Grow,
            KEEP => Allocate::KeepSize,
            m if m == libc::FALLOC_FL_PUNCH_HOLE | KEEP => Allocate::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero,
            m if m == libc::FALLOC_FL_ZERO_RANGE | KEEP => Allocate::ZeroKeepSize,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let open = self.handles.get(handle).ok_or(Errno::BADF)?;
        // Kernels before 6.1 do not announce beforehand that the file loses its privileges.
        if header.uid != 0 {
            self.drop_set_ids(open.handle.ino())?;
        }
        let done = self.with_lane(|lane, _| lane.allocate(&open.handle, bytes, how).map_err(errno));
        done.map(drop)
    }

    /// Seeks data or a hole. The kernel does not write back its dirty pages before this request: those
    /// of a mapping, and with `exclusive` those of writes. Only a hole can have any that matter, so
    /// the answer waits until the kernel has written back those of the holes that it depends on.
    pub(super) fn seek(&self, ino: u64, offset: u64, whence: u32, reply: Reply<'_>) {
        let what = match seek_of(offset, whence) {
            Ok(what) => what,
            Err(e) => return reply.error(e),
        };
        let found = self.files.seek(ino, offset, what);
        let is_data = what == Seek::Data && found.as_ref().is_ok_and(|at| *at == offset);
        if is_data || !self.handles.has_writers(ino) {
            return answer_seek(reply, found);
        }
        let (files, reply) = (Arc::clone(&self.files), reply.detach());
        self.recall.run(move |drop_pages| {
            answer_seek(reply, seek_flushed(&files, ino, (offset, what), drop_pages));
        });
    }
}

fn answer_seek(reply: Reply<'_>, found: fs::Result<u64>) {
    match found {
        Ok(at) => reply.offset(at),
        Err(error) => reply.error(errno(error)),
    }
}

/// Seeks while `flush` makes the kernel write back a range.
fn seek_flushed(
    files: &Files,
    ino: u64,
    (offset, what): (u64, Seek),
    flush: DropPages<'_>,
) -> fs::Result<u64> {
    // A hole ends where data begins, or at the end of the file, beyond which the kernel may hold
    // more.
    let end_of_hole = |hole| match files.seek(ino, hole, Seek::Data) {
        Err(error) if error.kind() == Kind::NoMore => Ok(u64::MAX),
        end => end,
    };
    if what == Seek::Data {
        flush(ino, offset..end_of_hole(offset)?);
        return files.seek(ino, offset, what);
    }
    let mut at = offset;
    loop {
        let hole = match files.seek(ino, at, what) {
            Err(error) if error.kind() == Kind::NoMore => at,
            hole => hole?,
        };
        flush(ino, hole..end_of_hole(hole)?);
        match files.seek(ino, hole, what) {
            Ok(later) if later > hole => at = later,
            Err(error) if error.kind() == Kind::NoMore && hole > offset => return Ok(hole),
            same => return same,
        }
    }
}

/// Finds the next data or hole of a file of a snapshot, of which the kernel has no dirty pages.
pub(super) fn seek_in(fileset: &Fileset, ino: u64, offset: u64, whence: u32) -> Result<u64, Errno> {
    let what = seek_of(offset, whence)?;
    fileset.seek(ino, offset, what).map_err(errno)
}

/// Decodes a request to seek.
fn seek_of(offset: u64, whence: u32) -> Result<Seek, Errno> {
    let what = match whence as i32 {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno::INVAL),
    };
    match i64::try_from(offset) {
        Ok(_) => Ok(what),
        Err(_) => Err(Errno::NXIO),
    }
}
