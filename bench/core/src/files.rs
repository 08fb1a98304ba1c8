//! Targets of file workloads: a directory through the kernel, or a file system without a mount.
//!
//! Names are paths relative to the target, with `/` between components and no `..`. Workloads make
//! them, so a target need not check them. Every call is one operation of the file system beneath,
//! so a workload's counts match those of `strace`.

#[allow(unsafe_code)]
mod map;

use crate::Direction;
use map::Mapping;
use rustix::fs::{self as sys, Advice, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Result of `stat`, limited to the fields that workloads use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Length in bytes.
    pub size: u64,
    /// Number of hard links.
    pub links: u64,
    /// Permission bits.
    pub mode: u32,
}

/// Flags for opening a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    /// Open for reading and writing.
    pub write: bool,
    /// Create the file if it is missing.
    pub create: bool,
    /// Truncate the file to zero length.
    pub truncate: bool,
    /// Append: each write goes to the end.
    pub append: bool,
    /// Bypass every cache above the device, if the target can.
    pub direct: bool,
    /// Writes are on stable storage when they return (`O_SYNC`).
    pub sync: bool,
    /// Like `sync`, except for metadata such as times, which may be lost (`O_DSYNC`).
    pub data_sync: bool,
}

impl Open {
    /// Read only.
    pub const READ: Open = Open {
        write: false,
        create: false,
        truncate: false,
        append: false,
        direct: false,
        sync: false,
        data_sync: false,
    };
    /// Read and write; created if missing, truncated otherwise.
    pub const CREATE: Open = Open {
        write: true,
        create: true,
        truncate: true,
        ..Open::READ
    };
    /// Write at the end.
    pub const APPEND: Open = Open {
        write: true,
        append: true,
        ..Open::READ
    };
}

pub trait OpenFile: Send + Sync {
    /// Reads up to `out.len()` bytes and returns their number; 0 at the end of the file.
    ///
    /// # Errors
    /// Any error of the file system.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize>;

    /// Writes all of `data`.
    ///
    /// # Errors
    /// Any error of the file system.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Returns the length in bytes (`fstat`).
    ///
    /// # Errors
    /// Any error of the file system.
    fn size(&self) -> Result<u64>;

    /// Flushes the file to stable storage.
    ///
    /// # Errors
    /// Any error of the file system.
    fn sync(&self) -> Result<()>;

    /// Drops cached data of the file, as far as the target can, after writing dirty data back.
    ///
    /// # Errors
    /// `Unsupported` if the target cannot do this; any error of the file system.
    fn drop_cache(&self) -> Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Maps the first `len` bytes, shared with all other users of the file: for reading, or for
    /// reading and writing.
    ///
    /// # Errors
    /// `Unsupported` if the target has no mappings; `InvalidInput` if the file is shorter than
    /// `len`.
    fn map(&self, _len: u64, _direction: Direction) -> Result<Box<dyn Mapped>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Completion of the write-back of mapped pages (`MS_SYNC`, `MS_ASYNC`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Msync {
    /// The call waits for it.
    Sync,
    /// The call only starts the write-back.
    Async,
}

/// A mapped file. Panics on offsets beyond the mapped length, which are a bug of the caller.
pub trait Mapped: Send + Sync {
    /// Copies bytes from the mapping to `out`.
    fn read(&self, at: u64, out: &mut [u8]);

    /// Copies `data` into the mapping.
    fn write(&self, at: u64, data: &[u8]);

    /// Writes the pages of this range back.
    ///
    /// # Errors
    /// Any error of the file system.
    fn sync(&self, at: u64, len: usize, msync: Msync) -> Result<()>;
}

/// A target of file workloads.
pub trait Files: Send + Sync {
    /// Returns the name for reports.
    fn name(&self) -> String;

    /// Opens a file.
    ///
    /// # Errors
    /// Here and in all methods below: any error of the file system.
    fn open(&self, path: &str, how: Open) -> Result<Box<dyn OpenFile>>;

    /// Removes a file.
    fn unlink(&self, path: &str) -> Result<()>;

    /// Creates a directory.
    fn mkdir(&self, path: &str) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, path: &str) -> Result<()>;

    /// Reads the attributes of a file, following symbolic links.
    fn stat(&self, path: &str) -> Result<Stat>;

    /// Sets permission bits.
    fn chmod(&self, path: &str, mode: u32) -> Result<()>;

    /// Renames a file.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Creates a hard link `new` to `old`.
    fn link(&self, old: &str, new: &str) -> Result<()>;

    /// Creates a symbolic link at `path`.
    fn symlink(&self, text: &str, path: &str) -> Result<()>;

    /// Reads the text of a symbolic link.
    fn readlink(&self, path: &str) -> Result<String>;

    /// Checks whether `path` is a symbolic link (`lstat`).
    fn is_symlink(&self, path: &str) -> Result<bool>;

    /// Lists the names in a directory, including `.` and `..` if the file system lists them.
    fn readdir(&self, path: &str) -> Result<Vec<String>>;

    /// Returns the absolute path of the target's directory, resolved by the system.
    fn getcwd(&self) -> Result<String>;

    /// Queries the number of free bytes (`statfs`).
    fn statfs(&self) -> Result<u64>;

    /// Flushes the whole file system to stable storage.
    fn sync(&self) -> Result<()>;

    /// Drops file data cached by this process. Does nothing for a directory of the kernel, which
    /// has no such cache.
    fn drop_caches(&self) -> Result<()> {
        Ok(())
    }
}

/// A directory of this machine: a mounted file system, EVFS or other.
pub struct HostDirectory {
    path: PathBuf,
    dir: OnceLock<File>,
}

impl HostDirectory {
    /// Opens the existing directory at `path`.
    ///
    /// # Errors
    /// The path does not exist or is not a directory.
    pub fn open(path: &Path) -> Result<HostDirectory> {
        let folder = HostDirectory::later(path)?;
        folder.dir()?;
        Ok(folder)
    }

    /// Like [`HostDirectory::open`], but opens the directory at its first use; until then its file
    /// system can be unmounted.
    ///
    /// # Errors
    /// As [`HostDirectory::open`].
    pub fn later(path: &Path) -> Result<HostDirectory> {
        if !std::fs::metadata(path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(HostDirectory {
            path: path.to_owned(),
            dir: OnceLock::new(),
        })
    }

    fn dir(&self) -> Result<&File> {
        if let Some(dir) = self.dir.get() {
            return Ok(dir);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = File::from(sys::open(&self.path, flags, Mode::empty())?);
        Ok(self.dir.get_or_init(|| dir))
    }
}

struct FolderFile {
    file: File,
    append: bool,
}

impl OpenFile for FolderFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.file.read_at(out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.append {
            io::Write::write_all(&mut &self.file, data)
        } else {
            self.file.write_all_at(data, offset)
        }
    }

    fn size(&self) -> Result<u64> {
        Ok(sys::fstat(&self.file)?.st_size as u64)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all()
    }

    fn drop_cache(&self) -> Result<()> {
        // Dirty pages cannot be dropped, so they are written back first.
        self.file.sync_data()?;
        Ok(sys::fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn map(&self, len: u64, direction: Direction) -> Result<Box<dyn Mapped>> {
        Ok(Box::new(Mapping::new(&self.file, len, direction)?))
    }
}

impl Files for HostDirectory {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn open(&self, path: &str, how: Open) -> Result<Box<dyn OpenFile>> {
        let mut flags = OFlags::CLOEXEC;
        flags |= if how.write {
            OFlags::RDWR
        } else {
            OFlags::RDONLY
        };
        flags.set(OFlags::CREATE, how.create);
        flags.set(OFlags::TRUNC, how.truncate);
        flags.set(OFlags::APPEND, how.append);
        flags.set(OFlags::DIRECT, how.direct);
        flags.set(OFlags::SYNC, how.sync);
        flags.set(OFlags::DSYNC, how.data_sync);
        let fd = sys::openat(self.dir()?, path, flags, Mode::from_raw_mode(0o644))?;
        let append = how.append;
        Ok(Box::new(FolderFile {
            file: File::from(fd),
            append,
        }))
    }

    fn unlink(&self, path: &str) -> Result<()> {
        Ok(sys::unlinkat(self.dir()?, path, AtFlags::empty())?)
    }

    fn mkdir(&self, path: &str) -> Result<()> {
        Ok(sys::mkdirat(self.dir()?, path, Mode::from_raw_mode(0o755))?)
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        Ok(sys::unlinkat(self.dir()?, path, AtFlags::REMOVEDIR)?)
    }

    fn stat(&self, path: &str) -> Result<Stat> {
        let stat = sys::statat(self.dir()?, path, AtFlags::empty())?;
        Ok(Stat {
            size: stat.st_size as u64,
            links: stat.st_nlink as u64,
            mode: stat.st_mode & 0o7777,
        })
    }

    fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(mode);
        Ok(sys::chmodat(self.dir()?, path, mode, AtFlags::empty())?)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(sys::renameat(self.dir()?, from, self.dir()?, to)?)
    }

    fn link(&self, old: &str, new: &str) -> Result<()> {
        let (dir, none) = (self.dir()?, AtFlags::empty());
        Ok(sys::linkat(dir, old, dir, new, none)?)
    }

    fn symlink(&self, text: &str, path: &str) -> Result<()> {
        Ok(sys::symlinkat(text, self.dir()?, path)?)
    }

    fn readlink(&self, path: &str) -> Result<String> {
        let text = sys::readlinkat(self.dir()?, path, Vec::new())?;
        text.into_string().map_err(|_| Errno::ILSEQ.into())
    }

    fn is_symlink(&self, path: &str) -> Result<bool> {
        let stat = sys::statat(self.dir()?, path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    fn readdir(&self, path: &str) -> Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = Dir::new(sys::openat(self.dir()?, path, flags, Mode::empty())?)?;
        dir.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn getcwd(&self) -> Result<String> {
        // `getcwd` is shared by all threads; the kernel resolves the link of an open directory by
        // the same walk.
        let link = format!("/proc/self/fd/{}", self.dir()?.as_raw_fd());
        Ok(std::fs::read_link(link)?.display().to_string())
    }

    fn statfs(&self) -> Result<u64> {
        let stat = sys::fstatvfs(self.dir()?)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    fn sync(&self) -> Result<()> {
        Ok(sys::syncfs(self.dir()?)?)
    }
}
