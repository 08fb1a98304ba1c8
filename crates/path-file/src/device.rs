//! The file as a block device.

use crate::open_file::OpenFile;
use crate::options::{Direct, Holder, Lock, Options};
use crate::queue::FileQueue;
use crate::{HeaderGuard, NewFile, Sharing, lock, probe};
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Queue, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Open file or block device.
#[derive(Debug)]
pub struct FileDevice {
    pub(crate) shared: Arc<OpenFile>,
}

impl FileDevice {
    /// Opens an existing file or block device.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: another process has it open. [`ErrorKind::Unsupported`]: O_DIRECT or
    /// io_uring was required and is not available. [`ErrorKind::Invalid`]: neither a regular file
    /// nor a block device. System errors.
    pub fn open(path: &Path, options: &Options) -> Result<Arc<FileDevice>> {
        match &options.holder {
            // The file itself: its name may be that of another file by now.
            Holder::Predecessor(holder) => {
                let at = format!("/proc/self/fd/{}", holder.as_raw_fd());
                FileDevice::open_as(Path::new(&at), path, options)
            }
            Holder::Device | Holder::Apart => FileDevice::open_as(path, path, options),
        }
    }

    /// Opens the file that is at `at` for now, under its final name `path`.
    fn open_as(at: &Path, path: &Path, options: &Options) -> Result<Arc<FileDevice>> {
        let name = path.display().to_string();
        let meta = std::fs::metadata(at).map_err(|e| Error::from_io(&name, e))?;
        let mut open = OpenOptions::new();
        open.read(true).write(!options.read_only);
        let mut flags = libc::O_CLOEXEC | libc::O_NOCTTY;
        if meta.file_type().is_block_device()
            && options.lock == Lock::Exclusive
            && matches!(options.holder, Holder::Device)
        {
            // On a block device: fails while it is mounted or claimed otherwise.
            flags |= libc::O_EXCL;
        } else if !meta.file_type().is_block_device() && !meta.is_file() {
            let why = "neither a regular file nor a block device";
            return Err(Error::new(ErrorKind::Invalid, name, why));
        }
        let (file, why_not_direct) = open_direct(at, &name, &mut open, flags, options.direct)?;
        FileDevice::of_file(path, name, file, why_not_direct, options)
    }

    /// Creates a sparse file of `size` bytes (mode 0600), durable with its name, and opens it.
    ///
    /// # Errors
    /// As [`FileDevice::make`].
    pub fn create(path: &Path, size: u64, options: &Options) -> Result<Arc<FileDevice>> {
        let (device, new) = FileDevice::make(path, size, options)?;
        new.finish()?;
        Ok(device)
    }

    /// Creates and opens a file that has no name yet: [`NewFile::finish`] names it once the caller
    /// has written its initial content.
    ///
    /// # Errors
    /// The file exists, or another process is creating it, and those of [`FileDevice::open`].
    pub fn make(path: &Path, size: u64, options: &Options) -> Result<(Arc<FileDevice>, NewFile)> {
        let new = NewFile::unlocked(path)?;
        let sized = new.file().set_len(size);
        sized.map_err(|e| {
            let name = path.display().to_string();
            Error::from_io(name, e).detail("cannot set its size")
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
        // A reader shares the file with other readers; the kernel grants an exclusive lock only to
        // writers.
        let lock = match options.lock {
            Lock::Exclusive if options.read_only => Lock::Shared,
            lock => lock,
        };
        let holder = match &options.holder {
            Holder::Device => {
                lock::take_open_lock(&file, &name, lock)?;
                None
            }
            Holder::Apart => {
                let holder = Arc::new(lock::holder_of(&file, &name, lock)?);
                lock::take_apart(&file, &holder, &name, lock)?;
                Some(holder)
            }
            Holder::Predecessor(holder) => {
                lock::take_apart(&file, holder, &name, lock)?;
                Some(Arc::clone(holder))
            }
        };
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
        let shared = OpenFile {
            file,
            info: info.into(),
            direct,
            memory_align: found.memory_align,
            engine: options.engine,
            queue_depth: options.queue_depth.clamp(1, 4096),
            path: path.to_owned(),
            why_not_direct,
            lock_holder: holder,
            in_order: AtomicBool::default(),
        };
        Ok(Arc::new(FileDevice {
            shared: Arc::new(shared),
        }))
    }

    /// Finds the current size of the file or disk, which the device uses after
    /// [`BlockDevice::update_size`].
    ///
    /// # Errors
    /// System errors.
    pub fn storage_size(&self) -> Result<u64> {
        let info = &self.shared.info;
        let size = probe::size(&self.shared.file).map_err(|e| Error::from_io(&info.name, e))?;
        Ok(size - size % u64::from(info.logical_block_size))
    }

    /// Enlarges a regular file to `size` bytes; the new part is a hole. Durable on return. The
    /// device uses it after [`BlockDevice::update_size`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: not a regular file, whose size others set.
    /// [`ErrorKind::Invalid`]: the file is larger than that. System errors.
    pub fn enlarge(&self, size: u64) -> Result<()> {
        let info = &self.shared.info;
        let failed = |e| Error::from_io(&info.name, e).detail("cannot enlarge the file");
        let meta = self.shared.file.metadata().map_err(failed)?;
        if !meta.is_file() {
            let why = "not a regular file";
            return Err(Error::new(ErrorKind::Unsupported, &info.name, why));
        }
        if meta.len() > size {
            let why = format!("the file has {} bytes, and does not shrink", meta.len());
            return Err(Error::new(ErrorKind::Invalid, &info.name, why));
        }
        self.shared.file.set_len(size).map_err(failed)?;
        self.shared.file.sync_all().map_err(failed)
    }

    /// Cuts a regular file off, durably. Nothing may read or write what lies behind `size` again
    /// through this device, whose size stays the same.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: not a regular file. [`ErrorKind::Invalid`]: the file is smaller
    /// than that. System errors.
    pub fn shorten(&self, size: u64) -> Result<()> {
        let info = &self.shared.info;
        let failed = |e| Error::from_io(&info.name, e).detail("cannot cut the file off");
        let meta = self.shared.file.metadata().map_err(failed)?;
        if !meta.is_file() {
            let why = "not a regular file";
            return Err(Error::new(ErrorKind::Unsupported, &info.name, why));
        }
        if meta.len() < size {
            let why = format!("the file has only {} bytes", meta.len());
            return Err(Error::new(ErrorKind::Invalid, &info.name, why));
        }
        self.shared.file.set_len(size).map_err(failed)?;
        self.shared.file.sync_all().map_err(failed)
    }

    /// Returns the path by which the file was opened.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Looks up the current path of the open file, without symbolic links; `None` if it no longer
    /// has a name, and for a block device.
    pub fn resolved_path(&self) -> Option<PathBuf> {
        let meta = self.shared.file.metadata().ok()?;
        let link = format!("/proc/self/fd/{}", self.shared.file.as_raw_fd());
        let path = std::fs::read_link(link).ok()?;
        (meta.is_file() && meta.nlink() > 0 && path.is_absolute()).then_some(path)
    }

    /// Reports whether I/O bypasses the page cache.
    pub fn direct(&self) -> bool {
        self.shared.direct
    }

    /// Returns why I/O does not bypass the page cache, if it does not.
    pub fn why_not_direct(&self) -> Option<&str> {
        self.shared.why_not_direct.as_deref()
    }

    /// Finds the first byte from `from` on that may hold data; `None` if only a hole follows.
    pub fn next_data(&self, from: u64) -> Option<u64> {
        match rustix::fs::seek(&self.shared.file, rustix::fs::SeekFrom::Data(from)) {
            Ok(at) => Some(at.max(from)),
            Err(rustix::io::Errno::NXIO) => None,
            // Not a regular file, or a file system without holes: all of it may be data.
            Err(_) => Some(from),
        }
    }

    /// Reads the bytes of a file after its last whole block, which are not part of the device.
    ///
    /// # Errors
    /// A system error.
    pub fn behind_the_end(&self) -> Result<Vec<u8>> {
        let info = &self.shared.info;
        let failed = |e| Error::from_io(&info.name, e).detail("cannot read its last bytes");
        let mut bytes = Vec::new();
        if self.shared.file.metadata().map_err(failed)?.is_file() {
            // Reopened, to use the page cache: O_DIRECT may refuse a partial block.
            let same = format!("/proc/self/fd/{}", self.shared.file.as_raw_fd());
            let mut file = File::open(same).map_err(failed)?;
            file.seek(SeekFrom::Start(info.size)).map_err(failed)?;
            let mut rest = file.take(u64::from(info.logical_block_size));
            rest.read_to_end(&mut bytes).map_err(failed)?;
        }
        Ok(bytes)
    }

    /// Has the lock released with the last user of the device, also if another process has the
    /// descriptor that holds it: the device is not used any more.
    pub fn end_in_order(&self) {
        self.shared.in_order.store(true, Ordering::Relaxed);
    }

    /// Returns the descriptor that has the lock apart from the device, for
    /// [`Holder::Predecessor`] of another process.
    pub fn lock_holder(&self) -> Option<BorrowedFd<'_>> {
        self.shared
            .lock_holder
            .as_ref()
            .map(|holder| holder.as_fd())
    }

    /// Takes the header lock, which `cryptsetup` takes as well; waits up to 10 seconds for it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: another program still holds it.
    pub fn header_lock(&self, sharing: Sharing) -> Result<HeaderGuard> {
        lock::header_lock(&self.shared.file, &self.shared.info.name, sharing)
    }
}

/// Opens a file with O_DIRECT if requested and possible. Returns the reason if it is not used.
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
        return Ok((file, Some("the page cache was requested".into())));
    }
    match opened(flags | libc::O_DIRECT) {
        Ok(file) => Ok((file, None)),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            let why = "its file system does not support O_DIRECT";
            if direct == Direct::Always {
                let hint = format!("{why}; move it to ext4, xfs or btrfs, or use a disk");
                return Err(Error::new(ErrorKind::Unsupported, name, hint));
            }
            tracing::info!(file = name, "{why}; using the page cache");
            let file = opened(flags).map_err(failed)?;
            Ok((file, Some(why.into())))
        }
        Err(e) => Err(failed(e)),
    }
}

/// Checks whether holes can be punched: tries it beyond the end of the file.
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

    fn update_size(&self) -> Result<u64> {
        self.shared.info.grow(self.storage_size()?)
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(FileQueue::open(Arc::clone(&self.shared))?))
    }
}
