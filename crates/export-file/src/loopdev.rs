//! Loop devices: a block device of the kernel over a file.
//!
//! **Invariant:** this process keeps none of them open. The last close of a block device writes
//! back its dirty pages. If the server of the backing file is killed, the kernel would do so before
//! it ends the connection to that server, and would wait for it indefinitely.

use crate::holes::Holes;
use fuse_mount::{
    Error, LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, attach_loop, loop_control, renew_loop,
};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `LOOP_CLR_FD` of <linux/loop.h>.
const LOOP_CLR_FD: u32 = 0x4C01;
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
    backing: Option<String>,
    read_only: bool,
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
        let backing = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .custom_flags(libc::O_DIRECT)
            .open(file);
        let backing = backing.map_err(failed)?;
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
        let flags = LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
        let name = file.as_os_str().as_encoded_bytes();
        let attached = attach_loop(&control, &backing, name, block_size, flags);
        let (path, _device) = attached.map_err(failed)?;
        let backing = std::fs::read_to_string(sysfs(&path, "loop/backing_file"));
        Ok(LoopDevice {
            backing: Some(backing.map_err(failed)?),
            path,
            read_only,
        })
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
        let update = || {
            let Some(device) = self.open()? else {
                return Ok(());
            };
            // The kernel asks the file system of the file for its size only in calls by its path.
            if let Some(file) = &self.backing {
                std::fs::metadata(file.trim_end_matches('\n'))?;
            }
            // SAFETY: this request takes no argument.
            match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY as _) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        update().map_err(|e| Error::io(format!("cannot enlarge {}", self.path.display()), e))
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
        let removed = self.open().and_then(|device| {
            let Some(device) = device else { return Ok(()) };
            if force {
                // Best effort.
                let _ = device.sync_all();
            }
            clear(&device)
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

    /// Opens the device; `None` if it no longer belongs to this file.
    fn open(&self) -> io::Result<Option<File>> {
        let device = OpenOptions::new()
            .read(true)
            .write(!self.read_only)
            .open(&self.path)?;
        Ok(self.has_backing_file().then_some(device))
    }

    /// Checks that no program has opened the device exclusively, as a mount does.
    ///
    /// # Errors
    /// [`Error::Busy`] if one has.
    pub fn in_use(&self) -> Result<(), Error> {
        let exclusive = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL)
            .open(&self.path);
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
        for at in self.mounts() {
            let folder = File::open(&at).map_err(failed)?;
            rustix::fs::syncfs(&folder).map_err(|e| failed(e.into()))?;
        }
        match self.open().map_err(failed)? {
            Some(device) => device.sync_all().map_err(failed),
            None => Ok(()),
        }
    }

    /// Lists the mount points of file systems on the device.
    fn mounts(&self) -> Vec<PathBuf> {
        let mut mounts = fuse_mount::mounts();
        mounts.retain(|mount| Path::new(&mount.source) == self.path);
        mounts.into_iter().map(|mount| mount.point).collect()
    }

    /// Passes discards to the file if `holes` is set, and otherwise disables them for file systems.
    /// Returns whether the device now behaves as requested.
    pub fn pass_discards(&self, holes: Option<&Holes>) -> bool {
        if let Some((holes, device)) = holes.zip(self.open().ok().flatten()) {
            holes.disable_zeroing(|| {
                // It fails; from that the kernel learns, and the file accepts no write during it.
                let first_block = [0u64, 4096];
                // SAFETY: the request reads two numbers.
                unsafe { libc::ioctl(device.as_raw_fd(), BLKZEROOUT as _, &first_block) };
            });
            let limit = std::fs::read_to_string(sysfs(&self.path, "queue/write_zeroes_max_bytes"));
            if limit.is_ok_and(|limit| limit.trim() == "0") {
                holes.are_discards();
                return true;
            }
        }
        // An older kernel would report discards as successful. Failing to disable them is harmless.
        let _ = std::fs::write(sysfs(&self.path, "queue/discard_max_bytes"), "0");
        holes.is_none()
    }

    fn has_backing_file(&self) -> bool {
        let now = std::fs::read_to_string(sysfs(&self.path, "loop/backing_file")).ok();
        now.is_some() && now == self.backing
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Ok(Some(device)) = self.open() {
            // If this fails, the device remains until its last user closes it.
            let _ = clear(&device);
            drop(device);
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

/// Detaches the file from a loop device, immediately or after the last close.
fn clear(device: &File) -> io::Result<()> {
    // SAFETY: this request takes no argument.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            gone if gone.raw_os_error() == Some(libc::ENXIO) => Ok(()),
            error => Err(error),
        },
    }
}

/// Removes loop devices whose file is directly in `folder`; those in use, after their last close.
pub(crate) fn remove_all_of(folder: &Path) {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten();
    for device in devices.flatten() {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file"));
        let is_of = |file: &String| Path::new(file.trim_end_matches('\n')).parent() == Some(folder);
        if !file.is_ok_and(|file| is_of(&file)) {
            continue;
        }
        let path = Path::new("/dev").join(device.file_name());
        let removed = File::open(&path).and_then(|device| clear(&device));
        let _ = is_renewed(&path);
        match removed {
            Ok(()) => tracing::warn!(
                name: "EVFS-0603",
                "removed {}, which a killed process left", path.display()
            ),
            Err(e) => tracing::warn!(name: "EVFS-0604", "cannot remove {}: {e}", path.display()),
        }
    }
}
