//! Requests for the content of files.

use super::handles::Open;
use super::{Tree, errno};
use fs::{Allocate, Change, Fileset, Seek, Watcher, WritePosition};
use fuse_mount::fuse_proto::{Header, Opened, Read, Write, abi};
use fuse_mount::{Errno, PIECE_BYTES, Reply};
use std::ops::Range;

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
        let had_capabilities = writes && self.has_capabilities(ino);
        Ok(Opened {
            handle: self.handles.insert(handle, had_capabilities),
            // The kernel's cached pages are still valid: it was notified of every change.
            flags: abi::FOPEN_KEEP_CACHE,
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
        let ino = open.handle.ino();
        if how & abi::FUSE_WRITE_KILL_SUIDGID != 0 {
            self.drop_set_ids(ino)?;
        }
        if open.had_capabilities || self.capabilities.were_given(ino) {
            self.drop_capabilities(ino)?;
        }
        let pages = how & abi::FUSE_WRITE_CACHE != 0;
        if pages && self.exclusive {
            // The kernel sets the times itself, and may have done so while this request was queued.
            return self.with_lane(|lane, _| {
                let written = lane.write_late(&open.handle, offset, data);
                written.map(|()| None).map_err(errno)
            });
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
        self.with_lane(|lane, _| {
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
            if flags & (libc::O_SYNC | libc::O_DSYNC) != 0 {
                lane.sync(&open.handle).map_err(errno)?;
            }
            // The kernel drops its pages before a direct write, but if the write is asynchronous,
            // readers may cache the old content again before it is done.
            let stale = direct && open.has_pages();
            Ok(stale.then(|| written..written + data.len() as u64))
        })
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

    pub(super) fn seek(&self, ino: u64, offset: u64, whence: u32) -> Result<u64, Errno> {
        if self.exclusive {
            // The kernel does not write back its dirty pages before this request; without support
            // it treats everything as data.
            return Err(Errno::NOSYS);
        }
        seek_in(self.files.fileset(), ino, offset, whence)
    }
}

/// Finds the next data or hole of a file.
pub(super) fn seek_in(fileset: &Fileset, ino: u64, offset: u64, whence: u32) -> Result<u64, Errno> {
    let what = match whence as i32 {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno::INVAL),
    };
    if i64::try_from(offset).is_err() {
        return Err(Errno::NXIO);
    }
    fileset.seek(ino, offset, what).map_err(errno)
}
