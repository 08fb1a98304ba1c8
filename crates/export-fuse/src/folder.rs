//! The folder as the kernel sees it: names, attributes, and what may be done. Nothing in it changes
//! while it is mounted.

use crate::mount::Export;
use crate::wire::{self, Attr, Body, ROOT, Request};
use block::BlockDevice;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// How long the kernel may remember names and sizes, in seconds.
const VALID_SECONDS: u64 = 3600;
/// Number of the first file; 1 is the folder.
const FIRST_FILE: u64 = ROOT + 1;

/// The files.
pub(crate) struct Folder {
    files: Vec<File>,
    mounted: (u64, u32),
    uid: u32,
    gid: u32,
}

pub(crate) struct File {
    name: String,
    pub(crate) device: Arc<dyn BlockDevice>,
    read_only: bool,
}

/// What a request comes to.
#[derive(Debug)]
pub(crate) enum Answer {
    /// This, at once.
    Body(Body),
    /// Success without a word.
    Empty,
    /// An errno.
    Error(i32),
    /// The kernel expects none.
    None,
    /// It is the device's turn.
    Device { file: usize, task: Task },
}

/// What a device is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Read {
        offset: u64,
        len: u32,
    },
    /// The first `len` bytes of the payload.
    Write {
        offset: u64,
        len: u32,
        durable: bool,
    },
    Zero {
        offset: u64,
        len: u64,
        unmap: bool,
    },
    Flush,
}

impl Folder {
    pub(crate) fn new(exports: Vec<Export>) -> Folder {
        let file = |export: Export| File {
            read_only: export.read_only || export.device.info().read_only,
            name: export.name,
            device: export.device,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Folder {
            files: exports.into_iter().map(file).collect(),
            mounted: now.map_or((0, 0), |d| (d.as_secs(), d.subsec_nanos())),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    fn index(&self, node: u64) -> Option<usize> {
        let index = usize::try_from(node.checked_sub(FIRST_FILE)?).ok()?;
        (index < self.files.len()).then_some(index)
    }

    fn attr(&self, node: u64) -> Option<Attr> {
        let (mode, links, size, block_size) = if node == ROOT {
            (libc::S_IFDIR | 0o500, 2, 0, 4096)
        } else {
            let file = &self.files[self.index(node)?];
            let mode = if file.read_only { 0o400 } else { 0o600 };
            let info = file.device.info();
            (libc::S_IFREG | mode, 1, info.size, info.optimal_io_size)
        };
        Some(Attr {
            node,
            size,
            mode,
            links,
            uid: self.uid,
            gid: self.gid,
            block_size,
            time: self.mounted,
        })
    }

    /// Answers a request, or says what to ask of the device for it.
    pub(crate) fn answer(&self, node: u64, request: &Request<'_>) -> Answer {
        match self.try_answer(node, request) {
            Ok(answer) => answer,
            Err(errno) => Answer::Error(errno),
        }
    }

    fn try_answer(&self, node: u64, request: &Request<'_>) -> Result<Answer, i32> {
        let attr = || self.attr(node).ok_or(libc::ENOENT);
        let on_device = |task| {
            let file = self.index(node).ok_or(libc::EISDIR)?;
            Ok(Answer::Device { file, task })
        };
        match *request {
            Request::Silent => Ok(Answer::None),
            Request::Lookup { name } => self.lookup(node, name),
            Request::Getattr => Ok(Answer::Body(Body::attr_out(&attr()?, VALID_SECONDS))),
            Request::Setattr { valid, size } => set(&attr()?, valid, size),
            Request::Open { flags } => self.open(node, flags),
            Request::Opendir if node == ROOT => Ok(Answer::Body(Body::open_out(0))),
            Request::Opendir => Err(libc::ENOTDIR),
            Request::Readdir { offset, len } => self.readdir(node, offset, len),
            Request::Read { offset, len } => on_device(Task::Read { offset, len }),
            Request::Write { offset, len, flags } => self.write(node, offset, len, flags),
            Request::Fallocate { offset, len, mode } => self.fallocate(node, offset, len, mode),
            Request::Flush | Request::Fsync => on_device(Task::Flush),
            Request::Statfs => {
                let sizes = self.files.iter().map(|f| f.device.info().size / 4096);
                let files = self.files.len() as u64;
                Ok(Answer::Body(Body::statfs_out(sizes.sum(), 4096, files)))
            }
            Request::Access { mask } => self.access(node, mask),
            Request::Release | Request::Fsyncdir | Request::Destroy => Ok(Answer::Empty),
            Request::Ioctl => Err(libc::ENOTTY),
            Request::Change => Err(libc::EPERM),
            // The kernel stops asking for what it hears this about, and helps itself.
            Request::Unknown | Request::Init { .. } => Err(libc::ENOSYS),
        }
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Result<Answer, i32> {
        let named = |file: &File| parent == ROOT && file.name.as_bytes() == name;
        let index = self.files.iter().position(named).ok_or(libc::ENOENT)?;
        let attr = self.attr(index as u64 + FIRST_FILE).ok_or(libc::ENOENT)?;
        Ok(Answer::Body(Body::entry_out(&attr, VALID_SECONDS)))
    }

    fn to_write(&self, node: u64) -> Result<(usize, &File), i32> {
        let index = self.index(node).ok_or(libc::EISDIR)?;
        match &self.files[index] {
            file if file.read_only => Err(libc::EROFS),
            file => Ok((index, file)),
        }
    }

    /// O_DIRECT and O_TRUNC come here as flags that mean nothing: everything is direct, and a file
    /// keeps its size.
    fn open(&self, node: u64, flags: i32) -> Result<Answer, i32> {
        self.index(node).ok_or(libc::EISDIR)?;
        let mut out = wire::FOPEN_DIRECT_IO | wire::FOPEN_PARALLEL_DIRECT_WRITES;
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            out |= wire::FOPEN_NOFLUSH;
        } else {
            self.to_write(node)?;
        }
        Ok(Answer::Body(Body::open_out(out)))
    }

    fn access(&self, node: u64, mask: u32) -> Result<Answer, i32> {
        if node != ROOT && mask & libc::W_OK as u32 != 0 {
            self.to_write(node)?;
        }
        Ok(Answer::Empty)
    }

    /// As on a disk: what begins before the end and reaches over it is cut off there.
    fn write(&self, node: u64, offset: u64, len: u32, flags: i32) -> Result<Answer, i32> {
        let (file, of) = self.to_write(node)?;
        let room = of.device.info().size.saturating_sub(offset);
        let len = u64::from(len).min(room) as u32;
        if len == 0 {
            return Err(libc::ENOSPC);
        }
        let durable = flags & (libc::O_SYNC | libc::O_DSYNC) != 0;
        let task = Task::Write {
            offset,
            len,
            durable,
        };
        Ok(Answer::Device { file, task })
    }

    /// Zeros are written. A hole promises zeros, too, which a discard of an encrypted volume does
    /// not give, so it is offered only where discards are allowed, and is then written as zeros that
    /// the device may free.
    fn fallocate(&self, node: u64, offset: u64, len: u64, mode: i32) -> Result<Answer, i32> {
        let (file, of) = self.to_write(node)?;
        let info = of.device.info();
        let end = offset.checked_add(len).ok_or(libc::EFBIG)?;
        let unmap = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            // All space there is, is there.
            0 if end <= info.size => return Ok(Answer::Empty),
            0 => return Err(libc::ENOSPC),
            libc::FALLOC_FL_PUNCH_HOLE if info.discard => {}
            libc::FALLOC_FL_ZERO_RANGE => {}
            _ => return Err(libc::EOPNOTSUPP),
        }
        let grows = mode & libc::FALLOC_FL_KEEP_SIZE == 0 && end > info.size;
        let len = end.min(info.size).saturating_sub(offset);
        match len {
            _ if grows => Err(libc::ENOSPC),
            0 => Ok(Answer::Empty),
            _ => {
                let task = Task::Zero { offset, len, unmap };
                Ok(Answer::Device { file, task })
            }
        }
    }

    fn readdir(&self, node: u64, offset: u64, len: u32) -> Result<Answer, i32> {
        if node != ROOT {
            return Err(libc::ENOTDIR);
        }
        let dots = [".", ".."].map(|name| (ROOT, libc::S_IFDIR, name));
        let files = self.files.iter().enumerate();
        let files = files.map(|(i, f)| (i as u64 + FIRST_FILE, libc::S_IFREG, f.name.as_str()));
        let mut body = Body::default();
        let skip = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        for (index, (node, mode, name)) in dots.into_iter().chain(files).enumerate().skip(skip) {
            let next = index as u64 + 1;
            if !body.dirent(node, next, mode, name.as_bytes(), len as usize) {
                break;
            }
        }
        Ok(Answer::Body(body))
    }
}

/// Times and an unchanged size are accepted and not kept; anything else is refused.
///
/// An opening with O_TRUNC must not lose a volume. The kernel sends it as a size of zero without a
/// handle, which is accepted and ignored; `truncate(path, 0)` looks the same and is ignored, too.
fn set(attr: &Attr, valid: u32, size: u64) -> Result<Answer, i32> {
    let o_trunc = size == 0 && valid & wire::FATTR_FH == 0;
    let resized = valid & wire::FATTR_SIZE != 0 && size != attr.size && !o_trunc;
    let owned = wire::FATTR_MODE | wire::FATTR_UID | wire::FATTR_GID;
    if resized || valid & owned != 0 {
        return Err(libc::EPERM);
    }
    Ok(Answer::Body(Body::attr_out(attr, VALID_SECONDS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Mem;

    const SIZE: u64 = 1 << 20;

    fn folder(discard: bool, read_only: bool) -> Folder {
        let config = block::MemConfig {
            discard,
            ..block::MemConfig::new(SIZE, 4096)
        };
        Folder::new(vec![Export {
            name: "volume".into(),
            device: Arc::new(Mem::with(config)),
            read_only,
        }])
    }

    fn errno(answer: Answer) -> i32 {
        match answer {
            Answer::Error(errno) => errno,
            other => panic!("{other:?} instead of an error"),
        }
    }

    fn task(answer: Answer) -> Task {
        match answer {
            Answer::Device { file: 0, task } => task,
            other => panic!("{other:?} instead of a task"),
        }
    }

    #[test]
    fn a_write_over_the_end_is_cut_and_one_behind_it_refused() {
        let folder = folder(true, false);
        let write = |offset, len| {
            let flags = libc::O_DSYNC;
            folder.answer(2, &Request::Write { offset, len, flags })
        };
        let cut = Task::Write {
            offset: SIZE - 3,
            len: 3,
            durable: true,
        };
        assert_eq!(task(write(SIZE - 3, 10)), cut);
        assert_eq!(errno(write(SIZE, 1)), libc::ENOSPC);
        assert_eq!(errno(write(u64::MAX, 1)), libc::ENOSPC);
    }

    #[test]
    fn a_hole_is_refused_where_discards_are_and_zeros_are_always_written() {
        let fallocate = |folder: &Folder, mode, len| {
            folder.answer(
                2,
                &Request::Fallocate {
                    offset: 512,
                    len,
                    mode,
                },
            )
        };
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        let allows = folder(true, false);
        let refuses = folder(false, false);
        let expected = |unmap| Task::Zero {
            offset: 512,
            len: 1024,
            unmap,
        };
        assert_eq!(task(fallocate(&allows, hole, 1024)), expected(true));
        assert_eq!(errno(fallocate(&refuses, hole, 1024)), libc::EOPNOTSUPP);
        assert_eq!(task(fallocate(&refuses, zero, 1024)), expected(false));
        assert_eq!(errno(fallocate(&allows, zero, SIZE)), libc::ENOSPC);
        assert_eq!(errno(fallocate(&allows, 0, SIZE)), libc::ENOSPC);
        assert_eq!(errno(fallocate(&allows, zero, u64::MAX)), libc::EFBIG);
        let collapse = libc::FALLOC_FL_COLLAPSE_RANGE;
        assert_eq!(errno(fallocate(&allows, collapse, 4096)), libc::EOPNOTSUPP);
    }

    #[test]
    fn a_read_only_file_refuses_every_change() {
        let folder = folder(true, true);
        let flags = libc::O_RDWR;
        let change = [
            Request::Open { flags },
            Request::Write {
                offset: 0,
                len: 1,
                flags,
            },
            Request::Fallocate {
                offset: 0,
                len: 1,
                mode: 0,
            },
        ];
        for request in change {
            assert_eq!(errno(folder.answer(2, &request)), libc::EROFS);
        }
    }

    #[test]
    fn a_file_keeps_its_size_owner_and_mode() {
        let folder = folder(true, false);
        let set = |valid, size| folder.answer(2, &Request::Setattr { valid, size });
        let by_handle = wire::FATTR_SIZE | wire::FATTR_FH;
        assert_eq!(errno(set(by_handle, 0)), libc::EPERM);
        assert_eq!(errno(set(wire::FATTR_SIZE, 4096)), libc::EPERM);
        assert_eq!(errno(set(wire::FATTR_MODE, 0)), libc::EPERM);
        assert!(matches!(set(by_handle, SIZE), Answer::Body(_)));
        assert!(matches!(set(wire::FATTR_SIZE, 0), Answer::Body(_)));
    }

    #[test]
    fn a_listing_goes_on_where_the_last_one_ended() {
        let folder = folder(true, false);
        let list = |offset, len| match folder.answer(1, &Request::Readdir { offset, len }) {
            Answer::Body(body) => body.0.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(list(0, 4096), 32 * 3);
        assert_eq!(list(0, 64), 64);
        assert_eq!(list(2, 4096), 32);
        assert_eq!(list(3, 4096), 0);
        assert_eq!(list(u64::from(u32::MAX), 4096), 0);
    }

    #[test]
    fn nothing_outside_the_folder_is_found() {
        let folder = folder(true, false);
        for node in [0, 3, u64::MAX] {
            assert_eq!(errno(folder.answer(node, &Request::Getattr)), libc::ENOENT);
        }
        let name: &[u8] = b"other";
        assert_eq!(
            errno(folder.answer(1, &Request::Lookup { name })),
            libc::ENOENT
        );
    }
}
