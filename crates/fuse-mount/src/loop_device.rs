//! Loop devices: the search for a free one, and its configuration.

use crate::apart::apart;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

// <linux/loop.h>
const LOOP_CTL_ADD: u32 = 0x4C80;
const LOOP_CTL_REMOVE: u32 = 0x4C81;
const LOOP_CTL_GET_FREE: u32 = 0x4C82;
const LOOP_CONFIGURE: u32 = 0x4C0A;

/// Flag of a device that refuses writes.
const LO_FLAGS_READ_ONLY: u32 = 1;
/// Flag of a device that the kernel removes after its last close.
pub(crate) const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Flag of a device that bypasses the page cache of its file.
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Attempts to get a free device before other programs take it.
const TRIES: usize = 64;
/// Pause before the next attempt to get a free device.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// `struct loop_config` including its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device_inode_rdevice: [u64; 3],
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

const _: () = assert!(std::mem::size_of::<LoopConfig>() == 304);

/// Opens the control device, which adds and removes loop devices.
///
/// # Errors
/// Errors of the system, for example if the user is not root.
pub fn loop_control() -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")
}

/// Creates a loop device over `backing`, which is named `name`, with blocks of `block_size` bytes.
/// Returns its path and the open device.
///
/// # Errors
/// Errors of the system.
pub(crate) fn attach_loop(
    control: &File,
    backing: &File,
    name: &[u8],
    block_size: u32,
    flags: u32,
) -> io::Result<(PathBuf, File)> {
    let config = LoopConfig::new(backing.as_fd(), name, block_size, flags);
    attach_free(control, |path| {
        let device = open(path, flags)?;
        config.apply(&device)?;
        Ok(File::from(device))
    })
}

/// Creates a loop device over a file that this process serves, with blocks of `block_size` bytes, and
/// which bypasses the page cache of the file. Returns its path.
///
/// # Errors
/// Errors of the system, for example if the user is not root.
pub fn attach_loop_apart(file: &Path, block_size: u32, read_only: bool) -> io::Result<PathBuf> {
    let flags = LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let name = file.as_os_str().as_bytes();
    let file = CString::new(name)?;
    let (path, ()) = attach_free(&loop_control()?, |path| {
        let attach = || {
            let backing = open_with(&file, flags, OFlags::DIRECT).map_err(|e| match e {
                // Those would mean that the device is missing.
                Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::BUSY => Errno::STALE,
                other => other,
            })?;
            let device = open(path, flags)?;
            LoopConfig::new(backing.as_fd(), name, block_size, flags).apply(&device)
        };
        // SAFETY: only system calls.
        unsafe { apart(attach) }
    })?;
    Ok(path)
}

impl LoopConfig {
    fn new(backing: BorrowedFd<'_>, name: &[u8], block_size: u32, flags: u32) -> LoopConfig {
        let mut config = LoopConfig {
            fd: backing.as_raw_fd() as u32,
            block_size,
            device_inode_rdevice: [0; 3],
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
            reserved: [0; 8],
        };
        for (byte, of_name) in config.file_name[..63].iter_mut().zip(name) {
            *byte = *of_name;
        }
        config
    }

    /// Lets the kernel configure a device. Makes one system call.
    fn apply(&self, device: &OwnedFd) -> rustix::io::Result<()> {
        // SAFETY: `self` has the layout of `struct loop_config` (its size is asserted), and the kernel
        // only reads it.
        match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, self) } {
            0 => Ok(()),
            // SAFETY: the location is that of this thread.
            _ => Err(Errno::from_raw_os_error(unsafe {
                *libc::__errno_location()
            })),
        }
    }
}

/// Opens a device, or a file, as a device with these flags needs it.
fn open(path: &CStr, flags: u32) -> rustix::io::Result<OwnedFd> {
    open_with(path, flags, OFlags::empty())
}

fn open_with(path: &CStr, flags: u32, also: OFlags) -> rustix::io::Result<OwnedFd> {
    let access = match flags & LO_FLAGS_READ_ONLY {
        0 => OFlags::RDWR,
        _ => OFlags::RDONLY,
    };
    rustix::fs::open(path, access | also | OFlags::CLOEXEC, Mode::empty())
}

/// Calls `attach` with the path of a free loop device, and again with another one if another program
/// has taken it. Returns the path and the result.
fn attach_free<T>(
    control: &File,
    mut attach: impl FnMut(&CStr) -> rustix::io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    for _ in 0..TRIES {
        // SAFETY: this request takes no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // Its limits may be those of an earlier user. If a program has it open, it is used as
        // it is.
        let _ = renew_loop(control, number);
        let path = format!("/dev/loop{number}");
        match attach(&CString::new(path.as_str())?) {
            Ok(attached) => return Ok((path.into(), attached)),
            // Another program took this number between the two calls, or is just removing and adding
            // it.
            Err(Errno::BUSY | Errno::NOENT | Errno::NXIO | Errno::NODEV) => {}
            Err(error) => return Err(error.into()),
        }
        std::thread::sleep(RETRY_PAUSE);
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Removes the free loop device `number` and creates it again, with the limits of a new one: a
/// limit of discards that was set to 0 stays 0 for every later user, and the kernel then refuses
/// any other value. Returns false if the device is in use.
///
/// # Errors
/// Errors of the system.
pub fn renew_loop(control: &File, number: i32) -> io::Result<bool> {
    for request in [LOOP_CTL_REMOVE, LOOP_CTL_ADD] {
        // SAFETY: both requests take a number.
        if unsafe { libc::ioctl(control.as_raw_fd(), request as _, number) } < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // Another process has removed it, or made it again.
                Some(libc::ENODEV | libc::EEXIST) => {}
                Some(libc::EBUSY) => return Ok(false),
                _ => return Err(error),
            }
        }
    }
    Ok(true)
}
