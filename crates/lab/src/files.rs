//! What workloads on files run on: a folder through the kernel, or a file system without a mount.
//!
//! Names are paths relative to the target, with `/` between components and no `..`; workloads make
//! them, so a target need not check. Every call is one operation of the file system below, so that a
//! workload's counts are those that `strace` shows.

use crate::map::Mapping;
use rustix::fs::{self as sys, Advice, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What `stat` says, as far as workloads ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Length in bytes.
    pub size: u64,
    /// Names of the file.
    pub links: u64,
    /// Permission bits.
    pub mode: u32,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    /// For writing, too.
    pub write: bool,
    /// Make it where it is missing.
    pub create: bool,
    /// Cut it to nothing.
    pub truncate: bool,
    /// Each write goes to the end.
    pub append: bool,
    /// Past every cache above the device, where the target can.
    pub direct: bool,
    /// Writes are durable when they return.
    pub sync: bool,
    /// As `sync`, but for times and such, which may be lost.
    pub data_sync: bool,
}

impl Open {
    /// For reading.
    pub const READ: Open = Open {
        write: false,
        create: false,
        truncate: false,
        append: false,
        direct: false,
        sync: false,
        data_sync: false,
    };
    /// For writing, made if missing, cut to nothing.
    pub const CREATE: Open = Open {
        write: true,
        create: true,
        truncate: true,
        ..Open::READ
    };
    /// For writing at the end.
    pub const APPEND: Open = Open {
        write: true,
        append: true,
        ..Open::READ
    };
}

/// An open file.
pub trait OpenFile: Send + Sync {
    /// Reads up to `out.len()` bytes; 0 at the end.
    ///
    /// # Errors
    /// What the file system says.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize>;

    /// Writes all of `data`.
    ///
    /// # Errors
    /// What the file system says.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Its length in bytes, by `fstat`.
    ///
    /// # Errors
    /// What the file system says.
    fn size(&self) -> Result<u64>;

    /// Makes the file durable.
    ///
    /// # Errors
    /// What the file system says.
    fn sync(&self) -> Result<()>;

    /// Drops what caches hold of the file, as far as the target can; what was not yet written is
    /// written first.
    ///
    /// # Errors
    /// `Unsupported` where the target has no means; what the file system says.
    fn forget(&self) -> Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Its first `len` bytes in memory, shared with everybody who has the file open.
    ///
    /// # Errors
    /// `Unsupported` where the target has no mappings; `InvalidInput` for more than the file has.
    fn map(&self, _len: u64, _write: bool) -> Result<Box<dyn Mapped>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A file in memory. Offsets beyond the mapped length are the caller's bug, and panic.
pub trait Mapped: Send + Sync {
    /// Copies out.
    fn read(&self, at: u64, out: &mut [u8]);

    /// Copies in.
    fn write(&self, at: u64, data: &[u8]);

    /// Writes the pages of these bytes back; waits for them if asked to.
    ///
    /// # Errors
    /// What the file system says.
    fn sync(&self, at: u64, len: usize, wait: bool) -> Result<()>;
}

/// A target for workloads on files.
pub trait Files: Send + Sync {
    /// What it is called in reports.
    fn name(&self) -> String;

    /// Opens a file.
    ///
    /// # Errors
    /// Here and in all calls below: what the file system says.
    fn open(&self, path: &str, how: Open) -> Result<Box<dyn OpenFile>>;

    /// Removes a file.
    fn unlink(&self, path: &str) -> Result<()>;

    /// Makes a folder.
    fn mkdir(&self, path: &str) -> Result<()>;

    /// Removes an empty folder.
    fn rmdir(&self, path: &str) -> Result<()>;

    /// Looks at a file, following links.
    fn stat(&self, path: &str) -> Result<Stat>;

    /// Sets permission bits.
    fn chmod(&self, path: &str, mode: u32) -> Result<()>;

    /// Gives a file another name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Gives a file a second name.
    fn link(&self, old: &str, new: &str) -> Result<()>;

    /// Makes a symbolic link.
    fn symlink(&self, text: &str, path: &str) -> Result<()>;

    /// Reads a symbolic link.
    fn readlink(&self, path: &str) -> Result<String>;

    /// Whether `path` is a symbolic link (`lstat`).
    fn is_symlink(&self, path: &str) -> Result<bool>;

    /// The names in a folder, `.` and `..` with them where the file system gives them.
    fn readdir(&self, path: &str) -> Result<Vec<String>>;

    /// The full name of the target's own folder, as the system finds it from the top.
    fn getcwd(&self) -> Result<String>;

    /// Bytes free, by `statfs`.
    fn statfs(&self) -> Result<u64>;

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Drops what this process itself holds of all files; a folder of the kernel is nothing of the kind.
    fn forget(&self) -> Result<()> {
        Ok(())
    }
}

/// A folder of this machine: a mounted file system, ours or another's.
pub struct Folder {
    path: PathBuf,
    dir: OnceLock<File>,
}

impl Folder {
    /// The folder at `path`, which must be there.
    ///
    /// # Errors
    /// It is not there, or no folder.
    pub fn open(path: &Path) -> Result<Folder> {
        let folder = Folder::later(path)?;
        folder.dir()?;
        Ok(folder)
    }

    /// The same, but it is opened when it is first used: what lies there can be unmounted until then.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn later(path: &Path) -> Result<Folder> {
        if !std::fs::metadata(path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Folder {
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
        match self.append {
            true => io::Write::write_all(&mut &self.file, data),
            false => self.file.write_all_at(data, offset),
        }
    }

    fn size(&self) -> Result<u64> {
        Ok(sys::fstat(&self.file)?.st_size as u64)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all()
    }

    fn forget(&self) -> Result<()> {
        // Dirty pages cannot be dropped, so they are written first.
        self.file.sync_data()?;
        Ok(sys::fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn map(&self, len: u64, write: bool) -> Result<Box<dyn Mapped>> {
        Ok(Box::new(Mapping::new(&self.file, len, write)?))
    }
}

impl Files for Folder {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn open(&self, path: &str, how: Open) -> Result<Box<dyn OpenFile>> {
        let mut flags = OFlags::CLOEXEC;
        flags |= match how.write {
            true => OFlags::RDWR,
            false => OFlags::RDONLY,
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
        // `getcwd` is one for all threads; the link of an open folder is made by the same walk.
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
