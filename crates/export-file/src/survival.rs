//! State that a mount leaves to a successor of its server, and with which the successor begins.
//!
//! Handles name no table, and each request may be carried out twice:
//!
//! | request | why |
//! |---|---|
//! | LOOKUP, GETATTR, READ, READDIR, STATFS | change nothing; numbers of files and offsets of entries follow from the order of the exports |
//! | SETATTR, OPEN, RELEASE, FLUSH, FORGET | the server notes nothing of them |
//! | WRITE, FALLOCATE | the same bytes in the same place. The kernel repeats only what has no answer, so a program that writes there in the meantime does not know which of the two writes is later |
//! | FSYNC | makes everything durable that any server has written |
//! | others | refused, as before |
//!
//! The rest of the state is in the table: the time that files show, and the meaning of holes.

use crate::holes::Holes;
use ::survival::Memory;
use fuse_mount::fuse_proto::Time;
use fuse_mount::{Held, Record};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Version of the table.
const VERSION: u64 = 1;

/// Words before those of the files: the version, and seconds and nanoseconds of the time of the mount.
const HEAD: usize = 3;

/// Receiver of what a successor needs, before the first request is served.
pub type HoldMount<'a> = &'a mut dyn FnMut(&HeldMount<'_>) -> io::Result<()>;

/// Descriptors that a successor needs to continue a mount.
pub struct HeldMount<'a> {
    /// Its descriptors, and the kernel's first message.
    pub session: &'a Held<'a>,
    /// Memory with the state of the files.
    pub table: BorrowedFd<'a>,
}

/// A mount to be continued.
#[derive(Debug)]
pub struct Predecessor {
    pub(crate) device: OwnedFd,
    pub(crate) session: Record,
    pub(crate) table: OwnedFd,
}

impl Predecessor {
    /// Gathers what a server left: `device` and `table` of its [`HeldMount`], and the record of the
    /// session ([`Held::record`]).
    ///
    /// # Errors
    /// The record is damaged.
    pub fn new(device: OwnedFd, record: &OwnedFd, table: OwnedFd) -> io::Result<Predecessor> {
        Ok(Predecessor {
            device,
            session: Record::read(record)?,
            table,
        })
    }
}

/// State of the files that outlives the server.
#[derive(Clone)]
pub(crate) struct Table(Arc<Memory>);

impl Table {
    /// Creates the table of `files` files.
    pub fn create(files: usize, mounted: Time) -> io::Result<Table> {
        let memory = Memory::create("evfs-files", HEAD + files)?;
        let words = memory.words();
        words[1].store(mounted.seconds as u64, SeqCst);
        words[2].store(mounted.nanos.into(), SeqCst);
        words[0].store(VERSION, SeqCst);
        Ok(Table(Arc::new(memory)))
    }

    /// Takes the table of a predecessor with `files` files.
    pub fn adopt(file: OwnedFd, files: usize) -> io::Result<Table> {
        let memory = Memory::adopt(file)?;
        let words = memory.words();
        if words.len() != HEAD + files || words[0].load(SeqCst) != VERSION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Table(Arc::new(memory)))
    }

    /// Returns the time of the mount.
    pub fn mounted(&self) -> Time {
        let words = self.0.words();
        Time {
            seconds: words[1].load(SeqCst) as i64,
            nanos: words[2].load(SeqCst) as u32,
        }
    }

    /// Returns the meaning of holes in a file.
    pub fn holes(&self, index: usize) -> Holes {
        Holes::new(Arc::clone(&self.0), HEAD + index)
    }

    /// Returns the memory, for a successor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.file()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_shows_the_same_time_and_knows_the_holes_and_refuses_other_tables() {
        let mounted = Time {
            seconds: -5,
            nanos: 999_999_999,
        };
        let table = Table::create(2, mounted).unwrap();
        table.holes(1).disable_zeroing(|| true);
        let file = || table.file().try_clone_to_owned().unwrap();
        let other = Table::adopt(file(), 2).unwrap();
        assert_eq!(
            (other.mounted().seconds, other.mounted().nanos),
            (-5, 999_999_999)
        );
        assert_eq!(other.holes(1).known(), Some(true));
        assert_eq!(other.holes(0).known(), None);
        assert!(Table::adopt(file(), 3).is_err());
        table.0.words()[0].store(VERSION + 1, SeqCst);
        assert!(Table::adopt(file(), 2).is_err());
    }
}
