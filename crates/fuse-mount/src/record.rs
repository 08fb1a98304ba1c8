//! The record of a session for a successor, in memory that outlives the server: a byte that says whether
//! it is mounted from a block device, the length of the path of the directory, the path, and the kernel's
//! first message.

use crate::session::Held;
use rustix::fs::MemfdFlags;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Longest record in bytes.
const BYTES_MAX: usize = 16 << 10;

/// State of a session that a successor cannot find in its descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Full path of the directory.
    pub mountpoint: PathBuf,
    /// Whether it is mounted from a block device.
    pub on_block_device: bool,
    /// The kernel's first message.
    pub offer: Vec<u8>,
}

impl Held<'_> {
    /// Writes the record of the session, for [`Record::read`].
    ///
    /// # Errors
    /// The system has no memory for it.
    pub fn record(&self) -> io::Result<OwnedFd> {
        let path = self.mountpoint.as_os_str().as_bytes();
        let mut bytes = vec![u8::from(self.on_block_device)];
        bytes.extend((path.len() as u32).to_le_bytes());
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

impl Record {
    /// Reads a record of [`Held::record`].
    ///
    /// # Errors
    /// It is not one.
    pub fn read(record: &impl AsFd) -> io::Result<Record> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let mut bytes = vec![0; BYTES_MAX];
        let len = rustix::io::pread(record, &mut bytes[..], 0)?;
        let (on_block_device, rest) = bytes[..len].split_first().ok_or_else(wrong)?;
        let (path_len, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let path_len = u32::from_le_bytes(*path_len) as usize;
        let (path, offer) = rest.split_at_checked(path_len).ok_or_else(wrong)?;
        Ok(Record {
            mountpoint: OsString::from_vec(path.to_vec()).into(),
            on_block_device: match on_block_device {
                0 => false,
                1 => true,
                _ => return Err(wrong()),
            },
            offer: offer.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_successor_reads_what_was_recorded_and_refuses_the_rest() {
        let device = tempfile::tempfile().unwrap();
        let held = |offer, on_block_device| Held {
            mountpoint: Path::new("/mnt/a b"),
            on_block_device,
            device: device.as_fd(),
            clones: Vec::new(),
            offer,
        };
        for on_block_device in [true, false] {
            let record = held(b"offer", on_block_device).record().unwrap();
            let expected = Record {
                mountpoint: "/mnt/a b".into(),
                on_block_device,
                offer: b"offer".to_vec(),
            };
            assert_eq!(Record::read(&record).unwrap(), expected);
        }
        assert!(held(&[0; BYTES_MAX], false).record().is_err());
        assert!(Record::read(&device).is_err());
        for (at, byte) in [(0, 2), (2, 0xff)] {
            let record = held(b"offer", false).record().unwrap();
            rustix::io::pwrite(&record, &[byte], at).unwrap();
            assert!(Record::read(&record).is_err());
        }
    }
}
