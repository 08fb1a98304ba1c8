//! The file as a block device.

use crate::options::{Direct, Engine, Lock, Options};
use crate::queue::FileQueue;
use crate::{HeaderGuard, NewFile, lock, probe};
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Queue, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open file or block device.
#[derive(Debug)]
pub struct FileDevice {
    shared: Arc<Shared>,
}

/// What all queues of a file read and none changes.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) file: File,
    pub(crate) info: DeviceInfo,
    pub(crate) direct: bool,
    pub(crate) memory_align: u32,
    pub(crate) engine: Engine,
    pub(crate) queue_depth: u32,
    path: PathBuf,
    why_not_direct: Option<String>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        lock::drop_open_lock(&self.file);
    }
}

impl FileDevice {
    /// Opens what is there.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when somebody else has it, [`ErrorKind::Unsupported`] when O_DIRECT or
    /// io_uring is demanded and refused, [`ErrorKind::Invalid`] for what is no disk, and what the
    /// system says.
    pub fn open(path: &Path, options: &Options) -> Result<Arc<FileDevice>> {
        FileDevice::open_as(path, path, options)
    }

    /// Opens what is at one path for now, and is called by another.
    fn open_as(at: &Path, path: &Path, options: &Options) -> Result<Arc<FileDevice>> {
        let name = path.display().to_string();
        let meta = std::fs::metadata(at).map_err(|e| Error::from_io(&name, e))?;
        let mut open = OpenOptions::new();
        open.read(true).write(!options.read_only);
        let mut flags = libc::O_CLOEXEC | libc::O_NOCTTY;
        if meta.file_type().is_block_device() && options.lock == Lock::Exclusive {
            // On a block device: fails while it is mounted or held otherwise.
            flags |= libc::O_EXCL;
        } else if !meta.file_type().is_block_device() && !meta.is_file() {
            let why = "neither a regular file nor a block device";
            return Err(Error::new(ErrorKind::Invalid, name, why));
        }
        let (file, why_not_direct) = open_direct(at, &name, &mut open, flags, options.direct)?;
        FileDevice::of_file(path, name, file, why_not_direct, options)
    }

    /// Makes a sparse file of `size` bytes (0600), durable with its name, and opens it.
    ///
    /// # Errors
    /// As [`FileDevice::make`].
    pub fn create(path: &Path, size: u64, options: &Options) -> Result<Arc<FileDevice>> {
        let (device, new) = FileDevice::make(path, size, options)?;
        new.finish()?;
        Ok(device)
    }

    /// The same of a file that has no name yet: [`NewFile::finish`] gives it, when what has to be in the file is
    /// written.
    ///
    /// # Errors
    /// When the file exists, or another process makes it, and those of [`FileDevice::open`].
    pub fn make(path: &Path, size: u64, options: &Options) -> Result<(Arc<FileDevice>, NewFile)> {
        let new = NewFile::unlocked(path)?;
        let sized = new.file().set_len(size);
        sized.map_err(|e| {
            let name = path.display().to_string();
            Error::from_io(name, e).detail("cannot be given its size")
        })?;
        let device = FileDevice::open_as(new.hidden_path(), path, options)?;
        new.still_there()?;
        Ok((device, new))
    }

    fn of_file(
        path: &Path,
        name: String,
        file: File,
        why_not_direct: Option<String>,
        options: &Options,
    ) -> Result<Arc<FileDevice>> {
        // Who only reads shares with readers; the kernel gives an exclusive lock to writers alone.
        let lock = match options.lock {
            Lock::Exclusive if options.read_only => Lock::Shared,
            lock => lock,
        };
        lock::take_open_lock(&file, &name, lock)?;
        let direct = why_not_direct.is_none();
        let found = probe::probe(&file, &name, direct)?;
        if found.read_only && !options.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, name, ""));
        }
        let block = found.logical_block_size;
        let info = DeviceInfo {
            name,
            wwid: found.wwid,
            size: found.size,
            logical_block_size: block,
            optimal_io_size: found.optimal_io_size.max(block),
            max_transfer: (options.max_transfer - options.max_transfer % block).max(block),
            volatile_write_cache: true,
            read_only: options.read_only,
            discard: !options.read_only && can_discard(&file, found.block_device),
            numa_node: found.numa_node,
        };
        let shared = Shared {
            file,
            info,
            direct,
            memory_align: found.memory_align,
            engine: options.engine,
            queue_depth: options.queue_depth.clamp(1, 4096),
            path: path.to_owned(),
            why_not_direct,
        };
        Ok(Arc::new(FileDevice {
            shared: Arc::new(shared),
        }))
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Where the file that is open lies now, without symbolic links; `None` for one that has no name any more,
    /// and for a block device.
    pub fn resolved_path(&self) -> Option<PathBuf> {
        let meta = self.shared.file.metadata().ok()?;
        let link = format!("/proc/self/fd/{}", self.shared.file.as_raw_fd());
        let path = std::fs::read_link(link).ok()?;
        (meta.is_file() && meta.nlink() > 0 && path.is_absolute()).then_some(path)
    }

    /// Whether the page cache is passed by.
    pub fn direct(&self) -> bool {
        self.shared.direct
    }

    /// Why the page cache is not passed by, if it is not.
    pub fn why_not_direct(&self) -> Option<&str> {
        self.shared.why_not_direct.as_deref()
    }

    /// The first byte from `from` on that may hold data; `None` where only a hole follows.
    pub fn next_data(&self, from: u64) -> Option<u64> {
        match rustix::fs::seek(&self.shared.file, rustix::fs::SeekFrom::Data(from)) {
            Ok(at) => Some(at.max(from)),
            Err(rustix::io::Errno::NXIO) => None,
            // Not a file, or a file system that keeps no holes: all of it may be data.
            Err(_) => Some(from),
        }
    }

    /// The bytes of a file behind its last whole block, which are no part of the device.
    ///
    /// # Errors
    /// What the system says.
    pub fn behind_the_end(&self) -> Result<Vec<u8>> {
        let info = &self.shared.info;
        let failed = |e| Error::from_io(&info.name, e).detail("its last bytes cannot be read");
        let mut bytes = Vec::new();
        if self.shared.file.metadata().map_err(failed)?.is_file() {
            // An opening of its own, through the page cache: O_DIRECT may refuse what is no whole block.
            let same = format!("/proc/self/fd/{}", self.shared.file.as_raw_fd());
            let mut file = File::open(same).map_err(failed)?;
            file.seek(SeekFrom::Start(info.size)).map_err(failed)?;
            let mut rest = file.take(u64::from(info.logical_block_size));
            rest.read_to_end(&mut bytes).map_err(failed)?;
        }
        Ok(bytes)
    }

    /// Takes the header lock, which `cryptsetup` takes as well; waits a while for it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when somebody holds it for long.
    pub fn header_lock(&self, exclusive: bool) -> Result<HeaderGuard> {
        lock::header_lock(&self.shared.file, &self.shared.info.name, exclusive)
    }
}

/// Opens with O_DIRECT if it is wanted and possible, and says why where it is not.
fn open_direct(
    path: &Path,
    name: &str,
    open: &mut OpenOptions,
    flags: i32,
    direct: Direct,
) -> Result<(File, Option<String>)> {
    let failed = |e: std::io::Error| match e.raw_os_error() {
        Some(libc::EBUSY) => lock::busy(name),
        _ => Error::from_io(name, e).detail("cannot be opened"),
    };
    let mut opened =
        |flags| lock::patiently(&[libc::EBUSY], || open.custom_flags(flags).open(path));
    if direct == Direct::Never {
        let file = opened(flags).map_err(failed)?;
        return Ok((file, Some("asked to go through the page cache".into())));
    }
    match opened(flags | libc::O_DIRECT) {
        Ok(file) => Ok((file, None)),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            let why = "its file system does not allow O_DIRECT";
            if direct == Direct::Always {
                let hint = format!("{why}; put it on ext4, xfs or btrfs, or on a disk");
                return Err(Error::new(ErrorKind::Unsupported, name, hint));
            }
            tracing::info!(file = name, "{why}: going through the page cache");
            let file = opened(flags).map_err(failed)?;
            Ok((file, Some(why.into())))
        }
        Err(e) => Err(failed(e)),
    }
}

/// Whether holes can be punched: tried on nothing, behind the end of a file.
fn can_discard(file: &File, block_device: bool) -> bool {
    use rustix::fs::FallocateFlags;
    if block_device {
        return true;
    }
    let Ok(len) = file.metadata().map(|m| m.len()) else {
        return false;
    };
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, hole, len.next_multiple_of(4096), 4096).is_ok()
}

impl BlockDevice for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(FileQueue::open(Arc::clone(&self.shared))?))
    }
}
