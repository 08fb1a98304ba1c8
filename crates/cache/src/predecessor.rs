//! The dirty pages of a process that was killed, for the cache of its successor.
//!
//! ```text
//!   server                         keeper                    successor
//!     Cache, Config::surviving       descriptors               Predecessor
//!       pool of frames      ──────►    Cache::memory_fd  ────►   read, never changed
//!       table of frames     ──────►    Pages::file       ────►   names, sequences
//! ```
//!
//! **Invariant:** a frame is listed from the moment that its page is dirty and whole until the pager
//! has the page, or the page is not part of the file any more. So each byte of a completed write is in
//! the pager, or in the newest listed frame of its page. A write in progress may have changed a part
//! of its bytes, in a listed frame or not, as it may have for a reader at that moment.
//!
//! A page that moves is listed at its new place before it is removed at the old one. A page under
//! write-back stays listed, also if a writer has moved on to another frame, which is newer.

use crate::frames::PAGE_BYTES;
use crate::pager::{FileId, Tree};
use block::{Error, ErrorKind, Result};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use survival::Pages;
use survival::pages::Entry;

/// Dirty pages that a process left behind. See the module. Dropping it releases the memory once no
/// other process has the descriptors.
pub struct Predecessor {
    memory: File,
    file_system: [u8; 16],
    /// The newest frame of each page, in the order of trees, files and pages.
    entries: Vec<Entry>,
}

/// A dirty page that a process left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostPage {
    pub file: FileId,
    /// Index of the page in the file.
    pub page: u64,
    frame: u32,
}

impl Predecessor {
    /// Reads the table of a process that has ended. `memory` is the file of its frames
    /// ([`crate::Cache::memory_fd`]).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the table is damaged, so none of its pages can be trusted, or `memory`
    /// is not the file of its frames.
    pub fn new(memory: OwnedFd, pages: &Pages) -> Result<Predecessor> {
        let refuse = |detail: String| Error::new(ErrorKind::Invalid, NAME, detail);
        let memory = File::from(memory);
        let bytes = memory.metadata().map_err(failed)?.len();
        if bytes != pages.frames() as u64 * PAGE_BYTES as u64 {
            let detail = format!("{bytes} bytes of frames for {} entries", pages.frames());
            return Err(refuse(detail));
        }
        let entries = pages.entries().map_err(|error| refuse(error.to_string()))?;
        Ok(Predecessor {
            memory,
            file_system: pages.identity(),
            entries,
        })
    }

    /// Returns the UUID of the file system that the pages belong to.
    pub fn file_system(&self) -> [u8; 16] {
        self.file_system
    }

    /// Returns the trees with dirty pages.
    pub fn trees(&self) -> Vec<Tree> {
        let numbers = self.entries.iter().map(|entry| entry.object.0);
        let tree = |number| Tree {
            file_system: self.file_system,
            number,
        };
        let mut trees: Vec<Tree> = numbers.map(tree).collect();
        trees.dedup();
        trees
    }

    /// Returns the dirty pages of a tree, in the order of files and pages.
    pub fn pages(&self, tree: Tree) -> impl Iterator<Item = LostPage> {
        let is_own = tree.file_system == self.file_system;
        let own = self
            .entries
            .iter()
            .filter(move |entry| is_own && entry.object.0 == tree.number);
        own.map(|entry| LostPage {
            file: FileId(entry.object.1),
            page: entry.page,
            frame: entry.frame,
        })
    }

    /// Reads the bytes of a page from its beginning on, at most 4096. Those behind the end of the file
    /// are zeros.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn read(&self, page: &LostPage, out: &mut [u8]) -> Result<()> {
        assert!(out.len() <= PAGE_BYTES);
        let at = u64::from(page.frame) * PAGE_BYTES as u64;
        self.memory.read_exact_at(out, at).map_err(failed)
    }
}

/// Name of the predecessor in errors.
const NAME: &str = "predecessor";

fn failed(error: std::io::Error) -> Error {
    Error::from_io(NAME, error)
}
