//! A directory with one file for each volume, as served to the kernel.

use crate::holes::{DISCARDED, Holes, TRIED};
use crate::io::{Bytes, Durability};
use crate::survival::Table;
use block::BlockDevice;
use fuse_mount::fuse_proto::reply::Directory;
use fuse_mount::fuse_proto::{
    Attr, Entry, Opened, Operation, Read, Request, SetAttr, StatFs, Time, Wanted, Write, abi,
};
use fuse_mount::{Errno, PIECE_BYTES, Reply, Serve};
use std::sync::Arc;
use std::time::Duration;

/// Time for which the kernel may cache names and sizes. It is notified of a new size.
const TTL: Duration = Duration::from_secs(3600);
/// Inode number of the first file; 1 is the directory.
pub(crate) const FIRST_FILE: u64 = 2;
/// Number of background requests (asynchronous direct I/O, loop devices) that the kernel may queue.
const BACKGROUND: u16 = 256;

/// File handle of the server's own loop device; all others have 0. It is valid for each successor.
const OF_LOOP_DEVICE: u64 = 1;

/// A device and the name of its file.
#[derive(Clone)]
pub struct Export {
    /// Name of the file.
    pub name: String,
    /// Content of the file.
    pub device: Arc<dyn BlockDevice>,
    /// Refuse writes even if the device accepts them.
    pub read_only: bool,
}

/// The directory.
pub(crate) struct Files {
    files: Vec<File>,
    mounted: Time,
    uid: u32,
    gid: u32,
}

struct File {
    name: String,
    bytes: Bytes,
    read_only: bool,
    holes: Arc<Holes>,
}

impl Files {
    /// Creates the directory, with a table of as many files.
    pub(crate) fn new(exports: Vec<Export>, table: &Table) -> Files {
        let file = |(index, export): (usize, Export)| {
            let read_only = export.read_only || export.device.info().read_only;
            File {
                name: export.name,
                bytes: Bytes::new(export.device),
                read_only,
                holes: Arc::new(table.holes(index)),
            }
        };
        Files {
            files: exports.into_iter().enumerate().map(file).collect(),
            mounted: table.mounted(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Returns the meaning of holes in the only file; `None` if there are several files.
    pub(crate) fn holes(&self) -> Option<Arc<Holes>> {
        match self.files.as_slice() {
            [file] => Some(Arc::clone(&file.holes)),
            _ => None,
        }
    }

    fn file(&self, node: u64) -> Option<&File> {
        self.files
            .get(usize::try_from(node.checked_sub(FIRST_FILE)?).ok()?)
    }

    fn attr(&self, node: u64) -> Option<Attr> {
        let (mode, size, blksize) = if node == abi::FUSE_ROOT_ID {
            (libc::S_IFDIR | 0o500, 0, 4096)
        } else {
            let file = self.file(node)?;
            let permissions = if file.read_only { 0o400 } else { 0o600 };
            let blksize = file.bytes.device().info().optimal_io_size;
            (libc::S_IFREG | permissions, file.bytes.size(), blksize)
        };
        Some(Attr {
            ino: node,
            size,
            blocks: size.div_ceil(512),
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            mode,
            nlink: 1 + u32::from(mode & libc::S_IFMT == libc::S_IFDIR),
            uid: self.uid,
            gid: self.gid,
            blksize,
            ..Attr::default()
        })
    }

    fn to_write(&self, node: u64) -> Result<&File, Errno> {
        match self.file(node) {
            Some(file) if file.read_only => Err(Errno::ROFS),
            Some(file) => Ok(file),
            None => Err(Errno::ISDIR),
        }
    }

    fn lookup(&self, parent: u64, name: &[u8], reply: Reply<'_>) {
        let named = |file: &File| parent == abi::FUSE_ROOT_ID && name == file.name.as_bytes();
        let index = self.files.iter().position(named);
        let node = index.map(|index| index as u64 + FIRST_FILE);
        match node.and_then(|node| Some((node, self.attr(node)?))) {
            Some((node, attr)) => reply.entry(&Entry {
                node,
                entry_ttl: TTL,
                attr_ttl: TTL,
                attr,
                ..Entry::default()
            }),
            None => reply.error(Errno::NOENT),
        }
    }

    /// Accepts and ignores times and an unchanged size; refuses anything else. A program that opens
    /// with O_TRUNC must not destroy the volume, so size 0 is accepted and ignored as well.
    fn set_attr(&self, node: u64, set: &SetAttr, reply: Reply<'_>) {
        let Some(attr) = self.attr(node) else {
            return reply.error(Errno::NOENT);
        };
        let resized = set.size.is_some_and(|size| size != 0 && size != attr.size);
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || resized {
            return reply.error(Errno::PERM);
        }
        reply.attr(&attr, TTL);
    }

    fn open(&self, request: &Request<'_>, flags: u32, reply: Reply<'_>) {
        match self.file(request.header.node) {
            None => reply.error(Errno::ISDIR),
            Some(file) if file.read_only && flags as i32 & libc::O_ACCMODE != libc::O_RDONLY => {
                reply.error(Errno::ROFS);
            }
            Some(_) => {
                let handle = if is_own(request.header.pid) {
                    OF_LOOP_DEVICE
                } else {
                    0
                };
                reply.opened(&Opened {
                    handle,
                    flags: abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES,
                    ..Opened::default()
                });
            }
        }
    }

    fn read(&self, node: u64, read: &Read, reply: Reply<'_>) {
        let Some(file) = self.file(node) else {
            return reply.error(Errno::ISDIR);
        };
        let mut reply = Some(reply);
        let given = file.bytes.read(read.offset, read.size as usize, |data| {
            if let Some(reply) = reply.take() {
                reply.data(data);
            }
        });
        if let (Err(e), Some(reply)) = (given, reply) {
            reply.error(errno(&e));
        }
    }

    fn write(&self, node: u64, write: &Write<'_>, reply: Reply<'_>) {
        let durability = if write.flags as i32 & (libc::O_SYNC | libc::O_DSYNC) != 0 {
            Durability::Durable
        } else {
            Durability::Volatile
        };
        let written = self.to_write(node).and_then(|file| {
            if write.handle == OF_LOOP_DEVICE && file.holes.is(TRIED) {
                return Err(Errno::IO);
            }
            let written = file.bytes.write(write.offset, write.data, durability);
            written.map_err(|e| errno(&e))
        });
        match written {
            Ok(()) => reply.written(write.data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn read_dir(&self, node: u64, (offset, size): (u64, u32), reply: Reply<'_>) {
        if node != abi::FUSE_ROOT_ID {
            return reply.error(Errno::NOTDIR);
        }
        let mut entries = Directory::new(Vec::new(), size);
        let dots = [".", ".."].map(|name| (abi::FUSE_ROOT_ID, libc::S_IFDIR, name));
        let files = self.files.iter().enumerate().map(|(index, file)| {
            let node = index as u64 + FIRST_FILE;
            (node, libc::S_IFREG, file.name.as_str())
        });
        let all = dots.into_iter().chain(files).enumerate();
        for (index, (ino, mode, name)) in all.skip(offset as usize) {
            if !entries.add(ino, index as u64 + 1, mode, name.as_bytes()) {
                break;
            }
        }
        reply.directory(entries);
    }

    fn statfs(&self, reply: Reply<'_>) {
        reply.statfs(&StatFs {
            blocks: self.files.iter().map(|f| f.bytes.size() / 4096).sum(),
            files: self.files.len() as u64,
            block_bytes: 4096,
            fragment_bytes: 4096,
            name_bytes_max: 255,
            ..StatFs::default()
        });
    }

    /// Zeroes ranges by writing. A hole also promises zeros, which a discard of an encrypted volume
    /// does not provide, so only this process's own loop device can punch one; see [`Holes`].
    fn allocate(
        &self,
        (node, handle): (u64, u64),
        (offset, length): (u64, u64),
        mode: i32,
    ) -> Result<(), Errno> {
        let file = self.to_write(node)?;
        let end = offset.saturating_add(length);
        let by_loop = |state| handle == OF_LOOP_DEVICE && file.holes.is(state);
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_ZERO_RANGE if by_loop(TRIED) => Err(Errno::OPNOTSUPP),
            libc::FALLOC_FL_ZERO_RANGE => {
                if by_loop(DISCARDED) {
                    // Another program has reconfigured the device: holes may be zeroings again.
                    file.holes.refuse();
                }
                file.bytes.zero(offset, length).map_err(|e| errno(&e))
            }
            libc::FALLOC_FL_PUNCH_HOLE if by_loop(DISCARDED) => {
                file.bytes.discard(offset, length).map_err(|e| errno(&e))
            }
            0 if end <= file.bytes.size() => Ok(()),
            0 => Err(Errno::NOSPC),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// Reports whether a request is by this process or a child: the only opens by these are for its own
/// loop device.
fn is_own(pid: u32) -> bool {
    let parent = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which is in parentheses, and the state.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        fields.nth(1)?.parse().ok()
    };
    let is_thread = || std::path::Path::new(&format!("/proc/self/task/{pid}")).exists();
    parent() == Some(std::process::id()) || is_thread()
}

fn errno(error: &block::Error) -> Errno {
    tracing::warn!(name: "EVFS-0601", "{error}");
    Errno::from_raw_os_error(error.errno())
}

impl Serve for Files {
    fn wanted(&self) -> Wanted {
        Wanted {
            // Each of these improves speed if the kernel supports it.
            flags: abi::FUSE_ASYNC_READ
                | abi::FUSE_BIG_WRITES
                | abi::FUSE_ASYNC_DIO
                | abi::FUSE_MAX_PAGES
                | abi::FUSE_PARALLEL_DIROPS
                | abi::FUSE_DIRECT_IO_ALLOW_MMAP,
            max_write: PIECE_BYTES as u32,
            max_readahead: PIECE_BYTES as u32,
            max_background: BACKGROUND,
            congestion_threshold: BACKGROUND / 4 * 3,
            ..Wanted::default()
        }
    }

    fn serve(&self, request: &Request<'_>, reply: Reply<'_>) {
        let node = request.header.node;
        let file = || self.file(node).ok_or(Errno::ISDIR);
        match &request.operation {
            Operation::Lookup { name } => self.lookup(node, name, reply),
            Operation::GetAttr { .. } => match self.attr(node) {
                Some(attr) => reply.attr(&attr, TTL),
                None => reply.error(Errno::NOENT),
            },
            Operation::SetAttr(set) => self.set_attr(node, set, reply),
            Operation::Open { flags, .. } => self.open(request, *flags, reply),
            Operation::Read(read) => self.read(node, read, reply),
            Operation::Write(write) => self.write(node, write, reply),
            // Closing a file guarantees nothing; fsync does. A read-only open file needs no flush.
            Operation::Flush { .. } => reply.result(file().map(drop)),
            Operation::FSync { .. } => {
                let synced = file().and_then(|f| f.bytes.flush().map_err(|e| errno(&e)));
                reply.result(synced);
            }
            Operation::OpenDir { .. } => reply.opened(&Opened::default()),
            Operation::ReadDir { offset, size, .. } => {
                self.read_dir(node, (*offset, *size), reply);
            }
            Operation::Release { .. } | Operation::ReleaseDir { .. } => reply.empty(),
            Operation::StatFs => self.statfs(reply),
            Operation::FAllocate {
                handle,
                offset,
                length,
                mode,
            } => {
                let (offset, length, mode) = (*offset, *length, *mode as i32);
                reply.result(self.allocate((node, *handle), (offset, length), mode));
            }
            Operation::Forget { .. } | Operation::BatchForget(_) => {}
            _ => reply.error(Errno::NOSYS),
        }
    }
}
