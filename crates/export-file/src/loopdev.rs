//! Loop devices: a block device of the kernel over a file.
//!
//! **Invariant:** this process keeps none of them open. The last close of a block device writes
//! back its dirty pages. If the server of the backing file is killed, the kernel would do so before
//! it ends the connection to that server, and would wait for it indefinitely.
//!
//! **Invariant:** whatever may wait for the server of the file, which is this process, runs in a child
//! process ([`fuse_mount::apart`]), so that nothing of this process remains when it is killed.
//!
//! The device outlives the server because the kernel has the file open, and no process the device. So
//! a successor needs only to know which one it is.

use crate::holes::Holes;
use fuse_mount::{Errno, Error, apart, attach_loop_apart, loop_control, renew_loop};
use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `LOOP_CLR_FD` of <linux/loop.h>.
const LOOP_CLR_FD: u32 = 0x4C01;
/// `LOOP_GET_STATUS64` of <linux/loop.h>, whose result has 29 words: the device and the inode of the file
/// are the first two.
const LOOP_GET_STATUS64: u32 = 0x4C05;
/// Words of `struct loop_info64`.
const STATUS_WORDS: usize = 29;
/// `LOOP_SET_CAPACITY` of <linux/loop.h>.
const LOOP_SET_CAPACITY: u32 = 0x4C07;
/// `BLKZEROOUT` of <linux/fs.h>.
const BLKZEROOUT: u32 = 0x127F;

/// Time for the kernel to release a device.
const DETACH_PATIENCE: Duration = Duration::from_secs(10);

/// A loop device. When dropped, the kernel removes it as soon as it is no longer in use.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    /// Path of the backing file as shown by the kernel; `None` once the device was removed.
    backing: Option<Vec<u8>>,
    read_only: bool,
    /// A predecessor of this process has created it.
    is_adopted: bool,
}

impl LoopDevice {
    /// Creates a loop device over `file` with blocks of `block_size` bytes, which bypasses the page
    /// cache of the file.
    ///
    /// # Errors
    /// Errors of the system, for example if the user is not root.
    pub fn attach(file: &Path, block_size: u32, read_only: bool) -> Result<LoopDevice, Error> {
        let failed = |e| {
            Error::io(
                format!("cannot create a loop device for {}", file.display()),
                e,
            )
        };
        let control = loop_control().map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => {
                let file = file.display();
                let what = format!(
                    "cannot create a loop device for {file} without root; --nbd and --fuse need \
                     no root"
                );
                Error::io(what, e)
            }
            _ => failed(e),
        })?;
        drop(control);
        let path = attach_loop_apart(file, block_size, read_only).map_err(failed)?;
        let backing = std::fs::read(sysfs(&path, "loop/backing_file"));
        Ok(LoopDevice {
            path,
            backing: Some(backing.map_err(failed)?),
            read_only,
            is_adopted: false,
        })
    }

    /// Continues the device of a predecessor, of which `kept` is the [`LoopDevice::descriptor`]. `None`
    /// if the device does not belong to `file` any more. The file is accessed.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn adopt(
        kept: &OwnedFd,
        file: &Path,
        read_only: bool,
    ) -> Result<Option<LoopDevice>, Error> {
        let failed = |e| {
            let what = format!("cannot continue the loop device of {}", file.display());
            Error::io(what, e)
        };
        let path = std::fs::read_link(format!("/proc/self/fd/{}", kept.as_raw_fd()));
        let path = path.map_err(failed)?;
        let backing = [file.as_os_str().as_bytes(), b"\n"].concat();
        let name = c_string(file).map_err(failed)?;
        let opened = Opened {
            path: &path,
            read_only: true,
            backing: &backing,
        };
        let is_over = opened.with(|device| is_over(device, &name));
        let is_over = is_over.map_err(failed)?;
        Ok(is_over.then_some(LoopDevice {
            path,
            backing: Some(backing),
            read_only,
            is_adopted: true,
        }))
    }

    /// Returns a descriptor that tells a successor which device it is. It does not open the device.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        let descriptor =
            rustix::fs::open(&self.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        descriptor.map_err(|e| Error::io(format!("cannot find {}", self.path.display()), e.into()))
    }

    /// Returns the path, `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the device as large as its file is now.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn update_size(&self) -> Result<(), Error> {
        let failed = |e| Error::io(format!("cannot enlarge {}", self.path.display()), e);
        let Some(backing) = &self.backing else {
            return Ok(());
        };
        let file = backing.strip_suffix(b"\n").unwrap_or(backing);
        let file = CString::new(file).map_err(|e| failed(e.into()))?;
        let updated = self.with_open(|device| {
            // The kernel asks the file system of the file for its size only in calls by its path.
            rustix::fs::stat(&*file)?;
            // SAFETY: this request takes no argument.
            result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY as _) })
        });
        updated.map(drop).map_err(failed)
    }

    /// Removes the device; with `force`, even if it is in use: it then vanishes after the last
    /// close.
    ///
    /// # Errors
    /// Returned together with the unchanged device.
    pub fn detach(mut self, force: bool) -> Result<(), (LoopDevice, Error)> {
        if !force && let Err(error) = self.in_use().and_then(|()| self.flush()) {
            return Err((self, error));
        }
        let removed = self.with_open(|device| {
            if force {
                // Best effort.
                let _ = rustix::fs::fsync(device);
            }
            clear(device)
        });
        let renewed = || is_renewed(&self.path).unwrap_or(true);
        if let Err(error) = removed {
            let error = Error::io(format!("cannot remove {}", self.path.display()), error);
            return Err((self, error));
        }
        let end = Instant::now() + DETACH_PATIENCE;
        while !force && (self.has_backing_file() || !renewed()) && Instant::now() < end {
            // The kernel waits for programs that briefly open the device, such as udev.
            std::thread::sleep(Duration::from_millis(5));
        }
        self.backing = None;
        Ok(())
    }

    /// Opens the device in a child process, where `work` makes only system calls. Returns false if the
    /// device no longer belongs to this file.
    fn with_open(&self, work: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>) -> io::Result<bool> {
        let Some(backing) = &self.backing else {
            return Ok(false);
        };
        let opened = Opened {
            path: &self.path,
            read_only: self.read_only,
            backing,
        };
        opened.with(work)
    }

    /// Checks that no program has opened the device exclusively, as a mount does.
    ///
    /// # Errors
    /// [`Error::Busy`] if one has.
    pub fn in_use(&self) -> Result<(), Error> {
        let path = c_string(&self.path);
        let exclusive = path.and_then(|path| {
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            let open = || rustix::fs::open(&*path, flags, Mode::empty()).map(drop);
            // SAFETY: only system calls.
            Ok(unsafe { apart(open) }?)
        });
        if exclusive.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY)) {
            Err(Error::Busy {
                what: self.path.display().to_string(),
                hint: "a file system on it is mounted, or a program has it open; unmount or close \
                       it first"
                    .into(),
            })
        } else {
            Ok(())
        }
    }

    /// Writes dirty pages of the device, and of file systems on it, to the file.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn flush(&self) -> Result<(), Error> {
        let failed = |e| Error::io(format!("cannot flush {}", self.path.display()), e);
        let mounts: io::Result<Vec<_>> = self.mounts().iter().map(|at| c_string(at)).collect();
        let mounts = mounts.map_err(failed)?;
        let sync_mounts = || {
            for at in &mounts {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                rustix::fs::syncfs(rustix::fs::open(&**at, flags, Mode::empty())?)?;
            }
            Ok(())
        };
        // SAFETY: only system calls.
        unsafe { apart(sync_mounts) }.map_err(|e| failed(e.into()))?;
        let synced = self.with_open(|device| rustix::fs::fsync(device));
        synced.map(drop).map_err(failed)
    }

    /// Lists the mount points of file systems on the device.
    fn mounts(&self) -> Vec<PathBuf> {
        let mut mounts = fuse_mount::mounts();
        mounts.retain(|mount| Path::new(&mount.source) == self.path);
        mounts.into_iter().map(|mount| mount.point).collect()
    }

    /// Passes discards to the file if `holes` is set, and otherwise disables them for file systems.
    /// Returns whether the device now behaves as requested. For the device of a predecessor, completes
    /// what the predecessor had begun.
    pub fn pass_discards(&self, holes: Option<&Holes>) -> bool {
        if let Some(holes) = holes {
            // Trying again would fail writes of the programs that use the device by now.
            if !(self.is_adopted && holes.known().is_some()) {
                self.disable_zeroing(holes);
            }
            if holes.known() == Some(true) {
                return true;
            }
        }
        // An older kernel would report discards as successful. Failing to disable them is harmless.
        if let Ok(limit) = c_string(&sysfs(&self.path, "queue/discard_max_bytes")) {
            let disable = || {
                let limit = rustix::fs::open(&*limit, OFlags::WRONLY, Mode::empty())?;
                rustix::io::write(&limit, b"0").map(drop)
            };
            // SAFETY: only system calls.
            let _ = unsafe { apart(disable) };
        }
        holes.is_none()
    }

    /// Makes the kernel write zeros instead of requesting them, if it can.
    fn disable_zeroing(&self, holes: &Holes) {
        let limit = c_string(&sysfs(&self.path, "queue/write_zeroes_max_bytes"));
        let zero_in_vain = |device: &OwnedFd| {
            let first_block = [0u64, 4096];
            // It fails; from that the kernel learns, and the file accepts no write during it. If a
            // predecessor was killed while it waited, its own attempt is over before this one.
            // SAFETY: the request reads two numbers.
            unsafe { libc::ioctl(device.as_raw_fd(), BLKZEROOUT as _, &first_block) };
            let limit = limit.as_ref().map_err(|_| Errno::INVAL)?;
            if shows(limit, b"0\n")? {
                Ok(())
            } else {
                Err(Errno::OPNOTSUPP)
            }
        };
        holes.disable_zeroing(|| self.with_open(zero_in_vain).unwrap_or(false));
    }

    fn has_backing_file(&self) -> bool {
        let backing = self.backing.as_ref();
        let now = || std::fs::read(sysfs(&self.path, "loop/backing_file")).ok();
        backing.is_some_and(|backing| now().as_ref() == Some(backing))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // If this fails, the device remains until its last user closes it.
        if let Ok(true) = self.with_open(clear) {
            let _ = is_renewed(&self.path);
        }
    }
}

/// Builds the path of an attribute of a block device in sysfs.
fn sysfs(device: &Path, name: &str) -> PathBuf {
    let device = device.file_name().unwrap_or_default();
    Path::new("/sys/block").join(device).join(name)
}

/// Gives a loop device that has no file any more the limits of a new one. Returns false while a
/// program has it open.
fn is_renewed(path: &Path) -> io::Result<bool> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(number) = name.and_then(|name| name.strip_prefix("loop")?.parse().ok()) else {
        return Ok(true);
    };
    // A file of another process: the device is that one's now.
    Ok(sysfs(path, "loop/backing_file").exists() || renew_loop(&loop_control()?, number)?)
}

/// A loop device to be opened, if it is over a file.
struct Opened<'a> {
    path: &'a Path,
    read_only: bool,
    /// Path of the file as shown by the kernel.
    backing: &'a [u8],
}

impl Opened<'_> {
    /// Opens the device in a child process, where `work` makes only system calls. Returns false if the
    /// device does not belong to the file.
    fn with(&self, work: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>) -> io::Result<bool> {
        let path = c_string(self.path)?;
        let shown = c_string(&sysfs(self.path, "loop/backing_file"))?;
        let access = if self.read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        let open_and_work = || {
            let device = rustix::fs::open(&*path, access | OFlags::CLOEXEC, Mode::empty());
            let device = device.map_err(|e| match e {
                Errno::NOENT | Errno::NODEV => Errno::NXIO,
                other => other,
            })?;
            match shows(&shown, self.backing) {
                Ok(true) => work(&device),
                _ => Err(Errno::NXIO),
            }
        };
        // SAFETY: only system calls, as the callers promise.
        match unsafe { apart(open_and_work) } {
            Ok(()) => Ok(true),
            Err(Errno::NXIO) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Checks the content of a short file. Makes only system calls.
fn shows(file: &CStr, content: &[u8]) -> rustix::io::Result<bool> {
    let file = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut now = [0; 8192];
    let len = rustix::io::read(&file, &mut now)?;
    Ok(now[..len] == *content)
}

/// Checks that a loop device is over a file, by numbers: `ENXIO` if not. Makes only system calls.
fn is_over(device: &OwnedFd, file: &CStr) -> rustix::io::Result<()> {
    let mut status = [0u64; STATUS_WORDS];
    // SAFETY: the request fills a structure of this size.
    result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, &mut status) })?;
    let found = rustix::fs::stat(file)?;
    if status[..2] == [found.st_dev, found.st_ino] {
        Ok(())
    } else {
        Err(Errno::NXIO)
    }
}

/// Returns the result of a system call of the C library.
fn result(returned: libc::c_int) -> rustix::io::Result<()> {
    match returned {
        // SAFETY: the location is that of this thread.
        ..0 => Err(Errno::from_raw_os_error(unsafe {
            *libc::__errno_location()
        })),
        _ => Ok(()),
    }
}

fn c_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Detaches the file from a loop device, immediately or after the last close. Makes one system call.
fn clear(device: &OwnedFd) -> rustix::io::Result<()> {
    // SAFETY: this request takes no argument.
    result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _) })
}

/// Removes loop devices whose file is directly in `folder`; those in use, after their last close.
pub(crate) fn remove_all_of(folder: &Path) {
    remove(|_, file| file.parent() == Some(folder));
}

/// Removes all loop devices over `file` but one; those in use, after their last close.
pub(crate) fn remove_others_of(file: &Path, but: &Path) {
    remove(|device, backing| backing == file && device != but);
}

/// Removes loop devices that a killed process left, chosen by their own path and that of their file.
fn remove(is_left: impl Fn(&Path, &Path) -> bool) {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten();
    for device in devices.flatten() {
        let path = Path::new("/dev").join(device.file_name());
        let Ok(backing) = std::fs::read(device.path().join("loop/backing_file")) else {
            continue;
        };
        let file = backing.strip_suffix(b"\n").unwrap_or(&backing);
        if !is_left(&path, Path::new(OsStr::from_bytes(file))) {
            continue;
        }
        let device = Opened {
            path: &path,
            read_only: true,
            backing: &backing,
        };
        let removed = device.with(clear);
        let _ = is_renewed(&path);
        match removed {
            Ok(_) => tracing::warn!(
                name: "EVFS-0603",
                "removed {}, which a killed process left", path.display()
            ),
            Err(e) => tracing::warn!(name: "EVFS-0604", "cannot remove {}: {e}", path.display()),
        }
    }
}
