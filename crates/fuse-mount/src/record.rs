//! What a successor has to know of a session beside its descriptors, in memory that outlives the server:
//! the length of the path of the directory, the path, and the kernel's first message.

use crate::session::Held;
use rustix::fs::MemfdFlags;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Longest record in bytes.
const BYTES_MAX: usize = 16 << 10;

impl Held<'_> {
    /// Writes what a successor has to know beside the descriptors, for [`read_record`].
    ///
    /// # Errors
    /// The system has no memory for it.
    pub fn record(&self) -> io::Result<OwnedFd> {
        let path = self.mountpoint.as_os_str().as_bytes();
        let mut bytes = (path.len() as u32).to_le_bytes().to_vec();
        bytes.extend(path);
        bytes.extend(self.offer);
        let file = rustix::fs::memfd_create("evfs-mount", MemfdFlags::CLOEXEC)?;
        let written = rustix::io::pwrite(&file, &bytes, 0)?;
        if written < bytes.len() || bytes.len() > BYTES_MAX {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(file)
    }
}

/// Reads a record of [`Held::record`]: the full path of the directory, and the kernel's first message.
///
/// # Errors
/// It is not one.
pub fn read_record(record: &impl AsFd) -> io::Result<(PathBuf, Vec<u8>)> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let mut bytes = vec![0; BYTES_MAX];
    let len = rustix::io::pread(record, &mut bytes[..], 0)?;
    let (path_len, rest) = bytes[..len].split_first_chunk::<4>().ok_or_else(wrong)?;
    let path_len = u32::from_le_bytes(*path_len) as usize;
    let (path, offer) = rest.split_at_checked(path_len).ok_or_else(wrong)?;
    Ok((OsString::from_vec(path.to_vec()).into(), offer.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_successor_reads_what_was_recorded_and_refuses_the_rest() {
        let device = tempfile::tempfile().unwrap();
        let held = |offer| Held {
            mountpoint: Path::new("/mnt/a b"),
            device: device.as_fd(),
            clones: Vec::new(),
            offer,
        };
        let record = held(b"offer").record().unwrap();
        let (path, offer) = read_record(&record).unwrap();
        assert_eq!(
            (path.to_str(), &offer[..]),
            (Some("/mnt/a b"), &b"offer"[..])
        );
        assert!(held(&[0; BYTES_MAX]).record().is_err());
        assert!(read_record(&device).is_err());
        rustix::io::pwrite(&record, &[0xff], 1).unwrap();
        assert!(read_record(&record).is_err());
    }
}
