//! File handles, by which NFS servers name files.

use super::{c, check};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

/// `struct file_handle` with room for its bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FileHandle {
    pub bytes: u32,
    pub kind: i32,
    pub data: [u8; 128],
}

/// Returns the handle of a file, without following a symbolic link.
pub fn handle_of(path: &Path) -> FileHandle {
    let mut handle = FileHandle {
        bytes: 128,
        kind: 0,
        data: [0; 128],
    };
    let (path, mut mount, at) = (c(path), 0, &raw mut handle);
    // SAFETY: the string ends with a zero, and the handle has the stated room.
    let named = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), at.cast(), &raw mut mount, 0)
    };
    check(named).expect("it has a handle");
    handle
}

/// Opens a file of the file system that contains `dir`.
pub fn open(dir: &Path, handle: &FileHandle, flags: i32) -> Result<File, i32> {
    let (mount, mut handle) = (File::open(dir).expect("opened"), *handle);
    let at = &raw mut handle;
    // SAFETY: an open descriptor, and a handle with the stated number of bytes.
    let fd = check(unsafe { libc::open_by_handle_at(mount.as_raw_fd(), at.cast(), flags) })?;
    // SAFETY: the descriptor is new, and belongs to nothing else.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// Makes the kernel forget what it does not use.
pub fn drop_caches() {
    let mut caches = File::options().write(true).open("/proc/sys/vm/drop_caches");
    let caches = caches.as_mut().expect("root may open it");
    caches.write_all(b"2").expect("written");
}
