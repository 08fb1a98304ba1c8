//! A secret for another process: in memory that a descriptor alone gives access to.
//!
//! The memory is that of memfd_secret(2) where the kernel has it, which even the kernel does not map;
//! otherwise a memfd, which the kernel may swap out unless the swap is encrypted.

use crate::SecretBytes;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Longest secret, in bytes.
const LEN_MAX: usize = 4096;

/// Copies a secret into new memory; its descriptor gives access to it.
///
/// # Errors
/// The secret is empty or longer than 4096 bytes; the system refuses the memory.
pub fn give(secret: &SecretBytes) -> io::Result<OwnedFd> {
    if secret.is_empty() || secret.len() > LEN_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = memory()?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::ftruncate(file.as_raw_fd(), secret.len() as libc::off_t) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mapped = Mapped::of(&file, secret.len())?;
    // SAFETY: both ranges have this length, and they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(secret.as_ptr(), mapped.at.cast(), secret.len()) };
    Ok(file)
}

/// Reads the secret behind a descriptor of [`give`].
///
/// # Errors
/// The descriptor is not one of these.
pub fn take(file: &OwnedFd) -> io::Result<SecretBytes> {
    // SAFETY: a struct of plain integers, for which zeros are valid.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` has room, and the descriptor is open.
    if unsafe { libc::fstat(file.as_raw_fd(), &raw mut about) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let len = usize::try_from(about.st_size).unwrap_or_default();
    if len == 0 || len > LEN_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mapped = Mapped::of(file, len)?;
    let mut secret = SecretBytes::zeroed(len);
    // SAFETY: both ranges have this length, and they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(mapped.at.cast(), secret.as_mut_ptr(), len) };
    Ok(secret)
}

fn memory() -> io::Result<OwnedFd> {
    // SAFETY: both calls return a new descriptor or -1, and read nothing but the name.
    let file = unsafe {
        match libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) as i32 {
            -1 => libc::memfd_create(c"evfs-secret".as_ptr(), libc::MFD_CLOEXEC),
            file => file,
        }
    };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just created it, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// A mapping of a whole file, which is removed on drop.
struct Mapped {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapped {
    fn of(file: &OwnedFd, len: usize) -> io::Result<Mapped> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the system chooses.
        let at = unsafe {
            let (any, fd) = (std::ptr::null_mut(), file.as_raw_fd());
            libc::mmap(any, len, access, libc::MAP_SHARED, fd, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was mapped just now. Secret memory is excluded from dumps anyway.
        unsafe { libc::madvise(at, len, libc::MADV_DONTDUMP) };
        Ok(Mapped { at, len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this value mapped the range, and no reference to it is left.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_back_and_other_files_are_refused() {
        let secret = SecretBytes::random(100);
        let file = give(&secret).unwrap();
        assert!(take(&file).unwrap() == secret);
        assert!(take(&file).unwrap() == secret);
        assert!(give(&SecretBytes::zeroed(0)).is_err());
        assert!(give(&SecretBytes::zeroed(5000)).is_err());
        let empty = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(take(&empty).is_err());
    }
}
